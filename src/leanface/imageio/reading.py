"""Files to Image and Origin."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageCms, JpegImagePlugin, UnidentifiedImageError

from leanface.errors import InputError
from leanface.imageio import deep
from leanface.imageio.formats import STDIO, heif
from leanface.imageio.metadata import EXIF_IFD, GPS_IFD, ORIENTATION, Chunk, Origin, fitted, upright_xmp
from leanface.types import FileOptions, Image

# Document and page name, description, maker, model, software, date, artist, host, copyright (TIFF 6.0).
_DESCRIPTIVE_TIFF = (269, 270, 271, 272, 285, 305, 306, 315, 316, 33432)
_SUBFILE_TYPE, _BITS, _PHOTOMETRIC, _PLANAR, _IPTC, _PHOTOSHOP = 254, 258, 262, 284, 33723, 34377
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
_TEXT_CHUNKS, _COLOUR_CHUNKS = (b"tEXt", b"zTXt", b"iTXt", b"tIME"), (b"gAMA", b"cHRM", b"sRGB", b"cICP")
_KEPT_ELSEWHERE = (b"XML:com.adobe.xmp\0", b"Raw profile type ")  # XMP, and EXIF or IPTC in text
_limit_lock = threading.Lock()


def content(path: Path) -> bytes:
    """A file's bytes, or those of standard input.

    Raises:
        InputError: missing, empty, or not to be read.
    """
    try:
        data = sys.stdin.buffer.read() if path == STDIO else path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not data:
        raise InputError(f"{path}: the file is empty")
    return data


def read(path: Path, files: FileOptions | None = None) -> tuple[Image, Origin]:
    """Read a picture.

    Raises:
        InputError: missing, empty, damaged, not a picture, too large, of several frames, or of a kind that
            would lose depth.
    """
    return decode(content(path), path, files)


def size_of(path: Path) -> tuple[int, int]:
    """Upright width and height of a picture, without decoding it.

    Raises:
        InputError: as ``read`` does for files that are no pictures.
    """
    with _own_pixel_limit(), _open(content(path), str(path)) as opened:
        width, height = opened.size
        return (height, width) if _orientation(opened) in (5, 6, 7, 8) else (width, height)


def decode(data: bytes, path: Path, files: FileOptions | None = None) -> tuple[Image, Origin]:
    """The picture in a file's bytes; ``path`` is for messages."""
    with _own_pixel_limit():
        try:
            return _decode(data, str(path), files or FileOptions())
        except UnidentifiedImageError:
            raise InputError(f"{path}: {_unknown(data)}") from None
        except (InputError, MemoryError):
            raise
        except Exception as error:  # codecs raise anything over a damaged file
            raise InputError(f"{path}: damaged or cut off ({' '.join(str(error).split())})") from error


def _decode(data: bytes, name: str, files: FileOptions) -> tuple[Image, Origin]:
    with _open(data, name) as opened:
        width, height = opened.size
        if width * height > files.max_pixels:
            raise InputError(
                f"{name}: {width}x{height} is more than {files.max_pixels} pixels; --max-pixels allows more"
            )
        notes = _frames(opened, name, files) + _depth(opened, data, name, files)
        channels, added = _decoded(opened, lambda: _open(data, name), data)
        orientation = _orientation(opened)
        height, width = channels.shape[:2] if orientation < 5 else channels.shape[1::-1]
        origin = _origin(opened, data, width, height)
        key = opened.info.get("transparency")
        opened.close()  # what follows needs its memory
    if added:
        origin = replace(origin, icc=b"", tables=())
    image = _image(_upright(_with_key(channels, key), orientation))
    return image, replace(origin, notes=(*notes, *added, *origin.notes))


