"""A small writer of ONNX graphs.

Every method adds one node and returns the name of its output, so that a network reads like its formula.
Weights keep the keys of the checkpoint they come from. With ``half`` they are stored as float16, each
followed by a Cast, so that the file halves while the graph stays float32: engines fold the Cast away and
choose the precision they compute in themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Weights = Mapping[str, NDArray[Any]]


class Build(Protocol):
    """Builds a network's graph from the arrays of its checkpoint; ``half`` stores them as float16.

    Raises ValueError where the arrays are another network's.
    """

    def __call__(self, weights: Weights, *, name: str, half: bool, **metadata: str) -> onnx.ModelProto: ...


OPSET = 17
IR_VERSION = 8  # the one that opset 17 came with: older engines refuse newer files


class GraphBuilder:
    """Collects nodes and weights; ``model()`` checks them and returns the ONNX model."""

    def __init__(self, name: str, *, half: bool) -> None:
        self.name = name
        self.half = half
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._cast: dict[str, str] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        """Declare a float32 input; a string in ``shape`` is a free dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def output(self, tensor: str, name: str, shape: Sequence[int | str]) -> None:
        """Make ``tensor`` the float32 output ``name``."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, used in enumerate(names):
                    if used == tensor:
                        names[i] = name
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def weight(self, key: str, value: NDArray[Any]) -> str:
        """Add a weight (once per key) and return the name of its float32 tensor.

        Vectors such as biases stay float32: they weigh nothing and their error would not average out.

        Raises:
            ValueError: a finite value that float16 cannot hold.
        """
        if key in self._cast:
            return self._cast[key]
        value = np.ascontiguousarray(value, dtype=np.float32)
        name = key
        if self.half and value.size > 4096:
            with np.errstate(over="ignore"):
                half = value.astype(np.float16)
            if not np.isfinite(half).all():
                raise ValueError(f"{key}: {float(np.abs(value).max()):g} is beyond float16")
            self._initializers[key] = numpy_helper.from_array(half, key)
            name = self._node("Cast", [key], {"to": TensorProto.FLOAT}, f"{key}.float32")
        else:
            self._initializers[key] = numpy_helper.from_array(value, key)
        self._cast[key] = name
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a tensor of any type as it is (shapes, scales, axes)."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self._node(op_type, list(inputs), attributes, f"{op_type}_{len(self._nodes)}")

    def conv(self, x: str, weight: str, bias: str | None = None, **attributes: Any) -> str:
        """2-D convolution; ``pads`` and ``strides`` as ONNX has them."""
        return self.op("Conv", x, weight, *([bias] if bias else []), **attributes)

    def resize(self, x: str, factor: int) -> str:
        """Enlarge height and width by a whole factor, each pixel repeated."""
        scales = self.constant(f"scales_{factor}", np.array([1, 1, factor, factor], np.float32))
        return self.op(
            "Resize", x, "", scales, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip

    def _node(self, op_type: str, inputs: list[str], attributes: Mapping[str, Any], output: str) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def model(self, **metadata: str) -> onnx.ModelProto:
        """The finished model; ``metadata`` goes into its properties.

        Raises:
            onnx.checker.ValidationError: the graph is not valid ONNX.
        """
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="leanface",
            ir_version=IR_VERSION,
        )  # fmt: skip
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model)
        return model
