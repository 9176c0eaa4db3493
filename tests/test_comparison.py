"""One sheet of all models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from leanface import comparison
from leanface.cli import main
from leanface.comparison import Column
from leanface.imageio.lettering import lettering
from tests.conftest import ROOT


def column(model: str, gray: int) -> Column:
    crop = np.full((256, 256, 3), gray, np.uint8)
    return Column(model, (crop // 2, crop // 2), (crop, crop), 0.5, 300_000_000, "fp32")


def test_a_cell_for_every_face_and_model() -> None:
    sheet = comparison.sheet([column("one", 200), column("two", 100)]).pixels
    flat = sheet.reshape(-1, 3)
    counts = {gray: (flat == gray).all(1).sum() for gray in (200, 100)}
    assert counts[200] >= 2 * 256**2 and counts[100] >= 4 * 256**2  # after by two; before and after by one
    assert sheet.shape[1] == 8 + 3 * (256 + 8)
    assert (sheet[:30] < 128).any() and (sheet[-45:] < 128).any()  # names above, figures below


def test_words_fit() -> None:
    short, long = lettering("gpen", 16, 256), lettering("a very long name of a model " * 4, 16, 256)
    assert short.max() == 255 and short.shape[1] < 60 and long.shape[1] <= 256


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, sheet = ROOT / "samples" / "astronaut.png", tmp_path / "sheet.png"
    models = "lite,gpen-512,realesr-animevideov3"
    assert main(["compare", str(picture), "--models", models, "-o", str(sheet), "--precision", "fp32"]) == 0
    out = capsys.readouterr().out
    assert "left out: gpen-512" in out and "1 face by 2 models" in out
    assert "lite: " in out and " s a face, " in out and " MB" in out
    with PillowImage.open(sheet) as made:
        assert made.width == 8 + 3 * (256 + 8)
    assert main(["compare", str(picture), "--models", "gpen-512", "-o", str(tmp_path / "none.png")]) == 2
    assert "none of these models is here: gpen-512" in capsys.readouterr().err
    assert main(["compare", str(picture), "-o", str(sheet)]) == 4
    assert "exists already" in capsys.readouterr().err


def test_without_a_face_there_is_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PillowImage.new("RGB", (64, 64)).save(tmp_path / "black.png")
    arguments = ["compare", str(tmp_path / "black.png"), "--models", "lite", "-o", str(tmp_path / "s.png")]
    assert main(arguments) == 4
    assert "no face found, so there is nothing to compare" in capsys.readouterr().err
