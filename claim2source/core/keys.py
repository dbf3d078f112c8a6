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
    name, names = name.lower().replace("-", "_"), {key: key.replace("-", "_") for key in known}
    ends, last = {key: key.rpartition(".")[2] for key in names.values()}, name.rpartition(".")[2]
    same = [key for key, plain in names.items() if ends[plain] == last]
    same = same or [key for key, plain in names.items() if _initials(ends[plain]) == last]
    if len(same) > 1:  # those of the same group first, and those least deep
        same = [key for key in same if key.split(".")[0] == name.split(".")[0]] or same
        least = min(key.count(".") for key in same)
        same = [key for key in same if key.count(".") == least]
    if same or not names:
        return same[:MOST_NAMED]

    def alike(key: str) -> tuple[float, float]:
        whole = SequenceMatcher(None, name, names[key]).ratio()
        return max(whole, SequenceMatcher(None, last, ends[names[key]]).ratio()), whole

    best = max(names, key=alike)
    return [best] if alike(best)[0] >= ALIKE else []


def _initials(name: str) -> str | None:
    return "".join(part[:1] for part in name.split("_")) if "_" in name else None


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Write the names found as a question, with a space after it; nothing without any."""
    found = nearest(name, known)
    return f"did you mean {' or '.join(prefix + key for key in found)}? " if found else ""