def _decoded(
    opened: PillowImage.Image, reopen: Callable[[], PillowImage.Image], data: bytes
) -> tuple[NDArray[Any], list[str]]:
    """[h, w, c] as stored, and notes about a conversion to another colour space."""
    negative = opened.mode.startswith("I;16") and _tag(opened, _PHOTOMETRIC) == 0
    if deep.is_deep(_raw_modes(opened)) and not _depth_lost(opened, data):
        return deep.decode(opened, reopen, data), []
    opened.load()
    if opened.mode == "CMYK":
        converted, note = _from_cmyk(opened)
        return _channels(converted), [note]
    channels = _channels(opened)
    return (np.subtract(65535, channels, dtype=np.uint16) if negative else channels), []


def _open(data: bytes, name: str) -> PillowImage.Image:
    is_heif = (
        data[4:8] == b"ftyp" and b"avif" not in data[8:64] and any(b in data[8:64] for b in _HEIF_BRANDS)
    )
    if is_heif and not heif():
        raise InputError(f"{name}: HEIC needs the extra: pip install 'leanface[heic]'")
    return PillowImage.open(io.BytesIO(data))


def _unknown(data: bytes) -> str:
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "a kind of TIFF that cannot be read here; convert it to gray or RGB of 8 or 16 bits"
    return "not a picture that can be read here"


def _frames(opened: PillowImage.Image, name: str, files: FileOptions) -> list[str]:
    """Notes about what else the file holds, which is not restored."""
    count = getattr(opened, "n_frames", 1)
    if count <= 1:
        return []
    if opened.format == "MPO":
        return ["a second picture inside (preview, depth or gain map) was not kept"]
    if opened.format == "TIFF" and all(_reduced(opened, page) for page in range(1, count)):
        opened.seek(0)
        return ["a small preview inside was not kept"]
    if not files.first_frame:
        raise InputError(f"{name}: holds {count} frames or pages; --first-frame takes the first of them")
    opened.seek(0)
    return [f"only the first of {count} frames or pages was taken"]


def _reduced(opened: PillowImage.Image, page: int) -> bool:
    opened.seek(page)
    return bool(_tag(opened, _SUBFILE_TYPE) or 0) and bool(_tag(opened, _SUBFILE_TYPE) & 1)


def _tag(opened: PillowImage.Image, tag: int) -> Any:
    return getattr(opened, "tag_v2", {}).get(tag)


def _raw_modes(opened: PillowImage.Image) -> list[str]:
    parts = (part for tile in getattr(opened, "tile", ()) for part in _flat(tile[3]))
    return [part for part in parts if isinstance(part, str)]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _depth(opened: PillowImage.Image, data: bytes, name: str, files: FileOptions) -> list[str]:
    """Refuse pixels whose depth or range cannot be kept; notes about what was allowed to be lost."""
    if opened.mode == "LAB":
        raise InputError(f"{name}: Lab colours cannot be read here; convert the picture to RGB")
    if opened.mode in ("F", "I") or "I;12" in _raw_modes(opened):
        kind = {"F": "floating-point", "I": "32-bit"}.get(opened.mode, "12-bit")
        raise InputError(f"{name}: {kind} pixels have no fixed range; convert them to 8 or 16 bits")
    lost = _depth_lost(opened, data)
    if lost and not files.allow_8bit:
        raise InputError(f"{name}: {lost} cannot be kept; --allow-8bit takes it with 8 bits a channel")
    return [f"{lost} became 8 bits a channel"] if lost else []


def _depth_lost(opened: PillowImage.Image, data: bytes) -> str:
    """What Pillow would silently read with fewer bits than the file has; empty if nothing."""
    if opened.format == "AVIF":
        return "10 or 12 bits a channel" if is_deep_avif(data) else ""
    if opened.format == "HEIF":
        bits = opened.info.get("bit_depth", 8)
        return f"{bits} bits a channel" if bits > 8 else ""
    if opened.mode[0] in "IF":
        return ""
    raw = _raw_modes(opened)
    many = any("16" in part for part in raw) or max(_tag(opened, _BITS) or (8,)) > 8
    in_planes = _tag(opened, _PLANAR) == 2
    return "this kind of 16 bits a channel" if many and (in_planes or not deep.is_deep(raw)) else ""


