"""Every format, mode and depth, with all metadata, through the public Restorer with stub networks."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageCms, ImageOps, JpegImagePlugin, features
from PIL.PngImagePlugin import PngInfo

from leanface import Restorer
from leanface.engine.session import Tensors
from leanface.errors import InputError, UsageError
from leanface.imageio import FORMATS, read
from leanface.imageio.formats import heif
from leanface.pixels import Float

Array = NDArray[Any]
WIDTH, HEIGHT = 120, 88
BOX = (44.0, 26.0, 36.0)  # left, top, side
MARKS = ((0.35, 0.4), (0.65, 0.4), (0.5, 0.55), (0.38, 0.75), (0.62, 0.75))
ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
GRAY_ICC = ICC[:16] + b"GRAY" + ICC[20:]
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
XMP = (
    b'<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
    b'<rdf:Description tiff:Orientation="%d" dc:title="Gro\xc3\x9fmutter"/></x:xmpmeta><?xpacket end="w"?>'
)


class Generator:
    """A session that changes its crops in a given way."""

    device, precision = "cpu", "fp32"

    def __init__(self, change: Callable[[Float], Float]) -> None:
        self.change = change

    def run(self, inputs: Tensors) -> dict[str, Float]:
        return {"output": self.change(inputs["input"])}

    def close(self) -> None:
        pass


def detect(picture: NDArray[np.uint8]) -> Float:
    """One face, always at the same place."""
    x, y, size = BOX
    points = [v for u, w in MARKS for v in (x + u * size, y + w * size)]
    return np.array([[x, y, x + size, y + size, 0.95, *points]], np.float32)


def restorer(change: Callable[[Float], Float] = lambda x: x) -> Restorer:
    return Restorer("lite", detector=detect, generator=lambda: Generator(change))


def invert(x: Float) -> Float:
    return 1 - x


def sample(channels: int, depth: int, *, smooth: bool = False) -> Array:
    """A picture that uses the whole range, upright."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    planes = [x / WIDTH, y / HEIGHT, 1 - (x + y) / (WIDTH + HEIGHT), 0.2 + 0.8 * y / HEIGHT]
    if channels < 3:
        planes = [planes[0], planes[3]]
    values = np.stack(planes[:channels], axis=2)
    if not smooth:
        values = np.clip(values + np.random.default_rng(5).normal(0, 0.15, values.shape), 0, 1)
    dtype = np.uint8 if depth == 8 else np.uint16
    pixels: Array = np.rint(values * np.iinfo(dtype).max).astype(dtype)
    return pixels


def exif(orientation: int = 1) -> bytes:
    block = PillowImage.Exif()
    block[0x0112] = orientation
    block[0x010F] = "A camera"
    directory = block.get_ifd(0x8769)
    directory[0x9003] = "1927:10:29 12:00:00"
    directory[0xA002], directory[0xA003] = WIDTH, HEIGHT
    directory[0x927C] = b"maker\0note" * 30
    block.get_ifd(0x8825)[1] = "N"
    return block.tobytes()[6:]


