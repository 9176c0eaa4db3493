"""Measures what each restorer costs: peak memory of a whole process and seconds a crop.

    python benchmarks/measure_cost.py [MODEL ...]

Every cell is a process of its own that restores a small picture twice, so that the second time is the
network's alone. Published networks run with weights drawn at random (the recipe of the tests), which cost the
same. The figures go into the family files as ``Option``s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from leanface.engine.backends.openvino import precisions
from leanface.registry import models

ROOT = Path(__file__).parents[1]


def drawn_checkpoint(model: str, folder: Path) -> Path:
    """A checkpoint of a published network with drawn weights, as torch would save it."""
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from tests.recipe import gpen_weights
    from tests.test_weights_formats import mapping, of, plain, write_zip

    arrays = {key: np.asarray(value, np.float32) for key, value in gpen_weights(model).items()}
    body = mapping({key: plain(array, str(i)) for i, (key, array) in enumerate(arrays.items())})
    path = folder / f"{model}.pth"
    return write_zip(path, body, {str(i): of(array) for i, array in enumerate(arrays.values())})


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
            Image.open(ROOT / "samples" / "portrait.jpg").save(picture)
        os.environ["LEANFACE_CACHE"] = str(folder / "cache")
        for model in models():
            variant = model.variant
            if chosen and variant.id not in chosen:
                continue
            arguments = [*map(str, pictures), "--model", variant.id]
            if variant.build:
                checkpoint = drawn_checkpoint(variant.id, folder)
                arguments += ["--weights", str(checkpoint), "--allow-unverified"]
            for precision in precisions("cpu"):
                if precision in variant.precisions:
                    run = [*arguments, "--precision", precision]
                    measure(run, folder)  # builds the graph
                    peak, seconds = measure(run, folder)
                    print(f"{variant.id:20}{precision:6}{peak:6.0f} MB{seconds:7.2f} s", flush=True)


if __name__ == "__main__":
    main()
