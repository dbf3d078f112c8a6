"""Search vectors by inner product with FAISS, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Run
from claim2source.search.topk import SourceIds, take_top

# Maximal length of lists of FAISS's GPU searches.
GPU_DEPTH = 2048
# Claims searched at a time, so that FAISS's result buffers do not grow with their number.
CHUNK = 4096


class VectorIndex:
    """Search vectors of sources [sources, dimensions] float32 by inner product.

    Raises ValueError on a source id that repeats.
    """

    def __init__(self, source_ids: Sequence[str], vectors: np.ndarray) -> None:
        if len(source_ids) != len(vectors):
            raise ValueError(f"{len(source_ids)} sources for {len(vectors)} vectors")
        self.ids = SourceIds(source_ids)
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._on_gpu = on_gpu(self.vectors)

    def rank(self, claims: Sequence[Claim], vectors: np.ndarray, k: int) -> Run:
        """Rank the best `k` sources of every claim, by the claims' vectors [claims, dimensions].

        Ties are broken by id, descending. Raises ValueError if there are not as many vectors as
        claims.
        """
        if len(claims) != len(vectors):
            raise ValueError(f"{len(claims)} claims for {len(vectors)} vectors")
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        depth = min(k, len(self.ids))
        shape = (len(claims), depth)
        positions = np.full(shape, -1, dtype=np.int64)
        scores = np.zeros(shape, dtype=np.float32)

        plain_rows: list[int] = []
        excluding_rows: list[int] = []
        candidate_rows: list[int] = []
        for row, claim in enumerate(claims):
            if claim.candidates is not None:
                candidate_rows.append(row)
            elif claim.excluded:
                excluding_rows.append(row)
            else:
                plain_rows.append(row)

        if depth:
            for start in range(0, len(plain_rows), CHUNK):
                rows = plain_rows[start : start + CHUNK]
                positions[rows], scores[rows] = self._top(vectors[rows], depth)
            for row in excluding_rows:
                one_vector = vectors[row : row + 1]
                claim = claims[row]
                located, own = self._top_allowed(claim, one_vector, depth)
                count = len(located)
                positions[row, :count] = located
                scores[row, :count] = own
        for row in candidate_rows:
            claim = claims[row]
            located = self.ids.candidates(claim)
            own = self.vectors[located] @ vectors[row]
            positions[row], scores[row] = take_top(own, located, depth, self.ids.order)
        return self.ids.run(claims, positions, scores)

    def _top_allowed(
        self,
        claim: Claim,
        vector: np.ndarray,
        depth: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores without a claim's excluded sources, at most `depth` each."""
        left_out = self.ids.excluded(claim)
        sought = depth + len(left_out)
        deeper = min(sought, len(self.ids))
        positions, scores = self._top(vector, deeper)
        located = positions[0]
        is_found = located >= 0
        is_left_out = np.isin(located, left_out)
        allowed = np.flatnonzero(is_found & ~is_left_out)
        best = allowed[:depth]
        own = scores[0]
        return located[best], own[best]

    def _top(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores, [claims, depth] each."""
        # One more than requested shows if FAISS cuts through a tie, which ids then break.
        deeper = min(depth + 1, len(self.ids))
        scores, positions = self._search(vectors, deeper)
        top_positions = positions[:, :depth]
        top_scores = scores[:, :depth]
        if deeper == depth:
            return top_positions, top_scores

        last_scores = scores[:, depth - 1]
        next_scores = scores[:, -1]
        is_cut_tie = last_scores == next_scores
        for row in np.flatnonzero(is_cut_tie):
            # Another call may round differently: all of a claim's scores come from one call.
            one_vector = vectors[row : row + 1]
            all_scores, ranked = self._search(one_vector, len(self.ids))
            own = all_scores[0]
            located = ranked[0]
            best, best_scores = take_top(own, located, depth, self.ids.order)
            top_positions[row] = best
            top_scores[row] = best_scores
        return top_positions, top_scores

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._on_gpu is not None and k <= GPU_DEPTH:
            return self._on_gpu.search(vectors, k)
        import faiss

        return faiss.knn(
            vectors,
            self.vectors,
            k,
            metric=faiss.METRIC_INNER_PRODUCT,
        )


def on_gpu(vectors: np.ndarray) -> Any | None:
    """Copy vectors to the first GPU; None if FAISS has none."""
    import faiss

    if not faiss.get_num_gpus():
        return None
    dimensions = vectors.shape[1]
    exact = faiss.IndexFlatIP(dimensions)
    exact.add(vectors)
    resources = faiss.StandardGpuResources()
    return faiss.index_cpu_to_gpu(resources, 0, exact)
