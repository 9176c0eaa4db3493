"""What a folder of results knows about how they came about, so that a run can go on where it was stopped.

One line of JSON a result, appended in one piece just before the result gets its name: whatever happens, a
result is either there and described, or it is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from leanface import imageio
from leanface.errors import InputError, OutputError, UsageError

State = Literal["new", "finished", "broken"]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Journal:
    """The journal of a folder.

    Several runs may share a folder, each writing a file of its own and reading all of them.

    Args:
        folder: of the results.
        settings: all that decides what a result looks like, as plain values.
        part: tells the runs that share a folder apart.

    Raises:
        UsageError: the journal cannot be read.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], part: str = "") -> None:
        self._folder = folder.absolute()
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        self._path = folder / f".leanface{part}.jsonl"
        self._known: dict[str, dict[str, Any]] = {}
        try:
            for path in sorted(folder.glob(".leanface*.jsonl")):
                for line in path.read_bytes().splitlines():
                    self._learn(line)
        except OSError as error:
            raise UsageError(f"{folder}: the journal cannot be read ({error.strerror or error})") from error

    def _learn(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            self._known[entry["output"]] = {key: entry[key] for key in ("sha256", "input", "settings")}
        except (ValueError, KeyError, TypeError):  # the process was killed in the middle of it
            return

    def state(self, paths: Sequence[Path], digest: str, *, overwrite: bool) -> State:
        """Whether a job's results are there, made from that input and with these settings.

        Args:
            paths: the results.
            digest: of the input.
            overwrite: results that are there but made otherwise are made again, not an error.

        Returns:
            ``finished``; ``broken`` if results are there that are ours, but unusable or not complete, and may
            be replaced; else ``new``.

        Raises:
            OutputError: a result is there that is none of ours, or made otherwise, or changed since.
        """
        found = [path for path in paths if os.path.lexists(path)]
        damaged = False
        for path in found:
            condition = self._condition(path)
            damaged |= condition == "damaged"
            problem = "" if condition == "damaged" else self._problem(path, condition, digest)
            if problem and not overwrite:
                raise OutputError(f"{path}: {problem}; --overwrite makes it anew")
            if problem:
                return "new"
        if len(found) == len(paths) and not damaged:
            return "finished"
        return "broken" if found else "new"

    def _condition(self, path: Path) -> Literal["whole", "damaged", "changed", "unknown"]:
        """Of a result that is there: ``damaged`` is empty or cut off, ``changed`` another good picture."""
        known = self._known.get(self._key(path))
        try:
            data = path.read_bytes()
            if not data:
                return "damaged"
            if known is None:
                return "unknown"
            if digest_of(data) == known["sha256"]:
                return "whole"
            imageio.decode(data, path)
        except InputError:
            return "damaged"
        except OSError:
            return "unknown"
        return "changed"

    def _problem(self, path: Path, condition: str, digest: str) -> str:
        """Why a result is not simply finished."""
        if condition == "unknown":
            return "exists already and is not in the journal"
        known = self._known[self._key(path)]
        if condition == "changed":
            return "has been changed since it was written"
        if known["input"] != digest:
            return "was made from another picture, or its input has changed"
        if known["settings"] != self._settings:
            return f"was made with other settings ({self._changes(known['settings'])})"
        return ""

    def _changes(self, before: Mapping[str, Any]) -> str:
        names = [
            name for name in {**before, **self._settings} if before.get(name) != self._settings.get(name)
        ]
        return ", ".join(f"{n} was {before.get(n)}, is {self._settings.get(n)}" for n in names)

    def add(self, path: Path, temporary: Path, source: Path, digest: str) -> None:
        """Note a result that is about to get its name.

        Args:
            path: that name.
            temporary: the finished file.
            source, digest: the input, and the digest of its content.

        Raises:
            OSError: the journal cannot be written.
        """
        entry = {
            "output": self._key(path), "sha256": digest_of(temporary.read_bytes()), "source": str(source),
            "input": digest, "settings": self._settings,
        }  # fmt: skip
        line = json.dumps(entry).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size:
                stream.seek(size - 1)
                line = line if stream.read(1) == b"\n" else b"\n" + line
            stream.write(line)

    def _key(self, path: Path) -> str:
        path = path.absolute()
        return (path.relative_to(self._folder) if path.is_relative_to(self._folder) else path).as_posix()
