"""What every first stage has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from claim2source.records import Claim, Source
from claim2source.run import Pool, Result


class Retriever(Protocol):
    """Ranks the sources for every claim, at most `k` each, within the claim's candidates."""

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """The top `k` of every claim."""
        ...


def candidate_pool(claims: Sequence[Claim]) -> Pool | None:
    """Candidates of the claims that have them; None when none does."""
    pool = {c.id: frozenset(c.candidates) for c in claims if c.candidates is not None}
    return pool or None


def candidate_positions(claim: Claim, position_of: dict[str, int]) -> np.ndarray:
    """Positions of a claim's candidates in the pool; a candidate that is not there is left out."""
    found = [position_of[s] for s in claim.candidates or () if s in position_of]
    return np.array(sorted(set(found)), dtype=np.int64)


def tie_order(source_ids: Sequence[str]) -> np.ndarray:
    """Place of every source when equal scores are ordered as a `Run` does: id, descending."""
    order = np.argsort(np.array(source_ids, dtype=object), kind="stable")[::-1]
    place = np.empty(len(source_ids), dtype=np.int64)
    place[order] = np.arange(len(source_ids))
    return place


def floor_of_best(scores: np.ndarray, k: int) -> float:
    """A score that at least `k` (1 to all) of `scores` reach, and not many more.

    Found in one pass: of many blocks' highest scores, the k-th is reached in k blocks.
    """
    blocks = 5 * k
    width = len(scores) // blocks
    if width < 2:
        return float(np.partition(scores, len(scores) - k)[len(scores) - k])
    highest = scores[: width * blocks].reshape(width, blocks).max(axis=0)
    return float(np.partition(highest, blocks - k)[blocks - k])


def top_of(
    scores: np.ndarray, positions: np.ndarray, k: int, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Best `k` of `positions` by `scores`, equal ones by `order`, padded with -1 to length `k`.

    The order decides which of equal sources are cut off, so that a deeper search only adds.
    """
    if 0 < k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= least)
        scores, positions = scores[kept], positions[kept]
    best = np.lexsort((order[positions], -scores))[:k]
    pad = k - len(best)
    return (
        np.concatenate([positions[best], np.full(pad, -1, dtype=np.int64)]),
        np.concatenate([scores[best], np.zeros(pad, dtype=np.float32)]).astype(np.float32),
    )
