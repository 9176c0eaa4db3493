"""Train LiteNet on two cores: resumable, every figure logged.

    python -m training.train --faces TRAIN --val VAL --pairs PAIRS --run RUN

A run folder holds `last.pt` (network, its running mean, optimizer, counters; written whole or not at all) and
`log.jsonl`. Started again with the same folder, training goes on from `last.pt`. SIGTERM and SIGINT write one
more checkpoint before the process ends.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import signal
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import degrade
from training.data import SIZE, Bytes, FacePool, TeacherPairs, crop_and_flip, face_files, load_faces
from training.model import SCALE, LiteNet, grow_from_animevideo, initializers, load_exported
from training.realism import Realism

ASSETS = Path(__file__).parents[1] / "src/leanface/assets"

POOL_CHANCES = (0.2, 0.2, 0.1, 0.2, 0.3)
"""Chances of levels 0 to 4 among freshly damaged faces; the teacher's pairs add to levels 1 to 3."""

TEACHER_CHANCE = {1: 0.0, 2: 0.5, 3: 0.35}
"""How often a teacher pair's target is the teacher's output, by level; else it is the true face."""

HEAVY = 0.0015
"""Mean squared error of a badly damaged crop, at 28 dB."""

LEVEL = 1 / 255

FEATURES_XY = ((192.98, 239.95), (318.90, 240.19), (256.63, 375.0))
"""Eyes and mouth of the FFHQ template in a 512-pixel crop."""


@dataclass(frozen=True)
class Batch:
    """Crops [N,3,S,S] in [0,1]."""

    damaged: Tensor
    target: Tensor
    """What the restoration loss compares with: the true face or the teacher's output."""
    truth: Tensor
    """The true face."""
    weight: Tensor
    """How much each pixel counts, [N,1,S,S]."""


