"""Explain a program's keys: those that people need first, those of a group, or all."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path

from claim2source.core.config import Option, allowed_words
from claim2source.core.errors import UserError, did_you_mean
from claim2source.core.program import program_command
from claim2source.core.yaml_files import as_plain

# Keys of a program that names no list: as many as are explained at once.
MOST = 10
ALL = "all"
# Name of the keys without a group.
GENERAL = "general"
_FLAG = "--help"
_WIDTH = 110


def wanted_help(words: Sequence[str]) -> str | None:
    """Return what help is asked about: "", "all" or a group; None if it is not asked for."""
    for word in words:
        if word in ("-h", _FLAG):
            return ""
        if word.startswith(f"{_FLAG}="):
            return word.removeprefix(f"{_FLAG}=")
    return None


def help_text(
    program: str,
    about: str,
    options: Mapping[str, Option],
    first: Sequence[str],
    wanted: str,
) -> str:
    """Write the help of a program: its `first` keys and the names of the others, by group.

    `wanted` is "all" or a group, whose keys are explained in place of the first ones. Without
    `first` all are explained. Raises `UserError` for an unknown group.
    """
    command = program_command(program)
    lines = [f"usage: {command} [--config FILE ..] [--print_config] [--key value ..]", ""]
    lines += [about.strip().replace(f"python {program}", command), ""]
    flags = {key: option for key, option in options.items() if option.is_flag}
    groups = _groups(flags)
    explained = list(flags)
    if wanted not in ("", ALL):
        if wanted not in groups:
            near = did_you_mean(wanted, groups)
            raise UserError(
                f"config: help: no group {wanted!r}; {near}there are: {', '.join([ALL, *groups])}"
            )
        explained = groups[wanted]
    elif first and wanted == "":
        explained = list(first)
        lines.append(f"The {len(first)} keys that people need first:")
    for key in explained:
        lines += _key_lines(key, options[key])
    if first and wanted == "":
        lines += ["", f"All keys by group; {_FLAG}=GROUP explains one, {_FLAG}={ALL} every key:"]
        for group, keys in groups.items():
            names = ", ".join(key.removeprefix(f"{group}.") for key in keys)
            lines += textwrap.wrap(
                f"  {group}: {names}", _WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False
            )
    return "\n".join(lines)


def _groups(flags: Mapping[str, Option]) -> dict[str, list[str]]:
    """List the keys by their group, those without one first."""
    groups: dict[str, list[str]] = {GENERAL: []}
    for key in flags:
        group, dot, _ = key.partition(".")
        groups.setdefault(group if dot else GENERAL, []).append(key)
    for group, keys in groups.items():
        # A group that is a file's flag belongs to its keys.
        if group != GENERAL and group in groups[GENERAL]:
            groups[GENERAL].remove(group)
            keys.insert(0, group)
    return {group: keys for group, keys in groups.items() if keys}


def _key_lines(key: str, option: Option) -> list[str]:
    if option.hint in (bool, bool | None):
        usage = f"  --{key}, --no_{key}"
    elif option.hint is option.group:
        usage = f"  --{key} {allowed_words(Path)}"
    else:
        usage = f"  --{key} {allowed_words(option.hint)}"
    default = "required"
    if option.default is not MISSING:
        default = f"default: {json.dumps(as_plain(option.default), ensure_ascii=False)}"
    text = f"{option.help} ({default})".strip()
    gap = " " * 6
    lines = textwrap.wrap(usage, _WIDTH, subsequent_indent=" " * 8)
    return lines + textwrap.wrap(text, _WIDTH, initial_indent=gap, subsequent_indent=gap)
