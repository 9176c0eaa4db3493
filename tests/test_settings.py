import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from leanface import settings
from leanface.errors import UsageError
from leanface.settings import Settings


@pytest.fixture(autouse=True)
def no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: tmp_path / "config")


def write(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    return {"LEANFACE_CONFIG": str(path)}


def test_defaults() -> None:
    found = settings.read({})
    assert found.cache.name == "leanface"
    assert found.cache.is_absolute()
    assert (found.weights, found.offline, found.mirrors, found.timeout) == (None, False, (), 30.0)


def test_the_file(tmp_path: Path) -> None:
    environ = write(
        tmp_path,
        'cache = "here"\nweights = "/w"\noffline = true\ntimeout = 5\nmirror = ["https://a.example/x", "http://b/{name}"]\n',
    )
    assert settings.read(environ) == Settings(
        tmp_path / "here", Path("/w").absolute(), True, ("https://a.example/x", "http://b/{name}"), 5.0
    )


def test_the_usual_file(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('mirror = "https://m.example"\n')
    assert settings.read({}).mirrors == ("https://m.example",)


def test_variables_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = write(tmp_path, 'cache = "here"\noffline = true\ntimeout = 5\n') | {
        "LEANFACE_CACHE": "there",
        "LEANFACE_OFFLINE": "off",
        "LEANFACE_MIRROR": " https://a.example  https://b.example/{url} ",
        "LEANFACE_TIMEOUT": "0.5",
        "LEANFACE_WEIGHTS": "~",
    }
    found = settings.read(environ)
    assert found.cache == tmp_path / "there"
    assert found.offline is False
    assert found.mirrors == ("https://a.example", "https://b.example/{url}")
    assert found.timeout == 0.5
    assert found.weights == Path.home()


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    environ = write(tmp_path, "offline = true\n") | {"LEANFACE_OFFLINE": " "}
    assert settings.read(environ).offline is True


@pytest.mark.parametrize("word", ["1", "true", "YES", "on"])
def test_words_for_true(word: str) -> None:
    assert settings.read({"LEANFACE_OFFLINE": word}).offline is True


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LEANFACE_OFFLINE": "perhaps"}, "LEANFACE_OFFLINE must be true or false, not 'perhaps'"),
        ({"LEANFACE_TIMEOUT": "soon"}, "LEANFACE_TIMEOUT must be a number of seconds, not 'soon'"),
        ({"LEANFACE_TIMEOUT": "-1"}, "the timeout must be a positive number of seconds, not -1.0"),
        ({"LEANFACE_TIMEOUT": "nan"}, "the timeout must be a positive number of seconds, not nan"),
        ({"LEANFACE_MIRROR": "ftp://x"}, "the mirror 'ftp://x' must begin with https:// or http://"),
        ({"LEANFACE_CONFIG": "/nowhere/x.toml"}, "cannot read the settings file"),
    ],
)
def test_wrong_variables(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings.read(environ)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ofline = true", "unknown key 'ofline'; known: cache, weights, offline, mirror, timeout"),
        ("offline = 1", "must be true or false, not 1"),
        ("timeout = true", "must be a number of seconds, not True"),
        ("mirror = [1]", "must be an address or a list of addresses, not [1]"),
        ('cache = ""', "must be a path, not ''"),
        ("cache = [", "is not valid TOML"),
        ("cache = '\udcff'", "is not valid TOML"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        settings.read({"LEANFACE_CONFIG": str(path)})
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_frozen_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings.load.cache_clear()
    monkeypatch.setenv("LEANFACE_TIMEOUT", "7")
    first = settings.load()
    monkeypatch.setenv("LEANFACE_TIMEOUT", "8")
    assert settings.load() is first
    assert first.timeout == 7
    with pytest.raises(FrozenInstanceError):
        first.timeout = 1  # type: ignore[misc]
    settings.load.cache_clear()


def test_imports_stay_light() -> None:
    code = (
        "import sys, leanface.settings, leanface.weights.manifest, leanface.weights.store;"
        "heavy = {'numpy', 'onnx', 'PIL', 'openvino', 'http.client', 'urllib.request'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
