"""Search vectors by inner product with FAISS: exactly, or approximately in large pools."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from claim2source.core.config import Between, Count, Settings
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim
from claim2source.core.run import IndexNotes, Run
from claim2source.retrieve.index_folder import IndexFolder, write_strings
from claim2source.retrieve.topk import SourceIds, top_of

Kind = Literal["exact", "ivf_pq", "hnsw"]
# FAISS's GPU searches return no longer lists.
GPU_DEPTH = 2048
# Claims searched at a time: keeps FAISS's result buffers flat in the number of claims.
CHUNK = 4096
# Numbers of codes a vector, and dimensions of a code, that FAISS's GPU kernels know.
_GPU_PARTS = frozenset((1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96))
_GPU_PART_DIMENSIONS = frozenset((1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32))
_GPU_CODE_BITS = 8
log = logging.getLogger(__name__)
# Vectors that FAISS wants for every cell it trains.
_PER_CELL = 39


@dataclass(frozen=True)
class IndexConfig(Settings):
    """Settings of the search of source vectors; exact unless the pool is too large for that.

    The approximate kinds find `refine` times the depth and score those by the whole vectors:
    scores are those of `exact`, but some sources may be missed.

    Args:
        kind: exact, ivf_pq (cells of compressed vectors) or hnsw (a graph).
        refine: sources scored again for each one kept.
        cells: ivf_pq: cells that the pool is cut into; none: four times its size's square root.
        probes: ivf_pq: cells searched for each claim.
        parts: ivf_pq: parts of a vector that get a code each; divides the dimensions; none:
            a quarter of the dimensions.
        code_bits: ivf_pq: bits of a code; training needs 2 to this power sources.
        links: hnsw: neighbours of a source in the graph.
        build_effort: hnsw: FAISS's efConstruction, sources compared while the graph is built.
        effort: hnsw: FAISS's efSearch, sources compared for a claim; at least the depth.
        compared: claims that are also searched exactly, to measure the index's recall.
        gpu: use a GPU where FAISS has one (exact and ivf_pq).
        dimensions: search by this many first numbers of every vector, as models trained with
            losses.matryoshka allow; none: by whole vectors.
    """

    # FAISS ends the process where its memory does not suffice: hence the upper bounds.
    kind: Kind = "exact"
    refine: Annotated[int, Between(1, 1000)] = 4
    cells: Annotated[int, Between(1, 10**6)] | None = None
    probes: Annotated[int, Between(1, 10**6)] = 32
    parts: Annotated[int, Between(1, 10**5)] | None = None
    code_bits: Annotated[int, Between(4, 12)] = 8
    links: Annotated[int, Between(2, 512)] = 32
    build_effort: Annotated[int, Between(1, 10**5)] = 80
    effort: Annotated[int, Between(1, 10**6)] = 128
    compared: Count = 500
    gpu: bool = True
    dimensions: Annotated[int, Between(1, 10**5)] | None = None


class VectorIndex:
    """Search vectors of sources [sources, dimensions] float32 by inner product.

    `index` is FAISS's index of the vectors for an approximate kind, if it is built already.
    Raises ValueError on a source id that repeats, and `ConfigError` where the pool is too small,
    or the vectors too short, for the kind.
    """

    def __init__(
        self,
        source_ids: Sequence[str],
        vectors: np.ndarray,
        config: IndexConfig | None = None,
        index: Any | None = None,
    ) -> None:
        if len(source_ids) != len(vectors):
            raise ValueError(f"{len(source_ids)} sources for {len(vectors)} vectors")
        self.config = config or IndexConfig()
        self.ids = SourceIds(source_ids)
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._index = build_index(self.vectors, self.config) if index is None else index
        self._on_gpu = on_gpu(self.vectors, self._index, self.config)

    def rank(self, claims: Sequence[Claim], vectors: np.ndarray, k: int) -> Run:
        """Rank the best `k` sources of every claim, by the claims' vectors [claims, dimensions].

        Of sources with equal scores the first by id, descending, are kept. Raises ValueError
        when there are not as many vectors as claims.
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
                positions[row], scores[row] = self._best_of(located, vectors[row], depth)
        return self.ids.run(claims, positions, scores)

    def notes(self, claims: Sequence[Claim], vectors: np.ndarray, run: Run) -> IndexNotes:
        """Describe the index; an approximate one by how much of the exact list `run` holds.

        Recall is the share of the exact list's first 10 and first k sources (k: the run's depth)
        that the run's also hold, over at most `config.compared` claims, evenly spread, of those
        that choose from the whole pool.
        """
        kind, dimensions = self.config.kind, self.config.dimensions
        if kind == "exact":
            return IndexNotes(kind, dimensions)
        free = [row for row, claim in enumerate(claims) if claim.candidates is None]
        depth = int(np.diff(run.offsets).max(initial=0))
        if not free or not self.config.compared or not depth:
            return IndexNotes(kind, dimensions, 0)
        step = max(len(free) / self.config.compared, 1.0)
        rows = [free[int(step_row)] for step_row in np.arange(0, len(free), step)]
        exact = type(self)(self.ids.ids, self.vectors, IndexConfig(gpu=self.config.gpu))
        sampled = [claims[row] for row in rows]
        expected = exact.rank(sampled, vectors[rows], depth)
        recall = {}
        for rank in sorted({min(10, depth), depth}):
            shares = [
                np.mean([source in ours for source in expected.sources(claim.id, rank)])
                for claim in sampled
                for ours in [set(run.sources(claim.id, rank))]
            ]
            recall[rank] = float(np.mean(shares))
        return IndexNotes(kind, dimensions, len(rows), recall)

    def _top(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores, [claims, depth] each."""
        if self.config.kind != "exact":
            return self._approximate(vectors, depth)
        # One more than wanted shows where FAISS cuts through a tie: there the ids decide.
        deeper = min(depth + 1, len(self.ids))
        scores, positions = self._search(vectors, deeper)
        for row in np.flatnonzero(scores[:, depth - 1] == scores[:, -1]) if deeper > depth else ():
            # Another call may round otherwise: all of this claim's scores come from one.
            all_scores, ranked = self._search(vectors[row : row + 1], len(self.ids))
            positions[row, :depth], scores[row, :depth] = top_of(
                all_scores[0], ranked[0], depth, self.ids.order
            )
        return positions[:, :depth], scores[:, :depth]

    def _approximate(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Search the index, then score its sources by whole vectors; -1 where too few."""
        refined = min(depth * self.config.refine, len(self.ids))
        if self.config.kind == "hnsw" and self._index is not None:
            # A search compares `effort` sources: it cannot find more than that.
            self._index.hnsw.efSearch = max(self.config.effort, refined)
        _, candidates = self._search(vectors, refined)
        best = [
            self._best_of(rows[rows >= 0], vector, depth)
            for rows, vector in zip(candidates, vectors, strict=True)
        ]
        positions, scores = zip(*best, strict=True)
        return np.stack(positions), np.stack(scores)

    def _best_of(
        self, positions: np.ndarray, vector: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return top_of(self.vectors[positions] @ vector, positions, depth, self.ids.order)

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._on_gpu is not None and k <= GPU_DEPTH:
            return self._on_gpu.search(vectors, k)
        if self._index is not None:
            return self._index.search(vectors, k)
        import faiss

        return faiss.knn(vectors, self.vectors, k, metric=faiss.METRIC_INNER_PRODUCT)

    def write(self, folder: Path) -> None:
        """Write ids, vectors and FAISS's index into a folder."""
        write_strings(folder / "ids.jsonl", self.ids.ids)
        np.save(folder / "vectors.npy", self.vectors, allow_pickle=False)
        if self._index is not None:
            import faiss

            faiss.write_index(self._index, str(folder / "index.faiss"))

    @classmethod
    def read(cls, folder: IndexFolder, config: IndexConfig) -> VectorIndex:
        """Open a written index, memory-mapped. Raises `InputError` where its files do not fit."""
        count, dimensions = folder.count("sources"), folder.count("dimensions")
        ids = folder.strings("ids.jsonl", count)
        vectors = folder.array("vectors.npy", np.float32, count, dimensions)
        index = None
        if config.kind != "exact" and count:
            import faiss

            path = folder.path / "index.faiss"
            try:
                # IO_FLAG_MMAP would not map a graph, and a copy of cells would refer to this file.
                index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            except RuntimeError as error:
                why = f"FAISS cannot read it: {str(error).splitlines()[-1]}"
                raise InputError(path, why=why) from None
            part = "hnsw" if config.kind == "hnsw" else "pq"
            if (index.ntotal, index.d) != (count, dimensions) or not hasattr(index, part):
                description = f"{config.kind} index of {count} vectors of {dimensions} dimensions"
                raise InputError(path, why=f"not the {description} that the manifest names")
        return cls(ids, vectors, config, index)


def build_index(vectors: np.ndarray, config: IndexConfig) -> Any | None:
    """Build FAISS's index of `vectors` [sources, dimensions]; an exact search needs none.

    Raises `ConfigError` where the pool is too small, or the vectors too short, for the kind.
    """
    count, dimensions = vectors.shape
    if config.kind == "exact" or not count:
        return None
    import faiss

    index: Any
    if config.kind == "hnsw":
        name = f"HNSW{config.links},Flat"
        index = faiss.index_factory(dimensions, name, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = config.build_effort
    else:
        name = _ivf_pq(count, dimensions, config)
        index = faiss.index_factory(dimensions, name, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = config.probes
        index.train(vectors)
    index.add(vectors)
    return index


def _ivf_pq(count: int, dimensions: int, config: IndexConfig) -> str:
    """Return FAISS's name of this index, if the pool is large enough for it."""
    parts = config.parts or next(
        n for n in range(max(dimensions // 4, 1), 0, -1) if dimensions % n == 0
    )
    if dimensions % parts:
        raise ConfigError("index.parts", parts, f"a divisor of {dimensions} dimensions")
    cells = config.cells or max(min(int(4 * sqrt(count)), count // _PER_CELL), 1)
    minimum = max(2**config.code_bits, cells)
    if count < minimum:
        allowed = f"exact or hnsw: {count} sources cannot train {minimum} centres"
        raise ConfigError("index.kind", config.kind, allowed)
    # "np": without the second, slow training of codes for a comparison that is not used here.
    return f"IVF{cells},PQ{parts}x{config.code_bits}np"


def on_gpu(vectors: np.ndarray, index: Any | None, config: IndexConfig) -> Any | None:
    """Move the index to the first GPU; None where FAISS has none, or no such index for it."""
    import faiss

    if not config.gpu or config.kind == "hnsw" or not faiss.get_num_gpus():
        return None
    resources = faiss.StandardGpuResources()
    if index is None:
        exact = faiss.IndexFlatIP(vectors.shape[1])
        exact.add(vectors)
        return faiss.index_cpu_to_gpu(resources, 0, exact)
    if why := why_not_on_gpu(index.d, index.pq.M, config.code_bits):
        log.warning("ivf_pq is searched on the CPU: %s", why)
        return None
    options = faiss.GpuClonerOptions()
    # Lookup tables of 96 codes fit a block's shared memory as float16 only.
    options.useFloat16 = True
    return faiss.index_cpu_to_gpu(resources, 0, index, options)


def why_not_on_gpu(dimensions: int, parts: int, code_bits: int) -> str:
    """Explain why FAISS's GPU search cannot take these codes, and which it takes; "" if it can."""
    if code_bits != _GPU_CODE_BITS:
        return f"index.code_bits {code_bits}: a GPU takes {_GPU_CODE_BITS}"
    fitting = [
        n
        for n in sorted(_GPU_PARTS, reverse=True)
        if dimensions % n == 0 and dimensions // n in _GPU_PART_DIMENSIONS
    ]
    if parts in fitting:
        return ""
    allowed = f"{fitting[0]} or fewer" if fitting else "none of this many dimensions"
    return f"index.parts {parts}: a GPU takes {allowed}"
