"""Help with the names of keys and files: what a mistyped one may mean, and a short `--help`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

MOST_NAMED = 3
ALIKE = 0.7


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


def short_help(parser: ArgumentParser, common: Mapping[str, str]) -> str:
    """Write the help of the keys in `common` alone, one line each, with their defaults."""
    width = max(len(key) for key in common) + 2
    lines = [f"usage: {parser.prog} [--config FILE] [--key value ...]", ""]
    lines.append(f"The {len(common)} keys that people change most, and their defaults:")
    for key, what in common.items():
        default = parser.get_default(key)
        shown = str(default).lower() if isinstance(default, bool) else default
        lines.append(f"  --{key:<{width}}{what} ({shown})")
    return "\n".join(
        [
            *lines,
            "",
            "  --config FILE      YAML with what differs from the defaults",
            "  --print_config     print every key and its value",
            "  --help=all         explain every key",
            "",
            str(parser.description),
        ]
    )