# --- what files hold, read and written without leanface ---------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(pixels: Array, *chunks: bytes, filters: bool = True) -> bytes:
    """A PNG file, each row with another filter."""
    height, width, channels = pixels.shape
    step = channels * pixels.itemsize
    rows = pixels.astype(pixels.dtype.newbyteorder(">")).view(np.uint8).reshape(height, width * step)
    above, out = np.zeros(width * step, np.uint8), b""
    for number, row in enumerate(rows):
        kind = number % 3 if filters else 0
        left = np.concatenate([np.zeros(step, np.uint8), row[:-step]])
        out += bytes([kind]) + (row - [np.zeros_like(row), left, above][kind]).tobytes()
        above = row
    header = struct.pack(
        ">IIBBBBB", width, height, 8 * pixels.itemsize, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0
    )
    body = chunk(b"IDAT", zlib.compress(out)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + body


def png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    at, found = 8, []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", data, at + 8 + length)[0]
        found.append((kind, body))
        at += length + 12
    return found


def pixels_of_png(data: bytes) -> Array:
    chunks = png_chunks(data)
    width, height, depth, colour = struct.unpack_from(">IIBB", chunks[0][1])
    channels, item = {0: 1, 4: 2, 2: 3, 6: 4}[colour], depth // 8
    raw = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    step, length = channels * item, width * channels * item
    above, out = bytearray(length), b""
    for y in range(height):
        kind, row = raw[y * (length + 1)], bytearray(raw[y * (length + 1) + 1 : (y + 1) * (length + 1)])
        for i in range(length):
            a, b, c = (row[i - step], above[i], above[i - step]) if i >= step else (0, above[i], 0)
            nearest = min((a, b, c), key=lambda v, p=a + b - c: abs(p - v))  # type: ignore[misc]
            row[i] = (row[i] + (0, a, b, (a + b) // 2, nearest)[kind]) & 255
        out, above = out + bytes(row), row
    return np.frombuffer(out, f">u{item}").reshape(height, width, channels).astype(f"u{item}")


def raw_tiff(
    pixels: Array, order: str, *, photometric: int | None = None, planar: bool = False, orientation: int = 1
) -> bytes:
    """An uncompressed TIFF file in one strip, or one strip a channel."""
    height, width, channels = pixels.shape
    planes = [pixels[..., c] for c in range(channels)] if planar else [pixels]
    strips = [np.ascontiguousarray(p, pixels.dtype.newbyteorder(order)).tobytes() for p in planes]  # type: ignore[arg-type]
    offsets = [8 + sum(map(len, strips[:i])) for i in range(len(strips))]
    colour = photometric if photometric is not None else 1 if channels < 3 else 2
    entries: list[tuple[int, str, list[int]]] = [
        (256, "H", [width]), (257, "H", [height]), (258, "H", [8 * pixels.itemsize] * channels),
        (259, "H", [1]), (262, "H", [colour]), (273, "I", offsets),
        (274, "H", [orientation]), (277, "H", [channels]),
        (278, "H", [height]), (279, "I", list(map(len, strips))), (284, "H", [2 if planar else 1]),
    ]  # fmt: skip
    if channels in (2, 4):
        entries.append((338, "H", [2]))
    end = 8 + sum(map(len, strips))
    heap_at, heap, table = end + 2 + 12 * len(entries) + 4, b"", b""
    for tag, kind, values in entries:
        data = struct.pack(f"{order}{len(values)}{kind}", *values)
        field = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(order + "I", heap_at + len(heap))
        heap += data if len(data) > 4 else b""
        table += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[kind], len(values)) + field
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, end)
    return head + b"".join(strips) + struct.pack(order + "H", len(entries)) + table + bytes(4) + heap


def tiff_tags(data: bytes) -> dict[int, Any]:
    """The first directory of a TIFF file: numbers as tuples, all else as bytes."""
    order = {b"II": "<", b"MM": ">"}[data[:2]]
    (at,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, at)
    found, last = {}, 0
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(order + "HHI", data, entry)
        assert tag > last, "tags must ascend"
        last = tag
        size = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1}[kind] * values
        start = entry + 8 if size <= 4 else struct.unpack_from(order + "I", data, entry + 8)[0]
        body = data[start : start + size]
        form = {3: "H", 4: "I", 5: "II"}.get(kind)
        found[tag] = struct.unpack(order + form * values, body) if form else body
    return found


def pixels_of_tiff(data: bytes) -> Array:
    tags = tiff_tags(data)
    (width,), (height,), (channels,) = tags[256], tags[257], tags[277]
    raw = b""
    for start, length in zip(tags[273], tags[279], strict=True):
        strip = data[start : start + length]
        raw += zlib.decompress(strip) if tags[259] == (8,) else strip
    order = {b"II": "<", b"MM": ">"}[data[:2]]
    pixels = np.frombuffer(raw, f"{order}u{tags[258][0] // 8}").reshape(height, width, channels)
    dtype = pixels.dtype.newbyteorder("=")
    return np.cumsum(pixels, axis=1, dtype=dtype) if tags.get(317) == (2,) else pixels.astype(dtype)


