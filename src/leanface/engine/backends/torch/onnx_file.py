"""A graph's file, read without the ONNX library (onnx.proto3 has the field numbers)."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.engine.session import first_line
from leanface.errors import ModelError
from leanface.weights import signature
from leanface.weights.signature import fields, text

ELEMENT_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip
"""PyTorch's names of ONNX's element types."""
_WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}
REAL_TYPES = ("float32", "float16", "bfloat16", "float64")

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
        raise ModelError(f"{path}: PyTorch cannot read it ({first_line(error)})") from None
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
    if kind not in ELEMENT_TYPES:
        raise ValueError(f"{name} is of ONNX type {kind}, which is not known here")
    stored = Stored(ELEMENT_TYPES[kind], tuple(shape), raw, values)
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
