"""Peak memory of whole processes.

    python benchmarks/memory.py

What the system counts as resident for a process that restores the sample portrait, from its start to its end
(POSIX only: the figure is the one of wait4).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
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


if __name__ == "__main__":
    main()
