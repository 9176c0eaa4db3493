"""The measures of benchmarks.quality against small cases whose values are known."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from benchmarks import quality
from benchmarks.quality import MEASURES, Niqe, Picture, Study
from leanface import Restorer
from training import degrade

SAMPLES = Path(__file__).parents[1] / "samples"


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_picture(height: int, width: int, seed: int = 3) -> Picture:
    return rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture(scope="module")
def portrait() -> Image.Image:
    return Image.open(SAMPLES / "portrait.jpg").convert("RGB")


@pytest.fixture(scope="module")
def face() -> Picture:
    """An aligned clean face, 512x512."""
    box = 153, 10, 298, 155
    picture = Image.open(SAMPLES / "astronaut.png").convert("RGB")
    return np.asarray(picture.resize((512, 512), Image.Resampling.BICUBIC, box))


# --- comparison with the clean face


def test_psnr_of_a_known_offset() -> None:
    flat = np.full((8, 8, 3), 100, np.uint8)
    assert quality.psnr(flat, flat + np.uint8(10)) == pytest.approx(20 * math.log10(25.5))
    assert quality.psnr(flat, flat - np.uint8(1)) == pytest.approx(48.1308, abs=1e-4)
    assert quality.psnr(flat, flat) == 60


def test_ssim_of_equal_pictures_is_one() -> None:
    picture = random_picture(20, 30)
    assert quality.ssim(picture, picture) == pytest.approx(1, abs=1e-12)


def plain_ssim(a: Picture, b: Picture) -> float:
    """Window by window, as the paper's formula reads."""
    x, y = (p.astype(np.float64) @ [0.299, 0.587, 0.114] for p in (a, b))
    row, column = np.mgrid[-5:6, -5:6]
    window = np.exp(-(row**2 + column**2) / (2 * 1.5**2))
    window /= window.sum()
    found = []
    for i in range(x.shape[0] - 10):
        for j in range(x.shape[1] - 10):
            p, q = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
            mp, mq = (window * p).sum(), (window * q).sum()
            vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
            both = (window * (p - mp) * (q - mq)).sum()
            c1, c2 = 2.55**2, 7.65**2
            found.append((2 * mp * mq + c1) * (2 * both + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(found))


@pytest.mark.parametrize("amount", [0.1, 0.5, 1.0])
def test_ssim_equals_the_formula_window_by_window(amount: float) -> None:
    a, other = random_picture(16, 19), random_picture(16, 19, seed=4)
    b = np.rint((1 - amount) * a + amount * other).astype(np.uint8)
    assert quality.ssim(a, b) == pytest.approx(plain_ssim(a, b), abs=1e-5)


def test_ssim_of_flat_pictures_follows_from_their_means() -> None:
    a, b = np.full((12, 12, 3), 60, np.uint8), np.full((12, 12, 3), 90, np.uint8)
    c = 2.55**2
    assert quality.ssim(a, b) == pytest.approx((2 * 60 * 90 + c) / (60**2 + 90**2 + c), abs=1e-5)


def test_gradient_error_of_a_ramp() -> None:
    flat = np.zeros((32, 32, 3), np.uint8)
    ramp = np.repeat(np.tile(np.arange(32, dtype=np.uint8), (32, 1))[..., None], 3, -1)
    # One way the slope is 1, 2, 4 and 8 levels a pixel at the four scales, the other way none.
    assert quality.gradient_error(ramp, flat) == pytest.approx((1 + 2 + 4 + 8) / 2 / 4, abs=1e-3)
    assert quality.gradient_error(ramp + np.uint8(9), ramp) == pytest.approx(0, abs=1e-4)


def test_sharpness_of_a_checkerboard() -> None:
    board = (np.indices((512, 512)).sum(0) % 2 * 20).astype(np.uint8)
    picture = np.repeat(board[..., None], 3, -1)
    assert quality.sharpness(picture) == pytest.approx(80**2, rel=1e-3)


def test_colour_shift_of_a_known_tint() -> None:
    picture = random_picture(40, 40) // 2
    tinted = picture + np.array([6, 0, 3], np.uint8)
    assert quality.colour_shift(tinted, picture) == pytest.approx(3)
    assert quality.colour_shift(picture[::-1], picture) == 0


# --- NIQE


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.0, 3.5])
@pytest.mark.parametrize(("left", "right"), [(1.0, 1.0), (0.5, 1.5), (2.0, 0.8)])
def test_aggd_fit_recovers_what_samples_were_drawn_from(shape: float, left: float, right: float) -> None:
    generator = rng()
    size = generator.gamma(1 / shape, 1, 200_000) ** (1 / shape)
    samples = np.where(generator.random(size.size) < left / (left + right), -left * size, right * size)
    found = [float(values[0]) for values in quality.fit_aggd(samples[None])]
    assert found == pytest.approx([shape, left, right], rel=0.04)


