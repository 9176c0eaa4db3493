"""Train LiteNet on a large graphics card for some minutes: whole faces, fresh damage, the teacher beside it.

    python -m training.gpu --faces TRAIN --val VAL --run RUN --minutes 13

To try it without a card: --device cpu --batch 2 --size 128 --workers 1 --minutes 1.

Nothing is prepared beforehand: processes damage faces, the card runs the teacher on them and trains. The run
folder is that of `training.train`: either goes on from the other's checkpoint, `training.export` reads both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from training import degrade
from training.data import SIZE, face_files, read_face
from training.model import initializers
from training.realism import Realism
from training.teacher import ASSET, WORKING_SIZE
from training.train import ASSETS, Batch, Trainer, Validation, anchor, feature_weight

LEVEL_CHANCES = (0.12, 0.2, 0.28, 0.2, 0.2)
TEACHER_CHANCES = (0.0, 0.3, 0.6, 0.3, 0.0)
"""How often the teacher's output is the target, by level."""


class Rrdb(nn.Module):
    """realesrgan-x4plus from its ONNX initializers: [N,3,h,w] RGB in [0,1] -> [N,3,4h,4w]."""

    def __init__(self, path: Path = ASSET) -> None:
        super().__init__()
        self._weights = {k: torch.from_numpy(v) for k, v in initializers(path).items() if "." in k}
        self._blocks = 1 + max(int(k.split(".")[1]) for k in self._weights if k.startswith("body."))

    def move(self, device: str) -> Rrdb:
        """To a device; in bf16, channels last."""
        for key, value in self._weights.items():
            value = value.to(device, torch.bfloat16)
            self._weights[key] = (
                value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
            )
        return self

    def _conv(self, x: Tensor, key: str) -> Tensor:
        return F.conv2d(x, self._weights[f"{key}.weight"], self._weights[f"{key}.bias"], padding=1)

    def _dense(self, x: Tensor, key: str) -> Tensor:
        parts = [x]
        for i in range(1, 5):
            parts.append(F.leaky_relu(self._conv(torch.cat(parts, 1), f"{key}.conv{i}"), 0.2))
        return x + 0.2 * self._conv(torch.cat(parts, 1), f"{key}.conv5")

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        first = self._conv(x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last), "conv_first")
        y = first
        for block in range(self._blocks):
            z = y
            for i in range(1, 4):
                z = self._dense(z, f"body.{block}.rdb{i}")
            y = y + 0.2 * z
        y = first + self._conv(y, "conv_body")
        for key in ("conv_up1", "conv_up2"):
            y = F.leaky_relu(self._conv(F.interpolate(y, scale_factor=2, mode="nearest"), key), 0.2)
        y = self._conv(F.leaky_relu(self._conv(y, "conv_hr"), 0.2), "conv_last")
        return y.float().clamp(0, 1)


class DamagedFaces(IterableDataset[tuple[np.ndarray, np.ndarray, int]]):
    """Endless (damaged, target, level), uint8 [512,512,3]; every worker draws from its own seeded stream."""

    def __init__(self, files: list[Path], seed: int) -> None:
        self._files = files
        self._seed = seed

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        info = get_worker_info()
        rng = np.random.default_rng((self._seed, info.id if info else 0))
        while True:
            face = degrade.to_float(read_face(self._files[int(rng.integers(len(self._files)))]))
            level = int(rng.choice(len(LEVEL_CHANCES), p=LEVEL_CHANCES))
            damaged, target = degrade.degrade(rng, face, level)
            yield degrade.to_uint8(damaged), degrade.to_uint8(target), level


def make_batch(
    rng: np.random.Generator, teacher: Rrdb, faces: tuple[Tensor, Tensor, Tensor], weight: Tensor, size: int
) -> Batch:
    """Crops of `size` at one place of every face, half of all batches mirrored; targets by level."""
    device = weight.device
    damaged, truth = (f.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255 for f in faces[:2])
    chances = torch.tensor(TEACHER_CHANCES)[faces[2]].numpy()
    taught = np.flatnonzero(rng.random(len(chances)) < chances)
    target = truth.clone()
    if len(taught):
        rows = torch.from_numpy(taught).to(device)
        small = F.interpolate(damaged[rows], (WORKING_SIZE, WORKING_SIZE), mode="bicubic", antialias=True)
        target[rows] = anchor(teacher(small.clamp(0, 1)), truth[rows])
    top, left = (int(rng.integers(SIZE - size + 1)) for _ in range(2))
    weights = weight.expand(len(damaged), -1, -1, -1)
    cut = [t[..., top : top + size, left : left + size] for t in (damaged, target, truth, weights)]
    if rng.random() < 0.5:
        cut = [t.flip(-1) for t in cut]
    return Batch(*cut)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LiteNet on a large graphics card for some minutes.")
    parser.add_argument("--faces", type=Path, required=True, help="folder of aligned 512x512 faces")
    parser.add_argument("--val", type=Path, required=True, help="folder of held-out faces")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and log")
    parser.add_argument("--from", dest="start", type=Path, default=ASSETS / "realesr-animevideov3-x4.onnx")
    parser.add_argument("--minutes", type=float, default=13.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=384, help="crop; every fourth batch is of whole faces")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument(
        "--realism", type=float, default=0.3, help="weight of the second half's realism terms"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    args.run.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    limit = 60 * args.minutes
    realism = Realism(ASSETS / "retinaface-mobilenet025.onnx", args.realism, device=args.device)
    trainer = Trainer(args.run, args.start, args.lr, realism, device=args.device)
    validation = Validation(args.val)
    teacher = Rrdb().move(args.device)
    weight = torch.from_numpy(feature_weight()[..., :1]).permute(2, 0, 1)[None].float().to(args.device) / 64
    seed = args.seed + trainer.step
    rng = np.random.default_rng(seed)
    loader = DataLoader(
        DamagedFaces(face_files(args.faces), seed),
        batch_size=args.batch,
        num_workers=args.workers,
        pin_memory=args.device != "cpu",
    )
    trainer.log("start", settings={k: str(v) for k, v in vars(args).items()}, **validation(trainer.mean))
    saved = noted = time.monotonic()
    for count, faces in enumerate(loader):
        now = time.monotonic()
        if now - began > limit:
            break
        trainer.realistic = now - began > limit / 2
        batch = make_batch(rng, teacher, faces, weight, SIZE if count % 4 == 0 else args.size)
        figures = trainer.train_step(batch)
        if now - noted > 10:
            trainer.log("train", **figures)
            noted = now
        if now - saved > 120:
            trainer.save()
            trainer.log("validation", **validation(trainer.mean))
            saved = time.monotonic()
    trainer.save()
    trainer.log("validation", **validation(trainer.mean))


if __name__ == "__main__":
    main()
