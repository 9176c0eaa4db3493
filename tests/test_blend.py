from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanface import pixels as px
from leanface.registry import FFHQ
from leanface.stages.align import bounds, crop, fit, similarity
from leanface.stages.blend import (
    add_grain,
    feather,
    grain_of,
    kept_detail,
    match_color,
    own_detail,
    paste,
    touched,
)
from leanface.types import Image

SIZE = 64
TEMPLATE = np.array(FFHQ) * SIZE


def place(x: float, y: float, scale: float, angle: float) -> np.ndarray:
    """The matrix of a face at x, y of this scale (picture pixels per crop pixel) and angle (radians)."""
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return similarity((TEMPLATE - SIZE / 2) @ turn.T + [x, y], TEMPLATE)


@settings(max_examples=60, deadline=None)
@given(
    x=st.floats(-20, 220), y=st.floats(-20, 160), scale=st.floats(0.2, 4), angle=st.floats(-3.2, 3.2),
    sixteen=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_an_identity_restorer_changes_nothing(
    x: float, y: float, scale: float, angle: float, sixteen: bool, seed: int
) -> None:
    depth = np.uint16 if sixteen else np.uint8
    picture = np.random.default_rng(seed).integers(
        0, np.iinfo(depth).max, (140, 200, 3), depth, endpoint=True
    )
    out = picture.copy()
    matrix = place(x, y, scale, angle)
    taken = crop(picture, matrix, SIZE)
    paste(out, picture, matrix, taken, taken.copy(), strength=1, mask=feather(SIZE))
    np.testing.assert_array_equal(out, picture)


@settings(max_examples=60, deadline=None)
@given(x=st.floats(-20, 220), y=st.floats(-20, 160), scale=st.floats(0.2, 4), angle=st.floats(-3.2, 3.2))
def test_only_the_own_rectangle_is_touched(x: float, y: float, scale: float, angle: float) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (140, 200, 3), np.uint8)
    out = picture.copy()
    matrix = place(x, y, scale, angle)
    taken = crop(picture, matrix, SIZE)
    paste(out, picture, matrix, taken, 1 - taken, strength=1, mask=feather(SIZE))
    left, top, right, bottom = bounds(matrix, SIZE)
    changed = (out != picture).any(2)
    rows, columns = np.nonzero(changed)
    if rows.size:
        assert rows.min() >= np.floor(top) and rows.max() < np.ceil(bottom)
        assert columns.min() >= np.floor(left) and columns.max() < np.ceil(right)


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_the_middle_of_the_face_is_the_restored_crop(scale: float) -> None:
    picture = np.full((300, 300, 3), 40, np.uint8)
    out = picture.copy()
    matrix = place(150, 150, scale, 0.3)
    taken = crop(picture, matrix, SIZE)
    restored = np.full_like(taken, np.array([200, 100, 50], np.float32) / np.float32(255))
    paste(out, picture, matrix, taken, restored, strength=1, mask=feather(SIZE))
    reach = int(SIZE * scale * 0.2)
    middle = out[150 - reach : 150 + reach, 150 - reach : 150 + reach]
    np.testing.assert_array_equal(middle, np.broadcast_to([200, 100, 50], middle.shape))


@pytest.mark.parametrize("strength", [0.0, 0.25, 0.5, 1.0])
def test_strength_is_linear(strength: float) -> None:
    picture = np.full((64, 64, 3), 100, np.uint8)
    out = picture.copy()
    taken = crop(picture, fit(64, 64, 64), 64)
    paste(out, picture, fit(64, 64, 64), taken, taken + np.float32(80 / 255), strength=strength, mask=None)
    np.testing.assert_array_equal(out, np.full_like(picture, 100 + 80 * strength))


