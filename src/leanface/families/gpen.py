"""GPEN (Yang et al., CVPR 2021): a U-Net whose decoder is StyleGAN2's generator; RGB in [-1, 1].

The bottleneck is a fully connected layer, so that each network takes crops of one size only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from leanface import pixels as px
from leanface.engine.memory import Option
from leanface.engine.session import Tensors
from leanface.pixels import Float
from leanface.registry import Crop, Family, Variant

if TYPE_CHECKING:
    import onnx

    from leanface.graphs.builder import Compute, Weights

_TEMPLATE = tuple(
    (x / 512, y / 512)
    for x, y in (
        (202.0407, 242.8840),
        (309.4302, 242.2900),
        (256.0768, 303.9592),
        (211.9598, 366.8282),
        (300.8911, 366.3363),
    )
)


def _prepare(crop: Crop) -> Tensors:
    planes = px.planes(crop.pixels)
    planes *= np.float32(2)
    planes -= np.float32(1)
    return {"input": planes}


def _finish(outputs: Tensors, crop: Crop) -> Float:
    restored = px.interleaved(outputs["output"])
    restored += np.float32(1)
    restored *= np.float32(0.5)
    return restored


def _build(
    size: int, weights: Weights, *, name: str, half: bool, compute: Compute, **metadata: str
) -> onnx.ModelProto:
    from leanface.graphs.gpen import gpen

    graph = gpen(weights, name=name, half=half, compute=compute, **metadata)
    found = graph.graph.input[0].type.tensor_type.shape.dim[-1].dim_value
    if found != size:
        raise ValueError(f"it is a GPEN of {found} pixels")
    return graph


def _variant(size: int, *files: str, bf16: int, fp32: int, about: str) -> Variant:
    """A size; ``bf16`` and ``fp32`` are what a process needs with it, in MB (10^6 bytes)."""
    settings: dict[str, Any] = {
        "licence": "none stated: non-commercial",
        "origin": "yangxy/GPEN",
        "precisions": ("fp32", "bf16", "fp16"),
        "build": partial(_build, size),
        "options": (Option("bf16", bf16 * 10**6), Option("fp32", fp32 * 10**6)),
    }
    return Variant(id=f"gpen-{size}", sizes=(size,), files=files, about=about, **settings)


FAMILY = Family(
    id="gpen",
    role="restorer",
    template=_TEMPLATE,
    prepare=_prepare,
    finish=_finish,
    variants=(
        _variant(
            512,
            "gpen-512",
            "gpen-512-onnx",
            bf16=605,
            fp32=917,
            about="strong on heavy damage; the usual choice",
        ),
        _variant(
            256,
            "gpen-256",
            "gpen-256-onnx",
            bf16=298,
            fp32=334,
            about="small faces, four times less work",
        ),
        _variant(1024, "gpen-1024", "gpen-1024-onnx", bf16=797, fp32=1227, about="close-ups"),
        _variant(2048, "gpen-2048", "gpen-2048-onnx", bf16=1286, fp32=1882, about="large close-ups"),
    ),
)
