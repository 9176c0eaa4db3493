"""The engine that runs graphs node by node: reading, order and errors without PyTorch, the rest with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from leanface.engine import pool
from leanface.engine.backends import torch as backend
from leanface.engine.backends.torch.counting import counting
from leanface.engine.backends.torch.executor import Executor
from leanface.engine.backends.torch.onnx_file import File, Node, _values, read
from leanface.engine.backends.torch.onnx_operators import operators
from leanface.engine.backends.torch.order import fused, last_uses, late
from leanface.engine.pool import Pool
from leanface.engine.session import Graph, Tensors
from leanface.errors import DeviceError, EngineError, ModelError, OutOfMemoryError
from leanface.graphs.builder import Compute, GraphBuilder, save
from leanface.graphs.gpen import Network
from leanface.registry import ASSETS
from tests import recipe
from tests.test_graphs_gpen import Plain, small

ALL = ("fp32", "bf16", "fp16")
RNG = np.random.default_rng(3)


def draw(*shape: int) -> recipe.Array:
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


# ---- without PyTorch ---------------------------------------------------------------------------------------


def test_it_is_loaded_only_when_chosen(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom leanface.engine import pool\nfrom leanface.errors import DeviceError\n"
        "assert pool.resolve('cpu', 'fp32', ('fp32',)) == ('cpu', 'fp32')\n"
        "assert pool.memory_in_use('cpu')[0] == 'CPU' and pool.choose_device() != 'torch-cpu'\n"
        "try:\n    pool.resolve('npu', 'auto', ('fp32',))\nexcept DeviceError:\n    pass\n"
        "from leanface import Restorer\n"
        "assert 'torch' not in sys.modules, 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_it_there_is_no_such_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert backend.devices() == ()
    with pytest.raises(DeviceError, match="torch-cuda is not here; it needs a build of PyTorch"):
        pool.resolve("torch-cuda", "auto", ALL)


def test_precisions() -> None:
    choose = backend.choose_precision
    assert choose("torch-cuda:1", "auto", ALL, typed=True) == "fp16"
    assert choose("torch-cuda", "auto", ("fp32", "bf16"), typed=True) == "bf16"
    assert choose("torch-mps", "auto", ("fp32", "bf16"), typed=True) == "fp32"
    assert choose("torch-cpu", "auto", ALL, typed=True) == "fp32"
    assert choose("torch-cpu", "bf16", ALL, typed=False) == "bf16"
    with pytest.raises(DeviceError, match="does not run in fp16 on torch-cuda; it does in bf16, fp32"):
        choose("torch-cuda", "fp16", ("fp32", "bf16"), typed=True)


@pytest.mark.parametrize("path", sorted(ASSETS.glob("*.onnx")), ids=lambda path: path.stem)
def test_a_graph_is_read_as_the_onnx_library_reads_it(path: Path) -> None:
    file, graph = read(path), onnx.load(path).graph
    plain = [node for node in graph.node if node.op_type != "Constant"]
    assert [(n.operator, n.inputs, n.outputs) for n in file.nodes] == [
        (n.op_type, tuple(n.input), tuple(n.output)) for n in plain
    ]
    for node, expected in zip(file.nodes, plain, strict=True):
        named = {a.name: helper.get_attribute_value(a) for a in expected.attribute}
        as_text = {k: v.decode() if isinstance(v, bytes) else v for k, v in named.items()}
        assert node.attributes == as_text
    for tensor in graph.initializer:
        stored = file.weights[tensor.name]
        assert stored.shape == tuple(tensor.dims)
        assert file.data[stored.where] == tensor.raw_data
    assert file.outputs == tuple(value.name for value in graph.output)
    assert {node.operator for node in file.nodes} <= operators()


def test_weights_in_every_way_that_onnx_stores_them(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([3, -4])))
    number = helper.make_node("Constant", [], ["f"], value_float=0.5)
    graph = helper.make_graph(
        [constant, number, helper.make_node("Identity", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [
            helper.make_tensor("floats", TensorProto.FLOAT, [2], [1.5, -2]),
            helper.make_tensor("longs", TensorProto.INT64, [2], [5, -(2**40)]),
            helper.make_tensor("empty", TensorProto.FLOAT, [0], []),
        ],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "g.onnx")
    file = read(tmp_path / "g.onnx")
    found = {name: _values(file.data, stored).tolist() for name, stored in file.weights.items()}
    assert found == {"c": [3, -4], "f": 0.5, "floats": [1.5, -2], "longs": [5, -(2**40)], "empty": []}


@pytest.mark.parametrize("content", [b"\x08\x08not a graph", b"", b"PK\x03\x04"])
def test_a_file_that_is_no_graph(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        read(tmp_path / "bad.onnx")


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Node:
    return Node(operator, tuple(inputs.split()), (output,), attributes)


def test_what_is_large_and_made_of_little_waits_until_it_is_used() -> None:
    nodes = [
        node("MatMul", "latent w", "style"),
        node("Mul", "w style", "kernel"),  # 100 times as large as the style
        node("Reshape", "kernel shape", "kernel4"),
        node("Relu", "x", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b kernel4", "c"),
        node("Relu", "c", "y"),
    ]
    sizes = {"latent": 10, "x": 500, "style": 10, "kernel": 1000, "kernel4": 1000}
    sizes |= dict.fromkeys("abcy", 500)
    order = [n.outputs[0] for n in late(nodes, sizes, frozenset("y"))]
    assert order == ["style", "a", "b", "kernel", "kernel4", "c", "y"]


def test_bands_stay_in_the_order_of_the_file() -> None:
    nodes = [
        *(node(op, inputs, out) for i in "123" for op, inputs, out in [
            ("Slice", "x", f"s{i}"), ("Conv", f"s{i} w", f"t{i}"), ("Relu", f"t{i}", f"u{i}"),
        ]),
        node("Concat", "u1 u2 u3", "y"),
    ]  # fmt: skip
    sizes = {"x": 90, "y": 90} | {f"{name}{i}": 30 for name in "stu" for i in "123"}
    assert late(nodes, sizes, frozenset("y")) == nodes


def test_every_tensor_is_freed_at_its_last_use() -> None:
    nodes = [
        Node("Split", ("x",), ("a", "unused")), node("Add", "a a", "b"), node("Add", "b x", "c"),
        node("Conv", "c w ", "y"),
    ]  # fmt: skip
    assert last_uses(nodes, ["y"]) == [("unused",), ("a",), ("b", "x"), ("c", "w")]


def test_pairs_that_are_run_in_pieces() -> None:
    nodes = [
        node("Cast", "m", "wide", to=1), node("MatMul", "wide v", "p"), node("Conv", "x w b", "first"),
        node("Conv", "z w", "second", pads=[1, 1, 1, 1]), node("Add", "first second", "sum"),
        node("Conv", "sum w", "twice"), node("Add", "twice sum", "y"), node("Add", "twice y", "out"),
    ]  # fmt: skip
    assert fused(nodes, ["out"]) == [
        node("CastMatMul", "m v", "p", to=1), nodes[2],
        node("ConvAdd", "first z w", "sum", pads=[1, 1, 1, 1]), *nodes[5:],
    ]  # fmt: skip
    assert fused(nodes[3:5], ["second", "sum"]) == nodes[3:5]  # a result that is an output stays


# ---- operators against ONNX's reference --------------------------------------------------------------------

Case = tuple[str, Mapping[str, Any], Sequence[Any]]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


ELEMENTWISE: list[Case] = [
    (operator, {}, operands)
    for operator in ("Add", "Sub", "Mul", "Div")
    for operands in (
        (draw(1, 4, 5, 6), draw(1, 4, 5, 6)), (draw(1, 4, 5, 6), draw(4, 1, 1)), (draw(3, 1), draw(1, 7)),
        (floats(2.5), draw(2, 3)), (ints(7, -8), ints(2, 3)), (np.float32(2), draw(4)),
    )
]  # fmt: skip
UNARY: list[Case] = [
    *((operator, {}, (draw(2, 3, 4),)) for operator in ("Neg", "Sigmoid", "Tanh", "Relu", "Identity")),
    *((operator, {}, (np.abs(draw(2, 5)) + 0.1,)) for operator in ("Sqrt", "Reciprocal")),
    ("LeakyRelu", {"alpha": 0.2}, (draw(1, 3, 4, 5),)),
    ("LeakyRelu", {}, (draw(7),)),
    ("PRelu", {}, (draw(1, 3, 4, 5), draw(3, 1, 1))),
    ("PRelu", {}, (draw(2, 3), draw(1))),
    ("Clip", {}, (draw(3, 4), np.float32(-0.5), np.float32(0.5))),
    ("Clip", {}, (draw(3, 4), "", np.float32(0.5))),
    ("Clip", {}, (draw(3, 4),)),
    ("Softmax", {"axis": 2}, (draw(2, 3, 4),)),
    ("Softmax", {}, (draw(2, 3),)),
    ("Cast", {"to": TensorProto.FLOAT16}, (draw(3, 4),)),
    ("Cast", {"to": TensorProto.INT64}, (10 * draw(3, 4),)),
    ("Cast", {"to": TensorProto.FLOAT}, (ints(3, 4),)),
]
CONVOLUTIONS: list[Case] = [
    ("Conv", {}, (draw(1, 3, 6, 7), draw(4, 3, 1, 1))),
    ("Conv", {"pads": [1, 1, 1, 1]}, (draw(2, 3, 6, 7), draw(4, 3, 3, 3), draw(4))),
    ("Conv", {"pads": [1, 1, 0, 1]}, (draw(1, 3, 6, 7), draw(4, 3, 3, 3), draw(4))),
    ("Conv", {"pads": [0, 1, 1, 2]}, (draw(1, 3, 6, 7), draw(4, 3, 3, 3))),
    ("Conv", {"pads": [0, 0, 2, 1], "strides": [2, 2]}, (draw(1, 3, 7, 8), draw(4, 3, 3, 3))),
    ("Conv", {"pads": [2, 1, 1, 0], "strides": [2, 3]}, (draw(1, 3, 9, 8), draw(4, 3, 3, 2))),
    ("Conv", {"strides": [4, 4], "kernel_shape": [4, 4]}, (draw(1, 3, 8, 8), draw(5, 3, 4, 4))),
    ("Conv", {"group": 4, "pads": [2, 2, 0, 2]}, (draw(1, 4, 6, 7), draw(4, 1, 4, 4), draw(4))),
    ("Conv", {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]}, (draw(1, 4, 6, 7), draw(6, 2, 3, 3))),
    ("ConvTranspose", {"strides": [2, 2]}, (draw(1, 4, 3, 5), draw(4, 2, 3, 3))),
    ("ConvTranspose", {"strides": [2, 2], "pads": [2, 0, 1, 0]}, (draw(1, 4, 5, 5), draw(4, 2, 3, 3))),
    ("ConvTranspose", {"strides": [2, 2], "pads": [0, 1, 3, 1]},
     (draw(1, 4, 5, 5), draw(4, 2, 3, 3), draw(2))),
    ("ConvTranspose", {"strides": [2, 2], "pads": [1] * 4, "group": 3}, (draw(1, 3, 5, 4), draw(3, 1, 4, 4))),
    ("ConvTranspose", {"strides": [3, 2], "output_padding": [1, 1]}, (draw(1, 2, 4, 3), draw(2, 3, 2, 2))),
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, (draw(1, 3, 6, 8),)),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, (draw(1, 3, 6, 8),)),
    ("MatMul", {}, (draw(5, 4), draw(4, 1))),
    ("MatMul", {}, (draw(2, 3, 4), draw(4, 5))),
    ("Gemm", {"alpha": 0.5, "beta": 2.0, "transB": 1}, (draw(3, 4), draw(5, 4), draw(5))),
    ("Gemm", {"transA": 1}, (draw(4, 3), draw(4, 5))),
    ("ReduceMean", {"axes": [1], "keepdims": 1}, (draw(2, 3, 4),)),
    ("ReduceMean", {"axes": [-1, 0], "keepdims": 0}, (draw(2, 3, 4),)),
    ("ReduceMean", {}, (draw(2, 3),)),
]  # fmt: skip
PLACES: list[Case] = [
    ("Reshape", {}, (draw(2, 3, 4), ints(0, -1))),
    ("Reshape", {}, (draw(2, 3, 4, 1), ints(4, 6))),
    ("Expand", {}, (draw(3, 1), ints(2, 1, 5))),
    ("Expand", {}, (draw(3, 4), ints(1, 1))),
    ("Unsqueeze", {}, (draw(3, 4), ints(0, -1))),
    ("Transpose", {"perm": [0, 2, 3, 1]}, (draw(1, 3, 4, 5),)),
    ("Transpose", {}, (draw(2, 3, 4),)),
    ("Concat", {"axis": 1}, (draw(1, 3, 4, 5), draw(1, 2, 4, 5), draw(1, 1, 4, 5))),
    ("Concat", {"axis": -1}, (ints(1, 2), ints(3))),
    ("Slice", {}, (draw(1, 3, 8, 5), ints(2), ints(6), ints(2))),
    ("Slice", {}, (draw(4, 5), ints(-3, 1), ints(2**40, -1))),
    ("Slice", {}, (draw(9, 5), ints(1), ints(8), ints(0), ints(3))),
    ("Slice", {}, (draw(4, 5), ints(3), ints(1), ints(1))),
    ("Gather", {"axis": 2}, (draw(2, 3, 4), ints(2, 0))),
    ("Gather", {"axis": 0}, (ints(5, 6, 7), np.array(1))),
    ("Gather", {}, (draw(4, 2), np.array([[0, -1], [2, 1]]))),
    ("Shape", {}, (draw(2, 3, 4),)),
    ("Shape", {"start": 1}, (draw(2, 3, 4),)),
    ("DepthToSpace", {"blocksize": 2, "mode": "DCR"}, (draw(1, 8, 3, 4),)),
    ("DepthToSpace", {"blocksize": 4, "mode": "CRD"}, (draw(1, 48, 3, 4),)),
    ("SpaceToDepth", {"blocksize": 2}, (draw(1, 3, 6, 4),)),
    *(
        ("Resize", {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
         (draw(1, 3, 4, 5), "", *size))
        for size in ((floats(1, 1, 2, 2),), (floats(1, 1, 3, 1),), ("", ints(1, 3, 8, 10)))
    ),
    ("Resize", {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
     (draw(1, 3, 4, 5), "", floats(1, 1, 2, 2))),
]  # fmt: skip


def graph_of(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A graph of one node; floating-point operands that no node may want as constants are inputs."""
    operator, attributes, operands = case
    names = [f"x{i}" if not isinstance(value, str) else "" for i, value in enumerate(operands)]
    arrays = {name: np.asarray(value) for name, value in zip(names, operands, strict=True) if name}
    constants = {
        name for i, (name, array) in enumerate(arrays.items())
        if array.dtype != np.float32 or (operator in ("Resize", "Clip") and i)
    }  # fmt: skip
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], **attributes)], "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, arrays[name].shape)
         for name in arrays if name not in constants],
        [output], [numpy_helper.from_array(arrays[name], name) for name in arrays if name in constants],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {name: array for name, array in arrays.items() if name not in constants}


