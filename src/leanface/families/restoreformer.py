"""RestoreFormer++ (Wang et al., TPAMI 2023): reads a learned dictionary of faces; RGB in [-1, 1]."""

from __future__ import annotations

from leanface.registry import FFHQ, Family, Variant, signed_input, signed_picture

FAMILY = Family(
    id="restoreformer",
    role="restorer",
    template=FFHQ,
    prepare=signed_input,
    finish=signed_picture,
    variants=(
        Variant(
            id="restoreformer++",
            sizes=(512,),
            files=("restoreformer++-onnx",),
            licence="Apache-2.0",
            origin="wzhouxiff/RestoreFormerPlusPlus",
            precisions=("fp32", "bf16"),
            about="light to heavy damage; weights free for any use",
        ),
    ),
)
