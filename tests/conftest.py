from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leanface import imageio, settings
from leanface.types import Image

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test sees or touches the caches of the machine it runs on."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("LEANFACE_CACHE", str(folder / "leanface"))
        for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE", "LEANFACE_WEIGHTS"):
            patch.delenv(name, raising=False)
        settings.load.cache_clear()
        yield folder


@pytest.fixture(scope="session")
def astronaut() -> Image:
    """512x512, one upright face of 95x120 pixels."""
    return imageio.read(ROOT / "samples" / "astronaut.png")[0]


@pytest.fixture
def noise() -> Image:
    """64 wide, 48 high, every value used."""
    return Image(np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8))
