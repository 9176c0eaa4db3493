"""The damage that training draws: every fault on its own, then the whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from training import degrade
from training.degrade import Picture


def rng(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def flat(value: float, size: int = 64) -> Picture:
    return np.full((size, size, 3), value, np.float32)


def portrait(size: int = 128) -> Picture:
    """A smooth picture with an edge and colours, in [0,1]."""
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    disc = (np.hypot(x - 0.5, y - 0.5) < 0.3).astype(np.float32)
    return np.stack([0.2 + 0.5 * disc + 0.2 * x, 0.3 + 0.3 * disc, 0.5 - 0.2 * y], -1).astype(np.float32)


def centroid_spread(kernel: Picture) -> tuple[float, float]:
    """Standard deviations along x and y."""
    y, x = np.mgrid[: kernel.shape[0], : kernel.shape[1]] - np.array(kernel.shape)[:, None, None] // 2
    return float(np.sqrt((kernel * x * x).sum())), float(np.sqrt((kernel * y * y).sum()))


def psnr(a: Picture, b: Picture) -> float:
    return float(-10 * np.log10(np.mean((a - b) ** 2)))


def test_training_degrade_needs_no_torch() -> None:
    code = "import sys, training.degrade; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- blur


def test_gaussian_kernel_has_the_asked_spread() -> None:
    kernel = degrade.gaussian_kernel(3.0, ratio=0.5)
    assert kernel.sum() == pytest.approx(1, abs=1e-5)
    assert centroid_spread(kernel) == pytest.approx((3.0, 1.5), rel=0.03)
    turned = centroid_spread(degrade.gaussian_kernel(3.0, ratio=0.5, angle=np.pi / 2))
    assert turned == pytest.approx((1.5, 3.0), rel=0.03)


def test_motion_kernel_is_a_streak_along_its_angle() -> None:
    kernel = degrade.motion_kernel(9, 0.0)
    middle = kernel.shape[0] // 2
    assert kernel[middle].sum() == pytest.approx(1, abs=1e-5)
    assert np.count_nonzero(kernel[middle] > 0.1) == 9


def test_defocus_kernel_is_an_even_disc() -> None:
    kernel = degrade.defocus_kernel(4)
    assert kernel.max() == pytest.approx(1 / (np.pi * 16), rel=0.05)
    assert kernel[0, 0] == 0


def test_convolve_agrees_with_the_definition_and_keeps_flat_pictures() -> None:
    image, kernel = portrait(32), degrade.motion_kernel(4, 0.7)
    r = kernel.shape[0] // 2
    padded = np.pad(image, ((r, r), (r, r), (0, 0)), "reflect")
    direct = sum(
        kernel[i, j] * padded[2 * r - i : 2 * r - i + 32, 2 * r - j : 2 * r - j + 32]
        for i in range(2 * r + 1)
        for j in range(2 * r + 1)
    )
    np.testing.assert_allclose(degrade.convolve(image, kernel), direct, atol=1e-5)
    np.testing.assert_allclose(degrade.convolve(flat(0.3), degrade.defocus_kernel(5)), 0.3, atol=1e-5)


# --- resizing


def test_resize_keeps_means_and_never_rounds_to_8_bits() -> None:
    small = degrade.resize(portrait(), 32, 32)
    assert small.mean() == pytest.approx(portrait().mean(), abs=2e-3)
    assert degrade.resize(flat(0.1234), 16, 16)[0, 0, 0] == pytest.approx(0.1234, abs=1e-6)


def test_resize_point_picks_single_pixels() -> None:
    checker = np.zeros((64, 64, 3), np.float32)
    checker[::2, ::2] = 1
    picked = degrade.resize_point(checker, 16, 16, smooth=False)
    assert set(np.unique(picked)) <= {0.0, 1.0}
    assert degrade.resize(checker, 16, 16).std() < 0.02 < picked.std() + 0.03
    ramp = np.repeat(np.linspace(0, 1, 64, dtype=np.float32)[None, :, None], 64, 0).repeat(3, -1)
    grown = degrade.resize_point(ramp, 128, 64, smooth=True)
    np.testing.assert_allclose(np.diff(grown[0, 2:-2, 0]), 1 / 126, atol=1e-4)


# --- noise


def test_gaussian_noise_has_the_asked_strength() -> None:
    noise = degrade.gaussian_noise(rng(), flat(0.5), 0.1) - 0.5
    assert noise.std() == pytest.approx(0.1, rel=0.03)
    same = degrade.gaussian_noise(rng(), flat(0.5), 0.1, colour=False)
    np.testing.assert_array_equal(same[..., 0], same[..., 2])


def test_shot_noise_grows_with_brightness() -> None:
    dark = (degrade.shot_noise(rng(), flat(0.04), 100) - 0.04).std()
    bright = (degrade.shot_noise(rng(), flat(0.64), 100) - 0.64).std()
    assert dark == pytest.approx(0.02, rel=0.05)
    assert bright == pytest.approx(0.08, rel=0.05)


def test_chroma_noise_leaves_luma_alone() -> None:
    noisy = degrade.chroma_noise(rng(), flat(0.5), 0.1, 3)
    np.testing.assert_allclose(degrade.luma(noisy), 0.5, atol=1e-4)
    assert noisy[..., 2].std() > 0.03


def test_film_grain_is_gray_and_strongest_in_middle_tones() -> None:
    middle = degrade.film_grain(rng(), flat(0.5), 0.05, 2) - 0.5
    white = degrade.film_grain(rng(), flat(1.0), 0.05, 2) - 1
    np.testing.assert_allclose(middle[..., 0], middle[..., 1], atol=1e-6)
    assert middle.std() == pytest.approx(0.05, rel=0.02)
    assert white.std() == pytest.approx(0.0175, rel=0.03)


# --- compression and processing


def test_jpeg_loses_more_at_lower_quality() -> None:
    image = degrade.gaussian_noise(rng(), portrait(), 0.03)
    good, bad = (psnr(degrade.jpeg(image, q), np.clip(image, 0, 1)) for q in (90, 20))
    assert good > bad + 2
    assert bad > 20


def test_webcam_blocks_lose_detail_but_not_colour() -> None:
    image = portrait()
    out = degrade.webcam_blocks(image, 2, 15)
    assert out.shape == image.shape
    assert abs(out.mean() - image.mean()) < 0.02
    assert psnr(out, image) < psnr(degrade.jpeg(image, 15), image)


def test_sharpening_overshoots_at_edges_only() -> None:
    image = np.repeat(np.where(np.arange(64) < 32, 0.3, 0.7)[None, :, None], 64, 0).repeat(3, -1)
    out = degrade.sharpening_halo(image.astype(np.float32), 1.5, 1.0)
    assert out[32, 31, 0] < 0.2 and out[32, 32, 0] > 0.8
    assert out[32, 10, 0] == pytest.approx(0.3, abs=1e-4)


# --- paper and print


def test_halftone_keeps_the_tone_and_repeats_with_its_period() -> None:
    out = degrade.halftone(flat(0.5, 96), 8, 0.0, 1.0)
    assert out.mean() == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(out[:, 8:48], out[:, 16:56], atol=1e-3)
    assert out.min() == 0 and out.max() == 1
    np.testing.assert_array_equal(degrade.halftone(flat(0.5), 8, 0.0, 0.0), flat(0.5))


def test_paper_texture_scales_with_brightness() -> None:
    out = degrade.paper_texture(rng(), flat(0.5), 0.04, 2)
    assert (out - 0.5).std() == pytest.approx(0.02, rel=0.05)
    np.testing.assert_array_equal(degrade.paper_texture(rng(), flat(0.0), 0.04, 2), 0)


def test_scratches_and_dust_touch_little_and_visibly() -> None:
    for out in (degrade.scratches(rng(), flat(0.5, 128), 3), degrade.dust(rng(), flat(0.5, 128), 12)):
        changed = np.abs(out - 0.5).max(-1) > 0.01
        assert 0.001 < changed.mean() < 0.15
        assert np.abs(out - 0.5).max() > 0.15
    np.testing.assert_array_equal(degrade.dust(rng(), flat(0.5), 0), flat(0.5))


# --- colour


def test_fade_maps_black_and_white() -> None:
    assert degrade.fade(flat(0.0), 0.1, 0.8)[0, 0, 0] == pytest.approx(0.1)
    assert degrade.fade(flat(1.0), 0.1, 0.8)[0, 0, 0] == pytest.approx(0.8)


def test_tint_multiplies() -> None:
    np.testing.assert_allclose(degrade.tint(flat(0.5), (1, 0.9, 0.7))[3, 3], (0.5, 0.45, 0.35), rtol=1e-6)


def test_gray_is_exactly_neutral_and_sepia_is_warm_in_the_middle() -> None:
    image = degrade.gray(portrait())
    np.testing.assert_array_equal(image[..., 0], image[..., 2])
    np.testing.assert_allclose(degrade.sepia(flat(0.5), 1.0)[0, 0], (0.57, 0.5, 0.41), atol=1e-5)
    np.testing.assert_allclose(degrade.sepia(flat(1.0), 1.0)[0, 0], 1, atol=1e-5)


# --- the whole


def test_level_0_is_clean() -> None:
    damaged, target = degrade.degrade(rng(), portrait(), 0)
    np.testing.assert_array_equal(damaged, target)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_same_seed_same_damage(level: int) -> None:
    first, second = (degrade.degrade(rng(9), portrait(), level) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    assert np.abs(first[0] - degrade.degrade(rng(10), portrait(), level)[0]).max() > 0.01


def test_levels_get_worse() -> None:
    image = portrait(256)
    quality = [
        np.mean([psnr(*degrade.degrade(rng(seed), image, level)) for seed in range(12)])
        for level in (1, 2, 3, 4)
    ]
    assert quality == sorted(quality, reverse=True)
    assert quality[0] > quality[3] + 4


def test_results_are_8_bit_values_in_range() -> None:
    damaged, target = degrade.degrade(rng(3), portrait(), 3)
    for picture in (damaged, target):
        assert picture.dtype == np.float32 and picture.shape == (128, 128, 3)
        np.testing.assert_array_equal(degrade.to_float(degrade.to_uint8(picture)), picture)


def test_colour_changes_belong_to_input_and_target() -> None:
    for seed in range(60):
        damaged, target = degrade.degrade(rng(seed), portrait(), 1)
        assert np.abs(damaged.mean((0, 1)) - target.mean((0, 1))).max() < 0.05


def test_recolour_leaves_most_pictures_alone() -> None:
    image = portrait(16)
    same = sum(np.array_equal(degrade.recolour(rng(seed), image), image) for seed in range(400))
    assert 230 < same < 300


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed are"):
        degrade.degrade(rng(), portrait(), 5)


SEEDED: list[Callable[[np.random.Generator, Picture], Picture]] = [
    lambda r, p: degrade.gaussian_noise(r, p, 0.1),
    lambda r, p: degrade.shot_noise(r, p, 50),
    lambda r, p: degrade.chroma_noise(r, p, 0.1, 2),
    lambda r, p: degrade.film_grain(r, p, 0.1, 2),
    lambda r, p: degrade.paper_texture(r, p, 0.1, 2),
    lambda r, p: degrade.scratches(r, p, 2),
    lambda r, p: degrade.dust(r, p, 5),
]


@pytest.mark.parametrize("fault", SEEDED)
def test_every_fault_is_seeded_and_leaves_its_input_alone(
    fault: Callable[[np.random.Generator, Picture], Picture],
) -> None:
    image = portrait(64)
    before = image.copy()
    np.testing.assert_array_equal(fault(rng(1), image), fault(rng(1), image))
    assert np.abs(fault(rng(1), image) - fault(rng(2), image)).max() > 1e-3
    np.testing.assert_array_equal(image, before)
