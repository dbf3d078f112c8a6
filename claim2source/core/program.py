"""Name programs in the way this process was started: a file, `claim2source`, or `-m`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = "claim2source"


def program_command(program: str) -> str:
    """Return the command that starts `program`, a file of the repository, from the same folder."""
    started = Path(sys.argv[0])
    if _started_by_module():
        return f"python -m {PACKAGE} {_subcommand(program)}"
    if started.stem == PACKAGE:
        return f"{PACKAGE} {_subcommand(program)}"
    file = Path(os.path.abspath(started)).parents[1] / program
    if not file.is_file():
        # A notebook, or a program of one's own.
        is_script = Path(program).parts[0] == "scripts"
        return f"python {program}" if is_script else f"python -m {PACKAGE} {_subcommand(program)}"
    return f"python {shlex.quote(str(file if started.is_absolute() else os.path.relpath(file)))}"


def next_command(program: str) -> str:
    """Return the command of `program` as the README has it: a subcommand of `claim2source`.

    If `claim2source` is not on the path, the command is that of `program_command`, which works.
    """
    if shutil.which(PACKAGE) is None:
        return program_command(program)
    return f"{PACKAGE} {_subcommand(program)}"


def _subcommand(program: str) -> str:
    return Path(program).stem.replace("_", "-")


def _started_by_module() -> bool:
    """Whether `python -m` started a module of the package: itself, or claim2source.train."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == PACKAGE
