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
from leanface.imageio import Origin, read, remove_stale, write
from leanface.imageio.formats import heif
from leanface.imageio.metadata import fitted, upright_xmp
from leanface.imageio.reading import is_deep_avif
from leanface.types import FileOptions, Image

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
    if imageio.FORMATS[suffix] == "HEIF" and not heif():
        pytest.skip("pillow-heif is not here")
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
    before = exif(6).removeprefix(b"Exif\0\0")
    after = fitted(before, 40, 24)
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len(changed) == 1 and before[changed[0]] == 6 and after[changed[0]] == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'<x tiff:Orientation="6"/>', b'<x tiff:Orientation="1"/>'),
        (b"<tiff:Orientation>8</tiff:Orientation>", b"<tiff:Orientation>1</tiff:Orientation>"),
        (b"<x tiff:Orientation = '3' y='6'>", b"<x tiff:Orientation = '1' y='6'>"),
        (b"<x Orientation='3'>6</x>", b"<x Orientation='3'>6</x>"),
    ],
)
def test_only_the_orientation_changes_in_the_xmp_packet(before: bytes, after: bytes) -> None:
    assert upright_xmp(before) == after


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
    said = ("the EXIF block is broken and was left out",)
    assert origin.notes == (said if len(broken) > 8 else ())  # shorter ones are no EXIF block at all


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
        write(path, image, origin, FileOptions(overwrite=True))
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


def test_float_pictures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.tif"
    PillowImage.fromarray(np.zeros((3, 3), np.float32)).save(path)
    with pytest.raises(InputError, match=r"f\.tif: floating-point pixels have no fixed range"):
        read(path)


