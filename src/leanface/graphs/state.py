"""The arrays of a state dict, taken one by one, each checked when it is."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from leanface.graphs.builder import Weights


class State:
    """Gives the arrays of ``weights``, and remembers which it gave.

    Args:
        weights: arrays by key.
        network: whose they should be, for messages.
    """

    def __init__(self, weights: Weights, network: str) -> None:
        self.weights = weights
        self._network = network
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.weights

    def take(self, key: str, *shape: int | None) -> NDArray[np.float32]:
        """The array of a key, float32.

        Args:
            key: its name.
            shape: what it must have; None is any length.

        Raises:
            ValueError: it is missing or of another shape.
        """
        if key not in self.weights:
            raise ValueError(f"{key} is missing: these are not the weights of {self._network}")
        value = self.weights[key]
        wanted = [n if e is None else e for n, e in zip(value.shape, shape, strict=False)]
        if list(value.shape) != wanted or value.ndim != len(shape):
            expected = " x ".join("any" if e is None else str(e) for e in shape)
            raise ValueError(f"{key} is {' x '.join(map(str, value.shape))}, not {expected}")
        self._taken.add(key)
        return np.asarray(value, np.float32)

    def untaken(self) -> list[str]:
        """The keys that were not taken."""
        return [key for key in self.weights if key not in self._taken]

    def check_all_taken(self, unused: Collection[str] = ()) -> None:
        """Refuse keys that were not taken, but for those that begin with one of ``unused``.

        Raises:
            ValueError: names the first one.
        """
        for key in self.untaken():
            if not key.startswith(tuple(unused)):
                raise ValueError(f"{key} does not belong to {self._network}")
