"""A network in two parts, the second run a piece at a time.

Where a network works at its input's size for long and only then enlarges, its last layers need by far the
most memory, but see next to nothing beyond their place. So the first part runs over all of the input, and the
second over pieces of what the first gave, all of one size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leanface.engine.session import Session, Tensors

_PIECE = 128  # side of the largest piece in values of what the first part gives


class Parts:
    """Two sessions as one that takes ``input`` and gives ``output``; the second takes ``features``.

    Args:
        first: takes ``input`` [1, c, h, w] and gives ``features`` [1, d, n * h, n * w].
        second: takes ``features`` of the size that ``seen`` says and gives ``output``, larger by a whole
            factor.
        seam: how far the second part sees, in values of the features.
    """

    def __init__(self, first: Session, second: Session, seam: int) -> None:
        self.device, self.precision = first.device, first.precision
        self.sessions, self._seam = (first, second), seam

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        first, second = self.sessions
        features = first.run(inputs)["features"]
        height, width = features.shape[2:]
        rows, columns = _pieces(height, self._seam), _pieces(width, self._seam)
        factor, out = 0, np.empty(0, np.float32)
        for top, bottom, above in rows:
            for left, right, before in columns:
                below, after = above + seen(height, self._seam), before + seen(width, self._seam)
                shown = np.ascontiguousarray(features[:, :, above:below, before:after])
                made = second.run({"features": shown})["output"]
                if not factor:
                    factor = made.shape[2] // shown.shape[2]
                    out = np.empty((1, made.shape[1], height * factor, width * factor), np.float32)
                at = _times(factor, top, bottom), _times(factor, left, right)
                inner = (
                    _times(factor, top - above, bottom - above),
                    _times(factor, left - before, right - before),
                )
                out[:, :, at[0], at[1]] = made[:, :, inner[0], inner[1]]
        return {"output": out}

    def close(self) -> None:
        for session in self.sessions:
            session.close()


def seen(length: int, seam: int) -> int:
    """How many of the features along an axis the second part sees at once."""
    return min(length, _step(length) + 2 * seam)


def _step(length: int) -> int:
    return math.ceil(length / math.ceil(length / _PIECE))


def _pieces(length: int, seam: int) -> list[tuple[int, int, int]]:
    """First and last value of each piece along an axis, and the first that is seen."""
    step, last = _step(length), length - seen(length, seam)
    starts = range(0, length, step)
    return [(low, min(length, low + step), max(0, min(last, low - seam))) for low in starts]


def _times(factor: int, first: int, last: int) -> slice:
    return slice(factor * first, factor * last)
