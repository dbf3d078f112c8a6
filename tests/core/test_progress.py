"""Progress of long work: a bar on a terminal, lines elsewhere, nothing on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time

import pytest

from claim2source.core.progress import Progress
from tests.shared_data import REPOSITORY

CODE = """
import sys
import termios
import warnings
from claim2source.core.errors import run_program
from claim2source.core.progress import track

def main(argv):
    for _ in track(range(3), "texts", 3):
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


def test_lines_say_what_is_done_and_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Progress("papers", 1000) as bar:
        for count, texts in ((40, 10), (20, 10), (0, 5)):
            # Texts of another kind count as 100 papers; the rest is added at the end.
            with bar.part(100, 50) as part:
                for _ in range(count):
                    clock[0] += 1
                    part.update(1)
                part.update(texts if count else 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "papers: 20 of 1000, 8 min left"  # ten seconds after the begin
    assert lines[1].startswith("papers: 100 of 1000, ") and bar.count == 300
    assert len(lines) == 3
