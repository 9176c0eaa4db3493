"""The command line: the only place that prints and exits."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import math
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from leanface import __version__
from leanface.errors import EngineError, InputError, LeanfaceError, UsageError

if TYPE_CHECKING:
    from leanface.api import Restorer
    from leanface.batch import Job, Journal, Outcome
    from leanface.types import FileOptions

SOME_FAILED, ALL_FAILED, INTERRUPTED = 3, 4, 130
_PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def main(arguments: Sequence[str] | None = None) -> int:
    """``leanface``: returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="leanface", description="Restores faces in photographs, with or without a graphics card."
    )
    parser.add_argument("--version", action="version", version=f"leanface {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    restore = commands.add_parser("restore", help="restore the faces of pictures")
    restore.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="a picture, a folder, a glob, or - for standard input"
    )
    restore.add_argument(
        "-o", "--output", type=Path,
        help="a file for one picture, else a folder; - is standard output; default: beside the input",
    )  # fmt: skip
    _add_files(restore)
    restore.add_argument(
        "--faces", choices=("all", "largest", "center", "none"), default="all",
        help="which faces; none: no face is looked for, the picture goes through the model as it is",
    )  # fmt: skip
    restore.add_argument(
        "--pick",
        type=_numbers,
        default=(),
        metavar="N[,N...]|largest|center",
        help="faces by number as `leanface detect` prints them, or one by its place",
    )
    restore.add_argument("--max-faces", type=_positive, metavar="N", help="at most so many, the largest")
    restore.add_argument(
        "--no-color-match", dest="color_match", action="store_false", help="leave the model's own colours"
    )
    _add_grain(restore)
    restore.add_argument("--aligned", action="store_true", help="the pictures are ready, aligned face crops")
    restore.add_argument(
        "--strength", type=_number, default=1.0, metavar="0..1", help="0: as it was; default 1"
    )
    restore.add_argument(
        "--fidelity", type=_number, metavar="0..1",
        help="codeformer: 0 the best looking face, 1 the truest to the picture; default 0.5",
    )  # fmt: skip
    restore.add_argument(
        "--min-face", type=int, default=20, metavar="PIXELS", help="leave smaller faces alone; default 20"
    )
    _add_detection(restore)
    restore.add_argument(
        "--save-crops", type=Path, metavar="DIR", help="also write each face's crop; see `leanface paste`"
    )
    restore.add_argument("--compare", action="store_true", help="also write before and after side by side")
    restore.add_argument("--report", type=Path, metavar="FILE.jsonl", help="write one line per picture")
    restore.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    _add_background(restore)
    _add_common(restore)
    restore.set_defaults(run=_restore)

    detect = commands.add_parser("detect", help="list the faces of pictures by number, as --pick takes them")
    detect.add_argument("inputs", nargs="+", metavar="INPUT", help="as for restore")
    detect.add_argument("-r", "--recursive", action="store_true", help="folders in folders too")
    detect.add_argument("--json", action="store_true", help="one line of JSON per picture")
    _add_detection(detect)
    detect.add_argument("--first-frame", action="store_true", help="of several frames or pages, the first")
    detect.add_argument("--allow-8bit", action="store_true", help="take pictures that would lose depth")
    detect.add_argument("--max-pixels", type=_positive, metavar="N", help="refuse larger pictures")
    detect.set_defaults(run=_detect)

    paste = commands.add_parser("paste", help="put saved, perhaps edited crops back into their picture")
    paste.add_argument("picture", type=Path, help="the picture as it was before restoring")
    paste.add_argument("crops", type=Path, metavar="CROPS.json", help="from --save-crops, beside the crops")
    paste.add_argument("-o", "--output", type=Path, required=True, help="the result")
    paste.add_argument("--strength", type=_number, default=1.0, metavar="0..1", help="default 1: the crops")
    _add_grain(paste)
    _add_form(paste)
    paste.add_argument("--max-pixels", type=_positive, metavar="N", help="refuse larger pictures")
    paste.add_argument("--overwrite", action="store_true", help="replace a result that exists already")
    paste.set_defaults(run=_paste)

    compare = commands.add_parser("compare", help="one sheet with the same faces by every model")
    compare.add_argument("picture", type=Path, metavar="INPUT", help="a picture with faces")
    compare.add_argument(
        "--models", type=_names, default=(), metavar="NAME[,NAME...]", help="default: all that are here"
    )
    compare.add_argument("-o", "--output", type=Path, required=True, help="the sheet, such as sheet.png")
    compare.add_argument(
        "--max-faces", type=_positive, default=4, metavar="N", help="at most so many, the largest; default 4"
    )
    _add_engine(compare)
    compare.add_argument("--overwrite", action="store_true", help="replace a sheet that exists already")
    compare.set_defaults(run=_compare)

    plan = commands.add_parser("plan", help="what a picture will need, before anything is loaded")
    plan.add_argument("picture", metavar="PICTURE|WxH", help="a file, or a size as 6000x4000")
    plan.add_argument(
        "--faces", default="all", choices=("all", "none"), help="none: without looking for faces"
    )
    _add_background(plan)
    _add_common(plan)
    plan.set_defaults(run=_plan)

    doctor = commands.add_parser("doctor", help="what is on this machine, and what auto would do")
    doctor.set_defaults(run=_doctor)
    _add_models(commands.add_parser("models", help="list, fetch and check models"))
    return _guarded(parser, arguments)


