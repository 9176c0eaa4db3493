"""Real-ESRGAN (Wang et al., 2021) as a restorer of faces: the crop is shrunk, then enlarged by 4 or 2.

The networks know nothing of faces and take everything they see for detail or damage. So the crop is shrunk to
what the face really holds, but no further than the network can bring back to its size; and where the crop
already was as sharp as the result it is kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from leanface import pixels as px
from leanface.engine.memory import Option, TileCost
from leanface.engine.session import Tensors
from leanface.pixels import Float
from leanface.registry import FFHQ, Crop, Enlarging, Family, Variant

if TYPE_CHECKING:
    import onnx

    from leanface.graphs.builder import Compute, Weights

_RESULTS = (1, 1.5, 2)  # sides that the enlarged picture may have, in sides of the crop
_NOISE_SPREAD = 2.9  # 95th percentile over median of |x| for Gaussian noise
_VISIBLE = 1.5 / 255  # detail below this is not seen


def _prepare(crop: Crop) -> Tensors:
    side = working_size(crop)
    return {"input": px.planes(np.clip(px.resize(crop.pixels, side, side), 0, 1))}


def _finish(outputs: Tensors, crop: Crop) -> Float:
    size = crop.pixels.shape[0]
    enlarged = px.interleaved(outputs["output"])
    restored: Float = np.clip(px.resize(enlarged, size, size), 0, 1)
    had, has = (_detail(image, enlarged.shape[0] // crop.factor) for image in (crop.pixels, restored))
    restored += np.float32(already_good(had, has)) * (crop.pixels - restored)
    return restored


def working_size(crop: Crop) -> int:
    """Side to shrink the crop to: the least that keeps what the face holds, by its size in the picture and
    by what shrinking would lose."""
    size = int(crop.pixels.shape[0])
    sides = [int(result * size) // crop.factor for result in _RESULTS]
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


def _build(
    network: str, weights: Weights, *, name: str, half: bool, compute: Compute, **metadata: str
) -> onnx.ModelProto:
    from leanface.graphs import realesrgan

    write, factor = {
        "x4plus": (realesrgan.rrdbnet, 4),
        "x2plus": (realesrgan.rrdbnet, 2),
        "compact": (realesrgan.srvgg, 4),
    }[network]
    return write(weights, factor=factor, name=name, half=half, compute=compute, **metadata)


def _split(graph: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    from leanface.graphs import realesrgan

    return realesrgan.split(graph)


def _enlarging(
    halo: int, *, bf16: tuple[int, int], fp32: tuple[int, int], step: int = 1, deep: bool = False
) -> Enlarging:
    """``bf16`` and ``fp32`` are what a process needs with the network loaded, in MB (10^6 bytes), and bytes a
    pixel that it is shown at once.

    ``deep`` is for RRDBNet. It sees 348 pixels far, too far for a halo, but 96 do. Measured with x4plus on
    tiles of 64: on a good photograph the largest error is 1.8 levels of 255 with a halo of 48, 0.5 with 64;
    on a damaged one 18 with 48, 5 with 64, 0.5 with 80 and 0.2 with 96. Its last layers see 1.25 pixels far.
    The others see no farther than the halo that they have.
    """
    costs = (TileCost("bf16", bf16[0] * 10**6, bf16[1]), TileCost("fp32", fp32[0] * 10**6, fp32[1]))
    return Enlarging(halo * step, costs, step, _split if deep else None, seam=2)


def _variant(id: str, *, bf16: tuple[int, int], fp32: tuple[int, int], about: str, **fields: Any) -> Variant:
    """One network; ``bf16`` and ``fp32`` are what a process needs with it, in MB (10^6 bytes), on crops of
    512 and 1024 that hold as much as they can."""
    options = [
        Option(precision, megabytes * 10**6, size)
        for precision, needs in (("bf16", bf16), ("fp32", fp32))
        for megabytes, size in zip(needs, (0, 1024), strict=True)
    ]
    return Variant(
        id=id,
        sizes=(512, 1024),
        licence="BSD-3-Clause",
        origin="xinntao/Real-ESRGAN",
        precisions=("fp32", "bf16"),
        options=tuple(options),
        about=about,
        **fields,
    )


FAMILY = Family(
    id="realesrgan",
    role="restorer",
    template=FFHQ,
    prepare=_prepare,
    finish=_finish,
    variants=(
        _variant(
            "realesrgan-x4plus",
            asset="realesrgan-x4plus.onnx",
            files=("realesrgan-x4plus",),
            build=partial(_build, "x4plus"),
            factor=4,
            enlarging=_enlarging(96, bf16=(350, 2000), fp32=(425, 3500), deep=True),
            bf16=(720, 2040),
            fp32=(1145, 3640),
            about="embedded: crisp on light and medium damage, slower",
        ),
        _variant(
            "realesrgan-x2plus",
            files=("realesrgan-x2plus",),
            build=partial(_build, "x2plus"),
            factor=2,
            enlarging=_enlarging(96, bf16=(345, 570), fp32=(375, 1120), step=2, deep=True),
            bf16=(700, 705),
            fp32=(1160, 1165),
            about="light damage, closer to the picture than x4plus",
        ),
        _variant(
            "realesr-general-x4v3",
            files=("realesr-general-x4v3",),
            build=partial(_build, "compact"),
            factor=4,
            enlarging=_enlarging(34, bf16=(160, 1100), fp32=(162, 1400)),
            bf16=(232, 574),
            fp32=(244, 587),
            about="quick, light damage; smooths",
        ),
        _variant(
            "realesr-animevideov3",
            asset="realesr-animevideov3-x4.onnx",
            factor=4,
            enlarging=_enlarging(18, bf16=(155, 1100), fp32=(155, 1130)),
            bf16=(230, 574),
            fp32=(239, 606),
            about="embedded: for drawn faces; too smooth for photographs",
        ),
    ),
)
