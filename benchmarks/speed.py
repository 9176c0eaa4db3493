"""Seconds, measured side by side in one run so that the ratios hold on any machine.

    python benchmarks/speed.py

The drop-in script from process start to file written, beside the bare import of OpenVINO, which it cannot do
without.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PORTRAIT = ROOT / "samples" / "portrait.jpg"


def seconds(arguments: list[str], folder: str) -> float:
    """Wall time of a Python process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    bare, whole = [], []
    with tempfile.TemporaryDirectory() as folder:
        script = [str(ROOT / "inference_gpen.py"), "--input", str(PORTRAIT), "--overwrite"]
        seconds(script, folder)  # fills the disk cache
        for _ in range(runs):
            bare.append(seconds(["-c", "import openvino"], folder))
            whole.append(seconds(script, folder))
    allowed = 1.5 * statistics.median(bare) + 0.8
    print(f"python -c 'import openvino'            {statistics.median(bare):.2f} s (median of {runs})")
    print(f"inference_gpen.py, start to file       {statistics.median(whole):.2f} s (at most {allowed:.2f})")


if __name__ == "__main__":
    main()
