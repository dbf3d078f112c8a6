"""Search the vectors of passages; a source scores as its best passage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Run
from claim2source.retrieve.faiss_index import VectorIndex
from claim2source.retrieve.topk import candidate_pool

# Between a source's id and a passage's number: passages are ordered as their sources are.
_BETWEEN = "\0"


def passage_id(source: str, number: int) -> str:
    """Name a source's passage."""
    return f"{source}{_BETWEEN}{number:06}"


def source_of_passage(passage: str) -> str:
    """Name the source of a passage."""
    return passage.partition(_BETWEEN)[0]


class PassageIndex(VectorIndex):
    """Rank sources by the vectors of their passages, whose ids are those of `passage_id`."""

    @cached_property
    def _passages(self) -> dict[str, list[str]]:
        """Map every source to its passages."""
        found: dict[str, list[str]] = {}
        for passage in self.ids.ids:
            found.setdefault(source_of_passage(passage), []).append(passage)
        return found

    def rank(self, claims: Sequence[Claim], vectors: np.ndarray, k: int) -> Run:
        """Rank the best `k` sources of every claim by their best passages.

        The first k times the most passages of a source hold k sources at least; fewer do mostly,
        so that the search goes deeper only for the claims that need it.
        """
        most = k * max(map(len, self._passages.values()), default=1)
        asked = [self._of_passages(claim) for claim in claims]
        ranked: dict[str, list[tuple[str, float]]] = {claim.id: [] for claim in claims}
        left, depth = list(range(len(claims))), 2 * k
        while left:
            depth = min(depth, most, len(self.ids))
            found = super().rank([asked[row] for row in left], vectors[left], depth)
            last = depth in (most, len(self.ids))
            lacking = []
            for row in left:
                best: dict[str, float] = {}
                passages = found.scored(claims[row].id)
                for passage, score in passages.items():
                    best.setdefault(source_of_passage(passage), score)
                ranked[claims[row].id] = list(best.items())[:k]
                if len(best) < k and len(passages) == depth and not last:
                    lacking.append(row)
            left, depth = lacking, 4 * depth
        return Run.from_lists(ranked, pool=candidate_pool(claims))

    def _of_passages(self, claim: Claim) -> Claim:
        def passages(sources: Iterable[str]) -> tuple[str, ...]:
            known = (self._passages.get(source, ()) for source in sources)
            return tuple(passage for part in known for passage in part)

        candidates = None if claim.candidates is None else passages(claim.candidates)
        return replace(claim, candidates=candidates, excluded=passages(claim.excluded))
