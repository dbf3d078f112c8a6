"""`make demo` says what it will do, how much time is left, and what comes next."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS
from scripts import demo
from tests.shared_data import REPOSITORY


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_shows_its_plan_within_ten_seconds(tmp_path: Path) -> None:
    """In a copy of the repository's scripts, where nothing is installed."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "demo.py", tmp_path / "scripts")
    core = tmp_path / "claim2source" / "core"
    core.mkdir(parents=True)
    for name in ("__init__.py", "core/__init__.py", "core/progress.py", "core/terminal.py"):
        shutil.copy(REPOSITORY / "claim2source" / name, tmp_path / "claim2source" / name)
    # Its venv cannot be made, so that nothing is downloaded: the first step fails at once.
    (tmp_path / ".venv").write_text("")
    started = time.monotonic()
    process = subprocess.run(
        ["make", "demo", f"PYTHON={sys.executable} -S"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - started < 10
    plan, _, rest = process.stdout.partition("\n\n[1/5] ")
    assert re.findall(r"^  (\d)\. \w", plan, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert all(f"{demo.duration(step.seconds)}  " in plan for step in demo.demo_steps()[1:])
    assert "error: step 1" in rest and process.returncode != 0


def run_with(codes: Sequence[int], seconds: float, output: list[str]) -> tuple[int, int]:
    """Run the demo's steps with given exit codes, each in so many seconds; return code and runs."""
    steps = demo.demo_steps()
    now = 0.0
    commands = []

    def run(words: Sequence[str], tell: Callable[[], None] | None) -> int:
        nonlocal now
        if tell is not None:
            tell()
        now += seconds
        commands.append(words)
        return codes[len(commands) - 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo.shutil, "rmtree", lambda path, ignore_errors: output.append(path.name))
        patch.setattr(demo, "say", lambda line="": output.append(line))
        return demo.run_steps(steps, run, lambda: now), len(commands)


def test_every_step_is_a_line_with_the_time_left() -> None:
    output: list[str] = []
    assert run_with([0] * 5, 500.0, output) == (0, 5)
    # The index of an earlier demo has vectors of another checkpoint.
    assert output.pop(5) == "demo_index" and len(output) == 6
    # The installation prints nothing itself: it is said again how much time is left.
    assert output.pop(1).startswith("[1/5] ")
    left = [line.rpartition("; about ")[2] for line in output]
    steps = demo.demo_steps()
    planned = [step.seconds for step in steps]
    assert left[0] == f"{demo.duration(sum(planned))} left in all"
    # Fine-tuning has shown how fast the machine is.
    slower = 500 / planned[1] * sum(planned[2:])
    assert left[2] == f"{demo.duration(slower)} left in all"


def test_a_step_that_fails_is_the_last_one() -> None:
    output: list[str] = []
    assert run_with([0, 2, 0, 0, 0], 1.0, output) == (2, 2)
    assert "step 2" in output[-1] and "2: " in output[-1]


def test_the_next_commands_are_subcommands_on_what_the_demo_wrote() -> None:
    assert len(demo.NEXT) == 3
    for program, subcommand, *words in demo.NEXT:
        assert program == "claim2source" and subcommand in PROGRAMS
        assert any(word.startswith(demo.RUN) for word in words)


def test_a_step_that_prints_nothing_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PATIENCE", 0.1)
    told: list[int] = []
    assert demo.run_command(["sleep", "1"], lambda: told.append(1)) == 0
    assert told


def test_an_argument_starts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "run_steps", pytest.fail)
    for word, code in (("--help", 0), ("--epochs", 2)):
        monkeypatch.setattr(sys, "argv", ["scripts/demo.py", word])
        with pytest.raises(SystemExit) as ended:
            demo.main()
        assert ended.value.code == code
    assert "--epochs" in capsys.readouterr().out


def test_ctrl_c_ends_the_demo_after_its_command() -> None:
    command = ["sh", "-c", "echo started; exec sleep 60"]
    code = f"import sys; from scripts.demo import run_command; sys.exit(run_command({command}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        start_new_session=True,
        # A shell starts what runs in the background without it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stdout.readline() == b"started\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
