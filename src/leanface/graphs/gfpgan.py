"""GFPGAN (Wang et al., "Towards Real-World Blind Face Restoration with Generative Facial Prior", CVPR 2021).

The clean form of versions 1.2 to 1.4. A U-Net halves the picture down to 4 x 4, turns the deepest map into
one latent vector for each layer of a StyleGAN2 generator (Karras et al., CVPR 2020), and goes up again; its
map of each resolution gives a scale and a shift for half of the generator's features of that resolution. Keys
and shapes are those of the published state dicts; size and channels are read off the arrays. Level 0 is full
resolution, each further level half of it.

The graph computes what the published code does with ``randomize_noise=False``: the noise is the one stored
with the weights, so that equal pictures give equal results. Written as in ``graphs.gpen``: styles,
demodulation and the gain sqrt(2) are multiplied into the weights within the graph, vectors are columns. A
1 x 1 convolution of a resampled map is done on the smaller of the two, which is the same. The colours that
the U-Net gives for its training are left out.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
from numpy.typing import NDArray

from leanface.graphs.builder import Compute, GraphBuilder, Weights
from leanface.graphs.state import State

Array = NDArray[np.float32]

_GAIN = math.sqrt(2)
_SLOPE = 0.2
_EPSILON = 1e-8
_UNUSED = ("toRGB.", "stylegan_decoder.style_mlp.")  # of no use when restoring


def gfpgan(
    weights: Weights, *, name: str, half: bool, compute: Compute = "float32", **metadata: str
) -> onnx.ModelProto:
    """Build the network of a published state dict.

    Args:
        weights: arrays by the keys of the state dict; the stored noise may be missing, then there is none.
        name: of the graph.
        half: store the large weights that are float32 in the graph as float16.
        compute: ``bfloat16`` or ``float16`` types the graph so, but for latents, styles, demodulation and
            colours, which stay float32.
        metadata: properties of the file.

    Returns:
        One input ``input`` and one output ``output``, both float32 [1, 3, size, size], RGB in [-1, 1].

    Raises:
        ValueError: the dict is not GFPGAN's; names the key that is missing, of another shape or foreign.
    """
    return _Network(weights, name=name, half=half, compute=compute).write(**metadata)


class _Network:
    """The network while it is written. Methods add a part of it and return the part's tensor."""

    bands = 4

    def __init__(self, weights: Weights, *, name: str, half: bool, compute: Compute) -> None:
        self.g = GraphBuilder(name, half=half, compute=compute)
        self.state = State(weights, "a GFPGAN")
        self._latents: dict[str, str] = {}
        self.maps = [len(self.state.take("conv_body_first.weight", None, 3, 1, 1))]  # channels by level
        while f"conv_body_down.{len(self.maps) - 1}.conv2.weight" in weights:
            key = f"conv_body_down.{len(self.maps) - 1}.conv2.weight"
            self.maps.append(len(self.state.take(key, None, self.maps[-1], 3, 3)))
        self.deepest = len(self.maps) - 1
        self.size = 4 << self.deepest
        self.features = len(self.state.take("stylegan_decoder.constant_input.weight", 1, None, 4, 4)[0])
        key = "stylegan_decoder.style_conv1.modulated_conv.modulation.weight"
        self.style_dim = self.state.take(key, self.features, None).shape[1]

    def write(self, **metadata: str) -> onnx.ModelProto:
        """The whole of it."""
        g = self.g
        x = g.narrow(g.input("input", [1, 3, self.size, self.size]))
        x = self.activation(self.conv(x, "conv_body_first", self.maps[0], 3, 1))
        skips = []
        for level in range(1, self.deepest + 1):
            x = self.halved(x, f"conv_body_down.{level - 1}", level)
            skips.append(x)
        x = self.activation(self.conv(x, "final_conv", self.maps[-1], self.maps[-1], 3))
        self.deep = g.reshape(g.widen(x), -1, 1)

        decoder = "stylegan_decoder"
        constant = self.state.take(f"{decoder}.constant_input.weight", 1, self.features, 4, 4)
        y = self.styled(g.weight("constant", constant), f"{decoder}.style_conv1", self.features, 0)
        rgb = self.coloured(y, f"{decoder}.to_rgb1", 1)
        for i, level in enumerate(reversed(range(self.deepest))):
            x = self.doubled(g.op("Add", x, skips.pop()), f"conv_body_up.{i}", level)
            scale, shift = (self.condition(x, f"condition_{kind}.{i}", level) for kind in ("scale", "shift"))
            first, second = f"{decoder}.style_convs.{2 * i}", f"{decoder}.style_convs.{2 * i + 1}"
            outputs = len(self.state.take(f"{first}.bias", 1, None, 1, 1)[0])
            y = self.styled(y, first, outputs, 2 * i + 1, to_level=level)
            y = self.steered(y, scale, shift, level)
            y = self.styled(y, second, outputs, 2 * i + 2)
            rgb = g.op("Add", self.enlarged(rgb), self.coloured(y, f"{decoder}.to_rgbs.{i}", 2 * i + 3))
        g.output(rgb, "output", [1, 3, self.size, self.size])
        self.state.check_all_taken(unused=_UNUSED)
        return g.model(**metadata)

    # ---- the U-Net ----------------------------------------------------------------------------------------

    def halved(self, x: str, key: str, level: int) -> str:
        """A residual block from the level above to this one."""
        inputs, outputs = self.maps[level - 1], self.maps[level]
        y = self.mean(self.activation(self.conv(x, f"{key}.conv1", inputs, inputs, 3)))
        y = self.activation(self.conv(y, f"{key}.conv2", outputs, inputs, 3))
        return self.g.op("Add", y, self.conv(self.mean(x), f"{key}.skip", outputs, inputs, 1, bias=False))

    def doubled(self, x: str, key: str, level: int) -> str:
        """A residual block from the level below to this one."""
        inputs, outputs = self.maps[level + 1], self.maps[level]
        y = self.enlarged(self.activation(self.conv(x, f"{key}.conv1", inputs, inputs, 3)))
        y = self.activation(self.conv(y, f"{key}.conv2", outputs, inputs, 3))
        skip = self.conv(x, f"{key}.skip", outputs, inputs, 1, bias=False)
        return self.g.op("Add", y, self.enlarged(skip))

    def condition(self, x: str, key: str, level: int) -> str:
        """What the U-Net's map says to the generator, for half of its features."""
        channels = self.maps[level]
        y = self.activation(self.conv(x, f"{key}.0", channels, channels, 3))
        return self.conv(y, f"{key}.2", channels, channels, 3)

    def conv(self, x: str, key: str, outputs: int, inputs: int, k: int, *, bias: bool = True) -> str:
        """A convolution that keeps height and width."""
        weight = self.g.weight(f"{key}.weight", self.state.take(f"{key}.weight", outputs, inputs, k, k))
        added = self.g.weight(f"{key}.bias", self.state.take(f"{key}.bias", outputs)) if bias else None
        return self.g.conv(x, weight, added, pads=[k // 2] * 4)

    # ---- the generator ------------------------------------------------------------------------------------

    def styled(self, x: str, key: str, outputs: int, layer: int, *, to_level: int | None = None) -> str:
        """A styled 3 x 3 convolution, the noise, bias and activation; enlarges first if to another level."""
        g, inputs = self.g, self.features
        self.features = outputs
        weight = self.state.take(f"{key}.modulated_conv.weight", 1, outputs, inputs, 3, 3)[0]
        style = self.style(key, inputs, layer)
        squares = np.square(weight).sum((2, 3)) / np.float32(_GAIN**2)
        power = self.product(f"{key}.power", squares, g.op("Mul", style, style))
        epsilon = g.weight("epsilon", np.array(_EPSILON / _GAIN**2), wide=True)
        gain = g.op("Reciprocal", g.op("Sqrt", g.op("Add", power, epsilon)))
        kernel = self.scaled(f"{key}.weight", weight.reshape(outputs, inputs * 9), gain, style, inputs)
        bias = g.weight(f"{key}.bias", self.state.take(f"{key}.bias", 1, outputs, 1, 1).reshape(-1))
        kernel = g.reshape(kernel, outputs, inputs, 3, 3)
        if to_level is None:
            y = g.conv(x, kernel, bias, pads=[1, 1, 1, 1])
        else:
            y = self.enlarged_conv(x, to_level, kernel, bias)
        strength, stored = self.state.take(f"{key}.weight", 1)[0], f"stylegan_decoder.noises.noise{layer}"
        if stored in self.state:
            side = 4 << (layer + 1) // 2
            y = g.op("Add", y, g.weight(stored, strength * self.state.take(stored, 1, 1, side, side)))
        return self.activation(y)

    def enlarged_conv(self, x: str, level: int, kernel: str, bias: str) -> str:
        """A 3 x 3 convolution of a map that is enlarged to this level.

        At level 0 that map is made in bands of rows and never whole. Its row r takes the rows (r - 1) // 2
        and (r + 1) // 2 of ``x``, so that a band needs one more of these on either side; what that gives
        beside the band is cut off.
        """
        g, rows = self.g, self.size >> level + 1
        if level:
            return g.conv(self.enlarged(x), kernel, bias, pads=[1, 1, 1, 1])
        step, parts = max(rows // self.bands, 4), []
        for first in range(0, rows, step):
            start, stop = max(first - 1, 0), min(first + step + 1, rows)
            y = g.conv(self.enlarged(g.rows(x, start, stop)), kernel, bias, pads=[1, 1, 1, 1])
            parts.append(g.rows(y, 2 * (first - start), 2 * (first - start + step)))
        return g.op("Concat", *parts, axis=2)

    def steered(self, x: str, scale: str, shift: str, level: int) -> str:
        """The second half of the features scaled and shifted."""
        g, half = self.g, self.maps[level]
        if self.features != 2 * half:
            raise ValueError(f"{self.features} features, but conditions for {half} at level {level}")
        ends = [g.constant(f"channel_{n}", np.array([n], np.int64)) for n in (0, half, 2 * half)]
        axis = g.constant("axis_1", np.array([1], np.int64))
        same, other = (g.op("Slice", x, first, last, axis) for first, last in itertools.pairwise(ends))
        return g.op("Concat", same, g.op("Add", g.op("Mul", other, scale), shift), axis=1)

    def coloured(self, x: str, key: str, latent: int) -> str:
        """What features add to the picture, [1, 3, height, width], float32."""
        g, inputs = self.g, self.features
        weight = self.state.take(f"{key}.modulated_conv.weight", 1, 3, inputs, 1, 1).reshape(3, inputs)
        style = g.reshape(self.style(key, inputs, latent), 1, inputs)
        kernel = g.op("Mul", g.weight(f"{key}.weight", weight, wide=True), style)
        bias = g.weight(f"{key}.bias", self.state.take(f"{key}.bias", 1, 3, 1, 1).reshape(3))
        return g.widen(g.conv(x, g.reshape(g.narrow(kernel), 3, inputs, 1, 1), bias))

    def scaled(self, key: str, weight: Array, rows: str, columns: str, inputs: int) -> str:
        """A weight [outputs, 9 * inputs] times a vector along the outputs and one along the inputs."""
        g = self.g
        repeated = g.reshape(g.expand(g.narrow(columns), inputs, 9), 1, 9 * inputs)
        return g.op("Mul", g.op("Mul", g.weight(key, weight), repeated), g.narrow(rows))

    def style(self, key: str, inputs: int, latent: int) -> str:
        """The style [inputs, 1] that a layer makes of its latent, float32."""
        g, dim, deep = self.g, self.style_dim, 16 * self.maps[-1]
        rows, count = slice(latent * dim, (latent + 1) * dim), 2 * self.deepest + 2
        weight = self.state.take("final_linear.weight", count * dim, deep)[rows]
        bias = self.state.take("final_linear.bias", count * dim)[rows, None]
        name = f"final_linear.{latent}"
        if name not in self._latents:
            y = g.op("MatMul", g.weight(f"{name}.weight", weight), g.narrow(self.deep))
            self._latents[name] = g.op("Add", g.widen(y), g.weight(f"{name}.bias", bias, wide=True))
        name = f"{key}.modulated_conv.modulation"
        weight, bias = self.state.take(f"{name}.weight", inputs, dim), self.state.take(f"{name}.bias", inputs)
        y = self.product(f"{name}.weight", weight, self._latents[f"final_linear.{latent}"])
        return g.op("Add", y, g.weight(f"{name}.bias", bias[:, None], wide=True))

    # ---- small parts --------------------------------------------------------------------------------------

    def product(self, key: str, matrix: Array, x: str) -> str:
        """A constant matrix times a column; float32."""
        return self.g.op("MatMul", self.g.weight(key, matrix, wide=True), x)

    def activation(self, x: str) -> str:
        """Leaky ReLU."""
        return self.g.op("LeakyRelu", x, alpha=_SLOPE)

    def mean(self, x: str) -> str:
        """Half as high and wide: the mean of 2 x 2, which bilinear resampling by a half is."""
        return self.g.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])

    def enlarged(self, x: str) -> str:
        """Twice as high and wide, bilinear, pixels taken at their centres."""
        scales = self.g.constant("scales_2", np.array([1, 1, 2, 2], np.float32))
        return self.g.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
