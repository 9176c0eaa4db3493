"""Write a trained LiteNet as ONNX and check the file against torch.

    python -m training.export --run RUN [--output lite.onnx]

Weights are stored as fp16 under their state-dict keys, each followed by a Cast: the graph computes in fp32,
and the engine that runs it chooses its precision.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

from training.model import SCALE, LiteNet

OUTPUT = Path(__file__).parents[1] / "src/leanface/assets/lite.onnx"
TOLERANCE = 2e-3
ORIGIN = {
    "origin": "fine-tuned from realesr-animevideov3-x4 (Real-ESRGAN, BSD-3-Clause)",
    "terms": "fine-tuned on faces of mixed terms: research and personal use",
    "input": "RGB in [0,1], aligned to the FFHQ template, height and width multiples of 32",
}


class _Graph:
    """Collects nodes and fp16 weights; each method returns the name of its result."""

    def __init__(self, net: LiteNet) -> None:
        self._weights = {key: value.detach().float().numpy() for key, value in net.state_dict().items()}
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []

    def node(self, operator: str, *inputs: str, name: str | None = None, **attributes: object) -> str:
        result = name or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [result], name=result, **attributes))
        return result

    def constant(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, key: str, array: np.ndarray | None = None) -> str:
        half = (self._weights[key] if array is None else array).astype(np.float16)
        return self.node("Cast", self.constant(key, half), name=f"{key}.fp32", to=TensorProto.FLOAT)

    def conv(self, x: str, key: str, stride: int = 1) -> str:
        kernel = self._weights[f"{key}.weight"].shape[-1]
        inputs = [x, self.weight(f"{key}.weight")]
        if f"{key}.bias" in self._weights:
            inputs.append(self.weight(f"{key}.bias"))
        return self.node(
            "Conv", *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4
        )

    def prelu(self, x: str, key: str) -> str:
        return self.node(
            "PRelu", x, self.weight(f"{key}.weight", self._weights[f"{key}.weight"][:, None, None])
        )

    def residual(self, x: str, key: str) -> str:
        inner = self.prelu(self.conv(x, f"{key}.conv1"), f"{key}.act")
        return self.node("Add", x, self.conv(inner, f"{key}.conv2"))

    def grow(self, x: str) -> str:
        return self.node(
            "Resize",
            x,
            "",
            "twice",
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    def context(self, x: str, net: LiteNet) -> str:
        x8 = self.prelu(self.conv(x, "context.down8", 2), "context.act8")
        x16 = self.prelu(self.conv(x8, "context.down16", 2), "context.act16")
        x32 = self.prelu(self.conv(x16, "context.down32", 2), "context.act32")
        for i in range(len(net.context.blocks32)):
            x32 = self.residual(x32, f"context.blocks32.{i}")
        x16 = self.node("Add", x16, self.grow(self.conv(x32, "context.up16")))
        for i in range(len(net.context.blocks16)):
            x16 = self.residual(x16, f"context.blocks16.{i}")
        x8 = self.node("Add", x8, self.grow(self.conv(x16, "context.up8")))
        x8 = self.residual(x8, "context.block8")
        return self.shuffle(self.conv(x8, "context.out"), 2)

    def shuffle(self, x: str, scale: int) -> str:
        return self.node("DepthToSpace", x, blocksize=scale, mode="CRD")

    def finish(self, picture: str, features: str) -> str:
        hints = self.shuffle(self.conv(features, "finish.hints"), SCALE)
        seen = self.node("Concat", picture, "input", hints, axis=1)
        return self.conv(self.prelu(self.conv(seen, "finish.conv1"), "finish.act"), "finish.conv2")


def build(net: LiteNet) -> onnx.ModelProto:
    """The network as an ONNX graph: `input` [1,3,H,W] -> `output` of the same shape."""
    graph = _Graph(net)
    graph.constant("twice", np.array([1, 1, 2, 2], np.float32))
    # ONNX's SpaceToDepth orders channels differently; a convolution of ones packs them as torch does.
    pack = np.eye(3 * SCALE * SCALE, dtype=np.float32).reshape(-1, 3, SCALE, SCALE)
    packed = graph.node(
        "Conv", "input", graph.weight("pack", pack), kernel_shape=[SCALE] * 2, strides=[SCALE] * 2
    )
    features = packed
    last = len(net.body) - 1
    for index in range(last):
        if index == net.context_after:
            features = graph.node("Add", features, graph.context(features, net))
        features = (graph.prelu if index % 2 else graph.conv)(features, f"body.{index}")
    detail = graph.node("Conv", packed, graph.weight("detail"), kernel_shape=[1, 1])
    kept = graph.node("Mul", graph.conv(features, "gate"), detail)
    total = graph.node("Add", graph.conv(packed, "skip"), graph.conv(features, f"body.{last}"))
    picture = graph.shuffle(graph.node("Add", total, kept), SCALE)
    graph.node("Add", picture, graph.finish(picture, features), name="output")

    shape = [1, 3, "height", "width"]
    proto = helper.make_graph(
        graph.nodes,
        "lite",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
        graph.initializers,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def check(model: onnx.ModelProto, net: LiteNet, size: tuple[int, int] = (512, 480)) -> float:
    """Largest difference between OpenVINO in fp32 and torch, on a seeded picture of noise over a ramp."""
    import openvino as ov

    height, width = size
    noise = np.random.default_rng(0).standard_normal((1, 3, height, width), np.float32)
    picture = np.clip(np.linspace(0, 1, width, dtype=np.float32) + 0.1 * noise, 0, 1)
    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    given = compiled([picture])[0]
    with torch.no_grad():
        wanted = net(torch.from_numpy(picture)).numpy()
    return float(np.abs(given - wanted).max())


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the running mean of a training run as ONNX.")
    parser.add_argument("--run", type=Path, required=True, help="run folder of training.train")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()

    state = torch.load(args.run / "last.pt", weights_only=True, map_location="cpu")
    net = LiteNet()
    net.load_state_dict(state["mean"])
    model = build(net)
    helper.set_model_props(model, {**ORIGIN, "steps": str(state["step"]), "crops": str(state["crops"])})
    error = check(model, net)
    if not error < TOLERANCE:
        raise SystemExit(f"export differs from torch by {error:.2g}; allowed is {TOLERANCE}")
    partial = args.output.with_name(args.output.name + ".partial")
    partial.write_bytes(model.SerializeToString())
    partial.replace(args.output)
    megabytes = args.output.stat().st_size / 1e6
    print(f"{args.output}: step {state['step']}, {megabytes:.1f} MB, differs from torch by {error:.1e}")


if __name__ == "__main__":
    main()
