"""All pairs at once: paired tests by gold paper with max-T, intervals of ranks, tied groups."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.metrics import significance
from claim2source.metrics.families import holm
from claim2source.metrics.pairs import compare_pairs, rank_intervals, tied_groups
from claim2source.metrics.significance import paired_randomisation


def stepped_down(sums: np.ndarray) -> np.ndarray:
    """p of all pairs by enumeration of all sign flips, written down from the definition."""
    size, papers = sums.shape
    pairs = [*itertools.combinations(range(size), 2)]
    differences = [sums[i] - sums[j] for i, j in pairs]
    gaps = np.array(differences)
    squares = gaps**2
    norms = np.sqrt(squares.sum(axis=1))
    totals = gaps.sum(axis=1)
    observed = np.abs(totals) / norms
    signs = itertools.product([1, -1], repeat=papers)
    flips = np.array([*signs])
    flipped = gaps @ flips.T
    statistics = np.abs(flipped) / norms[:, None]

    matrix = np.ones((size, size))
    largest = 0.0
    for rank in np.argsort(-observed):
        statistic = observed[rank]
        others = observed <= statistic + 1e-9
        maxima = statistics[others].max(axis=0)
        as_large = maxima >= statistic - 1e-9
        p = float(as_large.mean())
        largest = max(largest, p)
        i, j = pairs[rank]
        matrix[i, j] = largest
        matrix[j, i] = largest
    return matrix


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_agrees_with_all_sign_flips(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = np.linspace(0, 2, 4)
    noise = rng.integers(-20, 20, (4, 10)) / 4
    values = noise + levels[:, None]
    papers = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 7])
    by_paper = [np.bincount(papers, row) for row in values]
    sums = np.stack(by_paper)
    found = compare_pairs(
        values,
        papers,
        repeats=8_000,
        seed=seed,
    )
    exact = stepped_down(sums)
    near = pytest.approx(exact, abs=0.025)
    assert found.p_values == near

    means = values.mean(axis=1)
    differences = means[:, None] - means
    assert found.differences == pytest.approx(differences)
    assert found.groups == 8


def test_one_pair_is_the_paired_test_and_more_pairs_beat_holm() -> None:
    rng = np.random.default_rng(0)
    papers = np.arange(120) // 2
    shared = rng.random(120)
    noise = 0.3 * rng.random((6, 120))
    levels = np.linspace(0, 0.08, 6)
    values = shared + noise + levels[:, None]
    alone = {}
    for i, j in itertools.combinations(range(6), 2):
        one = values[i]
        other = values[j]
        test = paired_randomisation(one, other, papers, 4_000)
        systems = values[[i, j]]
        both = compare_pairs(systems, papers, repeats=4_000)
        near = pytest.approx(test.p_value, abs=1e-3)
        assert both.p_values[0, 1] == near
        alone[i, j] = test.p_value

    found = compare_pairs(values, papers, repeats=4_000)
    together = found.p_values
    adjusted = holm([*alone.values()])
    corrected = dict(zip(alone, adjusted, strict=True))
    for pair, p in alone.items():
        assert p - 0.02 <= together[pair]
        assert together[pair] <= corrected[pair] + 0.02
    # Tests of the same systems depend on each other, which Holm cannot use.
    smaller = 0
    for pair in alone:
        smaller += together[pair] < corrected[pair]
    assert smaller > 8


def test_claims_of_one_paper_are_one_flip_and_languages_weigh_the_same() -> None:
    rng = np.random.default_rng(1)
    levels = np.array([0.0, 0.5, 1.0])
    values = rng.random((3, 60)) + levels[:, None]
    claims = np.arange(60)
    by_claim = compare_pairs(values, claims, repeats=2_000)
    upper = np.triu_indices(3, 1)
    p_values = by_claim.p_values[upper]
    assert (p_values < 0.01).all()

    papers = np.repeat(np.arange(4), 15)
    by_paper = compare_pairs(values, papers, repeats=2_000)
    # Four papers have 16 flips, so that no p is below 1/8, however many claims they have.
    assert by_paper.p_values.min() > 0.1
    assert by_paper.least_p == 0.125

    # One is better on 54 claims of a language, the other on 6 of another by as much.
    languages = np.repeat([0, 1], [54, 6])
    first = np.where(languages == 0, 1.0, 0.0)
    second = 1 - first
    pair = np.stack([first, second])
    micro = compare_pairs(pair, claims)
    macro = compare_pairs(pair, claims, languages)
    assert micro.p_values[0, 1] < 0.001
    assert macro.differences[0, 1] == pytest.approx(0)
    assert macro.p_values[0, 1] > 0.9


def test_equal_systems_are_never_separated_and_chunks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    levels = np.array([[0.0], [0.6]])
    noise = rng.random((2, 80))
    one, other = noise + levels
    values = np.stack([one, one, other, one])
    claims = np.arange(80)
    found = compare_pairs(values, claims, repeats=500)
    better = found.better()
    ranks = rank_intervals(better)
    p_values = found.p_values
    assert better.tolist() == [
        [False] * 4,
        [False] * 4,
        [True, True, False, True],
        [False] * 4,
    ]
    assert p_values[0, 1] == 1
    assert p_values[3, 0] == 1
    assert ranks.tolist() == [
        [2, 4],
        [2, 4],
        [1, 1],
        [2, 4],
    ]
    groups = tied_groups(p_values <= 0.05)
    assert groups == [[0, 1, 3], [2]]

    twins = np.stack([one, one])
    same = compare_pairs(twins, claims, repeats=50)
    assert same.p_values.min() == 1
    assert same.least_p == 1
    alone = compare_pairs(one[None], claims, repeats=50)
    assert alone.p_values.tolist() == [[1]]
    alone_ranks = rank_intervals(alone.better())
    assert alone_ranks.tolist() == [[1, 1]]

    monkeypatch.setattr(significance, "_CHUNK", 1_000)
    chunked = compare_pairs(values, claims, repeats=500)
    near = pytest.approx(p_values, abs=0.05)
    assert chunked.p_values == near


@settings(max_examples=60)
@given(
    st.integers(1, 6),
    st.integers(0, 2**15 - 1),
)
def test_groups_are_the_largest_that_nothing_separates(size: int, bits: int) -> None:
    systems = range(size)
    pairs = itertools.combinations(systems, 2)
    shape = (size, size)
    separated = np.zeros(shape, dtype=bool)
    for number, (i, j) in enumerate(pairs):
        is_set = bool(bits >> number & 1)
        separated[i, j] = is_set
        separated[j, i] = is_set

    free = []
    for length in range(1, size + 1):
        for members in itertools.combinations(systems, length):
            block = np.ix_(members, members)
            if not separated[block].any():
                free.append(set(members))

    largest = []
    for group in free:
        is_part = any(group < other for other in free)
        if not is_part:
            largest.append(sorted(group))
    assert tied_groups(separated) == sorted(largest)