def test_the_mask_is_soft_and_scales() -> None:
    for size in (128, 512, 1024):
        mask = feather(size)
        border = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        assert border.max() < 0.01
        assert mask[size // 4 : -size // 4, size // 4 : -size // 4].min() == 1
        steps = max(np.abs(np.diff(mask, axis=axis)).max() for axis in (0, 1))
        assert steps * size < 14.5  # the same slope in crop coordinates at every size
        np.testing.assert_array_equal(mask, mask.T)
        np.testing.assert_allclose(mask, mask[::-1], atol=1e-6)


def test_detail_beyond_the_crop_stays_where_the_network_keeps_its_own() -> None:
    rng = np.random.default_rng(5)
    picture = rng.integers(60, 200, (256, 256, 3), np.uint8)
    matrix = fit(256, 256, 64)
    taken = crop(picture, matrix, 64)
    kept, denoised = picture.copy(), picture.copy()
    paste(kept, picture, matrix, taken, taken + np.float32(20 / 255), strength=1, mask=None)
    np.testing.assert_array_equal(kept, picture + 20)
    flat = np.full_like(taken, taken.mean())
    paste(denoised, picture, matrix, taken, flat, strength=1, mask=None)
    assert denoised.std() < 2 < picture.std()


def test_kept_detail() -> None:
    crop_ = np.random.default_rng(2).random((64, 64, 3), np.float32)
    assert kept_detail(crop_, crop_) == pytest.approx(1)
    assert kept_detail(crop_, crop_ * 0.5) == pytest.approx(0.5, abs=0.01)
    assert kept_detail(crop_, np.full_like(crop_, 0.5)) == pytest.approx(0, abs=1e-6)
    assert kept_detail(np.full_like(crop_, 0.5), crop_) == 1


def test_touched_is_where_the_network_changed_anything() -> None:
    crop_ = np.random.default_rng(2).random((512, 512, 3), np.float32)
    assert not touched(crop_, crop_.copy()).any()
    changed = crop_.copy()
    changed[:256] = 1 - changed[:256]
    where = touched(crop_, changed)
    assert where[:240].min() == 1 and where[352:].max() == 0


def test_a_base_keeps_the_detail_that_its_picture_has() -> None:
    assert own_detail(place(0, 0, 2, 0.3), place(0, 0, 2, 0.3)) == pytest.approx(1)
    assert own_detail(place(0, 0, 0.5, 0), place(0, 0, 2, 0)) == 0  # all beyond the crop was made up
    assert own_detail(place(0, 0, 2, 0), place(0, 0, 8, 0)) == pytest.approx(1 / 3)  # of three octaves, one
    assert own_detail(place(0, 0, 0.3, 0), place(0, 0, 0.6, 0)) == 1  # there is none beyond


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_how_much_detail_stays_can_be_said(kept: float) -> None:
    picture = np.random.default_rng(5).integers(60, 200, (256, 256, 3), np.uint8)
    matrix = fit(256, 256, 64)
    taken = crop(picture, matrix, 64)
    out = picture.copy()
    paste(out, out, matrix, taken, taken.copy(), strength=1, mask=None, kept=kept)
    flat = px.resize(taken, 256, 256) * 255
    spread_ = (out - flat).std() / (picture - flat).std()
    assert spread_ == pytest.approx(kept, abs=0.05)


def test_16_bit_rounds_to_nearest(noise: Image) -> None:
    every = np.arange(65536, dtype=np.uint16)
    np.testing.assert_array_equal(px.to_depth(px.to_float(every), every.dtype), every)
    values = np.array([0.49 / 255, 0.51 / 255, -3, 7], np.float32)
    np.testing.assert_array_equal(px.to_depth(values, np.dtype(np.uint8)), [0, 1, 0, 255])


def test_a_tint_is_taken_off() -> None:
    rng = np.random.default_rng(8)
    coarse = rng.random((8, 8, 3), np.float32) * np.float32(0.5) + np.float32(0.25)
    picture = px.to_depth(px.resize(coarse, 256, 256), np.dtype(np.uint8))
    taken = crop(picture, fit(256, 256, 64), 64)
    tinted = (taken - np.float32(0.5)) * np.float32(0.9) + np.array([0.56, 0.47, 0.5], np.float32)
    matched = match_color(taken, tinted)
    assert np.abs(tinted - taken).mean((0, 1)).max() * 255 > 8
    assert np.abs((matched - taken).mean((0, 1))).max() * 255 < 1
    np.testing.assert_allclose(match_color(taken, taken), taken, atol=1e-6)


def test_matching_colours_keeps_detail() -> None:
    flat = np.full((64, 64, 3), 0.4, np.float32)
    checks = (np.indices((64, 64)).sum(0) % 2)[..., None].astype(np.float32)
    detailed = flat + np.float32(0.1) * checks + np.float32(0.1)
    matched = match_color(flat, detailed)
    assert matched.std() == pytest.approx(detailed.std(), rel=0.05)
    assert matched.mean() == pytest.approx(0.4, abs=0.004)


@pytest.mark.parametrize("tone", [(1, 1, 1), (1.1, 0.95, 0.7)])
def test_one_tone_stays_one_tone(tone: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(6)
    gray = px.resize(rng.random((8, 8, 1), np.float32), 64, 64) * np.float32(0.5) + np.float32(0.2)
    taken = gray * np.array(tone, np.float32)
    painted = np.clip(taken + rng.normal(0, 0.03, (64, 64, 3)).astype(np.float32), 0, 1)
    matched = match_color(taken, painted)
    chroma = matched / np.array(tone, np.float32)
    assert np.ptp(chroma, axis=2).max() * 255 < 0.5
    assert np.abs((matched - taken).mean((0, 1))).max() * 255 < 1


def test_colour_is_not_taken_for_one_tone() -> None:
    taken = np.random.default_rng(6).random((64, 64, 3), np.float32)
    taken = px.resize(px.resize(taken, 8, 8), 64, 64)
    np.testing.assert_allclose(match_color(taken, taken), np.clip(taken, 0, 1), atol=1e-5)


def noisy(sigma: float, depth: type = np.uint8, channels: int = 1) -> np.ndarray:
    """A slope with an edge, and normal noise of that spread in levels of 8 bits."""
    y, x = np.mgrid[:240, :240]
    slope = 90 + x * 0.2 + y * 0.1 + 40 * (x > 120)
    values = slope[..., None] + np.random.default_rng(3).normal(0, sigma, (240, 240, channels))
    top = np.iinfo(depth).max
    return np.rint(np.clip(np.repeat(values, 3 // channels, 2) / 255, 0, 1) * top).astype(depth)


def pasted(picture: np.ndarray, amount: float, angle: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """A picture with a face smoothed, and with grain on it."""
    matrix = place(120, 120, 2.5, angle)
    taken = crop(picture, matrix, SIZE)
    smooth = px.resize(px.resize(taken, SIZE // 8, SIZE // 8), SIZE, SIZE)
    out = picture.copy()
    paste(out, picture, matrix, taken, smooth, strength=1, mask=feather(SIZE))
    grainy = out.copy()
    wanted = grain_of(picture, matrix, feather(SIZE))
    add_grain(grainy, matrix, feather(SIZE), wanted, amount=amount)
    return out, grainy


def spread(pixels: np.ndarray) -> float:
    """Of the noise of a smooth area, in levels of 8 bits: that of the differences of neighbours."""
    values = pixels[..., 1].astype(np.float64) * 255 / np.iinfo(pixels.dtype).max
    return float(np.diff(values, axis=0).std() / np.sqrt(2))


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
@pytest.mark.parametrize("sigma", [3.0, 10.0])
@pytest.mark.parametrize("angle", [0.0, 0.5])
def test_grain_is_that_of_the_picture(depth: type, sigma: float, angle: float) -> None:
    picture = noisy(sigma, depth)
    smooth, grainy = pasted(picture, 1, angle)
    middle = (slice(90, 150), slice(85, 115))
    assert spread(picture[middle]) == pytest.approx(sigma, rel=0.08)
    assert spread(smooth[middle]) < 0.3 * sigma
    assert spread(grainy[middle]) == pytest.approx(sigma, rel=0.1)
    assert abs(grainy[middle].mean() - smooth[middle].mean()) < 0.06 * sigma * np.iinfo(depth).max / 255
    np.testing.assert_array_equal(np.ptp(grainy, axis=2), 0)  # gray stays gray
    np.testing.assert_array_equal(pasted(picture, 1, angle)[1], grainy)  # always the same
    half = pasted(picture, 0.5, angle)[1]
    assert spread(half[middle]) == pytest.approx(0.5 * sigma, rel=0.15)


def test_grain_stays_inside_the_mask_and_comes_only_where_noise_lacks() -> None:
    picture = noisy(6, channels=3)
    _, grainy = pasted(picture, 1)
    left, top, right, bottom = bounds(place(120, 120, 2.5, 0), SIZE)
    changed = (grainy != picture).any(2)
    rows, columns = np.nonzero(changed)
    assert top <= rows.min() and rows.max() < bottom and left <= columns.min() and columns.max() < right
    np.testing.assert_array_equal(pasted(picture, 0)[0], pasted(picture, 0)[1])
    for clean in (noisy(0), picture):  # no noise to match, and a face that kept its own
        out = clean.copy()
        matrix = place(120, 120, 2.5, 0)
        add_grain(out, matrix, feather(SIZE), grain_of(clean, matrix, feather(SIZE)), amount=1)
        np.testing.assert_array_equal(out, clean)


def test_grain_runs_evenly_through_the_soft_edge() -> None:
    picture = noisy(8)
    grainy = pasted(picture, 1)[1].astype(np.float64) - noisy(0)
    strips = [grainy[40:200, x : x + 6, 1].std() for x in range(42, 72, 6)]  # from outside to inside
    assert min(strips) > 0.85 * 8 and max(strips) < 1.15 * 8


def test_grain_of_a_large_area_takes_many_bands() -> None:
    gray = np.random.default_rng(1).normal(120, 5, (1300, 1300, 1))
    picture = np.repeat(gray.round().astype(np.uint8), 3, axis=2)
    matrix = place(650, 650, 20, 0)
    out = np.full_like(picture, 120)
    add_grain(out, matrix, feather(SIZE), grain_of(picture, matrix, feather(SIZE)), amount=1)
    assert spread(out[300:1000, 300:1000]) == pytest.approx(5, rel=0.03)
    rows = out[300:1000, 300:1000, 0]
    assert (rows[:300] != rows[400:]).mean() > 0.8  # no band repeats
