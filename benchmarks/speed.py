"""Start, seconds a face and peak memory, side by side in one run so that the ratios hold on any machine.

    python -m benchmarks.speed [--models NAME ...] [--runs 3] [--write]

Every cell is a process of its own. leanface restores ready crops with ``leanface restore --aligned``: from
the start of Python to the first file written, then seconds a crop, and the peak of what the system counts as
resident. Beside it stands the network as published (style on the weights, concatenation, nothing folded) in
float32, as an export of the published code would be, run by ONNX Runtime with its default settings. Networks
without weights here run with drawn ones, which cost the same.

``--write`` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

from benchmarks import page
from benchmarks.gpen_forms import published
from leanface.engine.backends import onnxruntime, openvino
from leanface.registry import Model, find
from tests.drawn import weights_file
from tests.recipe import gpen_weights

ROOT = Path(__file__).parents[1]
MODELS = ("lite", "gpen-256", "gpen-512", "gpen-1024", "gpen-2048")
CROPS = 3
"""Crops a process restores; the first one is left out of the seconds a crop."""

LARGEST_PUBLISHED = 1024
"""Side of the largest network that is run as published: the next one was killed at 24 GB."""

PUBLISHED = """
import sys, time
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
crop = np.random.default_rng(0).uniform(-1, 1, session.get_inputs()[0].shape).astype(np.float32)
for run in range(int(sys.argv[3])):
    start = time.perf_counter()
    session.run(None, {"input": crop})
    print(time.perf_counter() - start, time.time(), flush=True)
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""


@dataclass(frozen=True)
class Cell:
    """What one process took.

    Attributes:
        start: seconds from its start to the first result.
        crop: seconds a crop, the network and what is around it.
        peak: resident bytes.
    """

    start: float
    crop: float
    peak: int


def of_leanface(model: Model, arguments: Sequence[str], folder: Path) -> Cell:
    """``leanface restore --aligned`` over a few crops, and over one for the start."""
    crops = []
    for number in range(CROPS):
        side = model.variant.sizes[0]
        pixels = np.random.default_rng(number).integers(0, 256, (side // 8, side // 8, 3), np.uint8)
        crops.append(folder / f"crop{number}.png")
        Image.fromarray(pixels).resize((side, side)).save(crops[-1])
    report = folder / "report.jsonl"
    command = [
        sys.executable, "-m", "leanface", "restore", "--aligned", "-q", "--overwrite",
        "-o", str(folder / "out"), "--model", model.variant.id, *arguments,
    ]  # fmt: skip
    report.unlink(missing_ok=True)
    start = time.perf_counter()
    subprocess.run([*command, str(crops[0])], check=True, cwd=folder)
    started = time.perf_counter() - start
    subprocess.run([*command, *map(str, crops), "--report", str(report)], check=True, cwd=folder)
    lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    seconds = [sum(line["seconds"].values()) for line in lines[1:]]
    return Cell(started, statistics.mean(seconds), lines[-1]["peak_bytes"])


def of_published(graph: Path, threads: int) -> Cell:
    """The published form on ONNX Runtime as it comes; a bare loop without files around it."""
    began = time.time()
    command = [sys.executable, "-c", PUBLISHED, str(graph), str(threads), str(CROPS)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    runs = [tuple(map(float, line.split())) for line in answer[:-1]]
    return Cell(runs[0][1] - began, statistics.mean(run[0] for run in runs[1:]), int(answer[-1]))


def best(measure: Callable[[], Cell], runs: int) -> Cell:
    """The least of each figure: what disturbs a measurement only ever adds to it."""
    cells = [measure() for _ in range(runs)]
    return Cell(*(min(getattr(cell, name) for cell in cells) for name in ("start", "crop", "peak")))


def ways() -> list[tuple[str, list[str]]]:
    """Engines and precisions that this machine has, with the flags that choose them."""
    found = [(f"OpenVINO {p}", ["--device", "cpu", "--precision", p]) for p in openvino.precisions("cpu")]
    if "ort-cpu" in onnxruntime.devices():
        found.append(("ONNX Runtime fp32", ["--device", "ort-cpu"]))
    return found


def rows(models: Sequence[str], runs: int, threads: int) -> list[str]:
    """The table, a line at a time."""
    made = ["| network | run by | start to first result | a crop | peak memory |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LEANFACE_CACHE"] = str(folder / "cache")
        for model in map(find, models):
            flags = ["--threads", str(threads)]
            base = None
            if model.family.id == "gpen" and model.variant.sizes[0] > LARGEST_PUBLISHED:
                made.append(f"| {model.variant.id} | published form, ONNX Runtime fp32 | beyond 24 GB | | |")
            if model.family.id == "gpen":
                weights = weights_file(model.variant.id, folder, full=True)
                flags += ["--weights", str(weights), "--allow-unverified"]
                if model.variant.sizes[0] <= LARGEST_PUBLISHED:
                    graph = folder / "published.onnx"
                    onnx.save(published(gpen_weights(model.variant.id), half=False), graph)
                    base = best(partial(of_published, graph, threads), runs)
                    made.append(line(model, "published form, ONNX Runtime fp32", base, None))
                    print(made[-1], flush=True)
            for label, way in ways():
                measure = partial(of_leanface, model, [*flags, *way], folder)
                measure()  # builds and compiles the graph
                made.append(line(model, f"leanface, {label}", best(measure, runs), base))
                print(made[-1], flush=True)
    return made


def line(model: Model, label: str, cell: Cell, base: Cell | None) -> str:
    def beside(value: float, least: float | None) -> str:
        return f" ({least / value:.1f}x)" if least else ""

    start, crop, peak = (base.start, base.crop, base.peak) if base else (None, None, None)
    return (
        f"| {model.variant.id} | {label} | {cell.start:.2f} s{beside(cell.start, start)} "
        f"| {cell.crop:.2f} s{beside(cell.crop, crop)} | {cell.peak / 1e6:.0f} MB{beside(cell.peak, peak)} |"
    )


def script(runs: int) -> list[str]:
    """The drop-in script from process start to file, beside the bare import of OpenVINO."""

    def seconds(arguments: list[str], folder: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    portrait = str(ROOT / "samples" / "portrait.jpg")
    run = [str(ROOT / "inference_gpen.py"), "--input", portrait, "--model", "lite", "--overwrite"]
    with tempfile.TemporaryDirectory() as folder:
        seconds(run, folder)  # fills the caches
        bare = statistics.median(seconds(["-c", "import openvino"], folder) for _ in range(runs))
        whole = statistics.median(seconds(run, folder) for _ in range(runs))
    return [
        f"`inference_gpen.py` with the embedded model, process start to the written file: {whole:.2f} s;",
        f"the bare `import openvino` takes {bare:.2f} s of that (medians of {runs}).",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--runs", type=int, default=3, help="of each cell; the least counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    values = parser.parse_args()
    made = [*script(2 * values.runs + 1), "", *rows(values.models, values.runs, values.threads)]
    print("\n".join([page.where(values.threads), "", *made]))
    if values.write:
        page.write("benchmarks.speed", [page.where(values.threads), "", *made])


if __name__ == "__main__":
    main()
