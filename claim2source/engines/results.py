"""Hold what an index's searches return, and rank claims by one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Cost, Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.engines.lance import Hits
from claim2source.engines.rows import Where
from claim2source.retrieve import candidate_pool

Search = Callable[[Sequence[Claim], Where, int], Mapping[str, Hits]]


@dataclass(frozen=True, eq=False)
class SearchResults:
    """Hold results for claims by terms, by vectors and fused; and the claims' vectors.

    `texts` are the vectors of further texts that were encoded with the claims. `alphas` are the
    weights of terms for claims in another language than the papers', without a translation, where
    nobody chose one.
    """

    lexical: Result
    dense: Result
    fused: Result
    vectors: Mapping[str, np.ndarray]
    texts: Mapping[str, np.ndarray] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)


class SearchPart:
    """Rank papers of an index by one of its two searches, as an `Index` does."""

    def __init__(self, search: Search, where: Where) -> None:
        self._search, self._where = search, where

    def search(self, claims: Claims, k: int = 100) -> Result:
        started, posts = time.perf_counter(), as_claims(claims)
        deeper = k + max((len(claim.excluded) for claim in posts), default=0)
        results = self._search(posts, self._where, deeper)
        lists = {
            claim.id: [hit for hit in results[claim.id] if hit[0] not in claim.excluded][:k]
            for claim in posts
        }
        run = Run.from_lists(lists, pool=candidate_pool(posts))
        return Result(run, cost=Cost(time.perf_counter() - started, len(posts)))