def test_mscn_of_noise_has_no_mean_and_even_contrast() -> None:
    plane = (128 + 20 * rng().standard_normal((192, 192))).astype(np.float32)
    normal, deviation = quality.mscn(plane)
    assert float(normal.mean()) == pytest.approx(0, abs=0.01)
    assert float(deviation.mean()) == pytest.approx(20, rel=0.1)
    assert quality.mscn(np.full((20, 20), 250, np.float32))[0] == pytest.approx(0, abs=1e-3)


def test_niqe_is_the_distance_between_the_gaussians(portrait: Image.Image) -> None:
    features, _ = quality.niqe_features(np.asarray(portrait))
    assert features.shape == (9, 36)
    own = Niqe(features.mean(0), np.cov(features, rowvar=False))
    assert own(np.asarray(portrait)) == pytest.approx(0, abs=1e-6)
    unit = Niqe(features.mean(0) - 3, 1e9 * np.eye(36))
    assert unit(np.asarray(portrait)) == pytest.approx(3 * 6 / math.sqrt(1e9 / 2), rel=1e-3)


def test_niqe_rises_with_blur(portrait: Image.Image) -> None:
    niqe = Niqe.load()
    found = [niqe(np.asarray(portrait.filter(ImageFilter.GaussianBlur(s)))) for s in (0, 1, 2, 4, 8)]
    assert found == sorted(found)
    assert found[-1] > found[0] + 3


def test_niqe_rises_with_noise(portrait: Image.Image) -> None:
    niqe, clean = Niqe.load(), degrade.to_float(np.asarray(portrait))
    found = [
        niqe(degrade.to_uint8(degrade.gaussian_noise(rng(), clean, sigma / 255)))
        for sigma in (0, 5, 10, 20, 40)
    ]
    assert found == sorted(found)
    assert found[-1] > found[0] + 3


def test_niqe_refuses_what_has_no_patch() -> None:
    with pytest.raises(ValueError, match="80x95 pixels hold no patch"):
        quality.niqe_features(random_picture(95, 80))
    with pytest.raises(ValueError, match="flat"):
        quality.niqe_features(np.full((96, 96, 3), 7, np.uint8))


def test_niqe_fit_takes_the_sharp_patches(tmp_path: Path, face: Picture) -> None:
    half_flat = face.copy()
    half_flat[:, 256:] //= 8
    Image.fromarray(half_flat).save(tmp_path / "a.png")
    features, contrast = quality.niqe_features(half_flat)
    sharp = features[contrast > 0.75 * contrast.max()]
    assert 1 < len(sharp) < len(features)
    fitted = quality.fit_niqe([tmp_path / "a.png"])
    assert fitted.mean == pytest.approx(sharp.mean(0))
    fitted.save(tmp_path / "n.npz")
    assert Niqe.load(tmp_path / "n.npz").mean == pytest.approx(sharp.mean(0), rel=1e-6)


# --- the study and its tables


def test_a_study_compares_every_method_and_repeats_exactly(face: Picture) -> None:
    niqe = Niqe.load()
    methods = {"unsharp mask": quality.unsharp, "lite": lambda picture: picture}
    studies = [quality.measure({5: face}, methods, niqe, None, levels=(0, 2)) for _ in range(2)]
    assert np.array_equal(studies[0].figures, studies[1].figures, equal_nan=True)
    assert studies[0].methods == ("input", "unsharp mask", "lite", "clean face")
    for measure in MEASURES:  # a method that changes nothing is the input
        assert np.array_equal(studies[0].of("lite", measure), studies[0].of("input", measure), equal_nan=True)
    assert studies[0].of("input", "PSNR dB")[0] == 60
    assert np.isnan(studies[0].of("input", "PSNR dB")[[1, 3, 4]]).all()
    damaged, clean = degrade.degrade(np.random.default_rng((77, 2, 5)), degrade.to_float(face), 2)
    wanted = quality.psnr(degrade.to_uint8(damaged), degrade.to_uint8(clean))
    assert studies[0].of("input", "PSNR dB")[2, 0] == wanted


