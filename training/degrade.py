"""Damage like that of real bad photographs, drawn from a seeded generator; numpy and Pillow only.

Pictures are float32 HWC RGB in [0,1]. `degrade` returns what the network sees and what it should return:
changes of colour and contrast (fading, yellowing, sepia, gray) belong to both, since a restorer of faces does
not recolour; everything else belongs to the first alone.

    python -m training.degrade --show sheet.png [--faces FOLDER]
"""

# mypy: disable-error-code="no-any-return"
# (NumPy types most arithmetic of float32 arrays as Any.)

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Picture = NDArray[np.float32]
Rng = np.random.Generator

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
SAMPLE = Path(__file__).parents[1] / "samples/astronaut.png"
SAMPLE_HEAD = (125, 0, 325, 200)
LEVELS = (0, 1, 2, 3, 4)
"""0 clean, 1 light, 2 medium, 3 strong, 4 heavy."""


# --- conversions --------------------------------------------------------------------------------------------


def to_uint8(image: Picture) -> NDArray[np.uint8]:
    """Clip to [0,1] and round to 8 bits."""
    return np.asarray(np.clip(image, 0, 1) * 255 + 0.5, np.uint8)


def to_float(image: NDArray[np.uint8]) -> Picture:
    """8 bits to [0,1]."""
    return np.asarray(image, np.float32) / np.float32(255)


def luma(image: Picture) -> Picture:
    """[H,W] BT.601 luma."""
    return image @ LUMA


def _normal(rng: Rng, *shape: int) -> Picture:
    return rng.standard_normal(shape, np.float32)


def _between(rng: Rng, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


# --- blur ---------------------------------------------------------------------------------------------------


def gaussian_kernel(sigma: float, ratio: float = 1.0, angle: float = 0.0) -> Picture:
    """A Gaussian of deviations `sigma` and `sigma * ratio` pixels, turned by `angle` radians; sum 1."""
    radius = max(1, math.ceil(3 * sigma * max(1.0, ratio)))
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float32)
    u = (x * math.cos(angle) + y * math.sin(angle)) / sigma
    v = (y * math.cos(angle) - x * math.sin(angle)) / (sigma * ratio)
    return _unit_sum(np.exp(-0.5 * (u * u + v * v)))


def motion_kernel(length: float, angle: float) -> Picture:
    """A straight streak `length` pixels long, its ends and sides antialiased; sum 1."""
    radius = max(1, math.ceil(length / 2 + 0.5))
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float32)
    along = np.abs(x * math.cos(angle) + y * math.sin(angle))
    across = np.abs(y * math.cos(angle) - x * math.sin(angle))
    return _unit_sum(np.clip(length / 2 + 0.5 - along, 0, 1) * np.clip(1 - across, 0, 1))


def defocus_kernel(radius: float) -> Picture:
    """A disc of `radius` pixels with an antialiased rim; sum 1."""
    reach = math.ceil(radius + 0.5)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float32)
    return _unit_sum(np.clip(radius + 0.5 - np.hypot(x, y), 0, 1))


def _unit_sum(kernel: NDArray[np.floating]) -> Picture:
    return (kernel / kernel.sum()).astype(np.float32)


def convolve(image: Picture, kernel: Picture) -> Picture:
    """Convolve each colour with an odd-sized kernel; edges are reflected."""
    ry, rx = kernel.shape[0] // 2, kernel.shape[1] // 2
    padded = np.pad(image, ((ry, ry), (rx, rx), (0, 0)), "reflect")
    shape = (_fast_length(padded.shape[0]), _fast_length(padded.shape[1]))
    spectrum = np.fft.rfft2(padded, shape, axes=(0, 1)) * np.fft.rfft2(kernel, shape)[..., None]
    full = np.fft.irfft2(spectrum, shape, axes=(0, 1))
    return full[2 * ry : 2 * ry + image.shape[0], 2 * rx : 2 * rx + image.shape[1]].astype(np.float32)


def _fast_length(n: int) -> int:
    """The next length with no prime factor over 5: fast to transform."""
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


# --- resizing -----------------------------------------------------------------------------------------------

GOOD_KERNELS = (
    Image.Resampling.BICUBIC,
    Image.Resampling.LANCZOS,
    Image.Resampling.BILINEAR,
    Image.Resampling.BOX,
)


