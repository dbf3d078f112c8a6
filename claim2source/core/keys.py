"""Help with the names of keys and files: what a mistyped one may mean, and a short `--help`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from claim2source.core.config_types import Option, allowed_words

MOST_NAMED = 3
ALIKE = 0.7
_COMMON_OPTIONS = (
    "  --config FILE ..   YAML with what differs from the defaults; of several the later ones win",
    "  --print_config     print every key and its value",
)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Find the known names that a mistyped one may mean; none where no name is like it.

    `epochs` finds `optimisation.epochs`, and `lr` the initials of `optimisation.learning_rate`;
    otherwise the most alike is found, by the whole name or by its part after the last dot.
    """
    name, names = name.lower().replace("-", "_"), list(known)
    last = name.rpartition(".")[2]
    ends = {key: key.replace("-", "_").rpartition(".")[2] for key in names}
    same = [key for key in names if ends[key] == last] or [
        key for key in names if "_" in ends[key] and _initials(ends[key]) == last
    ]
    if len(same) > 1:  # those of the same group first, and those least deep
        same = [key for key in same if key.split(".")[0] == name.split(".")[0]] or same
        least = min(key.count(".") for key in same)
        same = [key for key in same if key.count(".") == least]
    if same or not names:
        return same[:MOST_NAMED]
    scores = {key: max(_alike(name, key), _alike(last, ends[key])) for key in names}
    best = max(names, key=lambda key: (scores[key], _alike(name, key)))
    return [best] if scores[best] >= ALIKE else []


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other.replace("-", "_")).ratio()


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Write the names found as a question, with a space after it; nothing without any."""
    found = nearest(name, known)
    return f"did you mean {' or '.join(prefix + key for key in found)}? " if found else ""


def with_places(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Write the first words that are no options as options: `demo` as `--source=demo`."""
    found = list(words)
    for place, name in enumerate(names):
        if place == len(found) or found[place].startswith("--") or found[place] == "-h":
            break
        found[place] = f"--{name}={found[place]}"
    return found


def short_help(
    program: str, about: str, options: Iterable[Option], common: Mapping[str, str]
) -> str:
    """Write the help of the keys in `common` alone, one line each, with their defaults."""
    width = max(len(key) for key in common) + 2
    defaults = {option.key: option.default for option in options}
    lines = [f"The {len(common)} keys that people change most, and their defaults:"]
    lines += [f"  --{key:<{width}}{what} ({_shown(defaults[key])})" for key, what in common.items()]
    more = "  --help=all         explain every key"
    return "\n".join([_usage(program), "", *lines, "", *_COMMON_OPTIONS, more, "", about, ""])


def full_help(program: str, about: str, options: Iterable[Option]) -> str:
    """Write the help of every key with its type and default."""
    lines = [_usage(program), "", about, "", *_COMMON_OPTIONS]
    for option in options:
        switch = f"--{option.key}, --no_{option.key}"
        kind = "" if option.is_switch else f" {allowed_words(option.hint)}"
        default = "required" if option.required else f"default: {_shown(option.default)}"
        head = f"  {switch if option.is_switch else '--' + option.key}{kind}"
        lines += textwrap.wrap(head, 110, subsequent_indent=" " * 8)
        text = f"{option.help} ({default})".strip()
        lines += textwrap.wrap(text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join([*lines, ""])


def _usage(program: str) -> str:
    return f"usage: {program} [--config FILE] [--key value ...]"


def _shown(default: object) -> str:
    if isinstance(default, bool) or default is None:
        return str(default).lower().replace("none", "null")
    if isinstance(default, list | tuple):
        return "[" + ", ".join(map(str, default)) + "]"
    return str(default) if default != "" else '""'
