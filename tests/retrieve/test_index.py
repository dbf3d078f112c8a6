"""Indexes: built once by the first search; a plain string is a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost
from claim2source.models import EncoderSettings
from claim2source.retrieve import BM25, BM25Config, Dense, Hybrid
from claim2source.retrieve.terms import Analysis

WORDS = "masks vaccine sleep tea otters bees air trial".split()


class Words:
    """An encoder that counts words."""

    settings, source_encoder = EncoderSettings(max_length=8), None

    def __init__(self) -> None:
        self.read: list[tuple[str, int]] = []

    def key(self) -> dict[str, Any]:
        return {"weights": "w"}

    def encode(self, texts: list[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        self.read.append((side, len(texts)))
        rows = [[text.casefold().count(word) for word in WORDS] for text in texts]
        vectors = np.array(rows, dtype=np.float32).reshape(len(texts), len(WORDS))
        return vectors, Cost(0.1, len(texts), 0, len(texts), 1)


def test_the_first_search_builds_and_later_ones_cost_only_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysed: list[int] = []
    real = Analysis.counted_sources

    def noted(self: Analysis, texts: list[str]) -> Any:
        analysed.append(len(texts))
        return real(self, texts)

    monkeypatch.setattr(Analysis, "counted_sources", noted)
    sources = [Source(f"s{i}", f"{WORDS[i % 8]} {WORDS[i % 3]}") for i in range(30)]
    claims = [Claim(f"c{i}", f"{WORDS[i % 8]} and {WORDS[-i % 8]}") for i in range(9)]
    encoder = Words()
    index = Hybrid(BM25(), Dense(encoder)).index(sources)
    assert analysed == encoder.read == []
    first = index.search(claims, 5)
    assert (analysed, encoder.read) == ([30], [("source", 30), ("claim", 9)])
    assert (first.cost.items, first.cost.tokens, first.cost.reused) == (9, 39, 2)
    variants = [replace(claim, id=f"o{claim.id}", text=f"{claim.text} w1") for claim in claims[:2]]
    second = index.search(variants, 5)
    assert (analysed, encoder.read[2:]) == ([30], [("claim", 2)])
    assert second.cost.items == 2 and second.cost.tokens > 0
    # The vectors of the claims just searched are still known.
    result = index.search(variants, 5)
    assert (analysed, encoder.read[3:], result.cost.tokens) == ([30], [], 0)
    fresh = Hybrid(BM25(), Dense(encoder)).index(sources).search(variants, 5)
    assert list(second.run) == list(result.run) == list(fresh.run)


def test_plain_strings_are_claims() -> None:
    sources = [Source("a", "masks work"), Source("b", "otters play")]
    index = BM25().index(sources)
    assert list(index.search("otters").run) == list(index.search(["otters"]).run)
    result = index.search(["masks", "otters"], k=1)
    assert [result.sources(claim) for claim in ("0", "1")] == [["a"], ["b"]]
    assert list(result.scored("1")) == ["b"]
    assert Dense(Words()).index(sources).search("otters", 1).sources("0") == ["b"]
    assert index.search([]).run.claim_ids == ()
    assert BM25(BM25Config(b=0.2), k1=0.5).config == BM25Config(b=0.2, k1=0.5)
