"""Many files: names, journal, interruption; with stubs in the place of the networks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from leanface import api, batch
from leanface.batch import Job, expand, jobs, plan
from leanface.cli import main
from leanface.errors import ModelError, UsageError
from leanface.imageio import STDIO, read
from leanface.types import FileOptions
from tests.conftest import ROOT
from tests.test_matrix import Generator, detect, invert, raw_png, restorer, sample

POSIX = os.name == "posix"
JOURNAL = ".leanface.jsonl"
STUBBED = """
import sys, time
from leanface import api
from tests.test_matrix import Generator, detect, invert

def slow(x):
    time.sleep({pause})
    return invert(x)

class Stubbed(api.Restorer):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options, detector=detect, generator=lambda: Generator(slow))

api.Restorer = Stubbed
{more}
from leanface.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where the command line works with stubs."""

    class Stubbed(api.Restorer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, detector=detect, generator=lambda: Generator(invert))

    monkeypatch.setattr(api, "Restorer", Stubbed)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def picture(path: Path, seed: int = 0, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.roll(sample(3, 8), seed, axis=1)
    PillowImage.fromarray(pixels).save(path, **settings)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def results(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if not name.endswith(".jsonl")}


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ["a_restored.png", "b c_restored.JPG"]),
        (["--suffix", "_r"], ["a_r.png", "b c_r.JPG"]),
        (["--name", "new-{stem}"], ["new-a.png", "new-b c.JPG"]),
        (["--name", "cover"], ["cover.JPG", "cover.png"]),
        (["--name", "cover", "--format", "webp"], ["cover.webp", "cover_2.webp"]),
        (["--format", "png"], ["a_restored.png", "b c_restored.png"]),
        (["-o", "in"], ["a_restored.png", "b c_restored.JPG"]),
        (["-o", "in", "--format", "tif"], ["a.tif", "b c.tif"]),
    ],
)
def test_names(options: list[str], names: list[str], here: Path) -> None:
    picture(here / "in" / "a.png")
    picture(here / "in" / "b c.JPG")
    for _ in range(2):  # the second time results are not taken for inputs, and nothing is overwritten
        code = main(["restore", "in", "-q", *options])
        assert sorted(p.name for p in (here / "in").iterdir()) == sorted(["a.png", "b c.JPG", *names])
    assert code == 4


def test_formats_are_converted(here: Path) -> None:
    picture(here / "a.png")
    for suffix, kind in (("jpg", "JPEG"), ("tif", "TIFF"), ("webp", "WEBP"), ("bmp", "BMP"), ("png", "PNG")):
        assert main(["restore", "a.png", "-q", "-o", "out", "--format", suffix]) == 0
        with PillowImage.open(here / "out" / f"a.{suffix}") as opened:
            assert opened.format == kind


def test_a_tree_is_mirrored_and_results_inside_it_are_not_read(here: Path) -> None:
    for name in ("a.png", "sub/a.png", "sub/deep er/ü.png", "sub/a.jpg", ".hidden/a.png", "sub/notes.txt"):
        if name.endswith("txt"):
            (here / "in" / name).write_text("no picture")
        else:
            picture(here / "in" / name)
    if POSIX:
        (here / "in" / "sub" / "loop").symlink_to(here / "in")
    arguments = ["restore", "in", "-r", "-q", "-o", "in/results", "--format", "png"]
    assert main(arguments) == 0
    made = ["a.png", "sub/a.png", "sub/a_2.png", "sub/deep er/ü.png"]
    assert sorted(tree(here / "in" / "results")) == sorted(made)
    assert main([*arguments, "--overwrite"]) == 0
    assert sorted(tree(here / "in" / "results")) == sorted(made)
    assert main(["restore", "in", "-r", "-q", "-o", "elsewhere"]) == 0
    assert "results/a.png" in tree(here / "elsewhere")  # these are pictures like others now


def test_without_recursive_only_the_folder_itself(here: Path) -> None:
    picture(here / "in" / "a.png")
    picture(here / "in" / "sub" / "b.png")
    assert [str(p) for p in expand(["in"])] == [str(Path("in/a.png"))]
    assert [p.name for p in expand(["in", str(here / "in" / "a.png")])] == ["a.png"]  # once


@pytest.mark.skipif(not POSIX, reason="needs links")
def test_links_are_safe(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = picture(here / "a.png").read_bytes()
    (here / "in").mkdir()
    (here / "in" / "link.png").symlink_to(here / "a.png")
    (here / "in" / "dead.png").symlink_to(here / "nowhere.png")
    assert main(["restore", "in", "-q"]) == 0
    assert sorted(p.name for p in (here / "in").iterdir()) == ["dead.png", "link.png", "link_restored.png"]
    assert not (here / "in" / "link_restored.png").is_symlink()
    assert main(["restore", "in/link.png", "-o", "a.png", "-q", "--overwrite"]) == 4
    assert "is the input itself" in capsys.readouterr().err
    assert (here / "a.png").read_bytes() == original and not (here / "nowhere.png").exists()


def test_names_that_differ_in_case_or_in_form_only_stay_apart(tmp_path: Path) -> None:
    names = ["x/É.png", "y/é.png", "z/e\u0301.png", "x/É.PNG"]
    targets = [job.target for job in jobs([tmp_path / n for n in names], tmp_path / "out", many=True)]
    assert [t.name for t in targets] == ["É.png", "é_2.png", "e\u0301_3.png", "É_4.PNG"]


@pytest.mark.parametrize("stem", ["a" * 250, "肖" * 83, "🙂" * 62])
def test_very_long_names_are_cut(stem: str, here: Path) -> None:
    with contextlib.suppress(OSError):
        picture(here / "in" / f"{stem}.png")
    if not (here / "in" / f"{stem}.png").exists():
        pytest.skip("this file system takes no such name")
    assert main(["restore", "in", "-q", "--compare"]) == 0
    made = sorted(p.name for p in (here / "in").iterdir() if p.stem != stem)
    assert len(made) == 2 and all(name.startswith(stem[0] * 50) for name in made)
    assert all(read(here / "in" / name)[0].height == 88 for name in made)


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes")
def test_names_that_are_no_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    picture(here / "in" / name)
    assert main(["restore", "in", "-o", "out", "--report", "r.jsonl"]) == 0
    assert [os.fsencode(p.name) for p in (here / "out").iterdir()] == [b"caf\xe9.png"]
    assert json.loads((here / "r.jsonl").read_text("utf-8"))["input"].endswith(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in", "--name", "{stem}/x"], "a name is a pattern like '{stem}_restored'"),
        (["in", "--name", "{stm}"], "a name is a pattern"),
        (["in", "--name", ""], "a name is a pattern"),
        (["in", "--name", "x", "--suffix", "y"], "not allowed with argument"),
        (["in/a.png", "-o", "x.png", "--name", "y"], "x.png: names the result already"),
        (["in", "-o", "-"], "standard output takes the result of one picture only"),
        (["in", "--quality", "101"], "quality must lie between 1 and 100, not 101"),
        (["in", "--quality", "0"], "must be 1 or more"),
        (["in", "--format", "gif"], "invalid choice"),
        (["in", "--shard", "3/2"], "must be I/N with I from 1 to N"),
        (["in", "--shard", "half"], "must be I/N"),
        (["in", "--resume"], "--resume needs a folder for the results"),
        (["in/a.png", "-o", "x.png", "--resume"], "--resume needs a folder for the results"),
        (["in", "--report", "no/folder/r.jsonl"], "r.jsonl: cannot be written"),
        (["in", "--report", "in/a.png"], "a.png: names a picture, but the report is lines of JSON"),
        (["empty"], "the folder holds no pictures"),
        (["empty", "-r"], "the folder holds no pictures"),
    ],
)
def test_wrong_use_is_a_line(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(here / "in" / "a.png")
    (here / "empty").mkdir()
    before = tree(here)
    assert main(["restore", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert tree(here) == before


# --- standard input and output ----------------------------------------------------------------------------


class Streams:
    """Standard input and output as pipes of bytes."""

    def __init__(self, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = io.BytesIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(self.out, write_through=True))


@pytest.mark.parametrize(
    "arguments", [["-"], ["-", "-o", "-"], ["-", "--format", "png"], ["-", "--report", "r"]]
)
def test_a_pipe(arguments: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(here / "a.jpg")
    assert main(["restore", "a.jpg", "-q", "-o", "b.png" if "png" in arguments else "b.jpg"]) == 0
    streams = Streams((here / "a.jpg").read_bytes(), monkeypatch)
    assert main(["restore", *arguments]) == 0
    assert streams.out.getvalue() == (here / ("b.png" if "png" in arguments else "b.jpg")).read_bytes()


def test_half_a_pipe(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture(here / "a.png").read_bytes()
    assert main(["restore", "a.png", "-q", "-o", "b.png"]) == 0
    streams = Streams(data, monkeypatch)
    assert main(["restore", "a.png", "-o", "-"]) == 0
    assert streams.out.getvalue() == (here / "b.png").read_bytes()
    Streams(data, monkeypatch)
    assert main(["restore", "-", "-q", "-o", "c.png"]) == 0
    Streams(data, monkeypatch)
    assert main(["restore", "-", "-q", "-o", "folder"]) == 0
    for name in ("c.png", "folder/stdin.png"):
        assert (here / name).read_bytes() == (here / "b.png").read_bytes()


@pytest.mark.parametrize(("data", "message"), [(b"", "the file is empty"), (b"text", "not a picture")])
def test_a_bad_pipe(
    data: bytes, message: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = Streams(data, monkeypatch)
    assert main(["restore", "-"]) == 4
    assert streams.out.getvalue() == b""
    assert f"leanface: -: {message}" in capsys.readouterr().err


# --- a run ------------------------------------------------------------------------------------------------


def album(folder: Path, count: int) -> Path:
    """Pictures of several formats, every tenth broken in one of five ways, and two of one stem."""
    folder.mkdir(parents=True)
    for number in range(count):
        suffix = (".png", ".jpg", ".tif", ".webp")[number % 4]
        path = picture(folder / f"{number:03}{suffix}", seed=number)
        if number % 10 == 7:
            data = path.read_bytes()
            how = number // 10 % 5
            broken = [b"", data[: len(data) // 3], b"<html>", data[:7], raw_png(sample(3, 8))[:-40]][how]
            path.write_bytes(broken)
    picture(folder / "000.jpg", seed=1000)
    return folder


def test_order_counts_and_reasons(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    album(here / "in", 40)
    assert main(["restore", "in", "-o", "out", "--report", "r.jsonl"]) == 3
    output = capsys.readouterr()
    records = [json.loads(line) for line in (here / "r.jsonl").read_text("utf-8").splitlines()]
    assert [r["input"] for r in records] == [str(Path("in") / name) for name in sorted(tree(here / "in"))]
    assert [r["status"] for r in records].count("failed") == 4 == len(output.err.splitlines())
    assert "37 restored, 0 skipped, 4 failed" in output.out
    assert "failed: 1 the file is empty" in output.out
    assert "failed: 1 not a picture that can be read here" in output.out
    assert "failed: 2 damaged or cut off" in output.out
    assert len(results(here / "out")) == 37
    for name in results(here / "out"):
        before, after = read(here / "in" / name)[0].pixels, read(here / "out" / name)[0].pixels
        if name.endswith((".png", ".tif")):
            assert (before[:8] == after[:8]).all() and (before != after).any()


def test_at_most_three_pictures_are_held(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    album(here / "in", 9)
    events: list[str] = []
    held: list[int] = []
    lock = threading.Lock()
    read_real, save_real = batch.running.imageio.decode, batch.running.save  # type: ignore[attr-defined]

    def note(event: str) -> None:
        with lock:
            events.append(event)
            held.append(events.count("read") - events.count("written"))

    def reading(*arguments: Any) -> Any:
        note("read")
        return read_real(*arguments)

    def writing(*arguments: Any) -> Any:
        time.sleep(0.02)
        saved = save_real(*arguments)
        note("written")
        return saved

    monkeypatch.setattr("leanface.imageio.decode", reading)
    monkeypatch.setattr("leanface.batch.running.save", writing)
    work = plan([str(here / "in")], here / "out")
    outcomes = list(batch.run(restorer(invert), [w for w in work if "007" not in w.source.name]))
    assert [o.status for o in outcomes] == ["restored"] * 9
    assert 2 <= max(held) <= 3
    assert all(o.result and o.result.image.pixels.size == 3 for o in outcomes)  # pixels are not kept


def test_large_pictures_are_held_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leanface.batch.running._ALONE", 1000)
    album(here / "in", 6)
    work = plan([str(here / "in")], here / "out")
    outcomes = list(batch.run(restorer(invert), work))
    assert [o.status for o in outcomes] == ["restored"] * 7


def test_a_picture_that_memory_runs_out_over_fails_alone(here: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(here / name)
    calls = []

    def greedy(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError
        return invert(x)

    first, second = batch.run(restorer(greedy), plan(["a.png", "b.png"], here / "out"))
    assert (first.status, first.reason) == ("failed", "a.png: there is not enough memory for it")
    assert second.status == "restored"


def test_an_error_that_would_fail_every_picture_ends_the_run(here: Path) -> None:
    album(here / "in", 4)

    def broken() -> Any:
        raise ModelError("the weights are not what they should be")

    worker = restorer(invert)
    worker._generator = broken
    with pytest.raises(ModelError, match="not what they should be"):
        list(batch.run(worker, plan([str(here / "in")], here / "out")))
    assert results(here / "out") == {}


def test_dry_run_does_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(here / "in" / "a.png")
    picture(here / "in" / "b.png")
    picture(here / "out" / "b.png")
    before = tree(here)
    assert main(["restore", "in", "-o", "out", "--dry-run"]) == 0
    lines = capsys.readouterr().out.replace(os.sep, "/").splitlines()
    assert lines[0] == "in/a.png -> out/a.png"
    assert lines[1] == "in/b.png -> nothing: out/b.png: exists already; --overwrite replaces it"
    assert tree(here) == before
    assert main(["restore", "in/a.png", "-o", "out", "--resume", "-q"]) == 0
    before = tree(here)
    assert main(["restore", "in", "-o", "out", "--resume", "--dry-run"]) == 0
    lines = capsys.readouterr().out.replace(os.sep, "/").splitlines()
    assert lines[0] == "in/a.png -> out/a.png: finished by an earlier run"
    assert "out/b.png: exists already and is not in the journal" in lines[1]
    assert tree(here) == before


def test_fail_fast(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    album(here / "in", 30)
    assert main(["restore", "in", "-o", "out", "-q", "--fail-fast"]) == 3
    error = capsys.readouterr().err
    assert "stopped at the first failure: " in error and " of 31 pictures done" in error
    assert {"000.png", "006.tif"} <= results(here / "out").keys()
    assert len(results(here / "out")) <= 10


def test_shards_are_disjoint_and_complete(here: Path) -> None:
    album(here / "in", 10)
    main(["restore", "in", "-o", "whole", "-q", "--format", "png"])
    made = 0
    for index in (1, 2, 3):
        main(["restore", "in", "-o", "parts", "-q", "--format", "png", "--shard", f"{index}/3", "--resume"])
        assert len(results(here / "parts")) > made
        made = len(results(here / "parts"))
    assert results(here / "parts") == results(here / "whole")
    assert {name for name in tree(here / "parts") if "jsonl" in name} == {
        f".leanface-{index}of3.jsonl" for index in (1, 2, 3)
    }


def test_more_shards_than_pictures(here: Path) -> None:
    picture(here / "in" / "a.png")
    assert main(["restore", "in", "-o", "out", "-q", "--shard", "2/2"]) == 0
    assert not (here / "out").exists()


# --- going on ---------------------------------------------------------------------------------------------


def resumed(*more: str) -> int:
    return main(["restore", "in", "-o", "out", "--resume", *more])


def test_resume_does_only_what_is_missing_or_broken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    album(here / "in", 6)
    assert resumed("-q") == 0
    whole = results(here / "out")
    (here / "out" / "001.jpg").unlink()
    (here / "out" / "002.tif").write_bytes(b"")
    (here / "out" / "003.webp").write_bytes(whole["003.webp"][:500])
    untouched = {name: (here / "out" / name).stat().st_mtime_ns for name in ("000.png", "000.jpg", "004.png")}
    capsys.readouterr()
    assert resumed() == 0
    assert "3 restored, 0 skipped, 0 failed, 4 finished before" in capsys.readouterr().out
    assert results(here / "out") == whole
    assert untouched == {name: (here / "out" / name).stat().st_mtime_ns for name in untouched}


def test_resume_takes_up_what_failed_and_what_is_new(here: Path) -> None:
    album(here / "in", 8)
    assert resumed("-q") == 3
    picture(here / "in" / "007.webp", seed=7)
    picture(here / "in" / "new.png", seed=8)
    assert resumed("-q") == 0
    assert {"007.webp", "new.png"} <= results(here / "out").keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("settings", "was made with other settings (strength was 1.0, is 0.5); --overwrite makes it anew"),
        ("input", "was made from another picture, or its input has changed; --overwrite makes it anew"),
        ("result", "has been changed since it was written; --overwrite makes it anew"),
        ("stranger", "exists already and is not in the journal; --overwrite makes it anew"),
    ],
)
def test_resume_reports_what_has_changed_and_overwrites_nothing(
    change: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(here / "in" / "a.png")
    assert resumed("-q") == 0
    more = ["--strength", "0.5"] if change == "settings" else []
    if change == "input":
        picture(here / "in" / "a.png", seed=9)
    elif change == "result":
        picture(here / "out" / "a.png", seed=3)
    elif change == "stranger":
        (here / "out" / JOURNAL).unlink()
    before = results(here / "out")
    assert resumed("-q", *more) == 4
    assert message in capsys.readouterr().err
    assert results(here / "out") == before
    assert resumed("-q", "--overwrite", *more) == 0
    if change != "stranger":
        assert results(here / "out") != before
    after = results(here / "out")
    assert resumed("-q", *more) == 0
    assert results(here / "out") == after


def test_a_comparison_belongs_to_what_is_finished(here: Path) -> None:
    picture(here / "in" / "a.png")
    assert resumed("-q", "--compare") == 0
    whole = results(here / "out")
    assert sorted(whole) == ["a.png", "a_compare.png"]
    (here / "out" / "a_compare.png").unlink()
    assert resumed("-q", "--compare") == 0
    assert results(here / "out") == whole


def test_a_torn_journal_costs_its_last_line_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    album(here / "in", 4)
    assert resumed("-q") == 0
    whole = results(here / "out")
    journal = here / "out" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])["output"]
    journal.write_bytes(b"".join(lines)[:-30])
    (here / "out" / last).unlink()
    capsys.readouterr()
    assert resumed() == 0
    assert "1 restored, 0 skipped, 0 failed, 4 finished before" in capsys.readouterr().out
    assert results(here / "out") == whole
    assert resumed("-q") == 0


def command(*arguments: str, pause: float = 0.0, more: str = "") -> list[str]:
    return [sys.executable, "-c", STUBBED.format(pause=pause, more=more), "restore", *arguments]


def started(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(*arguments, **options), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def wait_for(folder: Path, count: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:  # counts names only: the files come and go
        if sum(p.suffix not in (".jsonl", ".part") for p in folder.rglob("*")) >= count:
            return
        time.sleep(0.005)


def test_killed_three_times_and_resumed_it_is_as_if_nothing_had_been(tmp_path: Path) -> None:
    album(tmp_path / "in", 100)
    assert started(tmp_path, "in", "-o", "whole", "-q", "--resume").wait(120) == 3
    random = np.random.default_rng()
    for goal in sorted(random.integers(3, 80, 3)):
        process = started(tmp_path, "in", "-o", "out", "-q", "--resume")
        wait_for(tmp_path / "out", int(goal))
        time.sleep(random.uniform(0, 0.03))
        process.kill()
        process.communicate()
        whole = results(tmp_path / "whole")
        assert all(
            data == whole[name] for name, data in results(tmp_path / "out").items() if "part" not in name
        )
    assert started(tmp_path, "in", "-o", "out", "-q", "--resume").wait(120) == 3
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    assert len(results(tmp_path / "out")) == 91


HALF_A_WRITE = """
import os, signal
from PIL import Image
def save(self, stream, **settings):
    stream.write(b"half of it")
    stream.flush()
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
Image.Image.save = save
"""


def test_killed_in_mid_write_nothing_has_the_final_name(here: Path) -> None:
    picture(here / "in" / "a.png")
    process = started(here, "in", "-o", "out", more=HALF_A_WRITE)
    process.communicate(timeout=60)
    assert process.returncode != 0
    (left,) = (here / "out").iterdir()
    assert left.suffix == ".part" and left.read_bytes() == b"half of it"
    assert main(["restore", "in", "-o", "out", "-q"]) == 0
    assert [p.name for p in (here / "out").iterdir()] == ["a.png"]


@pytest.mark.skipif(not POSIX, reason="needs signals")
def test_an_interrupt_finishes_the_current_picture(here: Path) -> None:
    album(here / "in", 30)
    process = started(here, "in", "-o", "out", "--resume", pause=0.1)
    wait_for(here / "out", 2)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"finishing the current picture; interrupt again to break it off" in error
    assert b"pictures done" in error and b"Traceback" not in error
    assert b" restored, 0 skipped" in out
    done = results(here / "out")
    assert 2 <= len(done) < 20 and not any("part" in name for name in done)
    assert resumed("-q") == 3
    assert {name: data for name, data in results(here / "out").items() if name in done} == done
    assert len(results(here / "out")) == 28


@pytest.fixture
def interrupted_at_once() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_the_signal_handler_is_put_back(here: Path, interrupted_at_once: None) -> None:
    picture(here / "a.png")
    assert main(["restore", "a.png", "-q"]) == 0


def test_it_works_in_a_thread(here: Path) -> None:
    picture(here / "a.png")
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["restore", "a.png", "-q"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_plan_for_programs(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    assert plan([str(tmp_path / "a.png")], tmp_path / "b.jpg") == [
        Job(tmp_path / "a.png", tmp_path / "b.jpg")
    ]
    assert plan(["-"], None) == [Job(STDIO, STDIO)]
    with pytest.raises(UsageError, match="from 1 to 2, not 3"):
        batch.shard([], 3, 2)
    with pytest.raises(UsageError, match="quality"):
        FileOptions(quality=0)
