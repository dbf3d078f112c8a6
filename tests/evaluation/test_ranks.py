"""Ranks of first golds and their buckets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.evaluation.ranks import (
    BUCKETS,
    NOT_FOUND,
    bucket_changes,
    first_ranks,
    rank_bucket,
)

inf = np.inf


@given(st.lists(st.integers(1, 400) | st.none(), min_size=1, max_size=6))
def test_ranks_are_where_the_first_gold_stands(places):
    listed = {
        f"c{i}": [("gold" if rank == place else f"s{rank}", -float(rank)) for rank in range(1, 401)]
        for i, place in enumerate(places)
    }
    # Another gold is last, or absent.
    qrels = Qrels({c: {"gold": 1, "s401": 2, "s1": 0} for c in listed})
    ids, ranks = first_ranks(Run.from_lists(listed), qrels)
    assert ids == tuple(listed)
    assert ranks.tolist() == [inf if rank is None else rank for rank in places]
    run = Run.from_lists({"c": [("x", 3.0), ("b", 2.0), ("a", 1.0)]})
    assert first_ranks(run, Qrels({"c": {"a": 1, "b": 2, "x": 0}}))[1].tolist() == [2]


def test_buckets_meet_without_gap_and_claims_change_between_them():
    names = [rank_bucket(float(rank)) for rank in range(1, 2000)]
    assert list(dict.fromkeys(names)) == list(BUCKETS)
    expected = ["1", "2-5", "2-5", "6-10", "6-10", "11-50", "11-50", "51-100", "51-100", "101+"]
    assert [names[r - 1] for r in (1, 2, 5, 6, 10, 11, 50, 51, 100, 101)] == expected
    assert rank_bucket(inf) == NOT_FOUND
    table = bucket_changes(np.array([1, 1, 7, inf]), np.array([1, 3, inf, 60]))
    cells = {(a, b): n for a, row in table.items() for b, n in row.items() if n}
    pairs = [("1", "1"), ("1", "2-5"), ("6-10", NOT_FOUND), (NOT_FOUND, "51-100")]
    assert cells == dict.fromkeys(pairs, 1)
