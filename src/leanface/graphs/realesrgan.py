"""The two networks of Real-ESRGAN (Wang et al., 2021) as ONNX graphs; RGB in [0, 1], any height and width.

RRDBNet is the generator of ESRGAN (Wang et al., 2018): residual-in-residual dense blocks, then two
enlargements by 2. SRVGGNetCompact is a plain chain of convolutions that ends in a pixel shuffle and adds the
enlarged input. Keys and shapes are those of the published checkpoints; widths are read off the arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from leanface.graphs.builder import Compute, GraphBuilder, Weights
from leanface.graphs.state import State

_RESIDUAL_SCALE = 0.2
_SLOPE = 0.2


def rrdbnet(
    weights: Weights,
    *,
    name: str,
    half: bool,
    compute: Compute = "float32",
    factor: int | None = None,
    **metadata: str,
) -> onnx.ModelProto:
    """Build RRDBNet, [1, 3, h, w] -> [1, 3, s*h, s*w].

    The factor s is 4, or 2 where the first convolution takes 12 channels: the input unshuffled by 2, so that
    h and w must be even.

    Args:
        weights: arrays by the keys of the state dict.
        name: of the graph.
        half: store the large weights that are float32 in the graph as float16.
        compute: ``bfloat16`` or ``float16`` types the graph so.
        factor: what s must be; None takes any.
        metadata: properties of the file.

    Raises:
        ValueError: the dict is not RRDBNet's (names the key that is missing, of another shape or foreign), or
            it has another factor.
    """
    g, state = GraphBuilder(name, half=half, compute=compute), State(weights, "an RRDBNet")
    features, taken = state.take("conv_first.weight", None, None, 3, 3).shape[:2]
    growth = len(state.take("body.0.rdb1.conv1.weight", None, features, 3, 3))

    def conv(x: str, key: str, outputs: int, inputs: int) -> str:
        weight = state.take(f"{key}.weight", outputs, inputs, 3, 3)
        if inputs == 12 and key == "conv_first":
            # The checkpoint has the 4 places of a colour together, ONNX the colours of a place.
            weight = weight.reshape(-1, 3, 4, 3, 3).swapaxes(1, 2).reshape(weight.shape)
        return _conv(g, state, x, key, weight)

    def lrelu(x: str) -> str:
        return g.op("LeakyRelu", x, alpha=_SLOPE)

    if taken not in (3, 12):
        raise ValueError(f"conv_first.weight takes {taken} channels, not 3 or 12")
    _check_factor(2 if taken == 12 else 4, factor)
    scale = g.weight("residual_scale", np.array(_RESIDUAL_SCALE, np.float32))
    x = g.narrow(g.input("input", [1, 3, "height", "width"]))
    x = g.op("SpaceToDepth", x, blocksize=2) if taken == 12 else x
    shallow = body = conv(x, "conv_first", features, taken)
    for i in itertools.takewhile(lambda i: f"body.{i}.rdb1.conv1.weight" in state, itertools.count()):
        block_in = body
        for j in (1, 2, 3):
            parts = [body]
            for k in (1, 2, 3, 4):
                joined = g.op("Concat", *parts, axis=1) if len(parts) > 1 else body
                inputs = features + (k - 1) * growth
                parts.append(lrelu(conv(joined, f"body.{i}.rdb{j}.conv{k}", growth, inputs)))
            joined = g.op("Concat", *parts, axis=1)
            out = conv(joined, f"body.{i}.rdb{j}.conv5", features, features + 4 * growth)
            body = g.op("Add", g.op("Mul", out, scale), body)
        body = g.op("Add", g.op("Mul", body, scale), block_in)
    y = g.op("Add", shallow, conv(body, "conv_body", features, features))
    for key in ("conv_up1", "conv_up2"):
        y = lrelu(conv(g.resize(y, 2), key, features, features))
    y = conv(lrelu(conv(y, "conv_hr", features, features)), "conv_last", 3, features)
    g.output(g.widen(y), "output", [1, 3, "out_height", "out_width"])
    state.check_all_taken()
    return g.model(**metadata)


def srvgg(
    weights: Weights,
    *,
    name: str,
    half: bool,
    compute: Compute = "float32",
    factor: int | None = None,
    **metadata: str,
) -> onnx.ModelProto:
    """Build SRVGGNetCompact, [1, 3, h, w] -> [1, 3, s*h, s*w].

    The factor s is read off the last convolution. Arguments and errors as for ``rrdbnet``.
    """
    g, state = GraphBuilder(name, half=half, compute=compute), State(weights, "an SRVGGNetCompact")
    x = g.input("input", [1, 3, "height", "width"])
    y, inputs, last = g.narrow(x), 3, 0
    while f"body.{last + 2}.weight" in state:
        outputs = len(state.take(f"body.{last}.weight", None, inputs, 3, 3))
        y = _conv(g, state, y, f"body.{last}", state.take(f"body.{last}.weight", outputs, inputs, 3, 3))
        key = f"body.{last + 1}.weight"
        y = g.op("PRelu", y, g.weight(key, state.take(key, outputs).reshape(-1, 1, 1)))
        inputs, last = outputs, last + 2
    weight = state.take(f"body.{last}.weight", None, inputs, 3, 3)
    found = math.isqrt(len(weight) // 3)
    if len(weight) != 3 * found**2:
        raise ValueError(f"body.{last}.weight gives {len(weight)} channels, which no factor does")
    _check_factor(found, factor)
    y = g.op("DepthToSpace", _conv(g, state, y, f"body.{last}", weight), blocksize=found, mode="CRD")
    y = g.op("Add", g.widen(y), g.resize(x, found))
    g.output(y, "output", [1, 3, "out_height", "out_width"])
    state.check_all_taken()
    return g.model(**metadata)


def split(graph: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """RRDBNet in two: up to where it first enlarges, and from there on; what goes between is ``features``.

    The second part sees 1.25 values of the features far: one convolution at twice, three at four times their
    size.

    Raises:
        ValueError: the graph does not enlarge what it has made of its input.
    """
    seam = next((node.input[0] for node in graph.graph.node if node.op_type == "Resize"), "")
    if not seam or seam == graph.graph.input[0].name:
        raise ValueError("the graph has no features that it enlarges")
    features = helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, [1, None, "height", "width"])
    first = _part(graph, seam, [], graph.graph.input, [features])
    second = _part(graph, graph.graph.output[0].name, [seam], [features], graph.graph.output)
    for part in (first, second):
        for node in part.graph.node:
            for names in (node.input, node.output):
                for i, used in enumerate(names):
                    names[i] = "features" if used == seam else used
    return first, second


def _part(
    graph: onnx.ModelProto,
    result: str,
    given: list[str],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """The nodes that ``result`` needs beyond what is given, as a graph of their own."""
    makers = {name: node for node in graph.graph.node for name in node.output}
    needed, open_names = {*given}, [result]
    while open_names:
        name = open_names.pop()
        if name not in needed:
            needed.add(name)
            open_names += makers[name].input if name in makers else []
    nodes = [node for node in graph.graph.node if needed.intersection(node.output) and not
             set(given).intersection(node.output)]  # fmt: skip
    constants = [tensor for tensor in graph.graph.initializer if tensor.name in needed]
    body = helper.make_graph(nodes, graph.graph.name, list(inputs), list(outputs), constants)
    part = helper.make_model(body, opset_imports=graph.opset_import, ir_version=graph.ir_version)
    part.producer_name = graph.producer_name
    part.metadata_props.extend(graph.metadata_props)
    return part


def _check_factor(found: int, wanted: int | None) -> None:
    if wanted not in (None, found):
        raise ValueError(f"it enlarges by {found}, not by {wanted}")


def _conv(g: GraphBuilder, state: State, x: str, key: str, weight: NDArray[np.float32]) -> str:
    """A convolution that keeps height and width."""
    kernel = g.weight(f"{key}.weight", weight)
    return g.conv(x, kernel, g.weight(f"{key}.bias", state.take(f"{key}.bias", len(weight))), pads=[1] * 4)
