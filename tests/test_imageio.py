from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageCms, features

from leanface import imageio
from leanface.errors import InputError, OutputError, UsageError
from leanface.imageio import Origin, read, write
from leanface.types import Image

ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = b'<?xpacket begin=""?><x:xmpmeta xmlns:x="adobe:ns:meta/"><a>1</a></x:xmpmeta><?xpacket end="w"?>'
LOSSLESS = (".png", ".tif", ".bmp")


def exif(orientation: int) -> bytes:
    block = PillowImage.Exif()
    block[0x0112] = orientation
    block[0x010F] = "A camera"
    block.get_ifd(0x8769)[0x9003] = "1927:10:29 12:00:00"
    return block.tobytes()


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """40 wide, 24 high, smooth, so that lossy formats stay near it."""
    y, x = np.mgrid[:24, :40]
    return np.stack([x * 6, y * 10, 255 - x * 3 - y * 3], axis=2).astype(np.uint8)


@pytest.mark.parametrize("suffix", sorted(imageio.FORMATS))
def test_every_format_comes_back(suffix: str, picture: np.ndarray, tmp_path: Path) -> None:
    if imageio.FORMATS[suffix] == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    path = tmp_path / f"x{suffix.upper()}"
    assert write(path, Image(picture), Origin()) == ()
    image, origin = read(path)
    assert origin.format == imageio.FORMATS[suffix]
    assert not image.gray and image.alpha is None
    difference = np.abs(image.pixels.astype(int) - picture).max()
    assert difference == 0 if suffix in LOSSLESS else difference <= 12
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(orientation: int, picture: np.ndarray, tmp_path: Path) -> None:
    stored = PillowImage.fromarray(picture)
    source = tmp_path / "in.png"
    stored.save(source, exif=exif(orientation))
    image, origin = read(source)
    with PillowImage.open(source) as opened:
        from PIL import ImageOps

        np.testing.assert_array_equal(image.pixels, np.asarray(ImageOps.exif_transpose(opened)))
    write(tmp_path / "out.png", image, origin)
    with PillowImage.open(tmp_path / "out.png") as written:
        tags = written.getexif()
        assert tags[0x0112] == 1
        assert tags[0x010F] == "A camera"
        assert tags.get_ifd(0x8769)[0x9003] == "1927:10:29 12:00:00"
        np.testing.assert_array_equal(np.asarray(written), image.pixels)


def test_only_the_orientation_changes_in_the_exif_block() -> None:
    before = exif(6)
    after = imageio._reset_orientation(before)
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len(changed) == 1 and before[changed[0]] == 6 and after[changed[0]] == 1


@pytest.mark.parametrize(
    "broken", [b"Exif\0\0", b"Exif\0\0MM\0*\0\0\xff\xff", b"nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"]
)
def test_a_broken_exif_block_costs_nothing_but_itself(
    broken: bytes, picture: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "in.jpg"
    PillowImage.fromarray(picture).save(path, exif=broken, quality=95)
    image, origin = read(path)
    assert image.pixels.shape == picture.shape
    assert origin.exif == b""


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_metadata_is_kept(suffix: str, picture: np.ndarray, tmp_path: Path) -> None:
    source, target = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    write(source, Image(picture), Origin(exif=exif(1), icc=ICC, xmp=XMP, dpi=(300, 300)))
    image, origin = read(source)
    write(target, image, origin)
    _, again = read(target)
    assert again.icc == ICC
    assert again.xmp == XMP
    with PillowImage.open(target) as written:
        assert written.getexif()[0x010F] == "A camera"
    if suffix != ".webp":  # the format has no resolution
        np.testing.assert_allclose(again.dpi or (), (300, 300), atol=0.1)


@pytest.mark.parametrize("mode", ["L", "1", "LA", "RGB", "RGBA", "P", "PA"])
def test_modes(mode: str, picture: np.ndarray, tmp_path: Path) -> None:
    stored = PillowImage.fromarray(picture)
    if mode == "PA":
        stored = stored.quantize(16)
    elif mode != "P":
        stored = stored.convert("RGBA")
    stored = stored.convert(mode) if mode != "PA" else stored
    path = tmp_path / "x.png"
    stored.save(path, transparency=3 if mode == "PA" else None)
    image, origin = read(path)
    with PillowImage.open(path) as opened:
        wanted = np.asarray(opened.convert("RGBA"))
    np.testing.assert_array_equal(image.pixels, wanted[..., :3])
    assert image.gray == (mode in ("L", "1", "LA"))
    if mode in ("LA", "RGBA", "PA"):
        np.testing.assert_array_equal(image.alpha, wanted[..., 3])
    else:
        assert image.alpha is None
    write(tmp_path / "y.png", image, origin)
    with PillowImage.open(tmp_path / "y.png") as written:
        assert written.mode == {"1": "L", "P": "RGB", "PA": "RGBA"}.get(mode, mode)
        np.testing.assert_array_equal(np.asarray(written.convert("RGBA")), wanted)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_gray_stays_exact(suffix: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), np.uint16)
    for low in (values, values // 300):  # also a dark scan: depth comes from the type, never from the maximum
        path = tmp_path / f"a{suffix}"
        PillowImage.fromarray(low).save(path)
        image, origin = read(path)
        assert image.gray and image.pixels.dtype == np.uint16
        np.testing.assert_array_equal(image.pixels, np.repeat(low[..., None], 3, 2))
        write(path, image, origin, overwrite=True)
        np.testing.assert_array_equal(read(path)[0].pixels[..., 0], low)


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (6, 4), (4, 2)])
def test_16_bit_colour_is_refused_not_cut_to_8(colour: int, channels: int, tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png(4, 2, 16, colour, (b"\0" + bytes(4 * 2 * channels)) * 2))
    with pytest.raises(InputError, match=r"deep\.png: 16 bits a channel"):
        read(path)


