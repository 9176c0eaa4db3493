"""Enlarges a picture with a network, a tile at a time, each written straight into the result.

A network looks at a tile together with a halo around it, so that what it makes of the tile is what it would
make of the whole picture. All tiles of a picture are shown to it in the same size: at the border the halo is
on the inner side. What the network has made is brought to the wanted size tile by tile too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface import pixels as px
from leanface.engine.session import Tensors
from leanface.errors import BrokenOutputError
from leanface.pixels import Float
from leanface.registry import Variant

LEAST_TILE = 64
_BLACK = 0.1  # a tile that is darker on the average may well come back black


@dataclass(frozen=True)
class _Span:
    """A tile along one axis.

    Attributes:
        first: of its pixels in the result.
        last: one past them.
        low: first pixel of the picture that the network is shown.
        box: where the tile lies in what the network makes, from ... to.
    """

    first: int
    last: int
    low: int
    box: tuple[float, float]


def upscale(
    picture: NDArray[Any],
    variant: Variant,
    run: Callable[[Tensors], Tensors],
    *,
    width: int,
    height: int,
    tile: int,
    gray: bool = False,
    done: Callable[[int, int], None] = lambda number, count: None,
) -> NDArray[Any]:
    """Enlarge a picture.

    Args:
        picture: uint8 or uint16 [h, w, 3].
        variant: the network, one that enlarges.
        run: its session.
        width: of the result; the network's work is resized to it.
        height: of the result.
        tile: about the side of a tile in pixels of the picture; the tiles at the border are larger, as they
            have a halo on one side less.
        gray: the picture has no colour; the result will have none either.
        done: told how many tiles of how many are finished.

    Returns:
        [height, width, 3] of the picture's type.

    Raises:
        BrokenOutputError: the network returned something that is no picture.
        EngineError: it failed; as OutOfMemoryError where smaller tiles may do.
    """
    shown_height, rows = _spans(picture.shape[0], height, tile, variant)
    shown_width, columns = _spans(picture.shape[1], width, tile, variant)
    out = np.empty((height, width, 3), picture.dtype)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            shown = picture[row.low : row.low + shown_height, column.low : column.low + shown_width]
            made = _run(shown, shown_height, shown_width, variant, run)
            part = _part(made, row, column)
            if gray:
                part = np.repeat(px.luminance(part)[..., None], 3, axis=2)
            out[row.first : row.last, column.first : column.last] = px.to_depth(part, out.dtype)
            done(y * len(columns) + x + 1, len(rows) * len(columns))
    return out


def shown(width: int, height: int, result: tuple[int, int], tile: int, variant: Variant) -> tuple[int, int]:
    """Width and height of what the network is shown at once.

    Args:
        width: of the picture.
        height: of the picture.
        result: width and height of the result.
        tile: about the side of a tile.
        variant: the network.
    """
    return _spans(width, result[0], tile, variant)[0], _spans(height, result[1], tile, variant)[0]


def _spans(length: int, result: int, tile: int, variant: Variant) -> tuple[int, list[_Span]]:
    """How many pixels of an axis the network is shown at once, and the tiles along it."""
    assert variant.enlarging is not None
    step, factor = variant.enlarging.step, variant.factor
    scale = result / length
    halo = variant.enlarging.halo
    if (
        result != length * factor
    ):  # the resize looks past the tile, whose border need not be one of its pixels
        halo = _up(halo + px.support(factor / scale) / factor + 0.5 / scale, step)
    count, whole = math.ceil(length / tile), _up(length, step)
    window = min(whole, _up((whole + 2 * halo * (count - 1)) / count, step))
    spans: list[_Span] = []
    stop = 0
    while stop < length:
        start, low = stop, min(max(0, stop - halo), whole - window)
        stop = length if low + window >= length else low + window - halo
        first, last = round(start * scale), min(result, round(stop * scale))
        if first < last:
            box = (first / scale - low) * factor, (last / scale - low) * factor
            spans.append(_Span(first, last, low, box))
    return window, spans


def _up(value: float, step: int) -> int:
    return math.ceil(value / step) * step


def _run(
    shown: NDArray[Any], height: int, width: int, variant: Variant, run: Callable[[Tensors], Tensors]
) -> Float:
    """What the network makes of a part of the picture, [3, factor * height, factor * width]."""
    missing = ((0, height - shown.shape[0]), (0, width - shown.shape[1]), (0, 0))
    seen = px.to_float(np.pad(shown, missing, mode="edge") if any(map(any, missing)) else shown)
    made = run({"input": px.planes(seen)})["output"]
    if made.shape != (1, 3, height * variant.factor, width * variant.factor) or not np.isfinite(made).all():
        raise BrokenOutputError(f"{variant.id} did not return a picture; try another precision")
    if made.max() <= 0 and seen.mean() > _BLACK:
        raise BrokenOutputError(f"{variant.id} returned a black picture; try another precision")
    return np.asarray(made[0])


def _part(made: Float, row: _Span, column: _Span) -> Float:
    """A tile of the result, [height, width, 3], from what the network made."""
    height, width = row.last - row.first, column.last - column.first
    (top, bottom), (left, right) = row.box, column.box
    reach = [math.ceil(px.support((high - low) / size)) for low, high, size in
             ((top, bottom, height), (left, right, width))]  # fmt: skip
    y0, x0 = max(0, math.floor(top) - reach[0]), max(0, math.floor(left) - reach[1])
    y1, x1 = math.ceil(bottom) + reach[0], math.ceil(right) + reach[1]
    pixels = made[:, y0:y1, x0:x1].transpose(1, 2, 0)
    np.clip(pixels, 0, 1, out=pixels)
    y, x = round(top) - y0, round(left) - x0
    if (bottom - top, right - left) == (height, width) and (y + y0, x + x0) == (top, left):
        return np.ascontiguousarray(pixels[y : y + height, x : x + width])
    return px.stretch(pixels, (left - x0, top - y0, right - x0, bottom - y0), width, height)
