"""Which pictures there are, and where their results go."""

from __future__ import annotations

import glob
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leanface import imageio
from leanface.api import comparison_path
from leanface.errors import UsageError
from leanface.imageio import FORMATS, READABLE, STDIO

SUFFIX = "_restored"
_LONGEST_NAME = 240  # bytes: file systems take 255, and a comparison's name is longer than its result's


@dataclass(frozen=True)
class Job:
    """One picture to restore, where its result goes, and where the crops of its faces are described."""

    source: Path
    target: Path
    crops: Path | None = None


def plan(
    inputs: Sequence[str],
    output: Path | None,
    *,
    recursive: bool = False,
    name: str | None = None,
    format: str = "",
) -> list[Job]:
    """The jobs of a command line: ``expand`` and ``jobs``, but for earlier results that lie among the inputs.

    Raises:
        UsageError: the inputs, the output and the names do not go together.
    """
    sources = expand(inputs, recursive=recursive, output=output)
    named = [Path(given) for given in inputs]
    roots = [path for path in named if path.is_dir()]
    many = recursive or any(path not in sources for path in named)

    def made(kept: Sequence[Path]) -> list[Job]:
        return jobs(kept, output, many=many, name=name, format=format, roots=roots)

    work = made(sources)
    results = {path for job in work for path in (job.target, comparison_path(job.target))}
    own = (results & set(sources)).difference(named)
    return made([source for source in sources if source not in own]) if own else work


def expand(inputs: Sequence[str], *, recursive: bool = False, output: Path | None = None) -> list[Path]:
    """Files, the pictures in folders and the matches of globs, in order, once each.

    A name that is neither comes back as it is, so that reading it says what is wrong with it.

    Args:
        inputs: names.
        recursive: also take the folders in folders. Links to folders are not followed.
        output: a folder whose pictures are results; it is left out where it lies inside an input.

    Raises:
        UsageError: a folder without pictures, or a glob that matches nothing.
    """
    found: dict[str, Path] = {}
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            pictures = _in_folder(path, recursive=recursive, output=output)
            if not pictures:
                raise UsageError(f"{name}: the folder holds no pictures ({', '.join(READABLE)})")
        elif path != STDIO and not path.exists() and glob.has_magic(name):
            pictures = sorted(Path(p) for p in glob.glob(name) if Path(p).is_file())  # noqa: PTH207 (absolute patterns)
            if not pictures:
                raise UsageError(f"{name}: nothing matches")
        else:
            pictures = [path]
        for picture in pictures:
            found.setdefault(str(picture.absolute()), picture)
    return list(found.values())


def _in_folder(folder: Path, *, recursive: bool, output: Path | None) -> list[Path]:
    if not recursive:
        return sorted(p for p in folder.iterdir() if _is_picture(p))
    results = output.resolve() if output is not None else None
    pictures = []
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and (here / f).resolve() != results)
        pictures += [here / file for file in sorted(files) if _is_picture(here / file)]
    return pictures


def _is_picture(path: Path) -> bool:
    hidden = path.name.startswith(".")
    result = path.stem.endswith((SUFFIX, f"{SUFFIX}_compare"))
    return path.suffix.lower() in READABLE and not hidden and not result and path.is_file()


