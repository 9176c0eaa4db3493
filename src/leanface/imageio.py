"""The edge: files to Image and back, with what has to survive. The only place that knows codecs.

Reading applies the EXIF orientation, so that everything inside is upright, and keeps EXIF, XMP, the ICC
profile and the resolution for writing. Writing goes to a temporary file beside the target, which gets its
name only when it is whole.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import struct
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageCms, UnidentifiedImageError, features

from leanface.errors import InputError, OutputError, UsageError
from leanface.types import Image

MAX_PIXELS = 300_000_000
"""Pictures above this many pixels are refused unless the caller allows more."""

FORMATS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".webp": "WEBP",
    ".tif": "TIFF", ".tiff": "TIFF", ".bmp": "BMP", ".avif": "AVIF",
}  # fmt: skip
"""Format by suffix, in lower case: what is read from folders and what can be written."""

QUALITY = 95
_ORIENTATION = 0x0112
_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_XMP_TAG = 700
# Document and page name, description, maker, model, software, date, artist, host, copyright (TIFF 6.0).
_DESCRIPTIVE_TIFF = (269, 270, 271, 272, 285, 305, 306, 315, 316, 33432)
_LOSSLESS_TIFF = {"raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "zstd", "lzma"}
_limit_lock = threading.Lock()


@dataclass(frozen=True)
class Origin:
    """What a file held beside its pixels.

    Attributes:
        format: Pillow's name of its format; empty where there was no file.
        exif: the EXIF block as it goes into a file, orientation already reset.
        icc: the ICC profile.
        xmp: the XMP packet.
        dpi: horizontal and vertical resolution.
        lossless: a WebP file was lossless.
        compression: Pillow's name of a TIFF file's compression.
        notes: lines a user should read.
    """

    format: str = ""
    exif: bytes = b""
    icc: bytes = b""
    xmp: bytes = b""
    dpi: tuple[float, float] | None = None
    lossless: bool = False
    compression: str = ""
    notes: tuple[str, ...] = ()


def read(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[Image, Origin]:
    """Read a picture.

    Raises:
        InputError: missing, empty, damaged, not a picture, too large, or of a kind that would lose depth.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not data:
        raise InputError(f"{path}: the file is empty")
    with _own_pixel_limit():
        return _decode(data, str(path), max_pixels)


def _decode(data: bytes, name: str, max_pixels: int) -> tuple[Image, Origin]:
    try:
        opened = PillowImage.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise InputError(f"{name}: not a picture that can be read here") from None
    except Exception as error:
        raise InputError(f"{name}: damaged ({error})") from error
    with opened:
        width, height = opened.size
        if width * height > max_pixels:
            raise InputError(
                f"{name}: {width}x{height} is more than {max_pixels} pixels; --max-pixels allows more"
            )
        _refuse_lost_depth(opened, name)
        try:
            opened.load()
        except Exception as error:
            raise InputError(f"{name}: damaged or cut off ({error})") from error
        origin = _origin(opened, data)
        try:
            image, origin = _image(opened, origin)
        except Exception as error:
            raise InputError(f"{name}: cannot be converted from {opened.mode} ({error})") from error
    return image, origin


def _refuse_lost_depth(opened: PillowImage.Image, name: str) -> None:
    """Refuse what Pillow would silently read with 8 of 16 bits, and what has no fixed range."""
    raw = [str(part) for tile in getattr(opened, "tile", ()) for part in _flat(tile[3])]
    if opened.mode in ("RGB", "RGBA", "LA", "CMYK") and any("16" in part for part in raw):
        raise InputError(
            f"{name}: 16 bits a channel in colour cannot be kept; convert the picture to 8 bits first"
        )
    if opened.mode in ("F", "I"):
        raise InputError(f"{name}: 32-bit pixels have no fixed range; convert the picture to 8 or 16 bits")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _image(opened: PillowImage.Image, origin: Origin) -> tuple[Image, Origin]:
    mode, source = opened.mode, opened
    notes = list(origin.notes)
    if mode == "CMYK":
        source, origin = _from_cmyk(opened, origin)
        notes.append("CMYK was converted to RGB")
    elif "transparency" in opened.info or mode in ("PA", "RGBa", "La"):
        source = opened.convert("LA" if mode in ("L", "1", "La") else "RGBA")
    elif mode == "1":
        source = opened.convert("L")
    elif not (mode in ("L", "LA", "RGB", "RGBA") or mode.startswith("I;16")):
        source = opened.convert("RGB")
    pixels: NDArray[Any] = np.asarray(source)
    if source.mode.startswith("I;16"):
        pixels = pixels.astype(np.uint16)
    pixels = _upright(pixels, _orientation(opened.getexif))
    gray = source.mode in ("L", "LA") or source.mode.startswith("I;16")
    alpha = None
    if source.mode in ("LA", "RGBA"):
        alpha = np.ascontiguousarray(pixels[..., -1])
        pixels = pixels[..., :-1]
    if gray:
        pixels = np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    return Image(np.ascontiguousarray(pixels), alpha, gray), replace(origin, notes=tuple(notes))