def resize(
    image: Picture, width: int, height: int, kernel: Image.Resampling = Image.Resampling.BICUBIC
) -> Picture:
    """Antialiased resize of each channel in float."""
    if (image.shape[1], image.shape[0]) == (width, height):
        return image
    planes = [
        np.asarray(Image.fromarray(image[..., c]).resize((width, height), kernel), np.float32)
        for c in range(image.shape[2])
    ]
    return np.stack(planes, -1)


def resize_point(image: Picture, width: int, height: int, smooth: bool) -> Picture:
    """Sample points without antialiasing, as bad tools do: the nearest, or bilinear if `smooth`."""
    y = (np.arange(height) + 0.5) * image.shape[0] / height - 0.5
    x = (np.arange(width) + 0.5) * image.shape[1] / width - 0.5
    if not smooth:
        rows = np.clip(np.rint(y).astype(int), 0, image.shape[0] - 1)
        columns = np.clip(np.rint(x).astype(int), 0, image.shape[1] - 1)
        return image[rows[:, None], columns]
    y, x = np.clip(y, 0, image.shape[0] - 1), np.clip(x, 0, image.shape[1] - 1)
    y0, x0 = y.astype(int), x.astype(int)
    y1, x1 = np.minimum(y0 + 1, image.shape[0] - 1), np.minimum(x0 + 1, image.shape[1] - 1)
    fy, fx = (y - y0).astype(np.float32)[:, None, None], (x - x0).astype(np.float32)[:, None]
    rows_mixed = image[y0] * (1 - fy) + image[y1] * fy
    return rows_mixed[:, x0] * (1 - fx) + rows_mixed[:, x1] * fx


# --- noise and grain ----------------------------------------------------------------------------------------


def gaussian_noise(rng: Rng, image: Picture, sigma: float, colour: bool = True) -> Picture:
    """Sensor noise of standard deviation `sigma`; the same in all colours unless `colour`."""
    height, width = image.shape[:2]
    return image + sigma * _normal(rng, height, width, 3 if colour else 1)


def shot_noise(rng: Rng, image: Picture, photons: float) -> Picture:
    """Light counted in quanta: variance grows with brightness; `photons` is the count of full white."""
    return image + np.sqrt(np.clip(image, 0, 1) / photons) * _normal(rng, *image.shape)


def chroma_noise(rng: Rng, image: Picture, sigma: float, size: float) -> Picture:
    """Coloured blotches about `size` pixels wide that leave the luma alone, as of phones in the dark."""
    height, width = image.shape[:2]
    coarse = _normal(rng, max(2, round(height / size)), max(2, round(width / size)), 3)
    blotches = resize(coarse, width, height)
    return image + sigma * (blotches - luma(blotches)[..., None])


def film_grain(rng: Rng, image: Picture, sigma: float, size: float) -> Picture:
    """Gray grain about `size` pixels wide, strongest in the middle tones."""
    height, width = image.shape[:2]
    grain = convolve(_normal(rng, height, width, 1), gaussian_kernel(max(0.3, size / 2)))
    grain /= grain.std() + 1e-6
    tone = luma(np.clip(image, 0, 1))[..., None]
    return image + sigma * grain * (0.35 + 2.6 * tone * (1 - tone))


# --- compression and processing -----------------------------------------------------------------------------


def jpeg(image: Picture, quality: int, subsampling: int = 2) -> Picture:
    """A JPEG round trip. `subsampling` as Pillow's: 0 is 4:4:4, 2 is 4:2:0."""
    buffer = io.BytesIO()
    Image.fromarray(to_uint8(image)).save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return to_float(np.asarray(Image.open(buffer).convert("RGB")))


def webcam_blocks(image: Picture, factor: float, quality: int) -> Picture:
    """A starved video call: strong 4:2:0 blocks at 1/`factor` of the size, blown up with visible squares."""
    height, width = image.shape[:2]
    small = resize(
        image, max(16, round(width / factor)), max(16, round(height / factor)), Image.Resampling.BOX
    )
    return resize(jpeg(small, quality), width, height, Image.Resampling.BILINEAR)


def sharpening_halo(image: Picture, sigma: float, amount: float) -> Picture:
    """Unsharp masking overdone: bright and dark rims along edges."""
    return np.clip(image + amount * (image - convolve(image, gaussian_kernel(sigma))), 0, 1)


# --- paper and print ----------------------------------------------------------------------------------------


