"""How good the embedded restorer is: figures on held-out faces, contact sheets of real pictures.

    pip install -e '.[bench]'
    python -m benchmarks.quality --faces-val VAL [--crops CROPS] [--photos PHOTOS] [--out LOOK] [--write]

VAL holds aligned 512x512 faces (FFHQ template) that training never saw. Each is damaged at the levels of
`training.degrade`, from the same seeds in every run, restored by every method and compared with the clean
face. Two runs on one machine print the same figures. `--write` puts them into docs/model-card.md, with a
picture of the sample portrait. CROPS (aligned real faces) and PHOTOS are only looked at: sheets (before,
lite, x4plus) and NIQE, which needs no clean picture.

    python -m benchmarks.quality --niqe-fit TRAIN       (what clean faces are like -> benchmarks/niqe.npz)

Pictures are uint8 [height, width, 3] RGB, planes float32 [height, width] of luma in 8-bit levels.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from leanface import Options, Restorer, imageio
from leanface import pixels as px
from leanface.engine.pool import Pool, resolve
from leanface.engine.session import Graph
from leanface.registry import ASSETS, FFHQ, find
from leanface.stages.align import crop as take_crop
from leanface.stages.align import similarity
from training import degrade
from training.data import SIZE, face_files, read_face

Picture = NDArray[np.uint8]
Plane = NDArray[np.float32]
Values = NDArray[np.float64]
Method = Callable[[Picture], Picture]

ROOT = Path(__file__).parents[1]
NIQE_FILE = Path(__file__).with_name("niqe.npz")
CARD = ROOT / "docs/model-card.md"
CARD_PICTURE = ROOT / "docs/images/lite-and-x4plus.png"
SAMPLE = ROOT / "samples/portrait.jpg"
SEED = 77
LEVEL_NAMES = ("0 clean", "1 light", "2 medium", "3 strong", "4 heavy")
CLEAN = "clean face"
FACES_A_PHOTO = 4


def luma(picture: Picture) -> Plane:
    """BT.601 luma in 8-bit levels."""
    return px.luminance(picture.astype(np.float32))


def smoothed(plane: NDArray[Any], taps: NDArray[Any]) -> NDArray[Any]:
    """Filter rows and columns with the same taps; only where they fit: n - 1 less each way."""
    for axis in (0, 1):
        length = plane.shape[axis] - len(taps) + 1
        total = np.zeros_like(np.take(plane, range(length), axis))
        for i, tap in enumerate(taps):
            total += tap * (plane[i : i + length] if axis == 0 else plane[:, i : i + length])
        plane = total
    return plane


def gaussian(radius: int, sigma: float) -> Plane:
    """2 * radius + 1 taps of a Gaussian; sum 1."""
    taps = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    unit: Plane = (taps / taps.sum()).astype(np.float32)
    return unit


# --- comparison with the clean face -------------------------------------------------------------------------


def psnr(a: Picture, b: Picture) -> float:
    """Decibels between two pictures, all colours together; at most 60."""
    error = float(np.mean((a.astype(np.float64) - b) ** 2))
    return min(60.0, 10 * math.log10(255**2 / max(error, 1e-9)))


def ssim(a: Picture, b: Picture) -> float:
    """Structural similarity of the lumas, at most 1.

    Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004, section
    III-B: 11x11 Gaussian of deviation 1.5, K1 0.01, K2 0.03, only where the window fits.
    """
    x, y = luma(a).astype(np.float64), luma(b).astype(np.float64)
    taps = gaussian(5, 1.5).astype(np.float64)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mx, my = smoothed(x, taps), smoothed(y, taps)
    vx, vy = smoothed(x * x, taps) - mx * mx, smoothed(y * y, taps) - my * my
    both = smoothed(x * y, taps) - mx * my
    alike = (2 * mx * my + c1) * (2 * both + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return float(alike.mean())


def gradient_error(a: Picture, b: Picture, scales: int = 4) -> float:
    """Mean absolute error of the differences between neighbours, in 8-bit levels of luma.

    Mean over the picture at 1, 1/2, 1/4 and 1/8 of its size, each averaged over 2x2 pixels of the one before.
    """
    error, total = luma(a) - luma(b), 0.0
    for scale in range(scales):
        if scale:
            height, width = (n // 2 * 2 for n in error.shape)
            error = error[:height, :width].reshape(height // 2, 2, width // 2, 2).mean((1, 3))
        total += float(np.abs(np.diff(error, axis=0)).mean() + np.abs(np.diff(error, axis=1)).mean()) / 2
    return total / scales


def sharpness(picture: Picture) -> float:
    """Variance of the Laplacian of the luma inside the face of an aligned crop; noise counts as sharp."""
    y = luma(picture)[SIZE // 4 : -SIZE // 8, SIZE // 4 : -SIZE // 4]
    return float(np.var(4 * y[1:-1, 1:-1] - y[:-2, 1:-1] - y[2:, 1:-1] - y[1:-1, :-2] - y[1:-1, 2:]))


def colour_shift(a: Picture, b: Picture) -> float:
    """How far the mean colours lie apart: absolute, mean of red, green and blue, in 8-bit levels."""
    return float(np.abs(a.mean((0, 1)) - b.mean((0, 1))).mean())


# --- NIQE ---------------------------------------------------------------------------------------------------
# Mittal, Soundararajan, Bovik, "Making a 'completely blind' image quality analyzer", 2013.


@dataclass(frozen=True)
class Niqe:
    """What patches of clean faces are like: a Gaussian of 36 features."""

    mean: Values
    covariance: Values

    def __call__(self, picture: Picture) -> float:
        """Distance of a picture's patches from those of clean faces; 0 or more, lower is more natural.

        Raises:
            ValueError: the picture is smaller than 96x96, or flat.
        """
        features, _ = niqe_features(picture)
        away = features.mean(0) - self.mean
        spread = np.cov(features, rowvar=False) if len(features) > 1 else np.zeros_like(self.covariance)
        return float(np.sqrt(away @ np.linalg.pinv((self.covariance + spread) / 2) @ away))

    @staticmethod
    def load(path: Path = NIQE_FILE) -> Niqe:
        with np.load(path) as stored:
            return Niqe(stored["mean"].astype(np.float64), stored["covariance"].astype(np.float64))

    def save(self, path: Path = NIQE_FILE) -> None:
        np.savez(path, mean=self.mean.astype(np.float32), covariance=self.covariance.astype(np.float32))


def fit_niqe(files: Sequence[Path]) -> Niqe:
    """The Gaussian of the patches of clean faces that have 3/4 of the contrast of the face's sharpest."""
    kept = []
    for path in files:
        features, contrast = niqe_features(read_face(path))
        kept.append(features[contrast > 0.75 * contrast.max()])
    patches = np.concatenate(kept)
    return Niqe(patches.mean(0), np.cov(patches, rowvar=False))


