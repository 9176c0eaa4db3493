"""PyTorch: runs a graph node by node, so that memory is what the graph needs at its widest and no more.

Every tensor is freed at its last use, elementwise operators write into an operand that dies there, what is
large but made of little, such as a styled kernel, is made just before it is used, and what is only added or
multiplied to something at once is made in pieces. Weights lie on the device once, or, where a limit asks for
it, come layer by layer and go again.

How much a run will take is known beforehand: the same steps run on tensors without contents (PyTorch's
``meta`` device), and what these would occupy is counted. Not counted is what comes on top of any tensors: a
card's context, the allocator's rounding and the workspaces of its convolutions.

The graph is read from its file without the ONNX library (onnx.proto3 has the field numbers). Layout is
channels last: there a band of rows is contiguous, and graphics cards compute in it without a copy of their
own.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine.backends import onnxruntime
from leanface.engine.session import Graph, Session, Tensors, failed, first_line, is_want_of_memory
from leanface.errors import DeviceError, EngineError, ModelError, OutOfMemoryError
from leanface.weights import signature
from leanface.weights.signature import fields, text

NAME = "PyTorch"
DEVICES: tuple[str, ...] = ("torch-cuda", "torch-mps", "torch-cpu")
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def is_installed() -> bool:
    """Whether PyTorch is there; does not import it."""
    return find_spec("torch") is not None


def devices() -> tuple[str, ...]:
    """What the installed build offers, by our names; empty where none is installed. Imports it."""
    if not is_installed():
        return ()
    import torch

    there = {"torch-cuda": torch.cuda.is_available(), "torch-mps": torch.backends.mps.is_available()}
    return tuple(name for name in DEVICES if there.get(name, True))


def card_bytes(device: str) -> int:
    """Memory that this process holds on a card, with the card's context where its driver tells; else what
    PyTorch has taken of it. 0 on the processor."""
    kind = device.partition(":")[0]
    if kind == "torch-cpu":
        return 0
    import torch

    if kind == "torch-mps":
        return int(torch.mps.driver_allocated_memory())
    return onnxruntime.card_bytes("cuda") or int(torch.cuda.memory_reserved(_place(device)))


def choose_precision(device: str, precision: str, bears: tuple[str, ...], *, typed: bool) -> str:
    """What a device will compute a network in.

    Args:
        device: one of ``DEVICES``, and on this machine.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: 16 bits on a card where the network bears them,
            fp16 first; fp32 on the processor.
        bears: the precisions that the network's results survive; the others are refused.
        typed: its graph can be had in 16-bit types; others are computed in 16 bits throughout.

    Raises:
        DeviceError: the device or the network cannot do that precision; says what they can.
    """
    offered = ("fp16", "fp32") if device == "torch-mps" else ("fp16", "bf16", "fp32")
    able = [p for p in offered if p in bears]
    if precision == "auto":
        return "fp32" if device == "torch-cpu" else able[0]
    if precision not in able:
        raise DeviceError(f"this model does not run in {precision} on {device}; it does in {', '.join(able)}")
    return precision


def open_session(graph: Graph, *, device: str, precision: str, threads: int, limit: int | None) -> Session:
    """Load a graph.

    Args:
        graph: what to load; one that is not typed is computed in ``precision`` throughout.
        device: ``torch-cuda``, ``torch-cuda:N``, ``torch-mps`` or ``torch-cpu``, and on this machine.
        precision: one that ``choose_precision`` gave.
        threads: processor threads.
        limit: bytes that tensors may take of the device, or None. Where weights and activations are more
            together, as many weights as have no room are brought anew for each run, layer by layer.

    Raises:
        DeviceError: the device does not work.
        OutOfMemoryError: there is not enough memory, or the limit is below the least that would do.
        ModelError: the file is no graph, or one with operators that are not known here (names them).
    """
    import torch

    file = read(graph.path)
    unknown = sorted({node.operator for node in file.nodes} - operators())
    if unknown:
        raise ModelError(f"{graph.path}: {', '.join(unknown)} cannot be run on {device}; choose another one")
    if device == "torch-cpu":
        torch.set_num_threads(threads)
    compute = None if graph.typed or precision == "fp32" else _TYPES[precision]
    try:
        session = TorchSession(file, device, precision, Executor(file, _place(device), compute), limit)
    except (RuntimeError, AssertionError, MemoryError) as error:
        if is_want_of_memory(error):
            raise failed(NAME, device, precision, error) from error
        raise DeviceError(f"{graph.path.name} does not run on {device} ({first_line(error)})") from error
    return session


def _place(device: str) -> str:
    """PyTorch's name of a device."""
    return device.removeprefix("torch-")


