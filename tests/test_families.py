"""Every family on its whole way: from a file of drawn weights to a restored picture, by the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from leanface import Restorer, families, registry
from leanface import pixels as px
from leanface.cli import main
from leanface.errors import UsageError
from leanface.families import realesrgan
from leanface.graphs.gfpgan import gfpgan
from leanface.imageio import Origin, read, write
from leanface.registry import Crop
from leanface.types import Image, Options
from tests import drawn
from tests.test_graphs_gpen import openvino

Array = NDArray[np.uint8]
SIZE = 512


@pytest.fixture(scope="module")
def crop() -> Array:
    """A picture of 512 x 512 that uses every value; its three colours differ."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    waves = np.stack([np.sin(9 * x + 4 * y), np.cos(7 * y), np.sin(20 * x * y)], axis=2)
    pixels: Array = np.rint(127.5 + 127.5 * waves).astype(np.uint8)
    return pixels


@pytest.fixture
def picture(tmp_path: Path, crop: Array) -> Path:
    write(tmp_path / "crop.png", Image(crop), Origin())
    return tmp_path / "crop.png"


def run(picture: Path, *arguments: str, code: int = 0) -> Array | None:
    """Restore a ready crop in fp32; None where it failed."""
    target = picture.with_name("restored.png")
    command = ["restore", str(picture), "-o", str(target), "--aligned", "--overwrite", "-q"]
    assert main([*command, "--precision", "fp32", *arguments]) == code
    return read(target)[0].pixels if code == 0 else None


def given(model: str, path: Path) -> list[str]:
    return ["--model", model, "--weights", str(path), "--allow-unverified"]


def levels(a: Array | None, b: NDArray[np.floating]) -> float:
    """The largest difference in 8-bit levels."""
    assert a is not None
    return float(np.abs(a - np.clip(b, 0, 255)).max())


# ---- published ONNX files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gfpgan-1.4", "codeformer", "restoreformer++"])
def test_an_identity_network_changes_nothing(model: str, picture: Path, crop: Array) -> None:
    graph = drawn.codeformer_export() if model == "codeformer" else drawn.export(output="any name")
    weights = drawn.save(graph, picture.with_name("mine.onnx"))
    more = ["--fidelity", "1"] if model == "codeformer" else []
    np.testing.assert_array_equal(run(picture, *given(model, weights), *more), crop)


@pytest.mark.parametrize("model", ["gfpgan-1.4", "restoreformer++"])
def test_networks_see_and_give_rgb_from_minus_1_to_1(model: str, picture: Path, crop: Array) -> None:
    """A gain in [-1, 1] turns about the middle of the range; each colour has its own."""
    gains = (1.0, 0.5, -0.25)
    weights = drawn.save(drawn.export(gains=gains), picture.with_name("mine.onnx"))
    expected = (crop.astype(np.float64) - 127.5) * gains + 127.5
    assert levels(run(picture, *given(model, weights)), expected) <= 0.51


@pytest.mark.parametrize(("arguments", "value"), [([], 0.5), (["--fidelity", "0.2"], 0.2)])
def test_fidelity_is_what_the_network_gets(
    arguments: list[str], value: float, picture: Path, crop: Array
) -> None:
    """The drawn network multiplies by it; not given, it is 0.5."""
    weights = drawn.save(drawn.codeformer_export(), picture.with_name("mine.onnx"))
    expected = (crop.astype(np.float64) - 127.5) * value + 127.5
    assert levels(run(picture, *given("codeformer", weights), *arguments), expected) <= 0.51


def test_fidelity_on_onnxruntime(picture: Path, crop: Array) -> None:
    pytest.importorskip("onnxruntime")
    weights = drawn.save(drawn.codeformer_export(), picture.with_name("mine.onnx"))
    restored = run(picture, *given("codeformer", weights), "--fidelity", "0.2", "--device", "ort-cpu")
    assert levels(restored, (crop.astype(np.float64) - 127.5) * 0.2 + 127.5) <= 0.51


