"""A window is what the retrievers and `fuse` give, ties and short lists included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from claim2source.core.records import Claim, Source
from claim2source.mining.candidates import BLOCK, CELLS, Candidates
from claim2source.mining.near_duplicates import distinct_words, jaccard
from claim2source.retrieve import BM25Config, BM25Index, FusionConfig, VectorIndex, fuse

WORDS = ["masks", "otters", "tea", "sleep", "sea", "rooms", "seals"]


@settings(max_examples=40, deadline=None)
@example(seed=0, n=400, depth=300, alpha=0.5)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 40),
    depth=st.integers(1, 12),
    alpha=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_a_window_is_the_fused_run(seed: int, n: int, depth: int, alpha: float) -> None:
    draw = np.random.default_rng(seed)
    # Few words and small whole numbers: scores are exact and many of them tie.
    texts = [" ".join(draw.choice(WORDS, 3)) for _ in range(n)]
    sources = [Source(f"s{draw.integers(10**6)}-{i}", title=text) for i, text in enumerate(texts)]
    ids = [source.id for source in sources]
    vectors = draw.integers(-2, 3, (n, 3)).astype(np.float32)
    claims = []
    for i in range(6):
        some = (
            tuple(draw.choice(ids, size=min(n, (4, 0)[i // 4]), replace=False))
            if i % 3 == 2
            else None
        )
        text = " ".join(draw.choice([*WORDS, "unknown"], 2))
        claims.append(Claim(f"c{i}", text, candidates=some))
    claim_vectors = draw.integers(-2, 3, (6, 3)).astype(np.float32)

    dense = VectorIndex(ids, vectors).rank(claims, claim_vectors, depth)
    sparse = BM25Index(sources).rank(claims, depth)
    fusion = FusionConfig("linear", alpha, depth=depth)
    one_side = {0.0: dense, 1.0: sparse}
    run = one_side[alpha] if alpha in one_side else fuse(sparse, dense, fusion)
    found = Candidates(sources, vectors, alpha, depth, BM25Config())
    ((part, window),) = found.windows(claims, claim_vectors)
    assert list(part) == claims
    assert (window.similarities == claim_vectors @ vectors.T).all()
    for row, claim in enumerate(claims):
        listed = [p for p in window.positions[row].tolist() if p >= 0]
        expected = dict(list(run.scored(claim.id).items())[:depth])
        assert [ids[p] for p in listed] == list(expected)
        assert window.scores[row, : len(listed)].tolist() == list(expected.values())
        assert (window.positions[row, len(listed) :] == -1).all()
        for flags, side in ((window.in_dense, dense), (window.in_sparse, sparse)):
            if alpha > 0:
                within = set(side.sources(claim.id))
                assert flags[row, : len(listed)].tolist() == [ids[p] in within for p in listed]


@pytest.mark.parametrize(("pool", "most"), [(70_000, CELLS // 70_000), (40, BLOCK)])
def test_no_block_holds_more_similarities_or_claims_than_it_may(pool: int, most: int) -> None:
    sources = [Source(f"s{i}", "tea") for i in range(pool)]
    claims = [Claim(f"c{i}", "tea") for i in range(300)]
    found = Candidates(sources, np.ones((pool, 1), np.float32), 0.0, 5, BM25Config())
    sizes = [len(part) for part, _ in found.windows(claims, np.ones((300, 1), np.float32))]
    assert max(sizes) <= most < 300 and sum(sizes) == 300


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("Masks work", "WORK: masks!", 1.0),
        ("Masks work", "Masks", 0.5),
        ("Stra\u00dfe", "STRASSE", 1.0),
        ("e\u0301tude", "\u00e9tude", 1.0),
        ("SARS-CoV-2", "sars cov 2", 1.0),
        ("", "", 0.0),
        ("?", "masks", 0.0),
    ],
)
def test_jaccard(one: str, other: str, expected: float) -> None:
    words = distinct_words(one), distinct_words(other)
    assert jaccard(*words) == jaccard(*reversed(words)) == expected
