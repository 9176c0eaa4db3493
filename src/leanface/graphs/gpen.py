"""GPEN (Yang et al., "GAN Prior Embedded Network for Blind Face Restoration in the Wild", CVPR 2021).

An encoder halves the picture down to 4 x 4. The deepest map gives one latent vector; every map goes into the
layers of its resolution of a StyleGAN2 generator (Karras et al., CVPR 2020), in the place of noise. Keys and
shapes are those of the published state dicts; size and channels are read off the arrays, so that the
published sizes 256, 512, 1024 and 2048 come from this one description. Level 0 is full resolution, each
further level half of it.

The graph computes what the published code does, written as it ran fastest and leanest
(docs/engineering/gpen-graph.md has what was tried):

- The scales of the equalised learning rate are folded into the weights. So is the gain sqrt(2) of the
  activations: activations here are the published ones divided by it.
- Style and demodulation are multiplied into the weights within the graph; a plain convolution follows.
- Features and encoder map stay two tensors: a convolution over both is the sum of two.
- The encoder map of level 0, a 1 x 1 convolution of the picture, is computed at each use, never kept.
- The two highest levels are computed in bands of rows, so that none of their large tensors is ever whole.
- Vectors are columns: OpenVINO keeps a second copy of a constant matrix on the right of a product, but not of
  one on the left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from leanface.graphs.builder import Compute, GraphBuilder, Weights
from leanface.graphs.state import State

Array = NDArray[np.float32]

_GAIN = math.sqrt(2)
_SLOPE = 0.2
_EPSILON = 1e-8
_MAPPING_RATE = 0.01  # the mapping network's multiplier of the learning rate
_BLUR = np.outer([1, 3, 3, 1], [1, 3, 3, 1]).astype(np.float32) / 64


def gpen(
    weights: Weights, *, name: str, half: bool, compute: Compute = "float32", **metadata: str
) -> onnx.ModelProto:
    """Build the network of a published state dict.

    Args:
        weights: arrays by the keys of the state dict; the kernels of the blurs may be missing.
        name: of the graph.
        half: store the large weights that are float32 in the graph as float16.
        compute: ``bfloat16`` or ``float16`` types the graph so, but for what costs little and decides about
            exactness: the small encoder maps, latent, styles, demodulation and colours stay float32.
        metadata: properties of the file.

    Returns:
        One input ``input`` and one output ``output``, both float32 [1, 3, size, size], RGB in [-1, 1].

    Raises:
        ValueError: the dict is not GPEN's; names the key that is missing, of another shape or foreign.
    """
    return Network(weights, name=name, half=half, compute=compute).write(**metadata)


Rows = tuple[int, int]  # first, and last excluded


@dataclass(frozen=True)
class Pair:
    """The two layers of a level and its colours: keys and styled kernels."""

    level: int
    up: str
    conv: str
    to_rgb: str
    up_kernel: str
    conv_kernels: Sequence[str]
    rgb_kernels: Sequence[str]


class Network:
    """The network while it is written. Methods add a part of it and return the part's tensor, or its kernels.

    Features are pairs [features, encoder map], each [1, channels of the level, rows, width].
    """

    banded = 2  # how many of the highest levels are computed in bands
    band = 128  # rows of level 0 in each
    wide_maps = 16  # the largest encoder map, in pixels a side, that is float32 in a graph of 16 bits

    def __init__(self, weights: Weights, *, name: str, half: bool, compute: Compute = "float32") -> None:
        self.g = GraphBuilder(name, half=half, compute=compute)
        self._state = State(weights, "a GPEN")
        self.channels = [len(self._take("ecd0.0.0.weight", None, 3, 1, 1))]  # by level
        while any(key.startswith(f"ecd{len(self.channels)}.") for key in weights):
            weight = self._take(f"ecd{len(self.channels)}.0.1.weight", None, self.channels[-1], 3, 3)
            self.channels.append(len(weight))
        self.deepest = len(self.channels) - 1
        self.size = 4 << self.deepest
        self.style_dim = len(self._take("final_linear.0.weight", None, 16 * self.channels[-1]))

    def write(self, **metadata: str) -> onnx.ModelProto:
        """The whole of it."""
        self.picture = self.g.narrow(self.g.input("input", [1, 3, self.size, self.size]))
        self.maps = self.encoder()
        self.latent = self.mapping()
        self.g.output(self.generator(), "output", [1, 3, self.size, self.size])
        for key in self._state.untaken():
            if not key.endswith(".kernel"):
                raise ValueError(f"{key} does not belong to a GPEN of {self.size} x {self.size} pixels")
        return self.g.model(**metadata)

    def encoder(self) -> list[str]:
        """The map [1, channels, size >> level, size >> level] of every level but 0."""
        band = self.band if self.banded else self.size
        first = [
            self.halved(self.full_map("ecd0.0", 1, *span), 1, rows)
            for rows, span in _bands_halved(self.size, band)
        ]
        maps = [self.joined(first)]
        for level in range(2, self.deepest + 1):
            x = self.g.widen(maps[-1]) if self.size >> level <= self.wide_maps else maps[-1]
            maps.append(self.halved(x, level, (0, self.size >> level)))
        return ["", *maps]

    def halved(self, x: str, level: int, rows: tuple[int, int]) -> str:
        """Rows of the map of a level, of those of the level above that the blur takes for them.

        Row i takes the rows 2i to 2i + 2 of the blur; row j of that takes j - 2 to j + 1 of ``x``.
        """
        key, inputs, outputs = f"ecd{level}.0", self.channels[level - 1], self.channels[level]
        wide = self.g.is_wide(x)
        weight = self._take(f"{key}.1.weight", outputs, inputs, 3, 3) * (_GAIN / math.sqrt(9 * inputs))
        bias = self._take(f"{key}.2.bias", outputs)
        pads = [2 * (rows[0] == 0), 2, 2 * (rows[1] == self.size >> level), 2]
        y = self.g.conv(
            self.blur(x, inputs, pads=pads), self.g.weight(f"{key}.1.weight", weight, wide=wide),
            self.g.weight(f"{key}.2.bias", bias, wide=wide), strides=[2, 2],
        )  # fmt: skip
        return self.activation(y)

    def full_map(self, key: str, strength: float, first: int, last: int) -> str:
        """Rows of the map of level 0 times ``strength`` >= 0; its weights are named after ``key``."""
        weight = self._take("ecd0.0.0.weight", self.channels[0], 3, 1, 1) * (strength / math.sqrt(3))
        bias = self._take("ecd0.0.1.bias", self.channels[0]) * strength
        y = self.g.conv(
            self._rows(self.picture, first, last, self.size),
            self.g.weight(f"{key}.map.weight", weight), self.g.weight(f"{key}.map.bias", bias),
        )  # fmt: skip
        return self.activation(y)

    def mapping(self) -> str:
        """The latent [style_dim, 1]."""
        g, dim = self.g, self.style_dim
        z = g.reshape(g.widen(self.maps[-1]), -1, 1)
        z = self.activation(self.linear("final_linear.0", z, dim, 16 * self.channels[-1]))
        # The square of a published element is 2 z^2. Over the root of its mean, z is again short of the gain.
        mean = self.product("mean", np.full((1, dim), 2 / dim, np.float32), g.op("Mul", z, z))
        z = g.op("Div", z, g.op("Sqrt", g.op("Add", mean, self._epsilon())))
        layers = sum(
            key.startswith("generator.style.") and key.endswith(".weight") for key in self._state.weights
        )
        for layer in range(1, max(layers, 1) + 1):
            # Half of all error of float16 weights would come from these few.
            y = self.linear(f"generator.style.{layer}", z, dim, dim, rate=_MAPPING_RATE, exact=True)
            z = self.activation(y)
        return z

    def generator(self) -> str:
        """The picture."""
        g, channels = self.g, self.channels[-1]
        constant = self._take("generator.input.input", 1, channels, 4, 4) / _GAIN
        kernels = self.kernels("generator.conv1", channels, channels, parts=1)
        x = [g.weight("generator.input.input", constant)]
        x = self.convolved(x, "generator.conv1", kernels, self.deepest, 0, 4)
        rgb = self.coloured(x, "generator.to_rgb1", self.colour_kernels("generator.to_rgb1", channels))
        pairs = [self.pair(level) for level in reversed(range(self.deepest))]
        banded = min(self.banded, self.deepest)
        for pair in pairs[: self.deepest - banded]:
            height = self.size >> pair.level
            x = self.convolved_pair(pair, g.op("Concat", *x, axis=1), (0, height), (0, height // 2))
            rgb = g.op("Add", self.enlarged(rgb), self.coloured(x, pair.to_rgb, pair.rgb_kernels))
        below = g.op("Concat", *x, axis=1)
        colours: list[list[str]] = [[] for _ in range(banded)]
        for first in range(0, self.size, self.band) if banded else ():
            own = first, min(first + self.band, self.size)
            self.band_of(pairs[self.deepest - banded :], below, own, own, colours)
        for parts in colours:
            rgb = g.op("Add", self.enlarged(rgb), self.joined(parts))
        return rgb

    def band_of(
        self, pairs: Sequence[Pair], below: str, rows: Rows, own: Rows, colours: list[list[str]]
    ) -> list[str]:
        """``rows`` of the features of the last of some pairs; ``below`` are the joined features before all.

        Each pair computes as many rows of the one before it as it needs, so that bands overlap there. Its
        colours are added to for the rows that are the band's own.
        """
        *before, pair = pairs
        height = self.size >> pair.level
        needed = _needed((max(rows[0] - 1, 0), min(rows[1] + 1, height)), height)
        if before:
            halves = (own[0] + 1) // 2, (own[1] + 1) // 2
            x = self.band_of(before, below, needed, halves, colours[:-1])
            below = self.g.op("Concat", *x, axis=1)
        else:
            below = self._rows(below, *needed, height // 2)
        x = self.convolved_pair(pair, below, rows, needed)
        added = self.coloured(x, pair.to_rgb, pair.rgb_kernels)
        colours[-1].append(self._rows(added, own[0] - rows[0], own[1] - rows[0], rows[1] - rows[0]))
        return x

    def pair(self, level: int) -> Pair:
        """The two layers of a level with their kernels."""
        i = self.deepest - 1 - level
        up, conv, to_rgb = (
            f"generator.convs.{2 * i}",
            f"generator.convs.{2 * i + 1}",
            f"generator.to_rgbs.{i}",
        )
        inputs, outputs = self.channels[level + 1], self.channels[level]
        return Pair(
            level, up, conv, to_rgb, self.up_kernel(up, outputs, 2 * inputs),
            self.kernels(conv, outputs, 2 * outputs, parts=2), self.colour_kernels(to_rgb, outputs),
        )  # fmt: skip

    def convolved_pair(self, pair: Pair, below: str, rows: Rows, needed: Rows) -> list[str]:
        """``rows`` of the features of a level, of the ``needed`` rows of the joined ones of that below."""
        first, last = max(rows[0] - 1, 0), min(rows[1] + 1, self.size >> pair.level)
        x = self.upsampled(below, pair.up, pair.up_kernel, pair.level, (first, last), needed)
        return self.convolved(x, pair.conv, pair.conv_kernels, pair.level, *rows)

    def upsampled(self, x: str, key: str, kernel: str, level: int, rows: Rows, needed: Rows) -> list[str]:
        """Features, ``rows`` of them, of the ``needed`` rows ``x`` of the joined features of the level below.

        Row i of the blur takes the rows i - 1 to i + 2 of the transposed convolution; row j of that takes the
        rows j // 2 - 1 and j // 2 of ``x``.
        """
        (first, last), (start, stop), height = rows, needed, self.size >> level
        top, bottom = max(first - 1, 0), min(last + 2, height + 1)
        y = self.g.op(
            "ConvTranspose", x, kernel, strides=[2, 2], pads=[top - 2 * start, 0, 2 * stop + 1 - bottom, 0]
        )
        pads = [int(first == 0), 1, int(last == height), 1]
        bias = self.g.weight(f"{key}.bias.features", self._biases(key, level)[0])
        y = self.blur(y, self.channels[level], pads=pads, gain=4, bias=bias)
        return [self.activation(y), self.noise(key, level, first, last)]

    def convolved(
        self, x: Sequence[str], key: str, kernels: Sequence[str], level: int, first: int, last: int
    ) -> list[str]:
        """Features, rows ``first`` to ``last``, of the features of one row more where there is one."""
        pads = [int(first == 0), 1, int(last == self.size >> level), 1]
        bias = self.g.weight(f"{key}.bias.features", self._biases(key, level)[0])
        y = self._convolved(x, kernels, bias, pads)
        return [self.activation(y), self.noise(key, level, first, last)]

    def noise(self, key: str, level: int, first: int, last: int) -> str:
        """Rows of the encoder map as a layer takes it: by its strength, with bias and activation."""
        g = self.g
        strength = float(self._take(f"{key}.noise.weight", 1)[0]) * _GAIN
        if level == 0:
            y = self.full_map(key, abs(strength), first, last)
            y = y if strength >= 0 else g.op("Neg", y)
        else:
            factor = g.weight(f"{key}.noise.weight", np.array(strength), wide=g.is_wide(self.maps[level]))
            y = g.op("Mul", self._rows(self.maps[level], first, last, self.size >> level), factor)
        bias = g.weight(f"{key}.bias.map", self._biases(key, level)[1].reshape(-1, 1, 1), wide=g.is_wide(y))
        return g.narrow(self.activation(g.op("Add", y, bias)))

    def coloured(self, x: Sequence[str], key: str, kernels: Sequence[str]) -> str:
        """What features add to the picture, [1, 3, rows, width], float32."""
        bias = self.g.weight(f"{key}.bias", self._take(f"{key}.bias", 1, 3, 1, 1).reshape(3))
        return self.g.widen(self._convolved(x, kernels, bias, [0, 0, 0, 0]))

    def kernels(self, key: str, outputs: int, inputs: int, *, parts: int) -> list[str]:
        """The weights [outputs, inputs / parts, 3, 3] of a styled convolution of features in equal parts."""
        weights = np.split(self._weight(key, outputs, inputs, 3), parts, axis=1)
        styles = self.styles(key, weights)
        demodulation = self.demodulation(key, weights, styles)
        return [
            self.scaled(f"{key}.conv.weight.{i}", weight, demodulation, style)
            for i, (weight, style) in enumerate(zip(weights, styles, strict=True))
        ]

    def up_kernel(self, key: str, outputs: int, inputs: int) -> str:
        """The weights [inputs, outputs, 3, 3] of a styled transposed convolution."""
        weight = self._weight(key, outputs, inputs, 3)
        styles = self.styles(key, [weight])
        demodulation = self.demodulation(key, [weight], styles)
        return self.scaled(f"{key}.conv.weight", weight.transpose(1, 0, 2, 3), styles[0], demodulation)

    def colour_kernels(self, key: str, channels: int) -> list[str]:
        """The weights [3, channels, 1, 1] of the colours, for features and map; they are not demodulated."""
        g = self.g
        weights = np.split(self._weight(key, 3, 2 * channels, 1), 2, axis=1)
        kernels = []
        for i, (weight, style) in enumerate(zip(weights, self.styles(key, weights), strict=True)):
            y = g.weight(f"{key}.conv.weight.{i}", weight.reshape(3, channels), wide=True)
            y = g.op("Mul", y, g.reshape(style, 1, channels))
            kernels.append(g.reshape(g.narrow(y), 3, channels, 1, 1))
        return kernels

    def scaled(self, key: str, weight: Array, rows: str, columns: str) -> str:
        """A weight [rows, columns, 3, 3] times a vector along each.

        That of the columns is repeated for the 9 taps first: engines then multiply long rows, not threes.
        """
        g, (height, width) = self.g, weight.shape[:2]
        repeated = g.reshape(g.expand(g.narrow(columns), width, 9), 1, 9 * width)
        y = g.op("Mul", g.weight(key, weight.reshape(height, 9 * width)), repeated)
        return g.reshape(g.op("Mul", y, g.narrow(rows)), height, width, 3, 3)

    def styles(self, key: str, weights: Sequence[Array]) -> list[str]:
        """The style [inputs, 1] of each of the weights [outputs, inputs, k, k] that share a layer."""
        ends = np.cumsum([weight.shape[1] for weight in weights]).tolist()
        return [
            self.linear(
                f"{key}.conv.modulation", self.latent, ends[-1], self.style_dim, rows=slice(first, last)
            )
            for first, last in zip([0, *ends], ends, strict=False)
        ]

    def demodulation(self, key: str, weights: Sequence[Array], styles: Sequence[str]) -> str:
        """What gives each output of a styled convolution the power of its input, [outputs, 1]."""
        power = self._epsilon()
        for i, (weight, style) in enumerate(zip(weights, styles, strict=True)):
            squares = np.square(weight / np.float32(_GAIN)).sum((2, 3))
            term = self.product(f"{key}.conv.power.{i}", squares, self.g.op("Mul", style, style))
            power = self.g.op("Add", term, power)
        return self.g.op("Reciprocal", self.g.op("Sqrt", power))

    def linear(
        self, key: str, x: str, outputs: int, inputs: int, *,
        rows: slice = slice(None), rate: float = 1, exact: bool = False,
    ) -> str:  # fmt: skip
        """Fully connected: [inputs, 1] -> [outputs, 1], or some ``rows`` of it; float32."""
        weight, bias = self._take(f"{key}.weight", outputs, inputs), self._take(f"{key}.bias", outputs)
        name = key if rows.start is None else f"{key}.{rows.start}"
        scaled = weight[rows] * np.float32(_GAIN * rate / math.sqrt(inputs))
        y = self.product(f"{name}.weight", scaled, x, exact=exact)
        return self.g.op("Add", y, self.g.weight(f"{name}.bias", bias[rows, None] * rate, wide=True))

    def product(self, key: str, matrix: Array, x: str, *, exact: bool = False) -> str:
        """A constant matrix times a column; float32."""
        return self.g.op("MatMul", self.g.weight(key, matrix, wide=True, exact=exact), x)

    def activation(self, x: str) -> str:
        """Leaky ReLU."""
        return self.g.op("LeakyRelu", x, alpha=_SLOPE)

    def blur(self, x: str, channels: int, *, pads: list[int], gain: int = 1, bias: str | None = None) -> str:
        """Each channel by itself, 4 x 4 taps."""
        wide = self.g.is_wide(x)
        name = f"blur.{channels}.{gain}{'.wide' if wide else ''}"
        kernel = self.g.weight(name, np.tile(gain * _BLUR, (channels, 1, 1, 1)), wide=wide)
        return self.g.conv(x, kernel, bias, group=channels, pads=pads)

    def enlarged(self, rgb: str) -> str:
        """Twice as high and wide, blurred; float32."""
        kernel = self.g.weight("enlarge", np.tile(4 * _BLUR, (3, 1, 1, 1)), wide=True)
        return self.g.op("ConvTranspose", rgb, kernel, group=3, strides=[2, 2], pads=[1, 1, 1, 1])

    def _convolved(self, x: Sequence[str], kernels: Sequence[str], bias: str, pads: list[int]) -> str:
        total = ""
        for part, kernel in zip(x, kernels, strict=True):
            y = self.g.conv(part, kernel, None if total else bias, pads=pads)
            total = self.g.op("Add", total, y) if total else y
        return total

    def joined(self, bands: Sequence[str]) -> str:
        """Bands of rows put together."""
        return self.g.op("Concat", *bands, axis=2) if len(bands) > 1 else bands[0]

    def _rows(self, x: str, first: int, last: int, height: int) -> str:
        return x if last - first == height else self.g.rows(x, first, last)

    def _epsilon(self) -> str:
        return self.g.weight("epsilon", np.array(_EPSILON), wide=True)

    def _weight(self, key: str, outputs: int, inputs: int, k: int) -> Array:
        weight = self._take(f"{key}.conv.weight", 1, outputs, inputs, k, k)[0]
        scaled: Array = weight * np.float32(_GAIN / math.sqrt(inputs * k * k))
        return scaled

    def _biases(self, key: str, level: int) -> list[Array]:
        """Those of features and encoder map."""
        return np.split(self._take(f"{key}.activate.bias", 2 * self.channels[level]), 2)

    def _take(self, key: str, *shape: int | None) -> Array:
        """The array of a key, float32, if its shape is right (None: any length)."""
        return self._state.take(key, *shape)


def _needed(rows: Rows, height: int) -> Rows:
    """The rows of the level below that ``Network.upsampled`` takes for rows of a level of that height."""
    top, bottom = max(rows[0] - 1, 0), min(rows[1] + 2, height + 1)
    return max(top // 2 - 1, 0), min((bottom + 1) // 2, height // 2)


def _bands_halved(size: int, band: int) -> list[tuple[Rows, Rows]]:
    """Bands of the rows of level 1, each with the rows of level 0 that ``Network.halved`` takes for it."""
    half = size // 2
    step = max(1, band // 2)
    spans = [(first, min(first + step, half)) for first in range(0, half, step)]
    return [((a, b), (max(2 * a - 2, 0), min(2 * b + 2, size))) for a, b in spans]