def _add_files(restore: argparse.ArgumentParser) -> None:
    """Which files, under which names, and in what form."""
    files = restore.add_argument_group("files")
    files.add_argument(
        "-r", "--recursive", action="store_true", help="folders in folders too; mirrors the tree"
    )
    names = files.add_mutually_exclusive_group()
    names.add_argument(
        "--suffix", metavar="TEXT", help="what is added to the names; default _restored, or none"
    )
    names.add_argument("--name", metavar="PATTERN", help="names of results, such as '{stem}_r'")
    files.add_argument("--format", choices=("jpg", "png", "webp", "tif", "bmp", "avif", "heic"))
    _add_form(files)
    files.add_argument("--dry-run", action="store_true", help="only show what would be written where")
    files.add_argument(
        "--resume", action="store_true",
        help="go on where an earlier run with this option and the same output folder was stopped",
    )  # fmt: skip
    files.add_argument("--fail-fast", action="store_true", help="stop at the first picture that fails")
    files.add_argument(
        "--shard", type=_shard, metavar="I/N", help="take every N-th picture from the I-th, one machine each"
    )


def _add_detection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rotations", action="store_true", help="also look for faces that lie or stand on end"
    )
    parser.add_argument(
        "--threshold", type=_number, default=0.8, metavar="0..1", help="least score of a face; default 0.8"
    )


def _add_background(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--background", default="none", metavar="MODEL|FILE",
        help="what becomes of the rest of the picture: none leaves it; a model enlarges it, see `leanface "
        "models`; or the picture as it was enlarged elsewhere",
    )  # fmt: skip
    parser.add_argument(
        "--scale", type=_scale, metavar="FACTOR",
        help="size of the result, such as 2 or 1.5; default: what the background's model does, else 1",
    )  # fmt: skip


def _add_grain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grain", type=_number, default=0.0, metavar="0..1", help="put back the picture's noise; default 0"
    )


def _add_form(files: argparse._ActionsContainer) -> None:
    """How pictures are read and encoded."""
    files.add_argument(
        "--quality", type=_positive, metavar="1..100", help="default: that of a source JPEG, else 95"
    )
    files.add_argument("--strip-metadata", action="store_true", help="leave out EXIF, XMP, IPTC, comments")
    files.add_argument(
        "--allow-8bit", action="store_true", help="take 8 bits a channel where more cannot be kept"
    )
    files.add_argument(
        "--first-frame", action="store_true", help="of animations and several pages, take the first"
    )


