"""Rankers of candidates: weights against planted ones, held-out papers, the choice of views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize

from claim2source.core.errors import UserError
from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.metrics.metrics import evaluate
from claim2source.training.fusion import (
    Lists,
    deal_papers,
    fit_linear,
    held_out,
    make_lists,
    reciprocal_ranks,
    try_recipes,
)
from tests.refusals import refused


def planted(weights: list[float], claims: int = 400, papers: int = 60) -> Lists:
    """Lists of 3 to 8 candidates; the gold is drawn by the softmax of the weighted scores."""
    random = np.random.default_rng(0)
    lengths = random.integers(3, 9, claims)
    columns = []
    for _ in weights:
        column = [random.normal(0, 1, length) for length in lengths]
        columns.append(column)

    gold = []
    for row, length in enumerate(lengths):
        pairs = zip(weights, columns, strict=True)
        score = sum(weight * column[row] for weight, column in pairs)
        odds = np.exp(score)
        share = odds / odds.sum()
        drawn = random.choice(length, p=share)
        is_gold = np.arange(length) == drawn
        gold.append(is_gold)

    groups = random.integers(0, papers, claims)
    claim_weights = np.full(claims, 1 / claims)
    free = np.ones(len(weights), bool)
    return make_lists(columns, gold, claim_weights, groups, free)


def plain_loss(weights: np.ndarray, lists: Lists, penalty: float) -> float:
    total = 0.0
    for row in range(len(lists.weights)):
        is_candidate = lists.is_candidate[row]
        features = lists.features[row][is_candidate]
        gold = lists.gold[row][is_candidate]
        scores = features.astype(np.float64) @ weights
        total_odds = np.exp(scores).sum()
        log_odds = scores - np.log(total_odds)
        mean_of_golds = log_odds[gold].mean()
        total -= lists.weights[row] * mean_of_golds
    squares = float(weights @ weights)
    return total + penalty / 2 * squares


def largest_slope(weights: np.ndarray, lists: Lists, penalty: float) -> float:
    """How far the plain loss is from level at these weights."""

    def loss(point: np.ndarray) -> float:
        return plain_loss(point, lists, penalty)

    slope = approx_fprime(weights, loss, 1e-6)
    sizes = np.abs(slope)
    return sizes.max()


def test_weights_minimise_the_listwise_loss_and_find_what_was_planted() -> None:
    lists = planted([2.0, 1.0, 0.0], claims=1500)
    found = fit_linear(lists, 0.01)
    assert largest_slope(found, lists, 0.01) < 1e-3
    scaled = fit_linear(lists, 0.0)
    unscaled = scaled / lists.scale
    assert unscaled == pytest.approx([2.0, 1.0, 0.0], abs=0.2)


def test_a_similarity_has_no_negative_weight_and_the_others_are_the_best_without_it() -> None:
    lists = planted([1.5, -1.0])
    signed_second = replace(lists, signed=np.array([False, True]))
    free = fit_linear(signed_second, 0.01)
    assert free[1] < -0.3
    unsigned = replace(lists, signed=np.array([False, False]))
    found = fit_linear(unsigned, 0.01)
    assert found[1] == 0

    def loss_of_the_first(weights: np.ndarray) -> float:
        both = np.array([weights[0], 0.0])
        return plain_loss(both, lists, 0.01)

    alone = minimize(loss_of_the_first, [1.0]).x
    assert found[0] == pytest.approx(alone[0], abs=1e-3)


def test_padding_claims_out_of_reach_and_several_golds_count_as_they_should() -> None:
    lists = planted([1.0, 0.5], claims=60)
    more_columns = ((0, 0), (0, 4))
    padded_features = np.pad(
        lists.features,
        (*more_columns, (0, 0)),
        constant_values=9.0,
    )
    wider = replace(
        lists,
        features=padded_features,
        is_candidate=np.pad(lists.is_candidate, more_columns),
        gold=np.pad(lists.gold, more_columns),
    )
    weights = fit_linear(wider, 0.1)
    narrow_weights = fit_linear(lists, 0.1)
    assert weights == pytest.approx(narrow_weights, abs=1e-4)

    lists.gold[:20] = False
    numbers = np.arange(60)
    reached = lists.of(numbers >= 20)
    weights = fit_linear(lists, 0.1)
    reached_weights = fit_linear(reached, 0.1)
    assert weights == pytest.approx(reached_weights, abs=1e-4)

    reached.gold[:, :2] = True
    found = fit_linear(reached, 0.1)
    assert largest_slope(found, reached, 0.1) < 1e-3
    out_of_reach = lists.of(numbers < 20)
    with refused(UserError, "gold"):
        fit_linear(out_of_reach, 0.1)


def test_scales_are_the_spread_among_a_claims_candidates_and_shifts_do_not_count() -> None:
    spread = [
        np.array([1.0, 3.0]),
        np.array([101.0, 103.0]),
    ]
    level = [
        np.array([5.0, 5.0]),
        np.array([7.0, 7.0]),
    ]
    columns = [spread, level]
    gold = [np.array([True, False])] * 2
    two = np.ones(2, bool)
    lists = make_lists(
        columns,
        gold,
        np.full(2, 0.5),
        np.arange(2),
        two,
    )
    assert lists.scale.tolist() == [1.0, 1.0]  # the second says nothing

    columns[0][0] = np.array([1.0, np.nan, 3.0])
    longer_gold = np.array([True, False, False])
    lists = make_lists(
        columns[:1],
        [longer_gold, gold[1]],
        np.full(2, 0.5),
        np.arange(2),
        two[:1],
    )
    unscaled = lists.features[0, 1, 0] * lists.scale[0]
    assert unscaled == pytest.approx(2.0)  # the mean of the known


CANDIDATES = st.lists(
    st.tuples(st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(
    st.lists(
        CANDIDATES,
        min_size=1,
        max_size=6,
    )
)
def test_reciprocal_ranks_are_the_metrics(rows: list[list[tuple[int, bool]]]) -> None:
    gold = []
    scores = []
    for row in rows:
        row_gold = [is_gold for _, is_gold in row]
        gold.append(np.array(row_gold))
        row_scores = [float(score) for score, _ in row]
        scores.append(np.array(row_scores))
    count = len(rows)
    lists = make_lists(
        [scores],
        gold,
        np.full(count, 1 / count),
        np.arange(count),
        np.ones(1, bool),
    )
    only_view = lists.features[:, :, 0]
    values = reciprocal_ranks(only_view, lists)

    for number, row in enumerate(rows):
        order = sorted(range(len(row)), key=lambda i: -row[i][0])
        ranked = []
        for rank, place in enumerate(order):
            score = float(-rank)
            ranked.append((f"s{place}", score))
        run = Run.from_lists({"c": ranked})

        golds = {}
        for place, (_, is_gold) in enumerate(row):
            golds[f"s{place}"] = int(is_gold)
        qrels = Qrels({"c": {**golds, "not found": 1}})
        measured = evaluate(run, qrels, ["mrr@5"], ["c"])
        expected = measured["mrr@5"][0]
        assert values[number] == pytest.approx(expected)


def test_papers_are_dealt_whole_and_evenly() -> None:
    pair_counts = [30, 20, *[3] * 38]
    groups = np.repeat(np.arange(40), pair_counts)
    folds = deal_papers(groups, 5, 1)
    for paper in range(40):
        is_own = groups == paper
        own_folds = set(folds[is_own])
        assert len(own_folds) == 1

    counts = np.bincount(folds)
    assert len(counts) == 5
    most_uneven = counts.max() - counts.min()
    assert most_uneven <= 3
    again = deal_papers(groups, 5, 1)
    other_seed = deal_papers(groups, 5, 2)
    assert (folds == again).all()
    assert (folds != other_seed).any()
    with refused(UserError, " 41 papers", " 40"):
        deal_papers(groups, 41, 1)


def test_no_claim_is_ranked_by_what_saw_its_paper() -> None:
    lists = planted([0.3, -0.2, 0.1], claims=40, papers=20)
    folds = deal_papers(lists.groups, 5, 1)
    found = held_out(lists, folds, 0.001)
    for row in range(40):
        own_fold = folds[row]
        others = lists.of(folds != own_fold)
        own = lists.of(np.array([row]))
        paper = lists.groups[row]
        assert paper not in others.groups
        weights = fit_linear(others, 0.001)
        scores = own.features @ weights.astype(np.float32)
        ranks = reciprocal_ranks(scores, own)
        assert found[row] == ranks[0]

    weights = fit_linear(lists, 0.001)
    seen = lists.features @ weights.astype(np.float32)
    seen_ranks = reciprocal_ranks(seen, lists)
    assert (found != seen_ranks).any()


def test_the_path_begins_with_the_base_and_adds_what_helps_most() -> None:
    four_views = planted([0.3, 0.0, 2.0, 0.8], claims=600)
    lists = replace(four_views, signed=np.zeros(4, bool))
    folds = deal_papers(lists.groups, 3, 1)
    recipes = try_recipes(lists, folds, (0.01, 0.1))
    sets = list(dict.fromkeys(recipe.views for recipe in recipes))
    assert sets == [
        (0, 1),
        (0, 1, 2),
        (0, 1, 2, 3),
    ]
    penalties = {recipe.penalty for recipe in recipes}
    assert penalties == {0.01, 0.1}
    assert len(recipes) == 6

    means = []
    for views in sets:
        own_means = []
        for recipe, values in recipes.items():
            if recipe.views == views:
                mean = values.mean()
                own_means.append(float(mean))
        best = max(own_means)
        means.append(best)
    assert means[1] > means[0] + 0.05
