from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leanface import imageio
from leanface.types import Image

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def astronaut() -> Image:
    """512x512, one upright face of 95x120 pixels."""
    return imageio.read(ROOT / "samples" / "astronaut.png")[0]


@pytest.fixture
def noise() -> Image:
    """64 wide, 48 high, every value used."""
    return Image(np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8))
