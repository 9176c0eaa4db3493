"""What a run will need, by arithmetic alone: nothing is loaded, nothing is measured here.

The process's peak has two parts. One belongs to the network and was measured for each option, in a process of
its own, by ``python -m benchmarks.measure_cost``. The other belongs to the picture and follows from its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from leanface.errors import BudgetError, UsageError

RUNTIME = 80_000_000
"""Bytes of a process that has loaded Python, NumPy, Pillow and OpenVINO, and no network."""

_DETECTOR = 30_000_000
_DETECTOR_PIXEL = {"fp32": 44, "bf16": 24}  # bytes a pixel of the detector's copy of the picture
_DETECTOR_SIDE = 1280  # of that copy at most, in pixels
_DECODING = 4 + 3  # bytes a pixel at 8 bits: Pillow's copy and ours
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
class TileCost:
    """What a network that enlarges pictures a tile at a time costs on a processor, measured.

    Attributes:
        precision: ``fp32`` or ``bf16``.
        fixed: resident bytes of the whole process that has loaded it.
        pixel: bytes for each pixel that it is shown at once.
    """

    precision: str
    fixed: int
    pixel: int


TILES = tuple(range(1024, 63, -32))
"""Sides of tiles in pixels to choose from. Smaller ones would be mostly overlap."""


@dataclass(frozen=True)
class Enlargement:
    """How a picture will be enlarged.

    Attributes:
        width: of the result in pixels.
        height: of the result in pixels.
        costs: of tiles, the best first; empty where no network is needed.
        shown: side of the tiles -> pixels that the network is shown at once.
        held: bytes of a background that was made elsewhere.
    """

    width: int
    height: int
    costs: Sequence[TileCost] = ()
    shown: Callable[[int], int] = lambda side: side * side
    held: int = 0


@dataclass(frozen=True)
class Tiles:
    """In which tiles a picture is enlarged: their side in pixels and what each costs."""

    cost: TileCost
    side: int


@dataclass(frozen=True)
class Plan:
    """What was chosen, and the resident bytes it will come to by stage.

    Attributes:
        option: how the network runs.
        stages: bytes by stage.
        limit: what they had to keep within, or None.
        in_turn: no two networks are loaded at the same time, since that would be beyond the limit.
        tiles: how a network enlarges the picture, where one does.
    """

    option: Option
    stages: Mapping[str, int]
    limit: int | None
    in_turn: bool = False
    tiles: Tiles | None = None

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
    enlargement: Enlargement | None = None,
) -> Plan:
    """Choose the first option that keeps within the limit.

    Args:
        options: from the best to the leanest.
        width: of the picture in pixels.
        height: of the picture in pixels.
        detect: faces are looked for. Their number costs nothing: one is worked on at a time.
        limit: resident bytes of the process, or None.
        precisions: those that the processor computes in and the user allows.
        enlargement: where the result has another size, or its background is made by a network.

    Raises:
        BudgetError: none keeps within it; says the least that would do.
    """
    able = [option for option in options if option.precision in precisions]
    ways = [False, True] if detect and limit is not None else [False]
    tiles = None
    if enlargement and enlargement.costs:
        tiles = choose_tiles(enlargement, width, height, limit=limit, precisions=precisions)
        ways = [limit is not None]
    fitting = [
        _predict(option, width, height, detect, limit, way, enlargement, tiles)
        for option in able
        for way in ways
    ]
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


def choose_tiles(
    enlargement: Enlargement, width: int, height: int, *, limit: int | None, precisions: Collection[str]
) -> Tiles:
    """The largest tiles that keep within the limit in the best precision; the leanest where none do.

    Args:
        enlargement: how the picture will be enlarged.
        width: of the picture in pixels.
        height: of the picture in pixels.
        limit: resident bytes of the process, or None.
        precisions: those that may be taken.

    Raises:
        UsageError: the network was measured in none of them.
    """
    ways = [Tiles(cost, side) for cost in enlargement.costs for side in TILES if cost.precision in precisions]
    if not ways:
        raise UsageError(f"no network for the background runs in {' or '.join(precisions)}")

    def needs(tiles: Tiles) -> float:
        return _MARGIN * _enlarging(enlargement, tiles, width * height)

    fitting = (tiles for tiles in ways if limit is None or needs(tiles) <= limit)
    return next(fitting, min(ways, key=needs))


def _enlarging(enlargement: Enlargement, tiles: Tiles, pixels: int) -> int:
    made = enlargement.width * enlargement.height
    return tiles.cost.fixed + tiles.cost.pixel * enlargement.shown(tiles.side) + 3 * (pixels + made)


def _predict(
    option: Option,
    width: int,
    height: int,
    detect: bool,
    limit: int | None,
    in_turn: bool,
    enlargement: Enlargement | None,
    tiles: Tiles | None,
) -> Plan:
    pixels = width * height
    made = enlargement.width * enlargement.height if enlargement else pixels
    seen = pixels * min(1.0, _DETECTOR_SIDE / max(width, height)) ** 2
    beside = _DETECTOR + round(_DETECTOR_PIXEL[option.precision] * seen) if detect else 0
    stages = {"decode": RUNTIME + _DECODING * pixels}
    if detect:
        stages["detect"] = RUNTIME + beside + 3 * pixels
    if in_turn:
        beside = 0
    if enlargement and tiles:
        stages["enlarge"] = _enlarging(enlargement, tiles, pixels) + beside
    held = enlargement.held if enlargement else 0
    stages["restore"] = option.peak + beside + held + 3 * (pixels + made)
    stages["encode"] = option.peak + beside + _ENCODING * made
    needs = {name: round(_MARGIN * need) for name, need in stages.items()}
    return Plan(option, needs, limit, in_turn, tiles)
