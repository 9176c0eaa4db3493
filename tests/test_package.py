"""The rules that keep the package small: layers, free import, exported names; and its READMEs alike."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leanface
from leanface import registry
from leanface.weights import manifest
from tests.conftest import ROOT

PACKAGE = Path(leanface.__file__).parent
# From the lowest to the highest: a module may import those before it, and its own room.
LAYERS = (
    "errors", "types", "settings", "pixels", "imageio", "weights", "engine", "graphs", "registry", "families",
    "stages", "library", "pipeline", "background", "crops", "api", "batch", "comparison", "cli", "__main__",
)  # fmt: skip
ONE_DOOR_UP = ("registry", "families")
# Where a library may be imported, as prefixes of the module's path below the package.
HOMES = {
    "openvino": ("engine/backends/openvino",),
    "onnxruntime": ("engine/backends/onnxruntime",),
    "torch": ("engine/backends/torch/",),
    "onnx": ("graphs/", "weights/formats", "families/"),
    "PIL": ("imageio", "pixels"),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Imported modules, and whether the import stands at the top of the file outside TYPE_CHECKING."""
    tree = ast.parse(path.read_text("utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", id(node) in top
            if node.module in ("leanface", "leanface.stages", "leanface.engine"):
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", id(node) in top


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    room = name_of(path).split("/")[0]
    if room == "__init__":
        return  # the lazy face names every room as a string only, and for type checkers
    for imported, _ in imports(path):
        parts = imported.split(".")
        if parts[0] != "leanface" or len(parts) < 2 or parts[1] == "__version__":
            continue
        target = parts[1]
        assert target in LAYERS, f"{name_of(path)} imports {imported}, which is in no layer"
        if target != room and (room, target) != ONE_DOOR_UP:
            assert LAYERS.index(target) < LAYERS.index(room), f"{name_of(path)} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_libraries_stay_in_their_homes(path: Path) -> None:
    for imported, at_top in imports(path):
        library = imported.split(".")[0]
        if library in HOMES:
            assert name_of(path).startswith(HOMES[library]), f"{name_of(path)} imports {library}"
        if library in ("openvino", "onnxruntime", "torch"):
            assert not at_top, f"{name_of(path)} imports {library} outside a function"


def test_stages_do_not_know_each_other() -> None:
    for path in (PACKAGE / "stages").glob("*.py"):
        for imported, _ in imports(path):
            assert not imported.startswith("leanface.stages"), f"{path.name} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_command_line_prints_and_exits(path: Path) -> None:
    if name_of(path) == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.exit", "os._exit", "exit", "quit"), f"{path}: {called}"


@pytest.mark.parametrize("code", ["import leanface", "from leanface import cli; cli.main(['--help'])"])
def test_import_and_help_are_free(code: str) -> None:
    check = (
        f"{code}\nimport sys\n"
        "heavy = {'numpy', 'PIL', 'openvino', 'onnx', 'torch', 'platformdirs'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_every_exported_name_is_there() -> None:
    assert sorted(leanface._HOME) == leanface.__all__
    for name in leanface.__all__:
        assert getattr(leanface, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        leanface.nothing  # noqa: B018


def test_every_family_is_whole() -> None:
    ids = [family.id for family in registry.families()]
    assert ids == sorted(ids)
    assert {"lite", "realesrgan", "retinaface"} <= set(ids)
    for family in registry.families():
        assert (family.template is None) == (family.role == "detector")
        for variant in family.variants:
            if variant.asset:
                assert (registry.ASSETS / variant.asset).is_file()
            else:
                assert [manifest.get(file_id).id for file_id in variant.files] == list(variant.files) != []
            assert "fp32" in variant.precisions


def test_errors_carry_exit_codes() -> None:
    codes = {name: getattr(leanface, name).exit_code for name in leanface.__all__ if name.endswith("Error")}
    assert codes == {
        "LeanfaceError": 4, "BudgetError": 2, "UsageError": 2, "InputError": 4, "OutputError": 4,
        "ModelError": 2, "DeviceError": 2, "EngineError": 4, "OutOfMemoryError": 4, "BrokenOutputError": 4,
    }  # fmt: skip


NUMBER, CODE = re.compile(r"\d+(?:\.\d+)?"), re.compile(r"`[^`]+`")
LINK = re.compile(r"\]\(([^)]+)\)")
BLOCK = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(?:^::|(?:^|[ \t]+)#).*$", re.MULTILINE)


def readme(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def commands(text: str) -> list[str]:
    return [COMMENT.sub("", block) for block in BLOCK.findall(text)]


def rows(text: str) -> list[tuple[list[str], list[str]]]:
    """The code and the figures of each row of the tables, in whatever order a language puts them."""
    table = (line for line in BLOCK.sub("", text).splitlines() if line.startswith("|"))
    return [(sorted(CODE.findall(line)), sorted(NUMBER.findall(line))) for line in table]


def prose(text: str) -> list[str]:
    """The figures, sorted, of what is neither a block of code nor a table."""
    lines = (line for line in BLOCK.sub("", text).splitlines() if not line.startswith("|"))
    return sorted(NUMBER.findall("\n".join(lines)))


def test_both_readmes_have_the_same_commands_and_figures() -> None:
    english, chinese = readme("README.md"), readme("README.zh-CN.md")
    assert len(commands(english)) > 5 and len(rows(english)) > 30 and len(prose(english)) > 10
    assert commands(chinese) == commands(english)
    assert rows(chinese) == rows(english)
    assert prose(chinese) == prose(english)


def test_the_links_of_both_readmes_lead_somewhere() -> None:
    english, chinese = (LINK.findall(readme(name)) for name in ("README.md", "README.zh-CN.md"))
    assert english[0] == "README.zh-CN.md" and chinese[0] == "README.md"
    assert sorted(chinese[1:]) == sorted(english[1:])
    for link in {*english, *chinese}:
        assert link.startswith("https://") or (ROOT / link.partition("#")[0]).is_file(), link
