"""Ranks, their buckets, slices by what a claim is like, and scores over them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.evaluation.slices import (
    BUCKETS,
    NOT_FOUND,
    breakdown,
    bucket_changes,
    bucket_of,
    first_ranks,
    rank_slices,
    slices_of,
    summarise,
)
from claim2source.metrics.metrics import evaluate

inf = np.inf


@given(st.lists(st.integers(1, 400) | st.none(), min_size=1, max_size=6))
def test_ranks_are_where_the_first_gold_stands(places):
    listed = {
        f"c{i}": [("gold" if rank == place else f"s{rank}", -float(rank)) for rank in range(1, 401)]
        for i, place in enumerate(places)
    }
    # Another gold stands last, if it is there at all.
    qrels = Qrels({c: {"gold": 1, "s401": 2, "s1": 0} for c in listed})
    ids, ranks = first_ranks(Run.from_lists(listed), qrels)
    assert ids == tuple(listed)
    assert ranks.tolist() == [inf if place is None else place for place in places]
    run = Run.from_lists({"c": [("x", 3.0), ("b", 2.0), ("a", 1.0)]})
    assert first_ranks(run, Qrels({"c": {"a": 1, "b": 2, "x": 0}}))[1].tolist() == [2]


def test_summary_of_ranks():
    found = summarise(np.array([1, 3, 200, inf]))
    assert (found.claims, found.found, found.mean, found.median) == (4, 3, 68, 101.5)
    assert {k: v for k, v in found.buckets.items() if v} == {
        "1": 1,
        "2-5": 1,
        "101+": 1,
        NOT_FOUND: 1,
    }
    assert list(found.buckets) == [*BUCKETS, NOT_FOUND]
    assert summarise(np.array([2, inf, inf])).median is None
    assert summarise(np.array([2, inf])).median is None  # half-way to infinity
    assert summarise(np.array([1, 2, inf])).median == 2
    assert summarise(np.array([inf])).mean is None


def test_buckets_meet_without_gap_and_claims_change_between_them():
    names = [bucket_of(float(rank)) for rank in range(1, 2000)]
    assert list(dict.fromkeys(names)) == list(BUCKETS)
    expected = ["1", "2-5", "2-5", "6-10", "6-10", "11-50", "11-50", "51-100", "51-100", "101+"]
    assert [names[r - 1] for r in (1, 2, 5, 6, 10, 11, 50, 51, 100, 101)] == expected
    assert bucket_of(inf) == NOT_FOUND
    table = bucket_changes(np.array([1, 1, 7, inf]), np.array([1, 3, inf, 60]))
    cells = {(a, b): n for a, row in table.items() for b, n in row.items() if n}
    pairs = [("1", "1"), ("1", "2-5"), ("6-10", NOT_FOUND), (NOT_FOUND, "51-100")]
    assert cells == dict.fromkeys(pairs, 1)
    found = rank_slices(["x", "y", "z"], np.array([inf, 4, 2]), "rank of bm25")
    assert {(s.by, s.part): set(s.claim_ids) for s in found} == {
        ("rank of bm25", "2-5"): {"y", "z"},
        ("rank of bm25", NOT_FOUND): {"x"},
    }


CLAIMS = (
    Claim("e1", "masks work #covid #masks says @who", "en", golds=("a",)),
    Claim("e2", "word " * 15, "en", golds=("a",)),
    Claim("e3", "word " * 16 + "covid19 mail@x.org C#sharp", "en", golds=("b",)),
    Claim("d1", "50 % von 1.000, also 2,5 #eins", "de", golds=("c",)),
    Claim("d2", "kein gold", "de"),
    Claim("f1", "mot " * 41 + "12", "fr", golds=("d",)),
)


def parts(claims=CLAIMS, seen=None):
    return {(s.by, s.part): set(s.claim_ids) for s in slices_of(claims, seen)}


def test_slices_by_every_trait():
    found = parts(seen=frozenset({"b", "c", "zz"}))
    assert found == {
        ("language", "en"): {"e1", "e2", "e3"},
        ("language", "de"): {"d1"},
        ("language", "fr"): {"f1"},
        ("gold in training", "seen"): {"e3", "d1"},
        ("gold in training", "unseen"): {"e1", "e2", "f1"},
        ("words", "1-15"): {"e1", "e2", "d1"},
        ("words", "16-25"): {"e3"},
        ("words", "over 40"): {"f1"},
        ("hashtags", "0"): {"e2", "e3", "f1"},
        ("hashtags", "1"): {"d1"},
        ("hashtags", "2+"): {"e1"},
        ("mentions", "0"): {"e2", "e3", "d1", "f1"},
        ("mentions", "1"): {"e1"},
        ("numbers", "0"): {"e1", "e2", "e3"},
        ("numbers", "1"): {"f1"},
        ("numbers", "2+"): {"d1"},
    }
    assert not {by for by, _ in parts()} & {"gold in training"}


QRELS = Qrels({c.id: dict.fromkeys(c.golds, 1) for c in CLAIMS if c.golds})
DATA = Dataset(CLAIMS, tuple(Source(s) for s in "abcdx"), QRELS, "dev")


def test_scores_over_slices_with_macro_and_micro():
    right = Run.from_lists({c.id: [(c.golds[0], 1.0)] for c in CLAIMS if c.lang == "en"})
    none = Run.from_lists({"e1": [("x", 1.0)]})
    systems = {n: evaluate(r, QRELS, ["mrr@5"]) for n, r in (("right", right), ("none", none))}
    rows = breakdown(systems, "mrr@5", DATA, slices_of(CLAIMS), repeats=400)
    table = {(r.by, r.part, r.system): r for r in rows}
    assert table["all", "micro", "right"].value == pytest.approx(3 / 5)
    assert table["all", "macro", "right"].value == pytest.approx(1 / 3)
    english, mentions = table["language", "en", "right"], table["mentions", "0", "right"]
    assert (english.value, english.low, english.high) == (1, 1, 1)
    assert (english.claims, english.papers) == (3, 2)
    assert mentions.value == pytest.approx(2 / 4) and mentions.low < mentions.value < mentions.high
    assert all(r.value == 0 for r in rows if r.system == "none")
    assert [r.system for r in rows[:4]] == ["right", "none"] * 2
    elsewhere = slices_of([Claim("other", "t", "it", golds=("a",))])
    assert len(breakdown(systems, "mrr@5", DATA, elsewhere, repeats=10)) == 4
