"""Run programs as a user does: in separate processes, from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.shared_data import REPOSITORY

# Workers of a test suite run in parallel, so each has its own port.
PORT = str(29517 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]
PLAIN = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
BY_TWO = [*LAUNCH, "--multi_gpu", "--num_processes", "2", *PLAIN, "--main_process_port", PORT]


def environment(**options: str) -> dict[str, str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE", "SLURM"))}
    return {**variables, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **options}


def run(command: list[str], cwd: Path, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(**options), capture_output=True, text=True, timeout=600
    )


def program(
    file: str, *words: object, cwd: Path, **options: str
) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, str(REPOSITORY / file), *map(str, words)], cwd, **options)