def is_deep_avif(data: bytes) -> bool:
    """Whether an AVIF file has more than 8 bits (AV1 Codec ISO Media File Format Binding, section 2.3)."""
    box = data.find(b"av1C")
    return box >= 0 and bool(data[box + 6 : box + 7] and data[box + 6] & 0x40)  # high_bitdepth


def _channels(source: PillowImage.Image) -> NDArray[Any]:
    """[h, w, c] of a loaded picture: gray, gray and alpha, RGB or RGBA."""
    mode = source.mode
    if mode.startswith("I;16"):
        return np.asarray(source).astype(np.uint16)[..., None]
    target = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"}.get(mode, mode)
    if "transparency" in source.info:
        target = "LA" if target == "L" else "RGBA"
    if target not in ("L", "LA", "RGB", "RGBA"):
        target = "RGB"
    out = np.empty((source.height, source.width, len(target)), np.uint8)
    for band in deep.bands(source.height):  # Pillow's own way to an array holds the picture twice more
        part = source.crop((0, band.start, source.width, band.stop))
        part.info = source.info
        out[band] = np.asarray(part.convert(target) if mode != target else part).reshape(out[band].shape)
    return out


def _from_cmyk(opened: PillowImage.Image) -> tuple[PillowImage.Image, str]:
    """CMYK to sRGB by its own profile where it has one; the profile does not fit the result and goes."""
    if icc := opened.info.get("icc_profile"):
        with contextlib.suppress(ImageCms.PyCMSError, OSError):
            converted = ImageCms.profileToProfile(
                opened, ImageCms.ImageCmsProfile(io.BytesIO(icc)), ImageCms.createProfile("sRGB"),
                outputMode="RGB",
            )  # fmt: skip
            if converted is not None:
                return converted, "CMYK was converted to sRGB by its profile"
    return opened.convert("RGB"), "CMYK was converted to RGB; it has no usable profile"


def _with_key(channels: NDArray[Any], key: Any) -> NDArray[Any]:
    """16-bit channels with an alpha where a PNG file names one transparent colour."""
    if channels.dtype != np.uint16 or channels.shape[2] not in (1, 3) or not isinstance(key, (int, tuple)):
        return channels
    opaque = (channels != np.array(key, np.uint16).reshape(-1)).any(2, keepdims=True)
    return np.concatenate([channels, np.where(opaque, np.uint16(65535), np.uint16(0))], axis=2)


def _image(channels: NDArray[Any]) -> Image:
    gray, alpha = channels.shape[2] < 3, None
    if channels.shape[2] in (2, 4):
        alpha = np.ascontiguousarray(channels[..., -1])
        channels = channels[..., :-1]
    pixels = np.repeat(channels, 3, axis=2) if gray else np.ascontiguousarray(channels)
    return Image(pixels, alpha, gray)


def _orientation(opened: PillowImage.Image) -> int:
    if opened.format == "TIFF":
        return 1  # Pillow turns these when it loads them
    try:
        value = opened.getexif().get(ORIENTATION, 1)
    except Exception:  # a broken block is no reason to lose the picture
        return 1
    return value if value in range(1, 9) else 1


