"""leanface's own embedded restorer: one small network for a 512 crop, grown from Real-ESRGAN's compact one.

It sees the crop at full size (folded into channels) and returns it at the same size, RGB in [0, 1].
How it is made: ``training/``.
"""

from __future__ import annotations

from leanface import pixels as px
from leanface.engine.memory import Option
from leanface.engine.session import Tensors
from leanface.pixels import Float
from leanface.registry import FFHQ, Crop, Family, Variant


def _prepare(crop: Crop) -> Tensors:
    return {"input": px.planes(crop.pixels)}


def _finish(outputs: Tensors, crop: Crop) -> Float:
    return px.interleaved(outputs["output"])


FAMILY = Family(
    id="lite",
    role="restorer",
    template=FFHQ,
    prepare=_prepare,
    finish=_finish,
    variants=(
        Variant(
            id="lite",
            sizes=(512, 1024),
            asset="lite.onnx",
            licence="research and personal use",
            origin="leanface, from Real-ESRGAN",
            precisions=("fp32", "bf16", "fp16"),
            options=(
                Option("bf16", 210_000_000),
                Option("fp32", 236_000_000),
                Option("bf16", 371_000_000, 1024),
                Option("fp32", 443_000_000, 1024),
            ),
            about="embedded: quick, natural, for light and medium damage",
        ),
    ),
)