def halftone(image: Picture, period: float, angle: float, strength: float) -> Picture:
    """A newspaper's dots: `period` pixels, turned by `angle`; `strength` 1 is pure black and white."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32) * np.float32(2 * math.pi / period)
    u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    screen = (0.5 + 0.25 * (np.cos(u) + np.cos(v)))[..., None].astype(np.float32)
    dots = np.clip((image - screen) * 4 + 0.5, 0, 1)
    return image * (1 - strength) + dots * strength


def paper_texture(rng: Rng, image: Picture, sigma: float, size: float) -> Picture:
    """The tooth of matt paper, lit from one side: gray relief in three octaves from `size` pixels up."""
    height, width = image.shape[:2]
    relief = np.zeros((height + 1, width + 1, 1), np.float32)
    for octave in range(3):
        step = size * 2**octave
        coarse = _normal(rng, max(2, round(height / step)), max(2, round(width / step)), 1)
        relief += resize(coarse, width + 1, height + 1)
    lit = relief[1:, 1:] - relief[:-1, :-1]
    return image * (1 + sigma * lit / (lit.std() + 1e-6))


def scratches(rng: Rng, image: Picture, count: int) -> Picture:
    """`count` thin bent lines, mostly light, from one side towards another."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    out = image
    for _ in range(count):
        angle, bend = _between(rng, 0, math.pi), _between(rng, -0.3, 0.3)
        cx, cy = _between(rng, 0, width), _between(rng, 0, height)
        along = ((x - cx) * math.cos(angle) + (y - cy) * math.sin(angle)) / max(height, width)
        across = (
            (y - cy) * math.cos(angle) - (x - cx) * math.sin(angle) + bend * max(height, width) * along**2
        )
        reach = _between(rng, 0.1, 1.0)
        line = np.clip(_between(rng, 0.6, 2.2) - np.abs(across), 0, 1) * np.clip(
            (reach - np.abs(along)) * 8, 0, 1
        )
        shade = _between(rng, 0.75, 1.0) if rng.random() < 0.75 else _between(rng, 0.0, 0.25)
        alpha = (line * _between(rng, 0.3, 0.95))[..., None].astype(np.float32)
        out = out * (1 - alpha) + np.float32(shade) * alpha
    return out


def dust(rng: Rng, image: Picture, count: int) -> Picture:
    """`count` specks of 1 to 4 pixels, light or dark, soft at the rim."""
    height, width = image.shape[:2]
    out = image.copy()
    for _ in range(count):
        radius = _between(rng, 0.6, 2.6) * _between(rng, 0.6, 1.6)
        ratio, angle = _between(rng, 0.5, 1), _between(rng, 0, math.pi)
        cy, cx = _between(rng, 0, height), _between(rng, 0, width)
        reach = math.ceil(radius + 1)
        top, left = max(0, int(cy) - reach), max(0, int(cx) - reach)
        part = out[top : int(cy) + reach + 1, left : int(cx) + reach + 1]
        y, x = np.mgrid[top : top + part.shape[0], left : left + part.shape[1]].astype(np.float32)
        dy, dx = y - cy, x - cx
        u, v = (
            dx * math.cos(angle) + dy * math.sin(angle),
            (dy * math.cos(angle) - dx * math.sin(angle)) / ratio,
        )
        alpha = (np.clip(radius + 0.5 - np.hypot(u, v), 0, 1) * _between(rng, 0.4, 0.95))[..., None]
        shade = _between(rng, 0.8, 1.0) if rng.random() < 0.6 else _between(rng, 0.0, 0.3)
        part[...] = part * (1 - alpha.astype(np.float32)) + np.float32(shade) * alpha.astype(np.float32)
    return out


# --- colour: applied to input and target alike --------------------------------------------------------------


def fade(image: Picture, black: float, white: float) -> Picture:
    """Lose contrast: black rises to `black`, white sinks to `white`."""
    return image * np.float32(white - black) + np.float32(black)


def tint(image: Picture, gains: Sequence[float]) -> Picture:
    """Multiply red, green and blue; (1, 0.94, 0.75) yellows."""
    return image * np.asarray(gains, np.float32)


def gray(image: Picture) -> Picture:
    """Luma in all three colours, exactly equal."""
    return np.repeat(luma(image)[..., None], 3, -1)


def sepia(image: Picture, warmth: float) -> Picture:
    """Gray with brown middle tones; `warmth` 0 is gray, 1 full sepia. Black and white stay neutral."""
    tone = luma(image)[..., None]
    curve = 4 * tone * (1 - tone) * np.float32(warmth)
    return tone + curve * np.array([0.07, 0.0, -0.09], np.float32)


