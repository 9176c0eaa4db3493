"""Crops of restored faces as files: to look at, to edit, and to paste back.

A picture's faces are described by one JSON file, with two PNG files beside it for each: ``name_1.png`` is the
restored crop of face 1, ``name_1_input.png`` the same as it was in the picture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leanface import imageio
from leanface.errors import InputError
from leanface.pixels import Matrix
from leanface.types import FaceReport, FileOptions, Image, Result


@dataclass(frozen=True, eq=False)
class Sheet:
    """What a JSON file says of the crops beside it.

    Attributes:
        path: of the file.
        width, height: of the upright picture in pixels.
        model: that restored the faces.
        size: side in pixels of the crops as they were written.
        faces: one report each, larger ones first.
        matrices: [2, 3] each, from the picture to a crop of ``size``.
        names: of the crops' files.
    """

    path: Path
    width: int
    height: int
    model: str
    size: int
    faces: tuple[FaceReport, ...]
    matrices: tuple[Matrix, ...]
    names: tuple[str, ...]

    def crops(self) -> Iterator[tuple[Matrix, Image]]:
        """Read each crop, with the matrix from the picture to it; larger faces last, to end on top.

        Raises:
            InputError: it is not there, cannot be read, or is not square.
        """
        for matrix, name in reversed(list(zip(self.matrices, self.names, strict=True))):
            path = self.path.with_name(name)
            crop, _ = imageio.read(path)
            if crop.width != crop.height:
                raise InputError(f"{path}: a crop must be square, not {crop.width}x{crop.height}")
            yield matrix * (crop.width / self.size), crop


def write(
    path: Path,
    picture: str,
    size: tuple[int, int],
    result: Result,
    origin: imageio.Origin,
    *,
    overwrite: bool,
) -> None:
    """Write the crops of a result, and last the file that describes them.

    Args:
        path: of that file.
        picture: name of the picture's file.
        size: width and height of the picture, upright.
        result: with its crops.
        origin: of the picture's file; its colours' meaning is the crops' too.
        overwrite: replace files that exist.

    Raises:
        OutputError: a file exists, or cannot be written.
    """
    files = FileOptions(overwrite=overwrite)
    work = []
    for crop in result.crops:
        name = f"{path.stem}_{crop.number}"
        work += [(path.with_name(f"{name}.png"), crop.restored)]
        work += [(path.with_name(f"{name}_input.png"), crop.taken)]
    for place, _ in work:  # all or none
        imageio.check_writable(place, overwrite=overwrite)
    for place, pixels in work:
        imageio.write(place, Image(pixels, gray=result.image.gray), origin.stripped(), files)
    description = {
        "picture": picture,
        "width": size[0],
        "height": size[1],
        "model": result.model,
        "size": max((len(crop.taken) for crop in result.crops), default=0),
        "faces": [
            {
                "number": crop.number, "box": crop.face.box, "score": crop.face.score,
                "landmarks": crop.face.landmarks, "matrix": crop.matrix,
                "crop": f"{path.stem}_{crop.number}.png",
            }
            for crop in result.crops
        ],
    }  # fmt: skip
    imageio.write_text(path, json.dumps(description, indent=1) + "\n", overwrite=overwrite)


def read(path: Path) -> Sheet:
    """Read what ``write`` wrote, but not yet the crops.

    Raises:
        InputError: missing, or no such file.
    """
    data = imageio.content(path)
    try:
        found = json.loads(data)
        faces = found["faces"]
        sheet = Sheet(
            path, int(found["width"]), int(found["height"]), str(found["model"]), int(found["size"]),
            tuple(FaceReport(_box(face["box"]), float(face["score"]), "restored") for face in faces),
            tuple(_matrix(face["matrix"]) for face in faces), tuple(_name(face["crop"]) for face in faces),
        )  # fmt: skip
        if faces and sheet.size < 1:
            raise ValueError("the size must be 1 or more")
    except KeyError as error:
        raise InputError(f"{path}: is no description of crops ({error} is missing)") from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: is no description of crops ({error})") from error
    return sheet


def _box(values: Any) -> tuple[float, float, float, float]:
    left, top, right, bottom = map(float, values)
    return left, top, right, bottom


def _matrix(rows: Any) -> Matrix:
    matrix = np.array(rows, np.float64)
    if matrix.shape != (2, 3) or not np.isfinite(matrix).all() or not abs(np.linalg.det(matrix[:, :2])) > 0:
        raise ValueError("a matrix is two rows of three numbers that can be inverted")
    return matrix


def _name(value: Any) -> str:
    if not isinstance(value, str) or Path(value).name != value:
        raise ValueError(f"a crop is the name of a file beside this one, not {value!r}")
    return value