def test_float_pictures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.tif"
    PillowImage.fromarray(np.zeros((3, 3), np.float32)).save(path)
    with pytest.raises(InputError, match=r"f\.tif: 32-bit"):
        read(path)


def test_cmyk_becomes_rgb_and_says_so(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "c.jpg"
    PillowImage.fromarray(picture).convert("CMYK").save(path, quality=100)
    image, origin = read(path)
    assert origin.notes == ("CMYK was converted to RGB",)
    assert np.abs(image.pixels.astype(int) - picture).mean() < 12


def test_frames_are_never_dropped_silently(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    first = PillowImage.fromarray(picture)
    first.save(path, save_all=True, append_images=[first.rotate(180)], lossless=True)
    image, origin = read(path)
    assert origin.notes == ("only the first of 2 frames or pages was taken",)
    np.testing.assert_array_equal(image.pixels, picture)


def test_jpeg_flattens_alpha_on_white_and_says_so(tmp_path: Path) -> None:
    pixels = np.full((16, 16, 3), 0, np.uint8)
    alpha = np.full((16, 16), 51, np.uint8)
    notes = write(tmp_path / "x.jpg", Image(pixels, alpha), Origin())
    assert notes == ("JPEG has no alpha: flattened on white",)
    np.testing.assert_allclose(read(tmp_path / "x.jpg")[0].pixels, 204, atol=1)


def test_a_lossless_webp_stays_lossless(noise: Image, tmp_path: Path) -> None:
    source = tmp_path / "a.webp"
    PillowImage.fromarray(noise.pixels).save(source, lossless=True)
    image, origin = read(source)
    write(tmp_path / "b.webp", image, origin)
    np.testing.assert_array_equal(read(tmp_path / "b.webp")[0].pixels, noise.pixels)


def damaged(kind: str, picture: np.ndarray) -> bytes:
    stream = io.BytesIO()
    PillowImage.fromarray(picture).resize((300, 200)).save(stream, format="PNG" if "png" in kind else "JPEG")
    data = stream.getvalue()
    if kind.startswith("cut"):
        return data[: len(data) // 2]
    if kind == "flipped png":
        middle = len(data) // 2
        return data[:middle] + bytes(b ^ 255 for b in data[middle : middle + 40]) + data[middle + 40 :]
    return b"<html>not a picture</html>"


@pytest.mark.parametrize("kind", ["cut png", "cut jpeg", "flipped png", "html"])
def test_damaged_files_are_one_line(kind: str, picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(damaged(kind, picture))
    with pytest.raises(InputError, match=r"bad\.jpg: ") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_missing_empty_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read(tmp_path / "no.png")
    (tmp_path / "empty.png").touch()
    with pytest.raises(InputError, match="the file is empty"):
        read(tmp_path / "empty.png")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(100_000, 100_000, 8, 2, b""))
    usual = PillowImage.MAX_IMAGE_PIXELS
    with pytest.raises(InputError, match=r"bomb\.png: .*more than 300000000 pixels"):
        read(path)
    assert usual == PillowImage.MAX_IMAGE_PIXELS
    small = tmp_path / "small.png"
    PillowImage.new("RGB", (30, 20)).save(small)
    with pytest.raises(InputError, match="30x20 is more than 599 pixels"):
        read(small, max_pixels=599)
    assert read(small, max_pixels=600)[0].width == 30


def test_targets_are_never_overwritten_unasked(noise: Image, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"precious")
    with pytest.raises(OutputError, match="exists already"):
        write(path, noise, Origin())
    assert path.read_bytes() == b"precious"
    write(path, noise, Origin(), overwrite=True)
    np.testing.assert_array_equal(read(path)[0].pixels, noise.pixels)


def test_a_failed_write_leaves_nothing(noise: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: PillowImage.Image, stream: io.BufferedWriter, **_: object) -> None:
        stream.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PillowImage.Image, "save", full)
    with pytest.raises(OutputError, match=r"x\.png: cannot be written \(No space left on device\)"):
        write(tmp_path / "x.png", noise, Origin())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.gif", "x", "x.png.exe"])
def test_unknown_suffixes(name: str, noise: Image, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the suffix must be one of"):
        write(tmp_path / name, noise, Origin())


def test_16_bit_has_to_fit_the_format(tmp_path: Path) -> None:
    deep = Image(np.zeros((4, 4, 3), np.uint16), gray=True)
    with pytest.raises(UsageError, match="only PNG and TIFF"):
        write(tmp_path / "x.jpg", deep, Origin())


def test_unicode_and_long_names(noise: Image, tmp_path: Path) -> None:
    for name in ("портрет 肖像 ü.png", "a" * 240 + ".png"):
        write(tmp_path / "new folder" / name, noise, Origin())
        np.testing.assert_array_equal(read(tmp_path / "new folder" / name)[0].pixels, noise.pixels)
