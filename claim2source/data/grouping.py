"""Group claims that refer to the same paper, by one of three rules.

- Connected golds (`connected_groups`, `gold_groups`): claims that share a gold, directly or
  through other claims. Tests, intervals, batches and `val` keep such claims together.
- Identical text (`golds_by_text`): claims with the same text share their golds. Mining uses none
  of them as a negative, and training masks them.
- Near-duplicates (`claim2source.mining.near_duplicates`): sources with such similar titles,
  abstracts or vectors that one is not a negative if the other is gold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from claim2source.core.records import Claim, Qrels, nfkc


def connected_groups(keys: Iterable[Sequence[str]]) -> list[int]:
    """Number the groups of items that share a key, directly or through other items.

    `keys` are each item's keys; an item without any is a group of its own. Numbers follow the
    first appearance of a group.
    """
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            grandparent = parent[parent[key]]
            parent[key] = grandparent
            key = grandparent
        return key

    items = [tuple(item) for item in keys]
    for item in items:
        if not item:
            continue
        first, *rest = item
        for other in rest:
            first_root = root(first)
            other_root = root(other)
            parent[other_root] = first_root

    number: dict[object, int] = {}
    groups: list[int] = []
    for position, item in enumerate(items):
        group: object = (position,)
        if item:
            group = root(item[0])
        next_number = len(number)
        group_number = number.setdefault(group, next_number)
        groups.append(group_number)
    return groups


def gold_groups(qrels: Qrels, claim_ids: Iterable[str]) -> np.ndarray:
    """Number the claims' groups of connected golds, [claims] int64."""
    golds = (qrels.golds(claim) for claim in claim_ids)
    groups = connected_groups(golds)
    return np.array(groups, dtype=np.int64)


def plain_text(text: str) -> str:
    """Return a text in NFKC and lower case with single spaces: equal for identical claims."""
    folded = nfkc(text).casefold()
    words = folded.split()
    return " ".join(words)


def golds_by_text(claims: Sequence[Claim]) -> dict[str, frozenset[str]]:
    """Map every claim id to the golds of all claims with its text, ignoring case and spaces.

    Their `excluded` sources are added, so that a claim is never a negative of itself.
    """
    golds: dict[str, frozenset[str]] = {}
    texts: dict[str, str] = {}
    for claim in claims:
        text = plain_text(claim.text)
        texts[claim.id] = text
        known_golds = golds.get(text, frozenset())
        golds[text] = known_golds.union(claim.golds, claim.excluded)
    return {claim_id: golds[text] for claim_id, text in texts.items()}