def _upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn and mirror as the EXIF orientation says (Exif 2.32, tag 0x0112)."""
    if orientation in (2, 4, 5, 7):
        pixels = pixels[:, ::-1]
    turns = {3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}.get(orientation, 0)
    return np.rot90(pixels, turns)


def _origin(opened: PillowImage.Image, data: bytes, width: int, height: int) -> Origin:
    info, notes = opened.info, []
    kind = "JPEG" if opened.format == "MPO" else opened.format or ""
    exif = _tiff_exif(opened) if kind == "TIFF" else info.get("exif") or b""
    exif = exif.removeprefix(b"Exif\0\0")
    if exif:
        try:
            exif = fitted(exif, width, height)
        except ValueError:
            exif = b""
            notes.append("the EXIF block is broken and was left out")
    origin = Origin(
        format=kind,
        exif=exif,
        icc=info.get("icc_profile") or b"",
        xmp=upright_xmp(_bytes(info.get("xmp") or info.get("XML:com.adobe.xmp") or b"")),
        dpi=_resolution(info.get("dpi")),
        notes=tuple(notes),
    )
    if isinstance(opened, JpegImagePlugin.JpegImageFile):
        return _with_jpeg(origin, opened)
    if kind == "PNG":
        kept = list(_png_chunks(data))
        texts = tuple(c for c in kept if c[0] in _TEXT_CHUNKS and not c[1].startswith(_KEPT_ELSEWHERE))
        return replace(origin, chunks=texts, colours=tuple(c for c in kept if c[0] in _COLOUR_CHUNKS))
    if kind == "TIFF":
        return replace(origin, compressed=info.get("compression") != "raw", photoshop=_tiff_resources(data))
    return replace(origin, lossless=kind == "WEBP" and _is_lossless_webp(data))


def _resolution(dpi: Any) -> tuple[float, float] | None:
    """Pillow's dpi where it can be true."""
    if not isinstance(dpi, tuple) or len(dpi) != 2:
        return None
    across, down = float(dpi[0]), float(dpi[1])
    return (across, down) if 1 <= across <= 65_535 and 1 <= down <= 65_535 else None


def _with_jpeg(origin: Origin, opened: JpegImagePlugin.JpegImageFile) -> Origin:
    """How it was encoded, its comment, and Photoshop's resources (APP13)."""
    header = b"Photoshop 3.0\0"
    resources = b"".join(
        data.removeprefix(header)
        for app, data in opened.applist
        if app == "APP13" and data.startswith(header)
    )
    return replace(
        origin,
        photoshop=resources,
        comment=_bytes(opened.info.get("comment") or b""),
        tables=tuple(tuple(opened.quantization[i]) for i in sorted(opened.quantization)),
        subsampling=max(0, JpegImagePlugin.get_sampling(opened)),
        progressive=bool(opened.info.get("progressive")),
    )


def _tiff_resources(data: bytes) -> bytes:
    """Photoshop's resources of a TIFF file; IPTC that stands alone becomes one (number 0x0404)."""
    try:
        entries = deep.directory(data)
    except ValueError:  # BigTIFF
        return b""
    if _PHOTOSHOP in entries:
        return entries[_PHOTOSHOP][2]
    iptc = entries[_IPTC][2] if _IPTC in entries else b""
    return b"8BIM" + struct.pack(">HHI", 0x0404, 0, len(iptc)) + iptc + bytes(len(iptc) % 2) if iptc else b""


def _tiff_exif(opened: PillowImage.Image) -> bytes:
    """What a TIFF file's first directory says about the picture, without what it says about the file."""
    try:
        tags, kept = opened.getexif(), PillowImage.Exif()
        for tag in _DESCRIPTIVE_TIFF:
            if tag in tags:
                kept[tag] = tags[tag]
        directories = {tag: tags.get_ifd(tag) for tag in (EXIF_IFD, GPS_IFD)}
        for tag, values in directories.items():
            if values:
                kept.get_ifd(tag).update(values)
        return kept.tobytes() if len(kept) or any(directories.values()) else b""
    except Exception:  # a broken tag is no reason to lose the picture
        return b"broken"


def _png_chunks(data: bytes) -> Iterator[Chunk]:
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            return
        if kind != b"IDAT":
            yield kind, data[at + 8 : at + 8 + length]
        at += length + 12


def _is_lossless_webp(data: bytes) -> bool:
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind in (b"VP8L", b"VP8 "):
            return bool(kind == b"VP8L")
        at += 8 + length + length % 2
    return False


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


@contextlib.contextmanager
def _own_pixel_limit() -> Iterator[None]:
    """Put Pillow's limit aside: it neither names the file nor knows what the user allowed."""
    with _limit_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usual, PillowImage.MAX_IMAGE_PIXELS = PillowImage.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            PillowImage.MAX_IMAGE_PIXELS = usual
