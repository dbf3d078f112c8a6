"""Name the programs as this process was started: as a file, as `claim2source`, or with `-m`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "claim2source"
TRAINER = "train/finetune.py"


def usage_of(program: str) -> str:
    """Return how a usage line names `program`, the path of its file in the repository."""
    return command_of(program).removeprefix("python ") if _module() is None else _own(program)


def command_of(program: str) -> str:
    """Return the command that starts `program`, to be typed where this process was started."""
    name = Path(program).stem.replace("_", "-")
    if _module() is not None:
        return f"python -m {PACKAGE} {name}"
    started = Path(sys.argv[0])
    if started.stem == PACKAGE:
        return f"{PACKAGE} {name}"
    file = Path(os.path.abspath(started)).parent.parent / program
    if not file.is_file():
        return f"python {program}"
    return f"python {shlex.quote(str(file if started.is_absolute() else os.path.relpath(file)))}"


def in_our_words(text: str, program: str) -> str:
    """Replace the commands that start `program` in a description."""
    launched = usage_of(program)
    if launched.startswith(("python -m", PACKAGE)):
        launched = f"-m {PACKAGE}.train"
    text = text.replace(f"accelerate launch {TRAINER}", f"accelerate launch {launched}")
    return text.replace(f"python {program}", command_of(program))


def with_places(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Write the first words that are no options as options: `demo` as `--source=demo`."""
    found = list(words)
    for place, name in enumerate(names):
        if place == len(found) or found[place].startswith("--") or found[place] == "-h":
            break
        found[place] = f"--{name}={found[place]}"
    return found


def _own(program: str) -> str:
    """Name what `-m` started: the trainer's package, or a subcommand."""
    if program == TRAINER and _module() == f"{PACKAGE}.train":
        return f"python -m {PACKAGE}.train"
    return command_of(program)


def _module() -> str | None:
    """Return our module that Python was started with (`-m`), if it was."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "" if spec is None else spec.name.removesuffix(".__main__")
    return name if name.split(".")[0] == PACKAGE else None