def _from_cmyk(opened: PillowImage.Image, origin: Origin) -> tuple[PillowImage.Image, Origin]:
    """CMYK to sRGB by its own profile where it has one; the profile does not fit the result and goes."""
    if origin.icc:
        with contextlib.suppress(ImageCms.PyCMSError, OSError):
            converted = ImageCms.profileToProfile(
                opened, ImageCms.ImageCmsProfile(io.BytesIO(origin.icc)), ImageCms.createProfile("sRGB"),
                outputMode="RGB",
            )  # fmt: skip
            if converted is not None:
                return converted, replace(origin, icc=b"")
    return opened.convert("RGB"), replace(origin, icc=b"")


def _origin(opened: PillowImage.Image, data: bytes) -> Origin:
    info = opened.info
    notes = []
    if getattr(opened, "n_frames", 1) > 1 and opened.format != "MPO":
        notes.append(f"only the first of {getattr(opened, 'n_frames', 1)} frames or pages was taken")
    exif = _tiff_exif(opened) if opened.format == "TIFF" else info.get("exif", b"")
    dpi = info.get("dpi")
    return Origin(
        format="JPEG" if opened.format == "MPO" else opened.format or "",
        exif=_reset_orientation(exif),
        icc=info.get("icc_profile") or b"",
        xmp=_bytes(info.get("xmp") or info.get("XML:com.adobe.xmp") or b""),
        dpi=(float(dpi[0]), float(dpi[1])) if isinstance(dpi, tuple) and len(dpi) == 2 and all(dpi) else None,
        lossless=opened.format == "WEBP" and b"VP8L" in data[:64_000],
        compression=str(info.get("compression", "")) if opened.format == "TIFF" else "",
        notes=tuple(notes),
    )


def _tiff_exif(opened: PillowImage.Image) -> bytes:
    """What a TIFF file's first directory says about the picture, without what it says about the file."""
    tags, kept = opened.getexif(), PillowImage.Exif()
    for tag in _DESCRIPTIVE_TIFF:
        if tag in tags:
            kept[tag] = tags[tag]
    for directory in (_EXIF_IFD, _GPS_IFD):
        kept.get_ifd(directory).update(tags.get_ifd(directory))
    try:
        return kept.tobytes() if len(kept) or kept.get_ifd(_EXIF_IFD) or kept.get_ifd(_GPS_IFD) else b""
    except Exception:  # a broken tag is no reason to lose the picture
        return b""


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _orientation(read_exif: Any) -> int:
    try:
        value = read_exif().get(_ORIENTATION, 1)
    except Exception:  # a broken block is no reason to lose the picture
        return 1
    return value if value in range(1, 9) else 1


def _reset_orientation(exif: bytes) -> bytes:
    """Set the orientation in an EXIF block to 1, every other byte as it was.

    The block is a TIFF header and its first directory of 12-byte entries: tag, type, count, value (TIFF 6.0,
    section 2). A block that cannot be followed is left out, since it might turn the result again.
    """
    if not exif:
        return b""
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(exif[start : start + 2])
    if order is None:
        return b""
    patched = bytearray(exif)
    try:
        (first,) = struct.unpack_from(order + "I", exif, start + 4)
        (count,) = struct.unpack_from(order + "H", exif, start + first)
        for i in range(count):
            entry = start + first + 2 + 12 * i
            if struct.unpack_from(order + "H", exif, entry)[0] == _ORIENTATION:
                struct.pack_into(order + "H", patched, entry + 8, 1)
    except struct.error:
        return b""
    return bytes(patched)


