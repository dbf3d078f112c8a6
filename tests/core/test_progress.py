"""How far a piece of work is: a bar on a terminal, lines elsewhere, nothing on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

from claim2source.core import progress
from claim2source.core.progress import Progress, watched
from tests.shared_data import REPOSITORY


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == "" and "\r" not in err and "\x1b" not in err
    return err.splitlines()


def test_a_line_for_each_tenth_of_the_work_but_not_too_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with Progress("steps", 40, quiet=0) as shown:
        for step in range(40):
            shown.update(1, f"loss {step}")
    said = lines_of(capsys)
    assert len(said) == 10
    assert said[0] == "steps: 4 of 40, loss 3" and said[-1] == "steps: 40 of 40, loss 39"
    # What takes no time says nothing, nor what has no name.
    assert list(watched(range(40), "steps", 40)) == list(range(40))
    with Progress(None, 2, quiet=0) as shown:
        shown.update(2)
    assert lines_of(capsys) == []
    # A line once a tenth is done, but at most one in ten seconds; after a minute also between tenths.
    with Progress("texts", 1000) as shown:
        for _ in range(1000):
            clock.now += 0.0201
            shown.update()
        assert lines_of(capsys) == ["texts: 498 of 1000", "texts: 996 of 1000"]
    with Progress("texts\x1b[2J", 1000, done=500) as shown:
        clock.now += 61
        shown.update()
        clock.now += 30
        shown.update()
        assert lines_of(capsys) == [r"texts\x1b[2J: 501 of 1000"]
    # How much there is may not be known.
    with Progress("papers", None) as shown:
        for _ in range(3):
            clock.now += 30.5
            shown.update(100)
        assert lines_of(capsys) == ["papers: 200"]


CODE = """
import sys
import termios
import warnings
from claim2source.core.errors import run_program
from claim2source.core.progress import watched

def main(argv):
    for _ in watched(range(3), "texts", 3):
        print("result")
    import os, warnings
    warnings.warn("old", FutureWarning, stacklevel=1)
    print(os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS"))

run_program(main)
"""


def test_on_a_terminal_there_is_a_bar_on_stderr_and_none_in_a_pipe() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_DISABLE_PROGRESS_BARS"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    command = [sys.executable, "-c", CODE]
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    piped = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert running.stdout is not None and running.wait(60) == 0
    assert running.stdout.read() == b"result\nresult\nresult\nNone\n"
    bar = os.read(ours, 100_000).decode()
    os.close(theirs)
    os.close(ours)
    assert "\rtexts:   0%" in bar and "old" not in bar
    assert (piped.stdout, piped.stderr) == ("result\nresult\nresult\n1\n", "")
