"""Reads published weights into arrays without executing anything and without copying them.

Formats, told apart by their first bytes, never by their name:

- ``torch.save`` since PyTorch 1.6: an uncompressed zip of one pickle (``NAME/data.pkl``) and one raw storage
  per ``NAME/data/KEY`` (https://pytorch.org/docs/stable/notes/serialization.html).
- ``torch.save`` before that: five pickles in a row, then each storage as an int64 count and its raw elements.
- safetensors: a JSON header and raw tensors (https://huggingface.co/docs/safetensors).
- ONNX: the initializers of the graph (onnx.proto3), found by walking the protobuf fields.

A pickle is a program for a stack machine. The one here knows the few instructions and names that a dictionary
of tensors needs and calls nothing: whatever else a file asks for is an error that names it. Every count,
offset and size in a file is checked against the file's true length before it is used.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import pickletools
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from leanface.errors import ModelError
from leanface.weights.manifest import describe, weight_format

Array = NDArray[Any]

# Keys that checkpoints wrap their tensors in, the one to prefer first: averaged weights before raw ones.
WRAPPERS = ("g_ema", "params_ema", "params", "state_dict")

_MAX_DIMS = 16
_BFLOAT16 = "bfloat16"
_EXPECTED = "expected weights in a .pth, .pt, .safetensors or .onnx file"


def load(path: Path) -> Mapping[str, Array]:
    """The tensors in a file of weights, by name, in the file's order.

    Wrapping dictionaries (``WRAPPERS``) and a ``module.`` prefix on every name are taken off.

    Returns:
        Read-only arrays of the stored type and shape. They are views of the memory-mapped file, not always
        aligned or contiguous, and keep it open while they live; only bfloat16 is decoded, to float32. When
        one is asked for, the memory that was read for others before it is given back.

    Raises:
        ModelError: the file is missing, is something else, is damaged or cut off, asks to run something, or
            stores its tensors in a way this reader does not know; one line that says which.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path} is not a file; {_EXPECTED}")
        with path.open("rb") as file:
            head = file.read(512)
            kind = weight_format(head)
            if kind is None:
                raise ModelError(f"{path} is {describe(head)}; {_EXPECTED}")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            tensors = _READERS[kind](file, _Mapped(data))
    except _Unreadable as error:
        raise ModelError(f"{path}: {error}") from None
    except (
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
        EOFError,
        struct.error,
    ) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ModelError(f"{path} is damaged or cut off ({reason}); get it again") from None
    except OSError as error:
        raise ModelError(f"cannot read the weights {path}: {error.strerror or error}") from None
    if not tensors:
        raise ModelError(f"{path} holds no tensors; {_EXPECTED}")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return _Tensors(tensors, data)


class _Tensors(Mapping[str, Array]):
    def __init__(self, arrays: Mapping[str, Array], data: mmap.mmap) -> None:
        self._arrays = arrays
        self._data = data

    def __getitem__(self, name: str) -> Array:
        if hasattr(mmap, "MADV_DONTNEED"):
            self._data.madvise(mmap.MADV_DONTNEED)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class _Unreadable(Exception):
    """Why the file cannot be used, without its name."""


