"""Samples a picture along a matrix, which takes most of the time of aligning and blending.

Pillow's transform takes several times as long, and sharpens. Coordinates are those of ``leanface.pixels``.
"""

from __future__ import annotations

import numpy as np

from leanface import pixels as px
from leanface.engine import heap
from leanface.engine.backends import openvino
from leanface.pixels import Float, Matrix

_BAND = 1 << 17  # pixels sampled at once


def warp(pixels: Float, matrix: Matrix, width: int, height: int) -> Float:
    """Sample [h, w, c] at ``matrix`` times each output position; outside, the nearest pixel.

    Bicubic with a slope of -0.75: Keys, "Cubic convolution interpolation for digital image processing", 1981.

    Args:
        pixels: float32 [h, w, c].
        matrix: [2, 3], from output coordinates to coordinates in ``pixels``.
        width: of the output.
        height: of the output.
    """
    out = np.empty((height, width, pixels.shape[2]), np.float32)
    rows = max(1, _BAND // width)
    with heap.large_blocks_returned():
        planes = px.planes(pixels)
        for top in range(0, height, rows):
            bottom = min(height, top + rows)
            found = openvino.sample(planes, _places(pixels, matrix, width, top, bottom))
            out[top:bottom] = found[0].transpose(1, 2, 0)
    return out


def _places(pixels: Float, matrix: Matrix, width: int, top: int, bottom: int) -> Float:
    """Where to sample for some rows, [bottom - top, width, 2]; -1 and 1 are the borders of ``pixels``."""
    scale = 2 / np.array([[pixels.shape[1]], [pixels.shape[0]]], np.float64)
    across, down, start = ((matrix * scale)[:, i] for i in range(3))
    x, y = np.arange(width) + 0.5, np.arange(top, bottom)[:, None] + 0.5
    places = np.empty((bottom - top, width, 2), np.float32)
    for axis in range(2):
        row, column = across[axis] * x + start[axis] - 1, down[axis] * y
        np.add(row.astype(np.float32), column.astype(np.float32), out=places[..., axis])
    return places
