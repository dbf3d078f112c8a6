"""Explain a program's keys: the common ones, those of a group, or all."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from claim2source.core.errors import UserError, did_you_mean
from claim2source.core.program import program_command

ALL = "all"
# Name of the keys without a group.
GENERAL = "general"
_FLAG = "--help"
WIDTH = 110


def wanted_help(words: Sequence[str]) -> str | None:
    """Return the topic of `--help`: "", "all" or a group; None without `--help`."""
    for word in words:
        if word in ("-h", _FLAG):
            return ""
        if word.startswith(f"{_FLAG}="):
            return word.removeprefix(f"{_FLAG}=")
    return None


def help_text(
    program: str,
    about: str,
    keys: Mapping[str, Sequence[str]],
    first: Sequence[str],
    wanted: str,
    examples: Mapping[str, str],
    positionals: Sequence[str] = (),
) -> str:
    """Write the help of a program: its `first` keys and the names of the others, by group.

    `keys` maps each key to the lines that explain it. `wanted` is "all" or a group, whose keys
    are explained instead of the first ones. Without `first`, all keys are explained. Raises
    `UserError` for an unknown group.
    """
    command = program_command(program)
    words = "".join(f" [{name.upper()}]" for name in positionals)
    lines = [f"usage: {command}{words} [--config FILE ..] [--print_config] [--key value ..]", ""]
    lines += [about.strip().replace(f"python {program}", command), ""]
    groups = _groups(keys)
    explained = list(keys)
    if wanted not in ("", ALL):
        if wanted not in groups:
            near = did_you_mean(wanted, groups)
            raise UserError(
                f"config: help: no group {wanted!r}; {near}there are: {', '.join([ALL, *groups])}"
            )
        explained = groups[wanted]
    elif first and wanted == "":
        explained = list(first)
        lines.append(f"The {len(first)} options that people need first:")
    for key in explained:
        lines += keys[key]
        if wanted == "" and key in examples:
            lines.append(f"      Example: {examples[key]}")
    if first and wanted == "":
        lines += ["", f"All options by group ({_FLAG}=GROUP explains a group, {_FLAG}={ALL} all):"]
        for group, own in groups.items():
            names = ", ".join(key.removeprefix(f"{group}.") for key in own)
            lines += textwrap.wrap(
                f"  {group}: {names}", WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False
            )
    return "\n".join(lines)


def _groups(keys: Iterable[str]) -> dict[str, list[str]]:
    """List the keys by their group, those without one first."""
    groups: dict[str, list[str]] = {GENERAL: []}
    for key in keys:
        group, dot, _ = key.partition(".")
        groups.setdefault(group if dot else GENERAL, []).append(key)
    for group, own in groups.items():
        # A group that has a flag of its own is listed with its keys.
        if group != GENERAL and group in groups[GENERAL]:
            groups[GENERAL].remove(group)
            own.insert(0, group)
    return {group: own for group, own in groups.items() if own}
