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
    columns = [[random.normal(0, 1, n) for n in lengths] for _ in weights]
    gold = []
    for row, n in enumerate(lengths):
        score = sum(w * column[row] for w, column in zip(weights, columns, strict=True))
        share = np.exp(score) / np.exp(score).sum()
        gold.append(np.arange(n) == random.choice(n, p=share))
    groups = random.integers(0, papers, claims)
    free = np.ones(len(weights), bool)
    return make_lists(columns, gold, np.full(claims, 1 / claims), groups, free)


def plain_loss(weights: np.ndarray, lists: Lists, penalty: float) -> float:
    total = 0.0
    for row in range(len(lists.weights)):
        x = lists.features[row][lists.is_candidate[row]].astype(np.float64)
        scores, gold = x @ weights, lists.gold[row][lists.is_candidate[row]]
        log_odds = scores - np.log(np.exp(scores).sum())
        total -= lists.weights[row] * log_odds[gold].mean()
    return total + penalty / 2 * float(weights @ weights)


def test_weights_minimise_the_listwise_loss_and_find_what_was_planted() -> None:
    lists = planted([2.0, 1.0, 0.0], claims=1500)
    found = fit_linear(lists, 0.01)
    slope = approx_fprime(found, lambda w: plain_loss(w, lists, 0.01), 1e-6)
    assert np.abs(slope).max() < 1e-3
    unscaled = fit_linear(lists, 0.0) / lists.scale
    assert unscaled == pytest.approx([2.0, 1.0, 0.0], abs=0.2)


def test_a_similarity_has_no_negative_weight_and_the_others_are_the_best_without_it() -> None:
    lists = planted([1.5, -1.0])
    free = fit_linear(replace(lists, signed=np.array([False, True])), 0.01)
    assert free[1] < -0.3
    found = fit_linear(replace(lists, signed=np.array([False, False])), 0.01)
    assert found[1] == 0
    alone = minimize(lambda w: plain_loss(np.array([w[0], 0.0]), lists, 0.01), [1.0]).x
    assert found[0] == pytest.approx(alone[0], abs=1e-3)


def test_padding_claims_out_of_reach_and_several_golds_count_as_they_should() -> None:
    lists = planted([1.0, 0.5], claims=60)
    wider = replace(
        lists,
        features=np.pad(lists.features, ((0, 0), (0, 4), (0, 0)), constant_values=9.0),
        is_candidate=np.pad(lists.is_candidate, ((0, 0), (0, 4))),
        gold=np.pad(lists.gold, ((0, 0), (0, 4))),
    )
    assert fit_linear(wider, 0.1) == pytest.approx(fit_linear(lists, 0.1), abs=1e-4)
    lists.gold[:20] = False
    reached = lists.of(np.arange(60) >= 20)
    assert fit_linear(lists, 0.1) == pytest.approx(fit_linear(reached, 0.1), abs=1e-4)
    reached.gold[:, :2] = True
    found = fit_linear(reached, 0.1)
    slope = approx_fprime(found, lambda w: plain_loss(w, reached, 0.1), 1e-6)
    assert np.abs(slope).max() < 1e-3
    with refused(UserError, "gold"):
        fit_linear(lists.of(np.arange(60) < 20), 0.1)


def test_scales_are_the_spread_among_a_claims_candidates_and_shifts_do_not_count() -> None:
    columns = [[np.array([1.0, 3.0]), np.array([101.0, 103.0])], [np.array([5.0, 5.0]), np.array([7.0, 7.0])]]  # fmt: skip
    gold = [np.array([True, False])] * 2
    two = np.ones(2, bool)
    lists = make_lists(columns, gold, np.full(2, 0.5), np.arange(2), two)
    assert lists.scale.tolist() == [1.0, 1.0]  # the second says nothing
    columns[0][0] = np.array([1.0, np.nan, 3.0])
    lists = make_lists(columns[:1], [np.array([True, False, False]), gold[1]], np.full(2, 0.5), np.arange(2), two[:1])  # fmt: skip
    assert lists.features[0, 1, 0] * lists.scale[0] == pytest.approx(2.0)  # the mean of the known


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8),
        min_size=1,
        max_size=6,
    )
)
def test_reciprocal_ranks_are_the_metrics(rows: list[list[tuple[int, bool]]]) -> None:
    gold = [np.array([g for _, g in row]) for row in rows]
    lists = make_lists(
        [[np.array([float(s) for s, _ in row]) for row in rows]],
        gold,
        np.full(len(rows), 1 / len(rows)),
        np.arange(len(rows)),
        np.ones(1, bool),
    )
    values = reciprocal_ranks(lists.features[:, :, 0], lists)
    for number, row in enumerate(rows):
        order = sorted(range(len(row)), key=lambda i: -row[i][0])
        run = Run.from_lists({"c": [(f"s{i}", float(-n)) for n, i in enumerate(order)]})
        golds = {f"s{i}": int(g) for i, (_, g) in enumerate(row)}
        qrels = Qrels({"c": {**golds, "not found": 1}})
        assert values[number] == pytest.approx(evaluate(run, qrels, ["mrr@5"], ["c"])["mrr@5"][0])


def test_papers_are_dealt_whole_and_evenly() -> None:
    groups = np.repeat(np.arange(40), [30, 20, *[3] * 38])
    folds = deal_papers(groups, 5, 1)
    assert all(len(set(folds[groups == paper])) == 1 for paper in range(40))
    counts = np.bincount(folds)
    assert len(counts) == 5 and counts.max() - counts.min() <= 3
    assert (folds == deal_papers(groups, 5, 1)).all() and (folds != deal_papers(groups, 5, 2)).any()
    with refused(UserError, " 41 papers", " 40"):
        deal_papers(groups, 41, 1)


def test_no_claim_is_ranked_by_what_saw_its_paper() -> None:
    lists = planted([0.3, -0.2, 0.1], claims=40, papers=20)
    folds = deal_papers(lists.groups, 5, 1)
    found = held_out(lists, folds, 0.001)
    for row in range(40):
        others, own = lists.of(folds != folds[row]), lists.of(np.array([row]))
        assert lists.groups[row] not in others.groups
        scores = own.features @ fit_linear(others, 0.001).astype(np.float32)
        assert found[row] == reciprocal_ranks(scores, own)[0]
    seen = lists.features @ fit_linear(lists, 0.001).astype(np.float32)
    assert (found != reciprocal_ranks(seen, lists)).any()


def test_the_path_begins_with_the_base_and_adds_what_helps_most() -> None:
    lists = replace(planted([0.3, 0.0, 2.0, 0.8], claims=600), signed=np.zeros(4, bool))
    folds = deal_papers(lists.groups, 3, 1)
    recipes = try_recipes(lists, folds, (0.01, 0.1))
    sets = list(dict.fromkeys(recipe.views for recipe in recipes))
    assert sets == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert {recipe.penalty for recipe in recipes} == {0.01, 0.1} and len(recipes) == 6
    means = [max(float(v.mean()) for r, v in recipes.items() if r.views == views) for views in sets]
    assert means[1] > means[0] + 0.05
