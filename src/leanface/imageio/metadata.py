"""What a file holds beside its pixels: kept as bytes wherever the formats allow it.

An EXIF block is a small TIFF file: byte order, magic, offset of the first directory; a directory is a count,
12-byte entries (tag, type, count, value or offset) and the offset of the next one (TIFF 6.0, section 2).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace

ORIENTATION = 0x0112
EXIF_IFD, GPS_IFD = 0x8769, 0x8825
_WIDTHS, _HEIGHTS = (0x0100, 0xA002), (0x0101, 0xA003)
_XMP_ORIENTATION = re.compile(rb"""(tiff:Orientation(?:\s*=\s*["']|>)\s*)[2-8]""")

Chunk = tuple[bytes, bytes]
"""A PNG chunk: type and data."""


@dataclass(frozen=True)
class Origin:
    """What a file held beside its pixels, made to fit the upright picture.

    Attributes:
        format: Pillow's name of its format; empty where there was no file.
        exif: the EXIF block, from its byte order mark on; orientation 1, and without the thumbnail of the
            unrestored picture.
        icc: the ICC profile.
        xmp: the XMP packet.
        dpi: horizontal and vertical resolution.
        photoshop: Photoshop's image resources, which hold IPTC.
        comment: of a JPEG file.
        chunks: a PNG file's text and time.
        colours: a PNG file's chunks that say what its colours mean.
        lossless: a WebP file was lossless.
        compressed: a TIFF file was compressed.
        tables, subsampling, progressive: how a JPEG file was encoded; Pillow's terms.
        notes: lines a user should read.
    """

    format: str = ""
    exif: bytes = b""
    icc: bytes = b""
    xmp: bytes = b""
    dpi: tuple[float, float] | None = None
    photoshop: bytes = b""
    comment: bytes = b""
    chunks: tuple[Chunk, ...] = ()
    colours: tuple[Chunk, ...] = ()
    lossless: bool = False
    compressed: bool = True
    tables: tuple[tuple[int, ...], ...] = ()
    subsampling: int = 0
    progressive: bool = False
    notes: tuple[str, ...] = ()

    def stripped(self) -> Origin:
        """Without all that tells about the picture's making; what its colours need stays."""
        return replace(self, exif=b"", xmp=b"", photoshop=b"", comment=b"", chunks=())


def fitted(block: bytes, width: int, height: int) -> bytes:
    """An EXIF block for an upright picture of that size: every byte as it was but those that would lie.

    The orientation becomes 1, recorded sizes those given, and the thumbnail is no longer referred to.

    Raises:
        ValueError: the block cannot be followed.
    """
    try:
        return _fitted(block.removeprefix(b"Exif\0\0"), width, height)
    except struct.error as error:
        raise ValueError(f"the EXIF block is broken: {error}") from error


def _fitted(block: bytes, width: int, height: int) -> bytes:
    order = byte_order(block)
    patched = bytearray(block)
    first = struct.unpack_from(order + "I", block, 4)[0]
    directories = [first]
    for directory in directories:
        (count,) = struct.unpack_from(order + "H", block, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", block, entry)
            form = order + ("H" if kind == 3 else "I")
            if tag == ORIENTATION:
                struct.pack_into(form, patched, entry + 8, 1)
            elif tag in _WIDTHS and kind in (3, 4):
                struct.pack_into(form, patched, entry + 8, width)
            elif tag in _HEIGHTS and kind in (3, 4):
                struct.pack_into(form, patched, entry + 8, height)
            elif tag == EXIF_IFD and len(directories) == 1:
                directories.append(struct.unpack_from(order + "I", block, entry + 8)[0])
        end = directory + 2 + 12 * count
        if directory == first and end <= len(block) - 4:
            struct.pack_into(order + "I", patched, end, 0)
    return bytes(patched)


def byte_order(block: bytes) -> str:
    """``<`` or ``>``.

    Raises:
        ValueError: it is no TIFF header.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None:
        raise ValueError("the EXIF block is broken: no byte order")
    return order


def upright_xmp(packet: bytes) -> bytes:
    """An XMP packet whose orientation, where it names one, is 1; every other byte as it was."""
    return _XMP_ORIENTATION.sub(rb"\g<1>1", packet)
