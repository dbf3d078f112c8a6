"""Carving the part that selection uses out of train, by gold paper."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable

from claim2source.core.config import require
from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Dataset

VAL = "val"


def carve_val(
    train: Dataset, share: float = 0.1, seed: int = 13, most_claims: int = 10
) -> tuple[Dataset, Dataset]:
    """Split `train` into what stays and `val`, both with the whole pool of sources.

    Claims that share a gold, directly or through others, stay together, so no gold of `val` is
    a gold of the rest. `val` gets about `share` of the claims of each language, at least one
    where the language has two or more groups. A paper with more than `most_claims` claims stays
    in train: it alone would be a large part of the mean over `val`. The outcome depends on ids
    and `seed`, not on the order of claims.

    Raises `ConfigError` on a share that is not between 0 and 1 or leaves a side empty.
    """
    require(0.0 < share < 1.0, "share", share, "more than 0 and less than 1")
    groups = _groups(train.claims)
    totals = Counter(claim.lang for claim in train.claims)
    spread = Counter(lang for claims in groups.values() for lang in {c.lang for c in claims})
    room = {
        lang: max(round(share * total), 1) if spread[lang] > 1 else 0
        for lang, total in totals.items()
    }
    chosen: set[str] = set()
    for key in sorted(groups, key=lambda key: (_draw(key, seed), key)):
        needed = Counter(claim.lang for claim in groups[key])
        small = len(groups[key]) <= most_claims
        if small and all(count <= room[lang] for lang, count in needed.items()):
            chosen.update(claim.id for claim in groups[key])
            for lang, count in needed.items():
                room[lang] -= count
    if not 0 < len(chosen) < len(train.claims):
        side = "train" if chosen else VAL
        why = f"a share that leaves {side} claims: {len(train.claims)} in {len(groups)} groups"
        raise ConfigError("share", share, why)
    rest = train.with_claims(claim for claim in train.claims if claim.id not in chosen)
    val = train.with_claims((c for c in train.claims if c.id in chosen), split=VAL)
    return rest, val


def _draw(key: str, seed: int) -> str:
    """A number that looks random, fixed by the key and the seed."""
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()


def _groups(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """Claims joined by shared golds, by the smallest gold id (a claim without any is alone)."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = node = parent[parent[node]]
        return node

    listed = list(claims)
    # A prefix keeps a claim's id apart from a gold that has the same one.
    nodes = {c.id: [f"gold {g}" for g in c.golds] or [f"claim {c.id}"] for c in listed}
    for first, *others in nodes.values():
        for other in others:
            low, high = sorted((root(first), root(other)))
            parent[high] = low
    groups: dict[str, list[Claim]] = defaultdict(list)
    for claim in listed:
        groups[root(nodes[claim.id][0])].append(claim)
    return groups
