"""Passages of sources: max pooling, exact at every depth, written and opened."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.io.store import Store
from claim2source.retrieve import Dense, IndexConfig
from claim2source.retrieve.faiss_index import PassageIndex, passage_id
from claim2source.text import Rendering
from claim2source.text.views import PassageConfig
from tests.retrieve.test_index import Words

PLAIN = Rendering(sources="title_abstract")


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 40))
def test_a_source_scores_as_its_best_passage_at_every_depth(seed: int, n: int, k: int) -> None:
    draw = np.random.default_rng(seed)
    ids = [f"s{i}" for i in draw.permutation(n)]
    # Few integers: many passages tie, within and between sources; one source may fill the top.
    parts = {source: draw.integers(0, 3, (draw.integers(1, 9), 2)) for source in ids}
    names = [passage_id(s, number) for s in ids for number in range(len(parts[s]))]
    vectors = np.concatenate(list(parts.values())).astype(np.float32)
    index = PassageIndex(names, vectors, IndexConfig())
    claims = [Claim("a", ""), Claim("b", "", candidates=(*ids[: n // 2], "gone"))]
    queries = draw.integers(0, 3, (2, 2)).astype(np.float32)
    run = index.rank(claims, queries, k)
    for claim, vector in zip(claims, queries, strict=True):
        pool = [s for s in ids if claim.candidates is None or s in claim.candidates]
        slow = {claim.id: [(s, float((parts[s] @ vector).max())) for s in pool]}
        assert run.scored(claim.id) == Run.from_lists(slow).top(k).scored(claim.id)
    assert run.pool == {"b": frozenset(claims[1].candidates or ())}


def long(number: int, *words: str) -> Source:
    return Source(f"p{number}", "tea", " ".join(words))


SOURCES = [
    long(1, *["sleep"] * 6, "masks", "masks"),  # what counts stands at the end
    long(2, "masks", *["sleep"] * 7),
    long(3, "bees"),
]


def dense(passages: PassageConfig | None, store: Store | None = None) -> Dense:
    return Dense(Words(), rendering=PLAIN, store=store, passages=passages)


def test_the_best_passage_wins_where_the_whole_text_would_not() -> None:
    result = dense(PassageConfig(2, 0)).index(SOURCES).search("masks masks", 3)
    assert result.sources("0")[0] == "p1" and len(result.sources("0")) == 3
    # With the title before each passage: "tea masks masks".
    bee = dense(PassageConfig(2, 0)).index(SOURCES).search("tea bees", 1)
    assert bee.sources("0") == ["p3"]


def test_the_recall_of_an_approximate_index_is_of_sources() -> None:
    draw = np.random.default_rng(0)
    names = [passage_id(f"s{i}", number) for i in range(80) for number in range(3)]
    vectors = draw.normal(size=(len(names), 8)).astype(np.float32)
    index, claims = PassageIndex(names, vectors, IndexConfig("hnsw")), [Claim("a", "")]
    queries = draw.normal(size=(1, 8)).astype(np.float32)
    notes = index.notes(claims, queries, index.rank(claims, queries, 5))
    # Compared by passages' ids, no source would be found.
    assert notes.compared == 1 and notes.recall[5] >= 0.8
