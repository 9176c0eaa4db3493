"""Faces in memory and a pool of freshly damaged ones, from which training crops are cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training import degrade

SIZE = 512
"""Side of an aligned face."""

Bytes = NDArray[np.uint8]


def face_files(folder: Path) -> list[Path]:
    """The pictures of a folder in name order."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in {".webp", ".png", ".jpg", ".jpeg"})
    if not files:
        raise FileNotFoundError(f"no .webp, .png or .jpg file in {folder}")
    return files


def read_face(path: Path) -> Bytes:
    """One aligned face: uint8 [512,512,3] RGB."""
    face = np.asarray(Image.open(path).convert("RGB"))
    if face.shape != (SIZE, SIZE, 3):
        raise ValueError(f"{path} is {face.shape[1]}x{face.shape[0]}; faces must be {SIZE}x{SIZE}")
    return face


def load_faces(files: Sequence[Path]) -> Bytes:
    """Decode aligned faces into memory: uint8 [N,512,512,3] RGB, 0.75 MiB a face."""
    faces = np.empty((len(files), SIZE, SIZE, 3), np.uint8)

    def decode(index: int) -> None:
        faces[index] = read_face(files[index])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(decode, range(len(files))))
    return faces


class FacePool:
    """A ring of whole damaged faces that one thread renews while training cuts crops from it.

    Damage is made for the whole face (sizes of blur, blocks and texture then stand in the right relation to
    it) and each result serves several crops. The thread works only as fast as crops are drawn, `reuse` crops
    a face, so that it does not take the processor from the training.
    """

    def __init__(
        self, faces: Bytes, capacity: int, seed: int, chances: tuple[float, ...], reuse: int = 6
    ) -> None:
        self._faces = faces
        self._chances = chances
        self._seed = seed
        self._pairs = np.empty((capacity, 2, SIZE, SIZE, 3), np.uint8)
        self._levels = np.zeros(capacity, np.int64)
        self._filled = 0
        self._reuse = reuse
        self._drawn = 0
        self._wanted = threading.Semaphore(0)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self.made = 0
        """Faces damaged so far."""

    def start(self, at_least: int = 64) -> None:
        """Begin renewing; returns when the first `at_least` faces are there."""
        while self.made < min(at_least, len(self._pairs)):
            self._make()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wanted.release()
        self._thread.join()

    def draw(self, rng: np.random.Generator) -> tuple[Bytes, Bytes, int]:
        """(damaged, target, level) of a random face in the pool; copies of [512,512,3]."""
        self._drawn += 1
        if self._drawn % self._reuse == 0:
            self._wanted.release()
        with self._lock:
            slot = int(rng.integers(self._filled))
            damaged, target = self._pairs[slot].copy()
            return damaged, target, int(self._levels[slot])

    def _make(self) -> None:
        rng = np.random.default_rng((self._seed, self.made))
        face = degrade.to_float(self._faces[rng.integers(len(self._faces))])
        level = int(rng.choice(len(self._chances), p=self._chances))
        damaged, target = degrade.degrade(rng, face, level)
        slot = self.made % len(self._pairs)
        with self._lock:
            self._pairs[slot] = degrade.to_uint8(damaged), degrade.to_uint8(target)
            self._levels[slot] = level
            self._filled = max(self._filled, slot + 1)
        self.made += 1

    def _renew(self) -> None:
        while self._wanted.acquire() and not self._stop.is_set():
            self._make()


class TeacherPairs:
    """Chunks written by `training.teacher`, mapped from disk; new ones are picked up by `refresh`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks: dict[str, Bytes] = {}
        self._index: list[tuple[str, int]] = []
        self.refresh()

    def __len__(self) -> int:
        return len(self._index)

    def refresh(self) -> None:
        for path in sorted(self._folder.glob("*.npy")):
            if path.name not in self._chunks:
                chunk = np.load(path, mmap_mode="r")
                self._chunks[path.name] = chunk
                self._index += [(path.name, row) for row in range(len(chunk))]

    def draw(self, rng: np.random.Generator) -> tuple[Bytes, Bytes, Bytes, int]:
        """(damaged, target, teacher's output, level) of a random pair; views of [512,512,3]."""
        name, row = self._index[int(rng.integers(len(self._index)))]
        damaged, target, taught = self._chunks[name][row]
        return damaged, target, taught, level_of(name)


def chunk_name(serial: int, level: int) -> str:
    """A chunk holds pairs of one level, uint8 [n,3,512,512,3]: damaged, target, teacher's output."""
    return f"pairs-{serial:05d}-level{level}.npy"


def level_of(name: str) -> int:
    """The level a chunk's name tells."""
    return int(name.removesuffix(".npy").rpartition("level")[2])


def crop_and_flip(rng: np.random.Generator, size: int, *pictures: Bytes) -> list[Bytes]:
    """The same random square of `size` pixels from each picture, mirrored in half of all draws."""
    top, left = (int(rng.integers(SIZE - size + 1)) for _ in range(2))
    cut = [p[top : top + size, left : left + size] for p in pictures]
    return [p[:, ::-1] for p in cut] if rng.random() < 0.5 else cut
