"""A small writer of ONNX graphs.

Every method adds one node and returns the name of its output, so that a network reads like its formula.
Weights keep the keys of the checkpoint they come from.

Two choices set how large a file and its process are. With ``half`` the weights of a float32 graph are stored
as float16, each followed by a Cast, so that the file halves while the graph stays float32: engines fold the
Cast away and choose the precision they compute in themselves. With ``compute`` the graph itself is typed in
16 bits: engines that compute in that type keep the weights as they are, in half the memory. What must stay
exact there is marked ``wide`` and stays float32, as does what is computed from it; ``narrow`` and ``widen``
lead from one to the other.

Weights are large: each goes into the model as it comes, and ``save`` writes them one by one, so that there
are never two copies of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Weights = Mapping[str, NDArray[Any]]
Compute = Literal["float32", "float16", "bfloat16"]


class Build(Protocol):
    """Builds a network's graph from the arrays of its checkpoint; ``half`` and ``compute`` as above.

    Raises ValueError where the arrays are another network's.
    """

    def __call__(
        self, weights: Weights, *, name: str, half: bool, compute: Compute, **metadata: str
    ) -> onnx.ModelProto: ...


OPSET = 17
IR_VERSION = 8  # the one that opset 17 came with: older engines refuse newer files
BFLOAT16_OPSET = 22  # the first whose convolutions take bfloat16
BFLOAT16_IR_VERSION = 10

_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


class GraphBuilder:
    """Writes nodes and weights into an ONNX model, which ``model()`` returns."""

    def __init__(self, name: str, *, half: bool, compute: Compute = "float32") -> None:
        self.half = half
        self.compute = compute
        typed = compute == "bfloat16"
        self._model = onnx.ModelProto(
            ir_version=BFLOAT16_IR_VERSION if typed else IR_VERSION, producer_name="leanface",
            opset_import=[helper.make_opsetid("", BFLOAT16_OPSET if typed else OPSET)],
        )  # fmt: skip
        self._graph = self._model.graph
        self._graph.name = name
        self._constants: set[str] = set()
        self._weights: dict[str, str] = {}
        self._wide: set[str] = set()

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        """Declare a float32 input; a string in ``shape`` is a free dimension."""
        self._graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        self._wide.add(name)
        return name

    def output(self, tensor: str, name: str, shape: Sequence[int | str]) -> None:
        """Make ``tensor`` the float32 output ``name``."""
        for node in self._graph.node:
            for names in (node.input, node.output):
                for i, used in enumerate(names):
                    if used == tensor:
                        names[i] = name
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def weight(self, key: str, value: NDArray[Any], *, wide: bool = False, exact: bool = False) -> str:
        """Add a weight (once per key) and return its tensor: of the graph's type, or float32 where ``wide``.

        Of what is float32 in the graph, vectors such as biases stay so in the file: they weigh nothing and
        their error would not average out. So does what is marked ``exact``.

        Raises:
            ValueError: a finite value that float16 cannot hold.
        """
        if key in self._weights:
            return self._weights[key]
        value = np.ascontiguousarray(value, dtype=np.float32)
        name = key
        if self.compute != "float32" and not wide:
            self._store(key, value, self.compute)
        elif self.half and value.size > 4096 and not exact:
            self._store(key, value, "float16")
            name = self._node("Cast", [key], {"to": TensorProto.FLOAT}, f"{key}.float32")
        else:
            self._store(key, value, "float32")
        if wide:
            self._wide.add(name)
        self._weights[key] = name
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a tensor of any type as it is (shapes, scales, axes)."""
        if name not in self._constants:
            self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
            self._constants.add(name)
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        return self._node(op_type, list(inputs), attributes, f"{op_type}_{len(self._graph.node)}")

    def conv(self, x: str, weight: str, bias: str | None = None, **attributes: Any) -> str:
        """2-D convolution; ``pads`` and ``strides`` as ONNX has them."""
        return self.op("Conv", x, weight, *([bias] if bias else []), **attributes)

    def reshape(self, x: str, *shape: int) -> str:
        """The same values in another shape."""
        return self.op("Reshape", x, self._shape(shape))

    def expand(self, x: str, *shape: int) -> str:
        """Repeat along the dimensions of size 1."""
        return self.op("Expand", x, self._shape(shape))

    def rows(self, x: str, first: int, last: int) -> str:
        """Rows ``first`` to ``last``, this one excluded, of [batch, channels, height, width]."""
        bounds = (self.constant(f"row_{row}", np.array([row], np.int64)) for row in (first, last))
        return self.op("Slice", x, *bounds, self.constant("axis_2", np.array([2], np.int64)))

    def resize(self, x: str, factor: int) -> str:
        """Enlarge height and width by a whole factor, each pixel repeated."""
        scales = self.constant(f"scales_{factor}", np.array([1, 1, factor, factor], np.float32))
        return self.op(
            "Resize", x, "", scales, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip

    def is_wide(self, x: str) -> bool:
        """Whether a tensor is float32 in a graph of 16 bits."""
        return x in self._wide

    def narrow(self, x: str) -> str:
        """From float32 to the type of the graph, where it is not of it yet."""
        if self.compute == "float32" or not self.is_wide(x):
            return x
        y = self.op("Cast", x, to=_TYPES[self.compute])
        self._wide.remove(y)
        return y

    def widen(self, x: str) -> str:
        """From the type of the graph to float32, where it is not float32 yet."""
        if self.compute == "float32" or self.is_wide(x):
            return x
        y = self.op("Cast", x, to=TensorProto.FLOAT)
        self._wide.add(y)
        return y

    def _shape(self, shape: Sequence[int]) -> str:
        return self.constant("shape_" + "x".join(map(str, shape)), np.array(shape, np.int64))

    def _node(self, op_type: str, inputs: list[str], attributes: Mapping[str, Any], output: str) -> str:
        self._graph.node.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        if not self._wide.isdisjoint(inputs):
            self._wide.add(output)
        return output

    def _store(self, name: str, value: NDArray[np.float32], kind: Compute) -> None:
        stored: NDArray[Any]
        if kind == "bfloat16":  # the upper half of a float32, rounded to the nearest, ties to even
            bits = value.view(np.uint32)
            stored = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
        elif kind == "float16":
            with np.errstate(over="ignore"):
                stored = value.astype("<f2")
            if not np.isfinite(stored).all():
                raise ValueError(f"{name}: {float(np.abs(value).max()):g} is beyond float16")
        else:
            stored = value.astype("<f4", copy=False)
        self._graph.initializer.add(
            name=name, data_type=_TYPES[kind], dims=value.shape, raw_data=stored.tobytes()
        )

    def model(self, **metadata: str) -> onnx.ModelProto:
        """The finished model; ``metadata`` goes into its properties."""
        helper.set_model_props(self._model, metadata)
        return self._model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model a weight at a time: as one message it would need its own size in memory once more.

    A message may be written in parts, which a reader merges (Protocol Buffers, "Encoding", "Last One Wins"):
    first all but the weights, then each of them.

    Raises:
        OSError: the file cannot be written.
    """
    graph = onnx.GraphProto(
        name=model.graph.name, node=model.graph.node, input=model.graph.input, output=model.graph.output
    )
    first = onnx.ModelProto(
        ir_version=model.ir_version, producer_name=model.producer_name, opset_import=model.opset_import,
        metadata_props=model.metadata_props, graph=graph,
    )  # fmt: skip
    with path.open("wb") as file:
        file.write(first.SerializeToString())
        for tensor in model.graph.initializer:
            part = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]))
            file.write(part.SerializeToString())
