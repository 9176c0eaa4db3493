"""A loaded graph whose weights keep within a limit."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from leanface.engine.backends.torch import NAME
from leanface.engine.backends.torch.executor import Executor, Shapes
from leanface.engine.backends.torch.onnx_file import File
from leanface.engine.session import Tensors, failed, is_want_of_memory
from leanface.errors import EngineError, OutOfMemoryError


class TorchSession:
    """A session of this engine.

    Args:
        file: the graph.
        device: by our name.
        precision: what it is computed in.
        executor: of the file.
        limit: bytes of tensors at most, or None.
    """

    def __init__(
        self, file: File, device: str, precision: str, executor: Executor, limit: int | None
    ) -> None:
        self.device = device
        self.precision = precision
        self._executor: Executor | None = executor
        self._limit = limit
        shapes = {name: shaped.shape for name, shaped in file.inputs.items()}
        fixed = {
            name: tuple(n for n in shape if isinstance(n, int)) for name, shape in shapes.items() if shape
        }
        if all(shape and len(fixed[name]) == len(shape) for name, shape in shapes.items()):
            self._make_room(executor, fixed)
        elif limit is None:
            executor.keep(executor.weights)

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        if self._executor is None:
            raise EngineError("the session is closed")
        for last_try in (False, True):
            try:
                self._make_room(self._executor, {name: array.shape for name, array in inputs.items()})
                return self._executor.run(inputs)
            except (RuntimeError, MemoryError) as error:
                if last_try or not is_want_of_memory(error) or not self._executor.kept:
                    raise failed(NAME, self.device, self.precision, error) from error
            # Behind the handler, where the failed run's tensors are gone: with weights brought as needed.
            self._limit = self._executor.plan({name: array.shape for name, array in inputs.items()}).least
            self._give_back()
        raise AssertionError

    def close(self) -> None:
        self._executor = None
        self._give_back()

    def _make_room(self, executor: Executor, shapes: Shapes) -> None:
        """Keep as many weights on the device as the limit lets, the small ones first.

        Raises:
            OutOfMemoryError: the limit is below what is needed without any.
        """
        weights, plan = executor.weights, executor.plan(shapes)
        if self._limit is None or plan.whole <= self._limit:
            names = set(weights)
        else:
            room = self._limit - plan.least
            if room < 0:
                raise OutOfMemoryError(
                    f"not enough memory on {self.device} in {self.precision} (it needs "
                    f"{plan.least / 1e6:.0f}MB at least, the limit is {self._limit / 1e6:.0f}MB)"
                )
            names = set()
            for name in sorted(weights, key=lambda name: weights[name]):
                room -= weights[name]
                if room < 0:
                    break
                names.add(name)
        if names != set(executor.kept) or not names:
            executor.keep(names)

    def _give_back(self) -> None:
        """Free what PyTorch keeps of a card for later."""
        torch = sys.modules.get("torch")
        if torch is not None and self.device.startswith("torch-cuda"):
            torch.cuda.empty_cache()
        elif torch is not None and self.device == "torch-mps":
            torch.mps.empty_cache()
