"""The best of many rows at once is the best of each, ties and signs included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.search import topk as stage
from claim2source.search.topk import take_top, take_top_rows


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(0, 5),
    n=st.integers(1, 30),
    k=st.integers(1, 30),
    coarse=st.booleans(),
    widest=st.integers(1, 4),
)
def test_rows_at_once_are_rows_one_by_one(
    seed: int, rows: int, n: int, k: int, coarse: bool, widest: int
) -> None:
    draw = np.random.default_rng(seed)
    k = min(k, n)
    scores = draw.normal(size=(rows, n)).astype(np.float32)
    scores = np.round(scores) if coarse else scores
    mask = draw.random((rows, n)) < draw.random()
    order = draw.permutation(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_WIDEST", widest)  # 1: rows with more than k take the other path
        positions, top_scores = take_top_rows(scores, mask, k, order)
    assert positions.shape == top_scores.shape == (rows, k)
    for row in range(rows):
        columns = np.flatnonzero(mask[row])
        best, best_scores = take_top(scores[row, columns], columns, k, order)
        assert positions[row].tolist() == best.tolist()
        assert top_scores[row].tolist() == best_scores.tolist()
        assert top_scores.dtype == np.float32
