"""Trains several designs for the same time on the same crops, and tables them.

    python -m training.designs --faces TRAIN --val VAL --pairs PAIRS --out FOLDER [--minutes 60] [DESIGN ...]

Each design starts from published weights and has the first phase's loss. Only the time of its own steps
counts, so a run may be paused; a design whose checkpoint is in FOLDER is not trained again. FOLDER gets the
checkpoints, the figures (`designs.md`) and a contact sheet (`designs.png`): held-out faces, damaged, by each
design, true.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from training import degrade
from training.data import SIZE, FacePool, TeacherPairs, face_files, load_faces
from training.model import (
    ANIMEVIDEO,
    SCALE,
    LiteNet,
    ResidualBlock,
    count_work,
    grow_from_animevideo,
    initializers,
)
from training.train import POOL_CHANCES, Sampler, Validation, restoration_loss

X4PLUS = ANIMEVIDEO.with_name("realesrgan-x4plus.onnx")
SHEET_LEVELS = (1, 2, 3, 4)


class Plain(LiteNet):
    """realesr-animevideov3-x4 that takes the crop packed: no gate, no view of the whole face."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        del self.gate, self.context
        self.more = nn.Sequential(*(ResidualBlock(self.body[0].out_channels) for _ in range(more)))

    def forward(self, x: Tensor) -> Tensor:
        packed = F.pixel_unshuffle(x, SCALE)
        features = packed
        for layer in self.body[:-1]:
            features = layer(features)
        return F.pixel_shuffle(self.skip(packed) + self.body[-1](self.more(features)), SCALE)


