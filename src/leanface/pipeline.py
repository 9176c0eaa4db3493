"""One picture from input to result: detect, align, restore, blend, a face at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface import pixels as px
from leanface.engine import device as machine
from leanface.engine import heap
from leanface.engine.session import Session
from leanface.errors import EngineError, OutOfMemoryError
from leanface.pixels import Float, Matrix
from leanface.registry import Crop, Model, Variant
from leanface.stages.align import crop as take_crop
from leanface.stages.align import fit, fitted, similarity
from leanface.stages.blend import (
    add_grain,
    feather,
    grain_of,
    keep_tone,
    kept_detail,
    match_color,
    own_detail,
    paste,
    touched,
)
from leanface.stages.detect import Detector, detect
from leanface.stages.restore import restore
from leanface.stages.upscale import LEAST_TILE, shown, upscale
from leanface.types import Face, FaceCrop, FaceReport, Image, Options, Result

Event = Callable[[str, dict[str, Any]], None]
"""Told what has just happened: ``detected`` (faces), ``resized`` (width, height), ``enlarging``
(done and total tiles), ``loaded`` (device)."""

_FREE_KEPT = 8_000_000  # bytes of the heap that stay for the next picture


@dataclass
class Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Enlarger:
    """What enlarges pictures.

    Attributes:
        variant: the network.
        generator: its session for pictures of a width and height.
        instead: told how it failed, decides on where to go on, and ``generator`` is asked again; raises the
            error where there is no way.
        release: frees a session.
        tile: side of the tiles to begin with, in pixels.
    """

    variant: Variant
    generator: Callable[[int, int], Session]
    instead: Callable[[EngineError], None]
    release: Callable[[Session], None]
    tile: int


@dataclass(frozen=True)
class Tools:
    """What a restoration works with; generator and detector load at their first call.

    Attributes:
        model: the restorer.
        size: side of its crops.
        generator: its session.
        detector: finds candidates, see ``stages.detect``.
        instead: given a session and how it failed on a crop, the one to go on with; raises the error where
            there is none.
        knobs: the value of each of the model's knobs.
        enlarger: makes the background; None where none is asked for.
    """

    model: Model
    size: int
    generator: Callable[[], Session]
    detector: Detector
    instead: Callable[[Session, EngineError], Session]
    knobs: Mapping[str, float] = field(default_factory=dict)
    enlarger: Enlarger | None = None


@dataclass(frozen=True, eq=False)
class _Base:
    """What takes the picture's place: enlarged, or made elsewhere.

    Attributes:
        image: its pixels are ours to change.
        scale: width and height in those of the picture, exactly.
        times: the same as it was asked for.
        background: what made it, as in ``Result``.
        tile: side of the tiles it was made in.
        notes: about how it was made.
    """

    image: Image
    scale: tuple[float, float]
    times: float
    background: str = ""
    tile: int = 0
    notes: tuple[str, ...] = ()

    def place(self, matrix: Matrix) -> Matrix:
        """From picture to crop -> from base to crop."""
        across, down = self.scale
        placed: Matrix = matrix / np.array([across, down, 1.0])
        return placed


class _Network:
    """The restorer at work: a session, and what takes its place when it fails."""

    def __init__(self, tools: Tools, clock: Clock, event: Event) -> None:
        self._tools, self._clock, self._event = tools, clock, event
        self._start(tools.generator)

    def _start(self, load: Callable[..., Session], *failure: Any) -> None:
        with self._clock.time("load"):
            self.session = load(*failure)
        self._event("loaded", {"device": self.session.device})

    def restored(self, image: Image, matrix: Matrix, *, match: bool) -> tuple[Float, Float]:
        """A crop, and the same restored; with ``match`` a crop without colour is not given any."""
        with self._clock.time("align"):
            pixels = take_crop(image.pixels, matrix, self._tools.size)
        model, scale = self._tools.model, float(np.hypot(*matrix[:, 0]))
        crop = Crop(pixels, scale, model.variant.factor, self._tools.knobs)
        gray = image.gray or (match and not (pixels - pixels[..., :1]).any())
        while True:
            try:
                with self._clock.time("restore"):
                    return pixels, restore(crop, model, self.session.run, gray=gray)
            except EngineError as error:
                failure = self.session, error
            self._start(self._tools.instead, *failure)


def run(
    image: Image, tools: Tools, options: Options, event: Event, background: Image | None = None
) -> Result:
    """Restore a picture.

    Args:
        image: the picture.
        tools: what to work with.
        options: how.
        event: told what happens.
        background: the picture as made elsewhere, of the same shape: faces are pasted into it instead.

    Raises:
        DeviceError, ModelError: a network could not be loaded.
        EngineError: a network failed.
    """
    clock = Clock()
    how = _whole if options.whole else _faces
    try:
        return how(image, tools, options, event, clock, background)
    finally:
        heap.give_back(beyond=_FREE_KEPT)


def result_size(
    width: int, height: int, scale: float | None, factor: int = 1, background: Image | None = None
) -> tuple[int, int]:
    """Width and height of a result.

    Args:
        width: of the picture.
        height: of the picture.
        scale: as in ``Options``.
        factor: of the network that enlarges, or 1.
        background: made elsewhere.
    """
    if scale is None and background is not None:
        return background.width, background.height
    times = factor if scale is None else scale
    return max(1, round(width * times)), max(1, round(height * times))


def paste_back(
    image: Image, crops: Iterable[tuple[Matrix, Image]], *, strength: float = 1.0, grain: float = 0.0
) -> Image:
    """A picture with ready crops blended in as restored ones are, later ones on top.

    Args:
        image: the picture; untouched.
        crops: square pictures, each with the [2, 3] matrix from picture to crop coordinates.
        strength: 0 (the picture) to 1 (the crops).
        grain: as in ``Options``.
    """
    out = image.pixels.copy()
    for matrix, crop in crops:
        restored = px.to_float(crop.pixels)
        if image.gray:
            restored = np.repeat(px.luminance(restored)[..., None], 3, axis=2)
        taken = take_crop(image.pixels, matrix, crop.width)
        mask = feather(crop.width)
        paste(out, image.pixels, matrix, taken, restored, strength=strength, mask=mask)
        if grain:
            add_grain(out, matrix, mask, grain_of(image.pixels, matrix, mask), amount=grain)
    return replace(image, pixels=out)


def looks_unlike_portrait(image: Image) -> bool:
    """Whether a picture is too wide or too tall to be one upright portrait."""
    return not 0.55 <= image.width / image.height <= 1.15


def _based(
    image: Image, tools: Tools, options: Options, event: Event, clock: Clock, background: Image | None
) -> _Base | None:
    """What takes the picture's place, if anything does."""
    if background is None and tools.enlarger is None and options.scale in (None, 1):
        return None
    factor = tools.enlarger.variant.factor if tools.enlarger else 1
    width, height = result_size(image.width, image.height, options.scale, factor, background)
    scale, gray, alpha = (width / image.width, height / image.height), image.gray, image.alpha
    tile, notes = 0, tuple[str, ...]()
    if background is not None:
        name, gray = "given", background.gray
        with clock.time("enlarge"):
            pixels = px.scaled(background.pixels, width, height)
            pixels = pixels.copy() if pixels is background.pixels else pixels
        alpha = alpha if background.alpha is None else background.alpha
    elif tools.enlarger:
        name = tools.enlarger.variant.id
        pixels, tile, notes = _enlarged(image, width, height, tools.enlarger, event, clock)
    else:
        name = ""
        with clock.time("enlarge"):
            pixels = px.scaled(image.pixels, width, height)
            pixels = pixels.copy() if pixels is image.pixels else pixels
    if alpha is not None:
        alpha = px.scaled(alpha, width, height)
        alpha = alpha if alpha.dtype == pixels.dtype else px.to_depth(px.to_float(alpha), pixels.dtype)
    times = options.scale or (scale[0] if background is not None else factor)
    return _Base(Image(pixels, alpha, gray), scale, times, name, tile, notes)