class _Mapped:
    """The mapped file: the one place where its bytes become arrays, so that bounds are checked once.

    The arrays of one file cannot be larger than the file together: a small file whose records all point at
    the same bytes would otherwise decode into any amount of memory.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self._left = len(data)

    def array(self, name: str, kind: str, count: int, start: int, stop: int) -> Array:
        """``count`` elements in one dimension from byte ``start``; they must end by byte ``stop``."""
        dtype = _dtype(kind)
        size = count * dtype.itemsize
        if not (start >= 0 and size >= 0 and start + size <= min(stop, len(self.data))):
            raise _Unreadable(
                f"it is cut off: {_plain(name)} needs {size} bytes from byte {start}; get it again"
            )
        self._left -= size
        if self._left < 0:
            raise _Unreadable(f"it is damaged: {_plain(name)} overlaps other tensors")
        flat: Array = np.ndarray((count,), dtype, self.data, start)
        if kind == _BFLOAT16:
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
            flat.setflags(write=False)
        return flat


def _dtype(kind: str) -> np.dtype[Any]:
    """The type of the stored elements."""
    return np.dtype("<u2" if kind == _BFLOAT16 else kind)


def _shape(name: str, shape: object, count: int) -> tuple[int, ...]:
    """``shape`` as a tuple, checked to hold ``count`` elements."""
    if not isinstance(shape, tuple | list) or len(shape) > _MAX_DIMS or not all(map(_is_count, shape)):
        raise _Unreadable(f"it is damaged: {_plain(name)} has an impossible shape")
    if math.prod(shape) != count:
        raise _Unreadable(f"it is damaged: the shape of {_plain(name)} does not fit its {count} elements")
    return tuple(shape)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _plain(text: object) -> str:
    """Text out of a file, made safe for a line of a message."""
    shown = ascii(str(text))[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


# ---- torch: the pickle -------------------------------------------------------------------------------------

_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_KNOWN_NAMES = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    *(f"torch.{name}" for name in _STORAGES),
}
_REFUSED = "weights never need that: refused, nothing was run; expected a file with only a state dict"
_MAX_STEPS = 500_000  # of one pickle; a network of 1000 tensors takes about 50000


@dataclass(frozen=True)
class _Name:
    """Stands for a Python object that a pickle asks for. It is a word and can do nothing."""

    text: str


@dataclass(frozen=True)
class _Storage:
    key: str
    kind: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Pickle:
    """Interprets one pickle, calling nothing; ``storages`` collects what its tensors refer to."""

    def __init__(self) -> None:
        self.storages: dict[str, _Storage] = {}
        self._stack: list[Any] = []
        self._marks: list[int] = []

    def read(self, stream: Any) -> Any:
        """The object that the pickle at the stream's position describes; leaves the stream behind it."""
        stack, memo = self._stack, dict[Any, Any]()
        for step, (op, arg, _) in enumerate(pickletools.genops(stream)):
            if step > _MAX_STEPS:
                raise _Unreadable(f"its pickle is far longer than that of any network; {_REFUSED}")
            match op.name:
                case "PROTO" | "FRAME":
                    pass
                case "STOP":
                    return stack.pop()
                case "NONE":
                    stack.append(None)
                case "NEWTRUE" | "NEWFALSE":
                    stack.append(op.name == "NEWTRUE")
                case (
                    "BININT" | "BININT1" | "BININT2" | "LONG1" | "LONG4" | "BINFLOAT" | "BINUNICODE"
                    | "BINUNICODE8" | "SHORT_BINUNICODE" | "BINSTRING" | "SHORT_BINSTRING"
                ):  # fmt: skip
                    stack.append(arg)
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "MARK":
                    self._marks.append(len(stack))
                case "TUPLE":
                    stack.append(tuple(self._since_mark()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    stack.append(tuple(self._pop(int(op.name[-1]))))
                case "APPEND":
                    self._append(self._pop(1))
                case "APPENDS":
                    self._append(self._since_mark())
                case "SETITEM":
                    self._set(self._pop(2))
                case "SETITEMS":
                    self._set(self._since_mark())
                case "BINPUT" | "LONG_BINPUT":
                    memo[arg] = stack[-1]
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[arg])
                case "GLOBAL":
                    stack.append(_name(".".join(str(arg).split(" "))))
                case "STACK_GLOBAL":
                    stack.append(_name(".".join(map(str, self._pop(2)))))
                case "BINPERSID":
                    stack.append(self._storage(*self._pop(1)))
                case "REDUCE":
                    stack.append(self._make(*self._pop(2)))
                case "BUILD":  # the attributes of a dictionary: torch keeps the versions of its modules there
                    self._pop(1)
                    if not isinstance(stack[-1], dict):
                        raise _Unreadable(f"its pickle sets the state of an object; {_REFUSED}")
                case _:
                    what = op.name if arg is None else f"{op.name} {_plain(arg)}"
                    raise _Unreadable(f"its pickle uses {what}; {_REFUSED}")
        raise _Unreadable("it is cut off inside its pickle; get it again")

    def _pop(self, count: int) -> list[Any]:
        if not 0 < count <= len(self._stack):
            raise _Unreadable("its pickle is damaged; get it again")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _since_mark(self) -> list[Any]:
        return self._pop(count) if (count := len(self._stack) - self._marks.pop()) else []

    def _append(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise _Unreadable(f"its pickle appends to something that is not a list; {_REFUSED}")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        _update(self._stack[-1], zip(items[::2], items[1::2], strict=True))

    def _make(self, name: object, args: object) -> object:
        """What torch would get by calling ``name`` with ``args``."""
        if not isinstance(name, _Name) or not isinstance(args, tuple):
            raise _Unreadable(f"its pickle calls something that is not a function; {_REFUSED}")
        match name.text, args:
            case "collections.OrderedDict", ():
                return {}
            case "collections.OrderedDict", (list() as pairs,):  # as Python 2 wrote it
                made: dict[object, object] = {}
                _update(made, (pair if isinstance(pair, list | tuple) else () for pair in pairs))
                return made
            case (
                "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2",
                (_Storage() as storage, offset, shape, strides, *_),
            ):
                return _tensor(storage, offset, shape, strides)
            case (
                "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state",
                (_Tensor() as tensor, *_),
            ):
                return tensor
        raise _Unreadable(f"its pickle calls {_plain(name.text)} in an unknown way; {_REFUSED}")

    def _storage(self, identity: object) -> _Storage:
        match identity:
            case ("storage", _Name(text), str() as key, str(), int() as count) | (
                "storage", _Name(text), str() as key, str(), int() as count, None
            ) if count >= 0 and text.removeprefix("torch.") in _STORAGES:  # fmt: skip
                storage = _Storage(key, _STORAGES[text.removeprefix("torch.")], count)
                if self.storages.setdefault(key, storage) != storage:
                    raise _Unreadable(f"it is damaged: two descriptions of storage {_plain(key)}")
                return storage
        raise _Unreadable(
            "its pickle refers to a storage in an unknown way; save it again with a newer PyTorch"
        )


def _name(text: str) -> _Name:
    if text not in _KNOWN_NAMES:
        raise _Unreadable(f"its pickle asks for {_plain(text)}; {_REFUSED}")
    return _Name(text)


def _update(target: object, pairs: Any) -> None:
    """Put pairs into a dictionary.

    Keys are text or small numbers: hashing deeply nested ones could crash, colliding ones could hang.
    """
    if not isinstance(target, dict):
        raise _Unreadable(f"its pickle sets items of something that is not a dictionary; {_REFUSED}")
    for key, value in pairs:
        if not isinstance(key, str) and not (isinstance(key, int) and 0 <= key < 1 << 31):
            raise _Unreadable(f"its pickle uses a key that is neither text nor a small number; {_REFUSED}")
        target[key] = value


def _tensor(storage: _Storage, offset: Any, shape: Any, strides: Any) -> _Tensor:
    if (
        isinstance(shape, tuple)
        and isinstance(strides, tuple)
        and len(shape) == len(strides) <= _MAX_DIMS
        and all(map(_is_count, (offset, *shape, *strides)))
    ):
        count = math.prod(shape)
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if count else -1
        if last < storage.count and count <= storage.count:
            return _Tensor(storage, offset, shape, strides)
    raise _Unreadable(f"it is damaged: a tensor reaches outside storage {_plain(storage.key)}")


def _unwrap(value: object) -> dict[str, _Tensor]:
    """The dictionary of tensors inside what was saved."""
    while isinstance(value, dict):
        inner = [value[key] for key in WRAPPERS if isinstance(value.get(key), dict)]
        if not inner:
            break
        value = inner[0]
    if not isinstance(value, dict):
        raise _Unreadable(
            f"it holds one {type(value).__name__.strip('_').lower()}, not a dictionary of tensors"
        )
    tensors = {
        name: item for name, item in value.items() if isinstance(name, str) and isinstance(item, _Tensor)
    }
    if value and not tensors:
        keys = ", ".join(_plain(key) for key in list(value)[:5])
        raise _Unreadable(
            f"it holds no tensors, only {keys}; expected a state dict, bare or under {WRAPPERS}"
        )
    return tensors


def _views(tensors: Mapping[str, _Tensor], storages: Mapping[str, Array]) -> dict[str, Array]:
    views = {}
    for name, tensor in tensors.items():
        flat = storages[tensor.storage.key]
        step = flat.itemsize
        views[name] = (
            np.ndarray(
                tensor.shape, flat.dtype, flat, tensor.offset * step, [n * step for n in tensor.strides]
            )
            if math.prod(tensor.shape)
            else flat[:0].reshape(tensor.shape)
        )
    return views


# ---- torch: the two containers -----------------------------------------------------------------------------


def _read_torch_zip(file: BinaryIO, mapped: _Mapped) -> dict[str, Array]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, OSError):
        raise _Unreadable(
            f"it begins like a .pth file but is cut off after {len(mapped.data)} bytes; get it again"
        ) from None
    entries = {info.filename: info for info in archive.infolist()}
    roots = [
        name.removesuffix("data.pkl") for name in entries if name == "data.pkl" or name.endswith("/data.pkl")
    ]
    if len(roots) != 1:
        some = ", ".join(_plain(name) for name in list(entries)[:3]) or "nothing"
        raise _Unreadable(f"it is a zip archive (with {some}) but not one that torch.save wrote; {_EXPECTED}")
    root = roots[0]
    if f"{root}constants.pkl" in entries:
        raise _Unreadable("it is a TorchScript program; expected a state dict as torch.save writes it")

    def span(name: str) -> slice:
        """Where the bytes of an entry lie in the file."""
        info = entries.get(root + name)
        if info is None:
            raise _Unreadable(f"it is damaged: its entry {_plain(name)} is missing; get it again")
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 1
            or info.file_size != info.compress_size
        ):
            raise _Unreadable(
                "it was packed again with compression; expected the file as torch.save wrote it"
            )
        header = mapped.data[info.header_offset : info.header_offset + 30] if info.header_offset >= 0 else b""
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise _Unreadable(f"it is damaged at its entry {_plain(name)}; get it again")
        start = info.header_offset + 30 + sum(struct.unpack("<2H", header[26:]))
        if start + info.file_size > len(mapped.data):
            raise _Unreadable(f"it is cut off in its entry {_plain(name)}; get it again")
        return slice(start, start + info.file_size)

    if f"{root}byteorder" in entries and mapped.data[span("byteorder")] != b"little":
        raise _Unreadable("it was written on a big-endian machine; expected little-endian weights")
    pickle = _Pickle()
    tensors = _unwrap(pickle.read(io.BytesIO(mapped.data[span("data.pkl")])))
    storages = {}
    for key in {tensor.storage.key for tensor in tensors.values()}:
        storage, where = pickle.storages[key], span(f"data/{key}")
        storages[key] = mapped.array(f"storage {key}", storage.kind, storage.count, where.start, where.stop)
    return _views(tensors, storages)


