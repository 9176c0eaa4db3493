"""Brings a restored crop back into its picture, touching only the crop's own rectangle.

What comes back is the *change* that the network made. Where the picture is finer than the crop (a large
face), its own finest detail stays as far as the network kept the finest detail of the crop, and goes as far
as the network took it for noise. A network that changes nothing therefore changes no pixel.

The same holds over a base: a picture enlarged, or made by others, that takes the picture's place. The change
is then what leads from the base's crop to the restored one, so that what base and network both did is not
done twice; it comes only where the network changed anything (``touched``); and of the base's detail beyond
the crop, that which the picture itself does not have goes (``own_detail``), since it was made up from what
the network saw too.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface import pixels as px
from leanface.engine.sampling import warp
from leanface.pixels import Float, Matrix

_BAND = 1 << 17  # pixels worked on at once
_FLAT = (0.1 / 255) ** 2  # mean square below which a crop has no detail to keep or lose
_RING = (0.5, 0.95)  # where colours are compared, as shares of the way to the border
_LEAST_SPREAD = 2 / 255  # so that an even background is not stretched
_ONE_TONE = 2 / 255  # error up to which a crop counts as one tone
_NOISE_SAMPLES = 1 << 18  # pixels that an estimate of noise looks at
_NOISE_KERNEL = ((1, -2, 1), (-2, 4, -2), (1, -2, 1))
_NOISE_GAIN = 0.6745 * 6  # median of its absolute answer to normal noise of spread 1
_UNTOUCHED, _TOUCHED = 0.5 / 255, 2 / 255  # mean change of an area that the network left alone, and changed
_CORE = 0.78  # the mask is 1 up to this share of the way from the crop's centre to its border


def paste(
    out: NDArray[Any],
    picture: NDArray[Any],
    matrix: Matrix,
    crop: Float,
    restored: Float,
    *,
    strength: float,
    mask: Float | None,
    kept: float | None = None,
) -> None:
    """Write a restored crop into ``out``.

    Args:
        out: [h, w, 3], changed in place; outside the crop's rectangle and where the mask is 0 not a bit.
        picture: [h, w, 3] of the same type, the picture that the crop was taken from; may be ``out``.
        matrix: [2, 3] from picture to crop coordinates.
        crop: [size, size, 3] as taken from the picture.
        restored: [size, size, 3] as restored.
        strength: 0 (the picture) to 1 (the restored crop).
        mask: [size, size] in [0, 1], how much of the result to take; None takes all of it.
        kept: how much of the picture's detail beyond the crop stays, 0 to 1; None is as much as the network
            kept of the crop's.
    """
    size = crop.shape[0]
    x0, y0, x1, y1 = _rectangle(matrix, size, picture.shape)
    if x0 >= x1 or y0 >= y1:
        return
    scale_x, scale_y = (float(np.hypot(*matrix[:, i])) for i in (0, 1))
    lost = 0.0
    if min(scale_x, scale_y) < 1:
        lost = strength * (1 - (kept_detail(crop, restored) if kept is None else kept))
    change = restored - crop
    if strength != 1:
        change *= np.float32(strength)
    if lost:  # the picture's share that goes comes back as fine as the crop holds it
        change += crop * np.float32(lost)

    # Shrink first where the crop is finer than the picture: sampling does not antialias.
    width = max(1, round(size / max(1.0, scale_x)))
    height = max(1, round(size / max(1.0, scale_y)))
    change = px.resize(change, width, height)
    to_change = np.diag([width / size, height / size]) @ matrix

    rows = max(1, _BAND // (x1 - x0))
    for top in range(y0, y1, rows):
        bottom = min(y1, top + rows)
        place = _from(to_change, x0, top)
        new = px.to_float(picture[top:bottom, x0:x1])
        if lost:
            new *= np.float32(1 - lost)
        new += warp(change, place, x1 - x0, bottom - top)
        target = out[top:bottom, x0:x1]
        if mask is None:
            target[:] = px.to_depth(new, out.dtype)
        else:
            seen = _from(matrix, x0, top)  # a mask is smooth: it needs no shrinking first
            weight = warp(mask[..., None], seen, x1 - x0, bottom - top)
            before = px.to_float(target)
            new -= before
            new *= weight
            new += before
            np.copyto(target, px.to_depth(new, out.dtype), where=weight > 1 / 1024)


def add_grain(out: NDArray[Any], matrix: Matrix, mask: Float, wanted: float, *, amount: float) -> None:
    """Give a pasted face the noise that its picture has and it lacks, so that it does not look put in.

    The noise is the same in every channel and, for a face at that place, always the same.

    Args:
        out: [h, w, 3] with the crop pasted, changed in place where the mask is not 0.
        matrix: [2, 3] from picture to crop coordinates.
        mask: [size, size] in [0, 1], as it was pasted with.
        wanted: the noise of the picture before, see ``grain_of``.
        amount: 0 (none) to 1 (all that lacks).
    """
    x0, y0, x1, y1 = _rectangle(matrix, mask.shape[0], out.shape)
    there = grain_of(out, matrix, mask)
    if there >= wanted:
        return
    random = np.random.default_rng([x0, y0, x1, y1])
    rows = max(1, _BAND // (x1 - x0))
    for top in range(y0, y1, rows):
        bottom = min(y1, top + rows)
        weight = warp(mask[..., None], _from(matrix, x0, top), x1 - x0, bottom - top)[..., 0]
        drawn = random.standard_normal(weight.shape, np.float32)
        # Along the soft edge the picture's own noise is partly there still: the spreads mix as the pixels do.
        mixed = wanted + weight * np.float32(there - wanted)
        drawn *= np.float32(amount) * np.sqrt(np.maximum(0, np.float32(wanted**2) - mixed * mixed))
        target, inside = out[top:bottom, x0:x1], weight > 1 / 1024
        target[inside] = px.to_depth(px.to_float(target[inside]) + drawn[inside][:, None], out.dtype)


def grain_of(picture: NDArray[Any], matrix: Matrix, mask: Float) -> float:
    """The spread of the noise of a crop's area in its picture, in [0, 1]; 0 outside the picture.

    Args:
        picture: [h, w, 3].
        matrix: [2, 3] from picture to crop coordinates.
        mask: [size, size], of the crop; only where it is above a half is looked.
    """
    x0, y0, x1, y1 = _rectangle(matrix, mask.shape[0], picture.shape)
    return _noise(picture[y0:y1, x0:x1], mask, _from(matrix, x0, y0)) if x0 < x1 and y0 < y1 else 0.0


def _noise(area: NDArray[Any], mask: Float, matrix: Matrix) -> float:
    """The spread of the noise of an area's luminance, in [0, 1], where the mask is above a half.

    Immerkaer, "Fast noise variance estimation", 1996: a kernel that neither flat nor sloping areas answer to.
    The median of the answer instead of its mean, so that edges do not count either; at a bounded number of
    places.

    Args:
        area: [h, w, 3].
        mask: [size, size].
        matrix: [2, 3] from the area to the mask.
    """
    height, width = area.shape[0] - 2, area.shape[1] - 2
    if height < 1 or width < 1:
        return 0.0
    step = math.ceil(math.sqrt(height * width / _NOISE_SAMPLES))
    answer = np.zeros((len(range(0, height, step)), len(range(0, width, step))), np.float32)
    for y, row in enumerate(_NOISE_KERNEL):
        for x, factor in enumerate(row):
            answer += factor * px.luminance(px.to_float(area[y : y + height : step, x : x + width : step]))
    places = _from(matrix, 1.5 - step / 2, 1.5 - step / 2) @ np.diag([step, step, 1])
    weight = warp(mask[..., None], places, answer.shape[1], answer.shape[0])[..., 0]
    seen = np.abs(answer[weight > 0.5])
    return float(np.median(seen)) / _NOISE_GAIN if seen.size else 0.0


def _from(matrix: Matrix, x: float, y: float) -> Matrix:
    """The matrix for coordinates that count from x, y."""
    shifted: Matrix = matrix.copy()
    shifted[:, 2] += matrix[:, :2] @ [x, y]
    return shifted


@cache
def feather(size: int) -> Float:
    """The mask of a face crop, [size, size]: 1 around the face, falling smoothly to 0 in the outermost
    pixels.

    It is drawn in crop coordinates, so that the soft edge grows with the face.
    """
    along = np.abs(np.linspace(-1, 1, size, dtype=np.float32))
    radius = (along[:, None] ** 6 + along[None, :] ** 6) ** (1 / 6)  # a square with round corners
    t = np.clip((1 - radius) / (1 - _CORE), 0, 1)
    mask: Float = (t * t * (3 - 2 * t)).astype(np.float32)
    mask.setflags(write=False)
    return mask


def match_color(crop: Float, restored: Float) -> Float:
    """The restored crop with the colours of the picture around the face.

    Mean and spread of each channel are brought to those of the crop over a ring: outside the face, inside the
    crop. Both are taken from coarse copies, so that noise and detail, which a network is there to change, do
    not count. A crop of one tone is changed in that tone only.
    """
    restored = keep_tone(crop, restored)
    step = max(1, min(16, crop.shape[0] // 8))
    before, after = (px.averaged(image, step) for image in (crop, restored))
    ring = _ring(before.shape[0])[..., None]
    mean_before, spread_before = _statistics(before, ring)
    mean_after, spread_after = _statistics(after, ring)
    gain = np.clip((spread_before + _LEAST_SPREAD) / (spread_after + _LEAST_SPREAD), 0.8, 1.25)
    matched: Float = restored * gain
    matched += mean_before - mean_after * gain
    return np.clip(matched, 0, 1, out=matched)


def keep_tone(crop: Float, restored: Float) -> Float:
    """The restored crop, or where the crop is of one tone (gray, sepia) what was changed in that tone."""
    tone = _tone(px.averaged(crop, 4))
    if tone is None:
        return restored
    kept: Float = px.luminance(restored - crop)[..., None] * tone
    kept += crop
    return kept


def _tone(coarse: Float) -> Float | None:
    """How much of each channel goes with one of luminance, [3], where the picture has one tone only."""
    gray = px.luminance(coarse)
    deviation = gray - gray.mean()
    variance = float((deviation**2).mean())
    if variance <= _FLAT:
        return None
    gain: Float = (deviation[..., None] * coarse).mean((0, 1)) / np.float32(variance)
    offset = coarse.mean((0, 1)) - gain * gray.mean()
    error = coarse - (gray[..., None] * gain + offset)
    return gain if float(np.sqrt((error**2).mean())) < _ONE_TONE else None


@cache
def _ring(size: int) -> Float:
    along = np.abs((np.arange(size, dtype=np.float32) + np.float32(0.5)) * (2 / size) - 1)
    radius = np.maximum(along[:, None], along[None, :])
    ring: Float = ((radius > _RING[0]) & (radius < _RING[1])).astype(np.float32)
    ring /= ring.sum()
    return ring


def _statistics(image: Float, weight: Float) -> tuple[Float, Float]:
    """Weighted mean and spread of each channel."""
    mean = (image * weight).sum((0, 1))
    return mean, np.sqrt(((image - mean) ** 2 * weight).sum((0, 1)))


def touched(crop: Float, restored: Float) -> Float:
    """Where the network changed anything, [size, size]: 0 where it left the crop as it was, else 1, with soft
    edges."""
    size = crop.shape[0]
    coarse = max(1, size // 32)
    change = np.abs(restored - crop).max(2, keepdims=True)
    share = (px.resize(px.resize(change, coarse, coarse), size, size)[..., 0] - _UNTOUCHED) / (
        _TOUCHED - _UNTOUCHED
    )
    return np.asarray(np.clip(share, 0, 1), np.float32)


def own_detail(matrix: Matrix, base_matrix: Matrix) -> float:
    """Of the octaves of detail that a base can hold beyond a crop, the share that its picture holds, 0 to 1.

    Args:
        matrix: [2, 3] from picture to crop coordinates.
        base_matrix: [2, 3] from base to crop coordinates.
    """
    picture, base = (max(0.0, -math.log2(float(np.hypot(*m[:, 0])))) for m in (matrix, base_matrix))
    return min(1.0, picture / base) if base else 1.0


def kept_detail(crop: Float, restored: Float) -> float:
    """How much of the crop's finest detail is still there after restoring, 0 to 1.

    The finest octave of the restored crop, projected on that of the crop: 1 where the network left it alone,
    near 0 where it took it for noise.
    """
    before, after = _finest(crop), _finest(restored)
    energy = float((before * before).sum())
    if energy <= _FLAT * before.size:
        return 1.0
    return float(np.clip((before * after).sum() / energy, 0, 1))


def _finest(crop: Float) -> Float:
    gray = px.luminance(crop)[..., None]
    size = gray.shape[0]
    coarse = px.resize(px.resize(gray, size // 2, size // 2), size, size)
    finest: Float = gray - coarse
    return finest


def _rectangle(matrix: Matrix, size: int, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of the crop's area in whole pixels that the picture has."""
    turn = np.linalg.inv(matrix[:, :2])
    corners = turn @ (np.array([[0, size, size, 0], [0, 0, size, size]]) - matrix[:, 2:])
    x0, y0 = np.floor(corners.min(1)).astype(int)
    x1, y1 = np.ceil(corners.max(1)).astype(int)
    return max(0, x0), max(0, y0), min(shape[1], x1), min(shape[0], y1)