def gpen_main(arguments: Sequence[str] | None = None) -> int:
    """``inference_gpen.py``: a picture as it is, no detector unless asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="inference_gpen.py", description="Restores a portrait without detecting faces first."
    )
    parser.add_argument("-i", "--input", required=True, help="a portrait, a folder or a glob")
    parser.add_argument(
        "-o", "--output", type=Path, help="a file, or a folder for several; default: ./output_<name>.png"
    )
    parser.add_argument("--detect", action="store_true", help="find faces, and restore each one")
    parser.add_argument(
        "--batch-size", type=_positive, default=1, metavar="N",
        help="accepted; faces are restored one at a time, so that memory never grows",
    )  # fmt: skip
    _add_common(parser)
    parser.set_defaults(run=_inference_gpen, size=512)
    return _guarded(parser, arguments)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_list_models)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    listing = actions.add_parser("list", help="what there is, and what is on this machine")
    for place in (parser, listing):
        place.add_argument(
            "--measure", action="store_true", help="run each model that is here, and print its seconds a face"
        )
    listing.set_defaults(run=_list_models)
    get = actions.add_parser("get", help="download a model's published weights")
    get.add_argument("model")
    get.add_argument("--accept-licence", action="store_true", help="accept the terms shown")
    get.add_argument("--sha256", help="the sum the file must have, where none is published")
    get.set_defaults(run=_get_model)
    take = actions.add_parser("import", help="copy a file of weights that you have into the cache")
    take.add_argument(
        "what", nargs="+", metavar="[MODEL] FILE", help="MODEL only where the sum does not tell"
    )
    take.add_argument("--sha256", help="the sum the file must have, where none is published")
    take.add_argument(
        "--allow-unverified", action="store_true", help="although its sum is not the published one"
    )
    take.set_defaults(run=_import_model)
    verify = actions.add_parser("verify", help="read weights again and compare their sums")
    verify.add_argument("models", nargs="*", metavar="MODEL", help="default: all that are here")
    verify.set_defaults(run=_verify_models)
    actions.add_parser("path", help="where downloads are kept").set_defaults(run=_models_path)
    remove = actions.add_parser("remove", help="delete our copy of a model's weights")
    remove.add_argument("model")
    remove.set_defaults(run=_remove_model)


def run() -> NoReturn:
    """Entry point of the ``leanface`` command."""
    code = main()
    gc.freeze()  # all goes with the process; without this Python would search it for garbage first
    sys.exit(code)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="auto", help="see `leanface models`; default auto")
    _add_engine(parser)
    parser.add_argument(
        "--memory", metavar="800MB", help="what the process may take at most (on a processor)"
    )
    parser.add_argument("--max-pixels", type=_positive, metavar="N", help="refuse larger pictures")
    parser.add_argument("--overwrite", action="store_true", help="replace results that exist already")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    """Where models come from and what they run on."""
    parser.add_argument("--weights", type=Path, metavar="PATH", help="a file or folder of published weights")
    parser.add_argument(
        "--allow-unverified", action="store_true", help="take weights whose sum is not the published one"
    )
    parser.add_argument("--size", type=int, metavar="PIXELS", help="side of the model's square")
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, gpu, npu, cuda[:N], directml or coreml; see `leanface doctor`",
    )
    parser.add_argument("--precision", choices=_PRECISIONS, default="auto")
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="processor threads; default: all cores"
    )


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, not {text}")
    return value


def _scale(text: str) -> float:
    try:
        value = float(text.lower().removesuffix("x"))
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a factor such as 2 or 1.5, not {text}")
    return value


def _numbers(text: str) -> tuple[int, ...] | str:
    if text in ("largest", "center"):
        return text
    return tuple(_positive(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, such as 1/4, not {text}")
    return int(index), int(count)


def _guarded(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse and run; every failure is one line and an exit code."""
    try:
        values = parser.parse_args(arguments)
        code: int = values.run(values)
        return code
    except SystemExit as stop:  # argparse: --help, --version, a wrong option
        return stop.code if isinstance(stop.code, int) else 2
    except LeanfaceError as error:
        _error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _restore(values: argparse.Namespace) -> int:
    from leanface import batch
    from leanface.types import FileOptions, Options

    maker, background = _background(values.background)
    by_place = isinstance(values.pick, str)
    options = Options(
        faces=values.pick if by_place else values.faces, pick=() if by_place else values.pick,
        aligned=values.aligned, strength=values.strength, min_face=values.min_face,
        threshold=values.threshold, max_faces=values.max_faces,
        rotations=(0, 90, 180, 270) if values.rotations else (0,), color_match=values.color_match,
        grain=values.grain, keep_crops=values.save_crops is not None, fidelity=values.fidelity,
        background=maker, scale=values.scale,
    )  # fmt: skip
    name = f"{{stem}}{values.suffix}" if values.suffix is not None else values.name
    work = batch.plan(
        values.inputs, values.output, recursive=values.recursive, name=name, format=values.format or ""
    )
    if background and len(work) > 1:
        raise UsageError(f"{background}: is the background of one picture, but there are {len(work)}")
    if values.save_crops:
        if values.resume:
            raise UsageError("--save-crops does not go with --resume, which keeps account of results only")
        work = batch.with_crops(work, values.save_crops)
    if values.shard:
        work = batch.shard(work, *values.shard)
    files = FileOptions(
        overwrite=values.overwrite, compare=values.compare, quality=values.quality,
        strip_metadata=values.strip_metadata, allow_8bit=values.allow_8bit, first_frame=values.first_frame,
        format=values.format or "", background=background, **_limits(values),
    )  # fmt: skip
    if values.dry_run:
        with _restorer(values, options) as restorer:
            for line in batch.preview(work, files, _journal(values, restorer, files, work)):
                print(line, file=_messages(work))
        return 0
    progress = _Progress(len(work), quiet=values.quiet, stream=_messages(work))
    with _stoppable() as stopping, contextlib.ExitStack() as stack:
        restorer = stack.enter_context(_restorer(values, options, progress.event))
        journal = _journal(values, restorer, files, work)
        report = stack.enter_context(_report(values)) if values.report else None
        progress.model(restorer)
        stack.callback(progress.end)
        halted = threading.Event()

        def stop() -> bool:
            return stopping.is_set() or halted.is_set()

        for outcome in batch.run(restorer, work, files, journal=journal, stop=stop):
            if values.fail_fast and outcome.error:
                halted.set()
            progress.show(outcome)
            if report:
                report.write(outcome.line() + "\n")
                report.flush()
    if stopping.is_set():
        _error(f"interrupted: {progress.done} of {len(work)} pictures done")
        return INTERRUPTED
    if halted.is_set():
        _error(f"stopped at the first failure: {progress.done} of {len(work)} pictures done")
    return _exit_code(progress.counts)


