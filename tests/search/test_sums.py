"""The best sums of several rankings are those of all rows."""

from __future__ import annotations

import numpy as np
import pytest

from claim2source.search.table import Ranked, Ranking, best_sums


def ranking(scores: np.ndarray, read: list[int]) -> Ranking:
    def rank(depth: int, rows: np.ndarray | None) -> Ranked:
        among = np.arange(len(scores)) if rows is None else rows
        among = among[scores[among] > 0]
        best = among[np.argsort(-scores[among], kind="stable")][:depth]
        read.append(len(best))
        return best, scores[best]

    return rank


@pytest.mark.parametrize("shares", [(1.0,), (0.9, 0.4), (0.9, 0.001), (0.5, 0.0, 0.2), (0.0, 0.0)])
def test_the_best_sums_are_those_of_all_rows(shares: tuple[float, ...]) -> None:
    rng, rows = np.random.default_rng(0), 5_000
    for weight in (0.1, 1.0, 30.0):
        columns = [rng.gamma(2, size=rows) * (rng.random(rows) < share) for share in shares]
        columns[-1] *= weight
        if len(columns) > 1:  # a row that is far down in each list has the best sum
            half = 0.7 * max(columns[0].max(), columns[1].max())
            columns[0][7] = columns[1][7] = half
        read: list[int] = []
        found, scores = best_sums([ranking(column, read) for column in columns], 10)
        total = np.sum(columns, axis=0)
        best = np.lexsort((np.arange(rows), -total))[:10]
        best = best[total[best] > 0]
        np.testing.assert_array_equal(found, best)
        np.testing.assert_allclose(scores, total[best])
        if shares == (0.9, 0.001):
            assert sum(read) < rows / 4
