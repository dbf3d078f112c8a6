"""`make browser` never stops a build: it says what is there, or why it is not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"chromium": "exit 1"}, "browser: {folder}/chromium"),
        ({}, "no apt-get"),
        ({"apt-get": "exit 1", "id": "echo 1000"}, "as root: apt-get install"),
        ({"apt-get": "exit 100", "id": "echo 0"}, "could not install"),
        ({"apt-get": 'echo "$@" >>{folder}/log', "id": "echo 0"}, "installed chromium"),
    ],
)
def test_make_browser(tools: dict[str, str], said: str, tmp_path: Path) -> None:
    """The tools that it asks are stand-ins: a test installs nothing."""
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script.format(folder=tmp_path)}\n")
        (tmp_path / name).chmod(0o755)
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("CHROMIUM", None)
    done = subprocess.run(
        [make, "browser"], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert said.format(folder=tmp_path) in done.stdout
    if said == "installed chromium":
        assert (tmp_path / "log").read_text().splitlines() == [
            "update -qq",
            "install -qq -y --no-install-recommends chromium",
        ]
