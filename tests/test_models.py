"""Every restorer of the registry in every precision on every engine that is here, with drawn weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leanface import Restorer, registry
from leanface.engine import pool
from leanface.errors import DeviceError
from leanface.types import Image, Options
from tests.drawn import weights_file

DEVICES = ("cpu", "ort-cpu")
SLOW = {"gpen-1024", "gpen-2048"}


CELLS = [
    pytest.param(
        model.variant.id, precision, device, marks=[pytest.mark.slow] if model.variant.id in SLOW else [],
        id=f"{model.variant.id}-{precision}-{device}",
    )
    for model in registry.models() for precision in model.variant.precisions for device in DEVICES
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drawn")


@pytest.mark.parametrize(("name", "precision", "device"), CELLS)
def test_restores_a_crop(name: str, precision: str, device: str, folder: Path) -> None:
    variant = registry.find(name).variant
    try:
        pool.resolve(device, precision, variant.precisions)
    except DeviceError as error:
        pytest.skip(str(error))
    weights = weights_file(name, folder)  # they go before the embedded ones, and are quicker
    assert weights or variant.asset, f"tests.drawn has no recipe for {name}"
    size = variant.sizes[0]
    shade = np.linspace(40, 200, size).astype(np.uint8)  # smooth: Real-ESRGAN works at its smallest size
    picture = np.stack([np.broadcast_to(shade, (size, size)), np.broadcast_to(shade[:, None], (size, size)),
                        np.full((size, size), 99, np.uint8)], axis=2)  # fmt: skip
    with Restorer(
        name, device=device, precision=precision, weights=weights, allow_unverified=True,  # type: ignore[arg-type]
        options=Options(aligned=True),
    ) as restorer:  # fmt: skip
        result = restorer.restore(Image(picture))
    assert (result.status, result.device, result.precision) == ("restored", device, precision)
    assert result.image.pixels.shape == (size, size, 3) and result.image.pixels.dtype == np.uint8
    if not weights:  # trained networks leave a smooth picture about as it is
        assert np.abs(result.image.pixels.astype(int) - picture).mean() < 8
    else:
        assert result.image.pixels.std() > 1
