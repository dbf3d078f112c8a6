"""Help with the names of keys and files: what a mistyped one may mean."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NAMED = 3
ALIKE = 0.7


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Find the known names that a mistyped one may mean; none where no name is like it.

    `epochs` finds `optimisation.epochs`, and `lr` the initials of `optimisation.learning_rate`;
    otherwise the most alike is found, by the whole name or by its part after the last dot.
    """
    name = name.lower().replace("-", "_")
    group, _, last = name.rpartition(".")
    ends = {key: key.rpartition(".")[2].replace("-", "_") for key in known}
    initials = {key: "".join(word[:1] for word in end.split("_")) for key, end in ends.items()}
    same = [key for key, end in ends.items() if end == last]
    same = same or [key for key in ends if len(initials[key]) > 1 and initials[key] == last]
    same.sort(key=lambda key: (key.rpartition(".")[0] != group, key.count(".")))
    if same:
        return same[:MOST_NAMED]
    if close := get_close_matches(name, ends, 1, ALIKE):
        return close
    close = get_close_matches(last, ends.values(), 1, ALIKE)
    return [key for key, end in ends.items() if end in close][:1]


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Write the names found as a question, with a space after it; nothing without any."""
    found = nearest(name, known)
    return f"did you mean {' or '.join(prefix + key for key in found)}? " if found else ""
