"""The network that makes backgrounds: its sessions, and in which tiles it works."""

from __future__ import annotations

import tempfile
from pathlib import Path

from leanface import pipeline
from leanface.engine import device as machine
from leanface.engine import memory
from leanface.engine.memory import Enlargement
from leanface.engine.parts import Parts
from leanface.engine.pool import Pool, leaner, resolve
from leanface.engine.session import Session
from leanface.errors import BrokenOutputError, EngineError, ModelError, OutOfMemoryError
from leanface.library import Library
from leanface.registry import Model
from leanface.stages.upscale import shown

CARD = 3_000_000_000
"""Bytes of a graphics card that tiles are chosen for where no limit is set; smaller ones halve them."""

_FREE_SHARE = 0.5  # of the memory that is free, for tiles where no limit is set


def enlargement(
    model: Model | None, width: int, height: int, result: tuple[int, int], held: int = 0
) -> Enlargement | None:
    """What a picture's result will need beside its faces; None where it has the picture's size and pixels.

    Args:
        model: that makes the background, or None.
        width: of the picture.
        height: of the picture.
        result: width and height of the result.
        held: bytes of a background made elsewhere.
    """
    if model is None:
        return Enlargement(*result, held=held) if held or result != (width, height) else None
    variant = model.variant
    assert variant.enlarging is not None

    def pixels(side: int) -> int:
        across, down = shown(width, height, result, side, variant)
        return across * down

    return Enlargement(*result, variant.enlarging.costs, shown=pixels)


class Background:
    """Opens sessions of one network for one size of tiles after the other.

    Args:
        model: that enlarges.
        library: where its graph comes from.
        pool: opens sessions.
        device: as in ``Restorer``.
        precision: as in ``Restorer``.
    """

    def __init__(self, model: Model, library: Library, pool: Pool, device: str, precision: str) -> None:
        self.model = model
        self._library, self._pool, self._device, self._precision = library, pool, device, precision
        self._planned, self._alone = precision, False
        self._stepped: tuple[str, str] | None = None  # device and precision after a failure, for good
        self._now = device, precision
        self._largest = max(memory.TILES)
        self.notes: list[str] = []

    def enlarger(self, tiles: memory.Tiles | None, *, alone: bool) -> pipeline.Enlarger:
        """What the pipeline works with.

        Args:
            tiles: as planned; None takes the largest.
            alone: no other network may be loaded at the same time.
        """
        self._alone = alone
        self._planned = tiles.cost.precision if tiles and alone else self._precision
        side = min(self._largest, tiles.side if tiles else max(memory.TILES))
        return pipeline.Enlarger(self.model.variant, self._open, self._go_on, self._release, side)

    def keep(self, tile: int) -> None:
        """Remember the tiles that a picture was finished with after memory ran out, for the next."""
        self._largest = min(self._largest, tile)

    def tiles(
        self, how: Enlargement, width: int, height: int, limit: int | None, precisions: tuple[str, ...]
    ) -> memory.Tiles:
        """Tiles that keep within a limit, or without one within half of the memory that is free."""
        free = machine.resident_bytes() + round(machine.free_bytes() * _FREE_SHARE)
        limit = limit or free or None
        return memory.choose_tiles(how, width, height, limit=limit, precisions=precisions)

    def _open(self, width: int, height: int) -> Session:
        if self._alone:
            self._pool.close()
        variant = self.model.variant
        assert variant.enlarging is not None
        # Graphs of one size are not typed: float32 throughout, and the engine computes in less.
        self._now = device, precision = self._stepped or resolve(
            self._device, self._planned, variant.precisions
        )
        sessions: list[Session] = []
        try:
            with tempfile.TemporaryDirectory(prefix="leanface-", ignore_cleanup_errors=True) as folder:
                for graph in self._library.fixed_graphs(
                    self.model, Path(folder), height, width, exact=self._precision == "fp32"
                ):
                    sessions.append(self._pool.session(graph, device=device, precision=precision))
        except EngineError:
            for session in sessions:
                self._pool.discard(session)
            raise
        except OSError as error:
            raise ModelError(f"a graph cannot be written where temporary files go ({error})") from error
        if len(sessions) == 1:
            return sessions[0]
        first, second = sessions
        return Parts(first, second, variant.enlarging.seam)

    def _release(self, session: Session) -> None:
        for part in session.sessions if isinstance(session, Parts) else (session,):
            self._pool.discard(part)

    def _go_on(self, error: EngineError) -> None:
        variant, (device, precision) = self.model.variant, self._now
        if isinstance(error, OutOfMemoryError):
            way, why = leaner(device, precision, variant.precisions), f"ran out of memory on {device}"
            if way is None or self._precision not in ("auto", way[1]):
                raise error
        elif isinstance(error, BrokenOutputError) and precision != "fp32" and self._precision == "auto":
            way, why = (device, "fp32"), "gave no picture"
        else:
            raise error
        self._stepped = way
        self.notes.append(f"{variant.id} {why} in {precision}; from here on it runs on {way[0]} in {way[1]}")
