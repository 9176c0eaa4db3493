"""Resampling and rounding: the one place where integers become floats and floats become integers.

Coordinates are continuous: pixel i covers [i, i+1), its centre is at i + 0.5. Planes are resampled one
channel at a time as 32-bit floats, so that 8 and 16 bit take the same path and nothing is rounded on the way.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

_BAND_ROWS = 64
_THUMBNAIL_BYTES = 1 << 21  # of the part of a picture that a thread makes thumbnail rows of at once
_THREADS = 2  # parts of rows at once; more would hold more

Float = NDArray[np.float32]
Matrix = NDArray[np.float64]


def to_float(pixels: NDArray[Any]) -> Float:
    """uint8 or uint16 -> float32 in [0, 1]."""
    values: Float = pixels.astype(np.float32)
    values /= np.float32(np.iinfo(pixels.dtype).max)
    return values


def to_depth(values: Float, dtype: np.dtype[Any]) -> NDArray[Any]:
    """float32 in [0, 1] -> uint8 or uint16, clipped and rounded to the nearest."""
    top = np.iinfo(dtype).max
    scaled = values * np.float32(top)
    scaled += np.float32(0.5)
    rounded: NDArray[Any] = np.clip(scaled, 0, top, out=scaled).astype(dtype)
    return rounded


def luminance(pixels: Float) -> Float:
    """[..., 3] RGB -> [...], the luma of ITU-R BT.601."""
    return np.asarray(pixels @ np.array([0.299, 0.587, 0.114], np.float32))


def resize(pixels: Float, width: int, height: int) -> Float:
    """Bicubic resize of [h, w, c] with antialiasing where it shrinks (Pillow's)."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return stretch(pixels, (0, 0, pixels.shape[1], pixels.shape[0]), width, height)


def averaged(pixels: Float, step: int) -> Float:
    """Means of [h, w, c] over blocks of ``step`` x ``step``; those at the far border may be smaller."""
    means = [
        np.asarray(PillowImage.fromarray(np.ascontiguousarray(pixels[..., c])).reduce(step))
        for c in range(pixels.shape[2])
    ]
    return np.stack(means, axis=-1)


def scaled(picture: NDArray[Any], width: int, height: int) -> NDArray[Any]:
    """Bicubic resize of uint8 or uint16 [h, w] or [h, w, c] with antialiasing where it shrinks.

    Made a band of rows at a time: nothing of the picture's size is held but the result.
    """
    high, wide = picture.shape[:2]
    if (high, wide) == (height, width):
        return picture
    out = np.empty((height, width, *picture.shape[2:]), picture.dtype)
    ratio = high / height
    rows = max(1, min(_BAND_ROWS, int(_BAND_ROWS / ratio)))
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        low = max(0, math.floor(top * ratio - support(ratio)))
        stop = min(high, math.ceil(bottom * ratio + support(ratio)))
        band = to_float(picture[low:stop])
        box = (0.0, top * ratio - low, float(wide), bottom * ratio - low)
        made = stretch(band if band.ndim == 3 else band[..., None], box, width, bottom - top)
        out[top:bottom] = to_depth(made, out.dtype).reshape(out[top:bottom].shape)
    return out


def support(ratio: float) -> float:
    """How many pixels a resize by 1 / ``ratio`` sees beyond the area that it enlarges or shrinks."""
    return 2 * max(1.0, ratio)  # of Pillow's bicubic kernel


def stretch(pixels: Float, box: tuple[float, float, float, float], width: int, height: int) -> Float:
    """Bicubic resize of a part of [h, w, c] with antialiasing where it shrinks; sees what is around the part.

    Args:
        pixels: float32 [h, w, c].
        box: left, top, right and bottom of the part.
        width: of the output.
        height: of the output.
    """
    # Pillow refuses a box that a rounding error has brought past the border.
    left, top = max(0.0, box[0]), max(0.0, box[1])
    right, bottom = min(float(pixels.shape[1]), box[2]), min(float(pixels.shape[0]), box[3])
    ratio = (bottom - top) / height

    out = np.empty((height, width, pixels.shape[2]), np.float32)

    def fill(first: int, last: int) -> None:
        inside = left, top + first * ratio, right, min(bottom, top + last * ratio)
        for c in range(pixels.shape[2]):
            plane = PillowImage.fromarray(np.ascontiguousarray(pixels[..., c]))
            part = plane.resize((width, last - first), PillowImage.Resampling.BICUBIC, inside)
            out[first:last, :, c] = np.asarray(part)

    parts = min(_THREADS, height)
    bounds = [height * n // parts for n in range(parts + 1)]
    with ThreadPoolExecutor(parts) as threads:  # Pillow lets other threads work meanwhile
        list(threads.map(fill, bounds[:-1], bounds[1:]))
    return out


def thumbnail(picture: NDArray[Any], longest: int) -> NDArray[np.uint8]:
    """An 8-bit copy of [h, w, 3] whose longer side is at most ``longest``, aspect kept.

    Made a band of rows at a time, so that no second copy of the picture is ever held. A large picture is
    first averaged over whole blocks; a block row or column that is not whole at the far border is left out.
    """
    height, width = picture.shape[:2]
    scale = min(1.0, longest / max(height, width))
    target_width, target_height = max(1, round(width * scale)), max(1, round(height * scale))
    step = max(1, min(max(height, width) // longest, height, width))
    rows, columns = height // step, width // step
    ratio = rows / target_height
    band_rows = max(16, int(_THUMBNAIL_BYTES / (3 * width * step * ratio)))
    out = np.empty((target_height, target_width, 3), np.uint8)

    def fill(top: int) -> None:
        bottom = min(target_height, top + band_rows)
        # The filter reaches one row of the target past the band.
        low, high = max(0, math.floor((top - 1) * ratio)), min(rows, math.ceil((bottom + 1) * ratio))
        band = picture[low * step : high * step, : columns * step]
        if band.dtype == np.uint16:
            band = (band >> 8).astype(np.uint8)
        image = PillowImage.fromarray(np.ascontiguousarray(band))
        image = image.reduce(step) if step > 1 else image
        box = (0, top * ratio - low, columns, min(bottom * ratio - low, high - low))
        size = target_width, bottom - top
        out[top:bottom] = np.asarray(image.resize(size, PillowImage.Resampling.BILINEAR, box))

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(fill, range(0, target_height, band_rows)))
    return out


def planes(pixels: Float) -> Float:
    """[h, w, c] -> [1, c, h, w], the layout of the networks."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def interleaved(tensor: Float) -> Float:
    """[1, 3, h, w] -> [h, w, 3]."""
    return np.ascontiguousarray(tensor[0].transpose(1, 2, 0))
