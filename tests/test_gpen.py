"""From a checkpoint on disk to a restored file: the whole way that published weights take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leanface.cli import main
from leanface.imageio import Origin, read, write
from leanface.types import Image
from tests.recipe import golden, gpen_picture, gpen_weights
from tests.test_weights_formats import mapping, of, plain, write_zip

SIZE = 256


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn gpen-256 as torch would save it."""
    arrays = {key: np.asarray(value, np.float32) for key, value in gpen_weights("gpen-256").items()}
    body = mapping({key: plain(array, str(i)) for i, (key, array) in enumerate(arrays.items())})
    path = tmp_path_factory.mktemp("weights") / "mine.pth"
    return write_zip(path, body, {str(i): of(array) for i, array in enumerate(arrays.values())})


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = (gpen_picture(SIZE)[0].transpose(1, 2, 0) + 1) * np.float32(127.5)
    write(tmp_path / "crop.png", Image(np.rint(pixels).astype(np.uint8)), Origin())
    return tmp_path / "crop.png"


def published() -> tuple[np.ndarray, np.ndarray]:
    """Positions in the flat [3, size, size] output and the published network's 8-bit values there."""
    figures = golden("gpen", "gpen-256")
    return figures["index"], np.clip((figures["value"] + 1) * 127.5, 0, 255)


@pytest.mark.parametrize(("precision", "levels"), [("fp32", 1.1), ("auto", 5)])
def test_a_checkpoint_restores_as_published(
    precision: str, levels: float, checkpoint: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = picture.with_name(f"{precision}.png")
    command = ["restore", str(picture), "-o", str(out), "--aligned", "--model", "gpen-256", "--weights"]
    assert main([*command, str(checkpoint), "--precision", precision]) == 0
    index, expected = published()
    restored = read(out)[0].pixels.transpose(2, 0, 1).reshape(-1)[index]
    difference = np.abs(restored - expected)
    assert difference.max() < levels  # the input was rounded to 8 bits too
    assert difference.mean() < (0.3 if precision == "fp32" else 1)


def test_imported_weights_are_what_auto_takes(
    checkpoint: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "import", "gpen-256", str(checkpoint)]) == 0
    assert "gpen-256: " in capsys.readouterr().out
    assert main(["restore", str(picture), "-o", str(picture.with_name("a.png")), "--faces", "none"]) == 0
    assert "model gpen-256" in capsys.readouterr().out
    assert main(["models", "remove", "gpen-256"]) == 0
    assert main(["restore", str(picture), "-o", str(picture.with_name("b.png")), "--faces", "none"]) == 0
    assert "model lite" in capsys.readouterr().out


def test_another_networks_weights_are_refused(
    checkpoint: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["restore", str(picture), "-o", str(picture.with_name("c.png")), "--aligned"]
    assert main([*command, "--model", "gpen-512", "--weights", str(checkpoint)]) == 2
    error = capsys.readouterr().err
    assert "mine.pth" in error and error.count("\n") == 1 and not picture.with_name("c.png").exists()
    given = ["--model", "gpen-512", "--weights", str(checkpoint), "--allow-unverified"]
    assert main([*command, *given]) == 2
    assert "mine.pth does not hold gpen-512" in capsys.readouterr().err