def pixels_of(path: Path) -> Array:
    """[h, w, c] of a result, by a reader that is not leanface's wherever it has 16 bits."""
    data = path.read_bytes()
    if path.suffix == ".png":
        return pixels_of_png(data)
    if path.suffix == ".tif":
        return pixels_of_tiff(data)
    with PillowImage.open(path) as opened:
        pixels = np.asarray(opened)
    return pixels[..., None] if pixels.ndim == 2 else pixels


# --- the matrix -------------------------------------------------------------------------------------------

MODES = {"L": (1, 8), "LA": (2, 8), "RGB": (3, 8), "RGBA": (4, 8),
         "L16": (1, 16), "LA16": (2, 16), "RGB16": (3, 16), "RGBA16": (4, 16)}  # fmt: skip
LOSSLESS = [
    *((f"{mode}.png", mode) for mode in MODES),
    *((f"{mode}{kind}.tif", mode) for mode in MODES if mode != "LA16" for kind in ("", "_be")),
    *((f"{mode}_{kind}.tif", mode) for mode in ("L", "RGB", "RGBA") for kind in ("lzw", "deflate")),
    ("RGB.bmp", "RGB"), ("L.bmp", "L"), ("RGB.webp", "RGB"), ("RGBA.webp", "RGBA"),
]  # fmt: skip


def stored(name: str, pixels: Array) -> bytes:
    """A lossless file of that name's format."""
    stem, suffix = name.split(".")
    if suffix == "png":
        return raw_png(pixels, chunk(b"pHYs", struct.pack(">IIB", 11811, 11811, 1)))
    if suffix == "tif" and "_" not in stem:
        return raw_tiff(pixels, "<")
    if stem.endswith("_be"):
        return raw_tiff(pixels, ">")
    settings = {
        "tif": {"compression": "tiff_lzw" if "lzw" in stem else "tiff_adobe_deflate"},
        "webp": {"lossless": True, "exact": True},
    }.get(suffix, {})
    stream = io.BytesIO()
    image = PillowImage.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.save(stream, format=FORMATS[f".{suffix}"], **settings)  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize(("name", "mode"), LOSSLESS, ids=[name for name, _ in LOSSLESS])
def test_lossless(name: str, mode: str, tmp_path: Path) -> None:
    before = sample(*MODES[mode])
    source, same, other = (tmp_path / f"{stem}.{name.split('.')[1]}" for stem in ("in", "same", "other"))
    source.write_bytes(stored(name, before))

    result = restorer().restore_file(source, same)
    assert result.notes == () and result.restored == 1
    after = pixels_of(same)
    if name == "L.bmp" or before.shape == after.shape:
        np.testing.assert_array_equal(after, before)
    assert after.dtype == before.dtype and after.shape == before.shape

    assert restorer(invert).restore_file(source, other).notes == ()
    after = pixels_of(other)
    changed = (after != before).any(2)
    x, y, size = map(int, BOX)
    assert changed[y + 8 : y + size - 8, x + 8 : x + size - 8].mean() > 0.9
    assert not changed[:8].any() and not changed[:, :20].any() and not changed[:, 106:].any()
    if before.shape[2] in (2, 4):
        np.testing.assert_array_equal(after[..., -1], before[..., -1])


@pytest.mark.parametrize("source_suffix", [".png", ".tif"])
@pytest.mark.parametrize("mode", ["L16", "RGB16", "RGBA16"])
def test_16_bits_pass_between_png_and_tiff(source_suffix: str, mode: str, tmp_path: Path) -> None:
    before = sample(*MODES[mode])
    for pixels in (
        before,
        before // 300,
    ):  # also a dark scan: depth comes from the file, not from the maximum
        source, target = tmp_path / f"a{source_suffix}", tmp_path / "b.png"
        target = target.with_suffix(".tif" if source_suffix == ".png" else ".png")
        source.write_bytes(stored(source.name, pixels))
        restorer().restore_file(source, target, overwrite=True)
        np.testing.assert_array_equal(pixels_of(target), pixels)


def test_16_bit_gray_and_alpha_becomes_rgba_in_tiff(tmp_path: Path) -> None:
    before = sample(2, 16)
    (tmp_path / "a.png").write_bytes(raw_png(before))
    restorer().restore_file(tmp_path / "a.png", tmp_path / "a.tif")
    np.testing.assert_array_equal(pixels_of(tmp_path / "a.tif"), before[..., [0, 0, 0, 1]])


