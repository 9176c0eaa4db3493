"""Many pictures: what a folder takes, beside its slowest stage alone.

    python -m benchmarks.throughput [--count 200] [--size 1920x1080] [--threads 2]

Reading, restoring and writing overlap; as many cores as stages would make the whole take as long as the
slowest of them. Each stage is first timed alone over all pictures, then the folder as ``leanface restore``
runs it, with the embedded model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage

from leanface import Restorer, batch, imageio
from leanface.types import FileOptions

PORTRAIT = Path(__file__).parents[1] / "samples" / "astronaut.png"


def draw(folder: Path, count: int, width: int, height: int) -> None:
    """JPEGs with the sample's face, each in another place."""
    random = np.random.default_rng(0)
    side = min(width, height) * 2 // 3
    with PillowImage.open(PORTRAIT) as portrait:
        face = portrait.convert("RGB").resize((side, side))
    ground = random.normal(128, 12, (height, width, 1)).clip(0, 255).astype(np.uint8)
    for number in range(count):
        picture = PillowImage.fromarray(np.repeat(ground, 3, axis=2))
        picture.paste(face, (int(random.integers(width - side)), int(random.integers(height - side))))
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
    for stage, alone_seconds in stages.items():
        print(f"{stage:8}{alone_seconds / values.count * 1e3:7.1f} ms a picture, alone")
    slowest = max(stages.values())
    print(
        f"{'whole':8}{seconds / values.count * 1e3:7.1f} ms a picture, {seconds / slowest:.2f}x the slowest"
    )


if __name__ == "__main__":
    main()
