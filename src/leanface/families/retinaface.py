"""RetinaFace with a MobileNet-0.25 backbone (Deng et al., CVPR 2020): the embedded face detector.

Input: RGB as bytes, [1, h, w, 3], sides of any length. Outputs are offsets to square anchors, two on each
cell of three grids: boxes [1, n, 4], class scores [1, n, 2] (the second is the face), landmarks [1, n, 10].
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from leanface.engine.session import Tensors
from leanface.pixels import Float
from leanface.registry import Crop, Family, Variant

_ANCHORS = ((8, (16, 32)), (16, (64, 128)), (32, (256, 512)))  # grid step and anchor sides, in pixels
_LEAST_SCORE = 0.02  # of a candidate; all but a few hundred of the anchors are below
_CENTRE_VARIANCE, _SIZE_VARIANCE = 0.1, 0.2


def _prepare(crop: Crop) -> Tensors:
    return {"input": np.ascontiguousarray(crop.pixels[None])}


def _finish(outputs: Tensors, crop: Crop) -> Float:
    boxes, scores, points = (outputs[name][0] for name in _names(outputs))
    likely = scores[:, 1] > _LEAST_SCORE
    boxes, scores, points = boxes[likely], scores[likely], points[likely]
    x, y, side = (values[likely] for values in _anchors(*crop.pixels.shape[:2]))
    centre_x = x + boxes[:, 0] * _CENTRE_VARIANCE * side
    centre_y = y + boxes[:, 1] * _CENTRE_VARIANCE * side
    half_width, half_height = (side / 2 * np.exp(boxes[:, i] * _SIZE_VARIANCE) for i in (2, 3))
    anchor = np.stack([x, y] * 5, axis=1)
    return np.column_stack(
        [
            centre_x - half_width,
            centre_y - half_height,
            centre_x + half_width,
            centre_y + half_height,
            scores[:, 1],
            anchor + points * _CENTRE_VARIANCE * side[:, None],
        ]
    ).astype(np.float32)


def _names(outputs: Tensors) -> tuple[str, str, str]:
    by_width = {array.shape[-1]: name for name, array in outputs.items()}
    return by_width[4], by_width[2], by_width[10]


@lru_cache(maxsize=8)
def _anchors(height: int, width: int) -> tuple[Float, Float, Float]:
    """Centres x, y and sides of all anchors, in the order of the network's outputs."""
    grids = []
    for step, sides in _ANCHORS:
        y, x = np.mgrid[: -(-height // step), : -(-width // step)].astype(np.float32)
        centres = (np.stack([x, y], axis=-1) + np.float32(0.5)) * np.float32(step)
        cells = np.repeat(centres.reshape(-1, 2), len(sides), axis=0)
        grids.append(np.column_stack([cells, np.tile(np.array(sides, np.float32), len(cells) // len(sides))]))
    x, y, side = np.concatenate(grids).astype(np.float32).T
    return x, y, side


FAMILY = Family(
    id="retinaface",
    role="detector",
    template=None,
    prepare=_prepare,
    finish=_finish,
    variants=(
        Variant(
            id="retinaface-mobilenet025",
            sizes=(),
            asset="retinaface-mobilenet025.onnx",
            licence="MIT",
            origin="yakhyo/retinaface-pytorch",
            precisions=("fp32", "bf16"),  # in bf16 landmarks move by about 0.2 % of the face
            about="finds faces and their five landmarks",
        ),
    ),
)