def _detect(values: argparse.Namespace) -> int:
    import json

    from leanface import batch, imageio
    from leanface.api import Restorer
    from leanface.library import EMBEDDED
    from leanface.types import FileOptions, Options

    rotations = (0, 90, 180, 270) if values.rotations else (0,)
    options = Options(threshold=values.threshold, rotations=rotations)
    files = FileOptions(first_frame=values.first_frame, allow_8bit=values.allow_8bit, **_limits(values))
    counts: Counter[str] = Counter()
    stream = _messages([])
    with Restorer(EMBEDDED, options=options) as restorer:
        for path in batch.expand(values.inputs, recursive=values.recursive):
            try:
                faces = restorer.detect(imageio.read(path, files)[0])
            except InputError as error:
                counts["failed"] += 1
                _error(str(error))
                continue
            counts["read"] += 1
            if values.json:
                found = [{"number": n, **asdict(face)} for n, face in enumerate(faces, 1)]
                print(json.dumps({"input": str(path), "faces": found}), file=stream)
                continue
            print(f"{path}: {len(faces) or 'no'} face{'s' * (len(faces) != 1)}", file=stream)
            for number, face in enumerate(faces, 1):
                left, top, right, bottom = (round(v) for v in face.box)
                print(f"{number:5}  {left},{top} to {right},{bottom}  score {face.score:.2f}", file=stream)
    return _exit_code(counts)


def _paste(values: argparse.Namespace) -> int:
    from leanface.api import paste_file
    from leanface.batch import Job

    result = paste_file(
        values.picture, values.crops, values.output, strength=values.strength, grain=values.grain,
        overwrite=values.overwrite, quality=values.quality, strip_metadata=values.strip_metadata,
        allow_8bit=values.allow_8bit, first_frame=values.first_frame, **_limits(values),
    )  # fmt: skip
    stream = _messages([Job(values.picture, values.output)])
    for note in result.notes:
        print(f"{values.picture}: {note}", file=stream)
    plural = "s" * (result.restored != 1)
    what = f"{result.restored} face{plural} pasted" if result.faces else f"unchanged, {result.reason}"
    print(f"{values.picture} -> {values.output}: {what}", file=stream)
    return 0


