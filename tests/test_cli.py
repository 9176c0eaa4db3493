from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from leanface import batch
from leanface.cli import gpen_main, main
from leanface.errors import UsageError
from leanface.imageio import read
from tests.conftest import ROOT

ASTRONAUT = ROOT / "samples" / "astronaut.png"
PORTRAIT = ROOT / "samples" / "portrait.jpg"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a portrait, a picture without faces, a broken one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.PNG").write_bytes(ASTRONAUT.read_bytes())
    PillowImage.new("RGB", (60, 40), (9, 99, 199)).save(tmp_path / "in" / "b.png")
    (tmp_path / "in" / "c.jpg").write_bytes(b"broken")
    (tmp_path / "in" / ".hidden.png").write_bytes(b"broken")
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    return tmp_path


def test_restore_writes_beside_the_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "in/a.PNG"]) == 0
    before, after = (read(folder / "in" / name)[0].pixels for name in ("a.PNG", "a_restored.PNG"))
    changed = (before != after).any(2)
    assert changed[57:177, 178:273].mean() > 0.5  # the face
    assert not changed[300:].any() and not changed[:, 400:].any()  # far from it
    assert "restored, 1 of 1 faces" in capsys.readouterr().out
    first = (folder / "in" / "a_restored.PNG").read_bytes()
    assert main(["restore", "in/a.PNG"]) == 4
    assert "exists already; --overwrite replaces it" in capsys.readouterr().err
    assert (folder / "in" / "a_restored.PNG").read_bytes() == first


def test_a_folder_goes_on_over_broken_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "in", "-o", "out", "--report", "r.jsonl"]) == 3
    output = capsys.readouterr()
    assert sorted(p.name for p in (folder / "out").iterdir()) == ["a.PNG", "b.png"]
    assert "in/b.png -> out/b.png: unchanged, no face found" in output.out.replace(os.sep, "/")
    assert "1 restored, 1 skipped, 1 failed" in output.out
    assert re.fullmatch(r"leanface: in.c\.jpg: not a picture that can be read here\n", output.err)
    np.testing.assert_array_equal(read(folder / "out/b.png")[0].pixels, read(folder / "in/b.png")[0].pixels)
    a, b, c = (json.loads(line) for line in (folder / "r.jsonl").read_text("utf-8").splitlines())
    assert (a["status"], a["faces_found"], a["faces_restored"]) == ("restored", 1, 1)
    assert (a["model"], a["device"]) == ("lite", "cpu") and a["precision"] in ("bf16", "fp32")
    assert set(a["seconds"]) == {"detect", "load", "align", "restore", "blend"}
    assert a["peak_bytes"] > 50_000_000
    assert (b["status"], b["reason"]) == ("skipped", "no face found")
    assert (c["status"], c["output"]) == ("failed", None)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["restore", "no.png"], 4, "no.png: there is no such file"),
        (["restore", "in/c.jpg"], 4, "not a picture"),
        (["restore", "nothing*.png"], 2, "nothing matches"),
        (["restore", "in", "-o", "one.png"], 2, "the results of several need a folder"),
        (["restore", "in/a.PNG", "-o", "x.gif"], 4, "the suffix must be one of"),
        (["restore", "in/a.PNG", "--model", "nope"], 2, "there is no model 'nope'; choose auto or one of"),
        (["restore", "in/a.PNG", "--size", "333"], 2, "lite takes size 512 or 1024, not 333"),
        (["restore", "in/a.PNG", "--device", "npu"], 2, "device npu is not here; there is"),
        (["restore", "in/a.PNG", "--precision", "fp16"], 2, "does not run in fp16 on cpu"),
        (["restore", "in/a.PNG", "--strength", "2"], 2, "must lie between 0 and 1"),
        (["restore", "in/a.PNG", "--max-pixels", "100"], 4, "512x512 is more than 100 pixels"),
        (["restore"], 2, "INPUT"),
        ([], 2, "COMMAND"),
    ],
)
def test_every_failure_is_a_line_and_a_code(
    arguments: list[str], code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert sorted(folder.rglob("*")) == before


def test_quiet_and_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "in/a.PNG", "-o", "x.jpg", "--quiet", "--compare", "--strength", "0"]) == 0
    assert capsys.readouterr().out == ""
    both = read(folder / "x_compare.jpg")[0]
    assert (both.width, both.height) == (1024, 512)


def test_strength_0_is_identical(folder: Path) -> None:
    assert main(["restore", "in/a.PNG", "-o", "x.png", "--strength", "0", "-q"]) == 0
    np.testing.assert_array_equal(read(folder / "x.png")[0].pixels, read(ASTRONAUT)[0].pixels)


