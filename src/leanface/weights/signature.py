"""What an ONNX file takes and gives, read from its few bytes about that; no weight is touched.

The file is a protobuf message (onnx.proto3): a model holds a graph, a graph its inputs, outputs and weights.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from leanface.errors import ModelError
from leanface.weights.manifest import describe, weight_format

_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
# Field numbers of onnx.proto3.
_GRAPH = 7
_WEIGHT, _INPUT, _OUTPUT = 5, 11, 12
_WEIGHT_NAME = 8
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TENSOR = 1
_ELEMENT, _SHAPE = 1, 2
_DIM = 1
_DIM_VALUE, _DIM_NAME = 1, 2


@dataclass(frozen=True)
class Shaped:
    """A tensor's type, by NumPy's name, and its shape: None is any length; no shape at all is any shape."""

    dtype: str
    shape: tuple[int | str | None, ...] | None

    def bears(self, other: Shaped) -> bool:
        """Whether a tensor of the other type and shape can be one of this."""
        if self.dtype != other.dtype:
            return False
        if self.shape is None or other.shape is None:
            return True
        sides = zip(self.shape, other.shape, strict=False)
        return len(self.shape) == len(other.shape) and all(
            a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in sides
        )

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype} of any shape"
        return f"{self.dtype} [{', '.join('any' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name, in the file's order."""

    inputs: Mapping[str, Shaped]
    outputs: Mapping[str, Shaped]

    def serves(self, needed: Signature) -> bool:
        """Whether a graph like this can be fed as needed, and its first output, whatever its name, is the
        needed one."""
        first, wanted = (next(iter(s.outputs.values()), None) for s in (self, needed))
        return (
            self.inputs.keys() == needed.inputs.keys()
            and all(shaped.bears(needed.inputs[name]) for name, shaped in self.inputs.items())
            and first is not None
            and (wanted is None or first.bears(wanted))
        )

    def __str__(self) -> str:
        takes, gives = (
            ", ".join(f"{name} {shaped}" for name, shaped in side.items()) or "nothing"
            for side in (self.inputs, self.outputs)
        )
        return f"{takes} -> {gives}"


def read(path: Path) -> Signature:
    """The signature of an ONNX file.

    Raises:
        ModelError: the file is missing, is none, or is damaged.
    """
    try:
        with path.open("rb") as file:
            head = file.read(512)
            if weight_format(head) != "onnx":
                what = "a checkpoint" if weight_format(head) else describe(head)
                raise ModelError(f"{path} is {what}; this model needs an .onnx file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _signature(data)
    except (ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{path} is no whole ONNX model ({error}); get it again") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None


def _signature(data: mmap.mmap) -> Signature:
    inputs: dict[str, Shaped] = {}
    outputs: dict[str, Shaped] = {}
    weights = set()
    for number, part in fields(data, _only(data, slice(0, len(data)), _GRAPH)):
        if number == _WEIGHT:
            weights.add(text(data, _only(data, _slice(part), _WEIGHT_NAME)))
        elif number in (_INPUT, _OUTPUT):
            name, shaped = _value(data, _slice(part))
            (inputs if number == _INPUT else outputs)[name] = shaped
    # Files of the first ONNX versions list their weights among the inputs.
    return Signature({name: shaped for name, shaped in inputs.items() if name not in weights}, outputs)


def _value(data: mmap.mmap, where: slice) -> tuple[str, Shaped]:
    name = text(data, _only(data, where, _VALUE_NAME))
    tensor = dict(fields(data, _only(data, _only(data, where, _VALUE_TYPE), _TENSOR)))
    element = tensor.get(_ELEMENT)
    dtype = _TYPES.get(element, f"type {element}") if isinstance(element, int) else "no type"
    if _SHAPE not in tensor:
        return name, Shaped(dtype, None)
    dims = (dict(fields(data, _slice(d))) for n, d in fields(data, _slice(tensor[_SHAPE])) if n == _DIM)
    return name, Shaped(dtype, tuple(_length(data, dim) for dim in dims))


def _length(data: mmap.mmap, dim: Mapping[int, int | slice]) -> int | str | None:
    value = dim.get(_DIM_VALUE, dim.get(_DIM_NAME))
    return text(data, value) if isinstance(value, slice) else value


def _only(data: mmap.mmap, where: slice, wanted: int) -> slice:
    for number, value in fields(data, where):
        if number == wanted:
            return _slice(value)
    raise ValueError(f"field {wanted} is missing")


def _slice(value: int | slice) -> slice:
    if isinstance(value, int):
        raise ValueError("a number stands where a part should be")
    return value


def text(data: mmap.mmap, where: slice) -> str:
    return data[where].decode(errors="replace")


def fields(data: mmap.mmap, where: slice) -> Iterator[tuple[int, int | slice]]:
    """The fields of a protobuf message: number, and an integer or where its bytes lie."""
    at = where.start
    while at < where.stop:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire, -1)
        if wire == 2:
            size, at = _varint(data, at)
        if size < 0 or at + size > where.stop:
            raise ValueError(f"damaged at byte {at}")
        yield number, slice(at, at + size)
        at += size


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """The base-128 number at a byte, and the byte after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"damaged at byte {at}")