def _compare(values: argparse.Namespace) -> int:
    from leanface import comparison, imageio
    from leanface.library import Library
    from leanface.types import FileOptions

    imageio.check_writable(values.output, overwrite=values.overwrite)
    imageio.size_of(values.picture)
    library = Library(weights=values.weights, allow_unverified=values.allow_unverified)
    models, missing = comparison.here(values.models, library)
    if values.size:
        missing += [m.variant.id for m in models if values.size not in m.variant.sizes]
        models = [m for m in models if values.size in m.variant.sizes]
    if missing:
        at = f" at size {values.size}" if values.size else ""
        print(f"not here{at}, and left out: {', '.join(missing)}", flush=True)
    arguments = ["--max-faces", str(values.max_faces), "--device", values.device]
    arguments += ["--precision", values.precision, "--allow-8bit", "--first-frame"]
    for name in ("size", "threads", "weights"):
        if value := getattr(values, name):
            arguments += [f"--{name}", str(value)]
    arguments += ["--allow-unverified"] if values.allow_unverified else []

    def plural(number: int, noun: str) -> str:
        return f"{number} {noun}{'s' * (number != 1)}"

    columns = []
    for model in models:
        try:
            columns.append(comparison.restore(values.picture, model.variant.id, arguments))
        except EngineError as error:
            _error(str(error))
            continue
        took = f"{columns[-1].seconds:.2f} s a face, {columns[-1].peak_bytes / 1e6:.0f} MB"
        print(f"{model.variant.id}: {took}", flush=True)
    if not columns:
        raise EngineError(f"{values.picture}: no model is left to compare")
    picture = comparison.sheet(columns)
    imageio.write(values.output, picture, imageio.Origin(), FileOptions(overwrite=values.overwrite))
    print(
        f"{values.output}: {plural(len(columns[0].after), 'face')} by {plural(len(columns), 'model')}",
        flush=True,
    )
    return SOME_FAILED if len(columns) < len(models) else 0


def _background(name: str) -> tuple[str, Path | None]:
    """The model that makes the background, and the file that it is in.

    Raises:
        UsageError: neither a model nor a file.
    """
    from leanface.registry import enlargers, find_enlarger

    if name == "none" or name in {model.variant.id for model in enlargers()}:
        return name, None
    if Path(name).is_file():
        return "none", Path(name)
    return find_enlarger(name).variant.id, None


def _report(values: argparse.Namespace) -> TextIO:
    from leanface.imageio import READABLE

    if values.report.suffix.lower() in READABLE:
        raise UsageError(f"{values.report}: names a picture, but the report is lines of JSON")
    try:
        # Names that are no valid Unicode are written as JSON has them.
        file: TextIO = values.report.open(
            "a" if values.resume else "w", encoding="utf-8", errors="backslashreplace"
        )
    except OSError as error:
        raise UsageError(f"{values.report}: cannot be written ({error.strerror or error})") from error
    return file


def _journal(
    values: argparse.Namespace, restorer: Restorer, files: FileOptions, work: Sequence[Job]
) -> Journal | None:
    from leanface import batch

    if not values.resume:
        return None
    folder = values.output
    if folder is None or any(job.target == folder for job in work):
        raise UsageError("--resume needs a folder for the results: -o FOLDER")
    settings = {
        "model": restorer.model.variant.id, "size": restorer.size, "precision": restorer.precision,
        **asdict(restorer.options), **asdict(files),
    }  # fmt: skip
    settings["background"] = str(files.background or restorer.options.background)
    for name in ("overwrite", "max_pixels", "compare", "crops", "keep_crops"):  # these change no result
        del settings[name]
    part = "-{}of{}".format(*values.shard) if values.shard else ""
    return batch.Journal(folder, settings, part)


def _messages(work: Sequence[Job]) -> TextIO:
    """Where lines for the user go: not into a picture."""
    from leanface.imageio import STDIO

    stream = sys.stderr if any(job.target == STDIO for job in work) else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # names may hold what the terminal cannot show
        stream.reconfigure(errors="backslashreplace")
    return stream


