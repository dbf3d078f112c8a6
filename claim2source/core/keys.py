"""Help with the names of keys and files: what a mistyped one may mean."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

MOST_NAMED = 3
ALIKE = 0.7


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Find the known names that a mistyped one may mean; none where no name is like it.

    `epochs` finds `optimisation.epochs`, and `lr` the initials of `optimisation.learning_rate`;
    otherwise the most alike is found, by the whole name or by its part after the last dot.
    """
    name, names = name.lower().replace("-", "_"), list(known)
    last = name.rpartition(".")[2]
    parts = {key: key.rpartition(".")[2].replace("-", "_").split("_") for key in names}
    same = [key for key in names if "_".join(parts[key]) == last] or [
        key for key in names if parts[key][1:] and "".join(part[:1] for part in parts[key]) == last
    ]
    if len(same) > 1:  # those of the same group first, and those least deep
        same = [key for key in same if key.split(".")[0] == name.split(".")[0]] or same
        least = min(key.count(".") for key in same)
        same = [key for key in same if key.count(".") == least]
    if same or not names:
        return same[:MOST_NAMED]

    def alike(key: str) -> tuple[float, float]:
        whole = SequenceMatcher(None, name, key.replace("-", "_")).ratio()
        return max(whole, SequenceMatcher(None, last, "_".join(parts[key])).ratio()), whole

    best = max(names, key=alike)
    return [best] if alike(best)[0] >= ALIKE else []


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Write the names found as a question, with a space after it; nothing without any."""
    found = nearest(name, known)
    return f"did you mean {' or '.join(prefix + key for key in found)}? " if found else ""
