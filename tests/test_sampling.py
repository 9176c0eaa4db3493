"""Sampling along a matrix: exact where values are known, whatever the bands it is made in."""

from __future__ import annotations

import numpy as np
import pytest

from leanface.engine.backends import openvino
from leanface.engine.sampling import warp
from leanface.errors import EngineError

TURNED = np.array([[0.6, 0.1, 8], [-0.1, 0.6, 9]], np.float64)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(1).random((height, width, channels), np.float32)


def test_whole_shifts_keep_pixels_and_the_nearest_one_lies_outside() -> None:
    picture = noise(40, 50)
    same = np.array([[1, 0, 0], [0, 1, 0]], np.float64)
    np.testing.assert_allclose(warp(picture, same, 50, 40), picture, atol=5e-6)
    shifted = np.array([[1, 0, -3], [0, 1, 2]], np.float64)
    wanted = np.pad(picture[2:], ((0, 2), (3, 0), (0, 0)), mode="edge")[:, :50]
    np.testing.assert_allclose(warp(picture, shifted, 50, 40), wanted, atol=5e-6)


def test_values_between_pixels_are_those_of_the_cubic_kernel() -> None:
    row = noise(1, 12, 1)
    half = np.array([[1, 0, 0.5], [0, 1, 0]], np.float64)
    weights = np.array([-0.09375, 0.59375, 0.59375, -0.09375])  # Keys at a half, slope -0.75
    wanted = np.convolve(row[0, :, 0], weights, "valid")
    np.testing.assert_allclose(warp(np.repeat(row, 5, 0), half, 12, 5)[2, 1:10, 0], wanted, atol=5e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_bands_do_not_show(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = noise(60, 70, channels)
    whole = warp(picture, TURNED, 50, 40)
    monkeypatch.setattr("leanface.engine.sampling._BAND", 150)
    np.testing.assert_array_equal(warp(picture, TURNED, 50, 40), whole)


def test_a_failure_is_an_error_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(openvino, "_sampler", fail)
    with pytest.raises(EngineError, match="no more"):
        warp(noise(8, 8), TURNED, 4, 4)
