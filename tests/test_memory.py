from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image as PillowImage

from leanface import registry
from leanface.api import Restorer
from leanface.cli import main
from leanface.engine.memory import Option, parse, plan
from leanface.errors import BudgetError, UsageError
from tests.conftest import ROOT
from tests.drawn import weights_file

OPTIONS = (Option("bf16", 500_000_000), Option("fp32", 300_000_000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("800MB", 800_000_000),
        ("1.5 GB", 1_500_000_000),
        ("2g", 2_000_000_000),
        ("512MiB", 512 << 20),
        ("7", 7),
    ],
)
def test_amounts(text: str, expected: int) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-3MB", "3 elephants", "0", "1e9"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError, match="is no amount of memory"):
        parse(text)


def test_the_first_option_that_fits_is_taken() -> None:
    assert plan(OPTIONS, 100, 100).option.precision == "bf16"
    assert plan(OPTIONS, 100, 100, limit=600_000_000).option.precision == "bf16"
    assert plan(OPTIONS, 100, 100, limit=400_000_000).option.precision == "fp32"
    assert plan(OPTIONS, 100, 100, precisions=("fp32",)).option.precision == "fp32"
    with pytest.raises(BudgetError, match=r"100x100 needs \d+MB .* limit is 200MB"):
        plan(OPTIONS, 100, 100, limit=200_000_000)
    with pytest.raises(UsageError, match="no option of this model runs in fp16"):
        plan(OPTIONS, 100, 100, precisions=("fp16",))


def test_needs_grow_with_the_picture_only() -> None:
    small, large = (plan(OPTIONS, side, side, detect=False) for side in (1000, 9000))
    for stage, per_pixel in (("decode", 7), ("restore", 6), ("encode", 7)):
        grown = large.stages[stage] - small.stages[stage]
        assert grown == pytest.approx(1.03 * per_pixel * 80_000_000, rel=1e-6)
    assert large.peak == large.stages["encode"]
    assert "detect" not in large.stages and "detect" in plan(OPTIONS, 9, 9).stages


def test_every_restorer_says_what_it_costs() -> None:
    for model in registry.models():
        sizes = {option.size or model.variant.sizes[0] for option in model.variant.options}
        assert not sizes or sizes == set(model.variant.sizes)
        assert {o.precision for o in model.variant.options} <= set(model.variant.precisions)
        assert all(100_000_000 < o.peak < 4_000_000_000 for o in model.variant.options)
        if model.variant.asset or model.variant.build:  # a published graph of unknown make runs without limit
            assert model.variant.options


def test_a_limit_is_held_before_anything_is_loaded() -> None:
    with Restorer("lite", memory="120MB") as restorer, pytest.raises(BudgetError):
        restorer.plan(500, 500)
    with Restorer("lite", memory=2_000_000_000) as restorer:
        assert restorer.plan(500, 500).limit == 2_000_000_000


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "6000x4000", "--model", "lite"]) == 0
    first, *stages = capsys.readouterr().out.splitlines()
    assert first.startswith("lite in ") and first.endswith(" 6000x4000")
    assert [line.split()[0] for line in stages] == ["decode", "detect", "restore", "encode", "peak"]
    exif = PillowImage.Exif()
    exif[0x0112] = 6
    PillowImage.new("RGB", (60, 40)).save(tmp_path / "turned.jpg", exif=exif)
    assert main(["plan", str(tmp_path / "turned.jpg"), "--faces", "none"]) == 0
    assert " 40x60" in capsys.readouterr().out
    assert main(["plan", "6000x4000", "--memory", "100MB"]) == 2
    assert "the limit is 100MB" in capsys.readouterr().err


def test_a_picture_beyond_the_limit_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PillowImage.new("RGB", (4000, 3000)).save(tmp_path / "large.png")
    PillowImage.new("RGB", (40, 30)).save(tmp_path / "small.png")
    code = main(
        ["restore", str(tmp_path), "-o", str(tmp_path / "out"), "--model", "lite", "--memory", "260MB"]
    )
    assert code == 3
    assert "4000x3000 needs" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["small.png"]


slow = pytest.mark.slow


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for drawn weights, and for the graphs that are built of them."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEANFACE_CACHE", str(folder / "cache"))
        yield folder


@pytest.mark.skipif(sys.platform != "linux", reason="the costs were measured on Linux")
@pytest.mark.parametrize(
    ("model", "width", "height"),
    [
        ("lite", 600, 400),
        ("lite", 4000, 3000),
        ("gpen-256", 1500, 1000),
        *(
            pytest.param(f"gpen-{size}", *shape, marks=slow)
            for size in (256, 512, 1024, 2048)
            for shape in ((1250, 800), (6000, 4000), (12500, 8000))
        ),
    ],
)
def test_predictions_are_near_the_truth(
    model: str, width: int, height: int, drawn: Path, tmp_path: Path
) -> None:
    with PillowImage.open(ROOT / "samples" / "astronaut.png") as portrait:
        picture = PillowImage.new("RGB", (width, height), (90, 120, 150))
        picture.paste(portrait.convert("RGB").resize((height // 2, height // 2)), (0, 0))
    picture.save(tmp_path / "in.jpg")
    PillowImage.new("RGB", (64, 64)).save(tmp_path / "first.png")
    common = ["--model", model]
    if model != "lite":
        weights = drawn / f"{model}.pth"
        if not weights.exists():
            weights_file(model, drawn, full=True)
        common += ["--weights", str(weights), "--allow-unverified"]
    # A graph is built and compiled once, which takes more; the promise is about every other run.
    _run([str(tmp_path / "first.png"), "--faces", "none", *common], tmp_path)
    report = tmp_path / "report.jsonl"
    _run([str(tmp_path / "in.jpg"), "--report", str(report), *common], tmp_path)
    with Restorer(model, weights=drawn if model != "lite" else None, allow_unverified=True) as restorer:
        stages = restorer.plan(width, height).stages
    predicted = max(
        stages[stage] for stage in ("decode", "detect", "restore")
    )  # the report is older than the file
    told = json.loads(report.read_text("utf-8"))
    assert [face["status"] for face in told["faces"]] == ["restored"]
    assert told["peak_bytes"] == pytest.approx(predicted, rel=0.15)


def _run(arguments: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "leanface", "restore", *arguments, "-q", "-o", str(folder / "out")]
    subprocess.run(command, check=True)
