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
NEAR_TIES = [
    0.0,
    -0.0,
    1.0,
    1.0 + 1e-9,
    1.0 - 1e-9,
    2.5,
    -3.0,
    1e-30,
]
ANY_SCORES = st.floats(-10, 10)
SCORES = st.sampled_from(NEAR_TIES) | ANY_SCORES
IDS = st.text(
    st.sampled_from("aAbB10é\uffff\U00010000"),
    min_size=1,
    max_size=3,
)
SCORED = st.dictionaries(IDS, SCORES, max_size=12)
RANKED = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3", "d"]),
    SCORED.map(lambda d: list(d.items())),
    max_size=4,
)
Pairs = list[tuple[str, float]]
Rows = list[tuple[str, str, float]]


def reference(pairs: Pairs) -> Pairs:
    """trec_eval's order, slowly: float32 score, then strcmp of the UTF-8 id, descending."""
    rounded: Pairs = []
    for source, score in pairs:
        single = float(np.float32(score))
        rounded.append((source, single + 0.0))
    return sorted(
        rounded,
        key=lambda pair: (pair[1], pair[0].encode()),
        reverse=True,
    )


@given(RANKED)
def test_order_equals_a_slow_reference_sort(ranked):
    run = Run.from_lists(ranked)
    assert run.claim_ids == tuple(ranked)
    lengths = map(len, ranked.values())
    assert len(run) == sum(lengths)
    for claim, pairs in ranked.items():
        ordered = reference(pairs)
        scored = run.scored(claim)
        assert list(scored.items()) == ordered
        sources = [source for source, _ in ordered]
        assert run.sources(claim) == sources

    claims: list[str] = []
    ranks: list[int] = []
    for claim, pairs in ranked.items():
        claims += [claim] * len(pairs)
        ranks += range(1, len(pairs) + 1)
    assert [claim for claim, _, _ in run] == claims
    assert run.ranks().tolist() == ranks


def test_negative_zero_is_zero_and_entries_without_a_position_or_claims_without_sources_are_none():
    pairs = [
        ("a", 0.0),
        ("b", -0.0),
        ("d", -1e-60),
    ]
    run = Run.from_lists({"c": pairs})
    assert run.sources("c") == ["d", "b", "a"]
    assert not np.signbit(run.scores).any()

    sources = np.array(["a", "b"])
    first = [1, -1]
    second = [-1, -1]
    positions = np.array([first, second])
    line = [1.0, np.nan]
    scores = np.array([line, line])
    claims = ["x", "y"]
    run = Run.from_codes(claims, sources, positions, scores)
    assert list(run) == [("x", "b", 1.0)]
    assert run.claim_ids == ("x", "y")
    assert run.sources("y") == []

    empty_runs = (
        Run.from_lists({}),
        Run.from_rows([], [], []),
        Run.from_lists({"c": []}),
    )
    for run in empty_runs:
        assert len(run) == 0
        top = run.top(3)
        assert list(top.rescored()) == []
        part = run.restricted(["c", "d"])
        assert list(part) == []


CLAIM_IDS = ["c1", "c2", "d", "unknown"]
CLAIMS = st.lists(st.sampled_from(CLAIM_IDS))
POOL = {"c1": frozenset("ab")}
DEPTHS = st.integers(0, 13)


def same(one: Run, other: Run) -> bool:
    """Whether two runs rank the same claims and sources, in the same order and by equal scores."""
    has_same_claims = one.claim_ids == other.claim_ids
    has_same_rows = list(one) == list(other)
    has_same_pool = one.pool == other.pool
    return has_same_claims and has_same_rows and has_same_pool


@given(RANKED, DEPTHS)
def test_top_keeps_the_first_of_every_claim(ranked, k):
    run = Run.from_lists(ranked, pool=POOL)
    top = run.top(k)
    assert top.claim_ids == run.claim_ids
    assert top.pool == run.pool
    for claim in ranked:
        kept = list(top.scored(claim).items())
        whole = list(run.scored(claim).items())
        assert kept == whole[:k]
        assert run.sources(claim, k) == top.sources(claim)


@given(RANKED, CLAIMS)
def test_restricted_keeps_order_and_adds_empty_claims(ranked, wanted):
    run = Run.from_lists(ranked)
    part = run.restricted(wanted)
    distinct = dict.fromkeys(wanted)
    assert part.claim_ids == tuple(distinct)
    for claim in wanted:
        kept = part.scored(claim)
        whole = run.scored(claim)
        assert list(kept.items()) == list(whole.items())
    counts: list[int] = []
    for claim in part.claim_ids:
        sources = run.sources(claim)
        counts.append(len(sources))
    assert len(part) == sum(counts)


