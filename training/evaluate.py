"""Look at a model and measure it: contact sheets of real crops, figures on held-out faces.

    python -m training.evaluate --crops CROPS --val VAL --out FOLDER [--lite lite.onnx]

Sheets show before | lite | x4plus. The table gives, by level of damage, the mean PSNR of the input, of lite
and of x4plus against the target, and the sharpness inside the face (Laplacian variance as a share of the
target's).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from training import degrade
from training.data import SIZE, face_files, read_face
from training.export import OUTPUT
from training.teacher import ASSET, load_teacher

Restorer = Callable[[degrade.Picture], degrade.Picture]


def load_lite(model: Path, threads: int = 2, precision: str = "bf16") -> Restorer:
    """Compile an exported LiteNet with OpenVINO for crops of 512 pixels."""
    import openvino as ov

    core = ov.Core()
    network = core.read_model(model)
    network.reshape([1, 3, SIZE, SIZE])
    config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    request = core.compile_model(network, "CPU", config).create_infer_request()

    def restore(crop: degrade.Picture) -> degrade.Picture:
        request.infer([np.ascontiguousarray(crop.transpose(2, 0, 1)[None])])
        restored: degrade.Picture = np.clip(request.get_output_tensor().data[0].transpose(1, 2, 0), 0, 1)
        return restored

    return restore


def psnr(a: degrade.Picture, b: degrade.Picture) -> float:
    """Decibels between two pictures in [0,1], at most 60."""
    return min(60.0, float(-10 * np.log10(max(np.mean((a - b) ** 2), 1e-10))))


def sharpness(picture: degrade.Picture) -> float:
    """Variance of the Laplacian of the luma (8-bit levels) inside the face of an aligned crop."""
    y = degrade.luma(picture)[SIZE // 4 : -SIZE // 8, SIZE // 4 : -SIZE // 4] * 255
    return float(np.var(4 * y[1:-1, 1:-1] - y[:-2, 1:-1] - y[2:, 1:-1] - y[1:-1, :-2] - y[1:-1, 2:]))


def table(faces: Sequence[degrade.Picture], restorers: dict[str, Restorer], seed: int = 77) -> str:
    """Markdown rows: one a level, PSNR and sharpness of the input and of every restorer."""
    names = ["input", *restorers]
    rows = ["| level | " + " | ".join(f"{n} dB | {n} sharp" for n in names) + " |"]
    rows.append("|---" * (1 + 2 * len(names)) + "|")
    for level in degrade.LEVELS:
        figures = np.zeros((len(faces), len(names), 2))
        for i, face in enumerate(faces):
            damaged, target = degrade.degrade(np.random.default_rng((seed, level, i)), face, level)
            for j, picture in enumerate([damaged, *(restore(damaged) for restore in restorers.values())]):
                figures[i, j] = psnr(picture, target), sharpness(picture) / sharpness(target)
        means = figures.mean(0)
        rows.append(f"| {level} | " + " | ".join(f"{db:.2f} | {sharp:.2f}" for db, sharp in means) + " |")
    return "\n".join(rows)


def sheets(
    crops: Sequence[tuple[str, degrade.Picture]],
    restorers: dict[str, Restorer],
    out: Path,
    rows: int = 4,
    size: int = 448,
) -> list[Path]:
    """Contact sheets with one crop a row: before, then every restorer."""
    written = []
    for start in range(0, len(crops), rows):
        part = crops[start : start + rows]
        sheet = Image.new("RGB", (size * (1 + len(restorers)), size * len(part)))
        draw = ImageDraw.Draw(sheet)
        for row, (name, crop) in enumerate(part):
            pictures = {name: crop, **{key: restore(crop) for key, restore in restorers.items()}}
            for column, (label, picture) in enumerate(pictures.items()):
                tile = Image.fromarray(degrade.to_uint8(picture)).resize(
                    (size, size), Image.Resampling.LANCZOS
                )
                sheet.paste(tile, (column * size, row * size))
                draw.text((column * size + 4, row * size + 2), label, fill=(255, 255, 0))
        written.append(out / f"sheet-{start // rows + 1}.png")
        sheet.save(written[-1])
    return written


def seconds_per_face(restore: Restorer, repeats: int = 10) -> float:
    """The fastest of some runs on one crop."""
    crop = np.full((SIZE, SIZE, 3), 0.5, np.float32)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        restore(crop)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Contact sheets and figures of an exported model.")
    parser.add_argument("--lite", type=Path, default=OUTPUT)
    parser.add_argument("--crops", type=Path, help="folder of aligned real crops to look at")
    parser.add_argument("--val", type=Path, help="folder of held-out faces to measure on")
    parser.add_argument("--count", type=int, default=16, help="faces to measure on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-x4plus", action="store_true", help="leave out the slow one")
    parser.add_argument("--precision", choices=("bf16", "f32"), default="bf16")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    restorers: dict[str, Restorer] = {"lite": load_lite(args.lite, precision=args.precision)}
    if not args.no_x4plus:
        restorers["x4plus"] = load_teacher(ASSET, precision=args.precision)
    print(f"lite: {seconds_per_face(restorers['lite']):.3f} s a face")
    if args.crops:
        crops = [(path.stem, degrade.to_float(read_face(path))) for path in face_files(args.crops)]
        for path in sheets(crops, restorers, args.out):
            print(path)
    if args.val:
        files = face_files(args.val)
        files = files[:: max(1, len(files) // args.count)][: args.count]
        text = table([degrade.to_float(read_face(path)) for path in files], restorers)
        (args.out / "table.md").write_text(text + "\n")
        print(text)


if __name__ == "__main__":
    main()
