"""What benchmarks have in common: the machine they ran on, and the page of the documents that they write."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def where(threads: int) -> str:
    """The machine and the libraries, as a line."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("openvino", "onnxruntime", "numpy"))
    return f"{processor()}, {threads} threads; Python {platform.python_version()}, {libraries}."


def processor() -> str:
    """The name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (text.partition(":") for text in lines)}
    name = facts.get("model name", platform.machine())
    units = [unit for unit in ("amx_bf16", "avx512_bf16") if unit in facts.get("flags", "").split()]
    return f"{name} with {units[0]}" if units else name


def write(script: str, lines: Sequence[str]) -> None:
    """Put what a script printed into its place on the page, at the end where it has none yet.

    Args:
        script: its module, such as ``benchmarks.speed``.
        lines: Markdown.
    """
    begin, end = f"<!-- python -m {script} --write -->", f"<!-- end of {script} -->"
    text = PAGE.read_text("utf-8")
    if begin not in text:
        text += f"\n{begin}\n{end}\n"
    before, rest = text.split(begin)
    made = "\n".join([before + begin, "", f"{time.strftime('%Y-%m-%d')}, {lines[0]}", *lines[1:], "", end])
    PAGE.write_text(made + rest.split(end)[1], "utf-8")
