"""The values that travel through leanface: frozen, checked when they are made, free of any runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from leanface.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Faces = Literal["all", "largest", "center", "none"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Point = tuple[float, float]
Box = tuple[float, float, float, float]
Landmarks = tuple[Point, Point, Point, Point, Point]


LARGEST_SCALE = 16
"""Results are at most so many times as wide and high as their pictures."""


@dataclass(frozen=True, eq=False)
class Image:
    """A picture as it is worked on, upright.

    Attributes:
        pixels: [height, width, 3] RGB, uint8 or uint16.
        alpha: [height, width] of the same type, or None.
        gray: the picture has one channel only; ``pixels`` holds it three times and a result must too.
    """

    pixels: NDArray[Any]
    alpha: NDArray[Any] | None = None
    gray: bool = False

    def __post_init__(self) -> None:
        shape, depth = self.pixels.shape, self.pixels.dtype.name
        if len(shape) != 3 or shape[2] != 3 or not shape[0] or not shape[1]:
            raise UsageError(f"an image is an array [height, width, 3] in RGB, not {list(shape)}")
        if depth not in ("uint8", "uint16"):
            raise UsageError(f"an image is an array of uint8 or uint16, not {depth}")
        if self.alpha is not None and (
            self.alpha.shape != shape[:2] or self.alpha.dtype != self.pixels.dtype
        ):
            raise UsageError("alpha must have the height, width and type of the pixels")

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])


@dataclass(frozen=True)
class Face:
    """A face in a picture, in pixels from the picture's upper left corner.

    Attributes:
        box: left, top, right, bottom.
        score: the detector's confidence, 0 to 1.
        landmarks: left eye, right eye, nose, left and right corner of the mouth, as seen in the picture.
    """

    box: Box
    score: float
    landmarks: Landmarks

    @property
    def width(self) -> float:
        return self.box[2] - self.box[0]

    @property
    def height(self) -> float:
        return self.box[3] - self.box[1]

    @property
    def size(self) -> float:
        """The longer side of the box in pixels."""
        return max(self.width, self.height)


@dataclass(frozen=True)
class Options:
    """How a picture is restored.

    Attributes:
        faces: which faces to restore; ``none`` looks for no face and restores the picture as a whole.
        aligned: the pictures are ready face crops (square, aligned to the model's template).
        strength: 0 leaves the picture as it is, 1 takes the restored face whole.
        pick: of those, the ones with these numbers only, counted from 1 for the largest face found.
        max_faces: at most so many, the largest.
        rotations: turns of the picture, in degrees against the clock, at which faces are looked for.
        color_match: the restored face takes on the colours of its surroundings.
        grain: how much of the noise that the picture has and the restored face lacks is put back, 0 to 1.
        keep_crops: the result holds each restored face's crop, before and after.
        min_face: faces whose longer side is below this many pixels are left alone.
        threshold: the detector's least confidence, 0 to 1.
        background: what is done about all that is no face: ``none``, or the name of a model that enlarges
            pictures, see ``registry.enlargers``.
        scale: of the result, in sizes of the picture; its width and height are rounded to whole pixels. None
            is the factor of the background's model, or 1 without.
        fidelity: for models that have this knob, 0 (the best looking face) to 1 (the truest to the picture);
            None takes the model's usual value.
    """

    faces: Faces = "all"
    aligned: bool = False
    strength: float = 1.0
    pick: tuple[int, ...] = ()
    max_faces: int | None = None
    rotations: tuple[int, ...] = (0,)
    color_match: bool = True
    grain: float = 0.0
    keep_crops: bool = False
    min_face: int = 20
    threshold: float = 0.8
    background: str = "none"
    scale: float | None = None
    fidelity: float | None = None

    def __post_init__(self) -> None:
        if self.faces not in get_args(Faces):
            raise UsageError(f"faces must be one of {', '.join(get_args(Faces))}, not {self.faces!r}")
        for name in ("strength", "threshold", "grain"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} must lie between 0 and 1, not {getattr(self, name):g}")
        if any(number < 1 for number in self.pick):
            raise UsageError(f"pick takes face numbers from 1, not {min(self.pick)}")
        if self.scale is not None and not 0 < self.scale <= LARGEST_SCALE:
            raise UsageError(f"scale must lie above 0 and be at most {LARGEST_SCALE}, not {self.scale:g}")
        if self.max_faces is not None and self.max_faces < 1:
            raise UsageError(f"max_faces must be 1 or more, not {self.max_faces}")
        if not self.rotations or not set(self.rotations) <= {0, 90, 180, 270}:
            raise UsageError(f"rotations must be among 0, 90, 180 and 270 degrees, not {self.rotations}")
        if self.min_face < 0:
            raise UsageError(f"min_face must be 0 or more pixels, not {self.min_face}")
        if self.whole and (self.keep_crops or self.grain):
            raise UsageError("crops and grain are of faces that are found; no face is looked for here")

    @property
    def knobs(self) -> dict[str, float]:
        """The knobs that are turned, by name; ``registry.turned`` checks them against a model's."""
        return {} if self.fidelity is None else {"fidelity": self.fidelity}

    @property
    def whole(self) -> bool:
        """The picture goes through the model as it is; no detector is needed."""
        return self.aligned or self.faces == "none"


MAX_PIXELS = 300_000_000
"""Pictures above this many pixels are refused unless the caller allows more."""


@dataclass(frozen=True)
class FileOptions:
    """How files are read and written.

    Attributes:
        overwrite: replace results that exist already.
        compare: also write the picture before and after, side by side, as ``<target>_compare``.
        max_pixels: larger pictures are refused.
        quality: 1 to 100 for formats that lose; None takes what a source JPEG was encoded with, else 95.
        strip_metadata: leave EXIF, XMP, IPTC and comments out; the colour profile stays.
        allow_8bit: take or write 8 bits a channel, with a note, where more cannot be kept.
        first_frame: take the first frame or page, with a note, of files that hold several.
        format: suffix of the format of a result that goes to standard output; empty takes the source's.
        crops: where the crops of the faces are described, a JSON file; they are written beside it.
        background: the picture as made elsewhere, of the same shape; faces are pasted into it instead.
    """

    overwrite: bool = False
    compare: bool = False
    max_pixels: int = MAX_PIXELS
    quality: int | None = None
    strip_metadata: bool = False
    allow_8bit: bool = False
    first_frame: bool = False
    format: str = ""
    crops: Path | None = None
    background: Path | None = None

    def __post_init__(self) -> None:
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UsageError(f"quality must lie between 1 and 100, not {self.quality}")


@dataclass(frozen=True)
class FaceReport:
    """What became of one face: ``status`` is ``restored`` or ``skipped``, and why."""

    box: Box
    score: float
    status: Literal["restored", "skipped"]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class FaceCrop:
    """A restored face as a square picture of its own.

    Attributes:
        number: of the face, as ``Options.pick`` takes it.
        face: where it is in the picture.
        matrix: two rows of three, from picture to crop coordinates.
        taken: [size, size, 3] RGB as it was in the picture, of the picture's type.
        restored: the same after restoring, as it was blended in at strength 1.
    """

    number: int
    face: Face
    matrix: tuple[tuple[float, ...], ...]
    taken: NDArray[Any]
    restored: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Result:
    """A restored picture and how it came about.

    Attributes:
        image: the result; the input itself where nothing was restored.
        faces: one report per face found, larger ones first; empty where the picture was taken as a whole.
        status: ``restored`` or ``skipped`` (the picture is unchanged), with ``reason``.
        model, device, precision: what restored it; empty where no model ran.
        seconds: time by stage.
        peak_bytes: the process's largest resident memory so far.
        notes: lines a user should read.
        crops: of the restored faces, larger ones first; only where ``Options.keep_crops`` asks for them.
        background: the model that made it, ``given`` where it was made elsewhere, or empty.
        scale: of the result, in sizes of the picture.
        tile: side in pixels of the tiles that the background was made in; 0 where no network made it.
    """

    image: Image
    faces: tuple[FaceReport, ...]
    status: Literal["restored", "skipped"]
    reason: str
    model: str
    device: str
    precision: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    notes: tuple[str, ...] = ()
    crops: tuple[FaceCrop, ...] = ()
    background: str = ""
    scale: float = 1.0
    tile: int = 0

    @property
    def restored(self) -> int:
        """How many faces were restored (1 for a picture taken as a whole)."""
        if not self.faces:
            return int(self.status == "restored" and bool(self.device))
        return sum(face.status == "restored" for face in self.faces)
