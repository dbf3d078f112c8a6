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
        self.name, self.source_encoder = name, None
        self.settings = EncoderSettings(max_length=8, template=Template(claim=prefix))
        self.read: list[tuple[str, int]] = []

    def key(self) -> dict[str, Any] | None:
        return None if self.name is None else {"weights": self.name, "sizes": (1, 2)}

    def encode(self, texts: list[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        self.read.append((side, len(texts)))
        rows = [[text.casefold().count(word) for word in WORDS] for text in texts]
        vectors = np.array(rows, dtype=np.float32).reshape(len(texts), len(WORDS))
        return vectors, Cost(0.1, len(texts), 0, len(texts), 1)


def pool(seed: int, n: int) -> tuple[list[Source], list[Claim]]:
    """Sources with many equal texts and ids in no order, claims with and without candidates."""
    draw = np.random.default_rng(seed)
    ids = [f"{i}\n\u00e9\u2028\ud800"[: int(draw.integers(3, 9))] + f"-{i}" for i in range(n)]
    sources = [
        Source(ids[i], " ".join(draw.choice(WORDS, 2)), venue=str(draw.choice(WORDS)))
        for i in draw.permutation(n)
    ]
    claims = []
    for i in range(9):
        pool_ids = tuple(str(s) for s in draw.choice(ids, draw.integers(0, n + 1))) if n else ()
        text = " ".join(draw.choice([*WORDS, "unknown"], draw.integers(0, 4)))
        claims.append(Claim(f"c{i}", text, candidates=(*pool_ids, "gone") if i % 3 == 2 else None))
    return sources, claims


RETRIEVERS: dict[str, Callable[[], Any]] = {
    "bm25": BM25,
    "bm25 whitespace": lambda: BM25(analysis="whitespace", metadata=True, k1=0.4),
    "exact": lambda: Dense(Words()),
    "title_abstract": lambda: Dense(Words(), rendering=Rendering(sources="title_abstract")),
    "hybrid": lambda: Hybrid(BM25(), Dense(Words()), FusionConfig("rrf", alpha=0.3, depth=4)),
    "scored": lambda: Hybrid(BM25(), BM25(k1=0.5), FusionConfig(depth=4, missing="scored")),
    "hybrid of hybrids": lambda: Hybrid(Hybrid(BM25(), Dense(Words())), BM25(b=0.1)),
}


def equal(first: Result, second: Result) -> bool:
    """Whether two results are equal bit for bit, seconds and memory apart."""
    costs = [replace(r.cost, seconds=0, peak_memory=0, tokens=0, reused=0) for r in (first, second)]
    return (
        list(first.run) == list(second.run)
        and first.run.claim_ids == second.run.claim_ids
        and first.run.pool == second.run.pool
        and (first.failures, costs[0]) == (second.failures, costs[1])
    )


def test_a_search_leaves_nothing_behind() -> None:
    for seed, size in ((0, 0), (1, 3), (2, 120)):
        sources, claims = pool(seed, size)
        for make in RETRIEVERS.values():
            index = make().index(sources)
            first = index.search(claims, 7)
            index.search(claims[::3], 3)
            assert equal(index.search(claims, 7), first)
            assert equal(make().index(sources).search(claims, 7), first)


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
