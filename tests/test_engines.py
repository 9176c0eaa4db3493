from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from leanface.engine import device, pool
from leanface.engine.backends import onnxruntime, openvino
from leanface.engine.pool import Pool
from leanface.engine.session import Graph
from leanface.errors import DeviceError, EngineError, ModelError
from leanface.graphs.builder import GraphBuilder, save
from leanface.weights.formats import load

ALL = ("fp32", "bf16", "fp16")
X = np.random.default_rng(0).standard_normal((1, 3, 5, 7), dtype=np.float32)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Doubles each channel by a 1x1 convolution and adds 1, 2, 3."""
    g = GraphBuilder("double", half=False)
    x = g.input("input", [1, 3, "height", "width"])
    weight = g.weight("w", 2 * np.eye(3, dtype=np.float32)[..., None, None])
    g.output(g.conv(x, weight, g.weight("b", np.array([1, 2, 3], np.float32))), "output", [1, 3, "h", "w"])
    path = tmp_path_factory.mktemp("graph") / "double.onnx"
    onnx.save(g.model(), path)
    return Graph(path)


def expected(x: np.ndarray) -> np.ndarray:
    return 2 * x + np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1)


HERE = [name for engine in pool.ENGINES for name in engine.devices()]


@pytest.mark.parametrize("name", [d for d in HERE if d in ("cpu", "ort-cpu")])
def test_engines_compute(name: str, graph: Graph) -> None:
    with Pool() as engines:
        session = engines.session(graph, device=name, precision="fp32")
        assert engines.session(graph, device=name, precision="fp32") is session
        assert (session.device, session.precision) == (name, "fp32")
        first = session.run({"input": X})["output"]
        np.testing.assert_allclose(first, expected(X), rtol=1e-6)
        other = np.zeros((1, 3, 2, 2), np.float32)  # another shape, and the first result must stay
        np.testing.assert_allclose(session.run({"input": other})["output"], expected(other))
        np.testing.assert_allclose(first, expected(X), rtol=1e-6)
    with pytest.raises(EngineError, match="closed"):
        session.run({"input": X})


@pytest.mark.parametrize("name", [d for d in HERE if d in ("cpu", "ort-cpu")])
def test_a_wrong_input_is_an_engine_error(name: str, graph: Graph) -> None:
    with Pool() as engines, pytest.raises(EngineError, match="failed on"):
        engines.session(graph, device=name, precision="fp32").run({"input": X[:, :2]})


@pytest.mark.parametrize("name", [d for d in HERE if d in ("cpu", "ort-cpu")])
def test_a_file_that_is_no_graph(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"\x08\x08not a graph")
    with Pool() as engines, pytest.raises(ModelError, match=r"bad\.onnx.* cannot read it"):
        engines.session(Graph(path), device=name, precision="fp32")


@pytest.mark.parametrize("name", ["tpu", "cuda:7", "gpu", "npu", "coreml"])
def test_a_device_that_is_not_here_says_what_is(name: str) -> None:
    if name.partition(":")[0] in HERE:
        pytest.skip("this machine has one")
    with pytest.raises(DeviceError, match=rf"device {name} is not here.*there is .*cpu"):
        pool.resolve(name, "auto", ALL)


def test_a_precision_that_the_network_does_not_bear_is_refused() -> None:
    with pytest.raises(DeviceError, match="does not run in bf16 on cpu; it does in fp32"):
        pool.resolve("cpu", "bf16", ("fp32",))
    assert pool.resolve("cpu", "auto", ("fp32",)) == ("cpu", "fp32")
    fast = "bf16" if "bf16" in openvino.precisions("cpu") else "fp32"
    assert pool.resolve("cpu", "auto", ALL) == ("cpu", fast)


def test_onnx_runtime_computes_in_the_types_of_the_graph() -> None:
    choose = onnxruntime.choose_precision
    assert choose("cuda", "auto", ALL, typed=False) == "fp32"
    assert choose("cuda:1", "auto", ALL, typed=True) == "fp16"
    assert choose("cuda", "auto", ("fp32", "bf16"), typed=True) == "fp32"
    assert choose("ort-cpu", "auto", ALL, typed=True) == "fp32"
    assert choose("ort-cpu", "fp16", ALL, typed=True) == "fp16"
    with pytest.raises(DeviceError, match="runs this model in fp32, not in fp16"):
        choose("cuda", "fp16", ALL, typed=False)
    with pytest.raises(DeviceError, match="runs this model in fp16 or fp32, not in bf16"):
        choose("cuda", "bf16", ALL, typed=True)


def test_auto_takes_the_processor_unless_a_card_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "devices", lambda: ("ort-cpu",))
    assert pool.choose_device() == "cpu"
    monkeypatch.setattr(onnxruntime, "devices", lambda: ("directml", "cuda", "ort-cpu"))
    assert pool.choose_device() == "cuda"


def test_openvino_always_offers_the_processor() -> None:
    assert "cpu" in openvino.devices()


def test_memory_figures() -> None:
    before = device.resident_bytes()
    block = np.ones(80_000_000, np.uint8)
    assert device.resident_bytes() - before > 60_000_000
    resident = device.resident_bytes()
    assert device.peak_bytes() >= resident > 0
    assert block[-1] == 1
    assert device.cores() >= 1


def test_memory_is_the_cards_where_the_driver_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = f"17, 900\n{os.getpid()}, 850\n{os.getpid()}, 42\n"
    answer = subprocess.CompletedProcess([], 0, stdout=rows)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert pool.memory_in_use("cuda:0") == ("GPU", 892 << 20)
    assert pool.memory_in_use("directml")[0] == "CPU"
    where, held = pool.memory_in_use("cpu")
    assert where == "CPU" and held > 10_000_000


def test_no_driver_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert onnxruntime.card_bytes("cuda") == 0


def test_compiled_graphs_are_kept_and_old_ones_dropped(graph: Graph, tmp_path: Path) -> None:
    kept = Graph(graph.path, compiled=tmp_path / "compiled")
    folder = tmp_path / "compiled" / "cpu-fp32"

    def run() -> set[Path]:
        with Pool() as engines:
            session = engines.session(kept, device="cpu", precision="fp32")
            np.testing.assert_allclose(session.run({"input": X})["output"], expected(X), rtol=1e-6)
        return set(folder.iterdir())

    (blob,) = run()
    written = blob.stat().st_mtime_ns
    assert run() == {blob} and blob.stat().st_mtime_ns == written
    other = folder / "0.blob"
    other.write_bytes(b"of another version")
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:1000])  # cut off by a full disk
    assert run() == {blob} and blob.stat().st_size > 1000


def test_a_cache_that_cannot_be_written_is_no_error(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with Pool() as engines:
        session = engines.session(
            Graph(graph.path, compiled=tmp_path / "file" / "x"), device="cpu", precision="fp32"
        )
        np.testing.assert_allclose(session.run({"input": X})["output"], expected(X), rtol=1e-6)


def test_results_belong_to_the_caller(tmp_path: Path) -> None:
    """Also of a graph of fixed shapes, whose results are not copied."""
    g = GraphBuilder("fixed", half=False)
    x = g.input("input", [1, 2])
    g.output(g.op("Add", x, x), "output", [1, 2])
    onnx.save(g.model(), tmp_path / "fixed.onnx")
    with Pool() as engines:
        session = engines.session(Graph(tmp_path / "fixed.onnx"), device="cpu", precision="fp32")
        first = session.run({"input": np.array([[1, 2]], np.float32)})["output"]
        second = session.run({"input": np.array([[30, 40]], np.float32)})["output"]
    assert (first.tolist(), second.tolist()) == ([[2, 4]], [[60, 80]])


def test_keep_only_frees_the_others(graph: Graph) -> None:
    other = Graph(graph.path, compiled=graph.path.parent / "another")
    with Pool() as engines:
        first = engines.session(graph, device="cpu", precision="fp32")
        engines.keep_only(other)
        with pytest.raises(EngineError, match="closed"):
            first.run({"input": X})
        second = engines.session(other, device="cpu", precision="fp32")
        engines.keep_only(other)
        assert engines.session(other, device="cpu", precision="fp32") is second


def test_a_saved_model_is_read_as_if_it_were_in_one_piece(tmp_path: Path) -> None:
    g = GraphBuilder("parts", half=True)
    x = g.input("input", [1, 3, 4, 4])
    for i in range(3):
        x = g.conv(x, g.weight(f"w{i}", np.full((3, 3, 1, 1), 0.5 + i, np.float32)))
    g.output(x, "output", [1, 3, 4, 4])
    model = g.model(licence="none")
    save(model, tmp_path / "parts.onnx")
    again = onnx.load(tmp_path / "parts.onnx")
    onnx.checker.check_model(again, full_check=True)
    assert again == model
    arrays = load(tmp_path / "parts.onnx")
    assert {name: float(array.mean()) for name, array in arrays.items()} == {"w0": 0.5, "w1": 1.5, "w2": 2.5}
