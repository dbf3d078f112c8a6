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
PAIRS = st.lists(st.tuples(VALUES, VALUES, GROUPS), min_size=1, max_size=9)


def bootstrap_interval(values, groups, **settings) -> tuple[float, float]:
    """The interval of one system."""
    low, high = bootstrap_intervals(values[None], groups, **settings)[0]
    return float(low), float(high)


def exact_p(a, b, groups) -> float:
    """The p-value by enumeration of all sign flips, in fractions of 1/60."""
    sums: dict[int, int] = {}
    for x, y, group in zip(a, b, groups, strict=True):
        sums[int(group)] = sums.get(int(group), 0) + round(60 * (x - y))
    observed = abs(sum(sums.values()))
    totals = [
        abs(sum(sign * value for sign, value in zip(signs, sums.values(), strict=True)))
        for signs in itertools.product([1, -1], repeat=len(sums))
    ]
    return sum(total >= observed for total in totals) / len(totals)


@settings(max_examples=40)
@given(PAIRS)
def test_agrees_with_all_sign_flips(pairs):
    a, b, groups = (np.array(column) for column in zip(*pairs, strict=True))
    test = paired_randomisation(a, b, groups, repeats=10_000)
    # Four standard errors of 10,000 flips at p = 1/2, and the + 1.
    assert test.p_value == pytest.approx(exact_p(a, b, groups), abs=0.021)
    assert test.difference == pytest.approx(float(np.mean(a) - np.mean(b)))
    assert test.groups == len(set(groups.tolist()))
    same = paired_randomisation(a, a.copy(), groups, repeats=50)
    assert (same.p_value, same.difference) == (1.0, 0.0)


def test_exact_ties_count_despite_rounding():
    # With one group every flip ties with the observed value, so p is 1 despite rounding.
    rng = np.random.default_rng(3)
    for _ in range(20):
        a, b = rng.random(7) / 3, rng.random(7) / 7
        assert paired_randomisation(a, b, np.zeros(7, int), repeats=99).p_value == 1.0
    # 0.1 + 0.2 != 0.3 in floats; as numbers the flips (+, +, -) tie only with zero.
    a = np.array([0.1, 0.2, -0.3])
    assert paired_randomisation(a, np.zeros(3), np.arange(3), repeats=99).p_value == 1.0
    # Observed 0.6 = |0.1 + 0.2 + 0.3|: exactly 2 of 8 flips tie, in any order of summing.
    for order in itertools.permutations([0.1, 0.2, 0.3]):
        test = paired_randomisation(np.array(order), np.zeros(3), np.arange(3), repeats=20_000)
        assert test.p_value == pytest.approx(0.25, abs=0.015)


def test_claims_of_one_paper_are_one_flip():
    # 40 claims about two papers: by claim highly significant, by paper p = 1/2.
    a, b, papers = np.ones(40), np.zeros(40), np.repeat([0, 1], 20)
    assert paired_randomisation(a, b, np.arange(40), repeats=5_000).p_value < 0.001
    assert paired_randomisation(a, b, papers, repeats=5_000).p_value == pytest.approx(0.5, abs=0.03)
    # Papers are weighted by their claims: the statistic is a mean over claims, not papers.
    # Papers differ by 3, 1 and -1 claims: |sum| >= 3 for 6 of 8 flips; by paper's mean, for all.
    a, b = np.array([1.0, 1, 1, 1, 0]), np.array([0.0, 0, 0, 0, 1])
    test = paired_randomisation(a, b, np.array([0, 0, 0, 1, 2]), repeats=20_000)
    assert test.difference == pytest.approx(0.6) and test.groups == 3
    assert test.p_value == pytest.approx(0.75, abs=0.015)


def test_seed_decides_and_chunks_do_not_bias(monkeypatch):
    rng = np.random.default_rng(0)
    a, b, groups = rng.random(50), rng.random(50) - 0.08, np.arange(50) // 2
    first = paired_randomisation(a, b, groups, repeats=4_000)
    assert paired_randomisation(a, b, groups, repeats=4_000) == first
    assert paired_randomisation(a, b, groups, repeats=4_000, seed=1).p_value != first.p_value
    low, high = bootstrap_interval(a, groups, repeats=4_000)
    monkeypatch.setattr(significance, "_CHUNK", 60)
    chunked = paired_randomisation(a, b, groups, repeats=4_000)
    assert chunked.p_value == pytest.approx(first.p_value, abs=0.04)
    assert bootstrap_interval(a, groups, repeats=4_000) == pytest.approx((low, high), abs=0.02)


def test_bootstrap_matches_all_draws():
    # Two groups: sums 3 (of 3 claims) and 0 (of 1): draws give 1 (1/4), 3/4 (1/2), 0 (1/4).
    values, groups = np.array([1.0, 1, 1, 0]), np.array([5, 5, 5, 9])
    assert bootstrap_interval(values, groups, repeats=2_000) == (0.0, 1.0)
    assert bootstrap_interval(values, groups, repeats=2_000, level=0.3) == (0.75, 0.75)


def test_bootstrap_covers_about_as_often_as_it_says_and_widens_by_group():
    rng = np.random.default_rng(1)
    covered = 0
    for i in range(200):
        values = rng.random(60)
        low, high = bootstrap_interval(values, np.arange(60), repeats=400, seed=i, level=0.8)
        assert low < values.mean() < high
        covered += low < 0.5 < high
    assert 0.7 < covered / 200 < 0.9
    # The same value for all claims of a paper: by claim the interval is far too narrow.
    values, groups = np.repeat(rng.random(12), 10), np.repeat(np.arange(12), 10)
    narrow = np.diff(bootstrap_interval(values, np.arange(120)))[0]
    assert np.diff(bootstrap_interval(values, groups))[0] > 2.5 * narrow


def test_bad_arguments_are_refused():
    single, two = np.ones(1), np.ones(2)
    for a, b, groups in [(single, two, two), (two, two, single), (single[:0],) * 3]:
        with refused(ValueError, "length"):
            paired_randomisation(a, b, groups)
    with refused(ValueError, "finite"):
        paired_randomisation(two, np.array([1.0, np.nan]), two)