# ---- the file ----------------------------------------------------------------------------------------------

_NUMPY = {
    1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip
"""PyTorch's names of ONNX's element types."""
_WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}
_REAL = ("float32", "float16", "bfloat16", "float64")

Value = int | float | str | list[int] | list[float] | NDArray[Any]


@dataclass(frozen=True)
class Stored:
    """A weight in the file: its type, by PyTorch's name, its shape and where its bytes lie, or its values."""

    dtype: str
    shape: tuple[int, ...]
    where: slice
    values: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _WIDTHS.get(self.dtype, 8)


@dataclass(frozen=True)
class Node:
    """One operator; an input that is left out is the empty name."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A graph as its file has it, in the file's order; ``data`` is the file, mapped."""

    path: Path
    data: mmap.mmap
    nodes: tuple[Node, ...]
    weights: Mapping[str, Stored]
    inputs: Mapping[str, signature.Shaped]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]


def read(path: Path) -> File:
    """Read a graph; of its weights only where they are.

    Raises:
        ModelError: the file is missing, no ONNX file, damaged, or keeps its weights elsewhere.
    """
    taken = signature.read(path)
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        nodes: list[Node] = []
        weights: dict[str, Stored] = {}
        opsets: dict[str, int] = {}
        for number, part in fields(data, slice(0, len(data))):
            if number == 8 and isinstance(part, slice):  # opset_import: domain 1, version 2
                found = dict(fields(data, part))
                domain, version = found.get(1, slice(0, 0)), found.get(2, 1)
                opsets[text(data, _span(domain))] = version if isinstance(version, int) else 1
            if number != 7 or not isinstance(part, slice):  # graph, which may come in several parts
                continue
            for kind, where in fields(data, part):
                if kind == 1:
                    node = _node(data, _span(where))
                    if node.operator == "Constant":
                        weights[node.outputs[0]] = _constant(node)
                    else:
                        nodes.append(node)
                elif kind == 5:
                    name, stored = _stored(data, _span(where))
                    weights[name] = stored
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise ModelError(f"{path}: {NAME} cannot read it ({first_line(error)})") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None
    return File(path, data, tuple(nodes), weights, taken.inputs, tuple(taken.outputs), opsets)


def _span(value: int | slice) -> slice:
    if isinstance(value, int):
        raise ValueError("a number stands where a part should be")
    return value


def _node(data: mmap.mmap, where: slice) -> Node:
    inputs, outputs, operator, domain = [], [], "", ""
    attributes: dict[str, Value] = {}
    for number, part in fields(data, where):
        span = _span(part)
        if number == 1:
            inputs.append(text(data, span))
        elif number == 2:
            outputs.append(text(data, span))
        elif number == 4:
            operator = text(data, span)
        elif number == 5:
            name, value = _attribute(data, span)
            attributes[name] = value
        elif number == 7:
            domain = text(data, span)
    plain = domain in ("", "ai.onnx")
    return Node(operator if plain else f"{domain}.{operator}", tuple(inputs), tuple(outputs), attributes)


def _constant(node: Node) -> Stored:
    """The weight that a node of this kind stands for."""
    (value,) = node.attributes.values()
    array = value if isinstance(value, np.ndarray) else np.array(value)
    if not isinstance(value, np.ndarray) and array.dtype == np.float64:
        array = array.astype(np.float32)  # the attributes value_float and value_floats
    return Stored(array.dtype.name, array.shape, slice(0, 0), array)


