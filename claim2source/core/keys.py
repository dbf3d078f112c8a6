"""Suggest the key or file that a mistyped name may mean."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the known names that are nearest, with a space after them; "" where none is near.

    `epochs` finds `optimisation.epochs`, `lr` the initials of `learning_rate`, `top_k` the key `k`.
    """
    name = name.lower().replace("-", "_")
    group, _, last = name.rpartition(".")
    ends = {key: key.rpartition(".")[2].lower().replace("-", "_") for key in names}
    near = [key for key, end in ends.items() if end == last]
    initials = {key: "".join(word[:1] for word in end.split("_")) for key, end in ends.items()}
    near = near or [key for key in ends if initials[key] == last and len(last) > 1]
    near.sort(key=lambda key: (key.rpartition(".")[0] != group, key.count(".")))
    by_key = {key.lower().replace("-", "_"): key for key in ends}
    if not (near := near[:3] or [by_key[key] for key in get_close_matches(name, by_key, 1, 0.7)]):
        close = get_close_matches(last, ends.values(), 1, 0.7)
        near = [key for key, end in ends.items() if end in close][:1]
    near = near or [key for key, end in ends.items() if end in last.split("_")][:1]
    return f"did you mean {' or '.join(near)}? " if near else ""
