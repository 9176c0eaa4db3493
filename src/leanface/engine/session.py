"""What an engine gives: a graph that is ready to run."""

from __future__ import annotations

from collections.abc import Mapping
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