def _attribute(data: mmap.mmap, where: slice) -> tuple[str, Value]:
    name = ""
    value: Value = 0
    ints: list[int] = []
    floats: list[float] = []
    for number, part in fields(data, where):
        if number == 1:
            name = text(data, _span(part))
        elif number == 2:
            value = struct.unpack("<f", data[_span(part)])[0]
        elif number == 3 and isinstance(part, int):
            value = _signed(part)
        elif number == 4:
            value = text(data, _span(part))
        elif number == 5:
            value = _values(data, _stored(data, _span(part))[1])
        elif number == 7:
            floats += np.frombuffer(data[_span(part)], "<f4").tolist()
        elif number == 8:
            ints += _integers(data, part)
    return name, ints or floats or value


def _stored(data: mmap.mmap, where: slice) -> tuple[str, Stored]:
    name, kind, shape, raw = "", 0, list[int](), slice(0, 0)
    values: NDArray[Any] | None = None
    for number, part in fields(data, where):
        if number == 1:
            shape += _integers(data, part)
        elif number == 2 and isinstance(part, int):
            kind = part
        elif number == 4:
            values = np.frombuffer(data[_span(part)], "<f4")
        elif number in (5, 7):
            values = np.array([*([] if values is None else values), *_integers(data, part)], np.int64)
        elif number == 8:
            name = text(data, _span(part))
        elif number == 9:
            raw = _span(part)
        elif number == 13 or (number == 14 and part):
            raise ValueError(f"{name} lies in another file")
    if kind not in _NUMPY:
        raise ValueError(f"{name} is of ONNX type {kind}, which is not known here")
    stored = Stored(_NUMPY[kind], tuple(shape), raw, values)
    if values is None and stored.nbytes != raw.stop - raw.start:
        raise ValueError(f"{name} has {raw.stop - raw.start} bytes, not {stored.nbytes}")
    return name, stored


def _values(data: mmap.mmap, stored: Stored) -> NDArray[Any]:
    """The contents of a small one that is not bfloat16."""
    if stored.values is not None:
        return stored.values.astype(stored.dtype).reshape(stored.shape)
    return np.frombuffer(data[stored.where], stored.dtype).reshape(stored.shape)


def _integers(data: mmap.mmap, part: int | slice) -> list[int]:
    """One number, or several packed."""
    if isinstance(part, int):
        return [_signed(part)]
    numbers, value, shift = [], 0, 0
    for byte in data[part]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(_signed(value))
            value, shift = 0, 0
    return numbers


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


# ---- the order ---------------------------------------------------------------------------------------------

_GROWTH = 8
"""How many times larger than all it takes a result must be for its making to wait."""
_CHAIN = 16
"""How many nodes may wait for one another."""


def late(nodes: Sequence[Node], sizes: Mapping[str, int], outputs: frozenset[str]) -> list[Node]:
    """The nodes in an order that does not make early what is large, made of little, and used late.

    A node waits for the first that takes its result if this is over ``_GROWTH`` times as large as all that is
    held for it meanwhile. Everything else stays in the order of the file: bands of rows depend on it.

    Args:
        nodes: in an order in which they can run.
        sizes: bytes of each tensor that a node makes and of each input; weights, held anyway, are not in it.
        outputs: of the graph.
    """
    # By result, with what is held for it and how many before it wait.
    waiting: dict[str, tuple[Node, frozenset[str], int]] = {}
    order: list[Node] = []

    def run(node: Node) -> None:
        for name in node.inputs:
            if name in waiting:
                before = waiting[name][0]
                for made in before.outputs:
                    waiting.pop(made, None)
                run(before)
        order.append(node)

    for node in nodes:
        held = frozenset(name for name in node.inputs if name in sizes and name not in waiting)
        held = held.union(*(waiting[name][1] for name in node.inputs if name in waiting))
        chain = 1 + max((waiting[name][2] for name in node.inputs if name in waiting), default=0)
        made = sum(sizes.get(name, 0) for name in node.outputs)
        grows = made > _GROWTH * sum(sizes[name] for name in held)
        if grows and chain <= _CHAIN and outputs.isdisjoint(node.outputs):
            waiting |= dict.fromkeys(node.outputs, (node, held, chain))
        else:
            run(node)
    return order


