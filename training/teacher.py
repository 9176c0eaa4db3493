"""Teacher pairs: degraded faces and what realesrgan-x4plus makes of them, stored for training.

    python -m training.teacher --faces FOLDER --out PAIRS --count 2000

A face is damaged at 512, shrunk to 128 (antialiased) and multiplied by four: the teacher's output is a
function of its input, so that plain L1 to it keeps crispness where L1 to the true face blurs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from training import degrade
from training.data import SIZE, chunk_name, face_files, read_face

ASSET = Path(__file__).parents[1] / "src/leanface/assets/realesrgan-x4plus.onnx"
WORKING_SIZE = 128
LEVEL_CYCLE = (2, 2, 1, 2, 3)
"""Levels of successive chunks: the teacher is good at medium damage, weak at light, wrong at heavy."""
CHUNK = 8


def load_teacher(
    model: Path = ASSET, threads: int = 2, precision: str = "bf16"
) -> Callable[[degrade.Picture], degrade.Picture]:
    """Compile the teacher with OpenVINO; the result maps a crop [512,512,3] in [0,1] to its restoration."""
    import openvino as ov

    core = ov.Core()
    network = core.read_model(model)
    network.reshape([1, 3, WORKING_SIZE, WORKING_SIZE])
    config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    request = core.compile_model(network, "CPU", config).create_infer_request()

    def restore(crop: degrade.Picture) -> degrade.Picture:
        small = degrade.resize(crop, WORKING_SIZE, WORKING_SIZE, Image.Resampling.BICUBIC)
        request.infer([np.ascontiguousarray(np.clip(small, 0, 1).transpose(2, 0, 1)[None])])
        restored: degrade.Picture = np.clip(request.get_output_tensor().data[0].transpose(1, 2, 0), 0, 1)
        return restored

    return restore


def main() -> None:
    parser = argparse.ArgumentParser(description="Make teacher pairs with realesrgan-x4plus.")
    parser.add_argument("--faces", type=Path, required=True, help="folder of aligned 512x512 faces")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the chunks; existing ones are kept"
    )
    parser.add_argument("--count", type=int, default=2000, help="pairs to have in the end")
    parser.add_argument("--model", type=Path, default=ASSET)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    files = face_files(args.faces)
    order = np.random.default_rng(args.seed).permutation(len(files))
    teacher = load_teacher(args.model, args.threads)
    for serial in range(-(-args.count // CHUNK)):
        level = LEVEL_CYCLE[serial % len(LEVEL_CYCLE)]
        path = args.out / chunk_name(serial, level)
        if path.exists():
            continue
        chunk = np.empty((CHUNK, 3, SIZE, SIZE, 3), np.uint8)
        for row in range(CHUNK):
            number = serial * CHUNK + row
            face = degrade.to_float(read_face(files[order[number % len(order)]]))
            damaged, target = degrade.degrade(np.random.default_rng((args.seed, number)), face, level)
            chunk[row] = [degrade.to_uint8(p) for p in (damaged, target, teacher(damaged))]
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, chunk)
        partial.replace(path)


if __name__ == "__main__":
    main()
