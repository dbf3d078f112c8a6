"""FAISS's inner-product indexes: exact by default; `ivf_pq` and `hnsw` for large pools."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, get_args

import numpy as np

from claim2source.core.config import require, require_one_of
from claim2source.core.errors import ConfigError

Kind = Literal["exact", "ivf_pq", "hnsw"]
# FAISS's GPU searches return no longer lists.
GPU_DEPTH = 2048
# Numbers of codes a vector, and dimensions of a code, that FAISS's GPU kernels know.
_GPU_PARTS = frozenset((1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96))
_GPU_PART_DIMENSIONS = frozenset((1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32))
_GPU_CODE_BITS = 8
log = logging.getLogger(__name__)
# Vectors that FAISS wants for every cell it trains.
_PER_CELL = 39


@dataclass(frozen=True)
class IndexConfig:
    """How source vectors are searched; exact unless the pool is too large for that.

    The approximate kinds find `refine` times the depth and are scored again by the whole
    vectors, so that scores are those of `exact` and only the choice of sources is not.

    Args:
        kind: exact, ivf_pq (cells of compressed vectors) or hnsw (a graph).
        refine: sources scored again for each one kept.
        cells: ivf_pq: cells that the pool is cut into; none: four times its size's square root.
        probes: ivf_pq: cells looked into for each claim.
        parts: ivf_pq: parts of a vector that get a code each; divides the dimensions; none:
            a quarter of the dimensions.
        code_bits: ivf_pq: bits of a code; training needs 2 to this power sources.
        links: hnsw: neighbours of a source in the graph.
        build_effort: hnsw: sources held in view while the graph is built.
        effort: hnsw: sources held in view while a claim is searched; at least the depth.
        compared: claims that are searched exactly too, to say how much the index finds.
        gpu: use a GPU where FAISS has one (exact and ivf_pq).
        dimensions: search by the first so many numbers of every vector alone, as models trained
            with losses.matryoshka allow; none: by whole vectors.
    """

    kind: Kind = "exact"
    refine: int = 4
    cells: int | None = None
    probes: int = 32
    parts: int | None = None
    code_bits: int = 8
    links: int = 32
    build_effort: int = 80
    effort: int = 128
    compared: int = 500
    gpu: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        require_one_of("index.kind", self.kind, get_args(Kind))
        for key in ("refine", "probes", "build_effort", "effort"):
            require(getattr(self, key) >= 1, f"index.{key}", getattr(self, key), "1 or more")
        for key in ("cells", "parts", "dimensions"):
            value = getattr(self, key)
            require(value is None or value >= 1, f"index.{key}", value, "1 or more, or none")
        require(4 <= self.code_bits <= 12, "index.code_bits", self.code_bits, "4 to 12")
        require(self.links >= 2, "index.links", self.links, "2 or more")
        require(self.compared >= 0, "index.compared", self.compared, "0 or more")


def build_index(vectors: np.ndarray, config: IndexConfig) -> Any:
    """A FAISS index over `vectors` [sources, dimensions] float32.

    Raises `ConfigError` where the pool is too small, or the vectors too short, for the kind.
    """
    import faiss

    count, dimensions = vectors.shape
    product = faiss.METRIC_INNER_PRODUCT
    index: Any
    if config.kind == "exact" or not count:
        index = faiss.IndexFlatIP(dimensions)
    elif config.kind == "hnsw":
        index = faiss.index_factory(dimensions, f"HNSW{config.links},Flat", product)
        index.hnsw.efConstruction = config.build_effort
    else:
        index = faiss.index_factory(dimensions, _ivf_pq(count, dimensions, config), product)
        index.nprobe = config.probes
        index.train(vectors)
    index.add(vectors)
    return index


def _ivf_pq(count: int, dimensions: int, config: IndexConfig) -> str:
    """FAISS's name of this index, once the pool is seen to be large enough for it."""
    parts = config.parts or next(
        n for n in range(max(dimensions // 4, 1), 0, -1) if dimensions % n == 0
    )
    if dimensions % parts:
        raise ConfigError("index.parts", parts, f"a divisor of {dimensions} dimensions")
    cells = config.cells or max(min(int(4 * sqrt(count)), count // _PER_CELL), 1)
    needed = max(2**config.code_bits, cells)
    if count < needed:
        allowed = f"exact or hnsw: {count} sources cannot train {needed} centres"
        raise ConfigError("index.kind", config.kind, allowed)
    # "np": without the codes' second, slow training for a comparison that is not used here.
    return f"IVF{cells},PQ{parts}x{config.code_bits}np"


def on_gpu(index: Any, config: IndexConfig) -> Any | None:
    """The index on the first GPU; None where FAISS has none, or no such index for it."""
    import faiss

    if not config.gpu or config.kind == "hnsw" or not faiss.get_num_gpus():
        return None
    resources = faiss.StandardGpuResources()
    # Of an empty pool even ivf_pq is an exact index.
    if config.kind == "exact" or not hasattr(index, "pq"):
        return faiss.index_cpu_to_gpu(resources, 0, index)
    if why := why_not_on_gpu(index.d, index.pq.M, config.code_bits):
        log.warning("ivf_pq is searched on the CPU: %s", why)
        return None
    options = faiss.GpuClonerOptions()
    # Lookup tables of 96 codes fit a block's shared memory as float16 only.
    options.useFloat16 = True
    return faiss.index_cpu_to_gpu(resources, 0, index, options)


def why_not_on_gpu(dimensions: int, parts: int, code_bits: int) -> str:
    """Why FAISS's GPU search does not take these codes, with a setting that it does; "" if so."""
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
