"""Count what a program loads, encodes and searches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from claim2source.models import Encoder
from claim2source.search.bm25 import BM25Index
from claim2source.search.faiss_index import VectorIndex


def count_loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
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
    """Count the encoders and the re-rankers that are loaded, by the kind of their weights."""
    from transformers import PreTrainedModel

    counts: Counter[str] = Counter()
    real = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]
    kinds = {"SequenceClassification": "cross-encoders", "CausalLM": "generative models"}

    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        names = (name for end, name in kinds.items() if cls.__name__.endswith(end))
        counts[next(names, "encoders")] += 1
        return real(cls, *args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))
    return counts
