"""What an engine gives: a graph that is ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.float32]]


class Session(Protocol):
    """A loaded graph. ``device`` and ``precision`` say what it really runs on."""

    @property
    def device(self) -> str: ...

    @property
    def precision(self) -> str: ...

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        """Run once.

        Args:
            inputs: float32 arrays by the graph's input names.

        Returns:
            float32 arrays by the graph's output names, owned by the caller.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def close(self) -> None:
        """Free the graph and its memory; the session cannot run afterwards."""
        ...


class Engine(Protocol):
    """What each file in ``backends`` offers."""

    NAME: str
    DEVICES: tuple[str, ...]

    def devices(self) -> tuple[str, ...]: ...

    def card_bytes(self, device: str) -> int: ...

    def choose_precision(self, device: str, precision: str, bears: tuple[str, ...]) -> str: ...

    def open_session(self, model: Path, *, device: str, precision: str, threads: int) -> Session: ...


def first_line(error: Exception) -> str:
    """The part of an engine's error that says most: its last line that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
