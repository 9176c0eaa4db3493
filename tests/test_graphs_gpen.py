"""GPEN's graph against the published network, and against a plain form of itself."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import openvino as ov
import pytest

from leanface.graphs.builder import Compute
from leanface.graphs.gpen import Network, gpen
from tests import recipe

LIGHT = ("gpen-256", "gpen-512")
HEAVY = ("gpen-1024", "gpen-2048")


@functools.lru_cache(maxsize=len(LIGHT))
def drawn(variant: str) -> recipe.Weights:
    return recipe.gpen_weights(variant)


def openvino(model: onnx.ModelProto, picture: recipe.Array) -> recipe.Array:
    """Run in the precisions that the graph states."""
    core = ov.Core()
    graph = core.read_model(model.SerializeToString())
    output: recipe.Array = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        {"input": picture}
    )["output"]
    return output


def onnxruntime(model: onnx.ModelProto, picture: recipe.Array) -> recipe.Array:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    output: recipe.Array = session.run(None, {"input": picture})[0]
    return output


def model_size(model: onnx.ModelProto) -> int:
    size: int = model.graph.input[0].type.tensor_type.shape.dim[3].dim_value
    return size


def check(output: recipe.Array, variant: str, tolerance: float) -> None:
    """Compare with the figures of the published network: 4096 values, means of areas, channel statistics."""
    figures = recipe.golden("gpen", variant)
    size = int(variant.removeprefix("gpen-"))
    assert output.shape == (1, 3, size, size)
    assert np.abs(output.reshape(-1)[figures["index"]] - figures["value"]).max() <= tolerance
    area = output[0].reshape(3, 64, size // 64, 64, size // 64).mean((2, 4))
    assert np.abs(area - figures["area64"]).max() <= tolerance
    flat = output.reshape(3, -1)
    statistics = np.stack([flat.mean(1), flat.std(1), flat.min(1), flat.max(1)], axis=1)
    assert np.abs(statistics - figures["stats"]).max() <= tolerance


@pytest.mark.parametrize("variant", [*LIGHT, *(pytest.param(v, marks=pytest.mark.slow) for v in HEAVY)])
class TestGolden:
    @pytest.mark.parametrize(
        ("half", "compute", "tolerance"),
        [(False, "float32", 2e-4), (True, "float32", 3e-3), (True, "bfloat16", 4e-2)],
    )
    def test_on_openvino(self, variant: str, half: bool, compute: Compute, tolerance: float) -> None:
        model = gpen(drawn(variant), name=variant, half=half, compute=compute)
        check(openvino(model, recipe.gpen_picture(model_size(model))), variant, tolerance)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("half", "compute", "tolerance"), [(False, "float32", 2e-4), (True, "float16", 6e-3)]
    )
    def test_on_onnxruntime(self, variant: str, half: bool, compute: Compute, tolerance: float) -> None:
        model = gpen(drawn(variant), name=variant, half=half, compute=compute)
        check(onnxruntime(model, recipe.gpen_picture(model_size(model))), variant, tolerance)


def small() -> recipe.Weights:
    """A GPEN of 16 x 16 pixels, drawn; the strength of the encoder map is negative in every other layer."""
    channels, dim = (4, 6, 10), 12
    rng = np.random.default_rng(1)

    def draw(*shape: int) -> recipe.Array:
        return rng.standard_normal(shape, dtype=np.float32)

    weights = {"ecd0.0.0.weight": draw(4, 3, 1, 1), "ecd0.0.1.bias": draw(4)}
    for i in (1, 2):
        weights[f"ecd{i}.0.1.weight"] = draw(channels[i], channels[i - 1], 3, 3)
        weights[f"ecd{i}.0.2.bias"] = draw(channels[i])
    weights |= {"final_linear.0.weight": draw(dim, 160), "final_linear.0.bias": draw(dim)}
    for i in (1, 2):
        weights |= {
            f"generator.style.{i}.weight": 100 * draw(dim, dim),
            f"generator.style.{i}.bias": draw(dim),
        }
    weights["generator.input.input"] = draw(1, 10, 4, 4)
    layers = [
        ("conv1", 10, 10),
        ("convs.0", 6, 20),
        ("convs.1", 6, 12),
        ("convs.2", 4, 12),
        ("convs.3", 4, 8),
    ]
    colours = [("to_rgb1", 20), ("to_rgbs.0", 12), ("to_rgbs.1", 8)]
    for i, (key, outputs, inputs) in enumerate(layers):
        weights[f"generator.{key}.conv.weight"] = draw(1, outputs, inputs, 3, 3)
        weights[f"generator.{key}.noise.weight"] = np.array([0.7 * (-1) ** i], np.float32)
        weights[f"generator.{key}.activate.bias"] = draw(2 * outputs)
    for key, inputs in colours:
        weights[f"generator.{key}.conv.weight"] = draw(1, 3, inputs, 1, 1)
        weights[f"generator.{key}.bias"] = draw(1, 3, 1, 1)
    for key, inputs in [*((k, n) for k, _, n in layers), *colours]:
        weights[f"generator.{key}.conv.modulation.weight"] = draw(inputs, dim)
        weights[f"generator.{key}.conv.modulation.bias"] = 1 + draw(inputs)
    return weights


class Plain(Network):
    """All levels whole, the encoder map of level 0 multiplied like any other."""

    banded = 0

    def noise(self, key: str, level: int, first: int, last: int) -> str:
        strength = self._take(f"{key}.noise.weight", 1) * np.sqrt(np.float32(2))
        bias = self._biases(key, level)[1].reshape(-1, 1, 1)
        whole = self.maps[level] or self.full_map("ecd0.0", 1, 0, self.size)
        y = self.g.op("Mul", whole, self.g.weight(f"{key}.noise.weight", strength))
        return self.activation(self.g.op("Add", y, self.g.weight(f"{key}.bias.map", bias)))


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("band", [1, 2, 3, 4, 5, 7, 8, 16, 128])
def test_bands_and_maps_computed_anew_change_nothing(levels: int, band: int) -> None:
    class Banded(Network):
        pass

    Banded.banded, Banded.band = levels, band
    picture = np.random.default_rng(2).uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32)
    written = openvino(Banded(small(), name="small", half=False).write(), picture)
    plain = openvino(Plain(small(), name="small", half=False).write(), picture)
    np.testing.assert_allclose(written, plain, rtol=0, atol=2e-5)


def test_is_plain_onnx() -> None:
    model = gpen(small(), name="small", half=True, source="drawn")
    onnx.checker.check_model(model, full_check=True)
    assert {(o.domain, o.version) for o in model.opset_import} == {("", 17)}
    assert {p.key: p.value for p in model.metadata_props} == {"source": "drawn"}
    assert [t.name for t in (*model.graph.input, *model.graph.output)] == ["input", "output"]
    made = {name for node in model.graph.node for name in node.output}
    used = {name for node in model.graph.node for name in node.input}
    assert made - used == {"output"}
    assert {t.name for t in model.graph.initializer} <= used
    for compute in ("bfloat16", "float16"):
        onnx.checker.check_model(gpen(small(), name="small", half=True, compute=compute), full_check=True)


def test_half_files_are_half_as_large() -> None:
    weights = drawn("gpen-256")
    sizes = [gpen(weights, name="g", half=half).ByteSize() for half in (False, True)]
    assert sizes[1] < 0.56 * sizes[0]


@pytest.mark.parametrize(
    "key", ["ecd0.0.0.weight", "ecd2.0.2.bias", "final_linear.0.weight", "generator.style.1.weight",
            "generator.to_rgbs.1.conv.modulation.weight", "generator.convs.2.noise.weight"],
)  # fmt: skip
def test_a_missing_key_is_named(key: str) -> None:
    weights = small()
    del weights[key]
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        gpen(weights, name="small", half=False)


def test_an_odd_shape_is_named() -> None:
    weights = small()
    weights["generator.convs.1.conv.weight"] = weights["generator.convs.1.conv.weight"][0]
    with pytest.raises(
        ValueError, match=r"generator\.convs\.1\.conv\.weight is 6 x 12 x 3 x 3, not 1 x 6 x 12"
    ):
        gpen(weights, name="small", half=False)


def test_a_foreign_key_is_named_but_kernels_may_come_or_not() -> None:
    weights = small() | {"generator.to_rgbs.0.upsample.kernel": np.zeros((4, 4), np.float32)}
    gpen(weights, name="small", half=False)
    with pytest.raises(ValueError, match=r"body\.0\.weight does not belong to a GPEN of 16 x 16 pixels"):
        gpen(weights | {"body.0.weight": np.zeros(1, np.float32)}, name="small", half=False)