def _upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn and mirror as the EXIF orientation says (Exif 2.32, tag 0x0112)."""
    if orientation in (2, 4, 5, 7):
        pixels = pixels[:, ::-1]
    turns = {3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}.get(orientation, 0)
    return np.rot90(pixels, turns)


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Refuse a target before any work is done for it.

    Raises:
        UsageError: a suffix whose format cannot be written.
        OutputError: it exists and may not be overwritten, or its folder cannot be made.
    """
    format_of(path)
    if path.is_dir():
        raise OutputError(f"{path}: is a folder")
    if path.exists() and not overwrite:
        raise OutputError(f"{path}: exists already; --overwrite replaces it")


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
    return name


def write(path: Path, image: Image, origin: Origin, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write a picture, whole or not at all.

    Args:
        path: its suffix decides the format.
        image: what to write.
        origin: of the file it was made from; all that the format can hold is kept.
        overwrite: replace a file of that name.

    Returns:
        Notes: what the format could not hold.

    Raises:
        OutputError: the target exists, or it cannot be written.
        UsageError: the suffix stands for no format, or for one that cannot hold 16 bits.
    """
    check_writable(path, overwrite=overwrite)
    kind = format_of(path)
    encodable, notes = _encodable(image, kind, path)
    settings = _settings(kind, origin)
    temporary = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            encodable.save(stream, format=kind, **settings)
        if path.exists() and not overwrite:
            raise OutputError(f"{path}: exists already; --overwrite replaces it")
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
    except (ValueError, RuntimeError, SystemError, struct.error) as error:
        raise OutputError(f"{path}: cannot be encoded ({error})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return notes


def _encodable(image: Image, kind: str, path: Path) -> tuple[PillowImage.Image, tuple[str, ...]]:
    pixels, alpha = image.pixels, image.alpha
    notes: tuple[str, ...] = ()
    if pixels.dtype == np.uint16:
        if not (image.gray and alpha is None and kind in ("PNG", "TIFF")):
            raise UsageError(f"{path}: only PNG and TIFF can hold 16-bit gray")
        return PillowImage.fromarray(np.ascontiguousarray(pixels[..., 0])), ()
    if alpha is not None and kind == "JPEG":
        opacity = (alpha.astype(np.float32) / 255)[..., None]
        flat = pixels * opacity + 255 * (1 - opacity) + np.float32(0.5)
        pixels, alpha, notes = flat.astype(np.uint8), None, ("JPEG has no alpha: flattened on white",)
    channels = pixels[..., :1] if image.gray and kind != "AVIF" else pixels
    if alpha is not None:
        channels = np.concatenate([channels, alpha[..., None]], axis=2)
    if channels.shape[2] == 1:
        channels = channels[..., 0]
    return PillowImage.fromarray(np.ascontiguousarray(channels)), notes


def _settings(kind: str, origin: Origin) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if origin.icc:
        settings["icc_profile"] = origin.icc
    if origin.dpi:
        settings["dpi"] = origin.dpi
    if origin.exif and kind != "BMP":
        settings["exif"] = origin.exif
    if origin.xmp and kind in ("JPEG", "WEBP", "AVIF"):
        settings["xmp"] = origin.xmp
    if kind == "JPEG":
        settings |= {"quality": QUALITY, "subsampling": "4:4:4", "optimize": True}
    elif kind == "WEBP":
        settings |= {"lossless": True, "exact": True} if origin.lossless else {"quality": QUALITY}
    elif kind == "AVIF":
        settings |= {"quality": QUALITY, "subsampling": "4:4:4"}
    elif kind == "TIFF":
        keep = origin.compression in _LOSSLESS_TIFF
        settings["compression"] = origin.compression if keep else "tiff_adobe_deflate"
        tags = PillowImage.Exif()
        tags.load(origin.exif)
        if origin.xmp:
            tags[_XMP_TAG] = origin.xmp
        settings["exif"] = tags
        if tags.get_ifd(_EXIF_IFD) or tags.get_ifd(_GPS_IFD):
            settings["compression"] = "raw"  # the compressing writer (libtiff) takes no sub-directories
    elif kind == "PNG" and origin.xmp:
        from PIL.PngImagePlugin import PngInfo

        text = PngInfo()
        text.add_itxt("XML:com.adobe.xmp", origin.xmp.decode("utf-8", "replace"))
        settings["pnginfo"] = text
    return settings


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
