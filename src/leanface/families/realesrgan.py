"""Real-ESRGAN (Wang et al., 2021) as a restorer of faces: the crop is shrunk, then enlarged by 4.

The network knows nothing of faces and takes everything it sees for detail or damage. So the crop is shrunk to
what the face really holds, and where the crop already was as sharp as the result it is kept.
"""

from __future__ import annotations

import numpy as np

from leanface import pixels as px
from leanface.engine.memory import Option
from leanface.engine.session import Tensors
from leanface.pixels import Float
from leanface.registry import FFHQ, Crop, Family, Variant

_FACTOR = 4
_WORKING_SIZES = (128, 192, 256)  # for a crop of 512
_NOISE_SPREAD = 2.9  # 95th percentile over median of |x| for Gaussian noise
_VISIBLE = 1.5 / 255  # detail below this is not seen


def _prepare(crop: Crop) -> Tensors:
    side = working_size(crop)
    return {"input": px.planes(np.clip(px.resize(crop.pixels, side, side), 0, 1))}


def _finish(outputs: Tensors, crop: Crop) -> Float:
    size = crop.pixels.shape[0]
    enlarged = px.interleaved(outputs["output"])
    restored: Float = np.clip(px.resize(enlarged, size, size), 0, 1)
    had, has = (_detail(image, enlarged.shape[0] // _FACTOR) for image in (crop.pixels, restored))
    restored += np.float32(already_good(had, has)) * (crop.pixels - restored)
    return restored


def working_size(crop: Crop) -> int:
    """Side to shrink the crop to: the least that keeps what the face holds, by its size in the picture and
    by what shrinking would lose."""
    size = int(crop.pixels.shape[0])
    sides = [side * size // 512 for side in _WORKING_SIZES]
    holds = size / max(1.0, crop.scale)
    for side in sides:
        if side >= holds or _detail(crop.pixels, side) <= _VISIBLE:
            return side
    return sides[-1]


def already_good(had: float, has: float) -> float:
    """How much of the crop to keep, 0 to 1, from its detail and that of the restored crop: none up to half
    the restored crop's, all from nine tenths."""
    return float(np.clip((had / max(has, _VISIBLE) - 0.5) / 0.4, 0, 1))


def _detail(pixels: Float, side: int) -> float:
    """How strong the structure is that shrinking to ``side`` loses, noise taken off; in [0, 1] units.

    Structure is rare and strong, noise is everywhere: what the 95th percentile has beyond the spread that
    noise of the same median would have.
    """
    gray = px.luminance(pixels)[..., None]
    size = gray.shape[0]
    lost = np.abs(gray - px.resize(px.resize(gray, side, side), size, size))
    median, high = np.percentile(lost, (50, 95))
    return max(0.0, float(high - _NOISE_SPREAD * median))


FAMILY = Family(
    id="realesrgan",
    role="restorer",
    template=FFHQ,
    prepare=_prepare,
    finish=_finish,
    variants=(
        Variant(
            id="realesrgan-x4plus",
            sizes=(512, 1024),
            asset="realesrgan-x4plus.onnx",
            licence="BSD-3-Clause",
            origin="xinntao/Real-ESRGAN",
            precisions=("fp32", "bf16"),
            options=(Option("bf16", 570_000_000), Option("fp32", 808_000_000)),
            about="embedded: crisp on light and medium damage, slower",
        ),
    ),
)