_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001


def _read_torch_legacy(_: BinaryIO, mapped: _Mapped) -> dict[str, Array]:
    data = mapped.data
    if _Pickle().read(data) != _LEGACY_MAGIC or _Pickle().read(data) != _LEGACY_PROTOCOL:
        raise _Unreadable("it is a pickle but not one that torch.save wrote; expected a state dict")
    system = _Pickle().read(data)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise _Unreadable("it was written on a big-endian machine; expected little-endian weights")
    pickle = _Pickle()
    tensors = _unwrap(pickle.read(data))
    keys = _Pickle().read(data)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _Unreadable("it is damaged: the list of its storages is not one")
    storages, at = {}, data.tell()
    for key in keys:
        if key not in pickle.storages or key in storages:
            raise _Unreadable(f"it is damaged: storage {_plain(key)} is stored but not described, or twice")
        storage = pickle.storages[key]
        if data[at : at + 8] != storage.count.to_bytes(8, "little"):
            raise _Unreadable(f"it is damaged or cut off before storage {_plain(key)}; get it again")
        storages[key] = mapped.array(f"storage {key}", storage.kind, storage.count, at + 8, len(data))
        at += 8 + storage.count * _dtype(storage.kind).itemsize
    return _views(tensors, storages)


# ---- safetensors -------------------------------------------------------------------------------------------

_SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": _BFLOAT16,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}


def _read_safetensors(_: BinaryIO, mapped: _Mapped) -> dict[str, Array]:
    base = 8 + int.from_bytes(mapped.data[:8], "little")
    if base > len(mapped.data):
        raise _Unreadable("it begins like a .safetensors file but is cut off in its header; get it again")
    header = json.loads(mapped.data[8:base].decode())
    header.pop("__metadata__", None)
    tensors, end = {}, base  # there are no gaps: the tensors fill the file
    for name, entry in header.items():
        kind = _SAFETENSORS.get(entry["dtype"])
        if kind is None:
            raise _Unreadable(
                f"{_plain(name)} is of type {_plain(entry['dtype'])}, which this reader does not know"
            )
        start, stop = entry["data_offsets"]
        if not (_is_count(start) and _is_count(stop) and start <= stop):
            raise _Unreadable(f"it is damaged: {_plain(name)} has impossible offsets")
        count, rest = divmod(stop - start, _dtype(kind).itemsize)
        shape = _shape(name, entry["shape"], count if not rest else -1)
        tensors[name] = mapped.array(name, kind, count, base + start, base + stop).reshape(shape)
        end += stop - start
    if end != len(mapped.data):
        raise _Unreadable(f"it has {len(mapped.data)} bytes where its header describes {end}; get it again")
    return tensors


# ---- ONNX --------------------------------------------------------------------------------------------------

