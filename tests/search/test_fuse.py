"""Fusion against a slow reference, its stated rules, and the stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.search.fuse import Fusion, FusionConfig, Hybrid, fuse, score_missing
from tests.refusals import refused
from tests.search.test_cache import Hashed

Lists = dict[str, list[tuple[str, float]]]
WholeLists = dict[str, dict[str, int]]


def reference(
    first: Lists,
    second: Lists,
    config: FusionConfig,
) -> dict[str, dict[str, float]]:
    only_second = [claim for claim in second if claim not in first]
    weighed = (
        (first, config.alpha),
        (second, 1 - config.alpha),
    )
    fused: dict[str, dict[str, float]] = {}
    for claim in [*first, *only_second]:
        total: dict[str, float] = {}
        for lists, weight in weighed:
            by_id = sorted(lists.get(claim, []), key=lambda row: row[0], reverse=True)
            by_score = sorted(by_id, key=lambda row: -np.float32(row[1]))
            ranked = by_score[: config.depth]
            scores = [float(np.float32(score)) for _, score in ranked]
            for rank, (source, _) in enumerate(ranked, start=1):
                value = reference_value(scores, rank, config)
                total[source] = total.get(source, 0.0) + weight * value
        fused[claim] = total
    return fused


def reference_value(scores: list[float], rank: int, config: FusionConfig) -> float:
    """Give what the source at a rank of one list adds to its fused score, before the weight."""
    if config.method == "rrf":
        return 1 / (config.rrf_k + rank)
    lowest = min(scores)
    highest = max(scores)
    if highest == lowest:
        return 1.0
    above = scores[rank - 1] - lowest
    if config.scale == "min-max":
        return above / (highest - lowest)
    if config.scale == "z-score":
        return above / float(np.std(scores))
    return above


numbers = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-50, 50, width=32),
)
one_list = st.dictionaries(
    st.sampled_from("abcdefgh"),
    numbers,
    max_size=8,
).map(lambda d: list(d.items()))
runs = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]),
    one_list,
    max_size=3,
)
configs = st.builds(
    FusionConfig,
    method=st.sampled_from(["linear", "rrf"]),
    alpha=st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]),
    rrf_k=st.integers(1, 60),
    depth=st.integers(1, 9),
    scale=st.sampled_from(["min-max", "z-score", "none"]),
)


@settings(max_examples=150, deadline=None)
@given(runs, runs, configs)
def test_fusion_is_the_formula(
    first: Lists,
    second: Lists,
    config: FusionConfig,
) -> None:
    first_run = Run.from_lists(first)
    second_run = Run.from_lists(second)
    run = fuse(first_run, second_run, config)
    expected = reference(first, second, config)
    assert list(run.claim_ids) == list(expected)
    for claim, scores in expected.items():
        found = run.scored(claim)
        assert set(found) == set(scores)
        for source, score in found.items():
            near = pytest.approx(scores[source], rel=1e-4, abs=1e-6)
            assert score == near


# Whole scores are exact in every sum of quarters.
whole_lists = st.dictionaries(
    st.sampled_from(["q1", "q2"]),
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.integers(-3, 3),
        max_size=6,
    ),
    max_size=2,
)
quarters = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def ranked(lists: WholeLists) -> Run:
    rows = {claim: list(scores.items()) for claim, scores in lists.items()}
    return Run.from_lists(rows)


def same(one: Run, other: Run) -> bool:
    """Whether two runs rank the same, whatever the order of their claims."""
    return sorted(one) == sorted(other)


@settings(max_examples=60, deadline=None)
@given(
    whole_lists,
    whole_lists,
    configs,
    quarters,
    st.sampled_from([0.5, 2.0, 8.0]),
)
def test_the_order_of_systems_and_their_units_change_nothing(
    first: WholeLists,
    second: WholeLists,
    config: FusionConfig,
    alpha: float,
    unit: float,
) -> None:
    fused = fuse(ranked(first), ranked(second), config, alpha=alpha)
    swapped = fuse(ranked(second), ranked(first), config, alpha=1 - alpha)
    assert same(fused, swapped)

    lists: Lists = {}
    for claim, scores in reversed(first.items()):
        rows = reversed(scores.items())
        lists[claim] = [(source, unit * score + 16) for source, score in rows]
    if config.method == "rrf" or config.scale == "min-max":
        other_unit = Run.from_lists(lists)
        rescaled = fuse(other_unit, ranked(second), config, alpha=alpha)
        assert same(rescaled, fused)


@settings(max_examples=60, deadline=None)
@given(whole_lists, configs, quarters)
def test_a_system_with_itself_keeps_its_ranking(
    lists: WholeLists,
    config: FusionConfig,
    alpha: float,
) -> None:
    run = ranked(lists)
    fused = fuse(run, run, config, alpha=alpha)
    for claim in run.claim_ids:
        scored = run.top(config.depth).scored(claim)
        top = list(scored.items())
        found = fused.scored(claim)
        assert found.keys() == {source for source, _ in top}
        for (better, score), (worse, lower) in pairwise(top):
            is_tie = found[better] == found[worse] and score == lower
            assert found[better] > found[worse] or is_tie


@settings(max_examples=60, deadline=None)
@given(
    whole_lists,
    whole_lists,
    configs,
    quarters,
    st.sampled_from("abcdef"),
    st.integers(1, 6),
)
def test_who_rises_in_one_ranking_does_not_fall_in_the_fusion(
    first: WholeLists,
    second: WholeLists,
    config: FusionConfig,
    alpha: float,
    source: str,
    rise: int,
) -> None:
    config = replace(config, scale="min-max", alpha=alpha)
    raised = {claim: dict(scores) for claim, scores in first.items()}
    for scores in raised.values():
        if source in scores:
            scores[source] += rise
    before = fuse(ranked(first), ranked(second), config)
    after = fuse(ranked(raised), ranked(second), config)
    for claim in first:
        order = before.sources(claim)
        new_order = after.sources(claim)
        if source in first[claim] and source in order:
            above = set(order[: order.index(source)])
            new_above = set(new_order[: new_order.index(source)])
            assert new_above <= above


alphas = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q4"]),
    st.sampled_from([0.0, 0.4, 1.0]),
)


@settings(max_examples=100, deadline=None)
@given(
    runs,
    runs,
    configs,
    alphas,
    st.none() | st.integers(1, 10),
)
def test_a_claim_s_own_alpha_changes_no_other_claim(
    first: Lists,
    second: Lists,
    config: FusionConfig,
    own: dict[str, float],
    k: int | None,
) -> None:
    both = (
        Run.from_lists(first),
        Run.from_lists(second),
    )
    run = fuse(*both, config, k=k, alphas=own)
    for claim in run.claim_ids:
        alpha = own.get(claim, config.alpha)
        ranking = fuse(*both, config, k=k, alpha=alpha)
        assert run.scored(claim) == ranking.scored(claim)


@settings(max_examples=80, deadline=None)
@given(runs, runs, configs, st.integers(1, 10))
def test_the_first_k_are_those_of_the_whole(
    first: Lists,
    second: Lists,
    config: FusionConfig,
    k: int,
) -> None:
    first_run = Run.from_lists(first)
    second_run = Run.from_lists(second)
    fusion = Fusion(first_run, second_run, config)
    cut = fusion.run(config.alpha, k)
    whole = fusion.run(config.alpha)
    assert list(cut) == list(whole.top(k))


FIRST = Run.from_lists(
    {
        "q": [
            ("a", 10.0),
            ("b", 6.0),
            ("c", 2.0),
        ],
    }
)
SECOND = Run.from_lists(
    {
        "q": [
            ("d", 0.9),
            ("b", 0.8),
            ("a", 0.4),
        ],
    }
)


def test_pools_of_both_runs_are_kept() -> None:
    lists: Lists = {
        "p": [("a", 1.0)],
        "q": [],
    }
    run = Run.from_lists(lists, pool={"p": frozenset("ab")})
    second_lists = {"q": [("c", 1.0)]}
    second = Run.from_lists(second_lists, pool={"q": frozenset("c")})
    fused = fuse(run, second)
    assert fused.pool == {
        "p": frozenset("ab"),
        "q": frozenset("c"),
    }
    assert fuse(FIRST, SECOND).pool is None


@dataclass
class Fixed:
    """A retriever and index with a fixed answer; it records the requested depth."""

    run: Run
    asked: int = 0

    def index(self, sources: object) -> Fixed:
        return self

    def search(self, claims: object, k: int = 100) -> Result:
        self.asked = k
        cost = Cost(1.0, 2, 3, 4)
        return Result(self.run.top(k), cost=cost)


CLAIMS = [Claim("q", "text")]
SOURCES = [Source(s, s) for s in "abcd"]


def test_results_are_fused_with_what_they_say() -> None:
    first_failures = (
        Failure("q", "no"),
        Failure("r", "no"),
    )
    second_failures = (Failure("r", "why"),)
    first = Result(FIRST, stored=True, failures=first_failures)
    second = Result(SECOND, stored=True, failures=second_failures)
    fused = fuse(first, second, alpha=0.25)
    fused_runs = fuse(FIRST, SECOND, alpha=0.25)
    assert list(fused.run) == list(fused_runs)
    assert fused.stored is True
    assert fused.failures == (Failure("r", "no"),)
    computed = replace(second, stored=False)
    assert not fuse(first, computed).stored

    # With k, lists as deep as that are fused whatever the depth, and k sources are left.
    with_k = fuse(first, second, depth=1, k=2)
    deeper = fuse(FIRST, SECOND, depth=2)
    assert list(with_k.run) == list(deeper.top(2))
    with refused(TypeError, "runs", "results"):
        fuse(FIRST, second)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("depth", "k", "depth_asked"),
    [
        (100, 2, 100),
        (1, 3, 3),
    ],
)
def test_both_are_asked_for_the_deeper_of_depth_and_k(
    depth: int,
    k: int,
    depth_asked: int,
) -> None:
    sparse = Fixed(FIRST)
    dense = Fixed(SECOND)
    config = FusionConfig(alpha=0.25, depth=depth)
    index = Hybrid(sparse, dense, config).index(SOURCES)
    result = index.search(CLAIMS, k)
    assert sparse.asked == depth_asked
    assert dense.asked == depth_asked
    assert result.run.sources("q") == ["d", "b", "a", "c"][:k]
    # Both ranked the same two claims: rates would double if they were counted twice.
    assert result.cost == Cost(2.0, 2, 3, 8)


@pytest.mark.parametrize("missing", ["lowest", "scored"])
def test_a_chosen_fusion_ranks_as_deep_as_it_is_asked(
    missing: Literal["lowest", "scored"],
) -> None:
    """Its first sources are those of the chosen depth, with their scores; the others lie below."""
    names = [f"s{number:02}" for number in range(12)]
    falling = [(name, -float(row)) for row, name in enumerate(names)]
    rising = [(name, row / 7) for row, name in enumerate(names)]
    sparse = Run.from_lists({"q": falling})
    dense = Run.from_lists({"q": rising, "r": []})
    claims = [
        Claim("q", "text"),
        Claim("r", "text"),
    ]
    config = FusionConfig(alpha=0.4, depth=3, missing=missing)
    hybrid = Hybrid(
        Fixed(sparse),
        Fixed(dense),
        config,
        fits=True,
    )
    index = hybrid.index(SOURCES)
    shallow = index.search(claims, 3).run
    head = index.search(claims, 6).run
    first_three = head.top(3)
    assert first_three.scored("q") == shallow.scored("q")
    assert set(head.sources("q")) == {*names[:3], *names[-3:]}
    for k in (7, 10, 12, 50):
        run = index.search(claims, k).run
        first_six = run.top(6)
        assert first_six.scored("q") == head.scored("q")
        whole = fuse(sparse, dense, FusionConfig(alpha=0.4), k=k)
        below = [source for source in whole.sources("q") if source in names[3:-3]]
        listed = run.sources("q")
        assert listed[6:] == below[: k - 6]
        assert len(listed) == min(k, 12)
        assert run.claim_ids == ("q", "r")
        assert not run.sources("r")


def words_pool(rng: np.random.Generator) -> tuple[list[Source], list[Claim]]:
    """Draw sources and claims of 30 words, and two claims of another kind."""
    words = [f"w{i}" for i in range(30)]
    sources = []
    for i in range(40):
        title = " ".join(rng.choice(words, 5))
        sources.append(Source(f"s{i:02d}", title))
    claims = []
    for i in range(6):
        text = " ".join(rng.choice(words, 3))
        claims.append(Claim(f"c{i}", text))
    every_third = tuple(f"s{i:02d}" for i in range(0, 40, 3))
    claims += [
        Claim("bound", "w1 w2 w3", candidates=every_third),
        Claim("no term", "unknown words"),
    ]
    return sources, claims


def brute_scores(full_runs: list[Run], claim_id: str, scale: str) -> dict[str, float]:
    """Fuse the first four of both runs, each source with both systems' scores."""
    tops = [part_run.sources(claim_id, 4) for part_run in full_runs]
    total: dict[str, float] = dict.fromkeys([*tops[0], *tops[1]], 0.0)
    weights = (0.3, 0.7)
    for part_run, top, weight in zip(full_runs, tops, weights, strict=True):
        scores = part_run.scored(claim_id)
        listed = [scores[source] for source in top]
        low = min(listed, default=0.0)
        units = {
            "min-max": max(listed, default=0) - low,
            "z-score": np.std(listed or [0]),
            "none": 1.0,
        }
        unit = units[scale]
        for source in total:
            score = scores.get(source, 0.0)
            even = float(score >= low and bool(listed))
            value = (score - low) / unit if unit else even
            total[source] += weight * value
    return total


