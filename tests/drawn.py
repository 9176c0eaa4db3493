"""Weights drawn at random for every published model, in the shapes of its files, so that none is downloaded.

Networks are drawn narrow, which makes them quick; ``full`` draws them in their published widths, which costs
what the published ones cost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.recipe import gpen_weights, sr_weights
from tests.test_weights_formats import mapping, of, plain, write_zip

Array = NDArray[np.float32]
Weights = dict[str, Array]


def weights_file(model: str, folder: Path, *, full: bool = False) -> Path | None:
    """A file of drawn weights as the model's authors publish theirs; None where no recipe is known."""
    if model in _EXPORTS:
        return save(_EXPORTS[model](), folder / f"{model}.onnx")
    recipe = _CHECKPOINTS.get(model.split("-")[0] if model.startswith("gpen-") else model)
    return checkpoint(recipe(model, full), folder / f"{model}.pth") if recipe else None


def checkpoint(weights: Weights, path: Path) -> Path:
    """The file that torch would save, under the key ``params_ema``."""
    body = mapping({key: plain(array, str(i)) for i, (key, array) in enumerate(weights.items())})
    return write_zip(path, body, {str(i): of(array) for i, array in enumerate(weights.values())})


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


# ---- GPEN and Real-ESRGAN ----------------------------------------------------------------------------------


def gpen(model: str, full: bool = False) -> Weights:
    """The published shapes, or of 4 channels at every resolution; the colourizing one is as its size."""
    model = model.replace("colorize-", "")
    if full:
        return {key: np.asarray(value, np.float32) for key, value in gpen_weights(model).items()}
    n, dim, levels = 4, 8, int(model.removeprefix("gpen-")).bit_length() - 2
    draw = _Draw(1)
    draw.conv("ecd0.0.0", n, 3, 1, bias="ecd0.0.1.bias")
    for i in range(1, levels):
        draw.conv(f"ecd{i}.0.1", n, n, 3, bias=f"ecd{i}.0.2.bias")
    draw.linear("final_linear.0", dim, 16 * n)
    for i in range(1, 9):
        draw.linear(f"generator.style.{i}", dim, dim, scale=100)
    draw("generator.input.input", 1, n, 4, 4)
    layers = [("conv1", n), *((f"convs.{i}", 2 * n) for i in range(2 * levels - 2))]
    for key, inputs in layers:
        draw(f"generator.{key}.conv.weight", 1, n, inputs, 3, 3)
        draw(f"generator.{key}.noise.weight", 1)
        draw(f"generator.{key}.activate.bias", 2 * n)
        draw.linear(f"generator.{key}.conv.modulation", inputs, dim, offset=1)
    for key in ("to_rgb1", *(f"to_rgbs.{i}" for i in range(levels - 1))):
        draw(f"generator.{key}.conv.weight", 1, 3, 2 * n, 1, 1, scale=0.3)
        draw(f"generator.{key}.bias", 1, 3, 1, 1)
        draw.linear(f"generator.{key}.conv.modulation", 2 * n, dim, offset=1)
    return draw.weights


def realesrgan(model: str, full: bool = False) -> Weights:
    """RRDBNet in the published shapes, or of 8 features and 2 blocks."""
    if full:
        return sr_weights(model)
    n, growth, draw = 8, 4, _Draw(2)
    draw.conv("conv_first", n, 12 if "x2" in model else 3, 3)
    for i in range(2):
        for j in (1, 2, 3):
            for k in range(1, 6):
                draw.conv(f"body.{i}.rdb{j}.conv{k}", growth if k < 5 else n, n + (k - 1) * growth, 3)
    for key in ("conv_body", "conv_up1", "conv_up2", "conv_hr"):
        draw.conv(key, n, n, 3)
    draw.conv("conv_last", 3, n, 3)
    return draw.weights


def compact(model: str, full: bool = False) -> Weights:
    """SRVGGNetCompact in the published shapes, or of 8 features and 2 convolutions."""
    if full:
        return sr_weights(model)
    n, draw = 8, _Draw(3)
    for i in (0, 2, 4):
        draw.conv(f"body.{i}", n, 3 if i == 0 else n, 3)
        draw(f"body.{i + 1}.weight", n, scale=0.1)
    draw.conv("body.6", 48, n, 3)
    return draw.weights


# ---- GFPGAN ------------------------------------------------------------------------------------------------


def gfpgan(model: str, full: bool = False) -> Weights:
    """GFPGAN 1.4 in its published shapes, or with 4 channels in the U-Net and 8 in the generator."""
    channels = [32, 64, 128, 256, 256, 256, 256, 256] if full else [4] * 8
    return gfpgan_of(channels, 512 if full else 8)


