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


def top_of(scores: np.ndarray, positions: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Best `k` of `positions` by `scores`, padded with -1 to length `k`."""
    best = positions[np.argsort(-scores, kind="stable")[:k]]
    ordered = np.sort(scores)[::-1][:k]
    pad = k - len(best)
    return (
        np.concatenate([best, np.full(pad, -1, dtype=np.int64)]),
        np.concatenate([ordered, np.zeros(pad)]).astype(np.float32),
    )
