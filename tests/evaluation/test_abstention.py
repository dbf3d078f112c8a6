"""AUROC, AUGRC, coverage at a risk: against their definitions, and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from claim2source.evaluation.abstention import (
    Outcomes,
    abstention_table,
    augrc,
    auroc,
    coverage_at_risk,
    measure,
    point_at,
    risk_coverage,
    safe_threshold,
    upper_bound,
)

# Few distinct confidences: ties are the rule.
ROWS = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 0.1, 0.1 + 1e-12, 2.0]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)


def columns(rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidence, whether the paper is present, whether the answer is wrong."""
    confidence, present, luck = (np.array(column) for column in zip(*rows, strict=True))
    return confidence, present, ~(present & luck)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_areas_are_those_of_their_definitions(rows) -> None:
    confidence, present, wrong = columns(rows)
    n = len(rows)
    # The chance to be answered at another claim's confidence, and wrongly; equal ones half.
    half = [[(c > d) + (c == d) / 2 for d in confidence] for c in confidence]
    by_hand = sum(half[i][j] * wrong[i] for i in range(n) for j in range(n)) / n**2
    # "wrong and answered": the surer a wrong answer, the more coverages it is part of.
    assert augrc(confidence, wrong) == pytest.approx(by_hand)
    if wrong.any() and not wrong.all():
        # Traub et al., equation 8: AUGRC is a function of accuracy and the AUROC of failures.
        right = 1 - wrong.mean()
        failures = (1 - auroc(confidence, ~wrong)) * right * (1 - right) + (1 - right) ** 2 / 2
        assert augrc(confidence, wrong) == pytest.approx(failures)
    if present.any() and not present.all():
        pairs = [half[i][j] for i in range(n) for j in range(n) if present[i] and not present[j]]
        assert auroc(confidence, present) == pytest.approx(sum(pairs) / len(pairs))
    else:
        with pytest.raises(ValueError, match="with and without"):
            auroc(confidence, present)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.1, 0.25, 0.5]))
def test_coverage_at_risk_is_the_most_of_all_thresholds(rows, most) -> None:
    confidence, present, wrong = columns(rows)
    curve = risk_coverage(confidence, wrong)
    best = (0, 0)
    for threshold in set(confidence):
        answered = confidence >= threshold
        if wrong[answered].mean() <= most and answered.sum() > best[0]:
            best = int(answered.sum()), int(wrong[answered].sum())
    point = coverage_at_risk(curve, most)
    assert (point.answered, point.wrong) == best and point.coverage == best[0] / len(rows)
    assert point.upper == upper_bound(best[1], best[0])
    groups = np.arange(len(rows))
    (table,) = measure({"c": confidence}, Outcomes(present, ~wrong, groups), None, most, 5).values()
    assert table.coverage.value == point.coverage and table.point == point
    assert table.augrc.value == augrc(confidence, wrong)
    assert point_at(curve, None).answered == point_at(curve, 9.0).answered == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(1, 40))
def test_the_upper_bound_is_clopper_and_pearsons(wrong, more) -> None:
    """At the bound, as few wrong answers as were seen have a chance of 5 %."""
    answered = wrong + more
    assert stats.binom.cdf(wrong, answered, upper_bound(wrong, answered)) == pytest.approx(0.05)
    assert upper_bound(0, 0) == upper_bound(answered, answered) == 1.0


def test_a_safe_threshold_is_tested_from_the_surest_claims_on() -> None:
    confidence = -np.arange(300.0)
    wrong = np.zeros(300, bool)
    assert safe_threshold(risk_coverage(confidence, wrong)) == -299
    # 28 flawless answers prove no risk of 10 %, 29 do.
    thresholds = [safe_threshold(risk_coverage(confidence[:n], wrong[:n])) for n in (28, 29)]
    assert thresholds == [None, -28.0]
    # It stops at the first failure: what comes after, flawless again, is not looked at.
    wrong[100:115] = True
    threshold = safe_threshold(risk_coverage(confidence, wrong))
    assert threshold is not None and -115 < threshold < -100
    answered, failed = int(-threshold) + 1, int(wrong[: int(-threshold) + 1].sum())
    assert upper_bound(failed, answered) <= 0.1 < upper_bound(failed + 1, answered + 1)
    assert upper_bound(15, 300) <= 0.1
    with pytest.raises(ValueError, match="finite"):
        augrc(np.array([math.nan]), np.array([True]))
    # Too many wrong ones at the start.
    assert safe_threshold(risk_coverage(confidence, np.arange(300) < 9)) is None


def test_intervals_are_drawn_by_paper() -> None:
    rng = np.random.default_rng(1)
    papers, claims_per_paper = 12, 4
    groups = np.tile(np.repeat(np.arange(papers), claims_per_paper), 2)
    present = np.repeat([True, False], papers * claims_per_paper)
    right = present & (rng.random(len(groups)) < 0.7)
    surer = rng.normal(size=len(groups)) + right
    noise = rng.normal(size=papers)[groups]
    table = measure(
        {"base": noise, "surer": surer}, Outcomes(present, right, groups), "base", 0.3, 150, seed=3
    )
    best = table["surer"]
    samples = []
    samples_of_papers = np.random.default_rng(3).integers(0, papers, (150, papers))
    for sample in samples_of_papers:
        # A paper that is drawn twice brings all of its claims twice.
        rows = np.concatenate([np.flatnonzero(groups == paper) for paper in sample])
        curve = risk_coverage(surer[rows], ~right[rows])
        samples.append(
            (
                auroc(surer[rows], present[rows]),
                augrc(surer[rows], ~right[rows]),
                coverage_at_risk(curve, 0.3).coverage,
            )
        )
    for bounded, column in zip(
        (best.auroc, best.augrc, best.coverage), np.array(samples).T, strict=True
    ):
        low, high = np.quantile(column, [0.025, 0.975])
        assert (bounded.low, bounded.high) == pytest.approx((low, high))
    # A confidence that only tells papers apart is the same with and without: exactly 0.5.
    assert (table["base"].auroc.low, table["base"].auroc.high) == pytest.approx((0.5, 0.5))
    assert best.better is not None and best.better.value == pytest.approx(best.auroc.value - 0.5)
    assert best.better.low == pytest.approx(best.auroc.low - 0.5) and best.better.low > 0
    assert table["base"].better is None
    # Another labelling of papers changes nothing; one group has no spread.
    rerun = measure({"surer": surer}, Outcomes(present, right, groups * 7 + 5), None, 0.3, 150, 3)
    assert rerun["surer"].auroc == best.auroc
    solo = measure({"surer": surer}, Outcomes(present, right, groups * 0), repeats=9)["surer"]
    assert solo.auroc.low == solo.auroc.high == solo.auroc.value
    assert "coverage at risk 10 %" in abstention_table({"a": best}).columns
    # Each paper with one kind of claims: samples without one of them are left out.
    kinds = Outcomes(np.array([True, False]), np.array([True, False]), np.array([0, 1]))
    two = measure({"a": np.array([1.0, 0.0])}, kinds, repeats=50)["a"]
    assert (two.auroc.low, two.auroc.high) == (1.0, 1.0) and not math.isnan(two.coverage.low)
