"""What a run will need, by arithmetic alone: nothing is loaded, nothing is measured here.

The process's peak has two parts. One belongs to the network and was measured for each option, in a process of
its own, by ``python -m benchmarks.measure_cost``. The other belongs to the picture and follows from its size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from leanface.errors import BudgetError, UsageError

RUNTIME = 80_000_000
"""Bytes of a process that has loaded Python, NumPy, Pillow and OpenVINO, and no network."""

_DETECTOR = 30_000_000
_DETECTOR_PIXEL = 55  # bytes a pixel of the detector's copy of the picture
_DETECTOR_SIDE = 1280  # of that copy at most, in pixels
_DECODING = 4 + 3  # bytes a pixel at 8 bits: Pillow's copy and ours
_WORKING = 3 + 3  # the picture and the result
_ENCODING = 3 + 4  # the result, and Pillow's copy of it
_MARGIN = 1.03  # between a prediction and what it may come to

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


@dataclass(frozen=True)
class Option:
    """One way to run a network on a processor.

    Attributes:
        precision: ``fp32`` or ``bf16``.
        peak: resident bytes of the whole process while it restores a small picture, measured.
        size: side of the crops that this is for; 0 for the model's usual one.
    """

    precision: str
    peak: int
    size: int = 0


@dataclass(frozen=True)
class Plan:
    """What was chosen, and the resident bytes it will come to by stage.

    Attributes:
        option: how the network runs.
        stages: bytes by stage.
        limit: what they had to keep within, or None.
        in_turn: detector and restorer are not loaded at the same time, since that would be beyond the limit.
    """

    option: Option
    stages: Mapping[str, int]
    limit: int | None
    in_turn: bool = False

    @property
    def peak(self) -> int:
        return max(self.stages.values())


def plan(
    options: Sequence[Option],
    width: int,
    height: int,
    *,
    detect: bool = True,
    limit: int | None = None,
    precisions: Collection[str] = ("fp32", "bf16"),
) -> Plan:
    """Choose the first option that keeps within the limit.

    Args:
        options: from the best to the leanest.
        width: of the picture in pixels.
        height: of the picture in pixels.
        detect: faces are looked for. Their number costs nothing: one is worked on at a time.
        limit: resident bytes of the process, or None.
        precisions: those that the processor computes in and the user allows.

    Raises:
        BudgetError: none keeps within it; says the least that would do.
    """
    able = [option for option in options if option.precision in precisions]
    ways = [False, True] if detect and limit is not None else [False]
    fitting = [_predict(option, width, height, detect, limit, way) for option in able for way in ways]
    if not fitting:
        raise UsageError(f"no option of this model runs in {' or '.join(precisions)}")
    for candidate in fitting:
        if limit is None or candidate.peak <= limit:
            return candidate
    least = min(candidate.peak for candidate in fitting)
    raise BudgetError(
        f"{width}x{height} needs {least / 1e6:.0f}MB with this model, the limit is {(limit or 0) / 1e6:.0f}MB"
    )


def parse(text: str) -> int:
    """``800MB``, ``1.5G``, ``512MiB`` or plain bytes -> bytes.

    Raises:
        UsageError: something else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?)?B?\s*", text.upper())
    if not match or not float(match[1]):
        raise UsageError(f"{text!r} is no amount of memory; write 800MB or 1.5GB")
    return round(float(match[1]) * _UNITS[match[2] or ""])


def _predict(option: Option, width: int, height: int, detect: bool, limit: int | None, in_turn: bool) -> Plan:
    pixels = width * height
    seen = pixels * min(1.0, _DETECTOR_SIDE / max(width, height)) ** 2
    beside = _DETECTOR + round(_DETECTOR_PIXEL * seen) if detect else 0
    stages = {"decode": RUNTIME + _DECODING * pixels}
    if detect:
        stages["detect"] = RUNTIME + beside + 3 * pixels
    if in_turn:
        beside = 0
    stages["restore"] = option.peak + beside + _WORKING * pixels
    stages["encode"] = option.peak + beside + _ENCODING * pixels
    return Plan(option, {name: round(_MARGIN * need) for name, need in stages.items()}, limit, in_turn)