def _enlarged(
    image: Image, width: int, height: int, enlarger: Enlarger, event: Event, clock: Clock
) -> tuple[NDArray[Any], int, tuple[str, ...]]:
    """The picture enlarged by a network, in which tiles, and notes."""
    tile, notes = min(enlarger.tile, max(image.width, image.height)), tuple[str, ...]()
    variant = enlarger.variant
    while True:
        try:
            with clock.time("load"):
                size = shown(image.width, image.height, (width, height), tile, variant)
                session = enlarger.generator(*size)
            try:
                with clock.time("enlarge"):
                    pixels = upscale(
                        image.pixels, variant, session.run, width=width, height=height, tile=tile,
                        gray=image.gray, done=lambda n, of: event("enlarging", {"done": n, "total": of}),
                    )  # fmt: skip
                return pixels, tile, notes
            finally:
                enlarger.release(session)
        except EngineError as error:
            failure = error
        if isinstance(failure, OutOfMemoryError) and tile > LEAST_TILE:
            smaller = max(LEAST_TILE, tile // 2)
            notes = (f"{variant.id} ran out of memory with tiles of {tile} pixels; they are {smaller} now",)
            tile = smaller
        else:
            enlarger.instead(failure)


def _blend(
    out: NDArray[Any],
    image: Image,
    base: _Base | None,
    matrix: Matrix,
    crop: Float,
    restored: Float,
    mask: Float | None,
    options: Options,
    match: Callable[[Float, Float], Float] | None,
) -> Float:
    """Bring a restored crop into ``out``; returns it as it was brought in, with its colours matched."""
    picture, place, there, kept = image.pixels, matrix, crop, None
    if base:
        picture, place = out, base.place(matrix)
        there = take_crop(out, place, crop.shape[0])
        kept = kept_detail(crop, restored) * own_detail(matrix, place)
        change = touched(crop, restored)
        mask = change if mask is None else mask * change
    if match:
        restored = match(there, restored)
    wanted = grain_of(picture, place, mask) if options.grain and mask is not None else 0.0
    paste(out, picture, place, there, restored, strength=options.strength, mask=mask, kept=kept)
    if wanted and mask is not None:
        add_grain(out, place, mask, wanted, amount=options.grain)
    return restored


def _faces(
    image: Image, tools: Tools, options: Options, event: Event, clock: Clock, background: Image | None
) -> Result:
    with clock.time("detect"):
        found, dropped = detect(image.pixels, tools.detector, options.threshold, options.rotations)
    event("detected", {"faces": len(found)})
    chosen, left_alone = select(found, options, image.width, image.height)
    reports = {id(face): FaceReport(face.box, face.score, "skipped", why) for face, why in dropped}
    reports |= {id(face): FaceReport(face.box, face.score, "skipped", why) for face, why in left_alone}

    base = _based(image, tools, options, event, clock, background)
    out = base.image.pixels if base else image.pixels
    network = None
    crops: list[FaceCrop] = []
    if chosen and options.strength > 0:
        out = out if base else image.pixels.copy()
        network = _Network(tools, clock, event)
        template = np.array(tools.model.family.template) * tools.size
        mask = feather(tools.size)
        match = match_color if options.color_match and not tools.model.variant.colourizes else None
        # Smaller faces first, so that the nearer of two that overlap ends on top.
        for face in reversed(chosen):
            matrix = similarity(face.landmarks, template)
            crop, restored = network.restored(image, matrix, match=options.color_match)
            with clock.time("blend"):
                restored = _blend(out, image, base, matrix, crop, restored, mask, options, match)
            if options.keep_crops:
                number, rows = found.index(face) + 1, tuple(tuple(map(float, row)) for row in matrix)
                taken, made = (px.to_depth(pixels, out.dtype) for pixels in (crop, restored))
                crops.insert(0, FaceCrop(number, face, rows, taken, made))
    reports |= {id(face): FaceReport(face.box, face.score, "restored") for face in chosen}
    faces = tuple(reports[id(f)] for f in sorted([*found, *(f for f, _ in dropped)], key=lambda f: -f.size))
    reason = ""
    if not chosen:
        reason = "no face found" if not found else f"no face chosen of {len(found)} found"
    notes = (reason,) if base and reason else ()
    result = _result(image, out, base, faces, reason, tools, network, clock, notes)
    return replace(result, crops=tuple(crops))


def select(
    found: list[Face], options: Options, width: int, height: int
) -> tuple[list[Face], list[tuple[Face, str]]]:
    """The faces to restore, the largest first; and the others, each with the reason."""
    large = [f for f in found if f.size >= options.min_face]
    skipped = [(f, f"smaller than {options.min_face} pixels") for f in found if f.size < options.min_face]
    chosen = large
    if options.pick:
        numbered = [face for i, face in enumerate(found, 1) if i in options.pick]
        skipped += [(f, "not picked") for f in large if f not in numbered]
        chosen = large = [f for f in large if f in numbered]
    if options.faces == "largest":
        chosen = large[:1]
    elif options.faces == "center" and large:
        chosen = [min(large, key=lambda f: _from_centre(f, width, height))]
    skipped += [(f, f"not the {options.faces} face") for f in large if f not in chosen]
    if options.max_faces is not None:
        skipped += [(f, f"beyond the largest {options.max_faces}") for f in chosen[options.max_faces :]]
        chosen = chosen[: options.max_faces]
    return chosen, skipped


def _whole(
    image: Image, tools: Tools, options: Options, event: Event, clock: Clock, background: Image | None
) -> Result:
    notes: tuple[str, ...] = ()
    if not options.aligned and looks_unlike_portrait(image):
        notes = ("This does not look like a single upright portrait: --detect finds and restores each face.",)
    base = _based(image, tools, options, event, clock, background)
    if options.strength == 0:
        out = base.image.pixels if base else image.pixels
        return _result(image, out, base, (), "strength 0", tools, None, clock, notes)
    size = tools.size
    event("resized", {"width": size, "height": size})
    network = _Network(tools, clock, event)
    matrix = fit(image.width, image.height, size)
    crop, restored = network.restored(image, matrix, match=options.color_match)
    with clock.time("blend"):
        match = options.color_match and not options.aligned and not tools.model.variant.colourizes
        if base or max(image.width, image.height) > size:
            out = base.image.pixels if base else image.pixels.copy()
            _blend(out, image, base, matrix, crop, restored, None, options, keep_tone if match else None)
        else:
            restored = keep_tone(crop, restored) if match else restored
            width, height = fitted(image.width, image.height, size)
            left, top = (size - width) // 2, (size - height) // 2
            restored -= crop
            restored *= np.float32(options.strength)
            restored += crop
            inner = restored[top : top + height, left : left + width]
            out = px.to_depth(inner, image.pixels.dtype)
            if image.alpha is not None:
                image = replace(image, pixels=out, alpha=px.scaled(image.alpha, width, height))
    return _result(image, out, base, (), "", tools, network, clock, notes)


def _result(
    image: Image,
    out: NDArray[Any],
    base: _Base | None,
    faces: tuple[FaceReport, ...],
    reason: str,
    tools: Tools,
    network: _Network | None,
    clock: Clock,
    notes: tuple[str, ...] = (),
) -> Result:
    before = base.image if base else image
    gray = before.gray and image.gray and not (network and tools.model.variant.colourizes)
    reason = "" if base else reason
    return Result(
        image=Image(out, before.alpha, gray),
        faces=faces,
        status="skipped" if reason else "restored",
        reason=reason,
        model=tools.model.variant.id,
        device=network.session.device if network else "",
        precision=network.session.precision if network else "",
        seconds=clock.seconds,
        peak_bytes=machine.peak_bytes(),
        notes=(*notes, *(base.notes if base else ())),
        background=base.background if base else "",
        scale=base.times if base else 1.0,
        tile=base.tile if base else 0,
    )


def _from_centre(face: Face, width: int, height: int) -> float:
    left, top, right, bottom = face.box
    return math.hypot((left + right - width) / 2, (top + bottom - height) / 2)
