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
        positions = np.full((len(claims), depth), -1, dtype=np.int64)
        scores = np.zeros((len(claims), depth), dtype=np.float32)
        free = [row for row, claim in enumerate(claims) if claim.candidates is None and depth]
        plain_rows = [row for row in free if not claims[row].excluded]
        for start in range(0, len(plain_rows), CHUNK):
            rows = plain_rows[start : start + CHUNK]
            positions[rows], scores[rows] = self._top(vectors[rows], depth)
        for row, claim in enumerate(claims):
            if claim.candidates is None and claim.excluded and depth:
                left_out = self.ids.excluded(claim)
                deeper = min(depth + len(left_out), len(self.ids))
                (located,), (own,) = self._top(vectors[row : row + 1], deeper)
                allowed = np.flatnonzero((located >= 0) & ~np.isin(located, left_out))[:depth]
                positions[row, : len(allowed)], scores[row, : len(allowed)] = (
                    located[allowed],
                    own[allowed],
                )
            elif claim.candidates is not None:
                located = self.ids.candidates(claim)
                own = self.vectors[located] @ vectors[row]
                positions[row], scores[row] = take_top(own, located, depth, self.ids.order)
        return self.ids.run(claims, positions, scores)

    def _top(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores, [claims, depth] each."""
        # One more than requested shows if FAISS cuts through a tie, which ids then break.
        deeper = min(depth + 1, len(self.ids))
        scores, positions = self._search(vectors, deeper)
        for row in np.flatnonzero(scores[:, depth - 1] == scores[:, -1]) if deeper > depth else ():
            # Another call may round differently: all of a claim's scores come from one call.
            all_scores, ranked = self._search(vectors[row : row + 1], len(self.ids))
            positions[row, :depth], scores[row, :depth] = take_top(
                all_scores[0], ranked[0], depth, self.ids.order
            )
        return positions[:, :depth], scores[:, :depth]

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._on_gpu is not None and k <= GPU_DEPTH:
            return self._on_gpu.search(vectors, k)
        import faiss

        return faiss.knn(vectors, self.vectors, k, metric=faiss.METRIC_INNER_PRODUCT)


def on_gpu(vectors: np.ndarray) -> Any | None:
    """Copy vectors to the first GPU; None if FAISS has none."""
    import faiss

    if not faiss.get_num_gpus():
        return None
    exact = faiss.IndexFlatIP(vectors.shape[1])
    exact.add(vectors)
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, exact)
