"""Weights and pictures drawn by the recipe of the golden figures, so that exactness needs no download.

``golden/gpen_golden.npz`` and ``golden/sr_golden.npz`` hold what the published networks return in float32 for
these weights and pictures; ``golden/*_state_dict.json`` list the keys and shapes. Every draw is NumPy's PCG64
standard normal in float32. A weight has a stream of its own, seeded by the CRC-32 of its key, so that neither
order nor company changes it.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "golden"
SEED = 20261201

Array = NDArray[np.float32]
Weights = dict[str, Array]


def shapes(file: str, variant: str) -> dict[str, Any]:
    """What ``golden/FILE_state_dict.json`` says of a variant; ``keys`` are in the order of the state dict."""
    listed: dict[str, dict[str, Any]] = json.loads((GOLDEN / f"{file}_state_dict.json").read_text("utf-8"))
    return listed[variant]


def golden(file: str, variant: str) -> dict[str, NDArray[Any]]:
    """The arrays of ``golden/FILE_golden.npz`` that belong to a variant."""
    with np.load(GOLDEN / f"{file}_golden.npz") as arrays:
        return {k.removeprefix(f"{variant}/"): arrays[k] for k in arrays if k.startswith(f"{variant}/")}


def gpen_weights(variant: str) -> Weights:
    """The drawn state dict of ``gpen-256``, ``gpen-512``, ``gpen-1024`` or ``gpen-2048``."""
    weights: Weights = {}
    for key, shape, kind in shapes("gpen", variant)["keys"]:
        if kind == "kernel":
            weights[key] = _blur_kernel(key)
        else:
            n = _draw(key, shape)
            factor, offset = _gpen_scale(key)
            n = np.tanh(n) if key.endswith("noise.weight") else n
            weights[key] = np.float32(factor) * n + np.float32(offset)
    return weights


def gpen_picture(size: int) -> Array:
    """A picture [1, 3, size, size] in [-1, 1]: waves and a little noise."""
    y, x = np.meshgrid(*[np.arange(size, dtype=np.float32) / np.float32(size)] * 2, indexing="ij")
    waves = np.stack([
        np.sin(2 * np.pi * (3 * x + 1.5 * y)),
        np.cos(2 * np.pi * (2 * y - 0.7 * x**2)),
        np.sin(2 * np.pi * (4 * x * y + 0.25)),
    ])  # fmt: skip
    picture: Array = np.clip(0.8 * waves + 0.05 * _noise(size, size, size), -1, 1).astype(np.float32)
    return picture[None]


def sr_weights(variant: str) -> Weights:
    """The drawn state dict of ``realesrgan-x4plus``, ``realesrgan-x2plus`` or ``realesr-general-x4v3``."""
    weights: Weights = {}
    for key, shape in shapes("sr", variant)["keys"]:
        factor, offset = _sr_scale(key, shape)
        weights[key] = np.float32(factor) * _draw(key, shape) + np.float32(offset)
    return weights


def sr_picture(height: int, width: int) -> Array:
    """A picture [1, 3, height, width] in [0, 1]."""
    y, x = np.meshgrid(np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32), indexing="ij")
    waves = np.stack([np.sin(x / 5 + y / 9), np.cos(y / 4), np.sin(x * y / 90)])
    noise = _noise(height, width, height, width)
    picture: Array = np.clip(0.4 * waves + 0.5 + 0.03 * noise, 0, 1).astype(np.float32)
    return picture[None]


def _draw(key: str, shape: list[int]) -> Array:
    return np.random.default_rng([SEED, zlib.crc32(key.encode())]).standard_normal(shape, dtype=np.float32)


def _noise(height: int, width: int, *seed: int) -> Array:
    rng = np.random.default_rng([SEED, *seed])
    return rng.standard_normal((3, height, width), dtype=np.float32)


def _gpen_scale(key: str) -> tuple[float, float]:
    """Factor of a draw and what is added."""
    if key.endswith("noise.weight"):
        return 0.2, 0.8
    if key.endswith("modulation.bias"):
        return 0.1, 1
    if key.endswith("bias"):
        return 0.1, 0
    if key.startswith("generator.style."):
        return 100, 0
    return (0.35, 0) if "to_rgb" in key and key.endswith("conv.weight") else (1, 0)


def _sr_scale(key: str, shape: list[int]) -> tuple[float, float]:
    if key.endswith("bias"):
        return 0.05, 0
    if len(shape) == 1:
        return 0.05, 0.2
    return 0.7 / math.sqrt(math.prod(shape[1:])), 0


def _blur_kernel(key: str) -> Array:
    taps = np.array([1, 3, 3, 1], np.float32) / 8
    gain = 4 if ".blur." in key or ".upsample." in key else 1
    return (gain * np.outer(taps, taps)).astype(np.float32)
