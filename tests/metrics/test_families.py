"""Families of paired tests: many systems at once, strata, Holm, enough permutations, ANOVA."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from claim2source.core.tables import render
from claim2source.metrics.anova import anova_parts, two_way_anova
from claim2source.metrics.families import (
    TOO_FEW,
    WITHIN_NOISE,
    Family,
    compare_family,
    family_table,
    holm,
)
from claim2source.metrics.significance import (
    bootstrap_intervals,
    claim_weights,
    clustered_t_test,
    enough_repeats,
    paired_randomisation,
    paired_randomisations,
)
from tests.refusals import refused

RNG = np.random.default_rng(4)
GROUPS = np.arange(60) // 3
SYSTEMS = np.round(RNG.random((4, 60)), 1)
STRATA = np.array([0] * 40 + [1] * 15 + [2] * 5)


def test_many_systems_get_what_each_would_alone():
    paired_tests = paired_randomisations(SYSTEMS - 0.5, GROUPS, repeats=3_000)
    half = np.full(60, 0.5)
    for i, row in enumerate(SYSTEMS):
        paired_test = paired_randomisation(
            row,
            half,
            GROUPS,
            repeats=3_000,
            seed=9,
        )
        difference = paired_tests.differences[i]
        p_value = paired_tests.p_values[i]
        assert difference == pytest.approx(paired_test.difference)
        assert p_value == pytest.approx(paired_test.p_value, abs=0.04)
        intervals = bootstrap_intervals(SYSTEMS, GROUPS, repeats=3_000)
        low, high = intervals[i]
        own = bootstrap_intervals(row[None], GROUPS, None, 3_000, 1)[0]
        assert (low, high) == pytest.approx(tuple(own), abs=0.02)
    assert paired_tests.repeats == 3_000
    assert paired_tests.groups == 20


def test_strata_make_the_macro_average():
    means = [SYSTEMS[:, STRATA == s].mean(axis=1) for s in range(3)]
    macro = np.mean(means, axis=0)
    by_stratum = claim_weights(STRATA, 60)
    assert SYSTEMS @ by_stratum == pytest.approx(macro)
    by_claim = claim_weights(None, 60)
    assert SYSTEMS @ by_claim == pytest.approx(SYSTEMS.mean(axis=1))

    test = paired_randomisations(SYSTEMS, GROUPS, STRATA, repeats=10)
    assert test.differences == pytest.approx(macro)
    intervals = bootstrap_intervals(SYSTEMS, GROUPS, STRATA, repeats=3_000)
    low, high = intervals.T
    assert (low < macro).all()
    assert (macro < high).all()
    # The five claims of the last stratum weigh a third: wider than over claims.
    over_claims = bootstrap_intervals(SYSTEMS, GROUPS)
    widths = np.diff(over_claims)[:, 0]
    assert (high - low > 1.1 * widths).all()


def test_a_small_stratum_decides_the_macro_p():
    # 1 for all of a stratum of two claims, slightly negative elsewhere.
    d = np.array([[1.0, 1.0] + [-0.01] * 20])
    groups = np.arange(22)
    strata = np.array([1, 1] + [0] * 20)
    paired_tests = paired_randomisations(d, groups, repeats=4_000)
    assert paired_tests.differences[0] == pytest.approx(0.0818, abs=1e-4)
    test = paired_randomisations(d, groups, strata, 4_000)
    assert test.differences[0] == pytest.approx(0.495)
    assert test.p_values[0] == pytest.approx(0.5, abs=0.03)
    # Two papers, one per language: half of the draws have only one language.
    values = np.array([[1.0, 0.0]])
    groups = np.array([0, 1])
    strata = np.array([0, 1])
    intervals = bootstrap_intervals(values, groups, strata, repeats=500)
    low, high = intervals[0]
    assert low == 0.0
    assert high == 1.0


def test_the_least_p_is_of_the_flips_and_of_the_papers():
    d = np.zeros((2, 40))
    d[0, :3] = 1.0  # three papers differ: 2 / 2^3
    d[1] = RNG.random(40) + 1
    test = paired_randomisations(d, np.arange(40), repeats=999)
    assert test.least_p.tolist() == [0.25, 0.001]
    same = np.zeros((1, 5))
    test = paired_randomisations(same, np.arange(5), repeats=9)
    assert test.least_p[0] == 1.0


def test_enough_repeats_survive_holm():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    for tests, alpha in [
        (1, 0.05),
        (7, 0.05),
        (299, 0.05),
        (299, 0.01),
    ]:
        repeats = enough_repeats(tests, alpha)
        assert tests / (repeats + 1) == pytest.approx(alpha / 10)
        # The least p, once, among p-values of 1, is significant after Holm; a tenth is not.
        others = [1.0] * (tests - 1)
        least = 1 / (repeats + 1)
        assert holm([least] + others)[0] <= alpha
        of_a_tenth = 1 / (repeats // 11)
        assert holm([of_a_tenth] + others)[0] > alpha

    values = {f"s{i}": np.random.default_rng(i).random(30) for i in range(60)}
    family = Family.against("f", "base", tuple(values))
    all_values = {"base": np.zeros(30), **values}
    family_result = compare_family(
        all_values,
        family,
        np.arange(30),
        repeats=100,
    )
    assert family_result.repeats == enough_repeats(60)
    assert enough_repeats(60) == 11_999
    assert all(c.verdict == "better" for c in family_result.comparisons)


def test_the_t_test_is_the_paired_one_where_papers_have_one_claim():
    differences = SYSTEMS[:3] - SYSTEMS[3]
    t, p = clustered_t_test(differences, np.arange(60))
    for i in range(3):
        theirs = stats.ttest_rel(SYSTEMS[i], SYSTEMS[3])
        expected = (theirs.statistic, theirs.pvalue)
        assert (t[i], p[i]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("differences", "groups", "strata"),
    [
        (
            [0.0] * 6,
            [0, 0, 1, 1, 2, 2],
            None,
        ),
        (
            [0.1] * 6,
            [0, 0, 1, 1, 2, 2],
            None,
        ),
        (
            [1.0, 0.0, 0.5],
            [0, 0, 0],
            None,
        ),
        (
            [0.5, 0.2],
            [0, 1],
            [0, 1],
        ),
        # Constant differences per language, which cancel out except for rounding.
        (
            [0.1, 0.1, 0.1, -0.1, -0.1, -0.1],
            [0, 1, 2, 3, 4, 5],
            [0, 0, 0, 1, 1, 1],
        ),
        (
            [0.3, 0.1, 0.2, 0.2, 0.4],
            [0, 1, 2, 3, 4],
            [0, 0, 0, 0, 1],
        ),
    ],
)
def test_without_spread_a_t_test_says_nothing(differences, groups, strata):
    by = None if strata is None else np.array(strata)
    rows = np.array([differences])
    t, p = clustered_t_test(rows, np.array(groups), by)
    assert np.isnan([*t, *p]).all()


def test_a_t_test_that_says_nothing_is_null_and_one_of_the_family():
    groups = np.arange(80) // 2
    family_result = compare_family(scores(), FAMILY, groups)
    by_name = {c.system: c for c in family_result.comparisons}
    for name in ("better", "worse"):
        comparison = by_name[name]
        assert comparison.t is None
        assert comparison.t_p is None
        assert comparison.t_p_holm is None
    p_values = [1.0 if c.t_p is None else c.t_p for c in family_result.comparisons]
    expected = holm(p_values)[1]
    assert by_name["near"].t_p_holm == pytest.approx(expected)
    text = json.dumps(asdict(family_result), allow_nan=False)
    assert json.loads(text)
    table = family_table(family_result)
    assert "nan" not in render([table])


def test_the_t_test_is_statsmodels_clustered_one():
    import statsmodels.api as sm

    groups = np.sort(RNG.integers(0, 12, 60))
    noise = np.repeat(RNG.random(12), 5)
    d = SYSTEMS[0] - SYSTEMS[1] + noise
    model = sm.OLS(d, np.ones(60))
    fitted = model.fit(
        cov_type="cluster",
        cov_kwds={"groups": groups},
        use_t=True,
    )
    t, p = clustered_t_test(d[None], groups)
    expected = (fitted.tvalues[0], fitted.pvalues[0])
    assert (t[0], p[0]) == pytest.approx(expected)


def scores() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    base = np.round(rng.random(80), 1) / 2
    near = base.copy()
    near[:2] += 0.1
    return {
        "base": base,
        "better": base + 0.3,
        "near": near,
        "worse": base - 0.2,
        "other": base[::-1].copy(),
    }


FAMILY = Family.against("f", "base", ("better", "near", "worse", "other"))


def test_a_family_is_tested_against_its_baseline():
    groups = np.arange(80) // 2
    family_result = compare_family(scores(), FAMILY, groups)
    by_name = {c.system: c for c in family_result.comparisons}
    verdicts = {n: c.verdict for n, c in by_name.items()}
    assert verdicts == {
        "better": "better",
        "near": TOO_FEW,
        "worse": "worse",
        "other": WITHIN_NOISE,
    }

    better = by_name["better"]
    near = by_name["near"]
    worse = by_name["worse"]
    assert better.difference == pytest.approx(0.3)
    assert better.baseline_mean < better.mean
    assert (better.wins, better.ties, better.losses) == (80, 0, 0)
    assert (near.wins, near.ties, near.losses) == (2, 78, 0)
    assert (worse.wins, worse.losses) == (0, 80)
    assert better.low <= 0.3 + 1e-9
    assert better.high >= 0.3 - 1e-9

    assert family_result.claims == 80
    assert family_result.groups == 40
    assert family_result.average == "micro"
    assert family_result.repeats == 10_000

    corrected = [c.p_holm for c in family_result.comparisons]
    p_values = [c.p for c in family_result.comparisons]
    assert corrected == pytest.approx(holm(p_values))
    assert better.p_holm == pytest.approx(4 * better.p)


def test_as_many_draws_are_made_as_are_asked_for():
    groups = np.arange(80) // 2
    family_result = compare_family(scores(), FAMILY, groups, repeats=50)
    assert family_result.draws == 50
    assert family_result.repeats == enough_repeats(4)
    base = scores()["base"]
    differences = np.stack([scores()[name] - base for name, _ in FAMILY.pairs])
    expected = bootstrap_intervals(differences, groups, repeats=50)
    intervals = [(c.low, c.high) for c in family_result.comparisons]
    assert intervals == [tuple(row) for row in expected]


# --- ANOVA ---------------------------------------------------------------------------------


def test_anova_is_statsmodels():
    import pandas as pd
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    values = {f"s{i}": RNG.random(12) + 0.2 * i for i in range(4)}
    rows = []
    for system, row in values.items():
        for claim, value in enumerate(row):
            rows.append((system, claim, value))
    frame = pd.DataFrame(rows, columns=["system", "claim", "score"])
    fitted = ols("score ~ C(system) + C(claim)", frame).fit()
    theirs = anova_lm(fitted)
    ours = two_way_anova(values)
    for effect, name in (
        (ours.systems, "C(system)"),
        (ours.claims, "C(claim)"),
    ):
        row = theirs.loc[name]
        actual = (effect.squares, effect.freedom, effect.f, effect.p)
        expected = (row["sum_sq"], row["df"], row["F"], row["PR(>F)"])
        assert actual == pytest.approx(expected)
    residual = theirs.loc["Residual"]
    assert ours.residual_squares == pytest.approx(residual["sum_sq"])
    assert ours.residual_freedom == residual["df"]
    assert residual["df"] == 33


def test_tukey_is_of_the_residual_of_both_ways():
    slope = np.linspace(0, 5, 12)
    values = {f"s{i}": slope + RNG.random(12) + 0.25 * i for i in range(4)}
    anova = two_way_anova(values)
    assert len(anova.pairs) == 6
    variance = anova.residual_squares / anova.residual_freedom
    unit = np.sqrt(variance / 12)
    for pair in anova.pairs:
        first = values[pair.first].mean()
        second = values[pair.second].mean()
        difference = second - first
        assert pair.difference == pytest.approx(difference)
        p = stats.studentized_range.sf(abs(difference) / unit, 4, 33)
        bounded = np.clip(p, 0.001, 0.9)
        assert pair.p == pytest.approx(bounded, abs=0.02)
        assert pair.differs is bool(p < 0.05)
        assert pair.differs is bool(pair.low > 0 or pair.high < 0)
        middle = (pair.low + pair.high) / 2
        assert middle == pytest.approx(difference)
    assert {pair.differs for pair in anova.pairs} == {True, False}
    # Claims differ far more than systems: one-way Tukey would see nothing.
    one_way = stats.tukey_hsd(*values.values())
    assert not one_way.pvalue.min() < 0.05


def test_anova_needs_two_of_each_and_survives_no_spread():
    one_system = {"a": np.ones(3)}
    one_claim = {"a": np.ones(1), "b": np.ones(1)}
    for groups in (one_system, one_claim):
        systems = f"{len(groups)} system"
        claims = f"{len(groups['a'])} claim"
        with refused(ValueError, systems, claims):
            two_way_anova(groups)
    anova = two_way_anova({"a": np.ones(3), "b": np.ones(3)})
    assert not anova.pairs[0].differs


def test_an_anova_without_a_residual_says_nothing():
    rng = np.random.default_rng(0)
    base = np.round(rng.random(12), 1)
    anova = two_way_anova(
        {
            "base": base,
            "same": base,
            "better": base + 0.1,
        }
    )
    assert anova.systems.f is None
    assert anova.systems.p is None
    assert anova.claims.f is None
    assert anova.claims.p is None
    differences = [pair.difference for pair in anova.pairs]
    assert differences == pytest.approx([0.0, 0.1, 0.1])
    for pair in anova.pairs:
        assert pair.low is None
        assert pair.high is None
        assert pair.p is None
        assert pair.differs is None
    parts = anova_parts(anova)
    assert "nan" not in render(parts)
