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
    gaps = np.array([sums[i] - sums[j] for i, j in pairs])
    norms = np.sqrt((gaps**2).sum(axis=1))
    observed = np.abs(gaps.sum(axis=1)) / norms
    flips = np.array([*itertools.product([1, -1], repeat=papers)])
    statistics = np.abs(gaps @ flips.T) / norms[:, None]
    matrix = np.ones((size, size))
    largest = 0.0
    for rank in np.argsort(-observed):
        others = observed <= observed[rank] + 1e-9
        p = float((statistics[others].max(axis=0) >= observed[rank] - 1e-9).mean())
        largest = max(largest, p)
        i, j = pairs[rank]
        matrix[i, j] = matrix[j, i] = largest
    return matrix


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_agrees_with_all_sign_flips(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-20, 20, (4, 10)) / 4 + np.linspace(0, 2, 4)[:, None]
    papers = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 7])
    sums = np.stack([np.bincount(papers, row) for row in values])
    found = compare_pairs(values, papers, repeats=8_000, seed=seed)
    assert found.p_values == pytest.approx(stepped_down(sums), abs=0.025)
    means = values.mean(axis=1)
    assert found.differences == pytest.approx(means[:, None] - means)
    assert found.groups == 8


def test_one_pair_is_the_paired_test_and_more_pairs_beat_holm() -> None:
    rng = np.random.default_rng(0)
    papers = np.arange(120) // 2
    shared = rng.random(120)
    values = shared + 0.3 * rng.random((6, 120)) + np.linspace(0, 0.08, 6)[:, None]
    alone = {}
    for i, j in itertools.combinations(range(6), 2):
        test = paired_randomisation(values[i], values[j], papers, 4_000)
        both = compare_pairs(values[[i, j]], papers, repeats=4_000)
        assert both.p_values[0, 1] == pytest.approx(test.p_value, abs=1e-3)
        alone[i, j] = test.p_value
    together = compare_pairs(values, papers, repeats=4_000).p_values
    corrected = dict(zip(alone, holm([*alone.values()]), strict=True))
    for pair, p in alone.items():
        assert p - 0.02 <= together[pair] <= corrected[pair] + 0.02
    # Tests of the same systems depend on each other, which Holm cannot use.
    assert sum(together[pair] < corrected[pair] for pair in alone) > 8


def test_claims_of_one_paper_are_one_flip_and_languages_weigh_the_same() -> None:
    rng = np.random.default_rng(1)
    values = rng.random((3, 60)) + np.array([0.0, 0.5, 1.0])[:, None]
    by_claim = compare_pairs(values, np.arange(60), repeats=2_000)
    assert (by_claim.p_values[np.triu_indices(3, 1)] < 0.01).all()
    papers = np.repeat(np.arange(4), 15)
    by_paper = compare_pairs(values, papers, repeats=2_000)
    # Four papers have 16 flips, so that no p is below 1/8, however many claims they have.
    assert by_paper.p_values.min() > 0.1 and by_paper.least_p == 0.125
    # One is better on 54 claims of a language, the other on 6 of another by as much.
    languages = np.repeat([0, 1], [54, 6])
    first = np.where(languages == 0, 1.0, 0.0)
    pair = np.stack([first, 1 - first])
    assert compare_pairs(pair, np.arange(60)).p_values[0, 1] < 0.001
    macro = compare_pairs(pair, np.arange(60), languages)
    assert macro.differences[0, 1] == pytest.approx(0) and macro.p_values[0, 1] > 0.9


def test_equal_systems_are_never_separated_and_chunks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    one, other = rng.random((2, 80)) + np.array([[0.0], [0.6]])
    values = np.stack([one, one, other, one])
    found = compare_pairs(values, np.arange(80), repeats=500)
    better = found.better()
    assert better.tolist() == [[False] * 4, [False] * 4, [True, True, False, True], [False] * 4]
    assert found.p_values[0, 1] == found.p_values[3, 0] == 1
    assert rank_intervals(better).tolist() == [[2, 4], [2, 4], [1, 1], [2, 4]]
    assert tied_groups(found.p_values <= 0.05) == [[0, 1, 3], [2]]
    same = compare_pairs(np.stack([one, one]), np.arange(80), repeats=50)
    assert same.p_values.min() == 1 and same.least_p == 1
    alone = compare_pairs(one[None], np.arange(80), repeats=50)
    assert alone.p_values.tolist() == [[1]]
    assert rank_intervals(alone.better()).tolist() == [[1, 1]]
    monkeypatch.setattr(significance, "_CHUNK", 1_000)
    chunked = compare_pairs(values, np.arange(80), repeats=500)
    assert chunked.p_values == pytest.approx(found.p_values, abs=0.05)


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 2**15 - 1))
def test_groups_are_the_largest_that_nothing_separates(size: int, bits: int) -> None:
    separated = np.zeros((size, size), dtype=bool)
    for number, (i, j) in enumerate(itertools.combinations(range(size), 2)):
        separated[i, j] = separated[j, i] = bool(bits >> number & 1)
    free = []
    for length in range(1, size + 1):
        for members in itertools.combinations(range(size), length):
            if not separated[np.ix_(members, members)].any():
                free.append(set(members))
    largest = [sorted(group) for group in free if not any(group < other for other in free)]
    assert tied_groups(separated) == sorted(largest)
