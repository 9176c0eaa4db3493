"""16 bits a channel in colour, which Pillow itself reads with 8 bits and does not write.

Reading: Pillow's decoders undo filters and compression of such files and then keep one byte of each value,
which one being a matter of the byte order they are told. So a file is decoded twice, once for each byte.
Writing: the two formats that hold such pixels are simple enough to be written here (PNG 1.2, TIFF 6.0).
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from leanface.imageio.metadata import EXIF_IFD, GPS_IFD, ORIENTATION, Chunk, byte_order

_NATIVE = "L" if sys.byteorder == "little" else "B"
_COLOURS = ("RGB;16", "RGBA;16", "RGBX;16")
_PNG_GRAY_ALPHA = "LA;16B"
_BAND = 128  # rows
_STRIP_BYTES = 1 << 20


def is_deep(raw_modes: Iterable[str]) -> bool:
    """Whether a file with these raw modes is one for ``decode``."""
    return any(m[:-1] in _COLOURS or m == _PNG_GRAY_ALPHA for m in raw_modes)


def bands(height: int) -> Iterator[slice]:
    """The rows of a picture, some at a time."""
    for top in range(0, height, _BAND):
        yield slice(top, min(height, top + _BAND))


def decode(
    opened: PillowImage.Image, reopen: Callable[[], PillowImage.Image], data: bytes
) -> NDArray[np.uint16]:
    """uint16 [h, w, c] of a file with 16 bits a channel: gray and alpha, RGB, or RGBA.

    Args:
        opened: the file, nothing decoded yet.
        reopen: opens it again.
        data: its bytes.
    """
    as_bytes = opened.format == "PNG" and data[24:26] == bytes([16, 4])  # bit depth, colour type
    opened.load()  # in any case: what stands behind the pixels is read then
    if as_bytes:
        return _as_bytes(data)
    out = np.empty((opened.height, opened.width, len(opened.mode)), np.uint16)
    for band in bands(opened.height):
        np.left_shift(_rows(opened, band), 8, out=out[band], dtype=np.uint16)
    with reopen() as low:
        low.tile = [tile._replace(args=_swapped(tile.args)) for tile in low.tile]
        low.load()
        for band in bands(low.height):
            out[band] |= _rows(low, band)
        low.close()
    return out


def _as_bytes(data: bytes) -> NDArray[np.uint16]:
    """16-bit gray and alpha of a PNG file, decoded as if its four bytes a pixel were RGBA."""
    header = data[12:24] + bytes([8, 6]) + data[26:29]  # IHDR: width, height, bit depth, colour type, ...
    changed = data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
    with PillowImage.open(io.BytesIO(changed)) as opened:
        opened.load()
        out = np.empty((opened.height, opened.width, 2), np.uint16)
        for band in bands(opened.height):
            out[band] = np.ascontiguousarray(_rows(opened, band)).view(">u2")
    return out


def _rows(opened: PillowImage.Image, band: slice) -> NDArray[np.uint8]:
    return np.asarray(opened.crop((0, band.start, opened.width, band.stop)))


def _swapped(args: Any) -> Any:
    """A decoder's arguments with the byte order of their raw mode turned round."""
    if isinstance(args, tuple):
        return tuple(_swapped(part) for part in args)
    if isinstance(args, str) and args[:-1] in _COLOURS:
        order = args[-1].replace("N", _NATIVE)
        return args[:-1] + {"L": "B", "B": "L"}[order]
    return args


def write_png(stream: IO[bytes], pixels: NDArray[Any], before: Iterable[Chunk]) -> None:
    """A PNG file of uint8 or uint16 [h, w, c].

    Args:
        stream: where to.
        pixels: one to four channels: gray, gray and alpha, RGB, RGBA.
        before: chunks to stand before the pixels.
    """
    height, width, channels = pixels.shape
    stream.write(b"\x89PNG\r\n\x1a\n")
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    _png_chunk(stream, b"IHDR", struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, colour, 0, 0, 0))
    for kind, data in before:
        _png_chunk(stream, kind, data)
    packer = zlib.compressobj()
    step = channels * pixels.itemsize
    above = np.zeros(width * step, np.uint8)
    for band in bands(height):
        raw = np.ascontiguousarray(pixels[band], pixels.dtype.newbyteorder(">"))
        rows = raw.view(np.uint8).reshape(-1, width * step)
        if packed := packer.compress(_filtered(rows, above, step).tobytes()):
            _png_chunk(stream, b"IDAT", packed)
        above = rows[-1]
    _png_chunk(stream, b"IDAT", packer.flush())
    _png_chunk(stream, b"IEND", b"")


def _png_chunk(stream: IO[bytes], kind: bytes, data: bytes) -> None:
    stream.write(struct.pack(">I4s", len(data), kind))
    stream.write(data)
    stream.write(struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))))


