"""A run keeps to itself: it connects to nothing, starts no other program and writes where it says only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PORTRAIT = Path(__file__).parents[1] / "samples" / "portrait.jpg"

WATCHED = """
import json, sys
seen = []

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "os.fork", "os.forkpty"):
        seen.append(event)
    if event == "subprocess.Popen" and arguments[1][0] not in ("nvidia-smi", "uname"):
        seen.append(str(arguments[1]))

sys.addaudithook(watch)
from leanface.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, seen, "openvino_telemetry" in sys.modules]))
"""


@pytest.mark.parametrize(
    "command", [["restore", "portrait.jpg", "-q"], ["doctor"], ["models", "list"], ["plan", "640x480"]]
)
def test_nothing_leaves_the_machine(command: list[str], tmp_path: Path) -> None:
    home, work, cache = (tmp_path / name for name in ("home", "work", "cache"))
    for folder in (home, work, cache):
        folder.mkdir()
    (work / "portrait.jpg").write_bytes(PORTRAIT.read_bytes())
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED, *command],
        cwd=work,
        env=os.environ | {"HOME": str(home), "USERPROFILE": str(home), "LEANFACE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == [0, [], False]
    assert not list(home.iterdir())
    made = {"portrait.jpg"} | ({"portrait_restored.jpg"} if command[0] == "restore" else set())
    assert {path.name for path in work.iterdir()} == made
