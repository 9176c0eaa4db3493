"""Measures what each restorer costs: peak memory of a whole process and seconds a crop.

    python -m benchmarks.measure_cost [MODEL ...]

Every cell is a process of its own that restores a small picture twice, so that the second time is the
network's alone. The picture is a sharp chequerboard, for which models that choose how large they look at a
crop choose the largest. Published networks run with weights drawn at random (the recipe of the tests), which
cost the same. The figures go into the family files as ``Option``s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from leanface.engine.backends.openvino import precisions
from leanface.registry import models
from tests.drawn import weights_file

ROOT = Path(__file__).parents[1]


def measure(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Peak memory in MB (10^6 bytes) of ``leanface restore`` and seconds of its second picture's network."""
    report = folder / "report.jsonl"
    command = [
        sys.executable,
        "-m",
        "leanface",
        "restore",
        *arguments,
        "--faces",
        "none",
        "-q",
        "--overwrite",
    ]
    subprocess.run([*command, "-o", str(folder / "out"), "--report", str(report)], check=True)
    second = json.loads(report.read_text("utf-8").splitlines()[1])
    return second["peak_bytes"] / 1e6, second["seconds"]["restore"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*")
    chosen = parser.parse_args().models
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = [folder / "a.png", folder / "b.png"]
        for picture in pictures:
            Image.fromarray((np.indices((512, 512)).sum(0) // 32 % 2 * 200).astype(np.uint8)).save(picture)
        os.environ["LEANFACE_CACHE"] = str(folder / "cache")
        for model in models():
            variant = model.variant
            if chosen and variant.id not in chosen:
                continue
            arguments = [*map(str, pictures), "--model", variant.id]
            if not variant.asset:
                weights = weights_file(variant.id, folder, full=True)
                if variant.build is None or weights is None:
                    print(f"{variant.id:20}its weights cannot be drawn as large as they are")
                    continue
                arguments += ["--weights", str(weights), "--allow-unverified"]
            for size in variant.sizes:
                for precision in precisions("cpu"):
                    if precision in variant.precisions:
                        run = [*arguments, "--precision", precision, "--size", str(size)]
                        measure(run, folder)  # builds the graph
                        peak, seconds = measure(run, folder)
                        cell = f"{variant.id:22}{size:5} {precision:5}"
                        print(f"{cell}{peak:6.0f} MB{seconds:7.2f} s", flush=True)


if __name__ == "__main__":
    main()
