"""Blocks of similarities are bounded, whatever the pool; test_mine.py checks what is picked."""

from __future__ import annotations

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.mining.candidates import BLOCK, CELLS, Candidates
from claim2source.search.bm25 import BM25


@pytest.mark.parametrize(
    ("pool", "limit"), [pytest.param(70_000, CELLS // 70_000, marks=pytest.mark.slow), (40, BLOCK)]
)
def test_no_block_holds_more_similarities_or_claims_than_it_may(pool: int, limit: int) -> None:
    sources = [Source(f"s{i}", "tea") for i in range(pool)]
    claims = [Claim(f"c{i}", "tea") for i in range(limit + 50)]
    candidates = Candidates(sources, np.ones((pool, 1), np.float32), 0.0, 5, BM25())
    sizes = [
        len(part) for part, _ in candidates.windows(claims, np.ones((len(claims), 1), np.float32))
    ]
    assert max(sizes) <= limit and sum(sizes) == limit + 50