def _filtered(rows: NDArray[np.uint8], above: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """Rows [n, bytes] with their filter byte: of Sub, Up and Paeth the one with the least absolute sum."""
    up = np.concatenate([above[None], rows[:-1]])
    left, corner = np.zeros_like(rows), np.zeros_like(rows)
    left[:, step:], corner[:, step:] = rows[:, :-step], up[:, :-step]
    a, b, c = (part.astype(np.int16) for part in (left, up, corner))
    from_a, from_b, from_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    paeth = np.where((from_a <= from_b) & (from_a <= from_c), left, np.where(from_b <= from_c, up, corner))
    choices = np.stack([rows - left, rows - up, rows - paeth])
    best = np.abs(choices.view(np.int8).astype(np.int16)).sum(2, dtype=np.int64).argmin(0)
    out = np.empty((len(rows), rows.shape[1] + 1), np.uint8)
    out[:, 0] = np.array([1, 2, 4], np.uint8)[best]
    out[:, 1:] = choices[best, np.arange(len(rows))]
    return out


# What a directory says about the file and not about the picture; the writer has its own.
_STRUCTURE = {
    *range(254, 267), 273, *range(277, 285), 296, 301, *range(317, 326), 330, *range(332, 335),
    *range(338, 348), *range(512, 522), *range(529, 533), 700, 34377, 34675,
}  # fmt: skip
_SHORT, _LONG, _RATIONAL, _BYTE, _UNDEFINED = 3, 4, 5, 1, 7
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}


Entry = tuple[int, int, bytes]
"""Type, count and value of a tag."""


def write_tiff(
    stream: IO[bytes],
    pixels: NDArray[Any],
    *,
    exif: bytes = b"",
    dpi: tuple[float, float] | None = None,
    blobs: Iterable[tuple[int, bytes]] = (),
    compress: bool = True,
) -> None:
    """A TIFF file of uint8 or uint16 [h, w, c].

    An EXIF block is itself the beginning of a TIFF file. So the file starts with it, byte for byte, which
    keeps every offset in it right, and the directory written behind the pixels takes its entries over.

    Args:
        stream: where to; seekable.
        pixels: one to four channels: gray, gray and alpha, RGB, RGBA.
        exif: the block to grow out of.
        dpi: resolution.
        blobs: tags with their bytes.
        compress: with Deflate and the horizontal predictor.
    """
    block = exif or b"II*\0" + bytes(4)
    order = byte_order(block)
    stream.write(block)
    height, width, channels = pixels.shape
    per_strip = max(1, _STRIP_BYTES // (width * channels * pixels.itemsize))
    offsets, counts = [], []
    for top in range(0, height, per_strip):
        packed = _strip(pixels[top : top + per_strip], order, compress)
        stream.write(b"\0" * (stream.tell() % 2))
        offsets.append(stream.tell())
        counts.append(len(packed))
        stream.write(packed)

    def packed_as(form: str, *values: int) -> bytes:
        return struct.pack(f"{order}{len(values)}{form}", *values)

    entries = {tag: entry for tag, entry in directory(exif).items() if tag not in _STRUCTURE} if exif else {}

    def add(tag: int, kind: int, *values: int) -> None:
        entries[tag] = kind, len(values), packed_as({_SHORT: "H", _LONG: "I"}[kind], *values)

    add(256, _LONG, width)
    add(257, _LONG, height)
    add(258, _SHORT, *[8 * pixels.itemsize] * channels)
    add(259, _SHORT, 8 if compress else 1)
    add(262, _SHORT, 1 if channels < 3 else 2)
    add(273, _LONG, *offsets)
    add(ORIENTATION, _SHORT, 1)
    add(277, _SHORT, channels)
    add(278, _LONG, per_strip)
    add(279, _LONG, *counts)
    add(284, _SHORT, 1)
    if compress:
        add(317, _SHORT, 2)
    if channels in (2, 4):
        add(338, _SHORT, 2)
    if dpi:
        for tag, value in zip((282, 283), dpi, strict=True):
            entries[tag] = _RATIONAL, 1, packed_as("I", round(value * 10000), 10000)
        add(296, _SHORT, 2)
    for tag, data in blobs:
        entries[tag] = _UNDEFINED if tag == 34675 else _BYTE, len(data), data
    _write_directory(stream, entries, order)


def _strip(rows: NDArray[Any], order: str, compress: bool) -> bytes:
    if compress:
        differences = rows.copy()
        differences[:, 1:] -= rows[:, :-1]
        rows = differences
    raw = np.ascontiguousarray(rows, rows.dtype.newbyteorder(order)).tobytes()  # type: ignore[arg-type]
    return zlib.compress(raw) if compress else raw


def directory(data: bytes) -> dict[int, Entry]:
    """The first directory of a TIFF file or EXIF block; entries that cannot be followed are left out.

    Raises:
        ValueError: it is neither.
    """
    order = byte_order(data)
    found: dict[int, Entry] = {}
    try:
        (first,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, first)
        for at in range(first + 2, first + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHI", data, at)
            size = _SIZES.get(kind, 0) * values
            start = at + 8 if size <= 4 else struct.unpack_from(order + "I", data, at + 8)[0]
            value = data[start : start + size]
            if size and len(value) == size:
                found[tag] = (kind if tag not in (EXIF_IFD, GPS_IFD) else _LONG), values, value
    except struct.error as error:
        raise ValueError(f"a broken directory: {error}") from error
    return found


def _write_directory(stream: IO[bytes], entries: dict[int, Entry], order: str) -> None:
    """Append a directory, its long values after it, and make it the file's first."""
    stream.write(b"\0" * (stream.tell() % 2))
    start = stream.tell()
    free = start + 2 + 12 * len(entries) + 4
    table, heap = struct.pack(order + "H", len(entries)), b""
    for tag, (kind, count, data) in sorted(entries.items()):
        field = data.ljust(4, b"\0")
        if len(data) > 4:
            field = struct.pack(order + "I", free + len(heap))
            heap += data + b"\0" * (len(data) % 2)
        table += struct.pack(order + "HHI", tag, kind, count) + field
    stream.write(table + bytes(4) + heap)
    stream.seek(4)
    stream.write(struct.pack(order + "I", start))
    stream.seek(0, io.SEEK_END)