@contextlib.contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """The first interrupt asks to finish what was begun, the second one breaks it off."""
    stopping = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        _error("finishing the current picture; interrupt again to break it off")

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stopping
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)


def _inference_gpen(values: argparse.Namespace) -> int:
    from leanface import batch
    from leanface.engine.pool import memory_in_use
    from leanface.types import FileOptions, Options

    def info(text: str) -> None:
        print(f"[INFO] {text}", flush=True)

    loaded = False

    def on_event(name: str, facts: dict[str, Any]) -> None:
        nonlocal loaded
        if name == "detected":
            info(f"Face detection enabled: {facts['faces']} faces.")
        elif name == "resized":
            info(f"Input resized to {facts['width']}x{facts['height']} (pad mode: reflect)")
        elif name == "loaded" and not loaded:
            loaded = True
            where, held = memory_in_use(facts["device"])
            info(f"Generator loaded. Total {where} memory: {held / 1e6:.0f}MB")

    work = batch.plan([values.input], values.output)
    if values.output is None:
        sources = (job.source for job in work)
        names = (batch.Job(source, Path(f"output_{source.stem}.png")) for source in sources)
        work = batch.distinct(names)
    options = Options(faces="all" if values.detect else "none")
    counts: Counter[str] = Counter()
    with _restorer(values, options, on_event) as restorer:
        if not values.detect:
            info("Face detection disabled. Using raw input.")
        files = FileOptions(overwrite=values.overwrite, **_limits(values))
        for outcome in batch.run(restorer, work, files):
            counts[outcome.status] += 1
            for note in outcome.result.notes if outcome.result else ():
                info(note)
            if outcome.result:
                info(_sentence(outcome))
            else:
                _error(outcome.reason)
    return _exit_code(counts)


def _plan(values: argparse.Namespace) -> int:
    import numpy as np

    from leanface.imageio import size_of
    from leanface.types import Image, Options

    match = re.fullmatch(r"(\d+)x(\d+)", values.picture)
    width, height = (int(match[1]), int(match[2])) if match else size_of(Path(values.picture))
    maker, file = _background(values.background)
    options = Options(faces=values.faces, background=maker, scale=values.scale)
    background = Image(np.empty((*size_of(file)[::-1], 3), np.uint8)) if file else None
    with _restorer(values, options) as restorer:
        plan = restorer.plan(width, height, background=background)
        print(f"{restorer.model.variant.id} in {plan.option.precision}, {width}x{height}")
        if plan.tiles:
            print(f"{maker} in {plan.tiles.cost.precision}, tiles of {plan.tiles.side} pixels")
    for stage, need in plan.stages.items():
        print(f"  {stage:8}{need / 1e6:7.0f} MB")
    print(f"  {'peak':8}{plan.peak / 1e6:7.0f} MB")
    return 0


def _doctor(values: argparse.Namespace) -> int:
    import platform

    from leanface.engine import device as machine
    from leanface.engine.backends import onnxruntime, openvino, torch
    from leanface.engine.pool import choose_device
    from leanface.library import Library

    library = Library()
    chosen = choose_device()
    able = openvino.precisions("cpu")
    why = f"{onnxruntime.NAME} offers it" if chosen != "cpu" else "no card is offered"
    precision = ("bf16", "this processor computes in it") if "bf16" in able else ("fp32", "no bf16 here")
    model = library.choose("auto", None)
    weights = library.find(model)
    for name, text in (
        ("leanface", f"{__version__}, Python {platform.python_version()}, {platform.platform()}"),
        ("processor", f"{machine.cores()} cores, computes in {', '.join(able)}"),
        ("memory", f"{machine.free_bytes() / 1e9:.1f} GB free"),
        (openvino.NAME, ", ".join(openvino.devices())),
        (onnxruntime.NAME, ", ".join(onnxruntime.devices()) or "not installed"),
        (torch.NAME, "installed, see --device" if torch.is_installed() else "not installed"),
        ("weights", str(library.store.folder)),
        ("auto device", f"{chosen} ({why})"),
        ("auto precision", f"{precision[0]} ({precision[1]})"),
        ("auto model", f"{model.variant.id} ({weights.path if weights else 'embedded'})"),
    ):
        print(f"{name:15}{text}")
    return 0


