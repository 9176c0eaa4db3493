"""Makes the sample portraits under samples/ from a wheel of scikit-image.

    pip download --no-deps -d WHEELS scikit-image
    python tools/make_samples.py WHEELS

The picture is NASA's portrait of the astronaut Eileen Collins, which is in the public domain. The damaged
copy is what an old print looks like after a cheap scan: head and shoulders, blurred, shrunk, noisy, at a low
JPEG quality.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

SAMPLES = Path(__file__).parents[1] / "samples"
HEAD = (75, 0, 375, 300)  # left, top, right, bottom in the 512x512 picture


def damaged(portrait: Image.Image) -> Image.Image:
    """Blur, shrink by two and a half, add noise and enlarge again."""
    width, height = portrait.size
    small = portrait.filter(ImageFilter.GaussianBlur(1.2)).resize((width * 2 // 5, height * 2 // 5))
    noise = np.random.default_rng(2026).normal(0, 5, (*small.size[::-1], 3))
    noisy = np.clip(np.asarray(small) + noise + 0.5, 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).resize(portrait.size, Image.Resampling.BICUBIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheels", type=Path, help="folder with the wheel")
    (wheel,) = parser.parse_args().wheels.glob("scikit_image-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        picture = Image.open(io.BytesIO(archive.read("skimage/data/astronaut.png"))).convert("RGB")
    SAMPLES.mkdir(exist_ok=True)
    picture.save(SAMPLES / "astronaut.png", optimize=True)
    damaged(picture.crop(HEAD)).save(SAMPLES / "portrait.jpg", quality=60)


if __name__ == "__main__":
    main()
