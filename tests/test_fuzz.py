"""Mutated files of every format: a result, or one clear error; nothing else, and nothing left behind.

LEANFACE_FUZZ sets the number of mutations, LEANFACE_FUZZ_SEED the first of their seeds.
"""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import features

from leanface import imageio
from leanface.errors import LeanfaceError, OutputError
from leanface.imageio.formats import heif
from leanface.types import FileOptions
from tests.test_matrix import ICC, MODES, XMP, chunk, exif, raw_png, raw_tiff, sample

COUNT = int(os.environ.get("LEANFACE_FUZZ", "200"))
SEED = int(os.environ.get("LEANFACE_FUZZ_SEED", "0"))
LONGEST = 10.0  # seconds a file may take
FILES = FileOptions(max_pixels=1_000_000)


def seeds() -> dict[str, bytes]:
    """A whole file of each kind, with metadata."""
    found = {}
    for mode in ("L", "RGBA", "LA16", "RGB16", "RGBA16"):
        extra = [chunk(b"eXIf", exif(6)), chunk(b"tEXt", b"Title\0scan"), chunk(b"pHYs", bytes(9))]
        found[f"{mode}.png"] = raw_png(sample(*MODES[mode])[:40, :50], *extra)
    for mode in ("L16", "RGB16", "RGBA"):
        found[f"{mode}.tif"] = raw_tiff(sample(*MODES[mode])[:40, :50], "<", orientation=5)
    rgb = PillowImage.fromarray(sample(3, 8)[:40, :50])
    block = b"Exif\0\0" + exif(6)
    kinds: dict[str, dict[str, Any]] = {
        "a.jpg": {"exif": block, "icc_profile": ICC, "xmp": XMP % 6, "comment": b"a comment"},
        "progressive.jpg": {"progressive": True},
        "a.tif": {"exif": block, "compression": "raw"},
        "lzw.tif": {"compression": "tiff_lzw", "icc_profile": ICC},
        "jpeg.tif": {"compression": "jpeg"},
        "lossy.webp": {"exif": block, "xmp": XMP % 3},
        "lossless.webp": {"lossless": True, "icc_profile": ICC},
        "animated.webp": {"save_all": True, "append_images": [rgb.rotate(90)]},
        "animated.png": {"save_all": True, "append_images": [rgb.rotate(90)]},
        "animated.gif": {"save_all": True, "append_images": [rgb.rotate(90)]},
        "pages.tif": {"save_all": True, "append_images": [rgb.rotate(90)]},
        "a.bmp": {},
    }
    if features.check("avif"):
        kinds["a.avif"] = {"exif": block, "icc_profile": ICC}
    if heif():
        kinds["a.heic"] = {"exif": block, "icc_profile": ICC}
    for name, settings in kinds.items():
        stream = io.BytesIO()
        rgb.save(stream, format=imageio.READABLE[Path(name).suffix], **settings)
        found[name] = stream.getvalue()
    stream = io.BytesIO()
    rgb.convert("CMYK").save(stream, format="JPEG", icc_profile=ICC)
    found["cmyk.jpg"] = stream.getvalue()
    stream = io.BytesIO()
    rgb.quantize(16).save(stream, format="PNG", transparency=3)
    found["palette.png"] = stream.getvalue()
    return found


def mutated(data: bytes, random: np.random.Generator) -> bytes:
    """Some of: a bit flipped, a value made extreme, a part cut out, doubled, zeroed, the end cut off."""
    out = bytearray(data)
    for _ in range(int(random.integers(1, 5))):
        # Headers and directories are where the trouble is, so half of the hits go there.
        reach = len(out) if random.random() < 0.5 else min(len(out), 200)
        at, length = int(random.integers(0, max(1, reach))), int(random.integers(1, 40))
        kind = int(random.integers(0, 6))
        if kind == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << int(random.integers(0, 8))
        elif kind == 1:
            out[at : at + 4] = struct.pack(">I", int(random.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000])))
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = out[at : at + length]
        elif kind == 4:
            out[at : at + length] = bytes(len(out[at : at + length]))
        elif random.random() < 0.3:
            del out[at:]
    return bytes(out)


def with_good_sums(data: bytes) -> bytes:
    """A PNG file whose checksums are right again, so that what lies behind them is reached."""
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        (length,) = struct.unpack_from(">I", out, at)
        if at + 12 + length > len(out):
            break
        struct.pack_into(">I", out, at + 8 + length, zlib.crc32(out[at + 4 : at + 8 + length]))
        at += 12 + length
    return bytes(out)


@pytest.mark.parametrize("part", range(10))
def test_a_mutated_file_gives_a_picture_or_one_line(part: int, tmp_path: Path) -> None:
    whole = seeds()
    names = sorted(whole)
    outcomes = {"picture": 0, "error": 0}
    for seed in range(SEED + part, SEED + COUNT, 10):
        random = np.random.default_rng(seed)
        name = names[seed % len(names)]
        data = mutated(whole[name], random)
        if name.endswith(".png") and random.random() < 0.7:
            data = with_good_sums(data)
        source, target = tmp_path / f"{seed}-{name}", tmp_path / "out" / f"{seed}.png"
        source.write_bytes(data)
        start = time.monotonic()
        try:
            image, origin = imageio.read(source, FILES)
            other = target.with_suffix((".tif", ".jpg", ".webp")[seed % 3])
            imageio.write(target, image, origin, FILES)
            try:
                imageio.write(other, image, origin, FileOptions(allow_8bit=True))
            except OutputError:
                assert max(image.width, image.height) > 16_383 and not other.exists(), seed  # WebP ends there
                continue
            back, _ = imageio.read(target)  # what is written is whole
            assert back.pixels.shape == image.pixels.shape
            assert (back.pixels == image.pixels).all()
            assert imageio.read(other)[0].pixels.shape == image.pixels.shape
            outcomes["picture"] += 1
        except LeanfaceError as error:
            assert "\n" not in str(error) and source.name in str(error), (seed, error)
            assert not target.exists(), seed
            outcomes["error"] += 1
        assert time.monotonic() - start < LONGEST, seed
    assert COUNT < 200 or min(outcomes.values()) > 0, outcomes
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("name", sorted(seeds()))
def test_a_file_cut_anywhere_gives_a_picture_or_one_line(name: str, tmp_path: Path) -> None:
    data = seeds()[name]
    source = tmp_path / name
    for length in [*range(0, min(64, len(data)), 7), *np.linspace(64, len(data) - 1, 12, dtype=int)]:
        source.write_bytes(data[: int(length)])
        try:
            imageio.read(source, FILES)
        except LeanfaceError as error:
            assert "\n" not in str(error) and name in str(error)