@pytest.mark.parametrize("suffix", [".jpg", ".webp", ".bmp"])
def test_16_bits_become_8_only_when_allowed(suffix: str, tmp_path: Path) -> None:
    before = sample(3, 16, smooth=True)
    source, target = tmp_path / "a.png", tmp_path / f"b{suffix}"
    source.write_bytes(raw_png(before))
    with pytest.raises(
        UsageError, match=r"cannot hold 16 bits a channel; choose PNG or TIFF, or --allow-8bit"
    ):
        restorer().restore_file(source, target)
    assert not target.exists()
    result = restorer().restore_file(source, target, allow_8bit=True)
    assert result.notes == (f"{FORMATS[suffix]} holds 8 bits a channel: 16 bits were rounded to 8",)
    difference = np.abs(read(target)[0].pixels.astype(float) - before / 257).max()
    assert difference <= (0.5 if suffix == ".bmp" else 12)


@pytest.mark.parametrize("mode", ["RGB16", "RGBA16", "LA16", "L16"])
def test_interlaced_files_of_16_bits(mode: str, tmp_path: Path) -> None:
    before = sample(*MODES[mode])
    rows = b""
    for y, x, dy, dx in ADAM7:
        rows += b"".join(b"\0" + row.astype(">u2").tobytes() for row in before[y::dy, x::dx])
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, {1: 0, 2: 4, 3: 2, 4: 6}[before.shape[2]], 0, 0, 1)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    restorer().restore_file(tmp_path / "a.png", tmp_path / "b.png")
    np.testing.assert_array_equal(pixels_of(tmp_path / "b.png"), before)


def test_white_is_zero(tmp_path: Path) -> None:
    """TIFF may store a gray picture as its negative."""
    before = sample(1, 16)
    (tmp_path / "a.tif").write_bytes(raw_tiff(65535 - before, "<", photometric=0))
    restorer().restore_file(tmp_path / "a.tif", tmp_path / "b.tif")
    np.testing.assert_array_equal(pixels_of(tmp_path / "b.tif"), before)
    assert tiff_tags((tmp_path / "b.tif").read_bytes())[262] == (1,)


def test_a_transparent_colour_of_16_bits_becomes_alpha(tmp_path: Path) -> None:
    for channels in (1, 3):
        before = sample(channels, 16)
        key = before[5, 7]
        before[5, 8] = key ^ 1  # differs in the last bit only
        (tmp_path / "a.png").write_bytes(raw_png(before, chunk(b"tRNS", key.astype(">u2").tobytes())))
        restorer().restore_file(tmp_path / "a.png", tmp_path / "b.png", overwrite=True)
        after = pixels_of(tmp_path / "b.png")
        np.testing.assert_array_equal(after[..., :-1], before)
        assert (after[5, 7, -1], after[5, 8, -1]) == (0, 65535)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (raw_tiff(sample(3, 16), "<", planar=True), "this kind of 16 bits a channel cannot be kept"),
        (raw_tiff(sample(4, 16), "<", photometric=5), "(this kind of 16 bits|a kind of TIFF)"),
        (raw_tiff(sample(2, 16), "<"), "a kind of TIFF that cannot be read here"),
    ],
)
def test_what_cannot_be_kept_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.tif: {message}"):
        restorer().restore_file(tmp_path / "a.tif", tmp_path / "b.tif")
    assert not (tmp_path / "b.tif").exists()


@pytest.mark.parametrize("mode", ["1", "P", "palette with alpha", "L with a key", "1 with a key"])
def test_modes_that_cannot_hold_a_restored_face_grow(mode: str, tmp_path: Path) -> None:
    stored = PillowImage.fromarray(sample(4 if "alpha" in mode else 3, 8))
    key: dict[str, Any] = {"transparency": 0} if "key" in mode else {}
    stored = stored.convert("1" if mode[0] == "1" else "L") if mode[0] in "1L" else stored.quantize(32)
    stored.save(tmp_path / "a.png", **key)
    restorer().restore_file(tmp_path / "a.png", tmp_path / "b.png")
    with PillowImage.open(tmp_path / "a.png") as a, PillowImage.open(tmp_path / "b.png") as b:
        assert b.mode == {"1": "L", "P": "RGB", "palette with alpha": "RGBA"}.get(mode, "LA")
        np.testing.assert_array_equal(np.asarray(a.convert("RGBA")), np.asarray(b.convert("RGBA")))


