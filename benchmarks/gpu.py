"""GPEN on a graphics card: is it right, what does it take, how long. At most six minutes.

    python -m benchmarks.gpu [--device cuda] [--sizes 256 512 1024 2048] [--minutes 6] [--output gpu.json]
    python -m benchmarks.gpu --device cpu       # a reduced run: one size, no card to measure

Weights and picture are drawn by the recipe of the tests. The reference is this engine's float32 on the
processor. Each size and precision is a process of its own, which runs without a cap, then with its allocator
capped at 4 GB and 1 GB, and prints one line of JSON:

- levels: greatest difference from the reference in steps of 8 bits;
- planned: bytes of tensors as the engine counts them before it runs; allocated and reserved: PyTorch's
  statistics at the highest; process: what the driver counts for the process, its context with it; card: by
  how much the card's memory in use grew;
- seconds: median for one face, from array to array.

Then 16 bits once more beside a process that leaves little of the card, and 512 with its weights streamed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from leanface.engine.backends import onnxruntime
from leanface.engine.backends import torch as backend
from leanface.engine.backends.torch.counting import counting
from leanface.engine.backends.torch.executor import Executor
from leanface.engine.backends.torch.onnx_file import read
from leanface.engine.session import Graph
from leanface.errors import LeanfaceError
from leanface.graphs.builder import Compute, save
from leanface.graphs.gpen import Network
from tests import recipe

TYPES: dict[str, Compute] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
CAPS = (4_000_000_000, 1_000_000_000)
LEFT = 1_500_000_000  # bytes of the card that the hog leaves
STREAMED = 120_000_000  # limit of bytes in the streamed run
HOG = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
kept = torch.empty(max(free - int(sys.argv[1]), 0), dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""


def used_by_card() -> int:
    """Bytes of the first card in use by anyone; 0 where the driver does not tell."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(answer.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0


def cell(folder: Path, size: int, precision: str, device: str, limit: int | None, runs: int) -> Iterator[Any]:
    """Measure one size and precision in this process: without a cap, then with each."""
    import torch

    before = used_by_card()
    on_card = device != "cpu"
    graph = Graph(folder / f"{size}-{precision}.onnx", typed=precision != "fp32")
    picture = {"input": recipe.gpen_picture(size)}
    reference = np.load(folder / f"{size}.npy")
    total = torch.cuda.get_device_properties(0).total_memory if on_card else 0
    for cap in (None, *CAPS) if on_card and limit is None else (None,):
        row: dict[str, Any] = {"size": size, "precision": precision, "cap": cap, "limit": limit}
        if on_card:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(min(1.0, (cap or total) / total))
            torch.cuda.reset_peak_memory_stats()
        try:
            session = backend.open_session(
                graph, device=f"torch-{device}", precision=precision, threads=os.cpu_count() or 1, limit=limit
            )
            output = session.run(picture)["output"]
            seconds = []
            for _ in range(runs):
                start = time.perf_counter()
                session.run(picture)
                seconds.append(time.perf_counter() - start)
            row["seconds"] = statistics.median(seconds)
            row["levels"] = float(np.abs(output - reference).max() * 127.5)
            plan = Executor(read(graph.path), "cpu").plan({"input": reference.shape})
            row |= {"planned": plan.whole, "least": plan.least}
            if on_card:
                row |= {
                    "allocated": torch.cuda.max_memory_allocated(),
                    "reserved": torch.cuda.max_memory_reserved(),
                    "process": onnxruntime.card_bytes("cuda"),
                    "card": used_by_card() - before,
                }
            else:
                with counting(device) as count:
                    again = backend.open_session(
                        graph,
                        device="torch-cpu",
                        precision=precision,
                        threads=os.cpu_count() or 1,
                        limit=limit,
                    )
                    again.run(picture)
                row["allocated"] = count.peak
            session.close()
        except LeanfaceError as error:
            row["error"] = str(error)
        yield row


