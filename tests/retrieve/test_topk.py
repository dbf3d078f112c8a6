"""The best of many rows at once is the best of each, ties and signs included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.retrieve import topk as stage
from claim2source.retrieve.topk import (
    floors_of_best,
    sort_keys,
    top_of,
    top_of_rows,
    unsorted_keys,
)

INF = float("inf")
values = st.sampled_from([-INF, -2.5, -1e-40, -0.0, 0.0, 1e-40, 0.3, 7.0, 3e38, INF])


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
    kept = draw.random((rows, n)) < draw.random()
    order = draw.permutation(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "_WIDEST", widest)  # 1: rows with more than k take the other path
        positions, found = top_of_rows(scores, kept, k, order)
    assert positions.shape == found.shape == (rows, k)
    for row in range(rows):
        columns = np.flatnonzero(kept[row])
        best, best_scores = top_of(scores[row, columns], columns, k, order)
        assert positions[row].tolist() == best.tolist()
        assert found[row].tolist() == best_scores.tolist()
        assert found.dtype == np.float32


@given(st.lists(values, min_size=1, max_size=12), st.integers(0, 10**6))
def test_keys_sort_by_score_and_then_by_order(scores: list[float], seed: int) -> None:
    given_scores = np.array(scores, dtype=np.float32)
    order = np.random.default_rng(seed).permutation(len(scores)) + 2**32 - len(scores)
    keys = sort_keys(given_scores, order)
    expected = sorted(range(len(scores)), key=lambda i: (-given_scores[i], order[i]))
    assert np.argsort(keys).tolist() == expected
    back, places = unsorted_keys(keys)
    assert back.tolist() == given_scores.tolist() and places.tolist() == order.tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 200), k=st.integers(1, 200))
def test_at_least_k_reach_the_floor_and_not_many_more(seed: int, n: int, k: int) -> None:
    k = min(k, n)
    scores = np.random.default_rng(seed).random((3, n), dtype=np.float32)
    reached = (scores >= floors_of_best(scores, k)[:, None]).sum(axis=1)
    assert (reached >= k).all()
    assert (reached <= 2 * k + 8).all()
