"""Crops of faces: written, described, edited and pasted back; with stubs in the place of the networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage

from leanface import Options, api
from leanface.cli import main
from leanface.errors import InputError, OutputError, UsageError
from leanface.imageio import read
from leanface.pixels import Float
from tests.test_matrix import ICC, MARKS, Generator, invert, restorer, sample
from tests.test_pipeline import row

FACES = np.array([row(20, 16, 30), row(70, 40, 36)], np.float32)


def detect(picture: NDArray[np.uint8]) -> Float:
    return FACES


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a colour, a gray and a 16-bit picture of two faces each."""

    class Stubbed(api.Restorer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, detector=detect, generator=lambda: Generator(invert))

    monkeypatch.setattr(api, "Restorer", Stubbed)
    monkeypatch.chdir(tmp_path)
    PillowImage.fromarray(sample(3, 8, smooth=True)).save("a.png", icc_profile=ICC)
    PillowImage.fromarray(sample(1, 8, smooth=True)[..., 0]).save("g.png")
    PillowImage.fromarray(sample(1, 16, smooth=True)[..., 0]).save("deep.png")
    return tmp_path


def pixels(path: Path | str) -> Any:
    return read(Path(path))[0].pixels.astype(int)


def test_crops_are_written_and_described(here: Path) -> None:
    assert main(["restore", "a.png", "-o", "out.png", "--save-crops", "crops"]) == 0
    assert sorted(p.name for p in (here / "crops").iterdir()) == [
        "a.json", "a_1.png", "a_1_input.png", "a_2.png", "a_2_input.png",
    ]  # fmt: skip
    found = json.loads((here / "crops" / "a.json").read_text("utf-8"))
    assert {key: found[key] for key in found if key != "faces"} == {
        "picture": "a.png", "width": 120, "height": 88, "model": "lite", "size": 512,
    }  # fmt: skip
    first, second = found["faces"]
    assert (first["number"], first["crop"], second["number"]) == (1, "a_1.png", 2)
    assert first["box"] == [70, 40, 106, 76]
    assert first["score"] == pytest.approx(0.95)
    eyes = [70 + 36 * MARKS[0][0], 40 + 36 * MARKS[0][1]]
    assert first["landmarks"][0] == pytest.approx(eyes)
    # The matrix takes the picture's place of the face to the crop's: there the crop as taken shows it.
    centre = np.array(first["matrix"]) @ [88.0, 58.0, 1.0]
    x, y = np.floor(centre).astype(int)
    taken, restored = (pixels(here / "crops" / name) for name in ("a_1_input.png", "a_1.png"))
    assert taken.shape == restored.shape == (512, 512, 3)
    # Both are averages of the four pixels around the point.
    np.testing.assert_allclose(taken[y, x], pixels("a.png")[57:59, 87:89].mean((0, 1)), atol=1.5)
    assert np.abs(restored - taken).max() > 50  # what the generator made of it
    with PillowImage.open(here / "crops" / "a_1.png") as opened:
        assert opened.info["icc_profile"] == ICC


@pytest.mark.parametrize("name", ["a", "g", "deep"])
def test_untouched_crops_paste_to_the_same_result(name: str, here: Path) -> None:
    assert main(["restore", f"{name}.png", "-o", "out.png", "--save-crops", "crops"]) == 0
    assert main(["paste", f"{name}.png", f"crops/{name}.json", "-o", "again.png"]) == 0
    assert np.abs(pixels("again.png") - pixels("out.png")).max() <= 1  # the crops were rounded
    with PillowImage.open("again.png") as again, PillowImage.open(f"{name}.png") as before:
        assert (again.mode, again.size) == (before.mode, before.size)
    with PillowImage.open(f"crops/{name}_1.png") as crop, PillowImage.open(f"{name}.png") as before:
        assert crop.mode == before.mode


@pytest.mark.parametrize("size", [512, 200, 1100])
def test_edited_crops_of_any_size_land_in_their_place_and_nowhere_else(size: int, here: Path) -> None:
    main(["restore", "a.png", "-o", "out.png", "--save-crops", "crops", "--pick", "1"])
    PillowImage.new("RGB", (size, size), (0, 250, 5)).save("crops/a_1.png")
    assert main(["paste", "a.png", "crops/a.json", "-o", "green.png"]) == 0
    before, after = pixels("a.png"), pixels("green.png")
    np.testing.assert_allclose(after[52:66, 80:96], np.full((14, 16, 3), (0, 250, 5)), atol=1)
    changed = (after != before).any(2)
    restored = (pixels("out.png") != before).any(2)
    rows, columns = np.nonzero(restored)
    outside = changed.copy()
    outside[rows.min() - 2 : rows.max() + 3, columns.min() - 2 : columns.max() + 3] = False
    assert not outside.any() and not changed[16:46, 20:50].any()  # the other face was not picked
    assert main(["paste", "a.png", "crops/a.json", "-o", "none.png", "--strength", "0"]) == 0
    np.testing.assert_array_equal(pixels("none.png"), before)


def test_a_coloured_crop_leaves_a_gray_picture_gray(here: Path) -> None:
    main(["restore", "g.png", "-o", "out.png", "--save-crops", "crops"])
    PillowImage.new("RGB", (64, 64), (255, 0, 0)).save("crops/g_1.png")
    assert main(["paste", "g.png", "crops/g.json", "-o", "red.png"]) == 0
    with PillowImage.open("red.png") as red:
        assert red.mode == "L"
        assert red.getpixel((88, 58)) == 76  # the luma of that red


