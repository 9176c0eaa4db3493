"""Finds faces: two passes of a detector over bounded copies of the picture, then plain geometry.

Large faces are found at a side of 640 pixels, small ones at 1280: at 1280 a face larger than the largest
anchors comes back doubled with wrong landmarks, so that this pass only adds small faces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface import pixels as px
from leanface.pixels import Float
from leanface.types import Box, Face, Landmarks

Detector = Callable[[NDArray[np.uint8]], Float]
"""uint8 [h, w, 3] RGB -> candidates [n, 15]: box, score, landmarks, in pixels of that picture."""

COARSE, FINE = 640, 1280  # the longest side of each pass
_FINE_LARGEST = 220  # pixels at FINE: larger faces are the coarse pass's
_STEPS = 5  # sides are padded to fifths of the longest, so that the engine meets few shapes
_SAME = 0.4  # share of the union from which two boxes are one face
_NESTED = 0.8  # share of the smaller box from which it is part of the larger


def detect(
    picture: NDArray[Any], detector: Detector, threshold: float, rotations: Iterable[int] = (0,)
) -> tuple[list[Face], list[tuple[Face, str]]]:
    """Find the faces of an upright picture.

    Args:
        picture: uint8 or uint16 [h, w, 3] RGB, of any size.
        detector: the network.
        threshold: least score, 0 to 1.
        rotations: turns in degrees against the clock at which to look, multiples of 90.

    Returns:
        The faces, the largest first; and those dropped, each with the reason.
    """
    candidates: list[Face] = []
    for degrees in rotations:
        turns = degrees // 90 % 4
        for face in _candidates(np.rot90(picture, turns), detector, threshold):
            candidates.append(_turned_back(face, turns, picture.shape[1], picture.shape[0]))
    return choose(candidates)


def _candidates(picture: NDArray[Any], detector: Detector, threshold: float) -> list[Face]:
    fine = px.thumbnail(picture, FINE)
    coarse = px.thumbnail(fine, COARSE)
    candidates = _pass(coarse, picture, detector, threshold)
    if fine.shape != coarse.shape:
        largest = _FINE_LARGEST * max(picture.shape) / max(fine.shape)
        candidates += [face for face in _pass(fine, picture, detector, threshold) if face.size <= largest]
    return candidates


def _turned_back(face: Face, turns: int, width: int, height: int) -> Face:
    """A face found on a picture of width x height after quarter turns against the clock, as it lies."""

    def back(x: float, y: float) -> tuple[float, float]:
        return ((x, y), (width - y, x), (width - x, height - y), (y, height - x))[turns]

    corners = back(*face.box[:2]), back(*face.box[2:])
    (left, right), (top, bottom) = (sorted(c[axis] for c in corners) for axis in (0, 1))
    landmarks = tuple(back(*point) for point in face.landmarks)
    return Face((left, top, right, bottom), face.score, landmarks)  # type: ignore[arg-type]


def choose(candidates: Iterable[Face]) -> tuple[list[Face], list[tuple[Face, str]]]:
    """Keep one box a face: drop doubles silently, impossible landmarks and boxes inside others with a reason.

    Returns:
        The faces, the largest first; and those dropped, each with the reason.
    """
    kept: list[Face] = []
    dropped: list[tuple[Face, str]] = []
    distinct: list[Face] = []
    for face in sorted(candidates, key=lambda f: -f.score):
        if all(_overlap(face, other)[0] < _SAME for other in distinct):
            distinct.append(face)
    for face in sorted(distinct, key=lambda f: -f.size):
        if not plausible(face):
            dropped.append((face, "impossible landmarks"))
        elif any(_overlap(face, other)[1] > _NESTED for other in kept):
            dropped.append((face, "inside another face"))
        else:
            kept.append(face)
    return kept, dropped


def plausible(face: Face) -> bool:
    """Whether five landmarks can belong to one face: inside its box, eyes apart, mouth away from the eyes.

    Turned heads pass (up to a full profile), as do rolled ones; a nose beyond the face's outline does not.
    """
    points = np.array(face.landmarks, np.float64)
    left, top, right, bottom = face.box
    margin = 0.25 * face.size
    low, high = (left - margin, top - margin), (right + margin, bottom + margin)
    if (points < low).any() or (points > high).any():
        return False
    eyes, mouth = points[:2].mean(0), points[3:].mean(0)
    height = float(np.linalg.norm(mouth - eyes))
    if height < 0.15 * face.size:
        return False
    down = (mouth - eyes) / height
    nose = float((points[2] - eyes) @ down) / height
    across = np.array([down[1], -down[0]])  # to the right for an upright face
    order = float((points[1] - points[0]) @ across), float((points[4] - points[3]) @ across)
    return -0.3 < nose < 1.3 and max(order) > 0


def _pass(copy: NDArray[np.uint8], picture: NDArray[Any], detector: Detector, threshold: float) -> list[Face]:
    """Faces on a small copy of the picture, in the picture's pixels."""
    height, width = copy.shape[:2]
    step = (COARSE if max(height, width) <= COARSE else FINE) // _STEPS
    padding = ((0, -height % step), (0, -width % step), (0, 0))
    rows = detector(np.pad(copy, padding))
    rows = rows[rows[:, 4] >= threshold]
    back = np.array([picture.shape[1] / width, picture.shape[0] / height] * 7)
    places = np.column_stack([rows[:, :4], rows[:, 5:]]) * back
    return [_face(place, float(score)) for place, score in zip(places, rows[:, 4], strict=True)]


def _face(place: NDArray[Any], score: float) -> Face:
    left, top, right, bottom, *points = (float(v) for v in place)
    box: Box = (left, top, right, bottom)
    landmarks: Landmarks = tuple(zip(points[::2], points[1::2], strict=True))  # type: ignore[assignment]
    return Face(box=box, score=score, landmarks=landmarks)


def _overlap(a: Face, b: Face) -> tuple[float, float]:
    """Shared area of two boxes as a share of their union, and of the smaller one."""
    width = min(a.box[2], b.box[2]) - max(a.box[0], b.box[0])
    height = min(a.box[3], b.box[3]) - max(a.box[1], b.box[1])
    if width <= 0 or height <= 0:
        return 0.0, 0.0
    shared = width * height
    areas = a.width * a.height, b.width * b.height
    return shared / (sum(areas) - shared), shared / max(min(areas), math.ulp(1.0))