@pytest.mark.parametrize("scale", ["min-max", "z-score", "none"])
def test_what_a_list_lacks_gets_the_other_systems_own_score(scale: str) -> None:
    """Brute force: both systems score the whole pool; the union of both tops is fused."""
    from claim2source.search.bm25 import BM25
    from claim2source.search.dense import Dense

    rng = np.random.default_rng(3)
    sources, claims = words_pool(rng)
    config = FusionConfig(
        alpha=0.3,
        depth=4,
        scale=scale,  # type: ignore[arg-type]
        missing="scored",
    )
    encoder = Hashed()
    parts = (
        BM25(),
        Dense(encoder),
    )
    full_runs = [part.index(sources).search(claims, 40).run for part in parts]
    encoder.read.clear()
    index = Hybrid(*parts, config).index(sources)
    run = index.search(claims, 3).run
    assert len(encoder.read) == len(sources) + len(claims)  # the claims are read once

    lowest_config = replace(config, missing="lowest")
    differs = 0
    for claim in claims:
        total = brute_scores(full_runs, claim.id, scale)
        best = sorted(total, key=lambda s: (-np.float32(total[s]), s))[:3]
        expected = {source: total[source] for source in best}
        found = run.scored(claim.id)
        assert found == pytest.approx(expected, abs=1e-5)
        lowest = fuse(*full_runs, lowest_config)
        differs += lowest.sources(claim.id, 3) != run.sources(claim.id)
    assert differs

    # A deeper ranking contains some sources that a shallow fusion lacks.
    nine = [part_run.top(9) for part_run in full_runs]
    deep = []
    for part, own, of_dense in zip(parts, nine, nine[::-1], strict=True):
        part_index = part.index(sources)
        deep.append(score_missing(part_index, claims, own, of_dense))
    scored = (deep[0].run, deep[1].run)
    rescored = fuse(*nine, config, scored=scored).top(3)
    assert list(rescored) == [(c, s, pytest.approx(x, abs=1e-5)) for c, s, x in run]


def test_rankings_alone_cannot_score_what_they_lack() -> None:
    with refused(ConfigError, "fusion.missing"):
        fuse(FIRST, SECOND, missing="scored")
    with refused(ConfigError, "fusion.missing"):
        FusionConfig("rrf", missing="scored")