def test_pictures_of_one_name_get_crops_of_their_own(here: Path) -> None:
    for folder in ("x", "y"):
        (here / folder).mkdir()
        (here / folder / "A.png").write_bytes((here / "a.png").read_bytes())
    arguments = ["restore", "a.png", "x", "y", "--save-crops", "crops", "--faces", "largest"]
    assert main([*arguments, "-o", "out"]) == 0
    assert sorted(p.name for p in (here / "crops").glob("*.json")) == ["A_2.json", "A_3.json", "a.json"]
    assert len(list((here / "crops").glob("*.png"))) == 6


def test_crops_are_never_overwritten_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["restore", "a.png", "-o", "out.png", "--save-crops", "crops"]
    (here / "crops").mkdir()
    (here / "crops" / "a_2.png").write_bytes(b"mine")
    assert main(arguments) == 4
    assert "a_2.png: exists already; --overwrite replaces it" in capsys.readouterr().err
    assert [p.name for p in (here / "crops").iterdir()] == ["a_2.png"] and not (here / "out.png").exists()
    (here / "crops" / "a_2.png").unlink()
    (here / "crops" / "a.json").write_bytes(b"mine")
    assert main(arguments) == 4
    assert "a.json: exists already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0
    assert main([*arguments, "--overwrite"]) == 0
    assert (here / "crops" / "a.json").read_bytes()[:1] == b"{"


def test_a_picture_without_faces_has_an_empty_description(here: Path) -> None:
    main(["restore", "a.png", "-o", "out.png", "--save-crops", "crops", "--min-face", "50"])
    assert json.loads((here / "crops" / "a.json").read_text("utf-8"))["faces"] == []
    assert main(["paste", "a.png", "crops/a.json", "-o", "same.png"]) == 0
    np.testing.assert_array_equal(pixels("same.png"), pixels("a.png"))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda d: (d / "crops" / "a_1.png").unlink(), 4, "a_1.png: there is no such file"),
        (lambda d: (d / "crops" / "a_1.png").write_bytes(b"x"), 4, "a_1.png: not a picture"),
        (lambda d: PillowImage.new("RGB", (9, 8)).save(d / "crops/a_1.png"), 4, "must be square, not 9x8"),
        (lambda d: PillowImage.new("RGB", (120, 87)).save(d / "a.png"), 4, "is 120x87, but the crops are of"),
        (lambda d: (d / "crops" / "a.json").unlink(), 4, "a.json: there is no such file"),
        (lambda d: (d / "crops" / "a.json").write_text("{"), 4, "is no description of crops ("),
        (lambda d: (d / "crops" / "a.json").write_text("[1]"), 4, "is no description of crops ("),
        (lambda d: (d / "crops" / "a.json").write_text('{"faces": []}'), 4, "('width' is missing)"),
        (lambda d: alter(d, matrix=[[1, 0, 0], [2, 0, 0]]), 4, "two rows of three numbers"),
        (lambda d: alter(d, matrix=[[1, 0, 0]]), 4, "two rows of three numbers"),
        (lambda d: alter(d, crop="../a.png"), 4, "a file beside this one"),
        (lambda d: alter(d, box=[1, 2]), 4, "is no description of crops ("),
    ],
)  # fmt: skip
def test_wrong_crops_are_one_line(
    change: Any, code: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["restore", "a.png", "-o", "out.png", "--save-crops", "crops"])
    capsys.readouterr()
    change(here)
    assert main(["paste", "a.png", "crops/a.json", "-o", "pasted.png"]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (here / "pasted.png").exists()


def alter(folder: Path, **values: Any) -> None:
    path = folder / "crops" / "a.json"
    found = json.loads(path.read_text("utf-8"))
    found["faces"][0] |= values
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save-crops", "."], "crops need a folder of their own"),
        (["--save-crops", "c", "--aligned"], "crops and grain are of faces that are found"),
        (["--save-crops", "c", "--faces", "none"], "crops and grain are of faces that are found"),
        (["--save-crops", "c", "--resume"], "does not go with --resume"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restore", "a.png", "-o", "out", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_picture_itself_is_not_pasted_over(here: Path) -> None:
    api.Restorer("lite").restore_file("a.png", "out.png", crops=here / "crops" / "b.json")
    with pytest.raises(OutputError, match="is the input itself"):
        api.paste_file("a.png", "crops/b.json", "a.png", overwrite=True)
    with pytest.raises(OutputError, match="exists already"):
        api.paste_file("a.png", "crops/b.json", "out.png")
    result = api.paste_file("a.png", "crops/b.json", "new.png")
    assert (result.status, result.restored, result.model) == ("restored", 2, "lite")
    with pytest.raises(InputError, match="no such file"):
        api.paste_file("a.png", "crops/c.json", "newer.png")


def test_detecting_loads_no_restorer_and_counts_as_pick_does() -> None:
    def none() -> Generator:
        raise AssertionError("the restorer was loaded")

    picture = sample(3, 8)
    with api.Restorer("lite", detector=detect, generator=none) as stub:
        faces = stub.detect(picture)
    assert [face.box[0] for face in faces] == [70, 20]
    with api.Restorer("lite", detector=detect, generator=lambda: Generator(invert)) as stub:
        result = stub.restore(picture, Options(pick=(2,), keep_crops=True))
    assert [crop.number for crop in result.crops] == [2]
    assert result.crops[0].face == faces[1]


def test_crops_are_kept_only_when_asked() -> None:
    picture = sample(3, 16)
    with restorer(invert) as stub:
        assert stub.restore(picture).crops == ()
        (crop,) = stub.restore(picture, Options(keep_crops=True)).crops
        assert (crop.number, crop.taken.shape, crop.restored.dtype.name) == (1, (512, 512, 3), "uint16")
        assert np.asarray(crop.matrix).shape == (2, 3)
    with pytest.raises(UsageError, match="no face is looked for"):
        Options(keep_crops=True, aligned=True)
