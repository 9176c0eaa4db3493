"""GFPGAN's graph against the formulas of its paper and its published layers, written plainly in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import openvino as ov
import pytest
from numpy.typing import NDArray

from leanface.graphs.builder import Compute
from leanface.graphs.gfpgan import gfpgan
from tests.drawn import Weights, gfpgan_of

Array = NDArray[np.float64]
CHANNELS, DIM, SIZE = [4, 6, 8, 10], 12, 32
WEIGHTS = gfpgan_of(CHANNELS, DIM)
PICTURE = np.random.default_rng(9).uniform(-1, 1, (1, 3, SIZE, SIZE)).astype(np.float32)


class Reference:
    """Maps are [channels, height, width]."""

    def __init__(self, weights: Weights) -> None:
        self.w: dict[str, Array] = {key: value.astype(np.float64) for key, value in weights.items()}

    def __call__(self, x: Array) -> Array:
        deepest = len(CHANNELS) - 1
        x = lrelu(self.conv(x, "conv_body_first"))
        skips = []
        for i in range(deepest):
            x = self.block(x, f"conv_body_down.{i}", halved)
            skips.append(x)
        x = lrelu(self.conv(x, "final_conv"))
        latents = (self.w["final_linear.weight"] @ x.ravel() + self.w["final_linear.bias"]).reshape(-1, DIM)
        conditions = []
        for i in range(deepest):
            x = self.block(x + skips[-1 - i], f"conv_body_up.{i}", doubled)
            for kind in ("scale", "shift"):
                y = lrelu(self.conv(x, f"condition_{kind}.{i}.0"))
                conditions.append(self.conv(y, f"condition_{kind}.{i}.2"))
        y = self.styled(self.w["stylegan_decoder.constant_input.weight"][0], "style_conv1", latents[0], 0)
        rgb = self.coloured(y, "to_rgb1", latents[1])
        for i in range(deepest):
            y = self.styled(doubled(y), f"style_convs.{2 * i}", latents[2 * i + 1], 2 * i + 1)
            half = len(y) // 2
            y[half:] = y[half:] * conditions[2 * i] + conditions[2 * i + 1]
            y = self.styled(y, f"style_convs.{2 * i + 1}", latents[2 * i + 2], 2 * i + 2)
            rgb = doubled(rgb) + self.coloured(y, f"to_rgbs.{i}", latents[2 * i + 3])
        return rgb

    def conv(self, x: Array, key: str) -> Array:
        bias = self.w[f"{key}.bias"] if f"{key}.bias" in self.w else np.zeros(1)
        return convolved(x, self.w[f"{key}.weight"]) + bias[:, None, None]

    def block(self, x: Array, key: str, resample: Callable[[Array], Array]) -> Array:
        y = lrelu(self.conv(resample(lrelu(self.conv(x, f"{key}.conv1"))), f"{key}.conv2"))
        return y + self.conv(resample(x), f"{key}.skip")

    def modulated(self, x: Array, key: str, latent: Array, demodulate: bool) -> Array:
        key = f"stylegan_decoder.{key}.modulated_conv"
        style = self.w[f"{key}.modulation.weight"] @ latent + self.w[f"{key}.modulation.bias"]
        weight = self.w[f"{key}.weight"][0] * style[:, None, None]
        if demodulate:
            weight = weight / np.sqrt(np.square(weight).sum((1, 2, 3), keepdims=True) + 1e-8)
        return convolved(x, weight)

    def styled(self, x: Array, key: str, latent: Array, noise: int) -> Array:
        y = self.modulated(x, key, latent, True) * np.sqrt(2)
        strength, bias = self.w[f"stylegan_decoder.{key}.weight"], self.w[f"stylegan_decoder.{key}.bias"]
        return lrelu(y + strength * self.w[f"stylegan_decoder.noises.noise{noise}"][0] + bias[0])

    def coloured(self, x: Array, key: str, latent: Array) -> Array:
        bias: Array = self.w[f"stylegan_decoder.{key}.bias"][0]
        return self.modulated(x, key, latent, False) + bias


def lrelu(x: Array) -> Array:
    return np.where(x < 0, 0.2 * x, x)


def convolved(x: Array, weight: Array) -> Array:
    """Odd kernels, zeros around."""
    k = weight.shape[-1]
    padded = np.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))
    y: Array = np.einsum("ihwab,oiab->ohw", windows, weight)
    return y


def halved(x: Array) -> Array:
    return resampled(x, 0.5)


def doubled(x: Array) -> Array:
    return resampled(x, 2)


def resampled(x: Array, factor: float) -> Array:
    """Bilinear, by the distance of centres, the border repeated."""
    for axis in (1, 2):
        n = x.shape[axis]
        place = np.clip((np.arange(int(n * factor)) + 0.5) / factor - 0.5, 0, n - 1)
        low = np.floor(place).astype(int)
        part = (place - low).reshape([-1 if a == axis else 1 for a in range(3)])
        x = x.take(low, axis) * (1 - part) + x.take(np.minimum(low + 1, n - 1), axis) * part
    return x


EXPECTED = Reference(WEIGHTS)(PICTURE[0].astype(np.float64))


def openvino(model: onnx.ModelProto) -> NDArray[np.float32]:
    core = ov.Core()
    graph = core.read_model(model.SerializeToString())
    compiled = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    output: NDArray[np.float32] = compiled({"input": PICTURE})["output"]
    return output


@pytest.mark.parametrize(
    ("half", "compute", "tolerance"),
    [(False, "float32", 2e-6), (True, "float32", 2e-3), (True, "bfloat16", 5e-2)],
)
def test_computes_what_the_formulas_say(half: bool, compute: Compute, tolerance: float) -> None:
    output = openvino(gfpgan(WEIGHTS, name="small", half=half, compute=compute))
    assert output.shape == (1, 3, SIZE, SIZE)
    assert np.abs(EXPECTED).max() > 1
    assert np.abs(output[0] - EXPECTED).max() <= tolerance * np.abs(EXPECTED).max()


def test_on_onnxruntime() -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = gfpgan(WEIGHTS, name="small", half=False)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    output = session.run(None, {"input": PICTURE})[0]
    assert np.abs(output[0] - EXPECTED).max() <= 2e-6 * np.abs(EXPECTED).max()


def test_is_plain_onnx() -> None:
    model = gfpgan(WEIGHTS, name="small", half=True, source="drawn")
    onnx.checker.check_model(model, full_check=True)
    assert {p.key: p.value for p in model.metadata_props} == {"source": "drawn"}
    assert [t.name for t in (*model.graph.input, *model.graph.output)] == ["input", "output"]
    made = {name for node in model.graph.node for name in node.output}
    used = {name for node in model.graph.node for name in node.input}
    assert made - used == {"output"}
    assert {t.name for t in model.graph.initializer} <= used
    onnx.checker.check_model(gfpgan(WEIGHTS, name="small", half=True, compute="bfloat16"), full_check=True)


def test_without_stored_noise_there_is_none() -> None:
    silent = {key: value for key, value in WEIGHTS.items() if ".noises." not in key}
    zero = {key: value * np.float32(".noises." not in key) for key, value in WEIGHTS.items()}
    expected = Reference(zero)(PICTURE[0].astype(np.float64))
    output = openvino(gfpgan(silent, name="small", half=False))
    assert np.abs(output[0] - expected).max() <= 2e-6 * np.abs(expected).max()
    assert np.abs(expected - EXPECTED).max() > 0.1


@pytest.mark.parametrize(
    "key", ["conv_body_first.weight", "conv_body_down.1.skip.weight", "final_linear.bias",
            "condition_shift.0.2.bias", "stylegan_decoder.style_convs.3.weight",
            "stylegan_decoder.to_rgbs.1.modulated_conv.modulation.weight"],
)  # fmt: skip
def test_a_missing_key_is_named(key: str) -> None:
    weights = {k: v for k, v in WEIGHTS.items() if k != key}
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        gfpgan(weights, name="small", half=False)


def test_odd_shapes_and_foreign_keys_are_named() -> None:
    odd = WEIGHTS | {"final_linear.bias": np.zeros(7, np.float32)}
    with pytest.raises(ValueError, match=r"final_linear\.bias is 7, not 96"):
        gfpgan(odd, name="small", half=False)
    with pytest.raises(ValueError, match=r"body\.0\.weight does not belong to a GFPGAN"):
        gfpgan(WEIGHTS | {"body.0.weight": np.zeros(1, np.float32)}, name="small", half=False)
