"""First-stage retrieval: retrievers make indexes of sources, indexes rank them for claims."""

from claim2source.retrieve.bm25 import BM25, BM25Config, BM25Index
from claim2source.retrieve.dense import Dense, DenseIndex
from claim2source.retrieve.faiss_index import VectorIndex
from claim2source.retrieve.fuse import FusionConfig, Hybrid, HybridIndex, fuse, load_index
from claim2source.retrieve.topk import candidate_pool

__all__ = [
    "BM25",
    "BM25Config",
    "BM25Index",
    "Dense",
    "DenseIndex",
    "FusionConfig",
    "Hybrid",
    "HybridIndex",
    "VectorIndex",
    "candidate_pool",
    "fuse",
    "load_index",
]
