"""What a process really takes, measured from outside the code that predicts it: one process per figure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")

WIDTH, HEIGHT = 4000, 3000

# Faces of 300 pixels in a grid, through a generator that inverts; then the peak in bytes.
ONE_PICTURE = """
import sys
import numpy as np
from leanface import Restorer
from leanface.engine.device import peak_bytes
from tests.test_matrix import Generator, invert
from tests.test_pipeline import row

source, target, count, wide = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
faces = [row(100 + 750 * (i % 5), 100 + 700 * (i // 5), 300) for i in range(count)]

def detect(picture):
    rows = np.array(faces, np.float32) * (picture.shape[1] / wide)
    rows[:, 4] = 0.95
    return rows

with Restorer("lite", detector=detect, generator=lambda: Generator(invert)) as restorer:
    result = restorer.restore_file(source, target)
assert result.restored == count, result.faces
print(peak_bytes())
"""

# The embedded networks over pictures of twelve sizes, a face in each; resident bytes after each.
MANY_PICTURES = """
import numpy as np
from PIL import Image
from leanface import Restorer
from leanface.engine.device import resident_bytes

portrait = Image.open("samples/astronaut.png").convert("RGB")
sizes = [(640, 480), (480, 640), (1024, 768), (800, 1200), (1600, 1200), (1920, 1080), (1080, 1920),
         (2000, 1500), (2400, 1600), (3000, 2000), (1000, 1000), (900, 1600)]
with Restorer("lite", precision="fp32") as restorer:
    for number in range(60):
        width, height = sizes[number * 5 % 12]
        picture = Image.new("RGB", (width, height), (90, 120, 150))
        side = min(width, height) * 2 // 3
        picture.paste(portrait.resize((side, side)), (width // 8, height // 8))
        assert restorer.restore(np.array(picture)).restored == 1
        del picture
        print(resident_bytes())
"""

# The embedded networks loaded and freed, four times; resident bytes before, and each time open and closed.
OPENED_AND_CLOSED = """
from pathlib import Path
from leanface import Restorer, imageio
from leanface.engine.backends import openvino
from leanface.engine.device import resident_bytes

picture = imageio.read(Path("samples/astronaut.png"))[0]
openvino.devices()
print(resident_bytes())
for _ in range(4):
    with Restorer("lite", precision="fp32") as restorer:
        assert restorer.restore(picture).restored == 1
        print(resident_bytes())
    print(resident_bytes())
"""


def run(code: str, *arguments: object) -> list[int]:
    """The numbers that a fresh process prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_a_large_picture_costs_little_more_than_itself_however_many_faces(
    suffix: str, tmp_path: Path
) -> None:
    y, x = np.ogrid[:HEIGHT, :WIDTH]
    planes = [(x * 255 // WIDTH + 0 * y), (y * 255 // HEIGHT + 0 * x), ((x ^ y) & 255)]
    picture = np.stack(planes, axis=2).astype(np.uint8)
    large, small = tmp_path / f"large{suffix}", tmp_path / f"small{suffix}"
    PillowImage.fromarray(picture).save(large, compress_level=1)
    PillowImage.fromarray(picture[::8, ::8]).save(small)

    (tiny,) = run(ONE_PICTURE, small, tmp_path / f"s{suffix}", 1, WIDTH)
    (one,) = run(ONE_PICTURE, large, tmp_path / f"l1{suffix}", 1, WIDTH)
    (twenty,) = run(ONE_PICTURE, large, tmp_path / f"l20{suffix}", 20, WIDTH)
    assert twenty <= 1.05 * one
    assert twenty - tiny <= 2.5 * picture.nbytes


def test_a_long_run_does_not_grow() -> None:
    resident = np.reshape(run(MANY_PICTURES), (5, 12))  # a row has every size once: one picture says little
    _, second, *_, last = resident.mean(axis=1)
    assert last - second < 10_000_000


def test_closing_gives_memory_back_and_opening_anew_takes_no_more() -> None:
    start, *rest = run(OPENED_AND_CLOSED)
    opened, closed = rest[::2], rest[1::2]
    assert max(closed) - start < 0.6 * (min(opened) - start)
    assert opened[-1] - opened[0] < 10_000_000 and closed[-1] - closed[0] < 10_000_000
