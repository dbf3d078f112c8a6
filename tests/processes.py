"""Several real processes that do the same thing at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.shared_data import REPOSITORY


def at_once(code: str, arguments: Sequence[Sequence[str]]) -> None:
    """Run `code` in a process for each list of arguments; all must end well.

    The code prints "ready" when it has imported what it needs, and reads a line before it begins.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words in arguments
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