def niqe_features(picture: Picture, side: int = 96) -> tuple[Values, Values]:
    """([patches, 36], local contrast [patches]): 18 features at the full and at half the size.

    Patches are square, side by side, centred in the picture; flat ones are left out.

    Raises:
        ValueError: there is none.
    """
    plane = luma(picture)
    rows, columns = (n // side for n in plane.shape)
    top, left = (n % side // 4 * 2 for n in plane.shape)
    plane = plane[top : top + rows * side, left : left + columns * side]
    if not plane.size:
        raise ValueError(f"{picture.shape[1]}x{picture.shape[0]} pixels hold no patch of {side}x{side}")
    found = []
    for scale in (1, 2):
        if scale == 2:
            plane = px.resize(plane[..., None], columns * side // 2, rows * side // 2)[..., 0]
        normal, deviation = mscn(plane)
        if scale == 1:
            contrast = _patches(deviation, side).mean(1).astype(np.float64)
        found.append(_patch_features(normal, side // scale))
    there = contrast > 1e-3
    if not there.any():
        raise ValueError("the picture is flat")
    return np.concatenate(found, 1)[there], contrast[there]


def mscn(plane: Plane) -> tuple[Plane, Plane]:
    """(mean-subtracted, contrast-normalised luma; local deviation).

    By a 7x7 Gaussian of deviation 7/6; edges are repeated.
    """
    taps = gaussian(3, 7 / 6)
    wide = np.pad(plane, 3, "edge")
    mean = smoothed(wide, taps)
    # The variance is taken about a constant near the mean: squares of large numbers would lose it in 32 bits.
    middle = np.float32(plane.mean())
    variance = smoothed((wide - middle) ** 2, taps) - (mean - middle) ** 2
    deviation = np.sqrt(np.maximum(variance, 0))
    normal: Plane = (plane - mean) / (deviation + 1)
    return normal, deviation


def _patches(plane: Plane, side: int) -> Plane:
    """[rows * side, columns * side] -> [patches, side * side]."""
    rows, columns = (n // side for n in plane.shape)
    tiles = plane.reshape(rows, side, columns, side).swapaxes(1, 2)
    return np.asarray(tiles.reshape(rows * columns, side * side))


def _patch_features(normal: Plane, side: int) -> Values:
    """[patches, 18]: shape and scale of the coefficients; shape, mean and scales of neighbours' products."""
    shape, left, right = fit_aggd(_patches(normal, side))
    features = [shape, (left + right) / 2]
    for down, across in ((0, 1), (1, 0), (1, 1), (1, -1)):
        product = normal * np.roll(normal, (down, across), (0, 1))
        shape, left, right = fit_aggd(_patches(product, side))
        features += [shape, (right - left) * _gamma_ratio(shape), left, right]
    return np.stack(features, 1)


_SHAPES = np.arange(0.2, 10, 0.001)
_log_gamma = np.vectorize(math.lgamma, otypes=[float])


def _gamma_ratio(shape: Values) -> Values:
    """gamma(2/a) / gamma(1/a)."""
    return np.asarray(np.exp(_log_gamma(2 / shape) - _log_gamma(1 / shape)))


@functools.cache
def _moment_ratios() -> Values:
    """gamma(2/a)^2 / (gamma(1/a) gamma(3/a)) of every shape: (mean |x|)^2 / mean x^2; it rises."""
    one, two, three = (_log_gamma(n / _SHAPES) for n in (1, 2, 3))
    return np.asarray(np.exp(2 * two - one - three))


def fit_aggd(samples: NDArray[Any]) -> tuple[Values, Values, Values]:
    """Shape and the scales left and right of 0 of asymmetric generalised Gaussians, by their moments.

    Lasmar, Stitou, Berthoumieu, "Multiscale skewed heavy tailed model for texture analysis", 2009. The
    density is proportional to exp(-(|x| / scale)^shape), with the scale of the side that x lies on.

    Args:
        samples: [n, count].

    Returns:
        three arrays [n]; shapes lie between 0.2 and 10.
    """
    squares, negative = samples * samples, samples < 0
    below = (squares * negative).sum(1, dtype=np.float64) / np.maximum(negative.sum(1), 1)
    above = (squares * ~negative).sum(1, dtype=np.float64) / np.maximum((~negative).sum(1), 1)
    left, right = np.sqrt(np.maximum(below, 1e-12)), np.sqrt(np.maximum(above, 1e-12))
    skew = left / right
    mean, power = np.abs(samples).mean(1, dtype=np.float64), squares.mean(1, dtype=np.float64)
    ratio = mean**2 / np.maximum(power, 1e-12) * (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    shape = np.interp(ratio, _moment_ratios(), _SHAPES)
    scale = np.exp((_log_gamma(1 / shape) - _log_gamma(3 / shape)) / 2)
    return shape, left * scale, right * scale


# --- identity -----------------------------------------------------------------------------------------------


class Identity:
    """How unlike two pictures of one aligned face are to dlib's face recognition network.

    The distance is Euclidean between 128 numbers; dlib's author takes faces under 0.6 for one person.
    Landmarks are found on the clean face and used for all its versions, so that only looks count.
    """

    BOX = (95, 164, 405, 474)
    """Left, top, right, bottom: where dlib's detector finds faces of the FFHQ template (the median of 24)."""

    def __init__(self) -> None:
        """Raises ImportError where dlib or the models are not installed."""
        self._dlib: Any = importlib.import_module("dlib")
        # Found, not imported: the package's own code needs a part that setuptools has dropped.
        package = importlib.util.find_spec("face_recognition_models")
        if package is None or not package.submodule_search_locations:
            raise ImportError("face_recognition_models is not installed")
        models = Path(package.submodule_search_locations[0]) / "models"
        self._landmarks = self._dlib.shape_predictor(str(models / "shape_predictor_5_face_landmarks.dat"))
        self._network = self._dlib.face_recognition_model_v1(
            str(models / "dlib_face_recognition_resnet_model_v1.dat")
        )

    def to(self, clean: Picture) -> Callable[[Picture], float]:
        """What gives the distance of another version of the face from this one."""
        landmarks = self._landmarks(np.ascontiguousarray(clean), self._dlib.rectangle(*self.BOX))

        def descriptor(picture: Picture) -> Values:
            whole = np.ascontiguousarray(picture)
            chip = self._dlib.get_face_chip(whole, landmarks, size=150, padding=0.25)
            return np.array(self._network.compute_face_descriptor(chip))

        wanted = descriptor(clean)
        return lambda picture: float(np.linalg.norm(descriptor(picture) - wanted))


def load_identity() -> Identity | None:
    """None where the packages for it are not installed."""
    try:
        return Identity()
    except ImportError as missing:
        print(f"no identity distance: {missing}", file=sys.stderr)
        return None


# --- what is compared ---------------------------------------------------------------------------------------


def unsharp(picture: Picture) -> Picture:
    """Pillow's unsharp mask as it comes: 2 pixels, 150 %, from 3 levels. The input was enlarged already."""
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.UnsharpMask()))


def non_local_means() -> Method | None:
    """OpenCV's non-local means (strength 5), then `unsharp`; None where OpenCV is not installed."""
    try:
        cv2: Any = importlib.import_module("cv2")
    except ImportError as missing:
        print(f"no non-local means: {missing}", file=sys.stderr)
        return None
    return lambda picture: unsharp(np.asarray(cv2.fastNlMeansDenoisingColored(picture, None, 5, 5), np.uint8))


@contextlib.contextmanager
def restorers(lite: Path, *, x4plus: bool, threads: int) -> Iterator[dict[str, Restorer]]:
    """The restorers as users get them, on the processor; `lite` is a graph like the shipped one."""
    model = find("lite")

    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(Pool(threads=threads))
        device, precision = resolve("cpu", "auto", model.variant.precisions)
        there = {
            "lite": Restorer(
                "lite",
                device="cpu",
                generator=lambda: pool.session(Graph(lite), device=device, precision=precision),
                threads=threads,
            )
        }
        if x4plus:
            there["x4plus"] = Restorer("realesrgan-x4plus", device="cpu", threads=threads)
        for restorer in there.values():
            stack.enter_context(restorer)
        yield there


def on_crops(restorer: Restorer) -> Method:
    """A restorer as a function of aligned crops."""
    return lambda crop: restorer.restore(crop, Options(aligned=True)).image.pixels


def remembered(method: Method, restorer: Restorer, folder: Path) -> Method:
    """The same, with its results kept as files: x4plus is slow and does not change from run to run.

    A file's name is the sum of the picture, the network and the code around it.
    """
    variant = restorer.model.variant
    family = Path(importlib.import_module(f"leanface.families.{restorer.model.family.id}").__file__ or "")
    network = hashlib.sha256((ASSETS / variant.asset).read_bytes() + family.read_bytes())

    def recall(picture: Picture) -> Picture:
        key = network.copy()
        key.update(picture.tobytes())
        path = folder / f"{variant.id}-{key.hexdigest()[:16]}.png"
        if not path.exists():
            partial = path.with_suffix(".partial")
            Image.fromarray(method(picture)).save(partial, "PNG")
            partial.replace(path)
        return np.asarray(Image.open(path))

    folder.mkdir(parents=True, exist_ok=True)
    return recall


def face_methods(there: Mapping[str, Restorer], out: Path | None) -> dict[str, Method]:
    """The restorers for aligned crops; what x4plus gives is kept under `out`."""
    methods = {name: on_crops(restorer) for name, restorer in there.items()}
    if out and "x4plus" in methods:
        methods["x4plus"] = remembered(methods["x4plus"], there["x4plus"], out / "x4plus")
    return methods


# --- the study ----------------------------------------------------------------------------------------------

MEASURES = ("PSNR dB", "SSIM", "gradient error", "sharpness %", "NIQE", "identity", "colour shift")
DECIMALS = (2, 3, 2, 0, 2, 3, 2)


@dataclass(frozen=True)
class Study:
    """Figures [levels, methods, faces, measures] in the order of LEVEL_NAMES, `methods` and MEASURES.

    NaN where a figure cannot be had.
    """

    methods: tuple[str, ...]
    figures: Values

    def of(self, method: str, measure: str) -> Values:
        """[levels, faces]."""
        chosen: Values = self.figures[:, self.methods.index(method), :, MEASURES.index(measure)]
        return chosen


def measure(
    faces: Mapping[int, Picture],
    methods: Mapping[str, Method],
    niqe: Niqe,
    identity: Identity | None,
    levels: Sequence[int] = degrade.LEVELS,
) -> Study:
    """Damage every face at these levels and compare what every method makes of it with the clean face.

    `faces` are named by their places in the folder, from which their damage is drawn: a face's figures do not
    depend on which others are measured.
    """
    names = ("input", *methods, CLEAN)
    figures = np.full((len(degrade.LEVELS), len(names), len(faces), len(MEASURES)), np.nan)
    for number, (place, face) in enumerate(faces.items()):
        began = time.perf_counter()
        for level in levels:
            rng = np.random.default_rng((SEED, level, place))
            damaged, clean = map(degrade.to_uint8, degrade.degrade(rng, degrade.to_float(face), level))
            distance = identity.to(clean) if identity else lambda picture: math.nan
            made = [damaged, *(method(damaged) for method in methods.values())]
            for column, picture in enumerate(made):
                figures[level, column, number] = (
                    psnr(picture, clean),
                    ssim(picture, clean),
                    gradient_error(picture, clean),
                    100 * sharpness(picture) / sharpness(clean),
                    niqe(picture),
                    distance(picture),
                    colour_shift(picture, clean),
                )
            figures[level, -1, number, MEASURES.index("NIQE")] = niqe(clean)
        print(f"face {number + 1} of {len(faces)}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return Study(names, figures)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(study: Study) -> str:
    """Markdown: a row for each level and method, means over the faces; measures not taken are left out."""
    means = study.figures.mean(2)
    taken = [i for i in range(len(MEASURES)) if not np.isnan(means[..., i]).all()]
    lines = [_row("level", "", *(MEASURES[i] for i in taken)), "|---" * (2 + len(taken)) + "|"]
    for level, name in enumerate(LEVEL_NAMES):
        for row, method in enumerate(study.methods):
            cells = [f"{means[level, row, i]:.{DECIMALS[i]}f}".replace("nan", "") for i in taken]
            lines.append(_row(name, method, *cells))
    return "\n".join(lines)


def skin_luminance(face: Picture) -> float:
    """Mean luma of cheeks and nose, between eyes and mouth of the FFHQ template, in 8-bit levels."""
    return float(luma(face)[265:345, 195:317].mean())


def skin_table(study: Study, faces: Sequence[Picture]) -> str:
    """Markdown: what lite does to the third of faces with the darkest, middle and lightest skin.

    Means over levels 1 to 4, with the standard error over the faces; at least six faces.
    """
    light = np.array([skin_luminance(face) for face in faces])
    gain = study.of("lite", "PSNR dB") - study.of("input", "PSNR dB")
    columns = {"PSNR gain dB": gain}
    for name in ("colour shift", "identity"):
        for method in ("input", "lite"):
            columns[f"{name}, {method}"] = study.of(method, name)
    columns = {name: values for name, values in columns.items() if not np.isnan(values).all()}
    lines = [_row("skin", "luma", "faces", *columns), "|---" * (3 + len(columns)) + "|"]
    parts = np.array_split(np.argsort(light, kind="stable"), 3)
    for name, part in zip(("darkest third", "middle third", "lightest third"), parts, strict=True):
        cells = []
        for values in columns.values():
            each = values[1:, part].mean(0)
            error = each.std(ddof=1) / math.sqrt(len(each))
            cells.append(f"{each.mean():.3f} ± {error:.3f}")
        span = f"{light[part].min():.0f} to {light[part].max():.0f}"
        lines.append(_row(name, span, str(len(part)), *cells))
    return "\n".join(lines)


def gray_difference(faces: Sequence[Picture], method: Method) -> int:
    """Largest difference between the channels of what comes of gray faces given as three equal channels."""
    worst = 0
    for face in faces:
        gray = degrade.to_uint8(degrade.gray(degrade.to_float(face)))
        worst = max(worst, int(np.ptp(method(gray).astype(int), axis=2).max()))
    return worst


# --- looking at real pictures -------------------------------------------------------------------------------

Row = list[tuple[str, Picture]]


def sheet(rows: Sequence[Row], size: int) -> Image.Image:
    """Pictures in rows, each fitted into a square of `size` pixels with its label on it."""
    out = Image.new("RGB", (size * max(map(len, rows)), size * len(rows)))
    draw = ImageDraw.Draw(out)
    for y, row in enumerate(rows):
        for x, (label, picture) in enumerate(row):
            tile = Image.fromarray(picture)
            tile = tile.resize(
                [max(1, round(n * size / max(tile.size))) for n in tile.size], Image.Resampling.LANCZOS
            )
            out.paste(tile, (x * size, y * size))
            draw.text((x * size + 4, y * size + 2), label, fill=(255, 255, 0), stroke_width=1, stroke_fill=0)
    return out


def before_and_after(name: str, crop: Picture, methods: Mapping[str, Method]) -> Row:
    """An aligned crop, then what each method makes of it."""
    return [(name, crop), *((label, method(crop)) for label, method in methods.items())]


def write_sheets(rows: Sequence[Row], out: Path, name: str, size: int = 448, a_sheet: int = 4) -> None:
    """`name`-1.png, `name`-2.png ... in `out`."""
    for start in range(0, len(rows), a_sheet):
        path = out / f"{name}-{start // a_sheet + 1}.png"
        sheet(rows[start : start + a_sheet], size).save(path)
        print(path, file=sys.stderr)


def restored_photo(path: Path, there: Mapping[str, Restorer]) -> tuple[Row, list[Row]]:
    """(the whole photograph before and after; the same of its largest faces, cut out of those)."""
    photo = imageio.read(path)[0]
    results = {
        name: restorer.restore(photo, Options(keep_crops=True, max_faces=FACES_A_PHOTO))
        for name, restorer in there.items()
    }
    whole = [(path.stem, photo.pixels), *((name, result.image.pixels) for name, result in results.items())]
    eight = [(name, px.to_depth(px.to_float(pixels), np.dtype(np.uint8))) for name, pixels in whole]
    faces = []
    for found in next(iter(results.values())).crops:
        faces.append([(name, face_of(pixels, np.array(found.matrix))) for name, pixels in eight])
    return eight, faces


def face_of(picture: Picture, matrix: Values) -> Picture:
    """The aligned 512-pixel crop of a face."""
    return px.to_depth(take_crop(picture, matrix, SIZE), np.dtype(np.uint8))


def niqe_table(kinds: Mapping[str, Sequence[Row]], niqe: Niqe) -> str:
    """Markdown: mean NIQE before and after of each kind of aligned real faces."""
    labels = ["before", *(label for label, _ in next(iter(kinds.values()))[0][1:])]
    lines = [_row("NIQE", *labels), "|---" * (1 + len(labels)) + "|"]
    for kind, rows in kinds.items():
        means = np.mean([[niqe(picture) for _, picture in row] for row in rows], 0)
        lines.append(_row(f"{kind} ({len(rows)})", *(f"{mean:.2f}" for mean in means)))
    return "\n".join(lines)


# --- the model card -----------------------------------------------------------------------------------------

BEGIN, END = "<!-- written by benchmarks.quality: begin -->", "<!-- written by benchmarks.quality: end -->"


def write_card(card: Path, text: str) -> None:
    """Put the figures between the two marks of the model card.

    Raises:
        ValueError: the card has no marks.
    """
    before, begin, rest = card.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{card} has no lines {BEGIN} and {END}")
    card.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


def sample_picture(finder: Restorer, methods: Mapping[str, Method], size: int = 256) -> Image.Image:
    """The sample portrait's face before and after: as it is, and with heavy damage on top."""
    portrait = imageio.read(SAMPLE)[0]
    face = finder.detect(portrait)[0]
    crop = face_of(portrait.pixels, similarity(face.landmarks, np.array(FFHQ) * SIZE))
    rng = np.random.default_rng((SEED, 4))
    worse = degrade.to_uint8(degrade.degrade(rng, degrade.to_float(crop), 4)[0])
    pictures = {"as it is": crop, "heavy damage added": worse}
    return sheet([before_and_after(name, picture, methods) for name, picture in pictures.items()], size)


def provenance(lite: Path) -> str:
    """Date, commit and weights of the figures."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=, changed"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    digest = hashlib.sha256(lite.read_bytes()).hexdigest()[:12]
    return f"{date.today().isoformat()}, commit {commit}, `{lite.name}` with sha256 {digest}..."


# --- command line -------------------------------------------------------------------------------------------


def chosen(folder: Path, count: int) -> dict[int, Picture]:
    """`count` faces of a folder, evenly spread in name order, by their places in it."""
    files = face_files(folder)
    count = min(count, len(files))
    return {place: read_face(files[place]) for place in (i * len(files) // count for i in range(count))}


def figures(folder: Path, count: int, methods: Mapping[str, Method], niqe: Niqe, by_skin: int) -> list[str]:
    """What the card says of `count` held-out faces, and of `by_skin` of them (0: none) by their skin."""
    identity, faces = load_identity(), chosen(folder, count)
    compared: dict[str, Method] = {"unsharp mask": unsharp}
    if denoise := non_local_means():
        compared["non-local means"] = denoise
    study = measure(faces, {**compared, **methods}, niqe, identity)
    gray = gray_difference(list(faces.values()), methods["lite"])
    texts = [
        f"Means over {len(faces)} held-out faces:",
        table(study),
        f"Gray faces given in three equal channels come back with channels at most {gray} levels apart.",
    ]
    if by_skin:
        faces = chosen(folder, by_skin)
        study = measure(faces, {"lite": methods["lite"]}, niqe, identity, degrade.LEVELS[1:])
        texts += [
            f"By skin: {len(faces)} held-out faces, levels 1 to 4 together, mean ± standard error:",
            skin_table(study, list(faces.values())),
        ]
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faces-val", type=Path, help="folder of held-out aligned 512x512 faces")
    parser.add_argument("--count", type=int, default=24, help="how many of them to compare on")
    parser.add_argument("--crops", type=Path, help="folder of real aligned crops")
    parser.add_argument("--photos", type=Path, help="folder of real photographs")
    parser.add_argument("--out", type=Path, help="folder for contact sheets and the tables")
    parser.add_argument("--lite", type=Path, default=ASSETS / "lite.onnx", help="the graph to measure")
    parser.add_argument("--no-x4plus", action="store_true", help="leave out the slow one")
    parser.add_argument("--skin-count", type=int, default=96, help="how many for the table by skin")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put figures and a picture into the card")
    parser.add_argument("--niqe-fit", type=Path, metavar="DIR", help="fit benchmarks/niqe.npz and stop")
    args = parser.parse_args()
    if args.niqe_fit:
        fit_niqe(face_files(args.niqe_fit)).save()
        return
    if not (args.faces_val or args.crops or args.photos):
        parser.error("nothing to do: give --faces-val, --crops or --photos")
    if (args.crops or args.photos) and not args.out:
        parser.error("--crops and --photos need --out")
    if args.write and (not args.faces_val or args.no_x4plus):
        parser.error("--write needs --faces-val and x4plus")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)

    niqe, tables = Niqe.load(), []
    with restorers(args.lite, x4plus=not args.no_x4plus, threads=args.threads) as there:
        methods = face_methods(there, args.out)
        if args.faces_val:
            tables = figures(args.faces_val, args.count, methods, niqe, args.skin_count if args.write else 0)
            tables.insert(0, provenance(args.lite))
            if args.write:
                write_card(CARD, "\n\n".join(tables))
                sample_picture(there["lite"], methods).save(CARD_PICTURE, optimize=True)
        kinds = {}
        if args.crops:
            crops = {path.stem: read_face(path) for path in face_files(args.crops)}
            kinds["crops"] = [before_and_after(name, crop, methods) for name, crop in crops.items()]
            write_sheets(kinds["crops"], args.out, "crops")
        if args.photos:
            photos, kinds["faces in photos"] = [], []
            for path in face_files(args.photos):
                whole, cut = restored_photo(path, there)
                photos.append(whole)
                kinds["faces in photos"] += cut
            write_sheets(photos, args.out, "photos", size=640, a_sheet=2)
            write_sheets(kinds["faces in photos"], args.out, "photo-faces")
        kinds = {kind: rows for kind, rows in kinds.items() if rows}
        if kinds:
            tables.append(niqe_table(kinds, niqe))
    text = "\n\n".join(tables)
    print(text)
    if args.out:
        (args.out / "quality.md").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