def _list_models(values: argparse.Namespace) -> int:
    from leanface.library import Library
    from leanface.registry import models

    library = Library()
    rows = [["model", "family", "size", "weights", "memory", "licence", "from", "background", "good at"]]
    for model in models():
        variant = model.variant
        try:
            located = library.find(model)
            where = f"here ({located.origin})" if located else "embedded" if variant.asset else "not here"
        except LeanfaceError as error:
            _error(str(error))
            where = "damaged"
        memory = ", ".join(
            f"{option.precision} {option.peak / 1e6:.0f} MB" for option in variant.options if not option.size
        )
        rows.append(
            [
                variant.id, model.family.id, "/".join(map(str, variant.sizes)), where,
                memory or "not measured", variant.licence, variant.origin,
                f"{variant.factor}x" if variant.enlarging else "", variant.about,
            ]
        )  # fmt: skip
    if values.measure:
        rows[0].insert(5, "a face takes")
        for row, model in zip(rows[1:], models(), strict=True):
            row.insert(5, "" if row[3] in ("not here", "damaged") else _seconds_a_face(model.variant.id))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _seconds_a_face(model: str) -> str:
    """Measured here on a crop that holds as much as a crop can: once to get ready, once for the time."""
    import numpy as np

    from leanface.api import Restorer
    from leanface.types import Image, Options

    try:
        with Restorer(model, options=Options(aligned=True)) as restorer:
            bars = np.arange(restorer.size) // 32 % 2 * 128 + 64
            crop = np.broadcast_to(bars[:, None], (restorer.size, restorer.size, 3)).astype(np.uint8)
            runs = [restorer.restore(Image(crop)) for _ in range(2)]
    except LeanfaceError as error:
        _error(str(error))
        return "fails"
    return f"{runs[1].seconds['restore']:.2f} s {runs[1].precision}"


def _get_model(values: argparse.Namespace) -> int:
    from leanface.library import Library

    library = Library()
    file = library.file(values.model)
    terms = file.terms
    if not library.store.is_accepted(terms):
        print(f"{file.name} is under these terms: {terms.title}. {terms.text} ({terms.url})")
        accepted = values.accept_licence
        if not accepted and sys.stdin.isatty():
            accepted = input("Accept them? [y/N] ").strip().lower() in ("y", "yes")
        if not accepted:
            raise UsageError("the terms were not accepted; --accept-licence accepts them")
        library.store.accept_licence(terms)
    located = library.store.get(file, sha256=values.sha256, progress=_transfer)
    print(f"{file.id}: {located.path} (sha256 {located.sha256})")
    return 0


def _import_model(values: argparse.Namespace) -> int:
    from leanface.library import Library

    if len(values.what) > 2:
        raise UsageError("import takes a file, or a model and a file")
    names, path = values.what[:-1], Path(values.what[-1])
    library = Library()
    located = library.store.import_file(
        path, library.file(names[0], like=path) if names else None,
        sha256=values.sha256, allow_unverified=values.allow_unverified, progress=_transfer,
    )  # fmt: skip
    state = "verified" if located.verified else "not verified"
    print(f"{located.file.id}: {located.path} ({state}, sha256 {located.sha256})")
    return 0


def _verify_models(values: argparse.Namespace) -> int:
    from leanface.library import Library
    from leanface.weights.manifest import FILES

    library = Library()
    store = library.store
    files = [library.file(name) for name in values.models]
    failed = 0
    for file in files or [file for file in FILES.values() if file not in store.missing([file])]:
        try:
            located = store.verify(file)
            print(f"{file.id}: {'good' if located.verified else 'sum not published'}, {located.path}")
        except LeanfaceError as error:
            failed += 1
            _error(str(error))
    return ALL_FAILED if failed else 0


def _models_path(values: argparse.Namespace) -> int:
    from leanface.library import Library

    print(Library().store.folder)
    return 0


def _remove_model(values: argparse.Namespace) -> int:
    from leanface.library import Library

    print(f"{values.model}: {Library().remove(values.model) / 1e6:.0f} MB freed")
    return 0


