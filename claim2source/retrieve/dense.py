"""Dense retrieval: the one Encoder and FAISS's inner-product search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from claim2source.core.errors import ConfigError
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result, Run
from claim2source.io.store import Store
from claim2source.models.encoder import Encoder
from claim2source.retrieve.cache import load_result, request_key, store_result
from claim2source.retrieve.faiss_index import GPU_DEPTH, IndexConfig, build_index, on_gpu
from claim2source.retrieve.topk import candidate_pool, candidate_positions, tie_order, top_of
from claim2source.text import Rendering

# Claims searched at a time: keeps FAISS's result buffers flat in the number of claims.
CHUNK = 4096
_NONE = np.empty(0, dtype=np.int64)


class DenseIndex:
    """Inner-product search over source vectors [sources, dimensions] float32; exact by default."""

    def __init__(
        self, source_ids: Sequence[str], vectors: np.ndarray, config: IndexConfig | None = None
    ) -> None:
        if len(source_ids) != len(vectors):
            raise ValueError(f"{len(source_ids)} sources for {len(vectors)} vectors")
        self.source_ids = list(source_ids)
        self.config = config or IndexConfig()
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._position_of = {source: i for i, source in enumerate(self.source_ids)}
        self._order = tie_order(self.source_ids)
        self._index = build_index(self.vectors, self.config)
        self._on_gpu = on_gpu(self._index, self.config)

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

    def recall(self, claims: Sequence[Claim], vectors: np.ndarray, run: Run) -> dict[str, float]:
        """Share of the exact list's first 10 and first k sources that `run`'s also hold.

        Over at most `config.compared` claims, evenly spread, of those that choose from the whole
        pool: {"claims": n, "recall@10": .., "recall@k": ..} with k the run's depth.
        """
        free = [row for row, claim in enumerate(claims) if claim.candidates is None]
        depth = int(np.diff(run.offsets).max(initial=0))
        if not free or not self.config.compared or not depth:
            return {"claims": 0}
        step = max(len(free) / self.config.compared, 1.0)
        rows = [free[int(place)] for place in np.arange(0, len(free), step)]
        exact = DenseIndex(self.source_ids, self.vectors, IndexConfig(gpu=self.config.gpu))
        asked = [claims[row] for row in rows]
        wanted = exact.search(asked, vectors[rows], depth)
        found: dict[str, float] = {"claims": len(rows)}
        for cut in sorted({min(10, depth), depth}):
            shares = [
                np.mean([source in ours for source in wanted.sources(claim.id, cut)])
                for claim in asked
                for ours in [set(run.sources(claim.id, cut))]
            ]
            found[f"recall@{cut}"] = float(np.mean(shares))
        return found

    def _top(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores, [claims, depth] each."""
        if self.config.kind != "exact":
            return self._approximate(vectors, depth)
        # Whichever sources FAISS cuts in a tie, the ids decide.
        deeper = min(depth + 1, len(self.source_ids))
        scores, positions = self._search(vectors, deeper)
        for row in np.flatnonzero(scores[:, depth - 1] == scores[:, -1]) if deeper > depth else ():
            # Another call may round otherwise: all of this claim's scores come from one.
            every, found = self._search(vectors[row : row + 1], len(self.source_ids))
            positions[row, :depth], scores[row, :depth] = top_of(
                every[0], found[0], depth, self._order
            )
        return positions[:, :depth], scores[:, :depth]

    def _approximate(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """What the index finds, scored by the whole vectors; -1 where it finds too few."""
        wanted = min(depth * self.config.refine, len(self.source_ids))
        if self.config.kind == "hnsw":
            # A search holds `effort` sources in view: it cannot find more than that.
            self._index.hnsw.efSearch = max(self.config.effort, wanted)
        _, found = self._search(vectors, wanted)
        positions = np.full((len(vectors), depth), -1, dtype=np.int64)
        scores = np.zeros((len(vectors), depth), dtype=np.float32)
        for row, places in enumerate(found):
            places = places[places >= 0]
            within = self.vectors[places] @ vectors[row]
            positions[row], scores[row] = top_of(within, places, depth, self._order)
        return positions, scores

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        index = self._index if self._on_gpu is None or k > GPU_DEPTH else self._on_gpu
        return index.search(vectors, k)


@dataclass(frozen=True)
class DenseRetriever:
    """Dense retrieval as a stage.

    With a `store` and weights that have a name, vectors and the run itself are kept: the same
    claims and sources are not searched again, and the cost is what it was then. The result's
    `about` holds `index` (its kind; for an approximate one its recall against the exact list)
    and `stored`, whether the run was read.
    """

    encoder: Encoder
    rendering: Rendering = Rendering()
    store: Store | None = None
    progress: bool = False
    index: IndexConfig = IndexConfig()

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Encode both sides and search, or read what that gave before."""
        started = time.perf_counter()
        reset_peak_memory()
        source_texts = self.rendering.source_texts(sources)
        claim_texts = self.rendering.claim_texts(claims)
        key = self._key(claims, claim_texts, sources, source_texts, k)
        if (stored := load_result(self.store, key)) is not None:
            return stored
        source_vectors, cost = self.encoder.encode(
            source_texts,
            "source",
            store=self.store,
            progress="sources" if self.progress else None,
        )
        claim_vectors, more = self.encoder.encode(
            claim_texts, "claim", store=self.store, progress="claims" if self.progress else None
        )
        source_vectors, claim_vectors = map(self._shortened, (source_vectors, claim_vectors))
        index = DenseIndex([source.id for source in sources], source_vectors, self.index)
        run = index.search(claims, claim_vectors, k)
        about: dict[str, Any] = {"index": {"kind": self.index.kind}}
        if self.index.dimensions is not None:
            about["index"]["dimensions"] = self.index.dimensions
        if self.index.kind != "exact":
            about["index"] |= index.recall(claims, claim_vectors, run)
        cost = Cost(
            time.perf_counter() - started,
            len(claims),
            peak_memory(),
            cost.tokens + more.tokens,
            cost.reused + more.reused,
        )
        return store_result(self.store, key, Result(run, cost=cost, about=about))

    def _shortened(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors [n, d] as they are searched; the store keeps them whole."""
        kept = self.index.dimensions
        if kept is None:
            return vectors
        if kept > vectors.shape[1]:
            allowed = f"at most {vectors.shape[1]}, this model's width"
            raise ConfigError("index.dimensions", kept, allowed)
        cut = vectors[:, :kept]
        if not self.encoder.settings.normalize:
            return cut
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        return cut / np.maximum(lengths, np.finfo(np.float32).tiny)

    def _key(
        self,
        claims: Sequence[Claim],
        claim_texts: Sequence[str],
        sources: Sequence[Source],
        source_texts: Sequence[str],
        k: int,
    ) -> dict[str, Any] | None:
        """All that the run depends on, or None while weights change."""
        import faiss

        if self.store is None:
            return None
        source_side = self.encoder.source_encoder or self.encoder
        encoders = {"claim": self.encoder.key(), "source": source_side.key()}
        if None in encoders.values():
            return None
        return {
            "stage": "dense",
            "encoders": encoders,
            "vectors": self.store.vectors,
            "template": asdict(self.encoder.settings.template),
            "source_template": asdict(source_side.settings.template),
            "index": asdict(self.index),
            "versions": {
                "faiss": faiss.__version__,
                **{name: version(name) for name in ("torch", "transformers")},
            },
            **request_key(claims, claim_texts, sources, source_texts, k),
        }