def fused(nodes: Sequence[Node], outputs: Collection[str]) -> list[Node]:
    """The nodes with two pairs made one each, which ``Operators`` runs in pieces.

    A convolution whose result is only added to something becomes ``ConvAdd``, a weight that is widened for
    one product ``CastMatMul``. Neither the result of the one nor the wide weight is then ever whole.
    """
    takers = Counter(name for node in nodes for name in node.inputs)
    takers.update(outputs)
    makers = {name: i for i, node in enumerate(nodes) for name in node.outputs}
    merged: list[Node | None] = list(nodes)
    for i, node in enumerate(nodes):
        wanted = {"Add": "Conv", "MatMul": "Cast"}.get(node.operator)
        places = (0, 1) if wanted == "Conv" else (0,)
        found = [
            (makers[name], place)
            for place, name in ((place, node.inputs[place]) for place in places if wanted)
            if takers[name] == 1 and name in makers and merged[makers[name]] is nodes[makers[name]]
        ]
        found = [(j, place) for j, place in found if nodes[j].operator == wanted]
        if found:
            j, place = max(found)
            other, part = node.inputs[1 - place], nodes[j]
            inputs = (other, *part.inputs) if wanted == "Conv" else (*part.inputs, other)
            merged[i] = Node(f"{wanted}{node.operator}", inputs, node.outputs, part.attributes)
            merged[j] = None
    return [node for node in merged if node is not None]


def last_uses(nodes: Sequence[Node], kept: Collection[str]) -> list[tuple[str, ...]]:
    """For each node the tensors that nothing takes after it, its own results among them, but those kept."""
    seen = set(kept) | {""}
    uses: list[tuple[str, ...]] = []
    for node in reversed(nodes):
        dying = tuple(dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name not in seen))
        seen.update(dying)
        uses.append(dying)
    return uses[::-1]


# ---- operators ---------------------------------------------------------------------------------------------

_PIECES = 8
_WHOLE = 1 << 20
"""Bytes of the smallest piece."""

Attributes = Mapping[str, Any]
Spare = Collection[int]
"""Places of the operands that die with the operator and that it may write into."""


