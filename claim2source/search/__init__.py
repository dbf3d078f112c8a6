"""Retrievers and their indexes: BM25, dense, hybrid, in memory or in a folder that grows."""