def jobs(
    sources: Sequence[Path],
    output: Path | None,
    *,
    many: bool,
    name: str | None = None,
    format: str = "",
    roots: Iterable[Path] = (),
) -> list[Job]:
    """Where each result goes.

    Args:
        sources: the pictures.
        output: a file for a single picture, else a folder, as is a name without suffix; ``-`` is standard
            output; None puts results beside their inputs.
        many: the pictures came from a folder or a glob, so that ``output`` is a folder even for one.
        name: pattern of the names, with ``{stem}`` for that of the input; None is ``{stem}``, or
            ``{stem}_restored`` where the result lies beside its input.
        format: suffix of the results' format, without its point; empty keeps that of the input.
        roots: input folders whose trees are mirrored in the output folder.

    Two results that would share a name get distinct ones: ``name_2``, ``name_3``, in the order of the inputs.

    Raises:
        UsageError: several pictures but ``output`` names a file, or a bad pattern.
    """
    if name is not None:
        _check_pattern(name)
    if output == STDIO or (output is None and list(sources) == [STDIO]):
        if len(sources) > 1 or many:
            raise UsageError("standard output takes the result of one picture only")
        return [Job(source, STDIO) for source in sources]
    folder = output is not None and (
        many or len(sources) > 1 or output.is_dir() or not output.suffix  # a result's suffix is its format
    )
    if folder and output is not None and output.suffix.lower() in FORMATS and not output.is_dir():
        raise UsageError(f"{output}: names a picture, but the results of several need a folder")
    if output is not None and not folder:
        if name is not None or format:
            raise UsageError(f"{output}: names the result already; a name or format is for several results")
        return [Job(source, output) for source in sources]
    made = []
    for source in sources:
        place = source.parent if output is None else output / _below(source, roots)
        suffix = f".{format}" if format else imageio.result_suffix(source)
        pattern = name if name is not None else "{stem}" + SUFFIX * (output is None)
        target = _named(place, pattern, source, suffix)
        if name is None and target.exists() and source.exists() and target.samefile(source):
            target = _named(place, "{stem}" + SUFFIX, source, suffix)
        made.append(Job(source, target))
    return distinct(made)


def _check_pattern(name: str) -> None:
    rest = name.replace("{stem}", "")
    if not name or any(mark in rest for mark in "{}/\\"):
        raise UsageError(
            f"a name is a pattern like '{{stem}}_restored', without folders and suffix, not {name!r}"
        )


def _below(source: Path, roots: Iterable[Path]) -> Path:
    for root in roots:
        if source.is_relative_to(root):
            return source.parent.relative_to(root)
    return Path()


def _named(place: Path, pattern: str, source: Path, suffix: str) -> Path:
    stem = "stdin" if source == STDIO else source.stem
    return place / _cut(pattern.replace("{stem}", stem), suffix or ".png" * (source == STDIO))


def _cut(stem: str, suffix: str) -> str:
    """A name that file systems take, shortened if need be."""
    room = _LONGEST_NAME - len(os.fsencode(suffix))
    while len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return stem + suffix


def distinct(work: Iterable[Job]) -> list[Job]:
    """The jobs, with a number in the name of each result whose name an earlier one has taken."""
    taken: set[str] = set()
    made = []
    for job in work:
        target, number = job.target, 1
        while taken & {_key(target), _key(comparison_path(target))}:
            number += 1
            target = job.target.with_name(_cut(job.target.stem, f"_{number}{job.target.suffix}"))
        taken |= {_key(target), _key(comparison_path(target))}
        made.append(Job(job.source, target))
    return made


def with_crops(work: Sequence[Job], folder: Path) -> list[Job]:
    """The jobs, each with a JSON file of its own in that folder, named after the picture.

    Raises:
        UsageError: the folder is one of pictures or results, among which crops would be taken for such.
    """
    here = folder.resolve()
    if any(path.parent.resolve() == here for job in work for path in (job.source, job.target)):
        raise UsageError(f"{folder}: holds pictures or results; crops need a folder of their own")
    named = distinct(Job(job.source, _named(folder, "{stem}", job.source, ".json")) for job in work)
    return [replace(job, crops=name.target) for job, name in zip(work, named, strict=True)]


def _key(path: Path) -> str:
    """Equal for names that some file system takes for the same."""
    return unicodedata.normalize("NFC", str(path)).casefold()


def shard(work: Sequence[Job], index: int, count: int) -> list[Job]:
    """Every ``count``-th job, from number ``index`` (1 and up); names are those of the whole."""
    if not 1 <= index <= count:
        raise UsageError(f"a shard is a number from 1 to {count}, not {index}")
    return list(work[index - 1 :: count])
