"""The pipeline with networks that are not there: what is asked of them and done with what they give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leanface import pipeline
from leanface.engine.session import Session, Tensors
from leanface.errors import EngineError, UsageError
from leanface.pixels import Float
from leanface.registry import Crop, find
from leanface.stages.align import crop
from leanface.types import Face, Image, Options

MARKS = ((0.35, 0.4), (0.65, 0.4), (0.5, 0.55), (0.38, 0.75), (0.62, 0.75))


class Generator:
    """A session that inverts its crops, and counts them."""

    device, precision = "cpu", "fp32"

    def __init__(self, change: Any = lambda x: 1 - x) -> None:
        self.change = change
        self.runs = 0

    def run(self, inputs: Tensors) -> dict[str, Any]:
        self.runs += 1
        return {"output": self.change(inputs["input"])}

    def close(self) -> None:
        pass


def row(x: float, y: float, size: float, score: float = 0.95) -> list[float]:
    return [x, y, x + size, y + size, score, *(v for u, w in MARKS for v in (x + u * size, y + w * size))]


class Bench:
    """A pipeline over a given list of faces; keeps the events."""

    model = "lite"

    def __init__(self, rows: list[list[float]], change: Any = lambda x: 1 - x) -> None:
        self.rows = np.array(rows, np.float32).reshape(-1, 15)
        self.generator = Generator(change)
        self.loads = 0
        self.detections = 0
        self.events: list[tuple[str, dict[str, Any]]] = []

    def open(self) -> Session:
        self.loads += 1
        return self.generator

    def instead(self, session: Session, error: EngineError) -> Session:
        raise error

    def detect(self, picture: NDArray[np.uint8]) -> Float:
        self.detections += 1
        return self.rows

    def __call__(self, image: Image, **options: Any) -> Any:
        tools = pipeline.Tools(find(self.model), 512, self.open, self.detect, self.instead)
        return pipeline.run(image, tools, Options(**options), lambda *event: self.events.append(event))


@pytest.fixture
def photo() -> Image:
    return Image(np.random.default_rng(4).integers(0, 256, (300, 400, 3), np.uint8))


def test_faces_are_restored_each_on_its_own(photo: Image) -> None:
    bench = Bench([row(30, 40, 60), row(250, 150, 90)])
    result = bench(photo)
    assert (bench.loads, bench.generator.runs) == (1, 2)
    assert [f.status for f in result.faces] == ["restored", "restored"]
    assert result.faces[0].box[0] == 250  # the larger first
    assert (result.status, result.restored) == ("restored", 2)
    assert (result.model, result.device, result.precision) == ("lite", "cpu", "fp32")
    assert set(result.seconds) == {"detect", "load", "align", "restore", "blend"}
    assert result.peak_bytes > 10_000_000
    changed = (result.image.pixels != photo.pixels).any(2)
    assert changed[60:80, 50:70].mean() > 0.9 and changed[180:220, 280:310].mean() > 0.9
    assert not changed[:, 160:190].any()  # between the two


def test_pixels_outside_all_faces_are_the_input(photo: Image) -> None:
    result = Bench([row(150, 100, 40)])(photo)
    changed = (result.image.pixels != photo.pixels).any(2)
    rows, columns = np.nonzero(changed)
    assert rows.min() > 60 and rows.max() < 180 and columns.min() > 110 and columns.max() < 230


def test_no_face_returns_the_input_and_loads_nothing(photo: Image) -> None:
    bench = Bench([])
    result = bench(photo)
    assert bench.loads == 0
    assert (result.status, result.reason, result.faces) == ("skipped", "no face found", ())
    assert result.image.pixels is photo.pixels
    assert bench.events == [("detected", {"faces": 0})]


def test_small_and_unlikely_faces_are_left_alone_with_the_reason(photo: Image) -> None:
    bench = Bench([row(10, 10, 15), row(100, 100, 80), row(200, 200, 50, score=0.5)])
    result = bench(photo)
    assert [(f.status, f.reason) for f in result.faces] == [
        ("restored", ""),
        ("skipped", "smaller than 20 pixels"),
    ]
    assert bench.generator.runs == 1


@pytest.mark.parametrize(("which", "left"), [("largest", 20), ("center", 180)])
def test_one_face_can_be_chosen(which: str, left: int, photo: Image) -> None:
    bench = Bench([row(20, 20, 90), row(180, 120, 50), row(320, 10, 60)])
    result = bench(photo, faces=which)
    (only,) = [f for f in result.faces if f.status == "restored"]
    assert only.box[0] == left
    assert {f.reason for f in result.faces} == {"", f"not the {which} face"}


def test_of_two_that_overlap_the_larger_is_on_top(photo: Image) -> None:
    flat = Image(np.full((300, 400, 3), 100, np.uint8))
    seen: list[int] = []

    def stamp(x: Float) -> Float:  # each face gets its own colour: first call 0.2, second 0.8
        seen.append(1)
        return np.full_like(x, (0.2, 0.8)[len(seen) - 1])

    result = Bench([row(100, 80, 100), row(170, 100, 60)], stamp)(flat, color_match=False)
    assert result.image.pixels[130, 150, 0] == 204  # the centre of the larger
    swapped_seen = seen.copy()
    seen.clear()
    again = Bench([row(170, 100, 60), row(100, 80, 100)], stamp)(flat, color_match=False)
    assert swapped_seen == seen
    np.testing.assert_array_equal(result.image.pixels, again.image.pixels)


def test_strength_0_is_the_input(photo: Image) -> None:
    for faces in ("all", "none"):
        bench = Bench([row(100, 100, 80)])
        result = bench(photo, strength=0, faces=faces)
        np.testing.assert_array_equal(result.image.pixels, photo.pixels)
        assert bench.loads == 0


def test_gray_stays_gray_under_a_network_that_tints() -> None:
    gray = np.random.default_rng(1).integers(0, 256, (300, 400, 1), np.uint8)
    image = Image(np.repeat(gray, 3, 2), gray=True)
    tint = np.array([0.2, -0.1, 0.05], np.float32).reshape(1, 3, 1, 1)
    for faces in ("all", "none"):
        pixels = Bench([row(100, 100, 80)], lambda x: x + tint)(image, faces=faces).image.pixels
        np.testing.assert_array_equal(pixels[..., 0], pixels[..., 1])
        np.testing.assert_array_equal(pixels[..., 0], pixels[..., 2])


def test_a_whole_picture_needs_no_detector(photo: Image) -> None:
    bench = Bench([])
    result = bench(photo, faces="none")
    assert bench.detections == 0
    assert bench.events == [("resized", {"width": 512, "height": 512}), ("loaded", {"device": "cpu"})]
    assert result.image.pixels.shape == (384, 512, 3)  # smaller than 512: left at the restored size
    assert result.notes == (
        "This does not look like a single upright portrait: --detect finds and restores each face.",
    )


@pytest.mark.parametrize("shape", [(2000, 1300), (700, 513), (3, 1200)])
def test_a_large_picture_keeps_its_size(shape: tuple[int, int]) -> None:
    picture = Image(np.random.default_rng(2).integers(0, 256, (*shape, 3), np.uint8))
    same = Bench([], lambda x: x)(picture, faces="none")
    np.testing.assert_array_equal(same.image.pixels, picture.pixels)
    assert Bench([])(picture, faces="none").image.pixels.shape == (*shape, 3)


@pytest.mark.parametrize("shape", [(512, 341), (100, 90), (1, 1)])
def test_a_small_picture_is_never_made_smaller(shape: tuple[int, int]) -> None:
    picture = Image(np.full((*shape, 3), 77, np.uint8), np.full(shape, 200, np.uint8))
    result = Bench([], lambda x: x)(picture, faces="none").image
    assert max(result.width, result.height) == 512
    assert (result.pixels == 77).all()
    assert result.alpha is not None and (result.alpha == 200).all()


def test_alpha_and_depth_are_kept(photo: Image) -> None:
    deep = Image(photo.pixels.astype(np.uint16) * 257, np.arange(120_000, dtype=np.uint16).reshape(300, 400))
    result = Bench([row(100, 100, 80)])(deep).image
    assert result.pixels.dtype == np.uint16
    assert result.alpha is deep.alpha


def test_ready_crops_get_no_advice(photo: Image) -> None:
    assert Bench([])(photo, aligned=True).notes == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_network_that_returns_no_picture_is_an_error(bad: float, photo: Image) -> None:
    bench = Bench([row(100, 100, 80)], lambda x: np.full_like(x, bad))
    with pytest.raises(EngineError, match="did not return a picture"):
        bench(photo)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strength": 1.5}, "strength must lie between 0 and 1"),
        ({"strength": -0.1}, "strength must lie between 0 and 1"),
        ({"threshold": 2}, "threshold must lie between 0 and 1"),
        ({"faces": "both"}, "faces must be one of all, largest, center, none"),
        ({"min_face": -1}, "min_face must be 0 or more"),
    ],
)
def test_options_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(Options(), **changes)


@pytest.mark.parametrize(
    "pixels", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8),
               np.zeros((4, 4, 3), np.float32)]
)  # fmt: skip
def test_images_are_checked(pixels: Any) -> None:
    with pytest.raises(UsageError, match="an image is an array"):
        Image(pixels)


def test_crops_are_aligned_to_the_template(photo: Image) -> None:
    # A face whose landmarks are the template itself, at half size: the crop is that square of the picture.
    template = np.array(find("lite").family.template) * 200 + [50, 60]
    place = Face((60, 70, 240, 250), 0.9, tuple(map(tuple, template)))  # type: ignore[arg-type]
    crops: list[Float] = []

    def keep(x: Float) -> Float:
        crops.append(x)
        return x

    Bench([[*place.box, place.score, *template.ravel()]], keep)(photo)
    expected = crop(photo.pixels, np.array([[2.56, 0, -128], [0, 2.56, -153.6]]), 512)
    np.testing.assert_allclose(crops[0][0].transpose(1, 2, 0), expected, atol=1e-3)
    assert Crop(expected).scale == 1


@pytest.mark.parametrize(
    ("options", "left", "reasons"),
    [
        ({"pick": (2,)}, [320], {"", "not picked"}),
        ({"pick": (1, 3)}, [20, 180], {"", "not picked"}),
        ({"pick": (7,)}, [], {"not picked"}),
        ({"max_faces": 2}, [20, 320], {"", "beyond the largest 2"}),
    ],
)
def test_faces_are_picked_by_number(
    options: dict[str, Any], left: list[int], reasons: set[str], photo: Image
) -> None:
    result = Bench([row(20, 20, 90), row(180, 120, 50), row(320, 10, 60)])(photo, **options)
    assert [f.box[0] for f in result.faces if f.status == "restored"] == left
    assert {f.reason for f in result.faces} == reasons


def test_a_networks_tint_does_not_show_unless_asked() -> None:
    flat = Image(np.full((300, 400, 3), 120, np.uint8))
    tint = np.array([0.1, -0.05, 0.02], np.float32).reshape(1, 3, 1, 1)
    matched = Bench([row(100, 100, 80)], lambda x: x + tint)(flat).image.pixels
    assert np.abs(matched.astype(int) - 120).max() <= 1
    tinted = Bench([row(100, 100, 80)], lambda x: x + tint)(flat, color_match=False).image.pixels
    np.testing.assert_array_equal(tinted[140, 140], [146, 107, 125])


@settings(max_examples=15, deadline=None)
@given(
    first=st.tuples(st.floats(0, 330), st.floats(0, 240), st.floats(30, 110)),
    second=st.tuples(st.floats(0, 330), st.floats(0, 240), st.floats(30, 110)),
)
def test_overlapping_faces_in_any_order(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> None:
    photo = Image(np.random.default_rng(4).integers(0, 256, (300, 400, 3), np.uint8))
    rows = [row(*first, score=0.9), row(*second, score=0.95)]
    one, other = (Bench(order)(photo) for order in (rows, rows[::-1]))
    np.testing.assert_array_equal(one.image.pixels, other.image.pixels)
    untouched = np.ones((300, 400), bool)
    for report in one.faces:
        left, top, right, bottom = report.box
        reach = 1.6 * (right - left)  # of the crop around the box
        untouched[
            max(0, int(top - reach)) : int(bottom + reach), max(0, int(left - reach)) : int(right + reach)
        ] = False
    np.testing.assert_array_equal(one.image.pixels[untouched], photo.pixels[untouched])
    same = Bench(rows, lambda x: x)(photo).image.pixels
    np.testing.assert_array_equal(same, photo.pixels)


@pytest.mark.parametrize("faces", ["all", "none"])
def test_a_gray_picture_in_colour_channels_stays_gray(faces: str) -> None:
    plane = np.random.default_rng(8).integers(0, 256, (300, 400, 1), np.uint8)
    tinted = lambda x: np.clip(0.8 * x + np.array([0.2, 0.1, 0.0], np.float32).reshape(1, 3, 1, 1), 0, 1)  # noqa: E731
    result = Bench([row(100, 60, 120)], tinted)(Image(plane.repeat(3, axis=2)), faces=faces)
    pixels = result.image.pixels
    assert not result.image.gray  # its file has three channels, and so has the result's
    np.testing.assert_array_equal(pixels, pixels[..., :1].repeat(3, axis=2))
    assert result.status == "restored"


def test_a_whole_sepia_picture_keeps_its_tone() -> None:
    plane = np.random.default_rng(8).random((400, 300, 1)).astype(np.float32)
    sepia = (plane * [230, 200, 150] + [20, 12, 5]).astype(np.uint8)
    blue = lambda x: np.clip(0.7 * x + np.array([0, 0, 0.3], np.float32).reshape(1, 3, 1, 1), 0, 1)  # noqa: E731

    def cast(**options: bool) -> float:
        pixels = Bench([], blue)(Image(sepia), faces="none", **options).image.pixels.astype(float)
        return float(np.abs((pixels[..., 2] - 5) - (pixels[..., 0] - 20) * 150 / 230).mean())

    assert cast() < 2 < 30 < cast(color_match=False)


@pytest.mark.parametrize("faces", ["all", "none"])
@pytest.mark.parametrize("gray", [False, True])
def test_a_colourizer_gives_colour_and_keeps_the_luminance(faces: str, gray: bool) -> None:
    """It sees no colour, whatever the picture has, and its result has the picture's own luminance."""
    seen = []

    def green(x: Any) -> Any:
        seen.append(x)
        return x * 0.5 + np.array([-0.4, 0.4, -0.4], np.float32).reshape(1, 3, 1, 1)

    plane = np.random.default_rng(8).integers(90, 120, (300, 400, 1), np.uint8)
    pixels = plane.repeat(3, axis=2)
    pixels[..., 0] += 0 if gray else 9
    bench = Bench([row(100, 60, 120)], green)
    bench.model = "gpen-colorize-1024"
    result = bench(Image(pixels, gray=gray), faces=faces)
    assert not result.image.gray
    np.testing.assert_array_equal(seen[0], seen[0][:, :1].repeat(3, axis=1))
    out = result.image.pixels.astype(float)
    at = (slice(115, 130), slice(150, 170)) if faces == "all" else (slice(None), slice(None))
    assert (out[at][..., 1] - out[at][..., 0]).mean() > 40
    if faces == "all":
        there, before = (p[at] @ [0.299, 0.587, 0.114] for p in (out, pixels.astype(float)))
        np.testing.assert_allclose(there, before, atol=1)
