"""One crop through one network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from leanface import pixels as px
from leanface.engine.session import Tensors
from leanface.errors import BrokenOutputError
from leanface.pixels import Float
from leanface.registry import Crop, Model

_BLACK = 0.1  # a crop that is nowhere lighter may well come back black


def restore(crop: Crop, model: Model, run: Callable[[Tensors], Tensors], *, gray: bool) -> Float:
    """Restore a crop.

    Args:
        crop: what to restore.
        model: how the network is fed.
        run: the network.
        gray: the picture has no colour; the result will have none either, unless the model gives colour.

    Returns:
        float32 [size, size, 3] in [0, 1].

    Raises:
        BrokenOutputError: the network returned something that is no picture.
        EngineError: it failed.
    """
    luminance = px.luminance(crop.pixels)[..., None] if model.variant.colourizes else None
    if luminance is not None:
        crop = replace(crop, pixels=np.repeat(luminance, 3, axis=2))
    restored = model.family.finish(run(model.family.prepare(crop)), crop)
    if restored.shape != crop.pixels.shape or not np.isfinite(restored).all():
        raise BrokenOutputError("the network did not return a picture; try another precision")
    if restored.max() <= 0 and crop.pixels.max() > _BLACK:
        raise BrokenOutputError("the network returned a black picture; try another precision")
    if luminance is not None:
        restored += luminance - px.luminance(restored)[..., None]
    elif gray:
        restored = np.repeat(px.luminance(restored)[..., None], 3, axis=2)
    return np.clip(restored, 0, 1, out=restored)
