"""Grouping of texts by length."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from claim2source.models.tokens import Tokens, grouped, in_rows

LENGTHS = st.lists(st.integers(1, 6), max_size=8)


def texts(lengths: list[int]) -> list[Tokens]:
    return [Tokens((0,) * length) for length in lengths]


def cost(groups: list[list[int]], lengths: list[int], extra: int) -> int:
    return sum(len(rows) * max(lengths[row] for row in rows) + extra for rows in groups)


@given(LENGTHS, st.sampled_from([4, 6, 10, 100]), st.sampled_from([0, 1, 3, 8]))
def test_groups_hold_every_text_once_within_the_budget_the_longest_first(lengths, budget, extra):
    groups = list(grouped(texts(lengths), budget, extra))
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    for rows in groups:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget
    order = [lengths[row] for rows in groups for row in rows]
    assert order == sorted(order, reverse=True)


@given(LENGTHS, st.sampled_from([0, 1, 3, 8]))
def test_groups_are_the_cheapest_where_all_fit(lengths, extra):
    ordered, n = sorted(lengths, reverse=True), len(lengths)
    splits = (
        (0, *inner, n) for k in range(max(n, 1)) for inner in itertools.combinations(range(1, n), k)
    )
    optimum = min(
        sum((b - a) * ordered[a] + extra for a, b in itertools.pairwise(split) if b > a)
        for split in splits
    )
    assert cost(list(grouped(texts(lengths), 1000, extra)), lengths, extra) == optimum


@given(LENGTHS, st.sampled_from([1, 5, 9, 100]))
def test_rows_hold_every_text_once_and_about_as_many_tokens_each(lengths, budget):
    rows = list(in_rows(texts(lengths), budget))
    order = list(itertools.chain(*rows))
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[text] for text in order] == sorted(lengths, reverse=True)
    rows_needed = -(-sum(lengths) // budget)
    assert len(rows) <= rows_needed
    for row in rows:  # the last text may reach beyond an even share
        assert sum(lengths[text] for text in row[:-1]) < sum(lengths) / rows_needed