_ONNX_TYPES = {
    1: "<f4",
    2: "|u1",
    3: "|i1",
    4: "<u2",
    5: "<i2",
    6: "<i4",
    7: "<i8",
    9: "|b1",
    10: "<f2",
    11: "<f8",
    12: "<u4",
    13: "<u8",
    16: _BFLOAT16,
}
# Field numbers of onnx.proto3.
_MODEL_GRAPH, _MODEL_OPSET, _GRAPH_INITIALIZER = 7, 8, 5
_DIMS, _TYPE, _FLOATS, _INTS, _LONGS, _NAME, _RAW, _DOUBLES, _EXTERNAL, _PLACE = (
    1,
    2,
    4,
    5,
    7,
    8,
    9,
    10,
    13,
    14,
)
_MAX_LISTED = 1 << 16  # bytes of a list of integers; real ones are shapes of a few elements


def _read_onnx(_: BinaryIO, mapped: _Mapped) -> dict[str, Array]:
    data = mapped.data
    model = list(_fields(data, slice(0, len(data))))
    # A graph may be written in several parts, which a reader has to merge.
    graphs = [part for number, part in model if number == _MODEL_GRAPH and isinstance(part, slice)]
    if not graphs or not any(number == _MODEL_OPSET for number, _ in model):
        raise _Unreadable(f"it begins like an .onnx file but is not a whole model; {_EXPECTED}")
    return dict(
        _initializer(mapped, value)
        for graph in graphs
        for number, value in _fields(data, graph)
        if number == _GRAPH_INITIALIZER and isinstance(value, slice)
    )


def _initializer(mapped: _Mapped, where: slice) -> tuple[str, Array]:
    data = mapped.data
    dims: list[int] = []
    found: dict[int, int | slice] = {}
    for number, value in _fields(data, where):
        if number == _DIMS:
            dims += [value] if isinstance(value, int) else _integers(data, value)
        else:
            found[number] = value
    label = found.get(_NAME)
    name = data[label].decode() if isinstance(label, slice) else ""
    if found.get(_PLACE) or _EXTERNAL in found:
        raise _Unreadable(
            f"it keeps {_plain(name)} in another file; expected an .onnx file that is whole by itself"
        )
    code = found.get(_TYPE)
    kind = _ONNX_TYPES.get(code) if isinstance(code, int) else None
    if kind is None:
        raise _Unreadable(f"{_plain(name)} is of ONNX type {code}, which this reader does not know")
    for number, stored in ((_RAW, kind), (_FLOATS, "<f4"), (_DOUBLES, "<f8")):
        value = found.get(number, slice(0, 0))
        if isinstance(value, slice) and value.start < value.stop and stored == kind:
            count, rest = divmod(value.stop - value.start, _dtype(kind).itemsize)
            shape = _shape(name, dims, count if not rest else -1)
            return name, mapped.array(name, kind, count, value.start, value.stop).reshape(shape)
    listed = found.get(_LONGS if kind == "<i8" else _INTS, slice(0, 0))
    if kind in ("<i8", "<i4") and isinstance(listed, slice):
        numbers = _integers(data, listed)
        flat = np.array(numbers, "<u8").astype(kind)  # two's complement, as protobuf writes negative numbers
        flat.setflags(write=False)
        return name, flat.reshape(_shape(name, dims, len(numbers)))
    if math.prod(_shape(name, dims, 0)) == 0:
        return name, mapped.array(name, kind, 0, where.stop, where.stop).reshape(tuple(dims))
    raise _Unreadable(f"it stores {_plain(name)} in a way this reader does not know")


def _fields(data: mmap.mmap, where: slice) -> Iterator[tuple[int, int | slice]]:
    """The fields of a protobuf message: number, and an integer or where its bytes lie."""
    at = where.start
    while at < where.stop:
        tag, at = _varint(data, at, where.stop)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at, where.stop)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at, where.stop)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _Unreadable(f"it is damaged at byte {at}; get it again")
        if size > where.stop - at:
            raise _Unreadable(f"it is cut off: {size} bytes should follow byte {at}; get it again")
        yield number, slice(at, at + size)
        at += size


def _integers(data: mmap.mmap, where: slice) -> list[int]:
    if where.stop - where.start > _MAX_LISTED:
        raise _Unreadable("it stores a large tensor as a list of integers, which this reader does not know")
    numbers, at = [], where.start
    while at < where.stop:
        value, at = _varint(data, at, where.stop)
        numbers.append(value)
    return numbers


def _varint(data: mmap.mmap, at: int, stop: int) -> tuple[int, int]:
    """The base-128 number at a byte, and the byte after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            raise _Unreadable(f"it is cut off at byte {at}; get it again")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise _Unreadable(f"it is damaged at byte {at}; get it again")


_READERS: Mapping[str, Callable[[BinaryIO, _Mapped], dict[str, Array]]] = {
    "torch-zip": _read_torch_zip,
    "torch-legacy": _read_torch_legacy,
    "safetensors": _read_safetensors,
    "onnx": _read_onnx,
}
