"""The program prepare.py: sub-commands, exit codes, one line per problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import run_program
from claim2source.data.prepare import main
from tests.data.test_checkthat2025 import task
from tests.processes import program


def test_bad_input_is_exit_2_without_a_traceback(tmp_path: Path) -> None:
    head = "post_id\ttweet_text\tcord_uid\n"
    source = task(tmp_path / "in", dev=head + "1\t\taaa00001\n2\tx\tzz\n")
    words = ("checkthat2025", "--input", source, "--output", tmp_path / "out")
    ran = program("scripts/prepare.py", *words, cwd=tmp_path)
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
        (["news", "--hub", "a/b", "--output", "x"], "checkthat2026"),
        (["checkthat2025", "--input", ".", "--output", "x", "\u202ename"], "\\u202ename"),
    ],
)
def test_wrong_command_line_is_exit_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_program(main, arguments)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1 and errors.isascii()
    assert "Traceback" not in errors