# --- orientation and metadata -----------------------------------------------------------------------------


def laid(pixels: Array, orientation: int) -> Array:
    """An upright picture as a camera with that orientation stores it."""
    if orientation in (2, 4, 5, 7):
        pixels = {2: pixels[:, ::-1], 4: pixels[::-1]}.get(orientation, pixels.swapaxes(0, 1))
    return np.rot90(pixels, {3: 2, 6: 1, 7: 2, 8: 3}.get(orientation, 0))


@pytest.mark.parametrize("kind", ["png", "png16", "tif", "tif16", "tif_lzw", "jpg", "webp", "avif", "heic"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_ends_upright(kind: str, orientation: int, tmp_path: Path) -> None:
    suffix = "." + kind[:3].replace("web", "webp").replace("avi", "avif").replace("hei", "heic")
    if (suffix == ".avif" and not features.check("avif")) or (suffix == ".heic" and not heif()):
        pytest.skip("this Pillow has no such codec")
    upright = sample(3, 16 if "16" in kind else 8, smooth=suffix in (".jpg", ".avif", ".heic"))
    lying = np.ascontiguousarray(laid(upright, orientation))
    with PillowImage.fromarray(sample(3, 8)) as probe:  # that `laid` is right
        probe = PillowImage.fromarray(np.ascontiguousarray(laid(np.asarray(probe), orientation)))
        probe.getexif()[0x0112] = orientation
        np.testing.assert_array_equal(np.asarray(ImageOps.exif_transpose(probe)), sample(3, 8))
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    if kind == "png16":
        source.write_bytes(raw_png(lying, chunk(b"eXIf", exif(orientation))))
    elif kind == "tif16":
        source.write_bytes(raw_tiff(lying, "<", orientation=orientation))
    else:
        settings: dict[str, Any] = {"quality": 100} if suffix != ".tif" else {}
        settings |= {"lossless": True} if suffix == ".webp" else {}
        settings |= {"compression": "tiff_lzw"} if "lzw" in kind else {}
        block = exif(orientation)
        tags = PillowImage.Exif()
        tags.load(block)
        if suffix == ".tif":  # libtiff takes no sub-directories
            tags = PillowImage.Exif()
            tags[0x0112], tags[0x010F] = orientation, "A camera"
        heif()
        PillowImage.fromarray(lying).save(source, exif=tags.tobytes(), xmp=XMP % orientation, **settings)
    restorer().restore_file(source, target)
    image, origin = read(target)
    difference = np.abs(image.pixels.astype(int) - upright).max()
    assert difference <= {".jpg": 9, ".avif": 8, ".heic": 12}.get(suffix, 0)
    with PillowImage.open(target) as written:
        assert written.size == (WIDTH, HEIGHT)
        tags = written.getexif()
        assert tags.get(0x0112, 1) == 1
        if kind != "tif16":
            assert tags[0x010F] == "A camera"
        if 0x8769 in tags:
            directory = tags.get_ifd(0x8769)
            assert (directory[0xA002], directory[0xA003]) == (WIDTH, HEIGHT)
            assert directory[0x9003] == "1927:10:29 12:00:00"
    if origin.xmp and suffix != ".heic":  # pillow-heif takes it out
        assert origin.xmp == XMP % 1


def with_metadata(suffix: str, path: Path, *, gray: bool = False) -> None:
    pixels = PillowImage.fromarray(sample(3, 8, smooth=True))
    if gray:
        pixels = pixels.convert("L")
    settings: dict[str, Any] = {
        "exif": b"Exif\0\0" + exif(),
        "icc_profile": GRAY_ICC if gray else ICC,
        "dpi": (300, 300),
    }
    if suffix == ".png":
        settings["pnginfo"] = text = PngInfo()
        text.add_text("Title", "Großmutter")
        text.add_itxt("XML:com.adobe.xmp", (XMP % 1).decode())
        text.add(b"gAMA", struct.pack(">I", 45455))
    elif suffix == ".tif":
        tags = PillowImage.Exif()
        tags.load(exif())
        tags[700] = XMP % 1
        tags[34377] = b"8BIM\x04\x04\0\0\0\0\0\x04iptc"
        settings["exif"] = tags
    else:
        settings["xmp"] = XMP % 1
    if suffix == ".jpg":
        settings |= {"comment": b"a comment", "quality": 91}
        segment = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x04iptc"
        settings["extra"] = b"\xff\xed" + struct.pack(">H", len(segment) + 2) + segment
    pixels.save(path, **settings)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif", ".avif", ".heic"])
@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("target_suffix", ["", ".jpg", ".png", ".webp", ".tif", ".avif", ".heic"])
def test_metadata_is_kept(suffix: str, gray: bool, target_suffix: str, tmp_path: Path) -> None:
    if ".avif" in (suffix, target_suffix) and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    if ".heic" in (suffix, target_suffix) and not heif():
        pytest.skip("pillow-heif is not here")
    if gray and suffix not in (".jpg", ".png", ".tif"):
        pytest.skip("the format knows no gray")
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{target_suffix or suffix}"
    with_metadata(suffix, source, gray=gray)
    result = restorer(invert).restore_file(source, target)
    (_, before), (_, after) = read(source), read(target)
    assert after.xmp == before.xmp == XMP % 1
    coloured = gray and target.suffix in (".webp", ".avif", ".heic")
    assert before.icc == (GRAY_ICC if gray else ICC) and after.icc == (b"" if coloured else before.icc)
    assert any("gray colour profile" in note for note in result.notes) == coloured
    bytes_kept = {suffix, target.suffix}.isdisjoint({".tif", ".avif"})
    if bytes_kept:
        assert after.exif == before.exif
    with PillowImage.open(source) as a, PillowImage.open(target) as b:
        one, two = a.getexif(), b.getexif()
        assert two[0x010F] == one[0x010F] == "A camera"
        for directory in (0x8769, 0x8825):
            assert two.get_ifd(directory) == one.get_ifd(directory) != {}
    if {suffix, target.suffix} <= {".jpg", ".png", ".tif"}:
        np.testing.assert_allclose(after.dpi or (), (300, 300), atol=0.1)
    if {suffix, target.suffix} <= {".jpg", ".tif"}:
        assert after.photoshop == before.photoshop != b""
    if suffix == target.suffix == ".jpg":
        assert after.comment == b"a comment"
    if suffix == target.suffix == ".png":
        assert after.chunks == before.chunks != () and after.colours == before.colours

    stripped = target.with_name(f"c{target.suffix}")
    restorer().restore_file(source, stripped, strip_metadata=True)
    _, left = read(stripped)
    assert (left.exif, left.xmp, left.photoshop, left.comment, left.chunks) == (b"", b"", b"", b"", ())
    assert left.icc == after.icc
    for secret in (b"A camera", b"maker", b"adobe", b"a comment", "Großmutter".encode(), b"8BIM"):
        assert secret not in stripped.read_bytes()


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_metadata_of_16_bit_files_is_kept(suffix: str, tmp_path: Path) -> None:
    texts = PngInfo()
    texts.add_text("Title", "scan")
    plain = tmp_path / "plain.png"
    with_metadata(".png", plain)
    kept = [chunk(*c) for c in png_chunks(plain.read_bytes()) if c[0] not in (b"IHDR", b"IDAT", b"IEND")]
    before = sample(3, 16)
    (tmp_path / "a.png").write_bytes(raw_png(before, *kept))
    restorer().restore_file(tmp_path / "a.png", tmp_path / f"b{suffix}")
    restorer().restore_file(tmp_path / f"b{suffix}", tmp_path / f"c{suffix}")
    for name in ("b", "c"):
        path = tmp_path / f"{name}{suffix}"
        np.testing.assert_array_equal(pixels_of(path), before)
        _, origin = read(path)
        assert (origin.icc, origin.xmp) == (ICC, XMP % 1)
        np.testing.assert_allclose(origin.dpi or (), (300, 300), atol=0.1)
        with PillowImage.open(path) as opened:
            tags = opened.getexif()
            assert tags[0x010F] == "A camera"
            assert tags.get_ifd(0x8769)[0x927C] == b"maker\0note" * 30


def test_a_16_bit_tiff_begins_with_the_exif_block_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(raw_png(sample(3, 16), chunk(b"eXIf", exif())))
    restorer().restore_file(tmp_path / "a.png", tmp_path / "b.tif")
    data, block = (tmp_path / "b.tif").read_bytes(), exif()
    assert data[8 : len(block)] == block[8:]


def test_what_stands_behind_the_pixels_of_a_png_is_read(tmp_path: Path) -> None:
    plain = raw_png(sample(3, 16))
    text = chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP % 1) + chunk(b"eXIf", exif(6))
    (tmp_path / "a.png").write_bytes(plain[:-12] + text + plain[-12:])
    restorer().restore_file(tmp_path / "a.png", tmp_path / "b.png")
    image, origin = read(tmp_path / "b.png")
    assert (image.width, image.height) == (HEIGHT, WIDTH)
    assert origin.xmp == XMP % 1 and b"A camera" in origin.exif


def test_wide_gamut_says_so_without_a_profile(tmp_path: Path) -> None:
    display_p3 = chunk(b"cICP", bytes([12, 13, 0, 1]))
    for depth in (8, 16):
        (tmp_path / "a.png").write_bytes(raw_png(sample(3, depth), display_p3))
        restorer().restore_file(tmp_path / "a.png", tmp_path / "b.png", overwrite=True)
        assert (b"cICP", bytes([12, 13, 0, 1])) in png_chunks((tmp_path / "b.png").read_bytes())
    result = restorer().restore_file(tmp_path / "a.png", tmp_path / "b.tif")
    assert any("PNG's colour chunks" in note for note in result.notes)


def test_the_thumbnail_of_the_unrestored_picture_goes(tmp_path: Path) -> None:
    block = bytearray(exif())
    (first,) = struct.unpack_from(">I", block, 4)
    (count,) = struct.unpack_from(">H", block, first)
    struct.pack_into(">I", block, first + 2 + 12 * count, len(block))
    block += struct.pack(">H" + "HHII" * 2 + "I", 2, 0x0201, 4, 1, 12, 0x0202, 4, 1, 4, 0)
    PillowImage.fromarray(sample(3, 8)).save(tmp_path / "a.jpg", exif=b"Exif\0\0" + bytes(block))
    restorer().restore_file(tmp_path / "a.jpg", tmp_path / "b.jpg")
    with PillowImage.open(tmp_path / "b.jpg") as opened:
        after = opened.info["exif"].removeprefix(b"Exif\0\0")
    struct.pack_into(
        ">I", block, first + 2 + 12 * count, 0
    )  # no second directory; every other byte as it was
    assert after == bytes(block)


# --- formats that lose ------------------------------------------------------------------------------------


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("quality", [35, 75, 97])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_encoded_as_its_source_was(
    subsampling: str, quality: int, progressive: bool, tmp_path: Path
) -> None:
    source = tmp_path / "a.jpg"
    PillowImage.fromarray(sample(3, 8, smooth=True)).save(
        source, quality=quality, subsampling=subsampling, progressive=progressive
    )
    restorer().restore_file(source, tmp_path / "b.jpg")
    restorer().restore_file(source, tmp_path / "c.jpg", quality=80)
    with PillowImage.open(source) as a, PillowImage.open(tmp_path / "b.jpg") as b:
        assert isinstance(a, JpegImagePlugin.JpegImageFile) and isinstance(b, JpegImagePlugin.JpegImageFile)
        assert b.quantization == a.quantization
        assert JpegImagePlugin.get_sampling(b) == JpegImagePlugin.get_sampling(a)
        assert bool(b.info.get("progressive")) == progressive
        # The same tables over the same pixels: what was not restored hardly loses a second time.
        assert np.abs(np.asarray(a).astype(int) - np.asarray(b)).mean() < 0.6
    PillowImage.new("RGB", (8, 8)).save(tmp_path / "d.jpg", quality=80)
    with PillowImage.open(tmp_path / "c.jpg") as c, PillowImage.open(tmp_path / "d.jpg") as d:
        assert c.quantization == d.quantization


def test_a_gray_jpeg_stays_gray(tmp_path: Path) -> None:
    PillowImage.fromarray(sample(1, 8, smooth=True)[..., 0]).save(tmp_path / "a.jpg", quality=60)
    restorer(invert).restore_file(tmp_path / "a.jpg", tmp_path / "b.jpg")
    with PillowImage.open(tmp_path / "a.jpg") as a, PillowImage.open(tmp_path / "b.jpg") as b:
        assert b.mode == "L" and b.quantization == a.quantization
        assert np.abs(np.asarray(a)[:8].astype(int) - np.asarray(b)[:8]).max() <= 4


@pytest.mark.parametrize("suffix", [".webp", ".avif", ".heic"])
def test_quality_has_an_effect(suffix: str, tmp_path: Path) -> None:
    if (suffix == ".avif" and not features.check("avif")) or (suffix == ".heic" and not heif()):
        pytest.skip("this Pillow has no such codec")
    PillowImage.fromarray(sample(3, 8)).save(tmp_path / "a.png")
    sizes = []
    for quality in (20, 90):
        target = tmp_path / f"{quality}{suffix}"
        restorer().restore_file(tmp_path / "a.png", target, quality=quality)
        sizes.append(target.stat().st_size)
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize("suffix", [".webp", ".avif", ".heic"])
def test_alpha_survives_formats_that_lose(suffix: str, tmp_path: Path) -> None:
    if (suffix == ".avif" and not features.check("avif")) or (suffix == ".heic" and not heif()):
        pytest.skip("this Pillow has no such codec")
    before = sample(4, 8, smooth=True)
    PillowImage.fromarray(before).save(tmp_path / "a.png")
    restorer().restore_file(tmp_path / "a.png", tmp_path / f"b{suffix}")
    image, _ = read(tmp_path / f"b{suffix}")
    assert image.alpha is not None
    assert np.abs(image.alpha.astype(int) - before[..., 3]).max() <= 6


def test_bmp_says_what_it_cannot_hold(tmp_path: Path) -> None:
    with_metadata(".jpg", tmp_path / "a.jpg")
    result = restorer().restore_file(tmp_path / "a.jpg", tmp_path / "b.bmp")
    assert result.notes == (
        "BMP cannot hold this, which was left out: EXIF, XMP, IPTC or Photoshop's data, the comment, "
        "the colour profile",
    )


@pytest.mark.parametrize("kind", [1, 4, 7])
def test_iptc_that_stands_alone_in_a_tiff_is_kept(kind: int, tmp_path: Path) -> None:
    iptc = b"\x1c\x02\x05\0\x0bGrossmutter"
    data = raw_tiff(sample(3, 8), "<")
    extra = struct.pack("<HHII", 33723, kind, len(iptc) // (4 if kind == 4 else 1), len(data))
    (at,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, at)
    entries = data[at + 2 : at + 2 + 12 * count] + extra
    moved = struct.pack("<H", count + 1) + entries + bytes(4)  # the directory anew, at the end
    (tmp_path / "a.tif").write_bytes(
        data[:4] + struct.pack("<I", len(data) + len(iptc)) + data[8:] + iptc + moved
    )
    for suffix in (".tif", ".jpg"):
        result = restorer().restore_file(tmp_path / "a.tif", tmp_path / f"b{suffix}")
        assert result.notes == ()
        assert read(tmp_path / f"b{suffix}")[1].photoshop == b"8BIM\x04\x04\0\0\0\0\0\x10" + iptc
    result = restorer().restore_file(tmp_path / "a.tif", tmp_path / "b.png")
    assert result.notes == ("PNG cannot hold this, which was left out: IPTC or Photoshop's data",)


def test_an_xmp_packet_too_large_for_jpeg_is_left_out_aloud(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", (XMP % 1).decode() + " " * 70_000)
    PillowImage.fromarray(sample(3, 8)).save(tmp_path / "a.png", pnginfo=text)
    result = restorer().restore_file(tmp_path / "a.png", tmp_path / "b.jpg")
    assert result.notes == ("JPEG cannot hold this, which was left out: XMP",)