def gfpgan_of(channels: list[int], dim: int) -> Weights:
    """GFPGAN with these channels in its U-Net, from full resolution down to 4 x 4; twice as many in the
    generator; and latents of ``dim``."""
    deepest, draw, decoder = len(channels) - 1, _Draw(4), "stylegan_decoder"
    draw.conv("conv_body_first", channels[0], 3, 1)
    for i in range(deepest):
        _block(draw, f"conv_body_down.{i}", channels[i], channels[i + 1])
    draw.conv("final_conv", channels[-1], channels[-1], 3)
    draw.linear("final_linear", (2 * deepest + 2) * dim, 16 * channels[-1])
    for i, level in enumerate(reversed(range(deepest))):
        n = channels[level]
        _block(draw, f"conv_body_up.{i}", channels[level + 1], n)
        draw.conv(f"toRGB.{i}", 3, n, 1)
        for kind, offset in (("scale", 1), ("shift", 0)):
            draw.conv(f"condition_{kind}.{i}.0", n, n, 3)
            draw.conv(f"condition_{kind}.{i}.2", n, n, 3, scale=0.2, offset=offset)
    for i in (1, 3):
        draw.linear(f"{decoder}.style_mlp.{i}", dim, dim)
    draw(f"{decoder}.constant_input.weight", 1, 2 * channels[-1], 4, 4)
    layers, colours = [("style_conv1", channels[-1], channels[-1])], [("to_rgb1", channels[-1])]
    for i, level in enumerate(reversed(range(deepest))):
        layers.append((f"style_convs.{2 * i}", channels[level + 1], channels[level]))
        layers.append((f"style_convs.{2 * i + 1}", channels[level], channels[level]))
        colours.append((f"to_rgbs.{i}", channels[level]))
    for i, (key, inputs, outputs) in enumerate(layers):
        draw(f"{decoder}.{key}.modulated_conv.weight", 1, 2 * outputs, 2 * inputs, 3, 3)
        draw.linear(f"{decoder}.{key}.modulated_conv.modulation", 2 * inputs, dim, offset=1)
        draw(f"{decoder}.{key}.weight", 1, scale=0.2)
        draw(f"{decoder}.{key}.bias", 1, 2 * outputs, 1, 1, scale=0.1)
        side = 4 << (i + 1) // 2
        draw(f"{decoder}.noises.noise{i}", 1, 1, side, side)
    for key, inputs in colours:
        draw(f"{decoder}.{key}.modulated_conv.weight", 1, 3, 2 * inputs, 1, 1, scale=0.3 / inputs**0.5)
        draw.linear(f"{decoder}.{key}.modulated_conv.modulation", 2 * inputs, dim, offset=1)
        draw(f"{decoder}.{key}.bias", 1, 3, 1, 1, scale=0.1)
    return draw.weights


def _block(draw: _Draw, key: str, inputs: int, outputs: int) -> None:
    draw.conv(f"{key}.conv1", inputs, inputs, 3)
    draw.conv(f"{key}.conv2", outputs, inputs, 3, scale=0.5)
    draw(f"{key}.skip.weight", outputs, inputs, 1, 1, scale=0.5 * inputs**-0.5)


class _Draw:
    """Collects drawn arrays by key."""

    def __init__(self, seed: int) -> None:
        self.weights: Weights = {}
        self._rng = np.random.default_rng(seed)

    def __call__(self, key: str, *shape: int, scale: float = 1, offset: float = 0) -> None:
        drawn = self._rng.standard_normal(shape, dtype=np.float32)
        self.weights[key] = np.float32(scale) * drawn + np.float32(offset)

    def conv(
        self, key: str, outputs: int, inputs: int, k: int, *,
        bias: str = "", scale: float = 1, offset: float = 0,
    ) -> None:  # fmt: skip
        """``scale`` 1 keeps the strength of what comes through a leaky ReLU."""
        self(f"{key}.weight", outputs, inputs, k, k, scale=scale * (2 / (inputs * k * k)) ** 0.5)
        self(bias or f"{key}.bias", outputs, scale=0.1, offset=offset)

    def linear(self, key: str, outputs: int, inputs: int, *, scale: float = 0, offset: float = 0) -> None:
        self(f"{key}.weight", outputs, inputs, scale=scale or inputs**-0.5)
        self(f"{key}.bias", outputs, scale=0.1, offset=offset)


# ---- published ONNX files ----------------------------------------------------------------------------------


def export(
    size: int = 512, *, gains: tuple[float, ...] = (1, 1, 1), input: str = "input", output: str = "output"
) -> onnx.ModelProto:
    """A graph with the signature of the published ONNX files: each colour of the input times its gain."""
    kernel = np.array(gains, np.float32).reshape(3, 1, 1, 1)
    node = helper.make_node("Conv", [input, "kernel"], [output], group=3)
    tensors = [numpy_helper.from_array(kernel, "kernel")]
    return _model([_picture(input, size)], [_picture(output, size)], [node], tensors)


def codeformer_export(size: int = 512, dtype: str = "float64") -> onnx.ModelProto:
    """A graph with the signature of the published CodeFormer: the input times the weight.

    As exports of it do, it gives a second output that restoring does not need.
    """
    nodes = [
        helper.make_node("Cast", ["weight"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["input", "w"], ["y"]),
    ]
    kind = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT}[dtype]
    weight = helper.make_tensor_value_info("weight", kind, [1])
    outputs = [_picture("y", size), helper.make_tensor_value_info("w", TensorProto.FLOAT, [1])]
    return _model([_picture("input", size), weight], outputs, nodes, [])


def _picture(name: str, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, size, size])


def _model(
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "drawn", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


_EXPORTS: dict[str, Callable[[], onnx.ModelProto]] = {
    "codeformer": codeformer_export,
    "restoreformer++": export,
}
_CHECKPOINTS: dict[str, Callable[[str, bool], Weights]] = {
    "gpen": gpen,
    "gfpgan-1.4": gfpgan,
    "realesrgan-x4plus": realesrgan,
    "realesrgan-x2plus": realesrgan,
    "realesr-general-x4v3": compact,
}
