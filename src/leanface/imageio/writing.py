"""Image and Origin to files, whole or not at all."""

from __future__ import annotations

import contextlib
import io
import math
import os
import secrets
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL.PngImagePlugin import PngInfo

from leanface import pixels as px
from leanface.errors import OutputError, UsageError
from leanface.imageio import deep
from leanface.imageio.formats import DEEP, FORMATS, QUALITY, STDIO, format_of
from leanface.imageio.metadata import Chunk, Origin, fitted
from leanface.types import FileOptions, Image

_PART = ".leanface-{}.part"
_XMP_KEY = b"XML:com.adobe.xmp\0\0\0\0\0"  # keyword, not compressed, no language, no translation
_JPEG_SEGMENT = 65_533  # bytes
_LARGE = 4_000_000  # values; for more, the best Huffman tables take more time and memory than they are worth
_HOMES = {
    "photoshop": ("IPTC or Photoshop's data", ("JPEG", "TIFF")),
    "comment": ("the comment", ("JPEG",)),
    "chunks": ("PNG's texts", ("PNG",)),
}
_SIDES = {"JPEG": 65_500, "WEBP": 16_383}
_NO_ALPHA, _NO_GRAY = ("JPEG",), ("WEBP", "AVIF", "HEIF")


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Refuse a target before any work is done for it.

    Raises:
        UsageError: a suffix whose format cannot be written.
        OutputError: it is a folder, or it exists and may not be overwritten.
    """
    if path != STDIO:
        format_of(path)
        check_free(path, overwrite=overwrite)


def check_size(path: Path, width: int, height: int) -> None:
    """Refuse a result that its format cannot hold, before any work is done for it.

    Raises:
        UsageError: it is too wide or too high.
    """
    limit = _SIDES.get(FORMATS.get(path.suffix.lower(), ""), math.inf)
    if max(width, height) > limit:
        raise UsageError(
            f"{path}: {width}x{height} is more than the {limit} pixels a side that the format holds; "
            "choose PNG or TIFF, or a smaller --scale"
        )


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a name that is taken.

    Raises:
        OutputError: it is a folder, or it exists and may not be overwritten.
    """
    if path.is_dir():
        raise OutputError(f"{path}: is a folder")
    if os.path.lexists(path) and not overwrite:
        raise OutputError(f"{path}: exists already; --overwrite replaces it")


