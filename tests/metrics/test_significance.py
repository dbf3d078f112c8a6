"""Paired randomisation and bootstrap, by gold paper."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.metrics import significance
from claim2source.metrics.significance import bootstrap_intervals, paired_randomisation
from tests.refusals import refused

VALUES = st.sampled_from([0.0, 1.0, 0.5, 1 / 3, 0.25, 0.2])
GROUPS = st.sampled_from([-7, 0, 1, 4, 993, 10**12])  # arbitrary names
PAIR = st.tuples(VALUES, VALUES, GROUPS)
PAIRS = st.lists(PAIR, min_size=1, max_size=9)


def bootstrap_interval(values, groups, **settings) -> tuple[float, float]:
    """The interval of one system."""
    intervals = bootstrap_intervals(values[None], groups, **settings)
    low, high = intervals[0]
    return float(low), float(high)


def exact_p(a, b, groups) -> float:
    """The p-value by enumeration of all sign flips, in fractions of 1/60."""
    sums: dict[int, int] = {}
    for x, y, group in zip(a, b, groups, strict=True):
        number = int(group)
        difference = round(60 * (x - y))
        sums[number] = sums.get(number, 0) + difference

    gaps = list(sums.values())
    observed = abs(sum(gaps))
    totals = []
    for signs in itertools.product([1, -1], repeat=len(gaps)):
        total = 0
        for sign, gap in zip(signs, gaps, strict=True):
            total += sign * gap
        totals.append(abs(total))

    as_large = sum(total >= observed for total in totals)
    return as_large / len(totals)


@settings(max_examples=40)
@given(PAIRS)
def test_agrees_with_all_sign_flips(pairs):
    columns = zip(*pairs, strict=True)
    a, b, groups = (np.array(column) for column in columns)
    test = paired_randomisation(a, b, groups, repeats=10_000)
    exact = exact_p(a, b, groups)
    # Four standard errors of 10,000 flips at p = 1/2, and the + 1.
    assert test.p_value == pytest.approx(exact, abs=0.021)

    difference = np.mean(a) - np.mean(b)
    distinct = set(groups.tolist())
    assert test.difference == pytest.approx(float(difference))
    assert test.groups == len(distinct)

    copied = a.copy()
    same = paired_randomisation(a, copied, groups, repeats=50)
    assert same.p_value == 1.0
    assert same.difference == 0.0


def test_exact_ties_count_despite_rounding():
    # With one group every flip ties with the observed value, so p is 1 despite rounding.
    rng = np.random.default_rng(3)
    one_group = np.zeros(7, int)
    for _ in range(20):
        a = rng.random(7) / 3
        b = rng.random(7) / 7
        test = paired_randomisation(a, b, one_group, repeats=99)
        assert test.p_value == 1.0

    zeros = np.zeros(3)
    groups = np.arange(3)
    # 0.1 + 0.2 != 0.3 in floats; as numbers the flips (+, +, -) tie only with zero.
    a = np.array([0.1, 0.2, -0.3])
    test = paired_randomisation(a, zeros, groups, repeats=99)
    assert test.p_value == 1.0
    # Observed 0.6 = |0.1 + 0.2 + 0.3|: exactly 2 of 8 flips tie, in any order of summing.
    quarter = pytest.approx(0.25, abs=0.015)
    for order in itertools.permutations([0.1, 0.2, 0.3]):
        a = np.array(order)
        test = paired_randomisation(a, zeros, groups, repeats=20_000)
        assert test.p_value == quarter


def test_claims_of_one_paper_are_one_flip():
    # 40 claims about two papers: by claim highly significant, by paper p = 1/2.
    a = np.ones(40)
    b = np.zeros(40)
    claims = np.arange(40)
    papers = np.repeat([0, 1], 20)
    by_claim = paired_randomisation(a, b, claims, repeats=5_000)
    by_paper = paired_randomisation(a, b, papers, repeats=5_000)
    half = pytest.approx(0.5, abs=0.03)
    assert by_claim.p_value < 0.001
    assert by_paper.p_value == half

    # Papers are weighted by their claims: the statistic is a mean over claims, not papers.
    # Papers differ by 3, 1 and -1 claims: |sum| >= 3 for 6 of 8 flips; by paper's mean, for all.
    a = np.array([1.0, 1, 1, 1, 0])
    b = np.array([0.0, 0, 0, 0, 1])
    papers = np.array([0, 0, 0, 1, 2])
    test = paired_randomisation(a, b, papers, repeats=20_000)
    six_of_eight = pytest.approx(0.75, abs=0.015)
    assert test.difference == pytest.approx(0.6)
    assert test.groups == 3
    assert test.p_value == six_of_eight


def test_seed_decides_and_chunks_do_not_bias(monkeypatch):
    rng = np.random.default_rng(0)
    a = rng.random(50)
    b = rng.random(50) - 0.08
    groups = np.arange(50) // 2

    def tested(**settings):
        return paired_randomisation(a, b, groups, repeats=4_000, **settings)

    first = tested()
    again = tested()
    other_seed = tested(seed=1)
    assert again == first
    assert other_seed.p_value != first.p_value

    interval = bootstrap_interval(a, groups, repeats=4_000)
    monkeypatch.setattr(significance, "_CHUNK", 60)
    chunked = tested()
    near = pytest.approx(first.p_value, abs=0.04)
    assert chunked.p_value == near
    chunked_interval = bootstrap_interval(a, groups, repeats=4_000)
    near_interval = pytest.approx(interval, abs=0.02)
    assert chunked_interval == near_interval


def test_bootstrap_matches_all_draws():
    # Two groups: sums 3 (of 3 claims) and 0 (of 1): draws give 1 (1/4), 3/4 (1/2), 0 (1/4).
    values = np.array([1.0, 1, 1, 0])
    groups = np.array([5, 5, 5, 9])
    wide = bootstrap_interval(values, groups, repeats=2_000)
    assert wide == (0.0, 1.0)
    narrow = bootstrap_interval(
        values,
        groups,
        repeats=2_000,
        level=0.3,
    )
    assert narrow == (0.75, 0.75)


def test_bootstrap_covers_about_as_often_as_it_says_and_widens_by_group():
    rng = np.random.default_rng(1)
    covered = 0
    groups = np.arange(60)
    for i in range(200):
        values = rng.random(60)
        low, high = bootstrap_interval(
            values,
            groups,
            repeats=400,
            seed=i,
            level=0.8,
        )
        assert low < values.mean() < high
        covered += low < 0.5 < high
    share = covered / 200
    assert 0.7 < share < 0.9

    # The same value for all claims of a paper: by claim the interval is far too narrow.
    values = np.repeat(rng.random(12), 10)
    claims = np.arange(120)
    papers = np.repeat(np.arange(12), 10)
    by_claim = bootstrap_interval(values, claims)
    by_paper = bootstrap_interval(values, papers)
    narrow = np.diff(by_claim)[0]
    wide = np.diff(by_paper)[0]
    assert wide > 2.5 * narrow


def test_bad_arguments_are_refused():
    single = np.ones(1)
    two = np.ones(2)
    none = single[:0]
    unusable = [
        (single, two, two),
        (two, two, single),
        (none, none, none),
    ]
    for a, b, groups in unusable:
        with refused(ValueError, "length"):
            paired_randomisation(a, b, groups)

    with_nan = np.array([1.0, np.nan])
    with refused(ValueError, "finite"):
        paired_randomisation(two, with_nan, two)
