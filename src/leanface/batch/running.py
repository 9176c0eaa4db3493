"""One outcome for each picture: reading, restoring and writing overlap."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from leanface import crops, imageio
from leanface.api import Restorer, check, outputs, read_background, save
from leanface.batch.journal import Journal, digest_of
from leanface.batch.naming import Job
from leanface.errors import BudgetError, EngineError, InputError, LeanfaceError, OutputError, UsageError
from leanface.types import FileOptions, Image, Result

_ALONE = 200_000_000  # bytes: pictures above this are worked on one at a time, since memory is the bottleneck
_NO_PIXELS = Image(np.zeros((1, 1, 3), np.uint8))


@dataclass(frozen=True)
class Outcome:
    """What became of one job: a result, the error that ended it, or neither where it was finished before.

    The result is without its pixels, which are in the file.
    """

    job: Job
    result: Result | None
    error: LeanfaceError | None = None

    @property
    def status(self) -> str:
        """``restored``, ``skipped``, ``failed`` or ``finished``."""
        if self.error:
            return "failed"
        return self.result.status if self.result else "finished"

    @property
    def reason(self) -> str:
        if self.error:
            return str(self.error)
        return self.result.reason if self.result else "by an earlier run"

    @property
    def kind(self) -> str:
        """The reason without what is particular to this file."""
        if not self.error:
            return self.reason
        names = sorted(map(str, (self.job.source, self.job.target)), key=len, reverse=True)
        text = self.reason
        for name in names:
            text = text.removeprefix(f"{name}: ")
        return text.split(" (")[0].split(";")[0]

    def record(self) -> dict[str, Any]:
        """The outcome as plain values, for a line of a report."""
        values: dict[str, Any] = {
            "input": str(self.job.source),
            "output": None if self.error else str(self.job.target),
            "status": self.status,
            "reason": self.reason,
        }
        if self.result:
            faces = self.result.faces
            values |= {
                "faces_found": len(faces),
                "faces_restored": sum(f.status == "restored" for f in faces),
                "faces": [asdict(face) for face in faces],
                "model": self.result.model,
                "device": self.result.device,
                "precision": self.result.precision,
                "seconds": {stage: round(s, 4) for stage, s in self.result.seconds.items()},
                "peak_bytes": self.result.peak_bytes,
                "background": self.result.background,
                "scale": round(self.result.scale, 4),
                "tile": self.result.tile,
                "notes": list(self.result.notes),
            }
        return values

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(self.record(), ensure_ascii=False)


@dataclass(frozen=True)
class _Picture:
    """A job that has been read."""

    job: Job
    image: Image
    origin: imageio.Origin
    files: FileOptions
    digest: str


def run(
    restorer: Restorer,
    work: Iterable[Job],
    files: FileOptions | None = None,
    *,
    journal: Journal | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Restore pictures, each with an outcome, in order; one that fails does not stop the next.

    While a picture is restored the next is read and the last is written, so that three are held at a time;
    very large ones are held alone.

    Args:
        restorer: does the work.
        work: the jobs.
        files: how files are read and written.
        journal: leaves out what it knows to be finished, and keeps account.
        stop: asked between pictures; those begun are finished.

    Raises:
        DeviceError, ModelError: the model cannot be loaded, which would fail every picture.
    """
    how = files or FileOptions()
    queue = iter(work)
    seen: set[Path] = set()

    def read(job: Job) -> _Picture | Outcome:
        folder = job.target.parent
        if folder not in seen:
            seen.add(folder)
            imageio.remove_stale(folder)
        return _read(job, how, journal)

    with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(1) as writing:

        def ahead() -> Future[_Picture | Outcome] | None:
            job = next(queue, None)
            return reading.submit(read, job) if job else None

        coming, behind = ahead(), None
        while coming and not stop():
            picture = coming.result()
            alone = isinstance(picture, _Picture) and _bytes(restorer, picture) > _ALONE
            coming = None if alone else ahead()
            if alone and behind:
                yield behind.result()
                behind = None
            finish = _restored(restorer, picture, journal)
            del picture
            leaving = writing.submit(finish)
            del finish
            if behind:
                yield behind.result()
            behind = leaving
            if alone:
                yield behind.result()
                behind, coming = None, ahead()
        if behind:
            yield behind.result()


