"""Carve `val`, the part of train that choices are made on, by gold paper."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from claim2source.core.config import require
from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Dataset
from claim2source.datasets.grouping import connected_groups

VAL = "val"


def carve_val(
    train: Dataset, share: float = 0.1, seed: int = 13, most_claims: int = 10
) -> tuple[Dataset, Dataset]:
    """Split `train` into the rest and `val`, both with the whole pool of sources.

    Claims of connected golds (`connected_groups`) stay together, so no gold of `val` is a gold
    of the rest. `val` gets about `share` of the claims of each language, at least one
    where the language has two or more groups. A paper with more than `most_claims` claims stays
    in train: it alone would be a large part of the mean over `val`. The result depends on ids
    and `seed`, not on the order of claims.

    Raises `ConfigError` on a share that is not between 0 and 1 or leaves a part empty.
    """
    require(0.0 < share < 1.0, "share", share, "more than 0 and less than 1")
    groups = _by_group(train.claims)
    totals = Counter(claim.lang for claim in train.claims)
    spread = Counter(lang for claims in groups.values() for lang in {c.lang for c in claims})
    room = {
        lang: max(round(share * total), 1) if spread[lang] > 1 else 0
        for lang, total in totals.items()
    }
    chosen: set[str] = set()
    for key in sorted(
        groups, key=lambda key: (hashlib.sha256(f"{seed}:{key}".encode()).digest(), key)
    ):
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


def _by_group(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """Group claims by connected golds; a group is named by its smallest gold, or by its claim."""
    groups: dict[int, list[Claim]] = defaultdict(list)
    for number, claim in zip(connected_groups(c.golds for c in claims), claims, strict=True):
        groups[number].append(claim)
    named = {}
    for group in groups.values():
        # The prefix keeps a claim's id apart from an equal id of a gold.
        golds = [f"gold {gold}" for claim in group for gold in claim.golds]
        named[min(golds, default=f"claim {group[0].id}")] = group
    return named
