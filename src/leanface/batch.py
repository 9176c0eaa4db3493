"""Many files: which there are, where their results go, and one outcome for each."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leanface.api import Restorer
from leanface.errors import EngineError, InputError, LeanfaceError, OutputError, UsageError
from leanface.imageio import FORMATS, MAX_PIXELS
from leanface.types import Result

SUFFIX = "_restored"


@dataclass(frozen=True)
class Job:
    """One picture to restore and where its result goes."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Outcome:
    """What became of one job: a result, or the error that ended it."""

    job: Job
    result: Result | None
    error: LeanfaceError | None = None

    @property
    def status(self) -> str:
        return self.result.status if self.result else "failed"

    @property
    def reason(self) -> str:
        return self.result.reason if self.result else str(self.error)

    def record(self) -> dict[str, Any]:
        """The outcome as plain values, for a line of a report."""
        values: dict[str, Any] = {
            "input": str(self.job.source),
            "output": str(self.job.target) if self.result else None,
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
                "notes": list(self.result.notes),
            }
        return values

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps(self.record(), ensure_ascii=False)


def expand(inputs: Sequence[str]) -> list[Path]:
    """Files, the pictures right inside folders and the matches of globs, in order, once each.

    A name that is neither comes back as it is, so that reading it says what is wrong with it.

    Raises:
        UsageError: a folder without pictures, or a glob that matches nothing.
    """
    found: dict[Path, None] = {}
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            pictures = sorted(p for p in path.iterdir() if _is_picture(p))
            if not pictures:
                raise UsageError(f"{name}: the folder holds no pictures ({', '.join(FORMATS)})")
        elif not path.exists() and glob.has_magic(name):
            pictures = sorted(Path(p) for p in glob.glob(name) if Path(p).is_file())  # noqa: PTH207 (absolute patterns)
            if not pictures:
                raise UsageError(f"{name}: nothing matches")
        else:
            pictures = [path]
        found.update(dict.fromkeys(pictures))
    return list(found)


def jobs(sources: Sequence[Path], output: Path | None, *, many: bool, suffix: str = SUFFIX) -> list[Job]:
    """Where each result goes.

    Args:
        sources: the pictures.
        output: a file for a single picture, else a folder, as is a name without suffix; None puts
            results beside their inputs.
        many: the pictures came from a folder or a glob, so that ``output`` is a folder even for one.
        suffix: what the names of results end in where they lie beside their inputs.

    Two results that would share a name get distinct ones: ``name_2``, ``name_3``, in the order of the inputs.

    Raises:
        UsageError: several pictures but ``output`` names a file.
    """
    folder = output is not None and (
        many or len(sources) > 1 or output.is_dir() or not output.suffix  # a result's suffix is its format
    )
    if folder and output is not None and output.suffix.lower() in FORMATS and not output.is_dir():
        raise UsageError(f"{output}: names a picture, but the results of several need a folder")
    made = []
    for source in sources:
        if output is None:
            target = source.with_name(f"{source.stem}{suffix}{source.suffix}")
        else:
            target = output / source.name if folder else output
        made.append(Job(source, target))
    return distinct(made)


def distinct(work: Iterable[Job]) -> list[Job]:
    """The jobs, with a number in the name of each result whose name an earlier one has taken."""
    made: dict[str, Job] = {}
    for job in work:
        target, number = job.target, 1
        while str(target).casefold() in made:
            number += 1
            target = job.target.with_name(f"{job.target.stem}_{number}{job.target.suffix}")
        made[str(target).casefold()] = Job(job.source, target)
    return list(made.values())


def run(
    restorer: Restorer,
    work: Iterable[Job],
    *,
    overwrite: bool = False,
    max_pixels: int = MAX_PIXELS,
    compare: bool = False,
) -> Iterator[Outcome]:
    """Restore one job after the other; a picture that fails does not stop the next.

    Raises:
        DeviceError, ModelError: the model cannot be loaded, which would fail every picture.
    """
    for job in work:
        try:
            result = restorer.restore_file(
                job.source, job.target, overwrite=overwrite, max_pixels=max_pixels, compare=compare
            )
            yield Outcome(job, result)
        except (InputError, OutputError, UsageError, EngineError) as error:
            yield Outcome(job, None, error)
        except MemoryError:
            yield Outcome(job, None, EngineError(f"{job.source}: there is not enough memory for it"))


def _is_picture(path: Path) -> bool:
    hidden = path.name.startswith(".")
    result = path.stem.endswith((SUFFIX, f"{SUFFIX}_compare"))
    return path.suffix.lower() in FORMATS and not hidden and not result and path.is_file()
