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
            parent[key] = key = parent[parent[key]]
        return key

    items = [tuple(item) for item in keys]
    for first, *rest in filter(None, items):
        for other in rest:
            parent[root(other)] = root(first)
    number: dict[object, int] = {}
    groups: list[int] = []
    for position, item in enumerate(items):
        group: object = (position,)
        if item:
            group = root(item[0])
        groups.append(number.setdefault(group, len(number)))
    return groups


def gold_groups(qrels: Qrels, claim_ids: Iterable[str]) -> np.ndarray:
    """Number the claims' groups of connected golds, [claims] int64."""
    return np.array(connected_groups(qrels.golds(claim) for claim in claim_ids), dtype=np.int64)


def plain_text(text: str) -> str:
    """Return a text in NFKC and lower case with single spaces: equal for identical claims."""
    return " ".join(nfkc(text).casefold().split())


def golds_by_text(claims: Sequence[Claim]) -> dict[str, frozenset[str]]:
    """Map every claim id to the golds of all claims with its text, ignoring case and spaces.

    Their `excluded` sources are added, so that a claim is never a negative of itself.
    """
    golds: dict[str, frozenset[str]] = {}
    text_of: dict[str, str] = {}
    for claim in claims:
        text = text_of[claim.id] = plain_text(claim.text)
        golds[text] = golds.get(text, frozenset()).union(claim.golds, claim.excluded)
    return {claim_id: golds[text] for claim_id, text in text_of.items()}
