from __future__ import annotations

import math

import numpy as np
import pytest

from leanface import pixels as px
from leanface.registry import FFHQ
from leanface.stages.align import crop, fit, fitted, similarity
from leanface.types import Image

TEMPLATE = np.array(FFHQ) * 512


@pytest.mark.parametrize("angle", [0, 17, 90, 180, -120])
@pytest.mark.parametrize("scale", [0.1, 1, 7.5])
def test_similarity_inverts_a_known_one(angle: float, scale: float) -> None:
    a, b = scale * math.cos(math.radians(angle)), scale * math.sin(math.radians(angle))
    turn = np.array([[a, -b], [b, a]])
    points = TEMPLATE @ turn.T + [31, -470]
    expected = np.column_stack([np.linalg.inv(turn), -np.linalg.inv(turn) @ [31, -470]])
    np.testing.assert_allclose(similarity(points, TEMPLATE), expected, atol=1e-9)


def test_similarity_is_the_least_squares_one() -> None:
    # Without mirroring, the least squares are linear in (a, b, x, y): solve them directly.
    rng = np.random.default_rng(3)
    points = TEMPLATE / 3 + rng.normal(0, 4, (5, 2))
    rows, values = [], []
    for (x, y), (u, v) in zip(points, TEMPLATE, strict=True):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        values += [u, v]
    a, b, tx, ty = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    np.testing.assert_allclose(similarity(points, TEMPLATE), [[a, -b, tx], [b, a, ty]], rtol=1e-9)


def test_similarity_never_mirrors() -> None:
    mirrored = TEMPLATE * [-1, 1]
    assert np.linalg.det(similarity(mirrored, TEMPLATE)[:, :2]) > 0


def test_points_in_one_place_are_refused() -> None:
    with pytest.raises(ValueError, match="one place"):
        similarity([[3, 3]] * 5, TEMPLATE)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(300, 450, (341, 512)), (4000, 1000, (512, 128)), (512, 512, (512, 512)), (9000, 3, (512, 1))],
)
def test_fit_keeps_the_aspect_and_centres(width: int, height: int, expected: tuple[int, int]) -> None:
    assert fitted(width, height, 512) == expected
    matrix = fit(width, height, 512)
    corner = matrix @ [width, height, 1]
    margins = matrix[:, 2]
    np.testing.assert_allclose(corner - margins, expected)
    assert all(m == int(m) for m in margins)
    np.testing.assert_array_less(np.abs(512 - corner - margins), 1.001)


def test_a_crop_that_fits_is_the_picture_itself(noise: Image) -> None:
    taken = crop(noise.pixels, np.array([[1.0, 0, -8], [0, 1, -4]]), 32)
    np.testing.assert_array_equal(px.to_depth(taken, noise.pixels.dtype), noise.pixels[4:36, 8:40])


def test_padding_reflects(noise: Image) -> None:
    taken = px.to_depth(crop(noise.pixels, fit(64, 48, 64), 64), noise.pixels.dtype)
    np.testing.assert_array_equal(taken[8:56], noise.pixels)
    np.testing.assert_array_equal(taken[:8], noise.pixels[8:0:-1])
    np.testing.assert_array_equal(taken[56:], noise.pixels[-2:-10:-1])


@pytest.mark.parametrize("shape", [(1, 1), (1, 700), (700, 1), (3, 1000), (2, 2)])
def test_extreme_shapes_are_cropped(shape: tuple[int, int]) -> None:
    picture = np.full((*shape, 3), (10, 200, 90), np.uint8)
    taken = crop(picture, fit(shape[1], shape[0], 64), 64)
    np.testing.assert_allclose(taken * 255, np.broadcast_to([10, 200, 90], (64, 64, 3)), atol=0.01)


def test_16_bit_takes_the_same_path(noise: Image) -> None:
    matrix = similarity(TEMPLATE / 9 + 3, TEMPLATE / 8)
    deep = noise.pixels.astype(np.uint16) * 257
    np.testing.assert_allclose(crop(deep, matrix, 64), crop(noise.pixels, matrix, 64), atol=1e-6)


def test_shrinking_does_not_alias() -> None:
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255  # finer than the crop can hold: must become an even gray
    taken = crop(stripes, np.array([[0.1, 0.01, 4], [-0.01, 0.1, 6]]), 40)
    np.testing.assert_allclose(taken[8:32, 8:32], 0.5, atol=0.02)
