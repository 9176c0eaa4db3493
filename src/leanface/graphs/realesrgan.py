"""The two networks of Real-ESRGAN (Wang et al., 2021) as ONNX graphs; RGB in [0, 1], any height and width.

RRDBNet is the generator of ESRGAN (Wang et al., 2018): residual-in-residual dense blocks, then two
enlargements by 2. SRVGGNetCompact is a plain chain of convolutions that ends in a pixel shuffle and adds the
enlarged input. Keys are those of the published checkpoints.
"""

from __future__ import annotations

import re

import numpy as np
import onnx

from leanface.graphs.builder import GraphBuilder, Weights

_PAD1 = {"pads": [1, 1, 1, 1]}
_RESIDUAL_SCALE = 0.2
_SLOPE = 0.2


def _blocks(weights: Weights) -> int:
    return 1 + max(int(m[1]) for m in (re.match(r"body\.(\d+)\.", k) for k in weights) if m)


def rrdbnet(weights: Weights, *, name: str, half: bool, **metadata: str) -> onnx.ModelProto:
    """Build RRDBNet, [1, 3, h, w] -> [1, 3, s*h, s*w].

    The factor s is 4, or 2 where the first convolution takes 12 channels (the input, unshuffled by 2).
    """
    g = GraphBuilder(name, half=half)

    def conv(x: str, key: str) -> str:
        weight = weights[f"{key}.weight"]
        if (
            weight.shape[1] == 12
        ):  # the checkpoint has the 4 places of a colour together, ONNX the colours of a place
            weight = weight.reshape(-1, 3, 4, 3, 3).swapaxes(1, 2).reshape(weight.shape)
        return g.conv(
            x, g.weight(f"{key}.weight", weight), g.weight(f"{key}.bias", weights[f"{key}.bias"]), **_PAD1
        )

    def lrelu(x: str) -> str:
        return g.op("LeakyRelu", x, alpha=_SLOPE)

    scale = g.constant("residual_scale", np.array(_RESIDUAL_SCALE, np.float32))
    x = g.input("input", [1, 3, "height", "width"])
    unshuffled = weights["conv_first.weight"].shape[1] == 12
    features = conv(g.op("SpaceToDepth", x, blocksize=2) if unshuffled else x, "conv_first")
    body = features
    for i in range(_blocks(weights)):
        block_in = body
        for j in (1, 2, 3):
            dense_in = body
            parts = [dense_in]
            for k in (1, 2, 3, 4):
                joined = g.op("Concat", *parts, axis=1) if len(parts) > 1 else dense_in
                parts.append(lrelu(conv(joined, f"body.{i}.rdb{j}.conv{k}")))
            out = conv(g.op("Concat", *parts, axis=1), f"body.{i}.rdb{j}.conv5")
            body = g.op("Add", g.op("Mul", out, scale), dense_in)
        body = g.op("Add", g.op("Mul", body, scale), block_in)
    y = g.op("Add", features, conv(body, "conv_body"))
    for key in ("conv_up1", "conv_up2"):
        y = lrelu(conv(g.resize(y, 2), key))
    y = conv(lrelu(conv(y, "conv_hr")), "conv_last")
    g.output(y, "output", [1, 3, "out_height", "out_width"])
    return g.model(**metadata)


def srvgg(weights: Weights, *, name: str, half: bool, **metadata: str) -> onnx.ModelProto:
    """Build SRVGGNetCompact, [1, 3, h, w] -> [1, 3, 4*h, 4*w]."""
    g = GraphBuilder(name, half=half)
    x = g.input("input", [1, 3, "height", "width"])
    last = _blocks(weights) - 1
    y = x
    for i in range(last + 1):
        weight = weights[f"body.{i}.weight"]
        tensor = g.weight(f"body.{i}.weight", weight.reshape(-1, 1, 1) if weight.ndim == 1 else weight)
        if weight.ndim == 1:
            y = g.op("PRelu", y, tensor)
        else:
            y = g.conv(y, tensor, g.weight(f"body.{i}.bias", weights[f"body.{i}.bias"]), **_PAD1)
    factor = int((weights[f"body.{last}.weight"].shape[0] // 3) ** 0.5)
    y = g.op("DepthToSpace", y, blocksize=factor, mode="CRD")
    g.output(g.op("Add", y, g.resize(x, factor)), "output", [1, 3, "out_height", "out_width"])
    return g.model(**metadata)
