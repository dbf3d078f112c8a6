"""Refuse names that are gone, with one line that says what took their place.

The tables hold the names of the last release, for one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from claim2source.core.errors import UserError

_COPY = "an index is a folder, and a copy of the folder is a copy of it: cp -r INDEX COPY"
# Subcommand -> what to do now.
OLD_PROGRAMS: Mapping[str, str] = {
    "snapshot": _COPY,
    "restore": _COPY,
    "migrate": _COPY,
    "compare": "write report --reports DIR --out DIR",
    "paper-tables": "write report --published --reports DIR",
    "interpolate": "write merge --checkpoints RUN --scales 0 0.25 0.5 0.75 1 --out DIR",
    "soup": "write merge --checkpoints A B --out DIR",
}
# Program as in eval/find.py ("" for any), and key without dashes -> what to do now.
OLD_KEYS: Mapping[tuple[str, str], str] = {
    ("eval/index.py", "no_check"): "write --no_read_first",
    ("train/merge.py", "checkpoint"): "write --checkpoints DIR",
    ("train/merge.py", "scale"): "write --scales NUMBER",
}
_QDRANT = "an index is a folder now: index the papers again with --out DIR"
# How an address begins -> what to do now.
OLD_ADDRESSES: Mapping[str, str] = {"qdrant": _QDRANT, "qdrants": _QDRANT}


def refuse_old_program(name: str) -> None:
    """Raise `UserError` for a subcommand that is gone."""
    now = OLD_PROGRAMS.get(name.replace("_", "-"))
    if now is not None:
        raise UserError(f"{name}: is gone; {now}")


def successor(program: str, key: str) -> str | None:
    """Say what to do in place of a program's key that is gone; None where it is not."""
    return OLD_KEYS.get((program, key), OLD_KEYS.get(("", key)))


def refuse_old_address(place: str) -> None:
    """Raise `UserError` for an address that is gone; what follows it may hold a password."""
    kind, found, _ = place.partition("://")
    if found and kind in OLD_ADDRESSES:
        raise UserError(f"{kind}://..: is gone; {OLD_ADDRESSES[kind]}")
