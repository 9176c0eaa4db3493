"""ONNX's operators on PyTorch's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from leanface.engine.backends.torch.onnx_file import ELEMENT_TYPES, REAL_TYPES
from leanface.errors import ModelError

_PIECES = 8
_WHOLE = 1 << 20
"""Bytes of the smallest piece."""

Attributes = Mapping[str, Any]
Spare = Collection[int]
"""Places of the operands that die with the operator and that it may write into."""


class Operators:
    """ONNX's operators on PyTorch's tensors, by ONNX's names (https://onnx.ai/onnx/operators).

    Each takes the node's attributes, what it may write into, and the operands. Whole numbers, which say how
    long or where something is, lie on the processor always.
    """

    def __init__(self, torch: Any, compute: str | None, opset: int, *, last: bool) -> None:
        """``compute`` is what is computed in wherever the graph says float32, or None: as the graph says;
        ``last`` has maps and kernels with their channels last."""
        self.torch = torch
        self.F = torch.nn.functional
        self._compute = compute
        self._opset = opset
        self._last = last

    def last(self, x: Any) -> Any:
        """A map or kernel as it should lie in memory."""
        if x.ndim != 4 or not self._last:
            return x
        return x.contiguous(memory_format=self.torch.channels_last)

    def dtype(self, name: str) -> Any:
        """PyTorch's type for one of the graph's."""
        return getattr(self.torch, self._compute if self._compute and name in REAL_TYPES else name)

    def empty(self, shape: Sequence[int], dtype: Any, device: Any) -> Any:
        """A tensor without contents, as it should lie in memory."""
        last = self.torch.channels_last if self._last and len(shape) == 4 else self.torch.contiguous_format
        return self.torch.empty(shape, dtype=dtype, device=device, memory_format=last)

    # -- elementwise

    def _binary(self, function: Callable[..., Any], spare: Spare, x: Any, y: Any) -> Any:
        shape = self.torch.broadcast_shapes(x.shape, y.shape)
        into = next((v for i, v in enumerate((x, y)) if i in spare and v.shape == shape), None)
        return function(x, y, out=into)

    def Add(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self._binary(self.torch.add, spare, x, y)

    def Sub(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self._binary(self.torch.sub, spare, x, y)

    def Mul(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self._binary(self.torch.mul, spare, x, y)

    def Div(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        if not x.dtype.is_floating_point:
            return self.torch.div(x, y, rounding_mode="trunc")
        return self._binary(self.torch.div, spare, x, y)

    def _unary(self, function: Callable[..., Any], spare: Spare, x: Any) -> Any:
        return function(x, out=x if 0 in spare else None)

    def Neg(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.neg, spare, x)

    def Sqrt(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.sqrt, spare, x)

    def Reciprocal(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.reciprocal, spare, x)

    def Sigmoid(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.sigmoid, spare, x)

    def Tanh(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self._unary(self.torch.tanh, spare, x)

    def Relu(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self.F.relu(x, inplace=0 in spare)

    def LeakyRelu(self, a: Attributes, spare: Spare, x: Any) -> Any:
        if x.is_meta:  # PyTorch would load a compiler for that, and make a copy
            return x if 0 in spare else self.torch.empty_like(x)
        return self.F.leaky_relu(x, a.get("alpha", 0.01), inplace=0 in spare)

    def PRelu(self, a: Attributes, spare: Spare, x: Any, slope: Any) -> Any:
        if slope.ndim == 3 and slope.shape[1:] == (1, 1) and x.ndim == 4:
            return self.F.prelu(x, slope.reshape(-1))
        return self.torch.where(x < 0, x * slope, x)

    def Clip(self, a: Attributes, spare: Spare, x: Any, low: Any = None, high: Any = None) -> Any:
        if low is None and high is None:
            return x
        return self.torch.clamp(
            x, *(None if v is None else v.to(x.device, x.dtype) for v in (low, high)),
            out=x if 0 in spare else None,
        )  # fmt: skip

    def Cast(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return x.to(self.dtype(ELEMENT_TYPES[a["to"]]))

    def Softmax(self, a: Attributes, spare: Spare, x: Any) -> Any:
        axis = a.get("axis", -1 if self._opset >= 13 else 1)
        if self._opset >= 13:
            return self.torch.softmax(x, axis)
        flat = x.reshape(math.prod(x.shape[:axis]), -1)  # before opset 13 over all axes from that one on
        return self.torch.softmax(flat, 1).reshape(x.shape)

    # -- convolutions

    def Conv(self, a: Attributes, spare: Spare, x: Any, weight: Any, bias: Any = None) -> Any:
        weight, kernel = self.last(weight), weight.shape[2:]
        strides, dilations, pads = self._window(a, kernel)
        n = len(kernel)
        cut: list[tuple[int, int, int]] = []
        padding = [max(pads[i], pads[n + i]) for i in range(n)]
        if any((p - pads[i]) % s for i, (p, s) in enumerate(zip(padding, strides, strict=True))):
            x = self.F.pad(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])
            padding = [0] * n
        else:  # PyTorch pads both ends alike; a row too many is computed and cut off, which copies nothing
            for i, (p, s) in enumerate(zip(padding, strides, strict=True)):
                span = dilations[i] * (kernel[i] - 1) + 1
                rows = (x.shape[2 + i] + pads[i] + pads[n + i] - span) // s + 1
                cut.append((2 + i, (p - pads[i]) // s, rows))
        sides = [
            (side + 2 * p - d * (k - 1) - 1) // s + 1
            for side, p, d, k, s in zip(x.shape[2:], padding, dilations, kernel, strides, strict=True)
        ]
        y = self._unfilled(x, len(weight), sides)
        if y is None:
            convolve = (self.F.conv1d, self.F.conv2d, self.F.conv3d)[n - 1]
            y = convolve(x, weight, bias, strides, padding, dilations, a.get("group", 1))
        return self._cut(y, cut)

    def ConvAdd(self, a: Attributes, spare: Spare, y: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        """A convolution of ``x`` added to ``y``, some rows at a time if it can be written there."""
        weight = self.last(weight)
        strides, dilations, pads = self._window(a, weight.shape[2:])
        rows = x.ndim == 4 and (x.shape[2] + pads[0] + pads[2] - dilations[0] * (weight.shape[2] - 1) - 1)
        height = rows // strides[0] + 1
        if 0 not in spare or x.ndim != 4 or y.ndim != 4 or y.shape[1:3] != (len(weight), height):
            made = self.Conv(a, (), x, weight, bias)
            return self.Add({}, {0, *([1] if 0 in spare else [])}, made, y)
        # A library may bring the kernel into an order of its own for each piece: not where it is large.
        step = -(-height // min(_PIECES, max(1, y.nbytes // max(_WHOLE, 2 * weight.nbytes))))
        for first in range(0, height, step):
            last = min(first + step, height)
            top = first * strides[0] - pads[0]
            bottom = (last - 1) * strides[0] - pads[0] + dilations[0] * (weight.shape[2] - 1) + 1
            start, stop = max(top, 0), min(bottom, x.shape[2])
            around = [start - top, pads[1], bottom - stop, pads[3]]
            part = self.Conv({**a, "pads": around}, (), x.narrow(2, start, stop - start), weight, bias)
            y.narrow(2, first, last - first).add_(part)
            del part
        return y

    def ConvTranspose(self, a: Attributes, spare: Spare, x: Any, weight: Any, bias: Any = None) -> Any:
        weight, kernel = self.last(weight), weight.shape[2:]
        strides, dilations, pads = self._window(a, kernel)
        if "output_shape" in a:
            raise ModelError("ConvTranspose with output_shape is not known here")
        n = len(kernel)
        extra = a.get("output_padding") or [0] * n
        padding = [min(pads[i], pads[n + i]) for i in range(n)]
        group = a.get("group", 1)
        sides = [
            (side - 1) * s - 2 * p + d * (k - 1) + e + 1
            for side, p, d, k, s, e in zip(
                x.shape[2:], padding, dilations, kernel, strides, extra, strict=True
            )
        ]
        y = self._unfilled(x, group * weight.shape[1], sides)
        if y is None:
            transpose = (self.F.conv_transpose1d, self.F.conv_transpose2d, self.F.conv_transpose3d)[n - 1]
            y = transpose(x, weight, bias, strides, padding, extra, group, dilations)
        cut = [
            (2 + i, pads[i] - p, sides[i] - (pads[i] - p) - (pads[n + i] - p)) for i, p in enumerate(padding)
        ]
        return self._cut(y, cut)

    def _unfilled(self, x: Any, channels: int, sides: Sequence[int]) -> Any:
        """The result of a convolution of a tensor without contents; None if it has any. PyTorch would load a
        compiler to find its shape."""
        if not x.is_meta:
            return None
        return self.empty((len(x), channels, *sides), x.dtype, "meta")

    def AveragePool(self, a: Attributes, spare: Spare, x: Any) -> Any:
        kernel = a["kernel_shape"]
        strides, dilations, pads = self._window(a, kernel)
        n = len(kernel)
        if n != 2 or pads[:n] != pads[n:] or max(dilations) > 1:
            raise ModelError("AveragePool like this one is not known here")
        return self.F.avg_pool2d(
            x, kernel, strides, pads[:n], bool(a.get("ceil_mode")), bool(a.get("count_include_pad"))
        )

    def _window(self, a: Attributes, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Strides, dilations and pads: those at the beginnings, then those at the ends."""
        ones = [1] * len(kernel)
        if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise ModelError(f"auto_pad {a['auto_pad']} is not known here")
        return (
            list(a.get("strides") or ones), list(a.get("dilations") or ones),
            list(a.get("pads") or [0, 0] * len(kernel)),
        )  # fmt: skip

    @staticmethod
    def _cut(x: Any, spans: Sequence[tuple[int, int, int]]) -> Any:
        """From along an axis, as many."""
        for axis, first, count in spans:
            if count != x.shape[axis]:
                x = x.narrow(axis, first, count)
        return x

    # -- products

    def MatMul(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        return self.torch.matmul(x, y)

    def CastMatMul(self, a: Attributes, spare: Spare, x: Any, y: Any) -> Any:
        """A matrix in another type times ``y``, some rows at a time."""
        dtype = self.dtype(ELEMENT_TYPES[a["to"]])
        if x.ndim != 2 or y.ndim != 2 or x.dtype == dtype:
            return x.to(dtype) @ y
        step = -(-len(x) // _PIECES)
        return self.torch.cat([x[i : i + step].to(dtype) @ y for i in range(0, len(x), step)])

    def Gemm(self, a: Attributes, spare: Spare, x: Any, y: Any, z: Any = None) -> Any:
        x, y = (x.mT if a.get("transA") else x), (y.mT if a.get("transB") else y)
        product = self.torch.matmul(x, y) * a.get("alpha", 1.0)
        return product if z is None else product + z * a.get("beta", 1.0)

    def ReduceMean(self, a: Attributes, spare: Spare, x: Any, axes: Any = None) -> Any:
        chosen = a.get("axes") if axes is None else axes.tolist()
        if not chosen:
            if a.get("noop_with_empty_axes"):
                return x
            chosen = list(range(x.ndim))
        return x.mean(chosen, keepdim=bool(a.get("keepdims", 1)))

    # -- shapes and places

    def Identity(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return x

    def Shape(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return self.torch.tensor(list(x.shape)[a.get("start", 0) : a.get("end")], dtype=self.torch.int64)

    def Reshape(self, a: Attributes, spare: Spare, x: Any, shape: Any) -> Any:
        sides = shape.tolist()
        if not a.get("allowzero"):
            sides = [x.shape[i] if side == 0 else side for i, side in enumerate(sides)]
        return x.reshape(sides)

    def Expand(self, a: Attributes, spare: Spare, x: Any, shape: Any) -> Any:
        return x.expand(self.torch.broadcast_shapes(x.shape, tuple(shape.tolist())))

    def Unsqueeze(self, a: Attributes, spare: Spare, x: Any, axes: Any = None) -> Any:
        chosen = a["axes"] if axes is None else axes.tolist()
        rank = x.ndim + len(chosen)
        for axis in sorted(axis % rank for axis in chosen):
            x = x.unsqueeze(axis)
        return x

    def Transpose(self, a: Attributes, spare: Spare, x: Any) -> Any:
        return x.permute(a.get("perm") or tuple(reversed(range(x.ndim))))

    def Concat(self, a: Attributes, spare: Spare, *parts: Any) -> Any:
        return self.torch.cat(parts, a["axis"])

    def Slice(
        self, a: Attributes, spare: Spare, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
    ) -> Any:
        firsts, lasts = starts.tolist(), ends.tolist()
        along = range(len(firsts)) if axes is None else axes.tolist()
        by = [1] * len(firsts) if steps is None else steps.tolist()
        for first, last, axis, step in zip(firsts, lasts, along, by, strict=True):
            if step < 1:
                raise ModelError("Slice backwards is not known here")
            span = range(x.shape[axis])[first:last:step]
            first, stop = (span.start, max(span.stop, span.start)) if span else (0, 0)
            places = [slice(None)] * (axis % x.ndim) + [slice(first, stop, step)]
            x = x[tuple(places)]
        return x

    def Gather(self, a: Attributes, spare: Spare, x: Any, at: Any) -> Any:
        axis = a.get("axis", 0) % x.ndim
        places = at.to(x.device)
        places = self.torch.where(places < 0, places + x.shape[axis], places)
        found = x.index_select(axis, places.reshape(-1))
        return found.reshape([*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]])

    def DepthToSpace(self, a: Attributes, spare: Spare, x: Any) -> Any:
        n, c, h, w = x.shape
        s = a["blocksize"]
        if a.get("mode", "DCR") == "CRD":
            return self.F.pixel_shuffle(x, s)
        y = x.reshape(n, s, s, c // s**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return y.reshape(n, c // s**2, h * s, w * s)

    def SpaceToDepth(self, a: Attributes, spare: Spare, x: Any) -> Any:
        n, c, h, w = x.shape
        s = a["blocksize"]
        y = x.reshape(n, c, h // s, s, w // s, s).permute(0, 3, 5, 1, 2, 4)
        return y.reshape(n, c * s**2, h // s, w // s)

    def Resize(
        self, a: Attributes, spare: Spare, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None
    ) -> Any:
        """Height and width, by pixels repeated whole times, or bilinear from the pixels' centres."""
        factors = scales.tolist() if scales is not None and scales.numel() else None
        sides = sizes.tolist() if factors is None else [
            math.floor(n * f) for n, f in zip(x.shape, factors, strict=True)
        ]  # fmt: skip
        mode = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
        kept = tuple(sides[:2]) == tuple(x.shape[:2]) and not a.get("antialias") and x.ndim == 4
        if kept and mode == ("linear", "half_pixel"):
            return self.F.interpolate(x, sides[2:], mode="bilinear", align_corners=False)
        whole = all(new % old == 0 for new, old in zip(sides, x.shape, strict=True))
        floor = mode == ("nearest", "asymmetric") and a.get("nearest_mode") == "floor"
        if kept and whole and (floor or mode == ("nearest", "half_pixel")):
            return self.F.interpolate(x, sides[2:], mode="nearest")
        raise ModelError(f"Resize {' '.join(mode)} to {sides} of {list(x.shape)} is not known here")


def operators() -> set[str]:
    """The names of those that a graph may have."""
    return {name for name in vars(Operators) if name[0].isupper() and name not in ("ConvAdd", "CastMatMul")}
