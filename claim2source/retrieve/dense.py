"""Dense retrieval: the one Encoder and FAISS's exact inner-product index."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.cost import peak_memory
from claim2source.encode.encoder import Encoder
from claim2source.records import Claim, Source
from claim2source.retrieve.stage import candidate_pool, candidate_positions, tie_order, top_of
from claim2source.run import Cost, Result, Run
from claim2source.store import Store
from claim2source.text import Rendering

# Claims searched at a time: keeps FAISS's result buffers flat in the number of claims.
CHUNK = 4096
_NONE = np.empty(0, dtype=np.int64)


class DenseIndex:
    """Exact inner-product search over source vectors [sources, dimensions] float32."""

    def __init__(self, source_ids: Sequence[str], vectors: np.ndarray) -> None:
        import faiss

        if len(source_ids) != len(vectors):
            raise ValueError(f"{len(source_ids)} sources for {len(vectors)} vectors")
        self.source_ids = list(source_ids)
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._position_of = {source: i for i, source in enumerate(self.source_ids)}
        self._order = tie_order(self.source_ids)
        self._index = faiss.IndexFlatIP(self.vectors.shape[1])
        self._index.add(self.vectors)

    def search(self, claims: Sequence[Claim], vectors: np.ndarray, k: int) -> Run:
        """Top `k` of every claim, by the claims' vectors [claims, dimensions].

        Of sources with equal scores the first by id, descending, are kept. Raises ValueError
        when there are not as many vectors as claims.
        """
        if len(claims) != len(vectors):
            raise ValueError(f"{len(claims)} claims for {len(vectors)} vectors")
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        depth = min(k, len(self.source_ids))
        positions = np.full((len(claims), depth), -1, dtype=np.int64)
        scores = np.zeros((len(claims), depth), dtype=np.float32)
        free = np.flatnonzero([claim.candidates is None for claim in claims]) if depth else _NONE
        for start in range(0, len(free), CHUNK):
            rows = free[start : start + CHUNK]
            positions[rows], scores[rows] = self._top(vectors[rows], depth)
        for row, claim in enumerate(claims):
            if claim.candidates is not None:
                allowed = candidate_positions(claim, self._position_of)
                within = self.vectors[allowed] @ vectors[row]
                positions[row], scores[row] = top_of(within, allowed, depth, self._order)
        ids = [claim.id for claim in claims]
        return Run.from_topk(ids, self.source_ids, positions, scores, pool=candidate_pool(claims))

    def _top(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores, [claims, depth] each, whichever sources FAISS cuts in a tie."""
        deeper = min(depth + 1, len(self.source_ids))
        scores, positions = self._index.search(vectors, deeper)
        for row in np.flatnonzero(scores[:, depth - 1] == scores[:, -1]) if deeper > depth else ():
            # Another call may round otherwise: all of this claim's scores come from one.
            every, found = self._index.search(vectors[row : row + 1], len(self.source_ids))
            positions[row, :depth], scores[row, :depth] = top_of(
                every[0], found[0], depth, self._order
            )
        return positions[:, :depth], scores[:, :depth]


@dataclass(frozen=True)
class DenseRetriever:
    """Dense retrieval as a stage."""

    encoder: Encoder
    rendering: Rendering = Rendering()
    store: Store | None = None
    progress: bool = False

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Encode both sides and search."""
        started = time.perf_counter()
        source_vectors, cost = self.encoder.encode(
            self.rendering.source_texts(sources), "source", store=self.store,
            progress="sources" if self.progress else None,
        )  # fmt: skip
        claim_vectors, more = self.encoder.encode(
            self.rendering.claim_texts(claims), "claim", store=self.store,
            progress="claims" if self.progress else None,
        )  # fmt: skip
        index = DenseIndex([source.id for source in sources], source_vectors)
        run = index.search(claims, claim_vectors, k)
        tokens = cost.tokens + more.tokens
        seconds = time.perf_counter() - started
        return Result(run, cost=Cost(seconds, len(claims), peak_memory(), tokens))
