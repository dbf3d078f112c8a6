"""Coverage of simulated orders: 95 % of equal systems by paper; not by post, nor uncorrected."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.rank_coverage import ORDERS, Config, covers, main, measure, simulate, true_ranks

SMALL = Config(draws=300, papers=60, repeats=199)


@pytest.mark.parametrize("order", ["all equal", "two groups of four"])
def test_equal_systems_are_covered_in_95_percent_of_draws(order: str) -> None:
    found = measure(order, SMALL)
    # Two standard errors of 300 draws are 2.5 %.
    assert 0.925 <= found.coverage <= 0.975
    assert found.by_claim < 0.94 and found.uncorrected < 0.75


def test_different_systems_are_covered_more_often_by_short_intervals() -> None:
    found = measure("all different, clearly", Config(draws=40, papers=100, repeats=199))
    assert found.coverage >= 0.95 and found.width < 4


def test_equal_systems_share_their_ranks() -> None:
    assert true_ranks([0.5, 0.0, 0.5]).tolist() == [[1, 2], [3, 3], [1, 2]]
    ranks = true_ranks([1.0, 0.0])
    assert covers(np.array([[1, 2], [1, 2]]), ranks) and covers(ranks, ranks)
    assert not covers(np.array([[1, 2], [1, 1]]), ranks)
    sample = simulate(ORDERS["one first, seven equal"], 400, np.random.default_rng(0))
    means = sample.scores.mean(axis=1)
    assert means[0] > means[1:].max() + 0.1 and np.ptp(means[1:]) < 0.1
    assert set(np.unique(sample.languages)) == {0, 1, 2}
    assert len(sample.papers) > 450


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--draws=2", "--papers=20", "--repeats=19"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + len(ORDERS) and all(" %" in line for line in lines[3:])