@given(RANKED, CLAIMS, CLAIMS, DEPTHS, DEPTHS)
def test_parts_of_runs_compose(ranked, first, second, k, depth):
    """Parts of parts are parts; parts and depths commute; parts and the rest are the whole."""
    run = Run.from_lists(ranked, pool=POOL)
    part = run.restricted(first)
    top = run.top(k)
    cut_twice = top.top(depth)
    smaller = min(k, depth)
    assert same(cut_twice, run.top(smaller))
    assert same(part.restricted(first), part)
    whole = run.restricted(run.claim_ids)
    assert same(whole, run)

    known = [claim for claim in second if claim in first]
    known_in_part = part.restricted(known)
    known_in_run = run.restricted(known)
    assert same(known_in_part, known_in_run)
    cut_part = part.top(k)
    part_after_cut = top.restricted(first)
    assert same(cut_part, part_after_cut)

    rescored = run.rescored()
    twice = rescored.rescored()
    assert same(twice, rescored)
    others = (claim for claim in run.claim_ids if claim not in first)
    rest = run.restricted(others)
    both = [*part, *rest]
    assert sorted(both) == sorted(run)


@given(RANKED, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(ranked, rng: random.Random):
    run = Run.from_lists(ranked)
    rows: Rows = []
    for claim, pairs in ranked.items():
        rows += [(claim, *pair) for pair in pairs]
    rng.shuffle(rows)
    claims = [row[0] for row in rows]
    sources = [row[1] for row in rows]
    scores = [row[2] for row in rows]
    rerun = Run.from_rows(
        tuple(claims),
        tuple(sources),
        tuple(scores),
        claim_ids=run.claim_ids,
    )
    assert same(rerun, run)


OWN_IDS = st.sampled_from("abcd")
OWN_SCORES = st.dictionaries(OWN_IDS, SCORES)
OWN_GRADES = st.dictionaries(
    OWN_IDS,
    st.integers(0, 1),
    min_size=1,
)


@given(
    st.dictionaries(OWN_IDS, OWN_SCORES, max_size=4),
    st.dictionaries(OWN_IDS, OWN_GRADES),
)
def test_a_claim_is_not_its_own_source_unless_it_is_its_gold(ranked, grades):
    lists: dict[str, Pairs] = {}
    for claim, scores in ranked.items():
        lists[claim] = list(scores.items())
    run = Run.from_lists(lists)
    qrels = Qrels(grades)
    kept, count = run.without_themselves(qrels)
    expected: Rows = []
    for claim, source, score in run:
        if claim != source or claim in qrels.golds(claim):
            expected.append((claim, source, score))
    assert list(kept) == expected
    assert kept.claim_ids == run.claim_ids
    assert len(kept) + count == len(run)
    _, more = kept.without_themselves(qrels)
    assert more == 0


@given(RANKED)
def test_rescored_keeps_the_ranking_and_has_no_ties(ranked):
    run = Run.from_lists(ranked)
    rescored = run.rescored()
    before = [row[:2] for row in run]
    after = [row[:2] for row in rescored]
    assert after == before
    for claim in ranked:
        scored = rescored.scored(claim)
        scores = list(scored.values())
        neighbours = itertools.pairwise(scores)
        assert all(a > b for a, b in neighbours)
        # Sorting again with any tie rule gives the same ranking: other libraries see it too.
        pairs = list(scored.items())
        resorted = Run.from_lists({claim: pairs})
        assert resorted.sources(claim) == run.sources(claim)


@given(
    st.lists(IDS, unique=True, min_size=2, max_size=8),
    st.lists(SCORES, min_size=6, max_size=6),
    st.randoms(use_true_random=False),
)
def test_positions_make_the_run_of_their_lists(ids, scores, rng: random.Random):
    names = ["x", "y", "z"]
    table = np.array(scores).reshape(3, 2)
    choices = [-1, *range(len(ids))]
    samples = [rng.sample(choices, 2) for _ in names]
    positions = np.array(samples)
    claims = [Claim(name, "t") for name in names]
    run = SourceIds(ids).run(claims, positions, table)

    lists: dict[str, Pairs] = {}
    lines = table.tolist()
    for name, row, line in zip(names, positions, lines, strict=True):
        pairs: Pairs = []
        for position, score in zip(row, line, strict=True):
            if position >= 0:
                pairs.append((ids[position], score))
        lists[name] = pairs
    expected = Run.from_lists(lists)
    assert list(run) == list(expected)


def test_bad_columns_are_refused():
    with refused(ValueError, "length"):
        Run.from_rows(["c"], ["s", "t"], [1.0, 2.0])
    with refused(ValueError, "'d'"):
        Run.from_rows(
            ["c", "d"],
            ["s", "s"],
            [1.0, float("nan")],
        )
    with refused(ValueError, "'d'", "'t'"):
        Run.from_rows(
            ["c", "c", "d", "d"],
            ["s", "t", "t", "t"],
            [1.0, 2.0, 3.0, 4.0],
        )

    sources = np.array(["s"])
    ids = np.zeros((2, 1), dtype=int)
    scores = np.ones((2, 1))
    with refused(ValueError, "claim id"):
        Run.from_codes(["c", "c"], sources, ids, scores)
    with refused(ValueError, "source id"):
        SourceIds(["s", "t", "s"])


def test_failures_are_counted_and_costs_added():
    failures = (
        Failure("a", "slow"),
        Failure("b", "parse"),
        Failure("c", "parse"),
    )
    empty = Run.from_lists({})
    result = Result(empty, failures=failures)
    counts = result.failure_counts()
    assert list(counts.items()) == [("parse", 2), ("slow", 1)]

    pairs = [("a", 1.0), ("b", 2.0)]
    run = Run.from_lists({"c": pairs})
    result = Result(run, {"c": "note"}, stored=True)
    top = result.top(1)
    assert list(top.run) == [("c", "b", 2.0)]
    assert top.notes == {"c": "note"}
    assert top.stored is True


COUNTS = st.integers(0, 9)
COSTS = st.builds(
    Cost,
    seconds=st.integers(0, 2).map(float),
    items=COUNTS,
    peak_memory=COUNTS,
    tokens=COUNTS,
    reused=COUNTS,
    joules=st.none() | COUNTS.map(float),
)


@given(COSTS, COSTS, COSTS)
def test_costs_add_up_in_any_order(first, second, third):
    both = first + second
    for name in ("seconds", "items", "tokens", "reused"):
        total = getattr(first, name) + getattr(second, name)
        assert getattr(both, name) == total
    assert both.peak_memory == max(first.peak_memory, second.peak_memory)

    parts = (first, second)
    is_unknown = any(cost.seconds and cost.joules is None for cost in parts)
    measured = [cost.joules for cost in parts if cost.joules is not None]
    joules = None if is_unknown or not measured else sum(measured)
    assert both.joules == joules

    assert both == second + first
    assert first + Cost() == first
    assert both + third == first + (second + third)
    # Parts over the same items count them once.
    items = max(first.items, second.items)
    assert first.over_same(second) == replace(both, items=items)


@given(RANKED)
def test_pandas_and_ir_measures_give_the_run_back(ranked):
    filled = {claim: pairs for claim, pairs in ranked.items() if pairs}
    run = Run.from_lists(filled)
    frame = run.to_pandas()
    names = ["claim", "source", "score"]
    assert list(frame.columns) == [*names, "rank"]
    columns = frame[names]
    rows = columns.itertuples(index=False, name=None)
    assert list(rows) == list(run)
    ranks = frame["rank"].tolist()
    assert ranks == run.ranks().tolist()
    again = Run.from_pandas(frame)
    assert list(again) == list(run)

    # A user's table may be in any order and have other columns.
    turned = frame[::-1]
    table = turned.assign(rank=0, more="x")
    rerun = Run.from_pandas(table)
    in_order = rerun.restricted(run.claim_ids)
    assert list(in_order) == list(run)
    unscored = frame.drop(columns="score")
    with refused(InputError, "score"):
        Run.from_pandas(unscored)

    docs = list(run.to_ir_measures())
    assert list(Run.from_ir_measures(docs)) == list(run)
    qrels = []
    for claim in run.claim_ids:
        last = run.sources(claim)[-1]
        qrels.append(ir_measures.Qrel(claim, last, 1))
    if qrels:
        # The last source of each is its gold; ties are written as different scores.
        reciprocals: list[float] = []
        for claim in run.claim_ids:
            count = len(run.sources(claim))
            reciprocals.append(1 / count)
        expected = np.mean(reciprocals)
        rescored = run.rescored()
        docs = list(rescored.to_ir_measures())
        scores = ir_measures.calc_aggregate([ir_measures.RR], qrels, docs)
        assert scores[ir_measures.RR] == pytest.approx(expected)
