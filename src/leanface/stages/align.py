"""Where a face lies (a matrix) and how it looks there (a crop)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leanface import pixels as px
from leanface.engine.sampling import warp
from leanface.pixels import Float, Matrix

_KERNEL = 3  # pixels that a bicubic kernel may reach past the area it samples


def similarity(points: ArrayLike, template: ArrayLike) -> Matrix:
    """The least-squares similarity (turn, scale, shift; no mirroring) that takes points to a template.

    Umeyama, "Least-squares estimation of transformation parameters between two point patterns", 1991,
    equations 38 to 43.

    Args:
        points: [n, 2] in picture coordinates.
        template: [n, 2] in crop coordinates.

    Returns:
        [2, 3] matrix from picture to crop coordinates.

    Raises:
        ValueError: the points all lie in one place.
    """
    source, target = np.asarray(points, np.float64), np.asarray(template, np.float64)
    source_mean, target_mean = source.mean(0), target.mean(0)
    source_centred, target_centred = source - source_mean, target - target_mean
    variance = (source_centred**2).sum() / len(source)
    if not variance > 0:
        raise ValueError("the points all lie in one place")
    u, d, vt = np.linalg.svd(target_centred.T @ source_centred / len(source))
    sign = np.array([1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt)) or 1.0])
    turn = (u * sign) @ vt
    scale = (d * sign).sum() / variance
    return np.column_stack([scale * turn, target_mean - scale * turn @ source_mean])


def fit(width: int, height: int, size: int) -> Matrix:
    """The matrix that brings a whole picture into a square: longer side to ``size``, aspect kept, centred.

    The picture's sides in the square, and the margins around them, are whole pixels.
    """
    inner_width, inner_height = fitted(width, height, size)
    return np.array(
        [
            [inner_width / width, 0, (size - inner_width) // 2],
            [0, inner_height / height, (size - inner_height) // 2],
        ],
        np.float64,
    )


def fitted(width: int, height: int, size: int) -> tuple[int, int]:
    """Width and height of a picture once its longer side is ``size``; at least one pixel each."""
    longer = max(width, height)
    return max(1, round(width * size / longer)), max(1, round(height * size / longer))


def crop(picture: NDArray[np.uint8] | NDArray[np.uint16], matrix: Matrix, size: int) -> Float:
    """The square crop that ``matrix`` describes, antialiased where it shrinks the picture.

    Past the picture's border the picture is reflected, so that no fill colour can bleed back.

    Args:
        picture: [h, w, 3].
        matrix: [2, 3] from picture to crop coordinates.
        size: side of the crop in pixels.

    Returns:
        float32 [size, size, 3] in [0, 1].
    """
    picture_height, picture_width = picture.shape[:2]
    left, top, right, bottom = bounds(matrix, size)
    reach = _KERNEL * max(1.0, 1.0 / float(np.hypot(*matrix[:, 0])))  # of the antialiasing kernel
    x0, x1 = _span(left - reach, right + reach, picture_width)
    y0, y1 = _span(top - reach, bottom + reach, picture_height)
    source = px.to_float(picture[y0:y1, x0:x1])

    # Shrink first: sampling does not antialias.
    scale_x, scale_y = (min(1.0, float(np.hypot(*matrix[:, i]))) for i in (0, 1))
    width, height = max(1, round((x1 - x0) * scale_x)), max(1, round((y1 - y0) * scale_y))
    factor_x, factor_y = width / (x1 - x0), height / (y1 - y0)
    source = px.resize(source, width, height)

    # Then reflect, as far as the crop reaches past what there is.
    pad_left = max(0, int(np.ceil((x0 - left) * factor_x)) + _KERNEL)
    pad_right = max(0, int(np.ceil((right - x1) * factor_x)) + _KERNEL)
    pad_top = max(0, int(np.ceil((y0 - top) * factor_y)) + _KERNEL)
    pad_bottom = max(0, int(np.ceil((bottom - y1) * factor_y)) + _KERNEL)
    source = np.pad(source, ((pad_top, pad_bottom), (pad_left, pad_right), (0, 0)), mode="reflect")

    to_source = np.diag([factor_x, factor_y]) @ (invert(matrix) - [[0, 0, x0], [0, 0, y0]])
    to_source[:, 2] += [pad_left, pad_top]
    shift = np.rint(to_source[:, 2]).astype(int)
    if np.allclose(to_source, [[1, 0, shift[0]], [0, 1, shift[1]]], atol=1e-6):
        out = source[shift[1] : shift[1] + size, shift[0] : shift[0] + size]
    else:
        out = warp(source, to_source, size, size)
    return np.clip(out, 0, 1, out=out)


def bounds(matrix: Matrix, size: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the crop's area in the picture; may reach past the picture."""
    corners = np.array([[0, size, size, 0], [0, 0, size, size], [1, 1, 1, 1]])
    x, y = invert(matrix) @ corners
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


def invert(matrix: Matrix) -> Matrix:
    """The inverse of a [2, 3] affine matrix."""
    inverse = np.linalg.inv(matrix[:, :2])
    return np.column_stack([inverse, -inverse @ matrix[:, 2]])


def _span(low: float, high: float, limit: int) -> tuple[int, int]:
    """Whole pixels from low to high that the picture has; never empty."""
    start = min(max(0, int(np.floor(low))), limit - 1)
    return start, max(start + 1, min(limit, int(np.ceil(high))))