def write(
    path: Path,
    image: Image,
    origin: Origin,
    files: FileOptions | None = None,
    *,
    whole: Callable[[Path, Path], None] | None = None,
) -> tuple[str, ...]:
    """Write a picture, whole or not at all.

    Args:
        path: its suffix decides the format.
        image: what to write.
        origin: of the file it was made from; all that the format can hold is kept.
        files: how.
        whole: is given the finished file just before it gets its name, and that name.

    Returns:
        Notes: what the format could not hold.

    Raises:
        OutputError: the target exists, or it cannot be written.
        UsageError: the suffix stands for no format, or for one that cannot hold 16 bits.
    """
    files = files or FileOptions()
    check_writable(path, overwrite=files.overwrite)
    if path == STDIO:
        return _to_stdout(image, origin, files)
    kind = format_of(path)
    with _whole(path, overwrite=files.overwrite, whole=whole) as stream:
        return encode(stream, kind, image, origin, files, name=str(path))


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file, whole or not at all.

    Raises:
        OutputError: the target exists, or it cannot be written.
    """
    check_free(path, overwrite=overwrite)
    with _whole(path, overwrite=overwrite) as stream:
        stream.write(text.encode())


@contextlib.contextmanager
def _whole(
    path: Path, *, overwrite: bool, whole: Callable[[Path, Path], None] | None = None
) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete."""
    temporary = path.with_name(_PART.format(secrets.token_hex(8)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(temporary):
            with temporary.open("wb") as stream:
                yield stream
            if whole:
                whole(temporary, path)
            _publish(temporary, path, overwrite=overwrite)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _to_stdout(image: Image, origin: Origin, files: FileOptions) -> tuple[str, ...]:
    kind = format_of(Path(f"_.{files.format}")) if files.format else origin.format
    stream = io.BytesIO()
    notes = encode(stream, kind if kind in FORMATS.values() else "PNG", image, origin, files)
    try:
        sys.stdout.buffer.write(stream.getbuffer())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output: cannot be written ({error.strerror or error})") from error
    return notes


def _publish(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file its name; without ``overwrite`` never that of another, even of one just made."""
    if not overwrite:
        try:
            os.link(temporary, path)
            return
        except FileExistsError:
            raise OutputError(f"{path}: exists already; --overwrite replaces it") from None
        except OSError:  # a file system without hard links
            check_free(path, overwrite=False)
    temporary.replace(path)


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Make a new file, and keep it locked, so that ``remove_stale`` knows that somebody is at work on it."""
    with path.open("xb") as stream:
        try:
            import fcntl
        except ImportError:  # Windows deletes no open file anyway, but renames none either
            stream.close()
        else:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def remove_stale(folder: Path) -> int:
    """Delete unfinished files that a killed process of ours left in a folder; returns how many."""
    removed = 0
    for path in folder.glob(_PART.format("*")):
        with contextlib.suppress(OSError):
            if not _is_locked(path):
                path.unlink()
                removed += 1
    return removed


def _is_locked(path: Path) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def encode(
    stream: IO[bytes],
    kind: str,
    image: Image,
    origin: Origin,
    files: FileOptions,
    *,
    name: str = "the result",
) -> tuple[str, ...]:
    """Write a picture in a format to a seekable stream; returns notes about what the format cannot hold.

    Raises:
        OutputError: it cannot be encoded.
        UsageError: the format holds 8 bits a channel, the picture has 16, and that was not allowed.
    """
    if files.strip_metadata:
        origin = origin.stripped()
    channels, notes = _fitting_channels(image, kind, files, name)
    origin, lost = _fitting_origin(origin, kind, channels)
    try:
        if kind == "TIFF":
            _tiff(stream, channels, origin)
        elif channels.dtype == np.uint16:
            deep.write_png(stream, channels, _png_chunks(origin))
        else:
            _pillow(channels).save(stream, format=kind, **_settings(kind, origin, files.quality, channels))
    except OSError:
        raise
    except (ValueError, RuntimeError, SystemError, TypeError, OverflowError, struct.error) as error:
        raise OutputError(f"{name}: cannot be encoded as {kind} ({error})") from error
    return notes + lost


def _fitting_channels(
    image: Image, kind: str, files: FileOptions, name: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """[h, w, c] as the format takes it, and what it cost."""
    pixels, alpha = image.pixels, image.alpha
    notes: list[str] = []
    if pixels.dtype == np.uint16 and kind not in DEEP:
        if not files.allow_8bit:
            raise UsageError(
                f"{name}: {kind} cannot hold 16 bits a channel; choose PNG or TIFF, or --allow-8bit"
            )
        pixels, alpha = _to_8_bits(pixels), None if alpha is None else _to_8_bits(alpha)
        notes.append(f"{kind} holds 8 bits a channel: 16 bits were rounded to 8")
    if alpha is not None and kind in _NO_ALPHA:
        pixels, alpha = _on_white(pixels, alpha), None
        notes.append(f"{kind} has no alpha: flattened on white")
    # Few programs, Pillow not among them, read gray and alpha of 16 bits from TIFF.
    as_colour = kind in _NO_GRAY or (kind == "TIFF" and alpha is not None and pixels.dtype == np.uint16)
    channels = pixels[..., :1] if image.gray and not as_colour else pixels
    if alpha is not None:
        channels = np.concatenate([channels, alpha[..., None]], axis=2)
    return channels, tuple(notes)


def _to_8_bits(values: NDArray[Any]) -> NDArray[Any]:
    out = np.empty(values.shape, np.uint8)
    for band in deep.bands(len(values)):
        out[band] = px.to_depth(px.to_float(values[band]), np.dtype(np.uint8))
    return out


def _on_white(pixels: NDArray[Any], alpha: NDArray[Any]) -> NDArray[Any]:
    out = np.empty_like(pixels)
    for band in deep.bands(len(pixels)):
        opacity = px.to_float(alpha[band])[..., None]
        out[band] = px.to_depth(px.to_float(pixels[band]) * opacity + (1 - opacity), pixels.dtype)
    return out


def _fitting_origin(origin: Origin, kind: str, channels: NDArray[Any]) -> tuple[Origin, tuple[str, ...]]:
    """The origin without what the format cannot hold, and a note about what was known to be there."""
    height, width = channels.shape[:2]
    lost: list[str] = []
    if origin.exif:
        try:
            origin = replace(origin, exif=fitted(origin.exif, width, height))
        except ValueError:
            origin = replace(origin, exif=b"")
            lost.append("a broken EXIF block")
    if origin.icc[16:20] == b"GRAY" and channels.shape[2] > 2:
        origin = replace(origin, icc=b"")
        lost.append("the gray colour profile")
    limit = {"JPEG": _JPEG_SEGMENT - 29, "BMP": 0}.get(kind)
    if limit is not None:
        for field in ("exif", "xmp"):
            if len(getattr(origin, field)) > limit:
                origin = replace(origin, **{field: b""})  # type: ignore[arg-type]
                lost.append(field.upper())
    for field, (name, kinds) in _HOMES.items():
        if getattr(origin, field) and kind not in kinds:
            lost.append(name)
    if kind == "BMP" and origin.icc:
        lost.append("the colour profile")
    if origin.format != kind and origin.colours and not origin.icc:
        lost.append("PNG's colour chunks")
    return origin, (f"{kind} cannot hold this, which was left out: {', '.join(lost)}",) if lost else ()


def _pillow(channels: NDArray[Any]) -> PillowImage.Image:
    plane = channels[..., 0] if channels.shape[2] == 1 else channels
    return PillowImage.fromarray(np.ascontiguousarray(plane))


def _tiff(stream: IO[bytes], channels: NDArray[Any], origin: Origin) -> None:
    blobs = {700: origin.xmp, 34377: origin.photoshop, 34675: origin.icc}
    deep.write_tiff(
        stream, channels, exif=origin.exif, dpi=origin.dpi, compress=origin.compressed,
        blobs=[(tag, data) for tag, data in blobs.items() if data],
    )  # fmt: skip


def _png_chunks(origin: Origin) -> list[Chunk]:
    """What stands before the pixels of a PNG file, but for what Pillow writes by itself."""
    chunks = list(origin.colours)
    if origin.icc:
        chunks = [(kind, data) for kind, data in chunks if kind != b"sRGB"]
        chunks.append((b"iCCP", b"ICC Profile\0\0" + zlib.compress(origin.icc)))
    if origin.dpi:
        chunks.append((b"pHYs", struct.pack(">IIB", *(int(v / 0.0254 + 0.5) for v in origin.dpi), 1)))
    chunks += _png_texts(origin)
    if origin.exif:
        chunks.append((b"eXIf", origin.exif))
    return chunks


def _png_texts(origin: Origin) -> list[Chunk]:
    return [*origin.chunks, *([(b"iTXt", _XMP_KEY + origin.xmp)] if origin.xmp else [])]


def _settings(kind: str, origin: Origin, quality: int | None, channels: NDArray[Any]) -> dict[str, Any]:
    """What Pillow's writer of that format is told."""
    settings: dict[str, Any] = {}
    if origin.icc:
        settings["icc_profile"] = origin.icc
    if origin.dpi:
        settings["dpi"] = origin.dpi
    if origin.exif:
        settings["exif"] = b"Exif\0\0" + origin.exif
    if origin.xmp and kind != "PNG":
        settings["xmp"] = origin.xmp
    if kind == "JPEG":
        settings |= {"optimize": channels.size < _LARGE, "comment": origin.comment}
        settings |= _jpeg_quality(origin, quality, channels.shape[2])
        if resources := _segments(b"\xff\xed", b"Photoshop 3.0\0", origin.photoshop):
            settings["extra"] = resources
    elif kind == "WEBP" and origin.lossless and quality is None:
        settings |= {"lossless": True, "exact": True}
    elif kind == "WEBP":
        settings["quality"] = quality or QUALITY
    elif kind == "AVIF":
        settings |= {"quality": quality or QUALITY, "subsampling": "4:4:4"}
    elif kind == "HEIF":
        settings |= {"quality": quality or QUALITY, "chroma": 444}
    elif kind == "PNG":
        settings["pnginfo"] = text = PngInfo()
        for chunk in [*origin.colours, *_png_texts(origin)]:
            text.add(*chunk)
    return settings


def _jpeg_quality(origin: Origin, quality: int | None, channels: int) -> dict[str, Any]:
    """The source's own tables, so that what was not restored loses next to nothing; else good ones."""
    if quality is None and len(origin.tables) in (1, 2) and origin.format == "JPEG":
        tables = list(origin.tables) if channels == 3 else [origin.tables[0]]
        settings: dict[str, Any] = {"qtables": tables, "progressive": origin.progressive}
        return settings | ({"subsampling": origin.subsampling} if channels == 3 else {})
    return {"quality": quality or QUALITY, "subsampling": "4:4:4"}


def _segments(marker: bytes, header: bytes, data: bytes) -> bytes:
    """JPEG segments that hold data of any length."""
    step = _JPEG_SEGMENT - len(header)
    parts = [header + data[i : i + step] for i in range(0, len(data), step)]
    return b"".join(marker + struct.pack(">H", len(part) + 2) + part for part in parts)