class Operators:
    """ONNX's operators on PyTorch's tensors, by ONNX's names (https://onnx.ai/onnx/operators).

    Each takes the node's attributes, what it may write into, and the operands. Whole numbers, which say how
    long or where something is, lie on the processor always.
    """

    def __init__(self, torch: Any, compute: str | None, opset: int, *, last: bool) -> None:
        """``compute`` is what is computed in wherever the graph says float32, or None: as the graph says;
        ``last`` has maps and kernels with their channels last."""
        self.torch = torch
        self.F = torch.nn.functional
        self._compute = compute
        self._opset = opset
        self._last = last

    def last(self, x: Any) -> Any:
        """A map or kernel as it should lie in memory."""
        if x.ndim != 4 or not self._last:
            return x
        return x.contiguous(memory_format=self.torch.channels_last)

    def dtype(self, name: str) -> Any:
        """PyTorch's type for one of the graph's."""
        return getattr(self.torch, self._compute if self._compute and name in _REAL else name)

    def empty(self, shape: Sequence[int], dtype: Any, device: Any) -> Any:
        """A tensor without contents, as it should lie in memory."""
        last = self.torch.channels_last if self._last and len(shape) == 4 else self.torch.contiguous_format
        return self.torch.empty(shape, dtype=dtype, device=device, memory_format=last)

    # -- elementwise

    def _binary(self, function: Callable[..., Any], spare: Spare, x: Any, y: Any) -> Any:
        shape = self.torch.broadcast_shapes(x.shape, y.shape)
        into = next((v for i, v in enumerate((x, y)) if i in spare and v.shape == shape), None)
        return function(x, y, out=into)

    def Add(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self._binary(self.torch.add, spare, x, y)

    def Sub(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self._binary(self.torch.sub, spare, x, y)

    def Mul(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self._binary(self.torch.mul, spare, x, y)

    def Div(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        if not x.dtype.is_floating_point:
            return self.torch.div(x, y, rounding_mode="trunc")
        return self._binary(self.torch.div, spare, x, y)

    def _unary(self, function: Callable[..., Any], spare: Spare, x: Any) -> Any:
        return function(x, out=x if 0 in spare else None)

    def Neg(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.neg, spare, x)

    def Sqrt(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.sqrt, spare, x)

    def Reciprocal(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.reciprocal, spare, x)

    def Sigmoid(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.sigmoid, spare, x)

    def Tanh(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.tanh, spare, x)

    def Relu(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self.F.relu(x, inplace=0 in spare)

    def LeakyRelu(self, a: Attributes, spare: Spare, x: Any) -> Any:
        if x.is_meta:  # PyTorch would load a compiler for that, and make a copy
            return x if 0 in spare else self.torch.empty_like(x)
        return self.F.leaky_relu(x, a.get("alpha", 0.01), inplace=0 in spare)

    def PRelu(self, a: Attributes, spare: Spare, x: Any, slope: Any) -> Any:
        if slope.ndim == 3 and slope.shape[1:] == (1, 1) and x.ndim == 4:
            return self.F.prelu(x, slope.reshape(-1))
        return self.torch.where(x < 0, x * slope, x)

    def Clip(self, a: Attributes, spare: Spare, x: Any, low: Any = None, high: Any = None) -> Any:
        if low is None and high is None:
            return x
        return self.torch.clamp(
            x, *(None if v is None else v.to(x.device, x.dtype) for v in (low, high)),
            out=x if 0 in spare else None,
        )  # fmt: skip

    def Cast(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return x.to(self.dtype(_NUMPY[a["to"]]))

    def Softmax(self, a: Attributes, spare: Spare, x: Any) -> Any:
        axis = a.get("axis", -1 if self._opset >= 13 else 1)
        if self._opset >= 13:
            return self.torch.softmax(x, axis)
        flat = x.reshape(math.prod(x.shape[:axis]), -1)  # before opset 13 over all axes from that one on
        return self.torch.softmax(flat, 1).reshape(x.shape)

    # -- convolutions

    def Conv(self, a: Attributes, spare: Spare, x: Any, weight: Any, bias: Any = None) -> Any:
        weight, kernel = self.last(weight), weight.shape[2:]
        strides, dilations, pads = self._window(a, kernel)
        n = len(kernel)
        cut: list[tuple[int, int, int]] = []
        padding = [max(pads[i], pads[n + i]) for i in range(n)]
        if any((p - pads[i]) % s for i, (p, s) in enumerate(zip(padding, strides, strict=True))):
            x = self.F.pad(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])
            padding = [0] * n
        else:  # PyTorch pads both ends alike; a row too many is computed and cut off, which copies nothing
            for i, (p, s) in enumerate(zip(padding, strides, strict=True)):
                span = dilations[i] * (kernel[i] - 1) + 1
                rows = (x.shape[2 + i] + pads[i] + pads[n + i] - span) // s + 1
                cut.append((2 + i, (p - pads[i]) // s, rows))
        sides = [
            (side + 2 * p - d * (k - 1) - 1) // s + 1
            for side, p, d, k, s in zip(x.shape[2:], padding, dilations, kernel, strides, strict=True)
        ]
        y = self._unfilled(x, len(weight), sides)
        if y is None:
            convolve = (self.F.conv1d, self.F.conv2d, self.F.conv3d)[n - 1]
            y = convolve(x, weight, bias, strides, padding, dilations, a.get("group", 1))
        return self._cut(y, cut)

    def ConvAdd(self, a: Attributes, spare: Spare, y: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        """A convolution of ``x`` added to ``y``, some rows at a time if it can be written there."""
        weight = self.last(weight)
        strides, dilations, pads = self._window(a, weight.shape[2:])
        rows = x.ndim == 4 and (x.shape[2] + pads[0] + pads[2] - dilations[0] * (weight.shape[2] - 1) - 1)
        height = rows // strides[0] + 1
        if 0 not in spare or x.ndim != 4 or y.ndim != 4 or y.shape[1:3] != (len(weight), height):
            made = self.Conv(a, (), x, weight, bias)
            return self.Add({}, {0, *([1] if 0 in spare else [])}, made, y)
        # A library may bring the kernel into an order of its own for each piece: not where it is large.
        step = -(-height // min(_PIECES, max(1, y.nbytes // max(_WHOLE, 2 * weight.nbytes))))
        for first in range(0, height, step):
            last = min(first + step, height)
            top = first * strides[0] - pads[0]
            bottom = (last - 1) * strides[0] - pads[0] + dilations[0] * (weight.shape[2] - 1) + 1
            start, stop = max(top, 0), min(bottom, x.shape[2])
            around = [start - top, pads[1], bottom - stop, pads[3]]
            part = self.Conv({**a, "pads": around}, (), x.narrow(2, start, stop - start), weight, bias)
            y.narrow(2, first, last - first).add_(part)
            del part
        return y

    def ConvTranspose(self, a: Attributes, spare: Spare, x: Any, weight: Any, bias: Any = None) -> Any:
        weight, kernel = self.last(weight), weight.shape[2:]
        strides, dilations, pads = self._window(a, kernel)
        if "output_shape" in a:
            raise ModelError("ConvTranspose with output_shape is not known here")
        n = len(kernel)
        extra = a.get("output_padding") or [0] * n
        padding = [min(pads[i], pads[n + i]) for i in range(n)]
        group = a.get("group", 1)
        sides = [
            (side - 1) * s - 2 * p + d * (k - 1) + e + 1
            for side, p, d, k, s, e in zip(
                x.shape[2:], padding, dilations, kernel, strides, extra, strict=True
            )
        ]
        y = self._unfilled(x, group * weight.shape[1], sides)
        if y is None:
            transpose = (self.F.conv_transpose1d, self.F.conv_transpose2d, self.F.conv_transpose3d)[n - 1]
            y = transpose(x, weight, bias, strides, padding, extra, group, dilations)
        cut = [
            (2 + i, pads[i] - p, sides[i] - (pads[i] - p) - (pads[n + i] - p)) for i, p in enumerate(padding)
        ]
        return self._cut(y, cut)

    def _unfilled(self, x: Any, channels: int, sides: Sequence[int]) -> Any:
        """The result of a convolution of a tensor without contents; None if it has any. PyTorch would load a
        compiler to find its shape."""
        if not x.is_meta:
            return None
        return self.empty((len(x), channels, *sides), x.dtype, "meta")

    def AveragePool(self, a: Attributes, spare: Spare, x: Any) -> Any:
        kernel = a["kernel_shape"]
        strides, dilations, pads = self._window(a, kernel)
        n = len(kernel)
        if n != 2 or pads[:n] != pads[n:] or max(dilations) > 1:
            raise ModelError("AveragePool like this one is not known here")
        return self.F.avg_pool2d(
            x, kernel, strides, pads[:n], bool(a.get("ceil_mode")), bool(a.get("count_include_pad"))
        )

    def _window(self, a: Attributes, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Strides, dilations and pads: those at the beginnings, then those at the ends."""
        ones = [1] * len(kernel)
        if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise ModelError(f"auto_pad {a['auto_pad']} is not known here")
        return (
            list(a.get("strides") or ones), list(a.get("dilations") or ones),
            list(a.get("pads") or [0, 0] * len(kernel)),
        )  # fmt: skip

    @staticmethod
    def _cut(x: Any, spans: Sequence[tuple[int, int, int]]) -> Any:
        """From along an axis, as many."""
        for axis, first, count in spans:
            if count != x.shape[axis]:
                x = x.narrow(axis, first, count)
        return x

    # -- products

    def MatMul(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self.torch.matmul(x, y)

    def CastMatMul(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        """A matrix in another type times ``y``, some rows at a time."""
        dtype = self.dtype(_NUMPY[a["to"]])
        if x.ndim != 2 or y.ndim != 2 or x.dtype == dtype:
            return x.to(dtype) @ y
        step = -(-len(x) // _PIECES)
        return self.torch.cat([x[i : i + step].to(dtype) @ y for i in range(0, len(x), step)])

    def Gemm(self, a: Attributes, spare: Spare, x: Any, y: Any, z: Any = None) -> Any:
        x, y = (x.mT if a.get("transA") else x), (y.mT if a.get("transB") else y)
        product = self.torch.matmul(x, y) * a.get("alpha", 1.0)
        return product if z is None else product + z * a.get("beta", 1.0)

    def ReduceMean(self, a: Attributes, spare: Spare, x: Any, axes: Any = None) -> Any:
        chosen = a.get("axes") if axes is None else axes.tolist()
        if not chosen:
            if a.get("noop_with_empty_axes"):
                return x
            chosen = list(range(x.ndim))
        return x.mean(chosen, keepdim=bool(a.get("keepdims", 1)))

    # -- shapes and places

    def Identity(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return x

    def Shape(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self.torch.tensor(list(x.shape)[a.get("start", 0) : a.get("end")], dtype=self.torch.int64)

    def Reshape(self, a: Attributes, spare: Spare, x: Any, shape: Any) -> Any:
        sides = shape.tolist()
        if not a.get("allowzero"):
            sides = [x.shape[i] if side == 0 else side for i, side in enumerate(sides)]
        return x.reshape(sides)

    def Expand(self, a: Attributes, spare: Spare, x: Any, shape: Any) -> Any:
        return x.expand(self.torch.broadcast_shapes(x.shape, tuple(shape.tolist())))

    def Unsqueeze(self, a: Attributes, spare: Spare, x: Any, axes: Any = None) -> Any:
        chosen = a["axes"] if axes is None else axes.tolist()
        rank = x.ndim + len(chosen)
        for axis in sorted(axis % rank for axis in chosen):
            x = x.unsqueeze(axis)
        return x

    def Transpose(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return x.permute(a.get("perm") or tuple(reversed(range(x.ndim))))

    def Concat(self, a: Attributes, spare: Spare, *parts: Any) -> Any:
        return self.torch.cat(parts, a["axis"])

    def Slice(
        self, a: Attributes, spare: Spare, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
    ) -> Any:
        firsts, lasts = starts.tolist(), ends.tolist()
        along = range(len(firsts)) if axes is None else axes.tolist()
        by = [1] * len(firsts) if steps is None else steps.tolist()
        for first, last, axis, step in zip(firsts, lasts, along, by, strict=True):
            if step < 1:
                raise ModelError("Slice backwards is not known here")
            span = range(x.shape[axis])[first:last:step]
            first, stop = (span.start, max(span.stop, span.start)) if span else (0, 0)
            places = [slice(None)] * (axis % x.ndim) + [slice(first, stop, step)]
            x = x[tuple(places)]
        return x

    def Gather(self, a: Attributes, spare: Spare, x: Any, at: Any) -> Any:
        axis = a.get("axis", 0) % x.ndim
        places = at.to(x.device)
        places = self.torch.where(places < 0, places + x.shape[axis], places)
        found = x.index_select(axis, places.reshape(-1))
        return found.reshape([*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]])

    def DepthToSpace(self, a: Attributes, spare: Spare, x: Any) -> Any:
        n, c, h, w = x.shape
        s = a["blocksize"]
        if a.get("mode", "DCR") == "CRD":
            return self.F.pixel_shuffle(x, s)
        y = x.reshape(n, s, s, c // s**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return y.reshape(n, c // s**2, h * s, w * s)

    def SpaceToDepth(self, a: Attributes, spare: Spare, x: Any) -> Any:
        n, c, h, w = x.shape
        s = a["blocksize"]
        y = x.reshape(n, c, h // s, s, w // s, s).permute(0, 3, 5, 1, 2, 4)
        return y.reshape(n, c * s**2, h // s, w // s)

    def Resize(
        self, a: Attributes, spare: Spare, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None
    ) -> Any:
        """Height and width, by pixels repeated whole times, or bilinear from the pixels' centres."""
        factors = scales.tolist() if scales is not None and scales.numel() else None
        sides = sizes.tolist() if factors is None else [
            math.floor(n * f) for n, f in zip(x.shape, factors, strict=True)
        ]  # fmt: skip
        mode = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
        kept = tuple(sides[:2]) == tuple(x.shape[:2]) and not a.get("antialias") and x.ndim == 4
        if kept and mode == ("linear", "half_pixel"):
            return self.F.interpolate(x, sides[2:], mode="bilinear", align_corners=False)
        whole = all(new % old == 0 for new, old in zip(sides, x.shape, strict=True))
        floor = mode == ("nearest", "asymmetric") and a.get("nearest_mode") == "floor"
        if kept and whole and (floor or mode == ("nearest", "half_pixel")):
            return self.F.interpolate(x, sides[2:], mode="nearest")
        raise ModelError(f"Resize {' '.join(mode)} to {sides} of {list(x.shape)} is not known here")


def operators() -> set[str]:
    """The names of those that a graph may have."""
    return {name for name in vars(Operators) if name[0].isupper() and name not in ("ConvAdd", "CastMatMul")}


# ---- counting ----------------------------------------------------------------------------------------------


@dataclass
class Count:
    """Bytes of live tensors on a device: now, and at the highest. Views of one storage count once."""

    now: int = 0
    peak: int = 0

    def add(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)


@contextmanager
def counting(device: str) -> Iterator[Count]:
    """Count every storage that PyTorch's operators give on a device within, until it is freed.

    It works on any device. What an operator takes and frees within itself is not seen.

    Args:
        device: ``cuda``, ``mps``, ``cpu`` or ``meta``.
    """
    from torch import Tensor
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    count = Count()
    live: set[int] = set()

    def freed(storage: int, nbytes: int) -> None:
        live.discard(storage)
        count.add(-nbytes)

    class Watch(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in _pytree.tree_leaves(made):
                if isinstance(tensor, Tensor) and tensor.device.type == device:
                    storage = tensor.untyped_storage()
                    if (key := _storage(tensor)) not in live:
                        live.add(key)
                        count.add(storage.nbytes())
                        weakref.finalize(storage, freed, key, storage.nbytes())
            return made

    with Watch():  # type: ignore[no-untyped-call, unused-ignore]
        yield count


def _storage(tensor: Any) -> int:
    """What tells one storage from another while both live."""
    return int(tensor.untyped_storage()._cdata)


# ---- running -----------------------------------------------------------------------------------------------


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
            if name in scales or stored.dtype not in _REAL
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
        """Run once; float32 arrays in, by name, and out."""
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
        holders = Counter(_storage(x) for x in (*inputs.values(), *kept))
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
            others = holders[_storage(x)] - (name in dying and name in values)
            if others == 0 and x.is_floating_point() and 0 not in x.stride():
                spare.add(i)
        made = getattr(self._operators, node.operator)(node.attributes, spare, *operands)
        values[node.outputs[0]] = made
        holders[_storage(made)] += 1
        for name in dying:
            if name in values:
                key = _storage(values.pop(name))
                holders[key] -= 1
                if not holders[key]:
                    del holders[key]


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
