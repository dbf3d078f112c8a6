"""Count what a program loads, encodes and searches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from claim2source.models import Encoder
from claim2source.retrieve.bm25 import BM25Index
from claim2source.retrieve.faiss_index import VectorIndex


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is encoded, and the searches of both kinds."""
    counts: Counter[str] = Counter()

    def count(kind: type, method: str, name: str) -> None:
        before = getattr(kind, method)

        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return before(self, *args, **kwargs)

        monkeypatch.setattr(kind, method, wrapper)

    count(Encoder, "_encode_chunk", "encodings")
    count(VectorIndex, "rank", "dense searches")
    count(BM25Index, "rank", "BM25 searches")
    return counts


def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the encoders and the re-rankers that are loaded."""
    from claim2source.models import load
    from claim2source.rerank import cross_encoder, yes_no

    counts: Counter[str] = Counter()

    def count(module: Any, function: str, name: str) -> None:
        before = getattr(module, function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return before(*args, **kwargs)

        monkeypatch.setattr(module, function, wrapper)

    count(load, "load", "encoders")
    count(cross_encoder, "load_cross_encoder", "cross-encoders")
    count(yes_no, "load_causal", "generative models")
    return counts
