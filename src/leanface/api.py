"""leanface for programs: Restorer, and the one-shot functions over it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanface import crops, imageio, pipeline, registry
from leanface import pixels as px
from leanface.background import CARD, Background, enlargement
from leanface.engine import device as machine
from leanface.engine import heap
from leanface.engine import memory as plan_memory
from leanface.engine.backends.openvino import precisions
from leanface.engine.memory import Enlargement, Plan
from leanface.engine.pool import Pool, choose_device, leaner, resolve
from leanface.engine.session import Session
from leanface.errors import (
    BrokenOutputError,
    EngineError,
    InputError,
    ModelError,
    OutOfMemoryError,
    OutputError,
    UsageError,
)
from leanface.library import Library
from leanface.pixels import Float
from leanface.registry import Crop, Model
from leanface.stages.detect import Detector, detect
from leanface.types import Face, FileOptions, Image, Options, Precision, Result

_SHAPE_TOLERANCE = 0.01  # between the proportions of a picture and of its background made elsewhere


class Restorer:
    """Restores pictures with one model, which is loaded when the first face needs it and then kept.

    A context manager; leaving it frees the model. Not for use by several threads at once.

    Args:
        model: a name from ``list_models()``, or ``auto``.
        size: side of the crops in pixels, for models that take several; None takes the model's usual one.
        device: ``auto``, ``cpu``, ``gpu``, ``npu`` (OpenVINO), ``cuda[:N]``, ``directml``, ``coreml``
            (ONNX Runtime), ``torch-cuda[:N]``, ``torch-mps`` or ``torch-cpu`` (PyTorch).
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        threads: processor threads; None takes all cores.
        memory: what the process may take at most, as ``800MB`` or in bytes; None sets no limit. On the
            processor an option that keeps within it is chosen for each picture before the model is loaded. On
            a card it is the card's memory that is limited, where the engine can do that (``cuda``); on
            ``torch-*`` it is what tensors take, and weights beyond it are streamed.
        weights: a file or folder of published weights to look at first.
        allow_unverified: take weights whose sum is not the published one.
        options: how pictures are restored; single ones can be changed at each call.
        on_event: told what happens, see ``pipeline.Event``.
        detector, generator: what finds and what restores faces, instead of the model's own networks.

    Raises:
        UsageError: an unknown model or size, a knob turned that the model does not have, or a limit for a
            model whose needs were not measured.
        ModelError: the weights given are not what they should be.
    """

    def __init__(
        self,
        model: str = "auto",
        *,
        size: int | None = None,
        device: str = "auto",
        precision: Precision = "auto",
        threads: int | None = None,
        memory: str | int | None = None,
        weights: str | os.PathLike[str] | None = None,
        allow_unverified: bool = False,
        options: Options | None = None,
        on_event: pipeline.Event | None = None,
        detector: Detector | None = None,
        generator: Callable[[], Session] | None = None,
    ) -> None:
        self._library = Library(
            weights=Path(weights) if weights is not None else None, allow_unverified=allow_unverified
        )
        self.model: Model = self._library.choose(model, size)
        self.size = size or self.model.variant.sizes[0]
        self.chosen = f"model {self.model.variant.id}: {self.model.variant.about}"
        if model == "auto" and self.model.variant.asset:
            self.chosen += "; `leanface models` shows others and how to get them"
        self.device = device
        self.precision = precision
        self.memory = plan_memory.parse(memory) if isinstance(memory, str) else memory
        self.options = options or Options()
        registry.turned(self.model, self.options.knobs)
        if self.memory is not None:
            self._check_measured()
        self._on_event = on_event or (lambda name, values: None)
        self._planned: str = precision
        heap.share()
        self._in_turn = False  # whether detector and restorer must not be loaded at the same time
        self._stepped: tuple[str, str] | None = None  # device and precision after a failure, for good
        self._notes: list[str] = []
        self._backgrounds: dict[str, Background] = {}
        on_card = self.memory is not None and not self._on_processor
        self._pool = Pool(threads=threads, limit=self.memory if on_card else None)
        self._instead = self._go_on if generator is None else _give_up
        self._detector = detector or self._detect
        self._generator = generator or self._open_generator
        self._background(self.options)

    def restore(
        self,
        picture: Image | NDArray[Any],
        options: Options | None = None,
        *,
        background: Image | NDArray[Any] | None = None,
    ) -> Result:
        """Restore a picture in memory.

        Args:
            picture: an Image, or an array [h, w, 3] of uint8 or uint16 in RGB.
            options: instead of the Restorer's own.
            background: the picture as made elsewhere, of the same shape: faces are pasted into it instead.

        Raises:
            UsageError: not such an array, a knob turned that the model does not have, a background that is
                not there, or one of another shape.
            BudgetError: the memory limit is below what the picture needs.
            DeviceError, ModelError: the model cannot be loaded.
            EngineError: the model fails.
        """
        image, options = picture if isinstance(picture, Image) else Image(picture), options or self.options
        knobs = registry.turned(self.model, options.knobs)
        given = background if isinstance(background, Image | None) else Image(background)
        maker = self._background(options)
        if given is not None:
            check_background(image, given)
        self._planned, tiles = self.precision, None
        if self.memory is not None and self._on_processor:
            plan = self.plan(image.width, image.height, options, given)
            self._planned, self._in_turn, tiles = plan.option.precision, plan.in_turn, plan.tiles
        elif maker:
            how = self._enlargement(image.width, image.height, options, given)
            limit = None if self._on_processor else self.memory or CARD
            tiles = maker.tiles(how, image.width, image.height, limit, self._precisions) if how else None
        enlarger = maker.enlarger(tiles, alone=self._in_turn) if maker else None
        tools = pipeline.Tools(
            self.model, self.size, self._generator, self._detector, self._instead, knobs, enlarger
        )
        result = pipeline.run(image, tools, options, self._on_event, given)
        notes, self._notes = self._notes, []
        if maker:
            notes, maker.notes = [*maker.notes, *notes], []
            if tiles and 0 < result.tile < min(tiles.side, max(image.width, image.height)):
                maker.keep(result.tile)
        return replace(result, notes=(*result.notes, *notes))

    def detect(self, picture: Image | NDArray[Any], options: Options | None = None) -> tuple[Face, ...]:
        """The faces of a picture, the largest first, as ``Options.pick`` counts them; no restorer is loaded.

        Args:
            picture: an Image, or an array [h, w, 3] of uint8 or uint16 in RGB.
            options: instead of the Restorer's own; only ``threshold`` and ``rotations`` count.

        Raises:
            UsageError: not such an array.
        """
        image, how = picture if isinstance(picture, Image) else Image(picture), options or self.options
        return tuple(detect(image.pixels, self._detector, how.threshold, how.rotations)[0])

    def plan(
        self, width: int, height: int, options: Options | None = None, background: Image | None = None
    ) -> Plan:
        """What a picture of this size will need; arithmetic only, nothing is loaded.

        Args:
            width: of the picture in pixels.
            height: of the picture in pixels.
            options: instead of the Restorer's own.
            background: as in ``restore``.

        Raises:
            BudgetError: more than the memory limit; says the least that would do.
            UsageError: the model was not measured for the device and precision.
        """
        self._check_measured()
        if not self._on_processor:
            raise UsageError("needs are known for the processor only")
        return plan_memory.plan(
            self._ways, width, height, detect=not (options or self.options).whole,
            limit=self.memory, precisions=self._precisions,
            enlargement=self._enlargement(width, height, options or self.options, background),
        )  # fmt: skip

    def result_size(
        self, image: Image, options: Options | None = None, background: Image | None = None
    ) -> tuple[int, int]:
        """Width and height that the result of a picture will have where faces are looked for."""
        options = options or self.options
        maker = self._background(options)
        factor = maker.model.variant.factor if maker else 1
        return pipeline.result_size(image.width, image.height, options.scale, factor, background)

    @property
    def _precisions(self) -> tuple[str, ...]:
        """Those that the processor computes in and the user allows."""
        return tuple(p for p in precisions("cpu") if self.precision in ("auto", p))

    def _enlargement(
        self, width: int, height: int, options: Options, background: Image | None
    ) -> Enlargement | None:
        maker = self._background(options)
        factor = maker.model.variant.factor if maker else 1
        size = pipeline.result_size(width, height, options.scale, factor, background)
        held = background.pixels.nbytes if background else 0
        return enlargement(maker.model if maker else None, width, height, size, held)

    def _background(self, options: Options) -> Background | None:
        """What makes the background that the options ask for; one and the same for one name."""
        name = options.background
        if name == "none":
            return None
        if name not in self._backgrounds:
            model, weights = registry.find_enlarger(name), self._library.weights
            # A file of weights that the user gave is for the restorer.
            others = weights is not None and weights.is_file() and model != self.model
            library = Library() if others else self._library
            self._backgrounds[name] = Background(model, library, self._pool, self.device, self.precision)
        return self._backgrounds[name]

    def restore_file(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        options: Options | None = None,
        **files: Any,
    ) -> Result:
        """Restore a file into another.

        Args:
            source: the picture; ``-`` is standard input.
            target: the result; its suffix decides the format. ``-`` is standard output.
            options: instead of the Restorer's own.
            files: how files are read and written, as in ``FileOptions``.

        Raises:
            InputError: the source cannot be read.
            OutputError: the target exists, is the source, or cannot be written.
            UsageError: the target's suffix stands for no format.
            DeviceError, ModelError: the model cannot be loaded.
            EngineError: the model fails.
        """
        source, target, how = Path(source), Path(target), FileOptions(**files)
        check(source, target, how)
        image, origin = imageio.read(source, how)
        options = options or self.options
        options = replace(options, keep_crops=options.keep_crops or how.crops is not None)
        background, notes = read_background(how, origin, options)
        imageio.check_size(target, *self.result_size(image, options, background))
        result = self.restore(image, options, background=background)
        result = replace(result, notes=(*notes, *result.notes))
        del background
        size = image.width, image.height
        before = image if how.compare else None
        del image  # while a large result is encoded, there is no room for the input too
        if how.crops:
            crops.write(how.crops, source.name, size, result, origin, overwrite=how.overwrite)
        return save(target, before, result, origin, how)

    def close(self) -> None:
        """Free the models; they are loaded anew when needed."""
        self._pool.close()

    def __enter__(self) -> Restorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _on_processor(self) -> bool:
        return (choose_device() if self.device == "auto" else self.device) == "cpu"

    def _open_generator(self) -> Session:
        variant = self.model.variant
        while True:
            device, precision = self._stepped or resolve(
                self.device, self._planned, variant.precisions, typed=variant.build is not None
            )
            graph = self._library.graph(self.model, precision, exact=self.precision == "fp32")
            if graph.path.parent != registry.ASSETS:
                self._check_takes(graph.path)
            if self._in_turn:
                self._pool.keep_only(graph)
            try:
                return self._pool.session(graph, device=device, precision=precision)
            except OutOfMemoryError as error:
                self._step_down(device, precision, error)

    def _go_on(self, session: Session, error: EngineError) -> Session:
        """What takes the place of a session that failed on a crop."""
        if isinstance(error, OutOfMemoryError):
            self._step_down(session.device, session.precision, error)
        elif (
            isinstance(error, BrokenOutputError) and session.precision != "fp32" and self.precision == "auto"
        ):
            self._step_to(session.device, "fp32", f"gave no picture in {session.precision}")
        else:
            raise error
        self._pool.discard(session)
        return self._open_generator()

    def _step_down(self, device: str, precision: str, error: OutOfMemoryError) -> None:
        variant = self.model.variant
        way = leaner(device, precision, variant.precisions, typed=variant.build is not None)
        if way is None or self.precision not in ("auto", way[1]):
            raise error
        self._step_to(*way, f"ran out of memory on {device} in {precision}")

    def _step_to(self, device: str, precision: str, why: str) -> None:
        self._stepped = device, precision
        self._notes.append(f"{self.model.variant.id} {why}; from here on it runs on {device} in {precision}")

    @property
    def _ways(self) -> list[plan_memory.Option]:
        """To run the network on crops of the chosen size."""
        usual = self.size == self.model.variant.sizes[0]
        return [o for o in self.model.variant.options if o.size == (0 if usual else self.size)]

    def _check_measured(self) -> None:
        if not self._ways:
            what = f"{self.model.variant.id} at {self.size}"
            raise UsageError(f"what {what} needs was not measured; use it without a limit")

    def _check_takes(self, graph: Path) -> None:
        """Refuse a graph that takes or gives something else than the family does.

        Raises:
            ModelError: says what the file takes and gives, and what is needed.
        """
        from leanface.weights.signature import Shaped, Signature, read

        found, variant = read(graph), self.model.variant
        black = np.zeros((self.size, self.size, 3), np.float32)
        knobs = registry.turned(self.model, {})
        inputs = self.model.family.prepare(Crop(black, factor=variant.factor, knobs=knobs))
        needed = Signature(
            {name: Shaped(array.dtype.name, array.shape) for name, array in inputs.items()},
            {"output": Shaped("float32", (1, 3, None, None))},
        )
        if not found.serves(needed):
            raise ModelError(f"{graph} does not hold {variant.id}: it is {found}; needed is {needed}")

    def _detect(self, picture: NDArray[np.uint8]) -> Float:
        (model,) = registry.models("detector")
        # Always on the processor: it takes milliseconds there, and leaves a small card to the restorer.
        graph = self._library.graph(model, "fp32")
        if self._in_turn:
            self._pool.keep_only(graph)
        exact = "fp32" if self.precision == "fp32" else "auto"
        device, precision = resolve("cpu", exact, model.variant.precisions)
        session = self._pool.session(graph, device=device, precision=precision)
        crop = Crop(picture)
        return model.family.finish(session.run(model.family.prepare(crop)), crop)


def _give_up(session: Session, error: EngineError) -> Session:
    raise error


def restore(picture: NDArray[Any], *, model: str = "auto", **options: Any) -> NDArray[Any]:
    """Restore the faces of one array, [h, w, 3] RGB of uint8 or uint16; options as in ``Options``."""
    with Restorer(model, options=Options(**options)) as restorer:
        return restorer.restore(picture).image.pixels


def restore_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    model: str = "auto",
    overwrite: bool = False,
    **options: Any,
) -> Result:
    """Restore the faces of one file into another; see ``Restorer.restore_file``."""
    with Restorer(model, options=Options(**options)) as restorer:
        return restorer.restore_file(source, target, overwrite=overwrite)


def paste_file(
    source: str | os.PathLike[str],
    description: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    strength: float = 1.0,
    grain: float = 0.0,
    **files: Any,
) -> Result:
    """Blend saved, perhaps edited crops back into the picture that they were taken from; no model runs.

    Args:
        source: that picture, as it was.
        description: the JSON file that ``FileOptions.crops`` named; the crops lie beside it. Each may have
            another size than it had, so long as it is square.
        target: the result.
        strength: 0 (the picture) to 1 (the crops).
        grain: as in ``Options``.
        files: how files are read and written, as in ``FileOptions``.

    Raises:
        InputError: a file cannot be read, is no such description, or the picture is another one.
        OutputError: the target exists, is the source, or cannot be written.
        UsageError: the target's suffix stands for no format.
    """
    source, description, target, how = Path(source), Path(description), Path(target), FileOptions(**files)
    check(source, target, how)
    sheet = crops.read(description)
    image, origin = imageio.read(source, how)
    if (image.width, image.height) != (sheet.width, sheet.height):
        size, was = f"{image.width}x{image.height}", f"{sheet.width}x{sheet.height}"
        raise InputError(f"{source}: is {size}, but the crops are of a picture of {was}")
    start = time.perf_counter()
    pasted = pipeline.paste_back(image, sheet.crops(), strength=strength, grain=grain)
    result = Result(
        image=pasted, faces=sheet.faces, status="restored" if sheet.faces else "skipped",
        reason="" if sheet.faces else "no crop to paste", model=sheet.model, device="", precision="",
        seconds={"paste": time.perf_counter() - start}, peak_bytes=machine.peak_bytes(),
    )  # fmt: skip
    return save(target, image if how.compare else None, result, origin, how)


def list_models() -> tuple[registry.Variant, ...]:
    """The restorers there are."""
    return tuple(model.variant for model in registry.models("restorer"))


def check(source: Path, target: Path, files: FileOptions) -> None:
    """Refuse a job that would overwrite something unasked, before any work is done for it.

    Raises:
        OutputError: the target exists, is the source, or is a folder.
        UsageError: its suffix stands for no format.
    """
    if target == imageio.STDIO and files.compare:
        raise UsageError("a comparison needs a file of its own, so the result cannot go to standard output")
    if files.crops:
        imageio.check_free(files.crops, overwrite=files.overwrite)
    for path in outputs(target, files):
        imageio.check_writable(path, overwrite=files.overwrite)
        if path != imageio.STDIO and path.exists() and source.exists() and path.samefile(source):
            raise OutputError(f"{path}: is the input itself; choose another name")


def read_background(
    files: FileOptions, origin: imageio.Origin, options: Options
) -> tuple[Image | None, tuple[str, ...]]:
    """The background made elsewhere, if one is given, and notes about it.

    Args:
        files: name it.
        origin: of the picture.
        options: of the picture.

    Raises:
        InputError: it cannot be read.
        UsageError: a model is to make the background too.
    """
    if files.background is None:
        return None, ()
    if options.background != "none":
        raise UsageError(f"the background is {files.background} or made by {options.background}, not both")
    background, its = imageio.read(files.background, files)
    differs = its.icc != origin.icc and f"{files.background} has another colour profile, which was ignored"
    return background, (differs,) if differs else ()


def check_background(image: Image, background: Image) -> None:
    """Refuse a background that cannot be a picture's.

    Raises:
        UsageError: its sides have another proportion.
    """
    if abs(background.width * image.height / (background.height * image.width) - 1) > _SHAPE_TOLERANCE:
        size, other = (f"{i.width}x{i.height}" for i in (image, background))
        raise UsageError(f"the background is {other}, which is another shape than the picture's {size}")


def outputs(target: Path, files: FileOptions) -> list[Path]:
    """All files that a job writes, but for crops."""
    return [target, comparison_path(target)] if files.compare else [target]


def save(
    target: Path,
    before: Image | None,
    result: Result,
    origin: imageio.Origin,
    files: FileOptions,
    whole: Callable[[Path, Path], None] | None = None,
) -> Result:
    """Write a result; returns it with the notes of reading and writing.

    Args:
        target: where to.
        before: the picture as it was read; also writes the comparison.
        result: of restoring it.
        origin: of its file.
        files: how.
        whole: is given each finished file just before it gets its name, and that name.
    """
    notes = (*origin.notes, *result.notes)
    notes += imageio.write(target, result.image, origin, files, whole=whole)
    if before is not None:
        both = side_by_side(before, result.image)
        imageio.write(comparison_path(target), both, origin.stripped(), files, whole=whole)
    return replace(result, notes=tuple(dict.fromkeys(notes)))


def comparison_path(target: Path) -> Path:
    """Where the before/after picture of a result goes."""
    return target.with_name(f"{target.stem}_compare{target.suffix}")


def side_by_side(before: Image, after: Image) -> Image:
    """Two pictures in one, the first brought to the size of the second."""
    left = px.scaled(before.pixels, after.width, after.height)
    if left.dtype != after.pixels.dtype:
        left = px.to_depth(px.to_float(left), after.pixels.dtype)
    return Image(np.concatenate([left, after.pixels], axis=1), None, before.gray and after.gray)