def preview(work: Iterable[Job], files: FileOptions, journal: Journal | None) -> Iterator[str]:
    """One line for each job: what ``run`` would do with it, as far as can be told without decoding it."""
    for job in work:
        try:
            admitted = _admitted(job, files, journal, imageio.content(job.source) if journal else b"")
            yield f"{job.source} -> {job.target}{'' if admitted else ': finished by an earlier run'}"
        except LeanfaceError as error:
            yield f"{job.source} -> nothing: {error}"


def _admitted(
    job: Job, files: FileOptions, journal: Journal | None, data: bytes
) -> tuple[FileOptions, str] | None:
    """How a job's files may be written, and the digest of its input ``data``; None where it is finished.

    Raises:
        OutputError, UsageError: the result cannot be written, or would overwrite something unasked.
    """
    digest = ""
    if journal:
        digest = digest_of(data)
        state = journal.state(outputs(job.target, files), digest, overwrite=files.overwrite)
        if state == "finished":
            return None
        files = replace(files, overwrite=files.overwrite or state == "broken")
    files = replace(files, crops=job.crops)
    check(job.source, job.target, files)
    return files, digest


def _read(job: Job, files: FileOptions, journal: Journal | None) -> _Picture | Outcome:
    try:
        data = imageio.content(job.source) if journal else b""
        admitted = _admitted(job, files, journal, data)
        if admitted is None:
            return Outcome(job, None)
        files, digest = admitted
        image, origin = imageio.decode(data or imageio.content(job.source), job.source, files)
        return _Picture(job, image, origin, files, digest)
    except Exception as error:
        return Outcome(job, None, _own(error, job))


def _restored(
    restorer: Restorer, picture: _Picture | Outcome, journal: Journal | None
) -> Callable[[], Outcome]:
    """Restore a picture; returns what is left to do, which holds no more of it than it needs."""
    if isinstance(picture, Outcome):
        outcome = picture
        return lambda: outcome
    job, origin, files, digest = picture.job, picture.origin, picture.files, picture.digest
    try:
        options = replace(restorer.options, keep_crops=files.crops is not None)
        background, notes = read_background(files, origin, options)
        imageio.check_size(job.target, *restorer.result_size(picture.image, options, background))
        result = restorer.restore(picture.image, options, background=background)
        result = replace(result, notes=(*notes, *result.notes))
        size = picture.image.width, picture.image.height
        del background
    except Exception as error:
        failed = Outcome(job, None, _own(error, job))
        return lambda: failed
    before = picture.image if files.compare else None

    def whole(temporary: Path, path: Path) -> None:
        if journal:
            journal.add(path, temporary, job.source, digest)

    def finish() -> Outcome:
        try:
            if files.crops:
                crops.write(files.crops, job.source.name, size, result, origin, overwrite=files.overwrite)
            saved = save(job.target, before, result, origin, files, whole)
        except Exception as error:
            return Outcome(job, None, _own(error, job))
        return Outcome(job, replace(saved, image=_NO_PIXELS, crops=()))

    return finish


def _bytes(restorer: Restorer, picture: _Picture) -> int:
    """The larger of a picture and its result, in bytes."""
    width, height = restorer.result_size(picture.image)
    return max(picture.image.pixels.nbytes, width * height * 3 * picture.image.pixels.itemsize)


def _own(error: Exception, job: Job) -> LeanfaceError:
    """The error that ends one picture only; any other is raised again."""
    if isinstance(error, (InputError, OutputError, UsageError, EngineError, BudgetError)):
        return error
    if isinstance(error, MemoryError):
        return EngineError(f"{job.source}: there is not enough memory for it")
    raise error