def test_cmyk_becomes_rgb_and_says_so(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "c.jpg"
    PillowImage.fromarray(picture).convert("CMYK").save(path, quality=100)
    image, origin = read(path)
    assert origin.notes == ("CMYK was converted to RGB; it has no usable profile",)
    assert np.abs(image.pixels.astype(int) - picture).mean() < 12


def test_frames_are_never_dropped_silently(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    first = PillowImage.fromarray(picture)
    first.save(path, save_all=True, append_images=[first.rotate(180)], lossless=True)
    with pytest.raises(InputError, match=r"a\.webp: holds 2 frames or pages; --first-frame takes the first"):
        read(path)
    image, origin = read(path, FileOptions(first_frame=True))
    assert origin.notes == ("only the first of 2 frames or pages was taken",)
    np.testing.assert_array_equal(image.pixels, picture)


@pytest.mark.parametrize("suffix", [".gif", ".png", ".tif", ".webp"])
def test_animations_and_pages_are_refused_unless_the_first_is_asked_for(
    suffix: str, picture: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    first = PillowImage.fromarray(picture)
    first.save(path, save_all=True, append_images=[first.rotate(180), first.rotate(90)])
    with pytest.raises(InputError, match=rf"a\{suffix}: holds 3 frames or pages"):
        read(path)
    image, origin = read(path, FileOptions(first_frame=True))
    assert origin.notes == ("only the first of 3 frames or pages was taken",)
    assert np.abs(image.pixels.astype(int) - picture).mean() < 12


def test_a_preview_in_a_tiff_is_no_second_page(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    preview = PillowImage.fromarray(picture[::4, ::4])
    preview.encoderinfo = {"tiffinfo": {254: 1}}
    PillowImage.fromarray(picture).save(path, save_all=True, append_images=[preview])
    image, origin = read(path)
    assert origin.notes == ("a small preview inside was not kept",)
    np.testing.assert_array_equal(image.pixels, picture)


def test_the_second_picture_of_a_phone_is_named(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    first = PillowImage.fromarray(picture)
    first.save(path, "MPO", save_all=True, append_images=[first.resize((20, 12))])
    image, origin = read(path)
    assert origin.format == "JPEG" and image.width == 40
    assert origin.notes == ("a second picture inside (preview, depth or gain map) was not kept",)


def test_avif_of_10_bits_is_refused_or_said(
    picture: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    path = tmp_path / "a.avif"
    PillowImage.fromarray(picture).save(path)
    assert read(path)[1].notes == ()
    data = path.read_bytes()
    at = data.index(b"av1C") + 6
    assert not is_deep_avif(data) and is_deep_avif(data[:at] + bytes([data[at] | 0x40]) + data[at + 1 :])
    monkeypatch.setattr("leanface.imageio.reading.is_deep_avif", lambda data: True)
    with pytest.raises(InputError, match=r"a\.avif: 10 or 12 bits a channel cannot be kept; --allow-8bit"):
        read(path)
    _, origin = read(path, FileOptions(allow_8bit=True))
    assert origin.notes == ("10 or 12 bits a channel became 8 bits a channel",)


def test_heic_names_the_extra_where_it_is_not_here(
    noise: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leanface.imageio.reading.heif", lambda: False)
    monkeypatch.setattr("leanface.imageio.formats.heif", lambda: False)
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40))
    with pytest.raises(InputError, match=r"a\.heic: HEIC needs the extra: pip install 'leanface\[heic\]'"):
        read(path)
    with pytest.raises(UsageError, match=r"b\.heic: HEIC needs the extra"):
        write(tmp_path / "b.heic", noise, Origin())


def test_lab_colours_are_refused(tmp_path: Path) -> None:
    PillowImage.new("LAB", (8, 8)).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"a\.tif: Lab colours cannot be read here"):
        read(tmp_path / "a.tif")


def cmyk_profile() -> bytes:
    """A CMYK profile that swaps cyan and yellow: a table of 2 x 2 x 2 x 2 corners (ICC.1:2001, lut8)."""
    corners = [[n >> 3 & 1, n >> 2 & 1, n >> 1 & 1, n & 1] for n in range(16)]
    rgb = (
        np.array([[(1 - y) * (1 - k), (1 - m) * (1 - k), (1 - c) * (1 - k)] for c, m, y, k in corners]) * 255
    )
    lab = ImageCms.profileToProfile(
        PillowImage.fromarray(rgb.astype(np.uint8)[None]), ImageCms.createProfile("sRGB"),
        ImageCms.createProfile("LAB"), outputMode="LAB",
    )  # fmt: skip
    assert lab is not None
    table = np.asarray(lab)[0] ^ np.array([0, 128, 128], np.uint8)  # signed to offset
    ramp = bytes(range(256))
    lut = struct.pack(">4sIBBBB9i", b"mft1", 0, 4, 3, 2, 0, *(65536 * (i % 4 == 0) for i in range(9)))
    lut += ramp * 4 + table.tobytes() + ramp * 3
    text = b"desc" + bytes(4) + struct.pack(">I", 5) + b"test\0" + bytes(78)
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061)
    tags, at, heap = b"", 128 + 4 + 12 * 3, b""
    for name, data in ((b"A2B0", lut), (b"desc", text), (b"wtpt", white)):
        tags += struct.pack(">4sII", name, at + len(heap), len(data))
        heap += data + bytes(-len(data) % 4)
    body = struct.pack(">I", 3) + tags + heap
    head = struct.pack(
        ">I4sI4s4s4s12s4s",
        128 + len(body),
        b"lcms",
        0x02400000,
        b"prtr",
        b"CMYK",
        b"Lab ",
        bytes(12),
        b"acsp",
    )
    return head + bytes(28) + struct.pack(">3i", 63190, 65536, 54061) + bytes(48) + body


@pytest.mark.parametrize("suffix", [".jpg", ".tif"])
def test_cmyk_goes_by_its_profile(suffix: str, picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / f"c{suffix}"
    PillowImage.fromarray(picture).convert("CMYK").save(path, icc_profile=cmyk_profile(), quality=100)
    image, origin = read(path)
    assert origin.icc == b"" and origin.notes == ("CMYK was converted to sRGB by its profile",)
    away = np.abs(image.pixels.astype(int) - picture).mean()
    swapped = np.abs(image.pixels[..., ::-1].astype(int) - picture).mean()
    assert swapped < 30 < away


def test_a_profile_that_does_not_fit_is_not_followed(picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "c.tif"
    PillowImage.fromarray(picture).convert("CMYK").save(path, icc_profile=ICC)
    image, origin = read(path)
    assert origin.icc == b"" and origin.notes == ("CMYK was converted to RGB; it has no usable profile",)
    assert np.abs(image.pixels.astype(int) - picture).max() <= 1


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
        read(small, FileOptions(max_pixels=599))
    assert read(small, FileOptions(max_pixels=600))[0].width == 30


def test_targets_are_never_overwritten_unasked(noise: Image, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"precious")
    with pytest.raises(OutputError, match="exists already"):
        write(path, noise, Origin())
    assert path.read_bytes() == b"precious"
    write(path, noise, Origin(), FileOptions(overwrite=True))
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
    with pytest.raises(UsageError, match="JPEG cannot hold 16 bits a channel; choose PNG or TIFF"):
        write(tmp_path / "x.jpg", deep, Origin())


def test_unicode_and_long_names(noise: Image, tmp_path: Path) -> None:
    for name in ("портрет 肖像 ü.png", "a" * 240 + ".png"):
        write(tmp_path / "new folder" / name, noise, Origin())
        np.testing.assert_array_equal(read(tmp_path / "new folder" / name)[0].pixels, noise.pixels)


def test_unfinished_files_of_a_dead_process_are_removed_others_not(noise: Image, tmp_path: Path) -> None:
    stale, other = tmp_path / ".leanface-0123456789abcdef.part", tmp_path / "mine.part"
    for path in (stale, other):
        path.write_bytes(b"half of it")
    found: list[int] = []

    def whole(temporary: Path, path: Path) -> None:
        found.append(remove_stale(tmp_path))
        assert temporary.exists() and path.name == "x.png"

    write(tmp_path / "x.png", noise, Origin(), whole=whole)
    assert found == [1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.part", "x.png"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(noise: Image, tmp_path: Path) -> None:
    def whole(temporary: Path, path: Path) -> None:
        path.write_bytes(b"precious")

    with pytest.raises(OutputError, match="exists already"):
        write(tmp_path / "x.png", noise, Origin(), whole=whole)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"precious"]


def test_links_are_replaced_never_followed(noise: Image, tmp_path: Path) -> None:
    (tmp_path / "precious.png").write_bytes(b"precious")
    for name, target in (("link.png", "precious.png"), ("dangling.png", "nowhere.png")):
        link = tmp_path / name
        try:
            link.symlink_to(tmp_path / target)
        except OSError:
            pytest.skip("no links here")
        with pytest.raises(OutputError, match="exists already"):
            write(link, noise, Origin())
        write(link, noise, Origin(), FileOptions(overwrite=True))
        assert not link.is_symlink()
    assert (tmp_path / "precious.png").read_bytes() == b"precious"
    assert not (tmp_path / "nowhere.png").exists()