def feature_weight() -> Bytes:
    """[512,512,3] 8-bit map of how much a pixel counts: 64 means once; eyes and mouth count three times."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32)
    spots = [np.exp(-(((x - cx) / 52) ** 2) - ((y - cy) / 34) ** 2) for cx, cy in FEATURES_XY]
    weight = 64 * (1 + 2 * np.max(spots, axis=0))
    return np.repeat(weight.astype(np.uint8)[..., None], 3, -1)


class Sampler:
    """Draws batches: patches, or one whole face so that the context branch learns faces as they come."""

    def __init__(self, pool: FacePool, pairs: TeacherPairs | None, pair_share: float = 0.5) -> None:
        self._pool, self._pairs, self._pair_share = pool, pairs, pair_share
        self._weight = feature_weight()

    def __call__(self, rng: np.random.Generator, count: int, size: int) -> Batch:
        damaged, target, true, weight = [], [], [], []
        for _ in range(count):
            crop, truth, taught = self._draw(rng)
            pictures = [crop, truth, self._weight] if taught is None else [crop, truth, self._weight, taught]
            cut = crop_and_flip(rng, size, *pictures)
            damaged.append(_tensor(cut[0]))
            true.append(_tensor(cut[1]))
            target.append(true[-1] if taught is None else anchor(_tensor(cut[3])[None], true[-1][None])[0])
            weight.append(_tensor(cut[2])[:1] * (255 / 64))
        return Batch(*(torch.stack(part) for part in (damaged, target, true, weight)))

    def _draw(self, rng: np.random.Generator) -> tuple[Bytes, Bytes, Bytes | None]:
        if self._pairs is not None and len(self._pairs) and rng.random() < self._pair_share:
            crop, truth, taught, level = self._pairs.draw(rng)
            return crop, truth, taught if rng.random() < TEACHER_CHANCE[level] else None
        crop, truth, _ = self._pool.draw(rng)
        return crop, truth, None


def _tensor(picture: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))).float() / 255


def anchor(taught: Tensor, truth: Tensor, cell: int = 16) -> Tensor:
    """The teacher's detail on the true face's coarse colours, which it shifts a little: [N,3,S,S]."""
    drift = F.avg_pool2d(truth - taught, cell)
    return taught + F.interpolate(drift, size=taught.shape[-2:], mode="bilinear", align_corners=False)


def restoration_loss(output: Tensor, batch: Batch, scales: int = 4) -> Tensor:
    """Weighted L1 of pixels and of differences between neighbours, at 1, 1/2, 1/4 ... of the size."""
    total = output.new_zeros(())
    target, weight = batch.target, batch.weight
    for scale in range(scales):
        if scale:
            output, target, weight = (F.avg_pool2d(t, 2) for t in (output, target, weight))
        error = output - target
        total = total + (error.abs() * weight).mean()
        for axis in (-2, -1):
            length = error.shape[axis] - 1
            slope = error.narrow(axis, 1, length) - error.narrow(axis, 0, length)
            total = total + (slope.abs() * weight.narrow(axis, 0, length)).mean()
    return total / scales


def grid_loss(output: Tensor, truth: Tensor, cell: int = 32) -> Tensor:
    """What of the error repeats with the network's own grid of SCALE pixels, over cells of the picture.

    In a large cell all else cancels out. A restored face has no reason to repeat so; but the last layer draws
    such patterns where a critic, or a wish for strong detail, asks for texture, and they count as sharp.
    """
    error = output - truth
    count, channels, height, width = error.shape
    repeats = cell // SCALE
    folded = error.reshape(count, channels, height // cell, repeats, SCALE, width // cell, repeats, SCALE)
    phases = folded.mean((3, 6))  # [N,3,h,SCALE,w,SCALE]
    return (phases - phases.mean((3, 5), keepdim=True)).abs().mean()


def detail_loss(output: Tensor, truth: Tensor, damaged: Tensor, cell: int = 8) -> Tensor:
    """How far the strength of detail is outside what it can rightly be, by frequency and place.

    A network under an L1 loss draws detail as weak as it is unsure of it: of detail that agrees with the true
    face's by a correlation of c it draws the share c, and the picture is soft. Here it is asked for c ** 0.3
    at least, which costs little fidelity where c is high; and for no more than the true face has, as a critic
    asks for any amount. Each frequency is asked for its own, since asked for a sum the network gives it by a
    few frequencies: a mesh. Each place is asked by its own measure: the unevenness of skin is far weaker than
    hair, but skin without it is plastic.

    Of detail that cannot be known a share is asked for as well, the larger the more damaged the crop is:
    beside what is wrong in a badly damaged face a plausible unevenness costs little.

    Strengths are means over `cell` x `cell` windows of 8 pixels, 3 apart, at the full and at half the size;
    c is one of a ring of frequencies.
    """
    filters, rings = _frequencies(output.device)
    luma = torch.from_numpy(degrade.LUMA).to(output.device)
    damage = (damaged - truth).square().mean((1, 2, 3))
    invented = 0.9 * (damage / HEAVY).clamp(max=1)[:, None, None, None]
    pictures = [torch.einsum("nchw,c->nhw", t, luma)[:, None] for t in (output, truth)]
    total = output.new_zeros(())
    for weight in (0.25, 0.75):  # what restored faces lack most is coarse
        found, wanted = (F.conv2d(t, filters, stride=3) for t in pictures)
        there, true, shared = (
            F.avg_pool2d(t, cell) for t in (found * found, wanted * wanted, found * wanted)
        )
        ring_there, ring_true, ring_shared = (
            torch.einsum("nfhw,rf->nrhw", t.detach(), rings) for t in (there, true, shared)
        )
        known = (ring_shared / (ring_there * ring_true + 1e-12).sqrt()).clamp(0, 1)
        share = torch.maximum(torch.einsum("nrhw,rf->nfhw", known**0.3, rings), invented)
        strength, full = (there + 1e-6).sqrt(), (true + 1e-6).sqrt()
        off = F.relu(full * share - strength) + F.relu(strength - full)
        total = total + weight * (off / (full + LEVEL)).mean()
        pictures = [F.avg_pool2d(t, 2) for t in pictures]
    return total


@cache
def _frequencies(device: torch.device, size: int = 8) -> tuple[Tensor, Tensor]:
    """Filters [F,1,size,size] of a windowed cosine transform, and the ring of each, [R,F] of 0 and 1."""
    at, k = np.arange(size) + 0.5, np.arange(size)
    waves = np.cos(np.pi / size * np.outer(k, at)) * np.sin(np.pi / size * at)
    radius = np.hypot(k[:, None], k[None])
    planes = np.einsum("ky,lx->klyx", waves, waves)[radius >= 1.5]
    planes -= planes.mean((1, 2), keepdims=True)
    planes /= np.sqrt((planes**2).sum((1, 2), keepdims=True))
    ring = np.minimum(np.round(radius[radius >= 1.5]), size).astype(int)
    member = ring[None] == np.unique(ring)[:, None]
    return (
        torch.from_numpy(planes[:, None].astype(np.float32)).to(device),
        torch.from_numpy(member.astype(np.float32)).to(device),
    )


class Validation:
    """A few fixed faces at every level, damaged once with fixed seeds."""

    def __init__(self, folder: Path, count: int = 8) -> None:
        files = face_files(folder)
        faces = load_faces(files[:: max(1, len(files) // count)][:count])
        self._cases: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._inputs: dict[int, float] = {}
        for level in degrade.LEVELS:
            pairs = [
                degrade.degrade(np.random.default_rng((77, level, i)), degrade.to_float(face), level)
                for i, face in enumerate(faces)
            ]
            cases = [(_hwc_to_tensor(a), _hwc_to_tensor(b)) for a, b in pairs]
            self._cases[level] = cases
            self._inputs[level] = float(np.mean([min(60.0, psnr(a, b)) for a, b in cases]))

    @torch.no_grad()
    def __call__(self, net: nn.Module) -> dict[str, float]:
        """Mean PSNR by level, the input's beside it, and sharpness (Laplacian variance over the target's)."""
        figures: dict[str, float] = {}
        for level, cases in self._cases.items():
            quality, sharpness = [], []
            for damaged, target in cases:
                device = next(net.parameters()).device
                with torch.autocast(device.type, torch.bfloat16):
                    output = net(damaged[None].to(device).contiguous(memory_format=torch.channels_last))
                restored = output[0].float().clamp(0, 1).cpu()
                quality.append(psnr(restored, target))
                sharpness.append(laplacian_variance(restored) / laplacian_variance(target))
            figures[f"psnr{level}"] = round(float(np.mean(quality)), 3)
            figures[f"input{level}"] = round(self._inputs[level], 3)
            figures[f"sharp{level}"] = round(float(np.mean(sharpness)), 3)
        return figures


def _hwc_to_tensor(picture: degrade.Picture) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))


def psnr(a: Tensor, b: Tensor) -> float:
    """Decibels between two pictures in [0,1]."""
    return -10 * math.log10(max(float((a - b).square().mean()), 1e-10))


def laplacian_variance(picture: Tensor) -> float:
    """Variance of the 4-neighbour Laplacian of the luma in the face's half of an aligned crop [3,512,512]."""
    y = torch.einsum("chw,c->hw", picture, torch.from_numpy(degrade.LUMA))
    y = y[SIZE // 4 : -SIZE // 8, SIZE // 4 : -SIZE // 4] * 255
    edges = 4 * y[1:-1, 1:-1] - y[:-2, 1:-1] - y[2:, 1:-1] - y[1:-1, :-2] - y[1:-1, 2:]
    return float(edges.var())


class FreeCores:
    """How many cores processes of normal priority leave to this one, which runs under `nice` (Linux only).

    A thread on a busy core keeps all others waiting at every operator, so one thread is then faster than two.
    """

    STAT = Path("/proc/stat")

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._last = self._read()

    def _read(self) -> tuple[int, int]:
        if not self.STAT.exists():
            return 0, 0
        ticks = [int(word) for word in self.STAT.read_text().split("\n", 1)[0].split()[1:9]]
        user, _, system = ticks[:3]
        return user + system, sum(ticks)

    def __call__(self) -> int:
        """At least 1; measured since the last call."""
        busy, total = self._read()
        spent, passed = busy - self._last[0], total - self._last[1]
        if passed < 100:  # too short to tell
            return torch.get_num_threads()
        self._last = busy, total
        return max(1, round(self._cores * (1 - spent / passed) - 0.1))


class Trainer:
    """Network, running mean, optimizer and counters of one run folder."""

    def __init__(
        self,
        run: Path,
        start: Path,
        lr: float,
        realism: Realism | None = None,
        detail: float = 0.0,
        decay: float = 0.999,
        device: str = "cpu",
    ) -> None:
        self._run = run
        self._realism = realism
        self._detail = detail
        self.realistic = realism is not None
        """Whether the realism terms are in use."""
        self._lr, self._decay = lr, decay
        self.net = LiteNet()
        self.step = 0
        self.crops = 0
        self._usual_norm = 0.0
        checkpoint = run / "last.pt"
        weights = None if checkpoint.exists() else initializers(start)
        if weights is not None:
            (load_exported if "skip.weight" in weights else grow_from_animevideo)(self.net, weights)
        self.net = self.net.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.mean = copy.deepcopy(self.net).requires_grad_(False)
        self._optimizer = torch.optim.AdamW(self.net.parameters(), lr, betas=(0.9, 0.99), weight_decay=1e-5)
        if weights is None:
            state = torch.load(checkpoint, weights_only=True, map_location=device)
            self.net.load_state_dict(state["net"])
            self.mean.load_state_dict(state["mean"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.step, self.crops, self._usual_norm = state["step"], state["crops"], state["usual_norm"]
            if realism and "realism" in state:
                realism.load_state_dict(state["realism"])

    def train_step(self, batch: Batch, warm_up: int = 500) -> dict[str, float]:
        """One update. A gradient is clipped to 1.5 times its usual norm and dropped if it is not finite."""
        rate = self._lr * min(1.0, (self.step + 1) / warm_up)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(batch.damaged.device.type, torch.bfloat16):
            output = self.net(batch.damaged.contiguous(memory_format=torch.channels_last)).float()
        loss = restoration_loss(output, batch) + 8 * grid_loss(output, batch.truth)
        (slope,) = torch.autograd.grad(loss, output, retain_graph=True)
        figures = {"loss": float(loss.detach())}
        # A clean face has nothing to be made more real: only the restoration loss may move it.
        harmed = (batch.damaged != batch.truth).flatten(1).any(1)[:, None, None, None]
        usual_slope = float(slope.norm())
        if self._detail:
            term = detail_loss(output, batch.truth, batch.damaged)
            (push,) = torch.autograd.grad(term, output, retain_graph=True)
            slope = slope + self._detail * push * harmed
            figures["detail"] = float(term.detach())
        if self._realism and self.realistic:
            push, terms = self._realism.push(output, batch.truth, usual_slope)
            slope = slope + push * harmed
            figures |= terms | self._realism.teach_critic(output, batch.truth)
        self._optimizer.zero_grad(set_to_none=True)
        output.backward(slope)
        limit = 1.5 * self._usual_norm if self.step >= 50 else 1.0
        norm = float(torch.nn.utils.clip_grad_norm_(self.net.parameters(), limit))
        if math.isfinite(norm):
            self._optimizer.step()
            self._usual_norm += (min(norm, 3 * limit) - self._usual_norm) * (0.02 if self.step else 1.0)
            self._follow()
        self.step += 1
        self.crops += len(batch.damaged)
        return figures | {"norm": norm, "lr": rate}

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self._decay, (self.step + 1) / (self.step + 10))
        torch._foreach_lerp_(list(self.mean.parameters()), list(self.net.parameters()), 1 - decay)

    def save(self) -> None:
        """Write `last.pt` atomically."""
        state = {
            "net": self.net.state_dict(),
            "mean": self.mean.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "crops": self.crops,
            "usual_norm": self._usual_norm,
        }
        if self._realism:
            state["realism"] = self._realism.state_dict()
        partial = self._run / "last.pt.partial"
        torch.save(state, partial)
        partial.replace(self._run / "last.pt")

    def log(self, kind: str, **figures: Any) -> None:
        """Append one line to `log.jsonl`."""
        line = {"kind": kind, "time": round(time.time()), "step": self.step, "crops": self.crops, **figures}
        with (self._run / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LiteNet; continues where the run folder left off.")
    parser.add_argument("--faces", type=Path, required=True, help="folder of aligned 512x512 faces")
    parser.add_argument("--val", type=Path, required=True, help="folder of held-out faces")
    parser.add_argument("--pairs", type=Path, help="folder that training.teacher fills")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and log")
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        default=ASSETS / "realesr-animevideov3-x4.onnx",
        help="weights of a new run: lite.onnx or realesr-animevideov3-x4.onnx",
    )
    parser.add_argument("--steps", type=int, default=10**9, help="stop after this many steps")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--patch", type=int, default=192)
    parser.add_argument("--batch", type=int, default=8, help="patches a step")
    parser.add_argument("--whole", type=float, default=0.4, help="share of steps on one whole face")
    parser.add_argument("--pool", type=int, default=1500, help="damaged faces kept in memory, 1.5 MiB each")
    parser.add_argument(
        "--realism",
        type=float,
        default=0.0,
        help="second phase: weight of critic and face features beside the restoration loss; 0 is off",
    )
    parser.add_argument(
        "--detail",
        type=float,
        default=0.0,
        help="second phase: weight of the strength of detail beside the restoration loss; 0 is off",
    )
    parser.add_argument("--threads", type=int, default=2, help="at most; fewer while others use the cores")
    parser.add_argument("--limit", type=int, help="use only this many faces")
    parser.add_argument("--validate-every", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    realism = Realism(ASSETS / "retinaface-mobilenet025.onnx", args.realism) if args.realism else None
    trainer = Trainer(args.run, args.start, args.lr, realism, args.detail)
    validation = Validation(args.val)
    faces = load_faces(face_files(args.faces)[: args.limit])
    pool = FacePool(faces, args.pool, args.seed + trainer.step, POOL_CHANCES)
    pairs = TeacherPairs(args.pairs) if args.pairs else None
    sampler = Sampler(pool, pairs)
    rng = np.random.default_rng((args.seed, trainer.step))
    pool.start(args.pool // 4)
    trainer.log("start", settings={k: str(v) for k, v in vars(args).items()}, **validation(trainer.mean))

    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    free_cores = FreeCores(args.threads)
    recent: list[dict[str, float]] = []
    began = saved = time.monotonic()
    while trainer.step < args.steps and not stopping:
        whole = rng.random() < args.whole
        batch = sampler(rng, 1, SIZE) if whole else sampler(rng, args.batch, args.patch)
        torch.set_num_threads(free_cores())
        recent.append(trainer.train_step(batch))
        if trainer.step % 100 == 0:
            now = time.monotonic()
            means = {key: round(float(np.mean([r[key] for r in recent])), 6) for key in recent[0]}
            worst = round(max(r["norm"] for r in recent), 6)
            made = {"damaged": pool.made, "pairs": len(pairs) if pairs is not None else 0}
            trainer.log(
                "train", **means, worst_norm=worst, seconds=round((now - began) / len(recent), 4), **made
            )
            recent, began = [], now
            if pairs is not None:
                pairs.refresh()
        if trainer.step % args.validate_every == 0:
            trainer.log("validation", **validation(trainer.mean))
            began = time.monotonic()
        if time.monotonic() - saved > 180:
            trainer.save()
            saved = time.monotonic()
    trainer.save()
    pool.close()


if __name__ == "__main__":
    main()
