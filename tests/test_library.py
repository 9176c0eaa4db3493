from __future__ import annotations

from pathlib import Path

import pytest

from leanface import registry
from leanface.cli import main
from leanface.errors import ModelError, UsageError
from leanface.library import PREFERRED, Library
from leanface.settings import Settings
from leanface.weights import manifest
from leanface.weights.store import Store


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """One over an empty cache, that looks nowhere else."""
    return Library(Store(Settings(cache=tmp_path / "cache"), places=()))


def test_auto_is_the_embedded_model_where_nothing_else_is(library: Library) -> None:
    assert library.choose("auto", None).variant.id == "lite"
    assert library.choose("auto", 1024).variant.id == "lite"


def test_auto_takes_published_weights_that_are_here(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"gpen-512", "gpen-1024"}
    monkeypatch.setattr(Library, "find", lambda self, model: model.variant.id in here or None)
    assert library.choose("auto", None).variant.id == "gpen-512"
    assert library.choose("auto", 1024).variant.id == "gpen-1024"
    assert library.choose("auto", 512).variant.id == "gpen-512"
    here.clear()
    assert library.choose("auto", None).variant.id == "lite"


def test_preferred_models_exist() -> None:
    published = {m.variant.id for m in registry.models() if m.variant.files}
    assert set(PREFERRED) <= published


def test_unknown_names_and_sizes(library: Library) -> None:
    with pytest.raises(UsageError, match=r"there is no model 'gpen'; choose auto or one of .*gpen-512"):
        library.choose("gpen", None)
    with pytest.raises(UsageError, match="gpen-512 takes size 512, not 1024"):
        library.choose("gpen-512", 1024)
    with pytest.raises(UsageError, match="lite takes size 512 or 1024, not 2048"):
        library.choose("auto", 2048)


def test_embedded_graphs_need_no_store(library: Library) -> None:
    assert library.graph(registry.find("lite"), "bf16").path == registry.ASSETS / "lite.onnx"
    with pytest.raises(UsageError, match="inside the package"):
        library.file("lite")


def test_missing_weights_say_how_to_get_them(library: Library) -> None:
    with pytest.raises(ModelError) as caught:
        library.graph(registry.find("gpen-512"), "fp32")
    message = str(caught.value)
    file = manifest.get("gpen-512")
    for part in (file.name, str(file.size), str(file.sha256), *file.urls, "leanface models get gpen-512"):
        assert part in message
    assert "\n" not in message


def test_a_model_stands_for_its_file_with_a_published_sum(library: Library) -> None:
    assert library.file("gpen-512").id == "gpen-512"
    assert library.file("gpen-1024").id == "gpen-1024-onnx"
    assert library.file("gpen-256", like=Path("mine.PTH")).id == "gpen-256"
    assert library.file("gpen-256", like=Path("mine.onnx")).id == "gpen-256-onnx"
    assert library.file("codeformer-onnx").id == "codeformer-onnx"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["get", "lite"], 2, "inside the package"),
        (["get", "nothing"], 2, "no weights named 'nothing'"),
        (["get", "gpen-512"], 2, "the terms were not accepted"),
        (["import", "missing.pth"], 2, "there is no file missing.pth to import"),
        (["import", "a", "b", "c"], 2, "a model and a file"),
        (["verify", "gpen-512"], 4, "GPEN-BFR-512.pth"),
        (["remove", "gpen-512"], 2, "not in our cache"),
    ],
)
def test_models_commands_fail_in_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_models_path_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "path"]) == 0
    assert capsys.readouterr().out.strip().endswith("weights")
    assert main(["models", "verify"]) == 0
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (gpen,) = [line for line in lines if line.startswith("gpen-512")]
    assert "not here" in gpen and "non-commercial" in gpen


def test_doctor_says_what_auto_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[:3])
    assert set(lines) == {"leanface", "processor", "memory"}
    assert "fp32" in lines["processor"] and lines["memory"].endswith("GB free")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "auto model     lite (embedded)" in out and "OpenVINO       cpu" in out
