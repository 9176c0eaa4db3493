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
from leanface.engine.session import Session
from leanface.errors import EngineError
from leanface.pixels import Float, Matrix
from leanface.registry import Crop, Model
from leanface.stages.align import crop as take_crop
from leanface.stages.align import fit, fitted, similarity
from leanface.stages.blend import add_grain, feather, keep_tone, match_color, paste
from leanface.stages.detect import Detector, detect
from leanface.stages.restore import restore
from leanface.types import Face, FaceCrop, FaceReport, Image, Options, Result

Event = Callable[[str, dict[str, Any]], None]
"""Told what has just happened: ``detected`` (faces), ``resized`` (width, height), ``loaded`` ()."""


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
    """

    model: Model
    size: int
    generator: Callable[[], Session]
    detector: Detector
    instead: Callable[[Session, EngineError], Session]
    knobs: Mapping[str, float] = field(default_factory=dict)


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


def run(image: Image, tools: Tools, options: Options, event: Event) -> Result:
    """Restore a picture.

    Raises:
        DeviceError, ModelError: a network could not be loaded.
        EngineError: a network failed.
    """
    clock = Clock()
    if options.whole:
        return _whole(image, tools, options, event, clock)
    return _faces(image, tools, options, event, clock)


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
            add_grain(out, image.pixels, matrix, mask, amount=grain)
    return replace(image, pixels=out)


def looks_unlike_portrait(image: Image) -> bool:
    """Whether a picture is too wide or too tall to be one upright portrait."""
    return not 0.55 <= image.width / image.height <= 1.15


def _faces(image: Image, tools: Tools, options: Options, event: Event, clock: Clock) -> Result:
    with clock.time("detect"):
        found, dropped = detect(image.pixels, tools.detector, options.threshold, options.rotations)
    event("detected", {"faces": len(found)})
    chosen, left_alone = select(found, options, image.width, image.height)
    reports = {id(face): FaceReport(face.box, face.score, "skipped", why) for face, why in dropped}
    reports |= {id(face): FaceReport(face.box, face.score, "skipped", why) for face, why in left_alone}

    out = image.pixels
    network = None
    crops: list[FaceCrop] = []
    if chosen and options.strength > 0:
        out = image.pixels.copy()
        network = _Network(tools, clock, event)
        template = np.array(tools.model.family.template) * tools.size
        mask = feather(tools.size)
        # Smaller faces first, so that the nearer of two that overlap ends on top.
        for face in reversed(chosen):
            matrix = similarity(face.landmarks, template)
            crop, restored = network.restored(image, matrix, match=options.color_match)
            with clock.time("blend"):
                if options.color_match and not tools.model.variant.colourizes:
                    restored = match_color(crop, restored)
                paste(out, image.pixels, matrix, crop, restored, strength=options.strength, mask=mask)
                if options.grain:
                    add_grain(out, image.pixels, matrix, mask, amount=options.grain)
            if options.keep_crops:
                number, rows = found.index(face) + 1, tuple(tuple(map(float, row)) for row in matrix)
                taken, made = (px.to_depth(pixels, out.dtype) for pixels in (crop, restored))
                crops.insert(0, FaceCrop(number, face, rows, taken, made))
    reports |= {id(face): FaceReport(face.box, face.score, "restored") for face in chosen}
    faces = tuple(reports[id(f)] for f in sorted([*found, *(f for f, _ in dropped)], key=lambda f: -f.size))
    reason = ""
    if not chosen:
        reason = "no face found" if not found else f"no face chosen of {len(found)} found"
    result = _result(Image(out, image.alpha, _gray(image, tools)), faces, reason, tools, network, clock)
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


def _whole(image: Image, tools: Tools, options: Options, event: Event, clock: Clock) -> Result:
    notes: tuple[str, ...] = ()
    if not options.aligned and looks_unlike_portrait(image):
        notes = ("This does not look like a single upright portrait: --detect finds and restores each face.",)
    if options.strength == 0:
        return _result(image, (), "strength 0", tools, None, clock, notes)
    size = tools.size
    event("resized", {"width": size, "height": size})
    network = _Network(tools, clock, event)
    matrix = fit(image.width, image.height, size)
    crop, restored = network.restored(image, matrix, match=options.color_match)
    with clock.time("blend"):
        if options.color_match and not options.aligned and not tools.model.variant.colourizes:
            restored = keep_tone(crop, restored)
        if max(image.width, image.height) > size:
            out = image.pixels.copy()
            paste(out, image.pixels, matrix, crop, restored, strength=options.strength, mask=None)
            alpha = image.alpha
        else:
            width, height = fitted(image.width, image.height, size)
            left, top = (size - width) // 2, (size - height) // 2
            restored -= crop
            restored *= np.float32(options.strength)
            restored += crop
            inner = restored[top : top + height, left : left + width]
            out = px.to_depth(inner, image.pixels.dtype)
            alpha = _resized_alpha(image.alpha, width, height)
    return _result(Image(out, alpha, _gray(image, tools)), (), "", tools, network, clock, notes)


def _gray(image: Image, tools: Tools) -> bool:
    return image.gray and not tools.model.variant.colourizes


def _result(
    image: Image,
    faces: tuple[FaceReport, ...],
    reason: str,
    tools: Tools,
    network: _Network | None,
    clock: Clock,
    notes: tuple[str, ...] = (),
) -> Result:
    return Result(
        image=image,
        faces=faces,
        status="skipped" if reason else "restored",
        reason=reason,
        model=tools.model.variant.id,
        device=network.session.device if network else "",
        precision=network.session.precision if network else "",
        seconds=clock.seconds,
        peak_bytes=machine.peak_bytes(),
        notes=notes,
    )


def _from_centre(face: Face, width: int, height: int) -> float:
    left, top, right, bottom = face.box
    return math.hypot((left + right - width) / 2, (top + bottom - height) / 2)


def _resized_alpha(alpha: NDArray[Any] | None, width: int, height: int) -> NDArray[Any] | None:
    if alpha is None:
        return None
    resized = px.resize(px.to_float(alpha)[..., None], width, height)
    return px.to_depth(np.clip(resized, 0, 1), alpha.dtype)[..., 0]
