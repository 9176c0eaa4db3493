"""The readers of weights, against files that a small writer here makes the way torch does."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from leanface.errors import ModelError
from leanface.weights.formats import load

Array = NDArray[Any]

# ---- a writer of torch files, one pickle instruction at a time -------------------------------------------


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def sequence(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def call(function: bytes, *args: bytes) -> bytes:
    return function + sequence(*args) + b"R"


def mapping(items: Mapping[str, bytes]) -> bytes:
    pairs = b"".join(text(key) + value for key, value in items.items())
    return call(name("collections", "OrderedDict")) + b"(" + pairs + b"u"


def storage(kind: str, key: str, count: int) -> bytes:
    return sequence(text("storage"), name("torch", kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(store: bytes, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bytes:
    return call(
        name("torch._utils", "_rebuild_tensor_v2"),
        store,
        number(offset),
        sequence(*map(number, shape)),
        sequence(*map(number, strides)),
        b"\x89",
        call(name("collections", "OrderedDict")),
    )


def parameter(value: bytes) -> bytes:
    return call(name("torch._utils", "_rebuild_parameter"), value, b"\x88", mapping({}))


KINDS = {
    "f8": "DoubleStorage",
    "f4": "FloatStorage",
    "f2": "HalfStorage",
    "i8": "LongStorage",
    "i4": "IntStorage",
    "i2": "ShortStorage",
    "i1": "CharStorage",
    "u1": "ByteStorage",
    "b1": "BoolStorage",
}


@dataclass(frozen=True)
class Raw:
    kind: str
    count: int
    data: bytes


def of(array: Array) -> Raw:
    return Raw(KINDS[array.dtype.str[1:]], array.size, array.tobytes())


def plain(array: Array, key: str) -> bytes:
    strides = tuple(
        step // array.itemsize for step in np.ascontiguousarray(array).reshape(array.shape).strides
    )
    return tensor(storage(of(array).kind, key, array.size), array.shape, strides)


def write_zip(path: Path, body: bytes, storages: Mapping[str, Raw], **extra: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("archive/byteorder", extra.get("byteorder", b"little"))
        for key, raw in storages.items():
            archive.writestr(f"archive/data/{key}", raw.data)
        archive.writestr("archive/version", b"3\n")
    return path


def write_legacy(path: Path, body: bytes, storages: Mapping[str, Raw], **_: bytes) -> Path:
    with path.open("wb") as file:
        for value in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}):
            pickle.dump(value, file, protocol=2)
        file.write(b"\x80\x02" + body + b".")
        pickle.dump(sorted(storages), file, protocol=2)
        for _key, raw in sorted(storages.items()):
            file.write(struct.pack("<q", raw.count) + raw.data)
    return path


Writer = Callable[..., Path]
both = pytest.mark.parametrize("write", [write_zip, write_legacy])


def values(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


A, B = values(1, 3, 4, 2), values(2, 5)
TWO = {"a": plain(A, "0"), "b": plain(B, "1")}
STORED = {"0": of(A), "1": of(B)}


def refused(path: Path) -> str:
    """The one line that a file is refused with, without its name."""
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith((f"{path}: ", f"{path} ")) or f" {path}: " in message
    assert "\n" not in message
    assert message.isprintable()
    return message.replace(str(path), "FILE")


# ---- torch -------------------------------------------------------------------------------------------------


@both
def test_tensors_come_back_as_read_only_views(tmp_path: Path, write: Writer) -> None:
    got = load(write(tmp_path / "x.pth", mapping(TWO), STORED))
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"], A)
    np.testing.assert_array_equal(got["b"], B)
    assert got["a"].dtype == np.float32
    assert not got["a"].flags.writeable
    assert not got["a"].flags.owndata


@both
@pytest.mark.parametrize("kind", KINDS)
def test_every_type(tmp_path: Path, write: Writer, kind: str) -> None:
    array = (values(3, 2, 3) * 50).astype(kind)
    got = load(write(tmp_path / "x.pt", mapping({"x": plain(array, "0")}), {"0": of(array)}))["x"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


@both
def test_bfloat16_becomes_float32(tmp_path: Path, write: Writer) -> None:
    bits = (values(4, 6).view(np.uint32) >> 16).astype("<u2")
    stored = {"0": Raw("BFloat16Storage", 6, bits.tobytes())}
    view = tensor(storage("BFloat16Storage", "0", 6), (2, 2), (1, 3), 1)
    got = load(write(tmp_path / "x.pth", mapping({"x": view}), stored))["x"]
    whole = (bits.astype(np.uint32) << 16).view(np.float32)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, whole[[[1, 4], [2, 5]]])
    assert not got.flags.writeable


@both
def test_strides_offsets_and_shared_storages(tmp_path: Path, write: Writer) -> None:
    flat = values(5, 24)
    whole = storage("FloatStorage", "0", 24)
    body = mapping(
        {
            "all": tensor(whole, (2, 3, 4), (12, 4, 1)),
            "turned": tensor(whole, (4, 3, 2), (1, 4, 12)),
            "row": tensor(whole, (4,), (1,), 20),
            "scalar": tensor(whole, (), (), 7),
            "empty": tensor(storage("FloatStorage", "1", 0), (0, 3), (3, 1)),
        }
    )
    got = load(write(tmp_path / "x.pth", body, {"0": of(flat), "1": Raw("FloatStorage", 0, b"")}))
    np.testing.assert_array_equal(got["all"], flat.reshape(2, 3, 4))
    np.testing.assert_array_equal(got["turned"], flat.reshape(2, 3, 4).transpose(2, 1, 0))
    np.testing.assert_array_equal(got["row"], flat[20:])
    assert got["scalar"].shape == ()
    assert got["scalar"] == flat[7]
    assert got["empty"].shape == (0, 3)


@both
@pytest.mark.parametrize("key", ["g_ema", "params_ema", "params", "state_dict"])
def test_wrapped(tmp_path: Path, write: Writer, key: str) -> None:
    body = mapping({"epoch": number(300), key: mapping(TWO), "note": text("x"), "lr": b"G" + bytes(8)})
    got = load(write(tmp_path / "x.pth", body, STORED))
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"], A)


@both
def test_averaged_weights_are_preferred_and_wrappers_nest(tmp_path: Path, write: Writer) -> None:
    body = mapping(
        {"params": mapping({"b": TWO["b"]}), "params_ema": mapping({"params": mapping({"a": TWO["a"]})})}
    )
    assert list(load(write(tmp_path / "x.pth", body, STORED))) == ["a"]


@both
def test_module_prefix_and_parameters(tmp_path: Path, write: Writer) -> None:
    body = mapping({"module.a": parameter(TWO["a"]), "module.b": TWO["b"]})
    got = load(write(tmp_path / "x.pth", body, STORED))
    assert list(got) == ["a", "b"]
    np.testing.assert_array_equal(got["a"], A)
    mixed = mapping({"module.a": TWO["a"], "b": TWO["b"]})
    assert list(load(write(tmp_path / "y.pth", mixed, STORED))) == ["module.a", "b"]


@both
def test_attributes_of_the_dictionary_are_passed_over(tmp_path: Path, write: Writer) -> None:
    metadata = b"}(" + text("_metadata") + mapping({"": b"}" + text("version") + number(1) + b"s"}) + b"ub"
    assert list(load(write(tmp_path / "x.pth", mapping(TWO) + metadata, STORED))) == ["a", "b"]


@both
def test_memo_and_older_forms(tmp_path: Path, write: Writer) -> None:
    rebuild = name("torch._utils", "_rebuild_tensor")
    old = (
        rebuild
        + b"q\x01"
        + sequence(storage("FloatStorage", "1", 5), number(1), number(4) + b"\x85", number(1) + b"\x85")
    )
    again = (
        b"h\x01"
        + sequence(storage("FloatStorage", "1", 5), number(0), sequence(number(2)), sequence(number(2)))
        + b"R"
    )
    pairs = b"](" + sequence(text("x"), old + b"R") + sequence(text("y"), again) + b"e"
    got = load(write(tmp_path / "x.pth", call(name("collections", "OrderedDict"), pairs), {"1": of(B)}))
    np.testing.assert_array_equal(got["x"], B[1:])
    np.testing.assert_array_equal(got["y"], B[:4:2])


# ---- hostile pickles ---------------------------------------------------------------------------------------


class Runs:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def touch(path: Path) -> str:
    return f"open({str(path)!r}, 'w').close()"


@both
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("function", "shown"), [(os.system, f"{os.system.__module__}.system"), (eval, "eval"), (exec, "exec")]
)
def test_nothing_is_run(tmp_path: Path, write: Writer, protocol: int, function: Any, shown: str) -> None:
    mark = tmp_path / "was-here"
    code = f"touch {mark}" if function is os.system else touch(mark)
    body = pickle.dumps({"a": Runs(function, code)}, protocol)
    message = refused(write(tmp_path / "x.pth", body[2:-1], {}))
    assert "its pickle asks for " in message
    assert f"{shown}; weights never need that: refused, nothing was run" in message
    assert not mark.exists()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        # A name kept in the memo for later, and one glued together out of texts.
        (name("os", "system") + b"q\x05h\x05" + sequence(text("x")) + b"R", "os.system"),
        (text("builtins") + b"q\x00" + text("eval") + b"q\x01h\x00h\x01\x93", "builtins.eval"),
        # Known first halves, unknown second ones, and ways around a dot.
        (name("torch._utils", "_import_dotted_name"), "torch._utils._import_dotted_name"),
        (call(name("torch.storage", "_load_from_bytes"), b"C\x01x"), "torch.storage._load_from_bytes"),
        (name("torch", "load"), "torch.load"),
        (name("torch._utils", "_rebuild_tensor_v2.__globals__"), "__globals__"),
        (name("collections", "OrderedDict.__init__"), "OrderedDict.__init__"),
        (name("functools", "partial") + b")R", "functools.partial"),
        (name("torch.nn.modules.container", "Sequential") + b")\x81}b", "torch.nn.modules.container"),
        # Other instructions that could make or call objects.
        (b"(" + text("x") + b"ios\nsystem\n", "INST os system"),
        (b"\x82\x01", "EXT1"),
        (b"Ppersistent\n", "PERSID persistent"),
        (name("collections", "OrderedDict") + b")\x81", "NEWOBJ"),
        (b"(" + name("collections", "OrderedDict") + b"o", "OBJ"),
        (b"\x8f", "EMPTY_SET"),
        (b"\x96" + struct.pack("<Q", 1 << 40), "cut off"),
        # Known names, called with something else than what they take.
        (call(name("collections", "OrderedDict"), number(1)), "collections.OrderedDict in an unknown way"),
        (call(name("torch._utils", "_rebuild_parameter"), number(1)), "_rebuild_parameter in an unknown way"),
        (call(name("torch", "FloatStorage"), number(1)), "torch.FloatStorage in an unknown way"),
        (call(text("os.system"), text("x")), "calls something that is not a function"),
        (name("collections", "OrderedDict") + b"}" + text("a") + b"Nsb", "sets the state of an object"),
        (name("collections", "OrderedDict") + text("a") + number(1) + b"s", "sets items of something"),
        (text("a") + number(1) + b"a", "appends to something"),
        (sequence(text("module"), name("torch", "FloatStorage")) + b"Q", "refers to a storage in an unknown"),
        (b"})" + b"\x85" * 100_000 + b"Ns", "a key that is neither text nor a small number"),
        (b"}" + number((1 << 61) - 1) + b"Ns", "a key that is neither text nor a small number"),
        # Texts that would break a line or the terminal.
        (text("evil\n\x1b[2J") + text("x" * 500) + b"\x93", "evil\\n\\x1b[2J.xxx"),
    ],
)  # fmt: skip
@both
def test_hostile_pickles(tmp_path: Path, write: Writer, body: bytes, shown: str) -> None:
    message = refused(write(tmp_path / "x.pth", body, {}))
    assert shown in message
    assert len(message) < 300


def test_a_pickle_cannot_claim_memory(tmp_path: Path) -> None:
    huge = struct.pack("<Q", 1 << 60)
    for body in (
        b"\x8d" + huge,
        b"\x8e" + huge,
        b"\x95" + huge,
        b"\x8b\xff\xff\xff\x7f",
        b"N" + b"r\xff\xff\xff\xff",
    ):
        refused(write_zip(tmp_path / "x.pth", body, {}))
    assert "far longer" in refused(write_zip(tmp_path / "y.pth", b"N" * 500_001, {}))


def test_a_plain_pickle_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(pickle.dumps({"a": 1}, 2))
    assert "it is a pickle but not one that torch.save wrote" in refused(path)
    path.write_bytes(pickle.dumps(Runs(os.system, "true"), 4))
    assert "system" in refused(path)


# ---- counts, offsets and sizes that lie --------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "view",
    [
        tensor(storage("FloatStorage", "0", 4), (5,), (1,)),
        tensor(storage("FloatStorage", "0", 4), (4,), (1,), 1),
        tensor(storage("FloatStorage", "0", 4), (2,), (4,)),
        tensor(storage("FloatStorage", "0", 4), (2, 2), (1 << 60, 1)),
        tensor(storage("FloatStorage", "0", 4), (1 << 40,), (0,)),
        tensor(storage("FloatStorage", "0", 4), (2,), (-1,), 1),
        tensor(storage("FloatStorage", "0", 4), (2,), (1,), -1),
        tensor(storage("FloatStorage", "0", 4), (-2,), (1,)),
        tensor(storage("FloatStorage", "0", 4), (2, 2), (1,)),
        tensor(storage("FloatStorage", "0", 4), (1,) * 40, (1,) * 40),
        tensor(storage("FloatStorage", "0", 1 << 50), (1,), (1,)),
        tensor(storage("FloatStorage", "0", -1), (1,), (1,)),
        tensor(storage("DoubleStorage", "0", 4), (1,), (1,)),
        tensor(storage("FloatStorage", "9", 4), (1,), (1,)),
    ],
)
def test_tensors_outside_their_storage(tmp_path: Path, write: Writer, view: bytes) -> None:
    refused(write(tmp_path / "x.pth", mapping({"x": view}), {"0": of(values(6, 4))}))


def test_one_storage_has_one_description(tmp_path: Path) -> None:
    body = mapping({"x": plain(B, "0"), "y": tensor(storage("IntStorage", "0", 5), (5,), (1,))})
    assert "two descriptions of storage 0" in refused(write_zip(tmp_path / "x.pth", body, {"0": of(B)}))


def test_overlapping_entries_cannot_multiply(tmp_path: Path) -> None:
    """Records that all point at one storage would decode into many times the size of the file."""
    bits = np.ones(10_000, "<u2")
    keys = [str(n) for n in range(50)]
    path = write_zip(
        tmp_path / "x.pth",
        mapping({key: tensor(storage("BFloat16Storage", key, 10_000), (10_000,), (1,)) for key in keys}),
        {key: Raw("BFloat16Storage", 10_000, bits.tobytes() if key == "0" else b"") for key in keys},
    )
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("archive/data/0")
    at = raw.index(b"PK\x01\x02")
    while raw[at : at + 4] == b"PK\x01\x02":
        size = 46 + sum(struct.unpack_from("<3H", raw, at + 28))
        if b"archive/data/" in raw[at : at + size]:
            struct.pack_into("<2I", raw, at + 20, first.file_size, first.file_size)
            struct.pack_into("<I", raw, at + 42, first.header_offset)
        at += size
    path.write_bytes(raw)
    assert "overlaps other tensors" in refused(path)


# ---- containers --------------------------------------------------------------------------------------------


def test_zip_archives_that_are_not_torch_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "it is a zip archive (with readme.txt) but not one that torch.save wrote" in refused(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
    assert "packed again with compression" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/constants.pkl", b"\x80\x02).")
    assert "TorchScript" in refused(path)
    assert "big-endian" in refused(write_zip(path, mapping(TWO), STORED, byteorder=b"big"))
    assert "entry data/1 is missing" in refused(write_zip(path, mapping(TWO), {"0": of(A)}))


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (TWO["a"], "it holds one tensor, not a dictionary of tensors"),
        (number(5), "it holds one int"),
        (mapping({}), "holds no tensors"),
        (mapping({"model": mapping(TWO)}), "it holds no tensors, only model; expected a state dict"),
    ],
)
@both
def test_files_without_a_dictionary_of_tensors(
    tmp_path: Path, write: Writer, body: bytes, shown: str
) -> None:
    assert shown in refused(write(tmp_path / "x.pth", body, {}))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "an empty file"),
        (b"<!DOCTYPE html><html><body>404", "a web page (HTML)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "a PNG picture"),
        (bytes(5000), "nothing but zero bytes"),
        (b"P", "a text file"),
    ],
)
def test_what_it_is_instead(tmp_path: Path, content: bytes, shown: str) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(content)
    assert f"FILE is {shown}" in refused(path)
    assert "expected weights in a .pth, .pt, .safetensors or .onnx file" in refused(path)


def test_no_such_file(tmp_path: Path) -> None:
    assert "cannot read the weights FILE: No such file" in refused(tmp_path / "nowhere.pth")
    assert "FILE is not a file" in refused(tmp_path)


# ---- safetensors -------------------------------------------------------------------------------------------


def write_safetensors(path: Path, header: Mapping[str, Any], data: bytes) -> Path:
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def entry(kind: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


def test_safetensors(tmp_path: Path) -> None:
    bits = (B.view(np.uint32) >> 16).astype("<u2")
    data = A.tobytes() + bits.tobytes() + b"\x01\x00"
    header = {
        "__metadata__": {"format": "pt"},
        "module.a": entry("F32", [3, 4, 2], 0, 96),
        "module.b": entry("BF16", [5], 96, 106),
        "module.c": entry("BOOL", [2], 106, 108),
        "module.d": entry("F16", [0, 2], 108, 108),
    }
    got = load(write_safetensors(tmp_path / "x.safetensors", header, data))
    assert list(got) == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(got["a"], A)
    np.testing.assert_array_equal(got["b"], (bits.astype(np.uint32) << 16).view(np.float32))
    assert got["b"].dtype == np.float32
    assert got["c"].tolist() == [True, False]
    assert got["d"].shape == (0, 2)
    assert not got["a"].flags.writeable


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        ({"a": entry("F32", [4], 0, 12)}, "does not fit its 3 elements"),
        ({"a": entry("F32", [3], 0, 13)}, "the shape of a does not fit"),
        ({"a": entry("F32", [4], 0, 1 << 40)}, "the shape of a does not fit"),
        ({"a": entry("F32", [1 << 38], 0, 1 << 40)}, "it is cut off"),
        ({"a": entry("F32", [-4], -16, 0)}, "impossible offsets"),
        ({"a": entry("F32", [4], 16, 0)}, "impossible offsets"),
        ({"a": entry("F8_E4M3", [16], 0, 16)}, "of type F8_E4M3, which this reader does not know"),
        ({"a": entry("F32", [2], 0, 8)}, "bytes where its header describes"),
        ({str(n): entry("BF16", [8], 0, 16) for n in range(99)}, "bytes where its header describes"),
        ({"a": [1, 2]}, "damaged or cut off"),
        ({"a": {"dtype": "F32"}}, "damaged or cut off"),
    ],
)
def test_wrong_safetensors(tmp_path: Path, header: dict[str, Any], shown: str) -> None:
    assert shown in refused(write_safetensors(tmp_path / "x.safetensors", header, bytes(16)))


def test_a_deep_header_is_no_crash(tmp_path: Path) -> None:
    head = b"{" + b'"a":[' * 100_000
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    assert "damaged or cut off" in refused(path)


# ---- ONNX --------------------------------------------------------------------------------------------------


def write_onnx(path: Path, *tensors: onnx.TensorProto) -> Path:
    helper = onnx.helper
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = helper.make_node("Constant", [], ["y"], value_float=1.0)
    graph = helper.make_graph([node], "g", [], [out], initializer=tensors)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_onnx_initializers(tmp_path: Path) -> None:
    make, kinds = onnx.helper.make_tensor, onnx.TensorProto
    bits = (B.view(np.uint32) >> 16).astype("<u2")
    got = load(
        write_onnx(
            tmp_path / "x.onnx",
            onnx.numpy_helper.from_array(A, "a"),
            onnx.numpy_helper.from_array(B.astype(np.float16), "half"),
            make("bf", kinds.BFLOAT16, [5], bits.tobytes(), raw=True),
            make("listed", kinds.FLOAT, [5], B),
            make("doubles", kinds.DOUBLE, [1, 2], [1.5, -2.0]),
            make("shape", kinds.INT64, [3], [1, -1, 1 << 40]),
            make("ints", kinds.INT32, [2], [-7, 7]),
            make("scalar", kinds.INT64, [], [3]),
            make("empty", kinds.FLOAT, [0], []),
        )
    )
    assert list(got) == ["a", "half", "bf", "listed", "doubles", "shape", "ints", "scalar", "empty"]
    np.testing.assert_array_equal(got["a"], A)
    np.testing.assert_array_equal(got["half"], B.astype(np.float16))
    assert got["half"].dtype == np.float16
    np.testing.assert_array_equal(got["bf"], (bits.astype(np.uint32) << 16).view(np.float32))
    np.testing.assert_array_equal(got["listed"], B)
    assert got["doubles"].tolist() == [[1.5, -2.0]]
    assert got["shape"].tolist() == [1, -1, 1 << 40]
    assert got["ints"].tolist() == [-7, 7]
    assert got["ints"].dtype == np.int32
    assert got["scalar"] == 3
    assert got["empty"].shape == (0,)
    assert not got["a"].flags.owndata
    assert not any(array.flags.writeable for array in got.values())


def test_onnx_with_data_elsewhere(tmp_path: Path) -> None:
    proto = onnx.numpy_helper.from_array(A, "a")
    onnx.external_data_helper.set_external_data(proto, "../../etc/passwd")
    proto.ClearField("raw_data")
    message = refused(write_onnx(tmp_path / "x.onnx", proto))
    assert "it keeps a in another file; expected an .onnx file that is whole by itself" in message


def test_onnx_that_lies(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    for dims in ([25], [1 << 40], [-24], [2] * 20):
        proto = onnx.numpy_helper.from_array(A, "a")
        del proto.dims[:]
        proto.dims.extend(dims)
        assert "shape" in refused(write_onnx(path, proto))
    proto = onnx.numpy_helper.from_array(A, "a")
    proto.data_type = onnx.TensorProto.COMPLEX64
    assert "of ONNX type 14, which this reader does not know" in refused(write_onnx(path, proto))
    assert "holds no tensors" in refused(write_onnx(path))


# ---- damage ------------------------------------------------------------------------------------------------


def sample(tmp_path: Path, kind: str) -> bytes:
    path = tmp_path / f"whole.{kind}"
    if kind == "zip":
        write_zip(path, mapping(TWO), STORED)
    elif kind == "legacy":
        write_legacy(path, mapping(TWO), STORED)
    elif kind == "safetensors":
        write_safetensors(
            path,
            {"a": entry("F32", [3, 4, 2], 0, 96), "b": entry("F32", [5], 96, 116)},
            A.tobytes() + B.tobytes(),
        )
    else:
        write_onnx(path, onnx.numpy_helper.from_array(A, "a"), onnx.helper.make_tensor("b", 1, [5], B))
    assert list(load(path)) == ["a", "b"]
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors", "onnx"])
def test_cut_off_anywhere(tmp_path: Path, kind: str) -> None:
    whole = sample(tmp_path, kind)
    path = tmp_path / "cut"
    for length in {*range(0, len(whole), 3), *range(len(whole) - 40, len(whole))}:
        path.write_bytes(whole[:length])
        refused(path)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors", "onnx"])
def test_damaged_anywhere(tmp_path: Path, kind: str) -> None:
    """Changed bytes give other numbers or a ModelError, never anything else."""
    whole = sample(tmp_path, kind)
    draw, path = random.Random(20), tmp_path / "damaged"
    for _ in range(300):
        raw = bytearray(whole)
        for _ in range(draw.choice((1, 1, 4))):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        path.write_bytes(raw)
        try:
            with np.errstate(all="ignore"):
                assert sum(array.nbytes for array in load(path).values()) <= 2 * len(raw)
        except ModelError as error:
            assert "\n" not in str(error)


def test_the_file_may_have_any_name(tmp_path: Path) -> None:
    got = load(write_zip(tmp_path / "weights.bin", mapping(TWO), STORED))
    np.testing.assert_array_equal(got["b"], B)
    buffer = io.BytesIO()
    np.save(buffer, A)
    (tmp_path / "x.pth").write_bytes(buffer.getvalue())
    assert "a NumPy array" in refused(tmp_path / "x.pth")
