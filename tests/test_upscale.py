"""Backgrounds: tiles that do not show, exact sizes, memory that runs out, and faces in their places."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage

from leanface import Options, Restorer, imageio, pipeline, registry
from leanface import pixels as px
from leanface.cli import main
from leanface.engine import memory, parts
from leanface.engine.backends import openvino
from leanface.engine.memory import TILES, Enlargement, TileCost, choose_tiles
from leanface.engine.session import Graph, Tensors
from leanface.errors import BrokenOutputError, BudgetError, OutOfMemoryError, UsageError
from leanface.graphs import realesrgan
from leanface.registry import Enlarging, Variant
from leanface.stages.upscale import shown, upscale
from leanface.types import Image
from leanface.weights import manifest
from tests.drawn import compact, weights_file
from tests.drawn import realesrgan as rrdb
from tests.test_memory_process import run as in_a_process
from tests.test_pipeline import Bench, row

ANIME = registry.find("realesr-animevideov3").variant
DRAWN_HALO = {"x4plus": 33, "x2plus": 66, "compact": 4}  # all that the drawn networks see


def stub(factor: int, halo: int, step: int = 1) -> Variant:
    enlarging = Enlarging(halo, (TileCost("fp32", 100_000_000, 1000),), step)
    return replace(ANIME, id="stub", factor=factor, enlarging=enlarging)


class Repeat:
    """A session that repeats each pixel, and can only take so many; keeps the sizes that it was shown."""

    device, precision = "cpu", "fp32"

    def __init__(self, factor: int = 4, most: float = math.inf) -> None:
        self.factor, self.most = factor, most
        self.shown: list[tuple[int, int]] = []

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        picture = inputs["input"]
        self.shown.append(picture.shape[2:])
        if picture.shape[2] * picture.shape[3] > self.most:
            raise OutOfMemoryError("not enough memory on cpu in fp32")
        return {"output": picture.repeat(self.factor, 2).repeat(self.factor, 3)}

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def scene() -> NDArray[np.uint8]:
    """160x120: structure at every size, and some noise."""
    y, x = np.mgrid[:120, :160].astype(np.float32)
    waves = np.stack([np.sin(x / 5 + y / 9), np.cos(y / 4), np.sin(x * y / 90)], axis=2)
    noise = np.random.default_rng(2).normal(0, 0.04, (120, 160, 3))
    return (np.clip(0.4 * waves + 0.5 + noise, 0, 1) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Variant, Any]]:
    """Each kind of network with a session that takes any size."""
    folder = tmp_path_factory.mktemp("networks")
    found = {"animevideov3": (ANIME, _session(registry.ASSETS / ANIME.asset))}
    for kind, id in (
        ("x4plus", "realesrgan-x4plus"),
        ("x2plus", "realesrgan-x2plus"),
        ("compact", "realesr-general-x4v3"),
    ):
        variant = registry.find(id).variant
        assert variant.build and variant.enlarging
        weights = compact(id) if kind == "compact" else rrdb(id)
        for key in weights:  # so that the output is a picture
            if key in ("conv_last.weight", "body.6.weight"):
                weights[key] *= np.float32(0.2)
            if key == "conv_last.bias":
                weights[key] += np.float32(0.5)
        path = folder / f"{kind}.onnx"
        onnx.save(variant.build(weights, name=id, half=False, compute="float32", licence=""), path)
        enlarging = replace(
            variant.enlarging, halo=DRAWN_HALO[kind] + DRAWN_HALO[kind] % variant.enlarging.step
        )
        found[kind] = replace(variant, enlarging=enlarging), _session(path)
    return found


def _session(path: Path) -> Any:
    return openvino.open_session(Graph(path), device="cpu", precision="fp32", threads=2, limit=None)


@pytest.mark.parametrize(
    ("kind", "scale"),
    [("animevideov3", None), *((k, s) for k in ("x4plus", "x2plus", "compact") for s in (None, 1.7))],
)
def test_tiles_do_not_show(
    kind: str, scale: float | None, scene: NDArray[np.uint8], networks: dict[str, tuple[Variant, Any]]
) -> None:
    variant, session = networks[kind]
    picture = scene[:119, :157] if kind == "x2plus" else scene  # of odd sides too
    height, width = (round(n * (scale or variant.factor)) for n in picture.shape[:2])

    def made(tile: int) -> NDArray[Any]:
        return upscale(picture, variant, session.run, width=width, height=height, tile=tile)

    whole = made(160).astype(int)
    assert whole.shape == (height, width, 3) and whole.std() > 5
    for tile in (64, 96):
        assert np.abs(made(tile) - whole).max() <= 1


def test_the_halo_is_all_that_the_small_networks_see() -> None:
    """One more convolution of 3x3 sees one pixel more; those without a measured halo have all of it."""
    graph = onnx.load(registry.ASSETS / ANIME.asset)
    assert ANIME.enlarging and ANIME.enlarging.halo == sum(n.op_type == "Conv" for n in graph.graph.node)
    general = registry.find("realesr-general-x4v3").variant
    assert general.enlarging and general.enlarging.halo == 34  # 32 between the first and the last


@pytest.mark.parametrize("scale", [0.3, 0.77, 1, 1.5, 2.345, 4, 5.1])
@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_any_scale_gives_the_exact_size_and_every_tile_the_same_picture(scale: float, depth: type) -> None:
    top = np.iinfo(depth).max
    y, x = np.mgrid[:101, :173]
    picture: NDArray[Any] = np.stack([x * top // 172, y * top // 100, (x + y) * top // 272], axis=2).astype(
        depth
    )
    width, height = round(173 * scale), round(101 * scale)
    session = Repeat(4)
    made = [
        upscale(picture, stub(4, 6), session.run, width=width, height=height, tile=tile).astype(int)
        for tile in (16, 40, 173)
    ]
    assert made[0].shape == (height, width, 3)
    enlarged = picture.repeat(4, 0).repeat(4, 1)
    expected = px.scaled(enlarged, width, height).astype(int)
    for other in made:
        assert np.abs(other - expected).max() <= (1 if depth is np.uint8 else 2)


def test_what_the_network_is_shown_has_one_size() -> None:
    session = Repeat(2)
    upscale(np.zeros((61, 97, 3), np.uint8), stub(2, 8, 2), session.run, width=194, height=122, tile=32)
    (size,) = set(session.shown)
    assert size == shown(97, 61, (194, 122), 32, stub(2, 8, 2))[::-1]
    assert all(side % 2 == 0 for side in size) and len(session.shown) == 2 * 4


def test_gray_stays_gray(scene: NDArray[np.uint8]) -> None:
    tinted = lambda inputs: {  # noqa: E731
        "output": Repeat(2).run(inputs)["output"] * np.array([1, 0.8, 0.6], np.float32).reshape(1, 3, 1, 1)
    }
    picture = scene[..., :1].repeat(3, 2)
    made = upscale(picture, stub(2, 4), tinted, width=300, height=200, tile=64, gray=True)
    np.testing.assert_array_equal(made, made[..., :1].repeat(3, 2))


@pytest.mark.parametrize("bad", [np.nan, -0.5])
def test_what_is_no_picture_is_refused(bad: float, scene: NDArray[np.uint8]) -> None:
    broken = lambda inputs: {"output": np.full((1, 3, 480, 640), bad, np.float32)}  # noqa: E731
    with pytest.raises(BrokenOutputError, match=r"stub .*picture"):
        upscale(scene, stub(4, 4), broken, width=640, height=480, tile=160)


# ---- a network in two parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(24, 300), (150, 40)])
def test_two_parts_are_the_whole(
    size: tuple[int, int], tmp_path: Path, networks: dict[str, tuple[Variant, Any]]
) -> None:
    variant, _ = networks["x2plus"]
    assert variant.build and variant.enlarging and variant.enlarging.split
    graph = variant.build(rrdb("realesrgan-x2plus"), name="x", half=False, compute="float32", licence="")
    onnx.save(graph, tmp_path / "whole.onnx")
    for name, part in zip(("first", "second"), variant.enlarging.split(graph), strict=True):
        onnx.checker.check_model(part)
        onnx.save(part, tmp_path / f"{name}.onnx")
    first, second = (_session(tmp_path / f"{name}.onnx") for name in ("first", "second"))
    session = parts.Parts(first, second, variant.enlarging.seam)
    picture = {"input": np.random.default_rng(1).random((1, 3, *size), np.float32)}
    expected = _session(tmp_path / "whole.onnx").run(picture)["output"]
    np.testing.assert_allclose(session.run(picture)["output"], expected, atol=1e-4 * np.abs(expected).max())


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="no features that it enlarges"):
        realesrgan.split(onnx.load(registry.ASSETS / ANIME.asset))


# ---- the pipeline ------------------------------------------------------------------------------------------


class Scaled(Bench):
    """A pipeline with a background that repeats pixels."""

    def __init__(self, *arguments: Any, most: float = math.inf, tile: int = 512) -> None:
        super().__init__(*arguments)
        self.session, self.tile = Repeat(4, most), tile
        self.sizes: list[tuple[int, int]] = []
        self.released = 0

    def start(self, width: int, height: int) -> Any:
        self.sizes.append((width, height))
        return self.session

    def release(self, session: Any) -> None:
        self.released += 1

    def give_up(self, error: Exception) -> None:
        raise error

    def __call__(self, image: Image, background: Image | None = None, **options: Any) -> Any:
        enlarger = pipeline.Enlarger(stub(4, 8), self.start, self.give_up, self.release, self.tile)
        made = enlarger if options.pop("enlarge", True) and background is None else None
        tools = pipeline.Tools(
            registry.find("lite"), 512, self.open, self.detect, self.instead, enlarger=made
        )
        return pipeline.run(image, tools, Options(**options), lambda *e: self.events.append(e), background)


@pytest.fixture
def photo(scene: NDArray[np.uint8]) -> Image:
    return Image(px.scaled(scene, 400, 300))


def same(x: Any) -> Any:
    return x


@pytest.mark.parametrize("faces", ["all", "none"])
@pytest.mark.parametrize("options", [{}, {"scale": 1.5}, {"enlarge": False, "scale": 2.5}, {"grain": 1.0}])
def test_a_network_that_changes_nothing_leaves_the_base_as_it_is(
    faces: str, options: dict[str, Any], photo: Image
) -> None:
    if faces == "none" and "grain" in options:
        return
    base = Scaled([])(photo, **options).image.pixels
    result = Scaled([row(30, 40, 60), row(200, 100, 150)], same)(photo, faces=faces, **options)
    assert result.restored == (2 if faces == "all" else 1)
    np.testing.assert_array_equal(result.image.pixels, base)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.5, 4.0])
@pytest.mark.parametrize("size", [60, 150])
def test_faces_land_where_they_belong(scale: float, size: int) -> None:
    """A restorer that paints its crop: the paint is where the face is in the enlarged picture, and whole."""
    y, x = np.mgrid[:300, :400]
    photo = Image(np.stack([x // 4, y // 2, 150 - y // 4], axis=2).astype(np.uint8))
    paint = np.array([0.9, 0.1, 0.2], np.float32).reshape(1, 3, 1, 1)
    bench = Scaled([row(120, 80, size)], lambda x: np.zeros_like(x) + paint)
    result = bench(photo, scale=scale, color_match=False)
    assert (result.image.width, result.image.height) == (round(400 * scale), round(300 * scale))
    assert (result.background, result.scale, bench.released) == ("stub", scale, 1)
    painted = np.abs(result.image.pixels.astype(int) - [230, 26, 51]).max(2) <= 1
    rows, columns = np.nonzero(painted)
    # As in the picture itself, but for the pixels' size.
    ordinary = Bench([row(120, 80, size)], lambda x: np.zeros_like(x) + paint)(photo, color_match=False)
    there = np.abs(ordinary.image.pixels.astype(int) - [230, 26, 51]).max(2) <= 1
    for found, expected in zip((rows, columns), np.nonzero(there), strict=True):
        assert found.min() / scale == pytest.approx(expected.min(), abs=2 + 1 / scale)
        assert found.max() / scale == pytest.approx(expected.max(), abs=2 + 1 / scale)
    middle = (slice(*(round((80 + size * f) * scale) for f in (0.4, 0.6))),
              slice(*(round((120 + size * f) * scale) for f in (0.4, 0.6))))  # fmt: skip
    assert painted[middle].all()


def test_what_base_and_network_both_do_is_not_done_twice(photo: Image) -> None:
    """Both make everything lighter by as much: once lighter, not twice."""
    lighter = Image((photo.pixels // 2 + 100).astype(np.uint8))
    picture = Image((photo.pixels // 2 + 60).astype(np.uint8))
    bench = Scaled([row(120, 80, 100)], lambda x: x + np.float32(40 / 255))
    for color_match in (False, True):
        result = bench(picture, lighter, color_match=color_match)
        assert np.abs(result.image.pixels.astype(int) - lighter.pixels).max() <= 2
        assert result.background == "given"


def test_no_face_still_enlarges_and_says_so(photo: Image) -> None:
    result = Scaled([])(photo)
    assert (result.status, result.reason, result.restored) == ("restored", "", 0)
    assert result.notes == ("no face found",)
    assert result.image.width == 1600


def test_alpha_and_depth_come_along(photo: Image) -> None:
    pixels = photo.pixels.astype(np.uint16) * 257
    image = Image(pixels, alpha=pixels[..., 0], gray=False)
    result = Scaled([row(120, 80, 60)])(image, scale=1.5)
    assert result.image.pixels.dtype == np.uint16 and result.image.alpha is not None
    assert result.image.alpha.shape == (450, 600)
    np.testing.assert_array_equal(result.image.alpha, px.scaled(pixels[..., 0], 600, 450))


def test_tiles_are_halved_when_memory_runs_out(photo: Image) -> None:
    small = Scaled([row(120, 80, 60)], tile=100)(photo)
    bench = Scaled([row(120, 80, 60)], most=150 * 150, tile=512)
    result = bench(photo)
    assert result.tile == 100  # from 400: 200, 100
    assert bench.released == 3 and len(set(bench.sizes)) == 3
    (note,) = result.notes
    assert note == "stub ran out of memory with tiles of 200 pixels; they are 100 now"
    np.testing.assert_array_equal(result.image.pixels, small.image.pixels)
    hopeless = Scaled([], most=10)
    with pytest.raises(OutOfMemoryError):
        hopeless(photo)
    assert hopeless.released == len(hopeless.sizes) == 4  # 400, 200, 100, 64


# ---- Restorer, plan and the command ------------------------------------------------------------------------


def test_networks_are_chosen_by_what_they_declare() -> None:
    names = [model.variant.id for model in registry.enlargers()]
    assert names == ["realesrgan-x4plus", "realesrgan-x2plus", "realesr-general-x4v3", "realesr-animevideov3"]
    for model in registry.enlargers():
        how = model.variant.enlarging
        assert how and how.halo % how.step == 0
        assert {cost.precision for cost in how.costs} <= set(model.variant.precisions)
    with pytest.raises(
        UsageError, match="no background 'lite'; choose none, a picture's file, or one of real"
    ):
        Restorer("lite", options=Options(background="lite"))


@pytest.mark.parametrize("model", ["realesrgan-x2plus", "realesr-general-x4v3"])
def test_drawn_networks_in_small_tiles(
    model: str, tmp_path: Path, scene: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, published = weights_file(model, tmp_path), registry.find(model).variant.files[0]
    assert drawn
    drawn.rename(tmp_path / manifest.get(published).name)
    monkeypatch.setattr(memory, "TILES", (64,))
    nobody = lambda picture: np.zeros((0, 15), np.float32)  # noqa: E731
    with Restorer(
        "lite", weights=tmp_path, allow_unverified=True, detector=nobody, options=Options(background=model)
    ) as restorer:
        result = restorer.restore(scene)
    assert (result.tile, result.background, result.status) == (64, model, "restored")
    assert result.image.width == 160 * registry.find(model).variant.factor


def test_a_limit_chooses_the_tiles() -> None:
    variant = registry.find("realesrgan-x4plus").variant
    assert variant.enlarging
    sides = []
    for limit in ("700MB", "1200MB", "4GB"):
        options = Options(background="realesrgan-x4plus")
        with Restorer("lite", memory=limit, options=options) as restorer:
            made = restorer.plan(1024, 768)
            assert made.tiles and made.peak <= (made.limit or 0) and made.in_turn
            assert {"enlarge", "restore", "encode"} <= set(made.stages)
            sides.append(made.tiles.side)
    assert sides == sorted(sides) and sides[0] < sides[-1]
    with Restorer("lite", memory="300MB", options=options) as restorer, pytest.raises(BudgetError):
        restorer.plan(1024, 768)


def test_the_result_counts_in_the_plan() -> None:
    options = Options(scale=3)
    with Restorer("lite", options=options) as restorer:
        large, usual = restorer.plan(1000, 1000), restorer.plan(1000, 1000, Options())
        assert large.stages["encode"] - usual.stages["encode"] == pytest.approx(1.03 * 7 * 8e6, rel=1e-3)
        assert large.tiles is None


def test_a_leaner_precision_comes_after_smaller_tiles() -> None:
    how = Enlargement(9, 9, (TileCost("bf16", 300_000_000, 1000), TileCost("fp32", 200_000_000, 10)))
    for limit, precision, side in ((None, "bf16", TILES[0]), (400, "bf16", 288), (300, "fp32", TILES[0])):
        tiles = choose_tiles(how, 9, 9, limit=limit and limit * 10**6, precisions=("bf16", "fp32"))
        assert (tiles.cost.precision, tiles.side) == (precision, side)
    assert choose_tiles(how, 9, 9, limit=1, precisions=("bf16", "fp32")).side == TILES[-1]


@pytest.fixture
def files(tmp_path: Path, astronaut: Image) -> Path:
    exif = PillowImage.Exif()
    exif.get_ifd(0x8769).update({0xA002: 200, 0xA003: 200})
    picture = PillowImage.fromarray(px.thumbnail(astronaut.pixels, 200))
    picture.save(tmp_path / "in.jpg", exif=exif, quality=95)
    picture.resize((500, 500)).save(tmp_path / "base.png")
    picture.resize((500, 400)).save(tmp_path / "other.png")
    return tmp_path


def test_the_command(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = files / "r.jsonl"
    command = [
        "restore",
        str(files / "in.jpg"),
        "-o",
        str(files / "out.jpg"),
        "--model",
        "lite",
        "--overwrite",
    ]
    assert (
        main([*command, "--background", "realesr-animevideov3", "--scale", "1.5", "--report", str(report)])
        == 0
    )
    assert "1.5x by realesr-animevideov3 in tiles of 200" in capsys.readouterr().out
    with PillowImage.open(files / "out.jpg") as out:
        assert out.size == (300, 300)
        assert out.getexif().get_ifd(0x8769)[0xA002] == 300
    record = json.loads(report.read_text("utf-8"))
    assert (record["background"], record["scale"], record["tile"]) == ("realesr-animevideov3", 1.5, 200)
    assert record["faces_restored"] == 1

    assert main([*command, "--background", str(files / "base.png"), "--compare"]) == 0
    assert "2.5x" in capsys.readouterr().out
    out, base = (imageio.read(files / name)[0].pixels.astype(int) for name in ("out.jpg", "base.png"))
    assert out.shape == base.shape
    assert np.abs(out - base)[:, :100].mean() < 3 and np.abs(out - base)[100:250, 180:300].mean() > 1

    assert main([*command, "--scale", "0.5"]) == 0
    with PillowImage.open(files / "out.jpg") as out:
        assert out.size == (100, 100)
    assert main(["plan", "640x480", "--background", "realesr-animevideov3", "--model", "lite"]) == 0
    assert "realesr-animevideov3 in " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--background", "nothing"], 2, "there is no background 'nothing'"),
        (["--background", "other.png"], 4, "the background is 500x400, which is another shape"),
        (["--background", "base.png"], 2, "is the background of one picture, but"),
        (["--scale", "0"], 2, "must be a factor such as 2 or 1.5, not 0"),
        (["--scale", "17"], 2, "scale must lie above 0 and be at most 16"),
        (["--scale", "two"], 2, "must be a factor"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], code: int, message: str, files: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(files)
    inputs = ["in.jpg", "other.png"] if "one picture" in message else ["in.jpg"]
    assert main(["restore", *inputs, "-o", "out", "--model", "lite", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not list(files.glob("out/*"))


def test_a_result_that_its_format_cannot_hold_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than the 65500 pixels a side"):
        imageio.check_size(tmp_path / "a.jpg", 65_501, 3)
    imageio.check_size(tmp_path / "a.png", 70_000, 3)


# A picture enlarged by a stub, whole or in the size asked for; then the peak in bytes.
ENLARGED = """
import sys
import numpy as np
from leanface.engine.device import peak_bytes
from leanface.stages.upscale import upscale
from tests.test_upscale import Repeat, stub

def took(side):
    picture = np.full((side, side, 3), 90, np.uint8)
    size = round(side * float(sys.argv[1]))
    made = upscale(picture, stub(4, 16), Repeat(4).run, width=size, height=size, tile=128)
    return peak_bytes() - made.nbytes - picture.nbytes

small = took(512)
print(took(1024) - small)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("scale", [4, 2.5])
def test_memory_grows_by_the_result_only(scale: float) -> None:
    (extra,) = in_a_process(ENLARGED, scale)
    assert extra < 10_000_000  # the result alone has 50 or 20 million
