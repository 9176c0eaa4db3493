import hashlib

import pytest

from leanface.errors import UsageError
from leanface.weights import manifest
from leanface.weights.manifest import FILES, LICENCES, Licence, WeightFile


def test_names_are_unique_and_nothing_dangles() -> None:
    assert len(FILES) == 21
    assert len({file.name for file in FILES.values()}) == 21
    assert {file.licence for file in FILES.values()} == set(LICENCES)
    sums = [file.sha256 for file in FILES.values() if file.sha256]
    assert len(set(sums)) == len(sums) == 14
    for file_id, file in FILES.items():
        assert file_id == file.id
        assert file.urls
        assert all(url.startswith("https://") and url.endswith(f"/{file.name}") for url in file.urls)


def test_published_values() -> None:
    file = manifest.get("gpen-512")
    assert (file.name, file.size) == ("GPEN-BFR-512.pth", 284085738)
    assert file.sha256 == "f1002c41add95b0decad69604d80455576f7187dd99ca16bd611bcfd44c10b51"
    assert file.urls[1] == "https://huggingface.co/akhaliq/GPEN-BFR-512/resolve/main/GPEN-BFR-512.pth"
    assert not file.terms.commercial
    assert manifest.get("gpen-1024").folder == "cv_gpen_image-portrait-enhancement-hires"
    assert manifest.get("realesrgan-x4plus").terms.commercial
    # All the sums at once, so that no digit changes unnoticed.
    joined = "".join(sorted(file.sha256 for file in FILES.values() if file.sha256))
    assert hashlib.sha256(joined.encode()).hexdigest() == SUM_OF_SUMS


SUM_OF_SUMS = "d8732d6e98ebf39bd671e2da19dae2005c53ff6f192d10c4c8e0eb289aebabc3"


def test_unknown_id_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no weights named 'gpen512'; did you mean gpen-512"):
        manifest.get("gpen512")


@pytest.mark.parametrize(
    "change",
    [
        {"id": "GPEN 512"},
        {"name": "../evil.pth"},
        {"name": "sub/evil.pth"},
        {"name": "evil.exe"},
        {"sha256": "ABC"},
        {"size": 0},
        {"urls": ("file:///etc/passwd",)},
        {"urls": ("https://host",)},
    ],
)
def test_entries_are_validated(change: dict[str, object]) -> None:
    good: dict[str, object] = {"id": "a", "name": "a.pth", "licence": "mit", "urls": ("https://h/a.pth",)}
    WeightFile(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the manifest is wrong"):
        WeightFile(**good | change)  # type: ignore[arg-type]


def test_licences_are_one_line() -> None:
    with pytest.raises(ValueError, match="the manifest is wrong"):
        Licence("x", "X", "two\nlines", True, "https://x")


@pytest.mark.parametrize(
    ("head", "known", "what"),
    [
        (b"PK\x03\x04rest", "torch-zip", "a zip archive"),
        (b"\x80\x02\x8a\n", "torch-legacy", "a pickle"),
        (b"\x20\x00\x00\x00\x00\x00\x00\x00{}", "safetensors", "data of an unknown kind"),
        (b"\x08\x07\x12", "onnx", "data of an unknown kind"),
        (b"", None, "an empty file"),
        (b"\n <!DOCTYPE html><p>", None, "a web page (HTML)"),
        (b"<html>", None, "a web page (HTML)"),
        (b"version https://git-lfs.github.com/spec/v1\noid", None, "a Git LFS pointer"),
        (b"\x89PNG\r\n\x1a\n", None, "a PNG picture"),
        (b"\xff\xd8\xff\xe0", None, "a JPEG picture"),
        (b"\x1f\x8b\x08", None, "a gzip archive"),
        (b'{"error": 1}', None, "a JSON text"),
        (bytes(512), None, "nothing but zero bytes"),
        (b"PK\x05\x06", None, "a zip archive"),
        (b"P", None, "a text file"),
        (b"\x80", None, "a pickle"),
        (b"x" * 257 + b"ustar", None, "a tar archive"),
        (b"hello", None, "a text file"),
        (b"\x01\x02", None, "data of an unknown kind"),
    ],
)
def test_first_bytes(head: bytes, known: str | None, what: str) -> None:
    assert manifest.weight_format(head) == known
    assert manifest.describe(head).startswith(what)
