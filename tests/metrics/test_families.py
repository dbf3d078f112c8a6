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
    for i, row in enumerate(SYSTEMS):
        paired_test = paired_randomisation(row, np.full(60, 0.5), GROUPS, repeats=3_000, seed=9)
        assert paired_tests.differences[i] == pytest.approx(paired_test.difference)
        assert paired_tests.p_values[i] == pytest.approx(paired_test.p_value, abs=0.04)
        low, high = bootstrap_intervals(SYSTEMS, GROUPS, repeats=3_000)[i]
        own = bootstrap_intervals(row[None], GROUPS, None, 3_000, 1)[0]
        assert (low, high) == pytest.approx(tuple(own), abs=0.02)
    assert (paired_tests.repeats, paired_tests.groups) == (3_000, 20)


def test_strata_make_the_macro_average():
    macro = np.mean([SYSTEMS[:, STRATA == s].mean(axis=1) for s in range(3)], axis=0)
    assert SYSTEMS @ claim_weights(STRATA, 60) == pytest.approx(macro)
    assert SYSTEMS @ claim_weights(None, 60) == pytest.approx(SYSTEMS.mean(axis=1))
    test = paired_randomisations(SYSTEMS, GROUPS, STRATA, repeats=10)
    assert test.differences == pytest.approx(macro)
    low, high = bootstrap_intervals(SYSTEMS, GROUPS, STRATA, repeats=3_000).T
    assert ((low < macro) & (macro < high)).all()
    # The five claims of the last stratum weigh a third: wider than over claims.
    assert (high - low > 1.1 * np.diff(bootstrap_intervals(SYSTEMS, GROUPS))[:, 0]).all()


def test_a_small_stratum_decides_the_macro_p():
    # 1 for all of a stratum of two claims, slightly negative elsewhere.
    d = np.array([[1.0, 1.0] + [-0.01] * 20])
    groups, strata = np.arange(22), np.array([1, 1] + [0] * 20)
    paired_tests = paired_randomisations(d, groups, repeats=4_000)
    assert paired_tests.differences[0] == pytest.approx(0.0818, abs=1e-4)
    test = paired_randomisations(d, groups, strata, 4_000)
    assert test.differences[0] == pytest.approx(0.495)
    assert test.p_values[0] == pytest.approx(0.5, abs=0.03)
    # Two papers, one per language: half of the draws have only one language.
    values, groups = np.array([[1.0, 0.0]]), np.array([0, 1])
    low, high = bootstrap_intervals(values, groups, np.array([0, 1]), repeats=500)[0]
    assert (low, high) == (0.0, 1.0)


def test_the_least_p_is_of_the_flips_and_of_the_papers():
    d = np.zeros((2, 40))
    d[0, :3] = 1.0  # three papers differ: 2 / 2^3
    d[1] = RNG.random(40) + 1
    test = paired_randomisations(d, np.arange(40), repeats=999)
    assert test.least_p.tolist() == [0.25, 0.001]
    assert paired_randomisations(np.zeros((1, 5)), np.arange(5), repeats=9).least_p[0] == 1.0


