from __future__ import annotations

import numpy as np
import pytest

from leanface.api import Restorer
from leanface.registry import Crop, find
from leanface.stages.detect import choose, detect, plausible
from leanface.types import Face, Image

LANDMARKS = ((30.0, 40.0), (70.0, 40.0), (50.0, 60.0), (35.0, 80.0), (65.0, 80.0))


def face(x: float, y: float, size: float, score: float = 0.9) -> Face:
    marks = tuple((x + u * size / 100, y + v * size / 100) for u, v in LANDMARKS)
    return Face((x, y, x + size, y + size), score, marks)  # type: ignore[arg-type]


def test_the_astronaut(astronaut: Image) -> None:
    with Restorer() as restorer:
        found, dropped = detect(astronaut.pixels, restorer._detect, 0.8)
    assert not dropped
    (only,) = found
    np.testing.assert_allclose(only.box, (177.7, 56.9, 273.1, 177.3), atol=1)
    expected = [(204.7, 101.0), (247.3, 103.4), (223.6, 129.4), (202.6, 138.2), (244.4, 140.4)]
    np.testing.assert_allclose(only.landmarks, expected, atol=1)
    assert only.score > 0.99


@pytest.mark.parametrize("factor", [2, 5])
def test_large_pictures_give_the_same_place(astronaut: Image, factor: int) -> None:
    large = astronaut.pixels.repeat(factor, 0).repeat(factor, 1)
    with Restorer() as restorer:
        found, _ = detect(large, restorer._detect, 0.8)
    (only,) = found
    np.testing.assert_allclose(np.array(only.box) / factor, (177.7, 56.9, 273.1, 177.3), atol=2.5)


def test_small_faces_of_a_large_picture_come_from_the_fine_pass(astronaut: Image) -> None:
    wide = np.zeros((600, 2400, 3), np.uint8)
    small = astronaut.pixels[::3, ::3]
    for x in range(100, 2200, 300):
        wide[200 : 200 + small.shape[0], x : x + small.shape[1]] = small
    with Restorer() as restorer:
        found, _ = detect(wide, restorer._detect, 0.8)
    left = sorted(f.box[0] for f in found)
    np.testing.assert_allclose(left, [x + 177.7 / 3 for x in range(100, 2200, 300)], atol=4)


def test_anchors_follow_the_outputs_order() -> None:
    # Outputs of zero offset: every candidate must be its anchor.
    family = find("retinaface-mobilenet025", "detector").family
    crop = Crop(np.zeros((64, 96, 3), np.float32))
    count = 2 * (8 * 12 + 4 * 6 + 2 * 3)
    outputs = {
        "loc": np.zeros((1, count, 4), np.float32),
        "conf": np.tile(np.array([0.25, 0.75], np.float32), (1, count, 1)),
        "landmarks": np.zeros((1, count, 10), np.float32),
    }
    rows = family.finish(outputs, crop)
    np.testing.assert_allclose(rows[0], [-4, -4, 12, 12, 0.75, *[4, 4] * 5])
    np.testing.assert_allclose(rows[1], [-12, -12, 20, 20, 0.75, *[4, 4] * 5])
    np.testing.assert_allclose(rows[2][:4], [4, -4, 20, 12])
    np.testing.assert_allclose(rows[24][:4], [-4, 4, 12, 20])  # second row of the finest grid
    np.testing.assert_allclose(rows[2 * 96][:4], [8 - 32, 8 - 32, 8 + 32, 8 + 32])
    np.testing.assert_allclose(rows[-1][:4], [80 - 256, 48 - 256, 80 + 256, 48 + 256])


def test_doubles_and_nested_boxes_are_dropped() -> None:
    large, double, nested, other = (
        face(0, 0, 200, 0.9),
        face(6, 4, 196, 0.95),
        face(60, 60, 50),
        face(300, 0, 80),
    )
    kept, dropped = choose([large, nested, double, other])
    assert kept == [double, other]
    assert dropped == [(nested, "inside another face")]


def test_overlapping_neighbours_are_both_kept() -> None:
    first, second = face(0, 0, 100), face(60, 10, 90)
    assert choose([first, second]) == ([first, second], [])


@pytest.mark.parametrize(
    "landmarks",
    [
        ((30, 40), (70, 40), (50, 60), (35, 44), (65, 36)),  # the mouth on the eyes
        ((30, 40), (70, 40), (50, 160), (35, 80), (65, 80)),  # the nose far below
        ((30, 40), (70, 40), (50, 60), (35, 180), (65, 180)),  # the mouth outside the box
        ((70, 40), (30, 40), (50, 60), (65, 80), (35, 80)),  # inside out
    ],
)
def test_absurd_landmarks_are_dropped_with_the_reason(landmarks: tuple[tuple[float, float], ...]) -> None:
    odd = Face((0, 0, 100, 100), 0.99, landmarks)  # type: ignore[arg-type]
    assert not plausible(odd)
    assert choose([odd]) == ([], [(odd, "impossible landmarks")])


@pytest.mark.parametrize("angle", range(0, 360, 30))
def test_turned_faces_are_plausible(angle: int) -> None:
    a = np.radians(angle)
    turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    marks = (np.array(LANDMARKS) - 50) @ turn.T + 50
    assert plausible(Face((0, 0, 100, 100), 0.9, tuple(map(tuple, marks))))  # type: ignore[arg-type]


def test_pictures_without_faces(noise: Image) -> None:
    with Restorer() as restorer:
        for shape in ((1, 1), (1, 900), (40, 30)):
            assert detect(np.zeros((*shape, 3), np.uint8), restorer._detect, 0.8) == ([], [])
        assert detect(noise.pixels, restorer._detect, 0.8) == ([], [])


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_turned_pictures(turns: int, astronaut: Image) -> None:
    turned = np.rot90(astronaut.pixels, turns)
    with Restorer() as restorer:
        (only,), _ = detect(turned, restorer._detect, 0.8, (0, 90, 180, 270))
        (upright,), _ = detect(astronaut.pixels, restorer._detect, 0.8)
    # The same points of the picture, counted from another corner.
    x, y = np.array(upright.landmarks).T
    expected = ((x, y), (y, 512 - x), (512 - x, 512 - y), (512 - y, x))[turns]
    np.testing.assert_allclose(np.array(only.landmarks).T, expected, atol=1.5)
    assert only.box[0] < only.box[2] and only.box[1] < only.box[3]
