"""What an engine takes, a graph file, and what it gives: a session that is ready to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leanface.errors import EngineError, OutOfMemoryError

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Graph:
    """An ONNX file, and what an engine cannot see from outside.

    Attributes:
        path: the file; free dimensions stay free, each run may have another shape.
        typed: 16-bit types are in the graph itself and say what is computed in which; else it is float32
            throughout, and the engine may compute in less.
        compiled: a folder of this graph's own where an engine keeps what it has compiled; made at need.
    """

    path: Path
    typed: bool = False
    compiled: Path | None = None


class Session(Protocol):
    """A loaded graph. ``device`` and ``precision`` say what it really runs on."""

    @property
    def device(self) -> str: ...

    @property
    def precision(self) -> str: ...

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        """Run once.

        Args:
            inputs: arrays by the graph's input names, of the types that it asks for.

        Returns:
            float32 arrays by the graph's output names, owned by the caller.

        Raises:
            EngineError: the engine failed; as OutOfMemoryError for want of memory.
        """
        ...

    def close(self) -> None:
        """Free the graph and its memory; the session cannot run afterwards."""
        ...


class Engine(Protocol):
    """What each module in ``backends`` offers."""

    NAME: str
    DEVICES: tuple[str, ...]

    def devices(self) -> tuple[str, ...]: ...

    def card_bytes(self, device: str) -> int: ...

    def choose_precision(
        self, device: str, precision: str, bears: tuple[str, ...], *, typed: bool
    ) -> str: ...

    def open_session(
        self, graph: Graph, *, device: str, precision: str, threads: int, limit: int | None
    ) -> Session: ...


_WANT_OF_MEMORY = re.compile(
    "bad_alloc|out of memory|OUT_OF_RESOURCES|ALLOC_FAILED|ALLOCATION_FAILURE|allocate|8007000E",
    re.IGNORECASE,
)


def is_want_of_memory(error: Exception) -> bool:
    """Whether a library failed for want of memory: its errors say so in words only."""
    return isinstance(error, MemoryError) or bool(_WANT_OF_MEMORY.search(str(error)))


def failed(name: str, device: str, precision: str, error: Exception) -> EngineError:
    """The error of an engine that failed while it computed."""
    if is_want_of_memory(error):
        return OutOfMemoryError(f"not enough memory on {device} in {precision} ({first_line(error)})")
    return EngineError(f"{name} failed on {device} ({first_line(error)})")


def first_line(error: Exception) -> str:
    """The part of an engine's error that says most: its last line that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
