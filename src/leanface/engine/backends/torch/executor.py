"""Runs a graph's nodes one after the other, and says beforehand what that takes."""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine.backends.torch.counting import counting, storage_of
from leanface.engine.backends.torch.onnx_file import REAL_TYPES, File, Node
from leanface.engine.backends.torch.onnx_operators import Operators
from leanface.engine.backends.torch.order import fused, last_uses, late
from leanface.engine.session import Tensors


@dataclass(frozen=True)
class Plan:
    """How a graph runs on inputs of certain shapes.

    Attributes:
        steps: each node, and the tensors that are of no use after it.
        whole: bytes of tensors at the highest with all weights on the device.
        least: the same where each weight comes for its operator and goes again.
    """

    steps: tuple[tuple[Node, tuple[str, ...]], ...]
    whole: int
    least: int


Shapes = Mapping[str, tuple[int, ...]]


class Executor:
    """Runs a file's graph on one device.

    Args:
        file: the graph.
        place: ``cuda``, ``cuda:N``, ``mps`` or ``cpu``.
        compute: PyTorch's name of the type that stands for the graph's float32, or None: float32 itself.
        lean: False leaves the order of the file, writes nothing in place and leaves channels where they are;
            for comparison.
    """

    def __init__(self, file: File, place: str, compute: str | None = None, *, lean: bool = True) -> None:
        import torch

        self._torch = torch
        self._file = file
        self._device = torch.device(place)
        self._operators = Operators(torch, compute, file.opsets.get("", 1), last=lean)
        self._lean = lean
        self._nodes = tuple(fused(file.nodes, file.outputs)) if lean else file.nodes
        self._plans: dict[tuple[tuple[str, tuple[int, ...]], ...], Plan] = {}
        self._kept: dict[str, Any] = {}
        self._pinned: dict[str, Any] = {}
        scales = {name for node in file.nodes if node.operator == "Resize" for name in node.inputs[1:]}
        self._small = {
            name: self._read(name, compute=False)
            for name, stored in file.weights.items()
            if name in scales or stored.dtype not in REAL_TYPES
        }

    @property
    def weights(self) -> dict[str, int]:
        """Bytes on the device of each weight."""
        return {
            name: math.prod(stored.shape) * self._operators.dtype(stored.dtype).itemsize
            for name, stored in self._file.weights.items()
            if name not in self._small
        }

    @property
    def kept(self) -> Collection[str]:
        """The weights that stay on the device."""
        return self._kept.keys()

    def keep(self, names: Collection[str]) -> None:
        """Have these weights, and no others, on the device from now on."""
        with self._torch.inference_mode():
            self._kept = {name: self._kept[name] for name in self._kept if name in names}
            self._pinned = {}
            for name in self.weights:
                if name not in names and self._device.type == "cuda":
                    self._pinned[name] = self._read(name).pin_memory()
                elif name in names and name not in self._kept:
                    self._kept[name] = self._read(name).to(self._device)
        if hasattr(mmap, "MADV_DONTNEED"):
            self._file.data.madvise(mmap.MADV_DONTNEED)

    def plan(self, shapes: Shapes) -> Plan:
        """How to run on inputs of these shapes; found by running on tensors without contents."""
        key = tuple(sorted(shapes.items()))
        if key not in self._plans:
            nodes = self._nodes
            sizes: dict[str, int] = {}
            whole = self._rehearse(self._steps(nodes), shapes, keep=True, sizes=sizes)
            if self._lean:
                other = late(nodes, sizes, frozenset(self._file.outputs))
                lower = self._rehearse(self._steps(other), shapes, keep=True)
                if lower < whole:
                    nodes, whole = tuple(other), lower
            steps = self._steps(nodes)
            self._plans[key] = Plan(steps, whole, self._rehearse(steps, shapes, keep=False))
        return self._plans[key]

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        """Run once; arrays in and float32 arrays out, by name."""
        torch = self._torch
        plan = self.plan({name: array.shape for name, array in inputs.items()})
        # No TensorFloat-32: it is no float32. No trying of algorithms, each with a workspace of its own.
        exact = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=False, allow_tf32=False
        )
        with torch.inference_mode(), exact:
            given = {name: self._given(array) for name, array in inputs.items()}
            made = self._follow(plan.steps, given, self._weight, self._kept.values())
            return {name: x.float().cpu().contiguous().numpy() for name, x in made.items()}

    def _given(self, array: NDArray[Any]) -> Any:
        """An input on the device, in memory of its own."""
        x = self._torch.from_numpy(array if array.flags.writeable else array.copy())
        return self._empty(x.shape, str(x.dtype).removeprefix("torch."), self._device).copy_(x)

    def _empty(self, shape: Sequence[int], dtype: str, device: Any) -> Any:
        """A tensor without contents, as it should lie in memory."""
        return self._operators.empty(shape, self._operators.dtype(dtype), device)

    def _steps(self, nodes: Sequence[Node]) -> tuple[tuple[Node, tuple[str, ...]], ...]:
        return tuple(zip(nodes, last_uses(nodes, self._file.outputs), strict=True))

    def _weight(self, name: str) -> Any:
        """A weight on the device: kept there, or brought for this use."""
        if name in self._kept:
            return self._kept[name]
        if name in self._small:
            return self._small[name]
        if name in self._pinned:
            return self._pinned[name].to(self._device, non_blocking=True)
        return self._read(name).to(self._device)

    def _read(self, name: str, *, compute: bool = True) -> Any:
        """A weight out of the file, in memory of its own on the processor."""
        torch, stored = self._torch, self._file.weights[name]
        if stored.values is not None:
            x = torch.from_numpy(np.array(stored.values)).to(getattr(torch, stored.dtype))
        else:
            raw = np.frombuffer(self._file.data[stored.where], np.uint8).copy()
            x = torch.from_numpy(raw).view(getattr(torch, stored.dtype))
        x = x.reshape(stored.shape)
        return self._operators.last(x.to(self._operators.dtype(stored.dtype))) if compute else x

    def _rehearse(
        self, steps: Sequence[tuple[Node, tuple[str, ...]]], shapes: Shapes, *, keep: bool,
        sizes: dict[str, int] | None = None,
    ) -> int:  # fmt: skip
        """Run on tensors without contents; the bytes that they would occupy at the highest."""
        torch = self._torch

        def empty(name: str) -> Any:
            if name in self._small:
                return self._small[name]
            stored = self._file.weights[name]
            return self._empty(stored.shape, stored.dtype, "meta")

        with torch.inference_mode(), counting("meta") as count:
            kept = {name: empty(name) for name in self.weights} if keep else {}
            given = {
                name: self._empty(shape, self._file.inputs[name].dtype, "meta")
                for name, shape in shapes.items()
            }
            if sizes is not None:
                sizes |= {name: x.nbytes for name, x in given.items()}
            self._follow(
                steps, given, lambda name: kept[name] if name in kept else empty(name), kept.values(), sizes
            )
        return count.peak

    def _follow(
        self, steps: Sequence[tuple[Node, tuple[str, ...]]], inputs: dict[str, Any],
        weight: Callable[[str], Any], kept: Collection[Any], sizes: dict[str, int] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The graph's outputs. ``inputs`` is emptied; what is kept is not written into."""
        values = dict(inputs)
        holders = Counter(storage_of(x) for x in (*inputs.values(), *kept))
        inputs.clear()
        for node, dying in steps:
            self._step(node, dying, values, holders, weight)
            if sizes is not None:
                sizes |= {name: values[name].nbytes for name in node.outputs if name in values}
        return values

    def _step(
        self, node: Node, dying: tuple[str, ...], values: dict[str, Any], holders: Counter[int],
        weight: Callable[[str], Any],
    ) -> None:  # fmt: skip
        """Run one node, then free what dies with it.

        An operand may be written into if nothing else holds its storage and nothing takes it later: a tensor
        that dies here, or a weight that was brought for this use.
        """
        operands: list[Any] = []
        spare = set()
        for i, name in enumerate(node.inputs):
            x = None if not name else values[name] if name in values else weight(name)
            operands.append(x)
            if x is None or not self._lean or node.inputs.count(name) > 1:
                continue
            others = holders[storage_of(x)] - (name in dying and name in values)
            if others == 0 and x.is_floating_point() and 0 not in x.stride():
                spare.add(i)
        made = getattr(self._operators, node.operator)(node.attributes, spare, *operands)
        values[node.outputs[0]] = made
        holders[storage_of(made)] += 1
        for name in dying:
            if name in values:
                key = storage_of(values.pop(name))
                holders[key] -= 1
                if not holders[key]:
                    del holders[key]
