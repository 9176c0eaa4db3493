"""docs/cases.md names tests; they must exist."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def test_every_test_that_the_cases_name_exists() -> None:
    text = (ROOT / "docs" / "cases.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    there = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 60 and named <= there, named - there
    rows = [line for line in text.splitlines() if re.match(r"\| [FUMQ]\d", line)]
    assert len(rows) == 41 + 16 + 23
    for row in rows:
        assert "`test_" in row or "Not yet" in row, row