def prepare(folder: Path, size: int, precisions: list[str]) -> None:
    """Graphs of a size, and what float32 gives on the processor."""
    weights = recipe.gpen_weights(f"gpen-{size}")
    exact = folder / "exact.onnx"
    save(Network(weights, name="gpen", half=False).write(), exact)
    output = Executor(read(exact), "cpu").run({"input": recipe.gpen_picture(size)})["output"]
    np.save(folder / f"{size}.npy", output)
    for precision in precisions:
        network = Network(weights, name="gpen", half=True, compute=TYPES[precision])
        save(network.write(), folder / f"{size}-{precision}.onnx")


@contextmanager
def hog(device: str) -> Iterator[None]:
    """A process that takes the card but for ``LEFT`` bytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOG, str(LEFT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        process.stdout.readline()
        yield
    finally:
        process.communicate()


def measure(folder: Path, size: int, precision: str, device: str, limit: int | None, runs: int) -> list[Any]:
    """One cell in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--cell", str(folder), str(size), precision, device]
    done = subprocess.run([*command, str(limit or 0), str(runs)], capture_output=True, text=True, check=False)
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [{"size": size, "precision": precision, "cap": None, "limit": limit, "error": error}]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def table(rows: list[Any]) -> str:
    """Markdown; MB are 10^6 bytes."""
    columns = ("planned", "allocated", "reserved", "process", "card")
    lines = [
        "| size | precision | run | levels | s | " + " | ".join(f"{name}, MB" for name in columns) + " |",
        "|---|---|---|---|---|" + "---|" * len(columns),
    ]
    for row in rows:
        cap, limit = row["cap"], row["limit"]
        how = "beside a hog" if row.get("hog") else f"cap {cap / 1e9:.0f} GB" if cap else "free"
        how = f"streamed, {limit / 1e6:.0f} MB" if limit else how
        head = f"| {row['size']} | {row['precision']} | {how} |"
        if "error" in row:
            lines.append(f"{head} {row['error']} |" + " |" * (1 + len(columns)))
            continue
        cells = [f"{row[name] / 1e6:.0f}" if row.get(name) else "" for name in columns]
        lines.append(f"{head} {row['levels']:.2f} | {row['seconds']:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--minutes", type=float, default=6.0, help="no cell is begun after nine tenths of it")
    parser.add_argument("--output", type=Path, default=Path("gpu.json"))
    parser.add_argument("--cell", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        folder, size, precision, device, limit, runs = options.cell
        for row in cell(Path(folder), int(size), precision, device, int(limit) or None, int(runs)):
            print(json.dumps(row), flush=True)
        return

    import torch

    end = time.monotonic() + 54 * options.minutes
    on_card = options.device != "cpu"
    sizes = options.sizes or ([256, 512, 1024, 2048] if on_card else [256])
    precisions = ["fp16", "bf16", "fp32"] if on_card else ["bf16", "fp32"]
    runs = 10 if on_card else 2
    rows: list[Any] = []
    skipped = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in sizes:
            if time.monotonic() < end:
                prepare(folder, size, precisions)
        jobs: list[tuple[int, str, int | None, bool]] = [
            (size, precision, None, False) for precision in precisions for size in sizes
        ]
        jobs += [(512, "fp16", STREAMED, False)] if on_card else [(256, "bf16", STREAMED // 5, False)]
        jobs += [(size, "fp16", None, True) for size in sizes if on_card]
        for size, precision, limit, beside in jobs:
            if time.monotonic() > end or not (folder / f"{size}-{precision}.onnx").exists():
                skipped += 1
                continue
            if beside:
                with hog(options.device):
                    found = measure(folder, size, precision, options.device, limit, runs)[:1]
            else:
                found = measure(folder, size, precision, options.device, limit, runs)
            rows += [{**row, "hog": beside} for row in found]
    machine = {
        "device": torch.cuda.get_device_name(0) if on_card else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "skipped": skipped,
    }
    options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1), "utf-8")
    print(", ".join(f"{key} {value}" for key, value in machine.items()) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
