"""leanface restores faces in photographs on machines without a big graphics card, or without any.

Importing this package imports nothing else: each name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Restorer": "api",
    "list_models": "api",
    "paste_file": "api",
    "restore": "api",
    "restore_file": "api",
    "Face": "types",
    "FaceCrop": "types",
    "FaceReport": "types",
    "FileOptions": "types",
    "Image": "types",
    "Options": "types",
    "Result": "types",
    "BrokenOutputError": "errors",
    "BudgetError": "errors",
    "DeviceError": "errors",
    "EngineError": "errors",
    "InputError": "errors",
    "LeanfaceError": "errors",
    "ModelError": "errors",
    "OutOfMemoryError": "errors",
    "OutputError": "errors",
    "UsageError": "errors",
}

__all__ = [
    "BrokenOutputError",
    "BudgetError",
    "DeviceError",
    "EngineError",
    "Face",
    "FaceCrop",
    "FaceReport",
    "FileOptions",
    "Image",
    "InputError",
    "LeanfaceError",
    "ModelError",
    "Options",
    "OutOfMemoryError",
    "OutputError",
    "Restorer",
    "Result",
    "UsageError",
    "list_models",
    "paste_file",
    "restore",
    "restore_file",
]

if TYPE_CHECKING:
    from leanface.api import Restorer, list_models, paste_file, restore, restore_file
    from leanface.errors import (
        BrokenOutputError,
        BudgetError,
        DeviceError,
        EngineError,
        InputError,
        LeanfaceError,
        ModelError,
        OutOfMemoryError,
        OutputError,
        UsageError,
    )
    from leanface.types import Face, FaceCrop, FaceReport, FileOptions, Image, Options, Result


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