# --- the whole ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strength:
    """Ranges (low, high) and chances of one level, for a crop of 512 pixels."""

    shrink: tuple[float, float]
    """How many times smaller the face was; drawn log-uniformly."""
    blur: tuple[float, float]
    """Standard deviation of the blur before shrinking, in pixels of the shrunk face."""
    noise: tuple[float, float]
    """Standard deviation of noise in 8-bit levels, at the shrunk size; low values are drawn more often."""
    quality: tuple[int, int]
    """JPEG quality."""
    second: float
    """Chance of a second round of damage."""
    print_: float
    """Chance of paper, print, scratches and dust."""


STRENGTHS: dict[int, Strength] = {
    1: Strength((1.2, 3.0), (0.2, 0.6), (0, 4), (70, 96), 0.1, 0.10),
    2: Strength((1.6, 5.0), (0.2, 0.9), (0, 8), (45, 92), 0.3, 0.15),
    3: Strength((2.5, 9.0), (0.3, 1.1), (0, 14), (28, 80), 0.5, 0.25),
    4: Strength((5.0, 21.0), (0.3, 1.2), (0, 18), (20, 65), 0.6, 0.25),
}


def degrade(rng: Rng, image: Picture, level: int) -> tuple[Picture, Picture]:
    """Damage a clean picture: (input, target), both of its size, rounded to 8 bits.

    Level 0 gives input = target (in changed colours at times). The sizes of blur, blocks and texture are
    meant for an aligned 512-pixel crop and scale with the picture's shorter side.
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level}; allowed are {LEVELS}")
    target = recolour(rng, image)
    if level == 0:
        target = to_float(to_uint8(target))
        return target, target
    strength = STRENGTHS[level]
    unit = min(image.shape[:2]) / 512
    damaged = target
    if rng.random() < strength.print_:
        damaged = age(rng, damaged, level, unit)
    damaged = _round(rng, damaged, strength, unit, 1.0)
    if rng.random() < strength.second:
        damaged = _round(rng, damaged, strength, unit, 0.4)
    if rng.random() < 0.12:
        damaged = sharpening_halo(damaged, _between(rng, 0.7, 2.5) * unit, _between(rng, 0.3, 1.2))
    if rng.random() < 0.08 * level:
        damaged = film_grain(
            rng, damaged, _between(rng, 1, 4 * level + 2) / 255, _between(rng, 0.8, 2.5) * unit
        )
    if rng.random() < 0.3:
        damaged = jpeg(damaged, int(rng.integers(max(40, strength.quality[0]), 97)), int(rng.choice((0, 2))))
    return to_float(to_uint8(damaged)), to_float(to_uint8(target))


def recolour(rng: Rng, image: Picture) -> Picture:
    """Leave the colours alone in two of three cases; else gray, sepia, yellowed, faded or flat."""
    draw = rng.random()
    if draw < 0.66:
        return image
    if draw < 0.80:
        image = gray(image)
    elif draw < 0.86:
        image = sepia(image, _between(rng, 0.3, 1.0))
    elif draw < 0.93:
        image = tint(image, (1.0, _between(rng, 0.86, 0.99), _between(rng, 0.65, 0.95)))
    if draw > 0.93 or rng.random() < 0.35:
        image = fade(image, _between(rng, 0.0, 0.18), _between(rng, 0.75, 1.0))
    return image


def age(rng: Rng, image: Picture, level: int, unit: float) -> Picture:
    """Paper, print, scratches and dust, one to three of them; input only."""
    choices: list[Callable[[Picture], Picture]] = [
        lambda p: scratches(rng, p, int(rng.integers(1, 2 + level))),
        lambda p: dust(rng, p, int(rng.integers(4, 12 * level))),
        lambda p: paper_texture(
            rng, p, _between(rng, 0.015, 0.02 + 0.02 * level), _between(rng, 1.0, 4.0) * unit
        ),
        lambda p: halftone(
            p, _between(rng, 3, 3.5 + level) * unit, _between(rng, 0, 1.57), 0.08 + 0.1 * level * rng.random()
        ),
    ]
    for index in rng.choice(len(choices), int(rng.integers(1, 3)), replace=False, p=(0.3, 0.3, 0.25, 0.15)):
        image = choices[index](image)
    return image


def _round(rng: Rng, image: Picture, strength: Strength, unit: float, share: float) -> Picture:
    """One round of blur, shrink, noise, compression, back to size; `share` weakens it.

    Steps are dropped at random, since single faults are common; noise and compression change places.
    """
    height, width = image.shape[:2]
    low, high = strength.shrink
    factor = math.exp(_between(rng, math.log(low), math.log(high))) ** share
    if rng.random() < 0.08:  # full size: only noise, compression and blur
        factor = 1.0
    if rng.random() < 0.75:
        image = convolve(image, _blur_kernel(rng, _between(rng, *strength.blur) * factor * unit * share))
    small_w, small_h = max(16, round(width / factor)), max(16, round(height / factor))
    image = _shrink(rng, image, small_w, small_h)
    for step in rng.permutation(2):
        if step == 0 and rng.random() < 0.8:
            quiet, loud = strength.noise
            image = _noise(rng, image, (quiet + (loud - quiet) * rng.random() ** 2) / 255 * share)
        if step == 1 and rng.random() < 0.8:
            quality = int(rng.integers(*strength.quality))
            if rng.random() < 0.1:
                image = webcam_blocks(image, _between(rng, 1, 2), max(15, quality - 20))
            else:
                image = jpeg(image, quality, int(rng.choice((0, 2))))
    image = np.clip(image, 0, 1)
    if rng.random() < 0.06 and factor < 6:
        return resize_point(image, width, height, smooth=rng.random() < 0.6)
    return resize(image, width, height, GOOD_KERNELS[int(rng.integers(3))])


def _blur_kernel(rng: Rng, sigma: float) -> Picture:
    sigma = max(0.2, sigma)
    kind = rng.random()
    if kind < 0.6:
        return gaussian_kernel(sigma, _between(rng, 0.5, 1), _between(rng, 0, math.pi))
    if kind < 0.8:
        return defocus_kernel(2 * sigma)
    return motion_kernel(1 + 4 * sigma, _between(rng, 0, math.pi))


def _shrink(rng: Rng, image: Picture, width: int, height: int) -> Picture:
    draw = rng.random()
    if draw < 0.1:
        return resize_point(image, width, height, smooth=draw < 0.06)
    return resize(image, width, height, GOOD_KERNELS[int(rng.integers(4))])


def _noise(rng: Rng, image: Picture, sigma: float) -> Picture:
    kind = rng.random()
    if kind < 0.35:
        return gaussian_noise(rng, image, sigma, colour=rng.random() < 0.6)
    if kind < 0.65:
        return shot_noise(rng, image, 0.5 / max(sigma, 1e-3) ** 2)
    if kind < 0.85:
        image = chroma_noise(rng, image, 1.5 * sigma, _between(rng, 1, 4))
        return gaussian_noise(rng, image, 0.5 * sigma, colour=False)
    return film_grain(rng, image, sigma, _between(rng, 0.8, 2.0))


# --- contact sheet ------------------------------------------------------------------------------------------


def contact_sheet(faces: Sequence[Picture], seed: int = 0, size: int = 256) -> Image.Image:
    """One row a face: the clean picture, then levels 1 to 4 as the network gets them."""
    sheet = Image.new("RGB", (size * len(LEVELS), size * len(faces)))
    for row, face in enumerate(faces):
        for level in LEVELS:
            damaged, _ = degrade(np.random.default_rng((seed, row, level)), face, level)
            sheet.paste(Image.fromarray(to_uint8(damaged)).resize((size, size)), (size * level, size * row))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--show", type=Path, required=True, metavar="FILE.png", help="where to write the sheet"
    )
    parser.add_argument("--faces", type=Path, help="folder of aligned faces; without it, the sample portrait")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--size", type=int, default=256, help="pixels a picture in the sheet")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.faces:
        files = sorted(p for p in args.faces.iterdir() if p.suffix in {".webp", ".png", ".jpg"})
        files = files[:: max(1, len(files) // args.rows)][: args.rows]
        pictures: list[Image.Image] = [Image.open(path) for path in files]
    else:
        pictures = [Image.open(SAMPLE).crop(SAMPLE_HEAD).resize((512, 512))] * args.rows
    faces = [to_float(np.asarray(picture.convert("RGB"))) for picture in pictures]
    contact_sheet(faces, args.seed, args.size).save(args.show)


if __name__ == "__main__":
    main()
