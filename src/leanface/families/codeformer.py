"""CodeFormer (Zhou et al., NeurIPS 2022): looks faces up in a learned code book; RGB in [-1, 1].

The published ONNX file takes the weight of the picture's own features, the fidelity, as a second input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface.registry import FFHQ, Crop, Family, Knob, Variant, signed_input, signed_picture


def _prepare(crop: Crop) -> Mapping[str, NDArray[Any]]:
    return {**signed_input(crop), "weight": np.array([crop.knobs["fidelity"]], np.float64)}


FAMILY = Family(
    id="codeformer",
    role="restorer",
    template=FFHQ,
    prepare=_prepare,
    finish=signed_picture,
    knobs=(Knob("fidelity", "0: the best looking face, 1: the truest to the picture", default=0.5),),
    variants=(
        Variant(
            id="codeformer",
            sizes=(512,),
            files=("codeformer-onnx",),
            licence="S-Lab-1.0: non-commercial",
            origin="sczhou/CodeFormer",
            precisions=("fp32", "bf16"),
            about="heavy damage; --fidelity chooses between a fine face and the same face",
        ),
    ),
)
