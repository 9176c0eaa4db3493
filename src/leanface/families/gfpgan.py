"""GFPGAN 1.4 (Wang et al., CVPR 2021): a U-Net steers a StyleGAN2 generator; RGB in [-1, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leanface.engine.memory import Option
from leanface.registry import FFHQ, Family, Variant, signed_input, signed_picture

if TYPE_CHECKING:
    import onnx

    from leanface.graphs.builder import Compute, Weights


def _build(weights: Weights, *, name: str, half: bool, compute: Compute, **metadata: str) -> onnx.ModelProto:
    from leanface.graphs.gfpgan import gfpgan

    graph = gfpgan(weights, name=name, half=half, compute=compute, **metadata)
    size = graph.graph.input[0].type.tensor_type.shape.dim[-1].dim_value
    if size != 512:
        raise ValueError(f"it is a GFPGAN of {size} pixels")
    return graph


FAMILY = Family(
    id="gfpgan",
    role="restorer",
    template=FFHQ,
    prepare=signed_input,
    finish=signed_picture,
    variants=(
        Variant(
            id="gfpgan-1.4",
            sizes=(512,),
            files=("gfpgan-1.4", "gfpgan-1.4-onnx"),
            build=_build,
            licence="Apache-2.0 with non-commercial parts",
            origin="TencentARC/GFPGAN",
            precisions=("fp32", "bf16"),
            options=(Option("bf16", 575_000_000), Option("fp32", 986_000_000)),
            about="light to heavy damage, smooth skin",
        ),
    ),
)
