"""What a model family declares, and where the families are found.

A family is one file in ``leanface/families`` that defines ``FAMILY``. Nothing else has to be told about it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leanface import pixels as px
from leanface.engine.memory import Option, TileCost
from leanface.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leanface.engine.session import Tensors
    from leanface.graphs.builder import Build
    from leanface.graphs.fixed import Split
    from leanface.pixels import Float


ASSETS = Path(__file__).parent / "assets"
Role = Literal["restorer", "detector"]

FFHQ = tuple(
    (x / 512, y / 512)
    for x, y in (
        (192.98138, 239.94708),
        (318.90277, 240.19360),
        (256.63416, 314.01935),
        (201.26117, 371.41043),
        (313.08905, 371.15118),
    )
)
"""Where the FFHQ data set, and so most families, have the five landmarks in a crop of side 1."""


@dataclass(frozen=True, eq=False)
class Crop:
    """What a network looks at.

    Attributes:
        pixels: [height, width, 3] RGB; float32 in [0, 1] for a restorer, uint8 for a detector.
        scale: crop pixels per picture pixel; above 1 the picture is coarser than the crop.
        factor: the variant's ``factor``.
        knobs: the value of each knob that the family declares.
    """

    pixels: NDArray[Any]
    scale: float = 1.0
    factor: int = 1
    knobs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Knob:
    """Something about a family's networks that users may turn.

    Attributes:
        name: of the field of ``Options`` that holds it, and of the flag of the command line.
        about: one line for users.
        default: its value where the user gives none.
        low: the least value.
        high: the largest value.
    """

    name: str
    about: str
    default: float
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Enlarging:
    """How a network that takes any picture, not only faces, enlarges one by its ``factor`` in tiles.

    Its graph takes ``input`` [1, 3, h, w] and gives ``output`` [1, 3, factor * h, factor * w], RGB in [0, 1].

    Attributes:
        halo: pixels around a tile that it must see, so that tiles from 64 pixels on give the picture that one
            tile would, to one level of 255; a multiple of ``step``.
        costs: what tiles cost on a processor, by precision, the best first.
        step: heights, widths and places of what it is given are multiples of this.
        split: its graph -> two that do the same in turn, see ``engine.parts``; None leaves it whole.
        seam: how far the second of them sees, in values of what the first gives.
    """

    halo: int
    costs: tuple[TileCost, ...]
    step: int = 1
    split: Split | None = None
    seam: int = 0


@dataclass(frozen=True)
class Variant:
    """One network of a family.

    Attributes:
        id: the name users type.
        sizes: sides of the square crops it takes, in pixels, the usual one first.
        asset: its graph file inside the package; empty where only published weights give one.
        files: ids in the manifest of weights, each of which gives the whole network, the best one first; one
            that is here goes before the asset.
        factor: how many times larger the network's output is than its input.
        colourizes: it gives colour: it is shown the picture without, and the picture's luminance is kept.
        enlarging: how it enlarges whole pictures; None where it is for faces only.
        options: ways to run it on a processor, from the best to the leanest, with what each costs.
        build: makes its graph from the arrays of such a file; None runs a published graph as it is.
        licence: of its weights, as an SPDX identifier or in words.
        origin: where its weights come from.
        precisions: those its results survive.
        about: one line for users.
    """

    id: str
    sizes: tuple[int, ...]
    licence: str
    origin: str
    precisions: tuple[str, ...]
    about: str
    asset: str = ""
    files: tuple[str, ...] = ()
    factor: int = 1
    colourizes: bool = False
    enlarging: Enlarging | None = None
    options: tuple[Option, ...] = ()
    build: Build | None = None


@dataclass(frozen=True)
class Family:
    """Networks that share a template and a way in and out.

    Attributes:
        id: name of the family and of its file.
        role: ``restorer`` takes and returns faces; ``detector`` finds them.
        template: five landmarks in a crop of side 1; None where the family aligns nothing.
        prepare: crop -> the graph's inputs by name, of the types that the graph declares.
        finish: the graph's outputs and the crop they belong to -> what the family gives. A restorer: float32
            [size, size, 3] in [0, 1]. A detector: float32 [n, 15], per candidate left, top, right, bottom in
            pixels, score, and five landmarks x, y.
        variants: the usual one first.
        knobs: what users may turn.
    """

    id: str
    role: Role
    template: tuple[tuple[float, float], ...] | None
    prepare: Callable[[Crop], Tensors]
    finish: Callable[[Tensors, Crop], Float]
    variants: tuple[Variant, ...]
    knobs: tuple[Knob, ...] = ()


@dataclass(frozen=True)
class Model:
    """A variant with its family."""

    family: Family
    variant: Variant


@cache
def families() -> tuple[Family, ...]:
    """All families, by name.

    Raises:
        ImportError: a family file is broken; names it.
    """
    from leanface import families as package

    found = []
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        name = f"{package.__name__}.{module.name}"
        try:
            family = importlib.import_module(name).FAMILY
        except Exception as error:
            raise ImportError(f"the family file {name} is broken: {error}") from error
        if not isinstance(family, Family) or family.id != module.name:
            raise ImportError(f"the family file {name} must define FAMILY with the id {module.name!r}")
        found.append(family)
    return tuple(found)


def models(role: Role = "restorer") -> tuple[Model, ...]:
    """All models of a role."""
    return tuple(Model(f, v) for f in families() if f.role == role for v in f.variants)


def find(model_id: str, role: Role = "restorer") -> Model:
    """The model of that name.

    Raises:
        UsageError: there is none; lists those there are.
    """
    known = models(role)
    for model in known:
        if model.variant.id == model_id:
            return model
    names = ", ".join(m.variant.id for m in known)
    raise UsageError(f"there is no model {model_id!r}; choose auto or one of {names}")


def enlargers() -> tuple[Model, ...]:
    """All models that enlarge whole pictures."""
    return tuple(Model(f, v) for f in families() for v in f.variants if v.enlarging)


def find_enlarger(model_id: str) -> Model:
    """The model of that name that enlarges whole pictures.

    Raises:
        UsageError: there is none; lists those there are.
    """
    for model in enlargers():
        if model.variant.id == model_id:
            return model
    names = ", ".join(model.variant.id for model in enlargers())
    raise UsageError(f"there is no background {model_id!r}; choose none, a picture's file, or one of {names}")


def signed_input(crop: Crop) -> dict[str, NDArray[Any]]:
    """The input of networks that look at RGB in [-1, 1]: ``input`` [1, 3, height, width]."""
    planes = px.planes(crop.pixels)
    planes *= np.float32(2)
    planes -= np.float32(1)
    return {"input": planes}


def signed_picture(outputs: Tensors, crop: Crop) -> Float:
    """The picture of networks that give RGB in [-1, 1], whatever they call their first output."""
    picture = px.interleaved(next(iter(outputs.values())))
    picture += np.float32(1)
    picture *= np.float32(0.5)
    return picture


def turned(model: Model, given: Mapping[str, float]) -> dict[str, float]:
    """The value of each of a model's knobs: as given, else its default.

    Raises:
        UsageError: the family has no such knob (names those that have), or the value is out of its range.
    """
    knobs = {knob.name: knob for knob in model.family.knobs}
    for name, value in given.items():
        if name not in knobs:
            having = [f.id for f in families() if name in {knob.name for knob in f.knobs}]
            where = f"; it is for {', '.join(having)}" if having else ""
            raise UsageError(f"{model.variant.id} takes no {name}{where}")
        low, high = knobs[name].low, knobs[name].high
        if not low <= value <= high:
            raise UsageError(f"{name} of {model.variant.id} lies between {low:g} and {high:g}, not {value:g}")
    return {name: given.get(name, knob.default) for name, knob in knobs.items()}
