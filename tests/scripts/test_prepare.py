"""The program prepare.py: sub-commands, exit codes, one line a problem."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.datasets.test_checkthat2025 import task
from tests.shared_data import REPOSITORY


def prepare(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program as a user does."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(REPOSITORY / "scripts" / "prepare.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_bad_input_is_exit_2_without_a_traceback(tmp_path: Path) -> None:
    head = "post_id\ttweet_text\tcord_uid\n"
    source = task(tmp_path / "in", dev=head + "1\t\taaa00001\n2\tx\tzz\n")
    ran = prepare("checkthat2025", "--input", source, "--output", tmp_path / "out")
    assert (ran.returncode, ran.stdout) == (2, "")
    dev = source / "subtask4b_query_tweets_dev.tsv"
    assert ran.stderr.splitlines() == [
        f"error: {dev}:2: tweet_text: is empty",
        f"error: {dev}:3: cord_uid: gold 'zz' is not in subtask4b_collection_data.pkl",
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "task: is required"),
        (["checkthat2025", "--input", "nowhere", "--output", "x"], "nowhere: no such folder"),
        (["checkthat2026", "--input", ".", "--hub", "a/b", "--output", "x"], "--hub of"),
        (["news", "--hub", "a/b", "--output", "x"], "it is of checkthat2026"),
        (["checkthat2025", "--input", ".", "--output", "x", "\u202ename"], "\\u202ename"),
    ],
)
def test_wrong_command_line_is_exit_2(arguments: list[str], message: str) -> None:
    ran = prepare(*arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1 and ran.stderr.isascii()
    assert "Traceback" not in ran.stderr