@pytest.mark.parametrize("model", ["gpen-512", "lite", "restoreformer++"])
def test_a_knob_is_for_the_families_that_have_it(
    model: str, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(picture, "--model", model, "--fidelity", "0.5", code=2)
    assert capsys.readouterr().err == f"leanface: {model} takes no fidelity; it is for codeformer\n"


def test_knobs_are_checked_at_each_call_too() -> None:
    with pytest.raises(UsageError, match="fidelity of codeformer lies between 0 and 1, not 2"):
        Restorer("codeformer", options=Options(fidelity=2))
    with Restorer("lite") as restorer, pytest.raises(UsageError, match="lite takes no fidelity"):
        restorer.restore(np.zeros((8, 8, 3), np.uint8), Options(fidelity=0.5))
    codeformer = registry.find("codeformer")
    assert registry.turned(codeformer, {}) == {"fidelity": 0.5}
    assert registry.turned(codeformer, {"fidelity": 1}) == {"fidelity": 1}
    with pytest.raises(UsageError, match="codeformer takes no wit"):
        registry.turned(codeformer, {"wit": 1})
    with pytest.raises(UsageError, match="not nan"):
        registry.turned(codeformer, {"fidelity": float("nan")})


NEEDED = "needed is input float32 [1, 3, 512, 512], weight float64 [1] -> output float32 [1, 3, any, any]"


@pytest.mark.parametrize(
    ("model", "graph", "shown"),
    [
        ("codeformer", drawn.export(), "input float32 [1, 3, 512, 512] -> output float32 [1, 3, 512, 512]"),
        ("codeformer", drawn.codeformer_export(dtype="float32"), "weight float32 [1] -> y"),
        ("codeformer", drawn.codeformer_export(256), "input float32 [1, 3, 256, 256], weight float64 [1]"),
        ("restoreformer++", drawn.codeformer_export(), "weight float64 [1] -> y"),
        ("restoreformer++", drawn.export(input="x"), "x float32 [1, 3, 512, 512] -> output"),
        ("gfpgan-1.4", drawn.export(1024), "input float32 [1, 3, 1024, 1024]"),
        ("gpen-512", drawn.export(256), "input float32 [1, 3, 256, 256]"),
    ],
    ids=["no weight", "float32 weight", "256", "a weight", "input name", "1024", "gpen"],
)
def test_other_files_are_refused_with_their_signature(
    model: str, graph: onnx.ModelProto, shown: str, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = drawn.save(graph, picture.with_name("mine.onnx"))
    run(picture, *given(model, weights), code=2)
    error = capsys.readouterr().err
    assert f"mine.onnx does not hold {model}: it is " in error and shown in error and error.count("\n") == 1
    if model == "codeformer":
        assert NEEDED in error


def test_a_checkpoint_where_an_export_is_needed(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = drawn.checkpoint(drawn.compact(""), picture.with_name("mine.pth"))
    run(picture, *given("codeformer", weights), code=2)
    assert "mine.pth is a checkpoint; this model needs an .onnx file" in capsys.readouterr().err


def test_an_export_with_its_published_sum_needs_no_leave(
    picture: Path, crop: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file given is compared with the file of its own kind, not with the checkpoint that comes first."""
    import dataclasses
    import hashlib

    from leanface.weights import manifest

    weights = drawn.save(drawn.export(), picture.with_name("any.onnx"))
    data = weights.read_bytes()
    known = dataclasses.replace(
        manifest.get("gfpgan-1.4-onnx"), sha256=hashlib.sha256(data).hexdigest(), size=len(data)
    )
    monkeypatch.setattr(manifest, "FILES", {**manifest.FILES, known.id: known})
    np.testing.assert_array_equal(run(picture, "--model", "gfpgan-1.4", "--weights", str(weights)), crop)


def test_an_imported_export_is_found_measured_and_removed(
    picture: Path, crop: Array, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = drawn.save(drawn.codeformer_export(), picture.with_name("mine.onnx"))
    assert main(["models", "import", "codeformer", str(weights), "--allow-unverified"]) == 0
    np.testing.assert_array_equal(run(picture, "--model", "codeformer", "--fidelity", "1"), crop)
    known = [registry.find(name) for name in ("codeformer", "gpen-512", "lite")]
    monkeypatch.setattr(registry, "models", lambda role="restorer": tuple(known))
    capsys.readouterr()
    assert main(["models", "list", "--measure"]) == 0
    output = capsys.readouterr().out
    head, codeformer, gpen, lite = output.splitlines()
    assert head.split("  ")[0] == "model" and "a face takes" in head and "memory" in head
    assert "here (cache)" in codeformer and "not measured" in codeformer and "S-Lab" in codeformer
    assert "not here" in gpen and " s " not in gpen.split("bf16 ")[1][:40]
    costs = {o.precision: o.peak // 10**6 for o in registry.find("lite").variant.options if not o.size}
    assert "embedded" in lite and f"bf16 {costs['bf16']} MB, fp32 {costs['fp32']} MB" in lite
    for line in (codeformer, lite):
        assert 0 <= float(line.split(" s bf16")[0].split(" s fp32")[0].split()[-1]) < 60
    assert main(["models", "remove", "codeformer"]) == 0
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "a face takes" not in lines[-4] and "not here" in lines[-3]


def test_a_model_that_fails_is_no_end_of_measuring(
    picture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = drawn.save(drawn.export(input="x"), picture.with_name("mine.onnx"))
    assert main(["models", "import", "restoreformer++", str(weights), "--allow-unverified"]) == 0
    known = [registry.find(name) for name in ("restoreformer++", "lite")]
    monkeypatch.setattr(registry, "models", lambda role="restorer": tuple(known))
    capsys.readouterr()
    assert main(["models", "--measure"]) == 0
    printed = capsys.readouterr()
    assert "does not hold restoreformer++" in printed.err
    failed, lite = printed.out.splitlines()[1:]
    assert "fails" in failed and " s " in lite
    assert main(["models", "remove", "restoreformer++"]) == 0


def test_a_damaged_copy_is_no_end_of_listing(
    picture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = drawn.save(drawn.export(), picture.with_name("mine.onnx"))
    assert main(["models", "import", "restoreformer++", str(weights), "--allow-unverified"]) == 0
    (copy,) = Restorer("restoreformer++")._library.store.folder.glob("restoreformer*.onnx")
    copy.write_bytes(b"\x08\x08 and rubbish")
    capsys.readouterr()
    assert main(["models", "list"]) == 0
    printed = capsys.readouterr()
    (line,) = [s for s in printed.out.splitlines() if s.startswith("restoreformer++")]
    assert " damaged " in line and "leanface models remove restoreformer++" in printed.err
    assert main(["models", "remove", "restoreformer++"]) == 0


def test_a_limit_needs_known_costs(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = drawn.save(drawn.codeformer_export(), picture.with_name("mine.onnx"))
    run(picture, *given("codeformer", weights), "--memory", "8GB", code=2)
    assert "what codeformer at 512 needs was not measured; use it without a limit" in capsys.readouterr().err


# ---- checkpoints -------------------------------------------------------------------------------------------


def test_gfpgan_from_its_checkpoint(picture: Path, crop: Array) -> None:
    weights = drawn.gfpgan("gfpgan-1.4")
    restored = run(
        picture, *given("gfpgan-1.4", drawn.checkpoint(weights, picture.with_name("GFPGANv1.4.pth")))
    )
    signed = (crop.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
    expected = openvino(gfpgan(weights, name="g", half=False), signed)[0].transpose(1, 2, 0)
    assert levels(restored, (expected + 1) * 127.5) <= 0.6
    assert 20 < np.std(expected * 127.5) < 500


def test_gfpgan_of_another_size_is_refused(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = drawn.checkpoint(drawn.gfpgan_of([4, 4, 4], 8), picture.with_name("mine.pth"))
    run(picture, *given("gfpgan-1.4", weights), code=2)
    assert "mine.pth does not hold gfpgan-1.4: it is a GFPGAN of 16 pixels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "weights", "message"),
    [
        ("realesrgan-x4plus", drawn.realesrgan("x2"), "it enlarges by 2, not by 4"),
        ("realesrgan-x2plus", drawn.realesrgan("x4"), "it enlarges by 4, not by 2"),
        ("realesrgan-x2plus", drawn.compact(""), "conv_first.weight is missing"),
        ("realesr-general-x4v3", drawn.realesrgan("x4"), "body.0.weight is missing"),
    ],
)
def test_another_networks_weights_are_refused(
    model: str, weights: drawn.Weights, message: str, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(picture, *given(model, drawn.checkpoint(weights, picture.with_name("mine.pth"))), code=2)
    error = capsys.readouterr().err
    assert f"mine.pth does not hold {model}: " in error and message in error and error.count("\n") == 1


def test_imported_weights_replace_the_embedded_ones(
    picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until they are removed."""
    model = ["--model", "realesr-animevideov3"]  # unlike x4plus it has none to import
    run(picture, *model)
    weights = drawn.weights_file("realesrgan-x4plus", picture.parent)
    path = registry.ASSETS / "realesrgan-x4plus.onnx"
    with Restorer("realesrgan-x4plus") as restorer:
        assert restorer._library.graph(restorer.model, "fp32").path == path
        assert main(["models", "import", "realesrgan-x4plus", str(weights), "--allow-unverified"]) == 0
        own = restorer._library.graph(restorer.model, "fp32").path
        assert own.parent.name == "graphs" and own.name.startswith("realesrgan-x4plus-")
        capsys.readouterr()
        assert main(["models"]) == 0
        (line,) = [s for s in capsys.readouterr().out.splitlines() if s.startswith("realesrgan-x4plus")]
        assert "here (cache)" in line
        with_own = run(picture, "--model", "realesrgan-x4plus")
        assert main(["models", "remove", "realesrgan-x4plus"]) == 0
        assert restorer._library.graph(restorer.model, "fp32").path == path and not own.exists()
        assert main(["models"]) == 0
        out = capsys.readouterr().out
        (line,) = [s for s in out.splitlines() if s.startswith("realesrgan-x4plus ")]
        assert " embedded " in line
    assert with_own is not None and with_own.std() > 10


@pytest.mark.parametrize(("factor", "sides"), [(4, (128, 192, 256)), (2, (256, 384, 512))])
def test_crops_are_shrunk_no_further_than_the_network_enlarges(factor: int, sides: tuple[int, ...]) -> None:
    gray = np.full((SIZE, SIZE, 3), 0.5, np.float32)
    bars = np.broadcast_to((np.arange(SIZE) // 32 % 2).astype(np.float32)[:, None, None], gray.shape)
    assert realesrgan.working_size(Crop(gray, factor=factor)) == sides[0]
    assert realesrgan.working_size(Crop(bars, factor=factor)) == sides[-1]
    assert realesrgan.working_size(Crop(bars, scale=SIZE / sides[1], factor=factor)) == sides[1]
    assert realesrgan.working_size(Crop(gray.repeat(2, 0).repeat(2, 1), factor=factor)) == 2 * sides[0]


@pytest.mark.parametrize("factor", [2, 4])
def test_a_perfect_enlarger_keeps_a_smooth_face(factor: int, crop: Array) -> None:
    taken = Crop(px.to_float(crop), factor=factor)
    shrunk = realesrgan.FAMILY.prepare(taken)["input"]
    enlarged = px.resize(px.interleaved(shrunk), *[shrunk.shape[-1] * factor] * 2)
    restored = realesrgan.FAMILY.finish({"output": px.planes(enlarged)}, taken)
    assert np.abs(restored - taken.pixels).max() < 0.03


# ---- a new family ------------------------------------------------------------------------------------------

NEW = '''
"""Turns a face into its negative."""

from pathlib import Path

from leanface import pixels as px
from leanface.registry import FFHQ, Family, Knob, Variant

FAMILY = Family(
    id="negative",
    role="restorer",
    template=FFHQ,
    prepare=lambda crop: {"input": px.planes(crop.pixels - crop.knobs["fidelity"])},
    finish=lambda outputs, crop: px.interleaved(outputs["output"]) + 1,
    knobs=(Knob("fidelity", "what is taken off first", default=0),),
    variants=(
        Variant(
            id="negative-32",
            sizes=(32,),
            asset=str(Path(__file__).with_name("negative.onnx")),
            licence="MIT",
            origin="a test",
            precisions=("fp32",),
            about="dark for light",
        ),
    ),
)
'''


def test_adding_a_family_takes_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "negative.py").write_text(NEW, "utf-8")
    drawn.save(drawn.export(32, gains=(-1, -1, -1)), folder / "negative.onnx")
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(folder)])
    registry.families.cache_clear()
    try:
        assert main(["models", "list"]) == 0
        (line,) = [s for s in capsys.readouterr().out.splitlines() if s.startswith("negative-32")]
        assert line.split() == ["negative-32", "negative", "32", "embedded", "not", "measured", "MIT",
                                "a", "test", "dark", "for", "light"]  # fmt: skip
        pixels = np.random.default_rng(3).integers(0, 256, (32, 32, 3), np.uint8)
        write(tmp_path / "small.png", Image(pixels), Origin())
        restored = run(tmp_path / "small.png", "--model", "negative-32")
        np.testing.assert_array_equal(restored, 255 - pixels)
        darker = run(tmp_path / "small.png", "--model", "negative-32", "--fidelity", "0.2")
        assert levels(darker, 255.0 + 51 - pixels) <= 0.51
        run(tmp_path / "small.png", "--model", "lite", "--fidelity", "0.2", code=2)
        assert "it is for codeformer, negative" in capsys.readouterr().err
    finally:
        registry.families.cache_clear()
        sys.modules.pop("leanface.families.negative", None)
        vars(families).pop("negative", None)
    monkeypatch.undo()
    assert "negative" not in [family.id for family in registry.families()]