def test_what_x4plus_gives_is_kept(tmp_path: Path) -> None:
    calls: list[Picture] = []

    def negative(picture: Picture) -> Picture:
        calls.append(picture)
        return np.asarray(255 - picture, np.uint8)

    with Restorer("realesrgan-x4plus") as restorer:
        for _ in range(2):  # as by two runs
            kept = quality.remembered(negative, restorer, tmp_path)
            for seed in (1, 2):
                picture = random_picture(9, 9, seed)
                assert np.array_equal(kept(picture), 255 - picture)
    assert len(calls) == 2


def study_of(figures: dict[str, float]) -> Study:
    """The same for every level, method and face but that lite and later faces have more."""
    one = np.array([figures.get(name, math.nan) for name in MEASURES])
    lite, faces = np.arange(2)[None, :, None, None], np.arange(6)[None, None, :, None]
    return Study(("input", "lite"), np.zeros((5, 1, 1, 1)) + one + lite + faces)


def test_table_holds_means_and_leaves_out_what_was_not_measured() -> None:
    lines = quality.table(study_of({"PSNR dB": 30, "NIQE": 4})).splitlines()
    assert lines[0] == "| level |  | PSNR dB | NIQE |"
    assert lines[2:4] == ["| 0 clean | input | 32.50 | 6.50 |", "| 0 clean | lite | 33.50 | 7.50 |"]
    assert len(lines) == 2 + 5 * 2


def test_identity_is_absent_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dlib", None)
    assert quality.load_identity() is None
    assert "identity" not in quality.table(study_of({"PSNR dB": 30}))
    assert "identity" in quality.table(study_of({"PSNR dB": 30, "identity": 0.3}))


def test_non_local_means_are_absent_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert quality.non_local_means() is None


def test_skin_is_measured_between_eyes_and_mouth() -> None:
    face = np.zeros((512, 512, 3), np.uint8)
    face[265:345, 195:317] = 90
    assert quality.skin_luminance(face) == pytest.approx(90, abs=1e-3)


def test_skin_table_has_a_row_for_each_third() -> None:
    faces = [np.full((512, 512, 3), level, np.uint8) for level in (200, 50, 120, 60, 210, 130)]
    lines = quality.skin_table(study_of({"PSNR dB": 30, "colour shift": 1}), faces).splitlines()
    assert lines[2].startswith("| darkest third | 50 to 60 | 2 | 1.000 ± 0.000 | 3.000 ± 1.000 |")
    assert lines[4].startswith("| lightest third | 200 to 210 | 2 | 1.000 ± 0.000 | 3.000 ± 2.000 |")


def test_gray_difference_is_the_largest_between_channels(face: Picture) -> None:
    def tint(picture: Picture) -> Picture:
        assert not np.ptp(picture, axis=2).any()
        return np.minimum(picture, 200) + np.array([0, 3, 5], np.uint8)

    assert quality.gray_difference([face], tint) == 5


def test_card_keeps_what_stands_around_the_figures(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    card.write_text(f"before\n{quality.BEGIN}\nold\n{quality.END}\nafter\n")
    quality.write_card(card, "new")
    quality.write_card(card, "new")
    assert card.read_text() == f"before\n{quality.BEGIN}\n\nnew\n\n{quality.END}\nafter\n"
    card.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        quality.write_card(card, "new")


def test_sheet_fits_pictures_into_squares() -> None:
    white, black = np.full((40, 80, 3), 255, np.uint8), np.zeros((80, 80, 3), np.uint8)
    out = np.asarray(quality.sheet([[("", white), ("", black)], [("", black)]], 64))
    assert out.shape == (128, 128, 3)
    assert out[:32, :64].min() == 255
    assert out[32:64].max() == 0