def test_enough_repeats_survive_holm():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    for tests, alpha in [(1, 0.05), (7, 0.05), (299, 0.05), (299, 0.01)]:
        repeats = enough_repeats(tests, alpha)
        assert tests / (repeats + 1) == pytest.approx(alpha / 10)
        # The least p, once, among p-values of 1, is significant after Holm; a tenth is not.
        assert holm([1 / (repeats + 1)] + [1.0] * (tests - 1))[0] <= alpha
        assert holm([1 / (repeats // 11)] + [1.0] * (tests - 1))[0] > alpha
    values = {f"s{i}": np.random.default_rng(i).random(30) for i in range(60)}
    family = Family.against("f", "base", tuple(values))
    family_result = compare_family(
        {"base": np.zeros(30), **values}, family, np.arange(30), repeats=100
    )
    assert family_result.repeats == enough_repeats(60) == 11_999
    assert all(c.verdict == "better" for c in family_result.comparisons)


def test_the_t_test_is_the_paired_one_where_papers_have_one_claim():
    t, p = clustered_t_test(SYSTEMS[:3] - SYSTEMS[3], np.arange(60))
    for i in range(3):
        theirs = stats.ttest_rel(SYSTEMS[i], SYSTEMS[3])
        assert (t[i], p[i]) == pytest.approx((theirs.statistic, theirs.pvalue))


@pytest.mark.parametrize(
    ("differences", "groups", "strata"),
    [
        ([0.0] * 6, [0, 0, 1, 1, 2, 2], None),
        ([0.1] * 6, [0, 0, 1, 1, 2, 2], None),
        ([1.0, 0.0, 0.5], [0, 0, 0], None),
        ([0.5, 0.2], [0, 1], [0, 1]),
        # Constant differences per language, which cancel out except for rounding.
        ([0.1, 0.1, 0.1, -0.1, -0.1, -0.1], [0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1]),
        ([0.3, 0.1, 0.2, 0.2, 0.4], [0, 1, 2, 3, 4], [0, 0, 0, 0, 1]),
    ],
)
def test_without_spread_a_t_test_says_nothing(differences, groups, strata):
    by = None if strata is None else np.array(strata)
    t, p = clustered_t_test(np.array([differences]), np.array(groups), by)
    assert np.isnan([*t, *p]).all()


def test_a_t_test_that_says_nothing_is_null_and_one_of_the_family():
    family_result = compare_family(scores(), FAMILY, np.arange(80) // 2)
    by_name = {c.system: c for c in family_result.comparisons}
    for name in ("better", "worse"):
        assert (by_name[name].t, by_name[name].t_p, by_name[name].t_p_holm) == (None, None, None)
    p_values = [1.0 if c.t_p is None else c.t_p for c in family_result.comparisons]
    assert by_name["near"].t_p_holm == pytest.approx(holm(p_values)[1])
    assert json.loads(json.dumps(asdict(family_result), allow_nan=False))
    assert "nan" not in render([family_table(family_result)])


def test_the_t_test_is_statsmodels_clustered_one():
    import statsmodels.api as sm

    groups = np.sort(RNG.integers(0, 12, 60))
    d = SYSTEMS[0] - SYSTEMS[1] + np.repeat(RNG.random(12), 5)
    fitted = sm.OLS(d, np.ones(60)).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    t, p = clustered_t_test(d[None], groups)
    assert (t[0], p[0]) == pytest.approx((fitted.tvalues[0], fitted.pvalues[0]))


def scores() -> dict[str, np.ndarray]:
    base = np.round(np.random.default_rng(0).random(80), 1) / 2
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
    family_result = compare_family(scores(), FAMILY, np.arange(80) // 2)
    by_name = {c.system: c for c in family_result.comparisons}
    assert {n: c.verdict for n, c in by_name.items()} == {
        "better": "better",
        "near": TOO_FEW,
        "worse": "worse",
        "other": WITHIN_NOISE,
    }
    better, near = by_name["better"], by_name["near"]
    assert better.difference == pytest.approx(0.3) and better.baseline_mean < better.mean
    assert (better.wins, better.ties, better.losses) == (80, 0, 0)
    assert (near.wins, near.ties, near.losses) == (2, 78, 0)
    assert (by_name["worse"].wins, by_name["worse"].losses) == (0, 80)
    assert better.low <= 0.3 + 1e-9 and better.high >= 0.3 - 1e-9
    assert (
        family_result.claims,
        family_result.groups,
        family_result.average,
        family_result.repeats,
    ) == (80, 40, "micro", 10_000)
    assert [c.p_holm for c in family_result.comparisons] == pytest.approx(
        holm([c.p for c in family_result.comparisons])
    )
    assert by_name["better"].p_holm == pytest.approx(4 * by_name["better"].p)


def test_as_many_draws_are_made_as_are_asked_for():
    groups = np.arange(80) // 2
    family_result = compare_family(scores(), FAMILY, groups, repeats=50)
    assert (family_result.draws, family_result.repeats) == (50, enough_repeats(4))
    differences = np.stack([scores()[name] - scores()["base"] for name, _ in FAMILY.pairs])
    expected = bootstrap_intervals(differences, groups, repeats=50)
    assert [(c.low, c.high) for c in family_result.comparisons] == [tuple(row) for row in expected]


# --- ANOVA ---------------------------------------------------------------------------------


def test_anova_is_statsmodels():
    import pandas as pd
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    values = {f"s{i}": RNG.random(12) + 0.2 * i for i in range(4)}
    rows = [(s, c, v) for s, row in values.items() for c, v in enumerate(row)]
    frame = pd.DataFrame(rows, columns=["system", "claim", "score"])
    theirs = anova_lm(ols("score ~ C(system) + C(claim)", frame).fit())
    ours = two_way_anova(values)
    for effect, name in ((ours.systems, "C(system)"), (ours.claims, "C(claim)")):
        row = theirs.loc[name]
        assert (effect.squares, effect.freedom, effect.f, effect.p) == pytest.approx(
            (row["sum_sq"], row["df"], row["F"], row["PR(>F)"])
        )
    assert ours.residual_squares == pytest.approx(theirs.loc["Residual", "sum_sq"])
    assert ours.residual_freedom == theirs.loc["Residual", "df"] == 33


def test_tukey_is_of_the_residual_of_both_ways():
    values = {f"s{i}": np.linspace(0, 5, 12) + RNG.random(12) + 0.25 * i for i in range(4)}
    anova = two_way_anova(values)
    assert len(anova.pairs) == 6
    unit = np.sqrt(anova.residual_squares / anova.residual_freedom / 12)
    for pair in anova.pairs:
        difference = values[pair.second].mean() - values[pair.first].mean()
        assert pair.difference == pytest.approx(difference)
        p = stats.studentized_range.sf(abs(difference) / unit, 4, 33)
        assert pair.p == pytest.approx(np.clip(p, 0.001, 0.9), abs=0.02)
        assert pair.differs is bool(p < 0.05) is bool(pair.low > 0 or pair.high < 0)
        assert (pair.low + pair.high) / 2 == pytest.approx(difference)
    assert {pair.differs for pair in anova.pairs} == {True, False}
    # Claims differ far more than systems: one-way Tukey would see nothing.
    assert not stats.tukey_hsd(*values.values()).pvalue.min() < 0.05


def test_anova_needs_two_of_each_and_survives_no_spread():
    for groups in ({"a": np.ones(3)}, {"a": np.ones(1), "b": np.ones(1)}):
        with refused(ValueError, f"{len(groups)} system", f"{len(groups['a'])} claim"):
            two_way_anova(groups)
    assert not two_way_anova({"a": np.ones(3), "b": np.ones(3)}).pairs[0].differs


def test_an_anova_without_a_residual_says_nothing():
    base = np.round(np.random.default_rng(0).random(12), 1)
    anova = two_way_anova({"base": base, "same": base, "better": base + 0.1})
    assert (anova.systems.f, anova.systems.p, anova.claims.f, anova.claims.p) == (None,) * 4
    assert [pair.difference for pair in anova.pairs] == pytest.approx([0.0, 0.1, 0.1])
    for pair in anova.pairs:
        assert (pair.low, pair.high, pair.p, pair.differs) == (None,) * 4
    assert "nan" not in render(anova_parts(anova))
