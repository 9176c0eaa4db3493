"""Many pictures: what a folder takes, beside its slowest stage alone.

    python -m benchmarks.throughput [--count 200] [--size 1920x1080] [--threads 2]

Each stage is first timed alone over all pictures, then the folder as ``leanface restore`` runs it, with the
embedded model: reading, restoring and writing overlap, and as many cores as stages would make the whole take
as long as the slowest of them. Last comes what is leanface's own: each picture from file to file with a
network that changes nothing and takes no time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from leanface import Restorer, batch, imageio
from leanface.engine.session import Tensors
from leanface.types import FileOptions

PORTRAIT = Path(__file__).parents[1] / "samples" / "astronaut.png"


class Unchanged:
    """A session that gives back what it gets."""

    device, precision = "cpu", "fp32"

    def run(self, inputs: Tensors) -> dict[str, NDArray[np.float32]]:
        return {"output": np.asarray(inputs["input"], np.float32)}

    def close(self) -> None:
        """Nothing to free."""


def draw(folder: Path, count: int, width: int, height: int) -> None:
    """JPEGs with the sample's portrait, each in another place, on a part of it without a face."""
    random = np.random.default_rng(0)
    side = min(width, height) * 2 // 3
    with PillowImage.open(PORTRAIT) as file:
        portrait = file.convert("RGB")
    ground = portrait.crop((0, 300, 512, 512)).resize((width, height), PillowImage.Resampling.BICUBIC)
    grain = random.normal(0, 2, (height, width, 1))
    ground = PillowImage.fromarray((np.asarray(ground) + grain).clip(0, 255).astype(np.uint8))
    portrait = portrait.resize((side, side), PillowImage.Resampling.BICUBIC)
    for number in range(count):
        picture = ground.copy()
        picture.paste(portrait, (int(random.integers(width - side)), int(random.integers(height - side))))
        picture.save(folder / f"{number:04}.jpg", quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--threads", type=int, default=2)
    values = parser.parse_args()
    width, height = map(int, values.size.split("x"))
    with tempfile.TemporaryDirectory() as name, Restorer("lite", threads=values.threads) as restorer:
        source, alone, whole = (Path(name) / part for part in ("in", "alone", "out"))
        for folder in (source, alone):
            folder.mkdir()
        draw(source, values.count, width, height)
        stages = {"read": 0.0, "restore": 0.0, "write": 0.0}
        for path in sorted(source.iterdir()):
            times = [time.perf_counter()]
            image, origin = imageio.read(path)
            times.append(time.perf_counter())
            result = restorer.restore(image)
            times.append(time.perf_counter())
            imageio.write(alone / path.name, result.image, origin)
            times.append(time.perf_counter())
            for stage, first, last in zip(stages, times, times[1:], strict=False):
                stages[stage] += last - first
        start = time.perf_counter()
        outcomes = list(batch.run(restorer, batch.plan([str(source)], whole), FileOptions()))
        seconds = time.perf_counter() - start
        if not all(outcome.result and outcome.result.restored == 1 for outcome in outcomes):
            raise SystemExit("a picture failed")
        own = []
        with Restorer("lite", generator=Unchanged, threads=values.threads) as unchanged:
            for path in sorted(source.iterdir()):
                start = time.perf_counter()
                unchanged.restore_file(path, alone / f"unchanged-{path.name}")
                own.append(time.perf_counter() - start)
    for stage, alone_seconds in stages.items():
        print(f"{stage:8}{alone_seconds / values.count * 1e3:7.1f} ms a picture, alone")
    slowest = max(stages.values())
    print(
        f"{'whole':8}{seconds / values.count * 1e3:7.1f} ms a picture, {seconds / slowest:.2f}x the slowest"
    )
    print(f"{'own':8}{np.median(own) * 1e3:7.1f} ms a picture, {min(own) * 1e3:.1f} at best")


if __name__ == "__main__":
    main()