def test_detect_lists_faces(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "in"]) == 3
    output = capsys.readouterr()
    a, face, b = output.out.replace(os.sep, "/").splitlines()
    assert (a, b) == ("in/a.PNG: 1 face", "in/b.png: no faces")
    found = re.fullmatch(r"    1  (\d+),(\d+) to (\d+),(\d+)  score (\S+)", face)
    assert found and float(found[5]) > 0.9
    np.testing.assert_allclose([int(v) for v in found.groups()[:4]], [178, 57, 273, 177], atol=6)
    assert "c.jpg: not a picture" in output.err
    assert main(["detect", "in/a.PNG", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["input"], len(line["faces"])) == (str(Path("in/a.PNG")), 1)
    face = line["faces"][0]
    assert set(face) == {"number", "box", "score", "landmarks"} and face["number"] == 1
    assert 178 < face["landmarks"][0][0] < face["landmarks"][1][0] < 273
    assert main(["detect", "in/a.PNG", "--threshold", "1"]) == 0
    assert "no faces" in capsys.readouterr().out
    assert main(["detect", "in/c.jpg"]) == 4


def test_grain_is_added_only_when_asked(folder: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 14, (512, 512, 1))
    with PillowImage.open("in/a.PNG") as clean:
        noisy = np.clip(np.asarray(clean.convert("RGB")) + noise, 0, 255).astype(np.uint8)
    PillowImage.fromarray(noisy).save("noisy.png")
    for name, more in (("x.png", []), ("y.png", ["--grain", "0"]), ("z.png", ["--grain", "1"])):
        assert main(["restore", "noisy.png", "-o", name, "-q", *more]) == 0
    plain, zero, grainy = (read(folder / f"{name}.png")[0].pixels for name in "xyz")
    np.testing.assert_array_equal(plain, zero)
    changed = (plain != grainy).any(2)
    assert changed[80:150, 195:255].mean() > 0.5
    assert not changed[300:].any() and not changed[:, 400:].any()
    assert main(["restore", "in/a.PNG", "-o", "w.png", "--grain", "1", "--aligned"]) == 2


def test_the_three_log_lines(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "inference_gpen.py"), "--input", str(PORTRAIT), "--size", "512"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second, third, *_ = done.stdout.splitlines()
    assert first == "[INFO] Face detection disabled. Using raw input."
    assert second == "[INFO] Input resized to 512x512 (pad mode: reflect)"
    memory = re.fullmatch(r"\[INFO\] Generator loaded\. Total CPU memory: (\d+)MB", third)
    assert memory and 60 < int(memory[1]) < 400
    image, origin = read(folder / "output_portrait.png")
    assert (image.width, image.height, origin.format) == (512, 512, "PNG")


def test_the_drop_in_detects_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpen_main(["-i", "in/a.PNG", "-o", "x.png", "--detect", "--batch-size", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[INFO] Face detection enabled: 1 faces."
    assert lines[1].startswith("[INFO] Generator loaded. Total CPU memory: ")
    assert read(folder / "x.png")[0].width == 512


def test_the_drop_in_takes_folders_and_loads_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpen_main(["-i", "in"]) == 3
    output = capsys.readouterr()
    assert output.out.count("Generator loaded") == 1
    assert output.out.count("Input resized") == 2
    assert sorted(p.name for p in folder.glob("output_*")) == ["output_a.png", "output_b.png"]
    assert "recommend" not in output.out
    assert "--detect finds and restores each face" in output.out  # 60x40 is no upright portrait


def test_the_drop_in_refuses_unknown_sizes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpen_main(["-i", "in/a.PNG", "--size", "100"]) == 2
    assert "takes size 512 or 1024, not 100" in capsys.readouterr().err


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert "lite" in out and "realesrgan-x4plus" in out and "BSD-3-Clause" in out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    from leanface import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"leanface {__version__}\n"
    assert main(["--help"]) == 0
    assert gpen_main(["--help"]) == 0


def test_an_unwritable_folder_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    assert main(["restore", "in/a.PNG", "-o", "file/x.png"]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_results_of_one_name_get_distinct_ones(tmp_path: Path) -> None:
    sources = [tmp_path / "x" / "a.jpg", tmp_path / "y" / "a.jpg", tmp_path / "z" / "A.jpg"]
    targets = [job.target.name for job in batch.jobs(sources, tmp_path / "out", many=True)]
    assert targets == ["a.jpg", "a_2.jpg", "A_3.jpg"]


def test_results_are_not_inputs_the_next_time(folder: Path) -> None:
    assert main(["restore", "in/a.PNG", "in/b.png", "--compare", "-q"]) == 0
    assert [p.name for p in batch.expand(["in"])] == ["a.PNG", "b.png", "c.jpg"]


def test_expand(folder: Path) -> None:
    assert [p.name for p in batch.expand(["in/*.png", "in", "missing.png"])] == [
        *(["b.png", "a.PNG"] if os.name != "nt" else ["a.PNG", "b.png"]), "c.jpg", "missing.png",
    ]  # fmt: skip
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no pictures"):
        batch.expand(["empty"])
    (folder / "in" / "odd[1].png").write_bytes(ASTRONAUT.read_bytes())
    assert batch.expand(["in/odd[1].png"]) == [Path("in/odd[1].png")]
