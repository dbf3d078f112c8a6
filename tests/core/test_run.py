"""Run: order, slices, building."""

import itertools
import random
from dataclasses import replace

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Qrels
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.search.topk import SourceIds
from tests.refusals import refused

# Near-ties: distinct in float64, equal in float32; -0.0 and 0.0 are one score.
SCORES = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-9, 1.0 - 1e-9, 2.5, -3.0, 1e-30]) | st.floats(
    -10, 10
)
IDS = st.text(st.sampled_from("aAbB10é\uffff\U00010000"), min_size=1, max_size=3)
RANKED = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3", "d"]),
    st.dictionaries(IDS, SCORES, max_size=12).map(lambda d: list(d.items())),
    max_size=4,
)


def reference(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """trec_eval's order, slowly: float32 score, then strcmp of the UTF-8 id, descending."""
    rounded = [(s, float(np.float32(score)) + 0.0) for s, score in pairs]
    return sorted(rounded, key=lambda pair: (pair[1], pair[0].encode()), reverse=True)


@given(RANKED)
def test_order_equals_a_slow_reference_sort(ranked):
    run = Run.from_lists(ranked)
    assert run.claim_ids == tuple(ranked)
    assert len(run) == sum(map(len, ranked.values()))
    for claim, pairs in ranked.items():
        assert list(run.scored(claim).items()) == reference(pairs)
        assert run.sources(claim) == [s for s, _ in reference(pairs)]
    assert [c for c, _, _ in run] == [c for c, pairs in ranked.items() for _ in pairs]
    assert run.ranks().tolist() == [r for p in ranked.values() for r in range(1, len(p) + 1)]


def test_negative_zero_is_zero_and_entries_without_a_position_or_claims_without_sources_are_none():
    run = Run.from_lists({"c": [("a", 0.0), ("b", -0.0), ("d", -1e-60)]})
    assert run.sources("c") == ["d", "b", "a"] and not np.signbit(run.scores).any()
    positions = np.array([[1, -1], [-1, -1]])
    run = Run.from_codes(["x", "y"], np.array(["a", "b"]), positions, np.array([[1.0, np.nan]] * 2))
    assert list(run) == [("x", "b", 1.0)]
    assert run.claim_ids == ("x", "y") and run.sources("y") == []
    for run in (Run.from_lists({}), Run.from_rows([], [], []), Run.from_lists({"c": []})):
        assert len(run) == 0 and list(run.top(3).rescored()) == []
        assert list(run.restricted(["c", "d"])) == []


CLAIMS = st.lists(st.sampled_from(["c1", "c2", "d", "unknown"]))
DEPTHS = st.integers(0, 13)


def same(one: Run, other: Run) -> bool:
    """Whether two runs rank the same claims and sources, in the same order and by equal scores."""
    return (one.claim_ids, list(one), one.pool) == (other.claim_ids, list(other), other.pool)


@given(RANKED, DEPTHS)
def test_top_keeps_the_first_of_every_claim(ranked, k):
    run = Run.from_lists(ranked, pool={"c1": frozenset("ab")})
    top = run.top(k)
    assert top.claim_ids == run.claim_ids and top.pool == run.pool
    for claim in ranked:
        assert list(top.scored(claim).items()) == list(run.scored(claim).items())[:k]
        assert run.sources(claim, k) == top.sources(claim)


@given(RANKED, CLAIMS)
def test_restricted_keeps_order_and_adds_empty_claims(ranked, wanted):
    run = Run.from_lists(ranked)
    part = run.restricted(wanted)
    assert part.claim_ids == tuple(dict.fromkeys(wanted))
    for claim in wanted:
        assert list(part.scored(claim).items()) == list(run.scored(claim).items())
    assert len(part) == sum(len(run.sources(claim)) for claim in part.claim_ids)


@given(RANKED, CLAIMS, CLAIMS, DEPTHS, DEPTHS)
def test_parts_of_runs_compose(ranked, first, second, k, depth):
    """Parts of parts are parts; parts and depths commute; parts and the rest are the whole."""
    run = Run.from_lists(ranked, pool={"c1": frozenset("ab")})
    part = run.restricted(first)
    assert same(run.top(k).top(depth), run.top(min(k, depth)))
    assert same(part.restricted(first), part) and same(run.restricted(run.claim_ids), run)
    known = [claim for claim in second if claim in first]
    assert same(part.restricted(known), run.restricted(known))
    assert same(part.top(k), run.top(k).restricted(first))
    assert same(run.rescored().rescored(), run.rescored())
    rest = run.restricted(claim for claim in run.claim_ids if claim not in first)
    assert sorted([*part, *rest]) == sorted(run)


@given(RANKED, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(ranked, rng: random.Random):
    run = Run.from_lists(ranked)
    rows = [(claim, *pair) for claim, pairs in ranked.items() for pair in pairs]
    rng.shuffle(rows)
    claims, sources, scores = zip(*rows, strict=True) if rows else ((), (), ())
    assert same(Run.from_rows(claims, sources, scores, claim_ids=run.claim_ids), run)


OWN_IDS = st.sampled_from("abcd")


@given(
    st.dictionaries(OWN_IDS, st.dictionaries(OWN_IDS, SCORES), max_size=4),
    st.dictionaries(OWN_IDS, st.dictionaries(OWN_IDS, st.integers(0, 1), min_size=1)),
)
def test_a_claim_is_not_its_own_source_unless_it_is_its_gold(ranked, grades):
    run = Run.from_lists({claim: list(pairs.items()) for claim, pairs in ranked.items()})
    qrels = Qrels(grades)
    kept, count = run.without_themselves(qrels)
    expected = [row for row in run if row[0] != row[1] or row[0] in qrels.golds(row[0])]
    assert list(kept) == expected and kept.claim_ids == run.claim_ids
    assert len(kept) + count == len(run)
    assert kept.without_themselves(qrels)[1] == 0


@given(RANKED)
def test_rescored_keeps_the_ranking_and_has_no_ties(ranked):
    run = Run.from_lists(ranked)
    rescored = run.rescored()
    assert [row[:2] for row in rescored] == [row[:2] for row in run]
    for claim in ranked:
        scores = list(rescored.scored(claim).values())
        assert all(a > b for a, b in itertools.pairwise(scores))
        # Sorting again with any tie rule gives the same ranking: other libraries see it too.
        assert Run.from_lists({claim: list(rescored.scored(claim).items())}).sources(
            claim
        ) == run.sources(claim)


@given(
    st.lists(IDS, unique=True, min_size=2, max_size=8),
    st.lists(SCORES, min_size=6, max_size=6),
    st.randoms(use_true_random=False),
)
def test_positions_make_the_run_of_their_lists(ids, scores, rng: random.Random):
    claims, table = ["x", "y", "z"], np.array(scores).reshape(3, 2)
    positions = np.array([rng.sample([-1, *range(len(ids))], 2) for _ in claims])
    run = SourceIds(ids).run([Claim(claim, "t") for claim in claims], positions, table)
    lists = {
        claim: [(ids[p], s) for p, s in zip(row, line, strict=True) if p >= 0]
        for claim, row, line in zip(claims, positions, table.tolist(), strict=True)
    }
    assert list(run) == list(Run.from_lists(lists))


def test_bad_columns_are_refused():
    with refused(ValueError, "length"):
        Run.from_rows(["c"], ["s", "t"], [1.0, 2.0])
    with refused(ValueError, "'d'"):
        Run.from_rows(["c", "d"], ["s", "s"], [1.0, float("nan")])
    with refused(ValueError, "'d'", "'t'"):
        Run.from_rows(["c", "c", "d", "d"], ["s", "t", "t", "t"], [1.0, 2.0, 3.0, 4.0])
    ids = np.zeros((2, 1), dtype=int)
    with refused(ValueError, "claim id"):
        Run.from_codes(["c", "c"], np.array(["s"]), ids, np.ones((2, 1)))
    with refused(ValueError, "source id"):
        SourceIds(["s", "t", "s"])


def test_failures_are_counted_and_costs_added():
    failures = (Failure("a", "slow"), Failure("b", "parse"), Failure("c", "parse"))
    result = Result(Run.from_lists({}), failures=failures)
    assert list(result.failure_counts().items()) == [("parse", 2), ("slow", 1)]
    result = Result(Run.from_lists({"c": [("a", 1.0), ("b", 2.0)]}), {"c": "note"}, stored=True)
    top = result.top(1)
    assert list(top.run) == [("c", "b", 2.0)] and (top.notes, top.stored) == ({"c": "note"}, True)


COSTS = st.builds(
    Cost,
    seconds=st.integers(0, 2).map(float),
    items=st.integers(0, 9),
    peak_memory=st.integers(0, 9),
    tokens=st.integers(0, 9),
    reused=st.integers(0, 9),
    joules=st.none() | st.integers(0, 9).map(float),
)


@given(COSTS, COSTS, COSTS)
def test_costs_add_up_in_any_order(first, second, third):
    both = first + second
    for name in ("seconds", "items", "tokens", "reused"):
        assert getattr(both, name) == getattr(first, name) + getattr(second, name)
    assert both.peak_memory == max(first.peak_memory, second.peak_memory)
    is_unknown = any(cost.seconds and cost.joules is None for cost in (first, second))
    measured = [cost.joules for cost in (first, second) if cost.joules is not None]
    assert both.joules == (None if is_unknown or not measured else sum(measured))
    assert both == second + first and first + Cost() == first
    assert both + third == first + (second + third)
    # Parts over the same items count them once.
    assert first.over_same(second) == replace(both, items=max(first.items, second.items))


@given(RANKED)
def test_pandas_and_ir_measures_give_the_run_back(ranked):
    run = Run.from_lists({claim: pairs for claim, pairs in ranked.items() if pairs})
    frame = run.to_pandas()
    assert list(frame.columns) == ["claim", "source", "score", "rank"]
    rows = frame[["claim", "source", "score"]].itertuples(index=False, name=None)
    assert list(rows) == list(run) and frame["rank"].tolist() == run.ranks().tolist()
    assert list(Run.from_pandas(frame)) == list(run)
    # A user's table may be in any order and have other columns.
    rerun = Run.from_pandas(frame[::-1].assign(rank=0, more="x"))
    assert list(rerun.restricted(run.claim_ids)) == list(run)
    with refused(InputError, "score"):
        Run.from_pandas(frame.drop(columns="score"))
    docs = list(run.to_ir_measures())
    assert list(Run.from_ir_measures(docs)) == list(run)
    qrels = [ir_measures.Qrel(claim, run.sources(claim)[-1], 1) for claim in run.claim_ids]
    if qrels:
        # The last source of each is its gold; ties are written as different scores.
        expected = np.mean([1 / len(run.sources(claim)) for claim in run.claim_ids])
        docs = list(run.rescored().to_ir_measures())
        scores = ir_measures.calc_aggregate([ir_measures.RR], qrels, docs)
        assert scores[ir_measures.RR] == pytest.approx(expected)
