"""A picture enlarged by Real-ESRGAN within a memory limit, beside the same network run untiled.

    python -m benchmarks.background [--model NAME] [--size 1024x768] [--memory 1200MB] [--write]

Each cell is a process of its own: ``leanface restore --faces none --background`` with a limit, and ONNX
Runtime with its default settings over the whole picture at once. Both are timed without reading and writing
the picture and with what they compile or load for its size beside it, since a tool meets each size anew.
Processor time stands beside the time on the clock, for machines that are busy with something else too.

``--write`` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import page
from leanface.engine.backends import openvino
from leanface.library import Library
from leanface.registry import find_enlarger

UNTILED = """
import resource, sys, time
import numpy as np, onnxruntime
from PIL import Image
picture = np.asarray(Image.open(sys.argv[2])).transpose(2, 0, 1)[None].astype(np.float32) / 255
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
start = time.perf_counter()
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"input": picture})
print(time.perf_counter() - start)
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""


@dataclass(frozen=True)
class Cell:
    """What one process took: seconds on the clock for the network, of the processor in all, and bytes."""

    seconds: float
    processor: float
    peak: int


def of_leanface(arguments: list[str], folder: Path) -> Cell:
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "leanface",
        "restore",
        str(folder / "picture.png"),
        "--faces",
        "none",
        "-q",
    ]
    command += ["--overwrite", "-o", str(folder / "out"), "--report", str(report), *arguments]
    spent = _spent()
    subprocess.run(command, check=True)
    told = json.loads(report.read_text("utf-8").splitlines()[0])
    return Cell(sum(told["seconds"].values()), _spent() - spent, told["peak_bytes"])


def of_untiled(graph: Path, threads: int, folder: Path) -> Cell:
    spent = _spent()
    command = [sys.executable, "-c", UNTILED, str(graph), str(folder / "picture.png"), str(threads)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Cell(float(answer[0]), _spent() - spent, int(answer[1]))


def _spent() -> float:
    """Processor seconds of all finished children."""
    times = os.times()
    return times.children_user + times.children_system


def line(label: str, cell: Cell, base: Cell, pixels: int) -> str:
    clock, processor = (seconds / pixels * 1e6 for seconds in (cell.seconds, cell.processor))
    faster, leaner = base.seconds / cell.seconds, base.peak / cell.peak
    beside = "" if cell is base else f" ({faster:.1f}x)", "" if cell is base else f" ({leaner:.1f}x)"
    return (
        f"| {label} | {cell.seconds:.1f} s | {clock:.2f} µs{beside[0]} | {processor:.2f} µs "
        f"| {cell.peak / 1e6:.0f} MB{beside[1]} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="realesrgan-x4plus")
    parser.add_argument("--size", default="1024x768", help="of the picture")
    parser.add_argument("--memory", default="1200MB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    values = parser.parse_args()
    width, height = map(int, values.size.split("x"))
    variant = find_enlarger(values.model).variant
    pixels = width * height * variant.factor**2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LEANFACE_CACHE"] = str(folder / "cache")
        drawn = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
        Image.fromarray(drawn).resize((width, height)).save(folder / "picture.png")
        graph = Library().graph(find_enlarger(values.model), "fp32").path
        base = of_untiled(graph, values.threads, folder)
        made = [
            f"{values.model} on {width}x{height}, a result of {pixels / 1e6:.1f} megapixels; loading "
            "the network counts:",
            "",
            "| run by | in all | a pixel of the result | of the processor | peak memory |",
            "|---|---|---|---|---|",
            line("untiled, ONNX Runtime fp32", base, base, pixels),
        ]
        print("\n".join(made), flush=True)
        common = ["--background", values.model, "--threads", str(values.threads)]
        for precision in openvino.precisions("cpu"):
            if precision in variant.precisions:
                for limit in ([], ["--memory", values.memory]):
                    cell = of_leanface([*common, "--precision", precision, *limit], folder)
                    label = f"leanface, {precision}, " + (
                        f"`--memory {values.memory}`" if limit else "no limit"
                    )
                    made.append(line(label, cell, base, pixels))
                    print(made[-1], flush=True)
    if values.write:
        page.write("benchmarks.background", [page.where(values.threads), "", *made])


if __name__ == "__main__":
    main()
