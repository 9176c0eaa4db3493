"""One sheet that shows the same faces as every model restores them, with what each takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import leanface
from leanface import crops, imageio, registry
from leanface import pixels as px
from leanface.errors import EngineError, InputError, ModelError
from leanface.imageio.lettering import lettering
from leanface.library import Library
from leanface.registry import Model
from leanface.types import Image

_ROOT = Path(leanface.__file__).parents[1]  # the process must find the same package
_CELL, _MARGIN, _LETTERS, _LINE = 256, 8, 16, 24  # pixels


@dataclass(frozen=True, eq=False)
class Column:
    """What one model made of the faces of a picture.

    Attributes:
        model: its name.
        before: each face's crop as it was, the largest face first; uint8 [size, size, 3].
        after: the same restored.
        seconds: a face, the model loaded.
        peak_bytes: of a process of its own.
        precision: that it computed in.
    """

    model: str
    before: tuple[NDArray[np.uint8], ...]
    after: tuple[NDArray[np.uint8], ...]
    seconds: float
    peak_bytes: int
    precision: str


def here(names: Sequence[str], library: Library) -> tuple[list[Model], list[str]]:
    """The models that are on this machine, and the names of those that are not.

    Args:
        names: which to look for; all restorers where empty.
        library: where to look.

    Raises:
        UsageError: a name is no model's.
        ModelError: none of them is here.
    """
    wanted = [registry.find(name) for name in dict.fromkeys(names)] or registry.models()
    found = [model for model in wanted if model.variant.asset or library.find(model)]
    missing = [model.variant.id for model in wanted if model not in found]
    if not found:
        raise ModelError(f"none of these models is here: {', '.join(missing)}; see `leanface models get`")
    return found, missing


def restore(picture: Path, model: str, arguments: Iterable[str]) -> Column:
    """Have a process of its own restore the faces of a picture, so that its memory is that model's alone.

    Args:
        picture: a file.
        model: name of the model.
        arguments: more of the command ``restore``.

    Raises:
        InputError: no face is in the picture.
        EngineError: it failed; says how.
    """
    with tempfile.TemporaryDirectory(prefix="leanface-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        report = folder / "report.jsonl"
        command = [
            sys.executable, "-m", "leanface", "restore", str(picture), "--output", str(folder / "result.png"),
            "--model", model, "--save-crops", str(folder / "crops"), "--report", str(report), "--quiet",
            *arguments,
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            *_, last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise EngineError(f"{model}: {last.removeprefix('leanface: ')}")
        record: dict[str, Any] = json.loads(report.read_text("utf-8"))
        if not record["faces_restored"]:
            raise InputError(f"{picture}: {record['reason']}, so there is nothing to compare")
        (description,) = (folder / "crops").glob("*.json")
        names = crops.read(description).names
        after = tuple(_crop(description.with_name(name)) for name in names)
        before = tuple(_crop(description.with_name(f"{Path(name).stem}_input.png")) for name in names)
    seconds = record["seconds"]["restore"] / record["faces_restored"]
    return Column(model, before, after, seconds, record["peak_bytes"], record["precision"])


def _crop(path: Path) -> NDArray[np.uint8]:
    pixels = px.scaled(imageio.read(path)[0].pixels, _CELL, _CELL)
    return pixels if pixels.dtype == np.uint8 else px.to_depth(px.to_float(pixels), np.dtype(np.uint8))


def sheet(columns: Sequence[Column]) -> Image:
    """The faces in rows: before, then after by each model, under its name and over what it took."""
    faces = min(len(column.after) for column in columns)
    step = _CELL + _MARGIN
    height = _MARGIN + _LINE + faces * step + 2 * _LINE
    out = np.full((height, _MARGIN + (len(columns) + 1) * step, 3), 255, np.uint8)
    cells = [("before", columns[0].before, ("", ""))]
    for column in columns:
        took = (
            f"{column.seconds:.2f} s a face, {column.precision}",
            f"{column.peak_bytes / 1e6:.0f} MB in all",
        )
        cells.append((column.model, column.after, took))
    for number, (name, pictures, took) in enumerate(cells):
        x = _MARGIN + number * step
        _write(out, name, x, _MARGIN)
        for row, picture in enumerate(pictures[:faces]):
            y = _MARGIN + _LINE + row * step
            out[y : y + _CELL, x : x + _CELL] = picture
        for line, text in enumerate(took):
            _write(out, text, x, _MARGIN + _LINE + faces * step - _MARGIN // 2 + line * _LINE)
    return Image(out)


def _write(out: NDArray[np.uint8], text: str, x: int, y: int) -> None:
    if text:
        letters = lettering(text, _LETTERS, _CELL)
        place = out[y : y + letters.shape[0], x : x + letters.shape[1]]
        place -= np.minimum(place, letters[: place.shape[0], :, None])
