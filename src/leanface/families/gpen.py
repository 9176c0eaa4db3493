"""GPEN (Yang et al., CVPR 2021): a U-Net whose decoder is StyleGAN2's generator; RGB in [-1, 1].

The bottleneck is a fully connected layer, so that each network takes crops of one size only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from leanface.engine.memory import Option
from leanface.registry import Family, Variant, signed_input, signed_picture

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


def _build(
    size: int, weights: Weights, *, name: str, half: bool, compute: Compute, **metadata: str
) -> onnx.ModelProto:
    from leanface.graphs.gpen import gpen

    graph = gpen(weights, name=name, half=half, compute=compute, **metadata)
    found = graph.graph.input[0].type.tensor_type.shape.dim[-1].dim_value
    if found != size:
        raise ValueError(f"it is a GPEN of {found} pixels")
    return graph


def _variant(
    size: int, *files: str, bf16: int, fp32: int, about: str, name: str = "", colourizes: bool = False
) -> Variant:
    """A size; ``bf16`` and ``fp32`` are what a process needs with it, in MB (10^6 bytes)."""
    settings: dict[str, Any] = {
        "licence": "none stated: non-commercial",
        "origin": "yangxy/GPEN",
        "precisions": ("fp32", "bf16", "fp16"),
        "build": partial(_build, size),
        "colourizes": colourizes,
        "options": (Option("bf16", bf16 * 10**6), Option("fp32", fp32 * 10**6)),
    }
    return Variant(id=name or f"gpen-{size}", sizes=(size,), files=files, about=about, **settings)


FAMILY = Family(
    id="gpen",
    role="restorer",
    template=_TEMPLATE,
    prepare=signed_input,
    finish=signed_picture,
    variants=(
        _variant(
            512,
            "gpen-512",
            "gpen-512-onnx",
            bf16=495,
            fp32=701,
            about="strong on heavy damage; the usual choice",
        ),
        _variant(
            256,
            "gpen-256",
            "gpen-256-onnx",
            bf16=279,
            fp32=310,
            about="small faces, four times less work",
        ),
        _variant(1024, "gpen-1024", "gpen-1024-onnx", bf16=650, fp32=919, about="close-ups"),
        _variant(2048, "gpen-2048", "gpen-2048-onnx", bf16=1040, fp32=1445, about="large close-ups"),
        _variant(
            1024,
            "gpen-colorize-1024",
            bf16=662,
            fp32=929,
            about="gives a gray picture colour; its luminance stays",
            name="gpen-colorize-1024",
            colourizes=True,
        ),
    ),
)
