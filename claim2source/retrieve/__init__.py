"""First-stage retrieval: claims and sources -> Result."""

from claim2source.retrieve.bm25 import BM25Config, BM25Index, BM25Retriever
from claim2source.retrieve.dense import DenseIndex, DenseRetriever
from claim2source.retrieve.faiss_index import IndexConfig
from claim2source.retrieve.fuse import FusionConfig, HybridRetriever, fuse
from claim2source.retrieve.topk import Retriever, candidate_pool

__all__ = [
    "BM25Config",
    "BM25Index",
    "BM25Retriever",
    "DenseIndex",
    "DenseRetriever",
    "FusionConfig",
    "HybridRetriever",
    "IndexConfig",
    "Retriever",
    "candidate_pool",
    "fuse",
]
