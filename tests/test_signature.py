from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from leanface.errors import ModelError
from leanface.registry import ASSETS
from leanface.weights.signature import Shaped, Signature, read
from tests.drawn import codeformer_export, save

PICTURE = Shaped("float32", (1, 3, 512, 512))


def test_reads_what_onnx_reads() -> None:
    detector = read(ASSETS / "retinaface-mobilenet025.onnx")
    model = onnx.load(ASSETS / "retinaface-mobilenet025.onnx")
    assert list(detector.inputs) == [value.name for value in model.graph.input]
    assert list(detector.outputs) == [value.name for value in model.graph.output]
    lite = read(ASSETS / "lite.onnx")
    assert lite.inputs == {"input": Shaped("float32", (1, 3, "height", "width"))}
    assert str(lite) == "input float32 [1, 3, height, width] -> output float32 [1, 3, height, width]"


def test_types_and_lengths(tmp_path: Path) -> None:
    found = read(save(codeformer_export(), tmp_path / "c.onnx"))
    assert found.inputs == {"input": PICTURE, "weight": Shaped("float64", (1,))}
    assert found.outputs == {"y": PICTURE, "w": Shaped("float32", (1,))}


def test_weights_among_the_inputs_and_missing_shapes(tmp_path: Path) -> None:
    """As exporters wrote them before ONNX 1.4."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [None, 3])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT16, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    bias = numpy_helper.from_array(np.zeros(3, np.float16), "b")
    graph = helper.make_graph([helper.make_node("Add", ["x", "b"], ["y"])], "g", [x, b], [y], [bias])
    found = read(save(helper.make_model(graph), tmp_path / "old.onnx"))
    assert str(found) == "x float16 [any, 3] -> y float16 of any shape"


@pytest.mark.parametrize(
    ("inputs", "output", "serves"),
    [
        ({"input": PICTURE}, PICTURE, True),
        ({"input": Shaped("float32", (None, 3, "h", "w"))}, Shaped("float32", None), True),
        ({"input": Shaped("float16", PICTURE.shape)}, PICTURE, False),
        ({"input": Shaped("float32", (1, 3, 256, 256))}, PICTURE, False),
        ({"input": Shaped("float32", (1, 512, 512, 3))}, PICTURE, False),
        ({"input": PICTURE}, Shaped("float32", (1, 19, 512, 512)), False),
        ({"input": PICTURE}, Shaped("float32", (1, 3)), False),
        ({"x": PICTURE}, PICTURE, False),
        ({"input": PICTURE, "weight": Shaped("float64", (1,))}, PICTURE, False),
        ({}, PICTURE, False),
    ],
)
def test_serves(inputs: dict[str, Shaped], output: Shaped, serves: bool) -> None:
    needed = Signature({"input": PICTURE}, {"output": Shaped("float32", (1, 3, None, None))})
    assert Signature(inputs, {"any name": output}).serves(needed) is serves


def test_damaged_files_are_model_errors(tmp_path: Path) -> None:
    whole = codeformer_export().SerializeToString()
    path = tmp_path / "x.onnx"
    rng, seen = np.random.default_rng(1), 0
    for i in range(300):
        data = bytearray(whole[: int(rng.integers(1, len(whole)))] if i % 2 else whole)
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
        path.write_bytes(data)
        try:
            read(path)
        except ModelError as error:
            seen += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert seen > 100


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    with pytest.raises(ModelError, match=r"cannot read .*x\.onnx: No such file"):
        read(path)
    path.write_bytes(b"<html>")
    with pytest.raises(ModelError, match=r"x\.onnx is a web page \(HTML\); this model needs an \.onnx file"):
        read(path)
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ModelError, match=r"x\.onnx is a checkpoint; this model needs an \.onnx file"):
        read(path)
