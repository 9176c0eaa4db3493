"""Peak memory: of whole processes, or of a network's tensors.

    python benchmarks/memory.py
    python benchmarks/memory.py --count [--device cpu] [--sizes 256 512 1024 2048] [--run 256]

The first is what the system counts as resident for a process that restores the sample portrait, from its
start to its end (POSIX only: the figure is the one of wait4).

The second counts GPEN's tensors, in forms and precisions: all weights, and the activations that live at the
same time at the highest. It is exact on any device and needs no card, since PyTorch's engine runs through the
graph on tensors without contents; what a card's context, its allocator's rounding and its libraries'
workspaces add is not in it. For the sizes of ``--run`` the network is also really run on ``--device``, and
what PyTorch's operators gave and freed there is counted (on a card also what its allocator had given out at
the highest).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import onnx

    from leanface.engine.backends.torch.executor import Plan
    from leanface.engine.backends.torch.onnx_file import File
    from leanface.graphs.builder import Compute, Weights

ROOT = Path(__file__).parents[1]
UNIT = 1 if sys.platform == "darwin" else 1024


def peak(arguments: list[str]) -> float:
    """Peak resident memory of a Python process in MB (10^6 bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{arguments} failed")
    return usage.ru_maxrss * UNIT / 1e6


def processes() -> None:
    portrait = str(ROOT / "samples" / "portrait.jpg")
    whole = [str(ROOT / "inference_gpen.py"), "--input", portrait]
    for name, arguments in (
        ("python -c 'import openvino'", ["-c", "import openvino"]),
        ("inference_gpen.py", whole),
        ("inference_gpen.py --detect", [*whole, "--detect"]),
        ("inference_gpen.py --size 1024", [*whole, "--size", "1024"]),
        ("inference_gpen.py --model realesrgan-x4plus", [*whole, "--model", "realesrgan-x4plus"]),
    ):
        print(f"{name:46}{peak(arguments):6.0f} MB")


class Form(NamedTuple):
    """A form of the network as the engine runs it; ``compute`` as in ``backends.torch.executor``."""

    build: Callable[[Weights], onnx.ModelProto]
    compute: str | None
    lean: bool


def forms() -> dict[str, Form]:
    from benchmarks.gpen_forms import Whole, published
    from leanface.graphs.gpen import Network

    def network(form: type[Network], compute: Compute, half: bool) -> Callable[[Weights], onnx.ModelProto]:
        return lambda weights: form(weights, name="gpen", half=half, compute=compute).write()

    as_exported = lambda weights: published(weights, half=False)  # noqa: E731
    return {
        "published, fp32": Form(as_exported, None, False),
        "published, 16 bit": Form(as_exported, "float16", False),
        "lean, fp32": Form(network(Whole, "float32", False), None, True),
        "bands, fp32": Form(network(Network, "float32", False), None, True),
        "bands, fp32, weights stored in fp16": Form(network(Network, "float32", True), None, True),
        "lean, 16 bit": Form(network(Whole, "float16", True), None, True),
        "bands, 16 bit": Form(network(Network, "float16", True), None, True),
    }


def count(sizes: list[int], really: list[int], device: str) -> None:
    """Print the table, in MB (10^6 bytes)."""
    from leanface.engine.backends.torch.executor import Executor
    from leanface.engine.backends.torch.onnx_file import read
    from leanface.graphs.builder import save

    print("| form | " + " | ".join(map(str, sizes)) + " |")
    print("|---|" + "---|" * len(sizes))
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpen.onnx"
        for name, form in forms().items():
            cells, streamed = [], []
            for size in sizes:
                save(form.build(blank(size)), path)
                file = read(path)
                executor = Executor(file, "cpu", form.compute, lean=form.lean)
                plan = executor.plan({"input": (1, 3, size, size)})
                weights = sum(executor.weights.values())
                cells.append(
                    f"**{plan.whole / 1e6:.0f}** = {weights / 1e6:.0f} + {(plan.whole - weights) / 1e6:.0f}"
                )
                streamed.append(f"{plan.least / 1e6:.0f}")
                if size in really and form.lean:
                    measured.append((f"{name}, {size}", plan, run(file, form, size, device)))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            if "bands" in name:
                print(f"| the same, weights streamed, at least | {' | '.join(streamed)} |", flush=True)
    for name, plan, found in measured:
        report(name, plan, found, device)


def blank(size: int) -> Weights:
    """Weights of the right shapes: what they are does not count."""
    import numpy as np

    from tests import recipe

    keys = recipe.shapes("gpen", f"gpen-{size}")["keys"]
    return {key: np.broadcast_to(np.float32(0.1), shape) for key, shape, _ in keys}


def run(file: File, form: Form, size: int, device: str) -> tuple[int, int]:
    """Bytes at the highest in a real run: of what operators gave, and of what a card's allocator gave."""
    import torch

    from leanface.engine.backends.torch.counting import counting
    from leanface.engine.backends.torch.executor import Executor
    from tests import recipe

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with counting(device) as counted:
        executor = Executor(file, device, form.compute, lean=form.lean)
        executor.keep(executor.weights)
        executor.run({"input": recipe.gpen_picture(size)})
    return counted.peak, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def report(name: str, plan: Plan, found: tuple[int, int], device: str) -> None:
    given = f", allocator {found[1] / 1e6:.1f}" if found[1] else ""
    print(f"{name}: planned {plan.whole / 1e6:.1f} MB, run on {device} {found[0] / 1e6:.1f} MB{given}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", action="store_true", help="count GPEN's tensors")
    parser.add_argument("--device", default="cpu", help="where --run runs: cpu, cuda or mps")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--run", type=int, nargs="*", default=[256], metavar="SIZE")
    options = parser.parse_args()
    if options.count:
        sys.path.insert(0, str(ROOT))
        count(options.sizes, options.run, options.device)
    else:
        processes()


if __name__ == "__main__":
    main()
