"""What the user has set once for every run: environment variables over one TOML file over defaults.

========== ==================== ============================================================================
key        variable             meaning
========== ==================== ============================================================================
cache      LEANFACE_CACHE       folder for downloads and everything built from them
weights    LEANFACE_WEIGHTS     folder that is searched for weights first
offline    LEANFACE_OFFLINE     true: never use the network
mirror     LEANFACE_MIRROR      where to download from first: an address that file names are appended to, or
                                one that holds ``{name}`` or ``{url}``; several are tried in order
                                (variable: separated by blanks; file: a list)
timeout    LEANFACE_TIMEOUT     seconds after which a silent server is given up
(none)     LEANFACE_CONFIG      the TOML file; by default ``config.toml`` in the user's configuration folder
========== ==================== ============================================================================

An empty variable counts as not set. Relative paths in the file start at the file's folder.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from leanface.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True)
class Settings:
    """The settings of this run.

    Attributes:
        cache: folder for downloads and everything built from them; it need not exist yet.
        weights: folder that is searched for weights before any other, or None.
        offline: never use the network.
        mirrors: addresses to download from before the published ones, in order.
        timeout: seconds after which a silent server is given up.
    """

    cache: Path
    weights: Path | None = None
    offline: bool = False
    mirrors: tuple[str, ...] = ()
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for mirror in self.mirrors:
            if not mirror.startswith(("https://", "http://")):
                raise UsageError(f"the mirror {mirror!r} must begin with https:// or http://")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise UsageError(f"the timeout must be a positive number of seconds, not {self.timeout!r}")


@functools.cache
def load() -> Settings:
    """The settings of this process, read once.

    Raises:
        UsageError: a variable or the file cannot be understood; names it.
    """
    return read(os.environ)


def read(environ: Mapping[str, str]) -> Settings:
    """The settings that ``environ`` and the file it names (or the usual one) give.

    Raises:
        UsageError: a variable or the file cannot be understood; names it.
    """
    values = _from_file(environ.get("LEANFACE_CONFIG", ""))
    base: dict[str, object] = {"cache": platformdirs.user_cache_path("leanface", appauthor=False)}
    for key, convert in _KEYS.items():
        if key in values:
            base[key] = convert(*values[key])
        variable = f"LEANFACE_{key.upper()}"
        if text := environ.get(variable, "").strip():
            base[key] = convert(text, variable, Path())
    if "mirror" in base:
        base["mirrors"] = base.pop("mirror")
    return Settings(**base)  # type: ignore[arg-type]


def _from_file(named: str) -> dict[str, tuple[object, str, Path]]:
    """Key -> value, where it stands (for messages) and the folder that relative paths start at."""
    if named:
        path = Path(named).expanduser()
    else:
        path = platformdirs.user_config_path("leanface", appauthor=False) / "config.toml"
        if not path.is_file():
            return {}
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the settings file {path}: {error.strerror or error}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"the settings file {path} is not valid TOML: {error}") from None
    for key in values:
        if key not in _KEYS:
            raise UsageError(
                f"the settings file {path} has the unknown key {key!r}; known: {', '.join(_KEYS)}"
            )
    return {key: (value, f"{key} in {path}", path.parent) for key, value in values.items()}


def _path(value: object, where: str, base: Path) -> Path:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} must be a path, not {value!r}")
    return (base / Path(value).expanduser()).absolute()


def _bool(value: object, where: str, _: Path) -> bool:
    if isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise UsageError(f"{where} must be true or false, not {value!r}")
    return value


def _mirrors(value: object, where: str, _: Path) -> tuple[str, ...]:
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{where} must be an address or a list of addresses, not {value!r}")
    return tuple(items)


def _seconds(value: object, where: str, _: Path) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except ValueError:
        raise UsageError(f"{where} must be a number of seconds, not {value!r}") from None


_KEYS = {"cache": _path, "weights": _path, "offline": _bool, "mirror": _mirrors, "timeout": _seconds}