class Dense(nn.Module):
    """Five convolutions, each of which sees what all before it made (RRDBNet's inner block)."""

    def __init__(self, width: int = 64, growth: int = 32) -> None:
        super().__init__()
        for i in range(5):
            made = growth if i < 4 else width
            setattr(self, f"conv{i + 1}", nn.Conv2d(width + i * growth, made, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        seen = x
        for i in range(1, 5):
            seen = torch.cat([seen, F.leaky_relu(getattr(self, f"conv{i}")(seen), 0.2)], 1)
        change: Tensor = self.conv5(seen)
        return x + 0.2 * change


class Shortened(nn.Module):
    """The first blocks of realesrgan-x4plus with the rest of its network, for the crop averaged over 4x4."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.conv_first = nn.Conv2d(3, 64, 3, padding=1)
        self.body = nn.ModuleList(
            nn.ModuleDict({f"rdb{i}": Dense() for i in (1, 2, 3)}) for _ in range(blocks)
        )
        for name in ("conv_body", "conv_up1", "conv_up2", "conv_hr"):
            setattr(self, name, nn.Conv2d(64, 64, 3, padding=1))
        self.conv_last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv_first(F.avg_pool2d(x, SCALE))
        features = first
        for block in self.body:
            inner = features
            for name in ("rdb1", "rdb2", "rdb3"):
                inner = block[name](inner)
            features = features + 0.2 * inner
        features = first + self.conv_body(features)
        for name in ("conv_up1", "conv_up2"):
            larger = F.interpolate(features, scale_factor=2, mode="nearest")
            features = F.leaky_relu(getattr(self, name)(larger), 0.2)
        restored: Tensor = self.conv_last(F.leaky_relu(self.conv_hr(features), 0.2))
        return restored


def _from_animevideo(net: LiteNet) -> LiteNet:
    grow_from_animevideo(net, initializers(ANIMEVIDEO))
    return net


def _shortened() -> Shortened:
    net, weights = Shortened(), initializers(X4PLUS)
    net.load_state_dict({key: torch.from_numpy(weights[key]) for key in net.state_dict()})
    return net


DESIGNS: dict[str, Callable[[], nn.Module]] = {
    "a: realesr-animevideov3-x4": lambda: _from_animevideo(Plain()),
    "b: the same and 3 residual blocks": lambda: _from_animevideo(Plain(more=3)),
    "c: 4 blocks of realesrgan-x4plus": _shortened,
    "d: lite": lambda: _from_animevideo(LiteNet()),
}


def train(net: nn.Module, sampler: Sampler, seconds: float, lr: float = 2e-4) -> tuple[int, float]:
    """First phase for a time of steps alone: steps done, seconds a step."""
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(net.parameters(), lr, betas=(0.9, 0.99), weight_decay=1e-5)
    usual = 0.0
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        batch = sampler(rng, 1, SIZE) if rng.random() < 0.4 else sampler(rng, 8, 192)
        with torch.autocast("cpu", torch.bfloat16):
            output = net(batch.damaged.contiguous(memory_format=torch.channels_last)).float()
        left = 1 - sum(times) / seconds  # the last fifth settles
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (len(times) + 1) / 300, 5 * left)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(restoration_loss(output, batch))
        limit = 1.5 * usual if len(times) >= 50 else 1.0
        norm = float(torch.nn.utils.clip_grad_norm_(net.parameters(), limit))
        usual += (min(norm, 3 * limit) - usual) * (0.02 if times else 1.0)
        optimizer.step()
        taken = time.perf_counter() - start
        # A step during which the process was paused counts as a usual one.
        times.append(min(taken, 3 * statistics.median(times[-50:])) if len(times) > 9 else taken)
    return len(times), sum(times) / len(times)


def seconds_a_face(net: nn.Module) -> float:
    """The median of 20 crops by OpenVINO in bf16 on two threads."""
    import openvino as ov

    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crop = torch.zeros(1, 3, SIZE, SIZE)
        torch.onnx.export(net, (crop,), f"{name}/net.onnx", input_names=["input"], dynamo=False)
        config = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 2}
        request = ov.Core().compile_model(f"{name}/net.onnx", "CPU", config).create_infer_request()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        request.infer([crop.numpy()])
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@torch.no_grad()
def sheet(nets: list[nn.Module], faces: list[np.ndarray]) -> Image.Image:
    """A face at each level: damaged, by each network, true."""
    rows = []
    for level, face in zip(SHEET_LEVELS, faces, strict=False):
        damaged, target = degrade.degrade(np.random.default_rng((9, level)), degrade.to_float(face), level)
        x = torch.from_numpy(np.ascontiguousarray(damaged.transpose(2, 0, 1)))[None]
        made = [net(x)[0].clamp(0, 1).numpy().transpose(1, 2, 0) for net in nets]
        rows.append(np.concatenate([damaged, *made, target], axis=1))
    return Image.fromarray(degrade.to_uint8(np.concatenate(rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Designs of a restorer, trained for the same time.")
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("designs", nargs="*", default=list(DESIGNS), help="by their first letters")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    chosen = {name: make for name, make in DESIGNS.items() if name.startswith(tuple(args.designs))}
    validation = Validation(args.val)
    faces = load_faces(face_files(args.faces))
    levels = [*degrade.LEVELS]
    columns = ["design", "M parameters", "GFLOP", "s a face", "steps", *(f"dB {n} (sharp)" for n in levels)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    trained = []
    for name, make in chosen.items():
        checkpoint = args.out / f"{name[0]}.pt"
        net = make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
        else:
            pool = FacePool(faces, 1500, 0, POOL_CHANCES)
            pool.start(400)
            steps, pace = train(
                net, Sampler(pool, TeacherPairs(args.pairs) if args.pairs else None), args.minutes * 60
            )
            pool.close()
            state = {"net": net.state_dict(), "steps": steps, "pace": pace}
            torch.save(state, checkpoint)
        net.load_state_dict(state["net"])
        net.eval()
        figures = validation(net)
        parameters, work = count_work(net)
        cells = [f"{figures[f'psnr{n}']:.2f} ({figures[f'sharp{n}']:.2f})" for n in levels]
        lines.append(
            f"| {name} | {parameters / 1e6:.2f} | {work:.1f} | {seconds_a_face(net):.3f} | "
            f"{state['steps']} | {' | '.join(cells)} |"
        )
        trained.append(net)
        (args.out / "designs.md").write_text("\n".join(lines) + "\n")
        print(lines[-1], flush=True)
    sheet(trained, load_faces(face_files(args.val)[5::7])).save(args.out / "designs.png")


if __name__ == "__main__":
    main()
