"""Which file formats there are, and what each of them can hold."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from PIL import features

from leanface.errors import UsageError

FORMATS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WEBP",
    ".tif": "TIFF", ".tiff": "TIFF", ".bmp": "BMP", ".avif": "AVIF", ".heic": "HEIF", ".heif": "HEIF",
}  # fmt: skip
"""Format by suffix, in lower case: what can be written."""

READABLE = {**FORMATS, ".gif": "GIF"}
"""What is taken from folders."""

DEEP = ("PNG", "TIFF")
"""Those that hold 16 bits a channel."""

QUALITY = 95
"""Of formats that lose, where neither the caller nor the source says better."""

STDIO = Path("-")
"""Stands for standard input and output."""


def format_of(path: Path) -> str:
    """Pillow's name of the format that a file name stands for.

    Raises:
        UsageError: none that can be written here.
    """
    name = FORMATS.get(path.suffix.lower())
    if name is None:
        raise UsageError(f"{path}: the suffix must be one of {', '.join(FORMATS)}")
    if name in ("WEBP", "AVIF") and not features.check(name.lower()):
        raise UsageError(f"{path}: this build of Pillow has no {name}; choose another format")
    if name == "HEIF" and not heif():
        raise UsageError(f"{path}: HEIC needs the extra: pip install 'leanface[heic]'")
    return name


def result_suffix(source: Path) -> str:
    """The suffix of a result of that file: its own, or PNG's where its format is only read."""
    return ".png" if source.suffix.lower() == ".gif" else source.suffix


@cache
def heif() -> bool:
    """Whether HEIC can be read and written; tells Pillow how."""
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except ImportError:
        return False
    return True