def name_of(case: Case) -> str:
    return f"{case[0]}-{len(case[2])}"


@pytest.mark.parametrize("case", [*ELEMENTWISE, *UNARY, *CONVOLUTIONS, *PLACES], ids=name_of)
def test_operators(case: Case, torch: Any, tmp_path: Path) -> None:
    reference = pytest.importorskip("onnx.reference")
    model, inputs = graph_of(case)
    onnx.save(model, tmp_path / "g.onnx")
    (expected,) = reference.ReferenceEvaluator(model).run(None, inputs)
    before = {name: array.copy() for name, array in inputs.items()}
    for lean in (True, False):
        executor = Executor(read(tmp_path / "g.onnx"), "cpu", lean=lean)
        found = executor.run(inputs)["y"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])


def test_every_operator_has_a_case() -> None:
    assert {case[0] for case in (*ELEMENTWISE, *UNARY, *CONVOLUTIONS, *PLACES)} == operators()


@pytest.mark.parametrize(
    "case",
    [
        ("Resize", {"mode": "cubic"}, (draw(1, 3, 4, 5), "", floats(1, 1, 2, 2))),
        ("Resize", {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
         (draw(1, 3, 4, 5), "", floats(1, 1, 1.5, 2))),
        ("Conv", {"auto_pad": "SAME_UPPER"}, (draw(1, 3, 4, 5), draw(3, 3, 3, 3))),
        ("ConvTranspose", {"output_shape": [9, 9]}, (draw(1, 3, 4, 4), draw(3, 3, 3, 3))),
        ("AveragePool", {"kernel_shape": [2, 2], "pads": [1, 0, 0, 0]}, (draw(1, 3, 4, 5),)),
        ("Slice", {}, (draw(4, 5), ints(3), ints(0), ints(1), ints(-1))),
    ],
    ids=name_of,
)  # fmt: skip
def test_what_an_operator_does_not_do_is_refused(case: Case, torch: Any, tmp_path: Path) -> None:
    model, _ = graph_of(case)
    onnx.save(model, tmp_path / "g.onnx")
    with Pool() as engines, pytest.raises(ModelError, match="is not known here"):
        engines.session(Graph(tmp_path / "g.onnx"), device="torch-cpu", precision="fp32")


def test_unknown_operators_are_named(torch: Any, tmp_path: Path) -> None:
    model, _ = graph_of(("Erf", {}, (draw(3),)))
    model.graph.node.append(helper.make_node("Mine", ["y"], ["z"], domain="own"))
    onnx.save(model, tmp_path / "g.onnx")
    with (
        Pool() as engines,
        pytest.raises(ModelError, match=r"g\.onnx: Erf, own\.Mine cannot be run on torch"),
    ):
        engines.session(Graph(tmp_path / "g.onnx"), device="torch-cpu", precision="fp32")


# ---- sessions ----------------------------------------------------------------------------------------------


def written(network: Network, folder: Path) -> Path:
    save(network.write(), folder / "g.onnx")
    return folder / "g.onnx"


def test_a_session(torch: Any, tmp_path: Path) -> None:
    path = written(Network(small(), name="small", half=False), tmp_path)
    picture = RNG.uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)
    with Pool(threads=1) as engines:
        session = engines.session(Graph(path), device="torch-cpu", precision="fp32")
        assert (session.device, session.precision) == ("torch-cpu", "fp32")
        first = session.run({"input": picture})["output"]
        assert first.dtype == np.float32
        kept = first.copy()
        session.run({"input": -picture})
        np.testing.assert_array_equal(first, kept)
        np.testing.assert_array_equal(session.run({"input": picture})["output"], first)
        with pytest.raises(EngineError, match="failed on torch-cpu"):
            session.run({"input": picture[:, :2]})
    with pytest.raises(EngineError, match="closed"):
        session.run({"input": picture})
    assert pool.memory_in_use("torch-cpu")[0] == "CPU"