def _transfer(done: int, total: int | None) -> None:
    """A line on a terminal that tells how far a download or copy is."""
    if sys.stderr.isatty():
        share = f" of {total / 1e6:.0f}" if total else ""
        end = "\n" if done == total else ""
        print(f"\r\x1b[K{done / 1e6:.0f}{share} MB", end=end, file=sys.stderr, flush=True)


def _restorer(values: argparse.Namespace, options: Any, on_event: Any = None) -> Any:
    from leanface.api import Restorer

    return Restorer(
        values.model, size=values.size, device=values.device, precision=values.precision,
        threads=values.threads, memory=values.memory, weights=values.weights,
        allow_unverified=values.allow_unverified,
        options=options, on_event=on_event,
    )  # fmt: skip


def _limits(values: argparse.Namespace) -> dict[str, Any]:
    return {"max_pixels": values.max_pixels} if values.max_pixels else {}


def _exit_code(counts: Mapping[str, int]) -> int:
    """From the number of pictures by status."""
    if not counts.get("failed"):
        return 0
    return ALL_FAILED if counts["failed"] == sum(counts.values()) else SOME_FAILED


def _sentence(outcome: Outcome) -> str:
    """One line about a picture that was written."""
    result = outcome.result
    assert result is not None
    seconds = f"{sum(result.seconds.values()):.2f} s"
    if result.background or result.scale != 1:
        made = f" by {result.background}" if result.background not in ("", "given") else ""
        tiles = f" in tiles of {result.tile}" if result.tile else ""
        seconds = f"{result.scale:.4g}x{made}{tiles}, {seconds}"
    if result.status == "skipped":
        return f"{outcome.job.source} -> {outcome.job.target}: unchanged, {result.reason}"
    faces = f", {result.restored} of {len(result.faces)} faces" if result.faces else ""
    return f"{outcome.job.source} -> {outcome.job.target}: restored{faces}, {seconds}"


def _error(text: str) -> None:
    print(f"leanface: {' '.join(text.split())}", file=sys.stderr, flush=True)


class _Progress:
    """A bar on a terminal for more than one picture, plain lines elsewhere, nothing when quiet."""

    WIDTH = 30

    def __init__(self, total: int, *, quiet: bool, stream: TextIO) -> None:
        self.total = total
        self.quiet = quiet
        self.stream = stream
        self.bar = total > 1 and not quiet and sys.stderr.isatty()
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[tuple[str, str]] = Counter()

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    def model(self, restorer: Restorer) -> None:
        self._say(restorer.chosen)

    def show(self, outcome: Outcome) -> None:
        self.counts[outcome.status] += 1
        self.kinds[outcome.status, outcome.kind] += 1
        self._clear()
        if outcome.error:
            _error(outcome.reason)
        elif outcome.result:
            for note in outcome.result.notes:
                self._say(f"{outcome.job.source}: {note}")
            if not self.bar or outcome.status == "skipped":
                self._say(_sentence(outcome))
        if self.bar:
            filled = self.WIDTH * self.done // self.total
            bar = "#" * filled + "." * (self.WIDTH - filled)
            print(f"\r[{bar}] {self.done}/{self.total}", end="", file=sys.stderr, flush=True)

    def event(self, name: str, facts: dict[str, Any]) -> None:
        """Tells on a terminal how far a picture is that is being enlarged."""
        if name == "enlarging" and not self.quiet and facts["total"] > 1 and sys.stderr.isatty():
            end = "\r\x1b[K" if facts["done"] == facts["total"] else ""
            print(
                f"\r\x1b[Ktile {facts['done']} of {facts['total']}{end}", end="", file=sys.stderr, flush=True
            )

    def end(self) -> None:
        """The counts, and the reasons behind them."""
        self._clear()
        if self.total == 1:
            return
        words = {
            "restored": "restored",
            "skipped": "skipped",
            "failed": "failed",
            "finished": "finished before",
        }
        shown = [s for s in words if s != "finished" or self.counts[s]]
        self._say(", ".join(f"{self.counts[status]} {words[status]}" for status in shown))
        for (status, kind), count in self.kinds.most_common():
            if status in ("skipped", "failed"):
                self._say(f"  {status}: {count} {kind}")

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    def _clear(self) -> None:
        if self.bar:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
