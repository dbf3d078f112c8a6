"""Indexes: built once by the first search, then searched alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result
from claim2source.models import EncoderSettings, Template
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.terms import Analysis
from claim2source.text import Rendering

WORDS = "masks vaccine sleep tea otters bees air trial".split()


class Words:
    """An encoder that counts words: vectors of small integers, so that scores often tie."""

    def __init__(self, name: str | None = "w", prefix: str = "") -> None:
        self.name = name
        self.source_encoder = None
        template = Template(claim=prefix)
        self.settings = EncoderSettings(max_length=8, template=template)
        self.read: list[tuple[str, int]] = []

    def key(self) -> dict[str, Any] | None:
        if self.name is None:
            return None
        return {
            "weights": self.name,
            "sizes": (1, 2),
        }

    def encode(
        self,
        texts: list[str],
        side: str,
        **_: Any,
    ) -> tuple[np.ndarray, Cost]:
        self.read.append((side, len(texts)))
        rows = []
        for text in texts:
            folded = text.casefold()
            rows.append([folded.count(word) for word in WORDS])
        shape = (len(texts), len(WORDS))
        vectors = np.array(rows, dtype=np.float32).reshape(shape)
        cost = Cost(0.1, len(texts), 0, len(texts), 1)
        return vectors, cost


def pool(seed: int, n: int) -> tuple[list[Source], list[Claim]]:
    """Sources with many equal texts and ids in no order, claims with and without candidates."""
    draw = np.random.default_rng(seed)
    ids = []
    for i in range(n):
        odd = f"{i}\n\u00e9\u2028\ud800"
        length = int(draw.integers(3, 9))
        ids.append(f"{odd[:length]}-{i}")
    sources = []
    for i in draw.permutation(n):
        title = " ".join(draw.choice(WORDS, 2))
        venue = str(draw.choice(WORDS))
        sources.append(Source(ids[i], title, venue=venue))
    claims = []
    for i in range(9):
        pool_ids: tuple[str, ...] = ()
        if n:
            drawn = draw.choice(ids, draw.integers(0, n + 1))
            pool_ids = tuple(str(s) for s in drawn)
        words = draw.choice([*WORDS, "unknown"], draw.integers(0, 4))
        text = " ".join(words)
        candidates = (*pool_ids, "gone") if i % 3 == 2 else None
        claims.append(Claim(f"c{i}", text, candidates=candidates))
    return sources, claims


def whitespace() -> Any:
    return BM25(
        analysis="whitespace",
        metadata=True,
        k1=0.4,
    )


def with_abstracts() -> Any:
    rendering = Rendering(sources="title_abstract")
    return Dense(Words(), rendering=rendering)


def hybrid() -> Any:
    config = FusionConfig("rrf", alpha=0.3, depth=4)
    return Hybrid(BM25(), Dense(Words()), config)


def scored() -> Any:
    config = FusionConfig(depth=4, missing="scored")
    return Hybrid(BM25(), BM25(k1=0.5), config)


def hybrid_of_hybrids() -> Any:
    inner = Hybrid(BM25(), Dense(Words()))
    return Hybrid(inner, BM25(b=0.1))


RETRIEVERS: dict[str, Callable[[], Any]] = {
    "bm25": BM25,
    "bm25 whitespace": whitespace,
    "exact": lambda: Dense(Words()),
    "title_abstract": with_abstracts,
    "hybrid": hybrid,
    "scored": scored,
    "hybrid of hybrids": hybrid_of_hybrids,
}


def equal(first: Result, second: Result) -> bool:
    """Whether two results are equal bit for bit, seconds and memory apart."""
    costs = []
    for result in (first, second):
        cost = replace(
            result.cost,
            seconds=0,
            peak_memory=0,
            tokens=0,
            reused=0,
        )
        costs.append(cost)
    return (
        list(first.run) == list(second.run)
        and first.run.claim_ids == second.run.claim_ids
        and first.run.pool == second.run.pool
        and first.failures == second.failures
        and costs[0] == costs[1]
    )


def test_a_search_leaves_nothing_behind() -> None:
    for seed, size in ((0, 0), (1, 3), (2, 120)):
        sources, claims = pool(seed, size)
        for make in RETRIEVERS.values():
            index = make().index(sources)
            first = index.search(claims, 7)
            index.search(claims[::3], 3)
            again = index.search(claims, 7)
            assert equal(again, first)
            fresh = make().index(sources)
            assert equal(fresh.search(claims, 7), first)


def test_the_first_search_builds_and_later_ones_cost_only_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysed: list[int] = []
    real = Analysis.counted_sources

    def noted(self: Analysis, texts: list[str]) -> Any:
        analysed.append(len(texts))
        return real(self, texts)

    monkeypatch.setattr(Analysis, "counted_sources", noted)
    sources, claims = pool(1, 30)
    encoder = Words()
    index = Hybrid(BM25(), Dense(encoder)).index(sources)
    assert analysed == encoder.read == []
    first = index.search(claims, 5)
    assert analysed == [30]
    assert encoder.read == [("source", 30), ("claim", 9)]
    assert first.cost.items == 9
    assert first.cost.tokens == 39
    assert first.cost.reused == 2

    variants = []
    for claim in claims[:2]:
        text = f"{claim.text} w1"
        variants.append(replace(claim, id=f"o{claim.id}", text=text))
    second = index.search(variants, 5)
    assert analysed == [30]
    assert encoder.read[2:] == [("claim", 2)]
    assert second.cost.items == 2
    assert second.cost.tokens > 0

    # The vectors of the claims just searched are still known.
    result = index.search(variants, 5)
    assert analysed == [30]
    assert encoder.read[3:] == []
    assert result.cost.tokens == 0

    fresh_index = Hybrid(BM25(), Dense(encoder)).index(sources)
    fresh = fresh_index.search(variants, 5)
    assert list(second.run) == list(result.run) == list(fresh.run)


def test_plain_strings_are_claims() -> None:
    sources = [
        Source("a", "masks work"),
        Source("b", "otters play"),
    ]
    index = BM25().index(sources)
    one = index.search("otters")
    listed = index.search(["otters"])
    assert list(one.run) == list(listed.run)

    result = index.search(["masks", "otters"], k=1)
    assert result.sources("0") == ["a"]
    assert result.sources("1") == ["b"]
    assert list(result.scored("1")) == ["b"]

    dense = Dense(Words()).index(sources)
    nearest = dense.search("otters", 1)
    assert nearest.sources("0") == ["b"]
    nothing = index.search([])
    assert nothing.run.claim_ids == ()