@pytest.mark.parametrize(("compute", "tolerance"), [("bfloat16", 0.2), ("float16", 0.02)])
def test_typed_graphs(compute: Compute, tolerance: float, torch: Any, tmp_path: Path) -> None:
    path = written(Network(small(), name="small", half=True, compute=compute), tmp_path)
    (tmp_path / "exact").mkdir()
    exact = written(Network(small(), name="small", half=False), tmp_path / "exact")
    picture = RNG.uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)
    found, expected = (Executor(read(p), "cpu").run({"input": picture})["output"] for p in (path, exact))
    assert np.abs(found - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("band", [1, 3, 5, 16])
def test_bands_change_nothing(levels: int, band: int, torch: Any, tmp_path: Path) -> None:
    network = Network(small(), name="small", half=False)
    network.banded, network.band = levels, band
    picture = RNG.uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)
    found = Executor(read(written(network, tmp_path)), "cpu").run({"input": picture})["output"]
    plain = read(written(Plain(small(), name="small", half=False), tmp_path))
    expected = Executor(plain, "cpu", lean=False).run({"input": picture})["output"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.fixture(scope="module")
def without_bands(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> recipe.Array:
    """The golden picture of gpen-256, computed in one piece."""
    network = Network(recipe.gpen_weights("gpen-256"), name="gpen", half=False)
    network.banded = 0
    file = read(written(network, tmp_path_factory.mktemp("whole")))
    output: recipe.Array = Executor(file, "cpu").run({"input": recipe.gpen_picture(256)})["output"]
    return output


@pytest.mark.parametrize("band", [16, 32, 33, 64, 256])
def test_bands_of_gpen_256(band: int, without_bands: recipe.Array, tmp_path: Path) -> None:
    network = Network(recipe.gpen_weights("gpen-256"), name="gpen", half=False)
    network.band = band
    file = read(written(network, tmp_path))
    output = Executor(file, "cpu").run({"input": recipe.gpen_picture(256)})["output"]
    assert np.abs(output - without_bands).max() <= 1e-5
    figures = recipe.golden("gpen", "gpen-256")
    assert np.abs(output.reshape(-1)[figures["index"]] - figures["value"]).max() <= 2e-5


@pytest.mark.parametrize(
    ("name", "size"), [("lite", 64), ("realesrgan-x4plus", 16), ("retinaface-mobilenet025", 64)]
)
def test_shipped_graphs_give_what_openvino_gives(name: str, size: int, torch: Any) -> None:
    graph = Graph(ASSETS / f"{name}.onnx")
    picture: Tensors = {"input": RNG.uniform(0, 1, (1, 3, size, size)).astype(np.float32)}
    if "retinaface" in name:
        picture = {"input": RNG.integers(0, 256, (1, size, size, 3), np.uint8)}
    with Pool() as engines:
        found, expected = (
            engines.session(graph, device=device, precision="fp32").run(picture)
            for device in ("torch-cpu", "cpu")
        )
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=1e-3)
        for precision in ("bf16", "fp16") if "output" in found else ():
            half = engines.session(graph, device="torch-cpu", precision=precision).run(picture)["output"]
            assert half.dtype == np.float32
            assert np.abs(half - expected["output"]).max() < 0.15


# ---- counting ----------------------------------------------------------------------------------------------


def chain(folder: Path, steps: Sequence[str]) -> File:
    """A map [1, 4, 32, 32] through some operators, one after the other; a Conv has 4 x 4 x 1 x 1 weights."""
    g = GraphBuilder("chain", half=False)
    x = g.input("input", [1, 4, 32, 32])
    for i, step in enumerate(steps):
        operands = [g.weight(f"w{i}", draw(4, 4, 1, 1))] if step == "Conv" else []
        x = g.op(step, x, *operands)
    g.output(x, "output", [1, 4, 32, 32])
    onnx.save(g.model(), folder / "chain.onnx")
    return read(folder / "chain.onnx")


@pytest.mark.parametrize(
    ("steps", "lean", "maps"),
    [
        (["Conv", "Conv", "Conv"], True, 2),  # what goes in and what comes out
        (["Conv", "Relu", "LeakyRelu", "Neg", "Sqrt", "Conv", "Sigmoid"], True, 2),
        (["Relu", "LeakyRelu", "Neg"], True, 1),  # in place
        (["Relu", "LeakyRelu", "Neg"], False, 2),
        (["Neg", "Identity", "Neg"], True, 1),  # a view
    ],
)
def test_a_chain_takes_what_arithmetic_says(
    steps: list[str], lean: bool, maps: int, torch: Any, tmp_path: Path
) -> None:
    file, one = chain(tmp_path, steps), 4 * 32 * 32 * 4
    weights = 4 * 4 * 4 * steps.count("Conv")
    executor = Executor(file, "cpu", lean=lean)
    plan = executor.plan({"input": (1, 4, 32, 32)})
    assert sum(executor.weights.values()) == weights
    assert plan.whole == maps * one + weights
    assert plan.least == maps * one + min(weights, 64)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_what_is_planned_is_what_a_run_takes(
    keep: bool, compute: Compute, torch: Any, tmp_path: Path
) -> None:
    network = Network(recipe.gpen_weights("gpen-256"), name="gpen", half=True, compute=compute)
    file = read(written(network, tmp_path))
    picture = recipe.gpen_picture(256)
    plan = Executor(file, "cpu").plan({"input": picture.shape})
    with counting("cpu") as count:
        executor = Executor(file, "cpu")
        executor.keep(executor.weights if keep else ())
        executor.run({"input": picture})
        del executor
    wanted = plan.whole if keep else plan.least
    assert wanted <= count.peak <= 1.01 * wanted + 100_000  # lengths and places lie on the processor here
    assert count.now < 100_000  # everything is freed


def test_counting_sees_views_once_and_frees(torch: Any) -> None:
    with counting("cpu") as count:
        x = torch.zeros(1000)
        y = x.view(10, 100)[2:4].T
        assert (count.now, count.peak) == (4000, 4000)
        z = y + 1
        assert count.now == 4800
        del x
        assert count.now == 4800  # a view holds it
        del y, z
        assert count.now == 0
    assert count.peak == 4800


LIMITS = {"gpen-256": 55, "gpen-512": 215, "gpen-1024": 275, "gpen-2048": 410}


@pytest.mark.parametrize(
    "variant", ["gpen-256", "gpen-512", *(pytest.param(v, marks=pytest.mark.slow) for v in list(LIMITS)[2:])]
)
def test_video_memory(variant: str, torch: Any, tmp_path: Path) -> None:
    """Weights and activations in 16 bits, in MB."""
    size = int(variant.removeprefix("gpen-"))
    weights = {
        key: np.broadcast_to(np.float32(0.1), shape)
        for key, shape, _ in recipe.shapes("gpen", variant)["keys"]
    }
    file = read(written(Network(weights, name="gpen", half=True, compute="float16"), tmp_path))
    plan = Executor(file, "cpu").plan({"input": (1, 3, size, size)})
    assert plan.whole < LIMITS[variant] * 1e6
    assert plan.least < 120e6 or size > 1024


def test_a_limit_is_kept_by_bringing_weights_as_they_are_needed(torch: Any, tmp_path: Path) -> None:
    path = written(
        Network(recipe.gpen_weights("gpen-256"), name="g", half=True, compute="bfloat16"), tmp_path
    )
    picture = {"input": recipe.gpen_picture(256)}
    graph, limit = Graph(path, typed=True), 25_000_000
    with Pool() as engines:
        expected = engines.session(graph, device="torch-cpu", precision="bf16").run(picture)["output"]
    with counting("cpu") as count, Pool(limit=limit) as engines:
        session = engines.session(graph, device="torch-cpu", precision="bf16")
        np.testing.assert_array_equal(session.run(picture)["output"], expected)
    assert 0.8 * limit < count.peak <= limit + 100_000
    with Pool(limit=5_000_000) as engines, pytest.raises(
        OutOfMemoryError, match=r"not enough memory on torch-cpu in bf16 \(it needs \d+MB at least, .* 5MB\)"
    ):  # fmt: skip
        engines.session(graph, device="torch-cpu", precision="bf16")


def test_out_of_memory_tries_with_fewer_weights(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(Network(small(), name="small", half=False), tmp_path)
    picture = {"input": RNG.uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)}
    run: Callable[..., Any] = Executor.run
    fails = [2, 3]

    def scarce(self: Executor, inputs: Any) -> Any:
        if len(self.kept) > fails[0]:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return run(self, inputs)

    monkeypatch.setattr(Executor, "run", scarce)
    with Pool() as engines:
        session = engines.session(Graph(path), device="torch-cpu", precision="fp32")
        session.run(picture)
        fails[0] = -1
        with pytest.raises(OutOfMemoryError):
            session.run(picture)


# ---- float16 -----------------------------------------------------------------------------------------------


class Watched(Executor):
    """Notes the largest value of every tensor; nothing is run in pieces or in place."""

    def __init__(self, path: Path) -> None:
        super().__init__(read(path), "cpu", lean=False)
        self.largest: dict[str, tuple[float, str]] = {}

    def _step(self, node: Node, dying: tuple[str, ...], values: dict[str, Any], *rest: Any) -> None:
        super()._step(node, (), values, *rest)
        made = values[node.outputs[0]]
        if made.is_floating_point() and not made.is_meta:
            self.largest[node.outputs[0]] = float(made.abs().max()), node.operator
        for name in dying:
            values.pop(name, None)


@pytest.mark.parametrize(
    "name", ["gpen-256", "lite", pytest.param("gpen-512", marks=pytest.mark.slow), "realesrgan-x4plus"]
)
def test_float16_has_room(name: str, torch: Any, tmp_path: Path) -> None:
    """Every tensor stays a hundred times below the largest float16; ``pytest -s`` prints what they reach."""
    if name.startswith("gpen"):
        path = written(Network(recipe.gpen_weights(name), name=name, half=True), tmp_path)
        picture = recipe.gpen_picture(int(name.removeprefix("gpen-")))
    else:
        path = ASSETS / f"{name}.onnx"
        side = 256 if name == "lite" else 32
        picture = recipe.sr_picture(side, side)
    executor = Watched(path)
    executor.run({"input": picture})
    print(f"\n{name}")
    for tensor, (value, operator) in sorted(executor.largest.items(), key=lambda item: -item[1][0]):
        print(f"{value:12.4g}  {65504 / (value or 1):10.0f} times below  {operator} {tensor}")
    assert max(value for value, _ in executor.largest.values()) < 65504 / 100
