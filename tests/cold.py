"""Run programs in processes that have imported no more than the program.

One interpreter imports a program and forks for each command: a fork costs little, a new interpreter
imports everything again.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from io import StringIO

from tests.shared_data import REPOSITORY

HEAVY = ("torch", "transformers", "faiss", "lancedb")


@dataclass(frozen=True)
class Command:
    """The words of a command, its folder, and variables of its environment."""

    words: Sequence[str]
    folder: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """The lines of a command, its error last, and which heavy modules it imported."""

    lines: list[str]
    heavy: list[str]


def run_cold(program: str, commands: Sequence[Command]) -> list[Ended]:
    """Run `claim2source.PROGRAM` once for each command."""
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    environment |= {k: v for k, v in os.environ.items() if k.startswith("CLAIM2SOURCE_")}
    process = subprocess.run(
        [sys.executable, "-m", "tests.cold", program],
        input=json.dumps([asdict(command) for command in commands]),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return [Ended(**found) for found in json.loads(process.stdout)]


def _run_in_fork(program: str, command: Command) -> dict[str, list[str]]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ.update(command.environment)
            os.chdir(command.folder)
            found = json.dumps(_run(program, command.words))
            with open(writer, "w", encoding="utf-8") as stream:
                stream.write(found)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        found = stream.read()
    os.waitpid(child, 0)
    result: dict[str, list[str]] = json.loads(found)
    return result


def _run(program: str, words: Sequence[str]) -> dict[str, list[str]]:
    from claim2source.core.errors import UserError

    main = importlib.import_module(f"claim2source.{program}").main
    output = StringIO()
    with redirect_stdout(output):
        try:
            main(list(words))
        except UserError as error:
            print(error)
    heavy = [name for name in HEAVY if name in sys.modules]
    return asdict(Ended(output.getvalue().splitlines(), heavy))


if __name__ == "__main__":
    importlib.import_module(f"claim2source.{sys.argv[1]}")
    given = [Command(**entry) for entry in json.load(sys.stdin)]
    print(json.dumps([_run_in_fork(sys.argv[1], command) for command in given]))
