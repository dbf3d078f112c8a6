"""Test systems against baselines: intervals, paired tests, Holm within a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from claim2source.core.records import Dataset
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Comparison,
    FamilyResult,
    Intervals,
)
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.data.grouping import gold_groups
from claim2source.metrics.metrics import Scores, language_masks, language_strata
from claim2source.metrics.significance import (
    bootstrap_intervals,
    claim_weights,
    clustered_t_test,
    enough_repeats,
    paired_randomisations,
)

WITHIN_NOISE = "inside the noise"
TOO_FEW = "too few papers differ"
_TOLERANCE = 1e-12
_COLUMNS = "mean,difference,low,high,p,p (Holm),t-test p,win/tie/loss,verdict".split(",")


@dataclass(frozen=True)
class Family:
    """Tests that are corrected together, as pairs (system, baseline).

    Raises ValueError if there is no pair, a repeated pair, or a system against itself.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.pairs or len(set(self.pairs)) != len(self.pairs):
            raise ValueError(f"family {self.name}: needs one or more distinct pairs")
        repeated = [system for system, baseline in self.pairs if system == baseline]
        if repeated:
            raise ValueError(f"family {self.name}: {repeated[0]} is compared with itself")

    @classmethod
    def against(cls, name: str, baseline: str, systems: Iterable[str]) -> Family:
        return cls(name, tuple((system, baseline) for system in systems))


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Adjust p-values by Holm's method, in their original order."""
    # statsmodels' function collects garbage at every call, which is slower than all the tests.
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values)
    adjusted = np.empty(len(values))
    steps = np.arange(len(values), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps * values[order]), 1)
    return adjusted


def score_intervals(
    scores: Scores,
    dataset: Dataset,
    metrics: Sequence[str] = (MAIN_METRIC,),
    repeats: int = 10_000,
    seed: int = 0,
) -> Intervals:
    """Compute 95 % bootstrap intervals of metrics by language, and of their macro averages.

    Gold papers are drawn, not claims; all systems of a data set have the same draws.
    """
    claims = scores.claim_ids
    values = np.stack([scores[metric] for metric in metrics])
    groups = gold_groups(dataset.qrels, claims)
    strata = language_strata(dataset.claims, claims)
    masks = language_masks(dataset.claims, claims)
    bounds = {}
    for lang, mask in masks.items():
        bounds[lang] = bootstrap_intervals(values[:, mask], groups[mask], None, repeats, seed)
    bounds[MACRO] = bootstrap_intervals(values, groups, strata, repeats, seed)
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    for i, metric in enumerate(metrics):
        by_language = {}
        for lang, limit in bounds.items():
            by_language[lang] = float(limit[i, 0]), float(limit[i, 1])
        intervals[metric] = by_language
    papers = int(groups.max()) + 1
    return Intervals(intervals, repeats, seed, papers)


def compare_families(
    scores: Mapping[str, np.ndarray],
    families: Sequence[Family],
    dataset: Dataset,
    claims: Sequence[str],
    *,
    micro: bool = False,
    alpha: float = 0.05,
    repeats: int = 10_000,
    seed: int = 0,
) -> list[FamilyResult]:
    """Test every family on the macro average and in each language; with `micro`, over all claims.

    `scores` are [claims] by system. Each language is a separate family for Holm's correction. A
    single language is tested once.
    """
    groups = gold_groups(dataset.qrels, claims)
    masks = language_masks(dataset.claims, claims)
    strata = None
    if len(masks) > 1:
        strata = language_strata(dataset.claims, claims)
    settings: Any = {"alpha": alpha, "repeats": repeats, "seed": seed}
    results = []
    averages = [strata]
    if micro and strata is not None:
        averages.append(None)
    for family in families:
        for average in averages:
            results.append(compare_family(scores, family, groups, average, **settings))
        if strata is None:
            continue
        for language, mask in masks.items():
            own = replace(family, name=f"{family.name}, {language} claims (a family of its own)")
            values = {name: values[mask] for name, values in scores.items()}
            result = compare_family(values, own, groups[mask], **settings)
            results.append(replace(result, average=language))
    return results


def compare_family(
    scores: Mapping[str, np.ndarray],
    family: Family,
    groups: np.ndarray,
    strata: np.ndarray | None = None,
    *,
    alpha: float = 0.05,
    repeats: int = 10_000,
    seed: int = 0,
) -> FamilyResult:
    """Test every system of a family against its baseline; `scores` are [claims] by system.

    `groups` are the claims' gold papers (`gold_groups`); with `strata` (languages) the means are
    macro averages. `repeats` is the number of bootstrap draws and of permutations; the latter is
    raised if no difference could be significant after Holm (`enough_repeats`). Raises ValueError
    for a system without scores.
    """
    pairs = family.pairs
    absent: list[str] = []
    for system, baseline in pairs:
        for name in (baseline, system):
            if name not in scores and name not in absent:
                absent.append(name)
    if absent:
        raise ValueError(f"family {family.name}: no scores of {', '.join(absent)}")
    systems, baselines = zip(*pairs, strict=True)
    values = np.stack([scores[name] for name in systems]).astype(np.float64)
    bases = np.stack([scores[name] for name in baselines]).astype(np.float64)
    differences = values - bases
    permutations = max(repeats, enough_repeats(len(pairs), alpha))
    tests = paired_randomisations(differences, groups, strata, permutations, seed)
    intervals = bootstrap_intervals(differences, groups, strata, repeats, seed, 1 - alpha)
    t, t_p = clustered_t_test(differences, groups, strata)
    adjusted = holm(tests.p_values)
    # A t-test without a result still belongs to the family.
    t_known = np.nan_to_num(t_p, nan=1.0)
    t_adjusted = np.where(np.isnan(t_p), np.nan, holm(t_known))
    weights = claim_weights(strata, values.shape[1])
    # If too few papers differ, no permutation is rare enough, and the verdict is open.
    reachable = tests.least_p * len(pairs) <= alpha
    wins = (differences > _TOLERANCE).sum(axis=1)
    losses = (differences < -_TOLERANCE).sum(axis=1)
    ties = values.shape[1] - wins - losses
    comparisons: list[Comparison] = []
    for i, (system, baseline) in enumerate(pairs):
        difference = float(tests.differences[i])
        comparison = Comparison(
            system=system,
            baseline=baseline,
            mean=float(values[i] @ weights),
            baseline_mean=float(bases[i] @ weights),
            difference=difference,
            low=float(intervals[i, 0]),
            high=float(intervals[i, 1]),
            p=float(tests.p_values[i]),
            p_holm=float(adjusted[i]),
            t=_known(t[i]),
            t_p=_known(t_p[i]),
            t_p_holm=_known(t_adjusted[i]),
            wins=int(wins[i]),
            ties=int(ties[i]),
            losses=int(losses[i]),
            verdict=_verdict(adjusted[i] <= alpha, reachable[i], difference),
        )
        comparisons.append(comparison)
    return FamilyResult(
        family=family.name,
        average="micro" if strata is None else MACRO,
        alpha=alpha,
        repeats=permutations,
        draws=repeats,
        least_p=float(tests.least_p.min()),
        claims=values.shape[1],
        groups=tests.groups,
        comparisons=tuple(comparisons),
        seed=seed,
    )


def _known(value: float) -> float | None:
    if np.isnan(value):
        return None
    return float(value)


def _verdict(significant: bool, reachable: bool, difference: float) -> str:
    if significant:
        return "better" if difference > 0 else "worse"
    return WITHIN_NOISE if reachable else TOO_FEW


def family_table(result: FamilyResult) -> TextTable:
    baselines = {c.baseline: c.baseline_mean for c in result.comparisons}
    names_baseline = len(baselines) > 1
    header = ["system", *_COLUMNS]
    rows: list[list[Cell]] = []
    for name, mean in baselines.items():
        unknown: list[Cell] = [None] * 6
        rows.append([name, mean, *unknown, "", "baseline"])
    for c in result.comparisons:
        numbers = c.mean, c.difference, c.low, c.high, c.p, c.p_holm, c.t_p
        wins = f"{c.wins}/{c.ties}/{c.losses}"
        rows.append([c.system, *numbers, wins, c.verdict])
    if names_baseline:
        header.insert(1, "against")
        against = [""] * len(baselines) + [c.baseline for c in result.comparisons]
        for row, baseline in zip(rows, against, strict=True):
            row.insert(1, baseline)
    return TextTable(header, rows)


def family_note(result: FamilyResult) -> str:
    """Describe how the numbers in a family's table were computed."""
    tests = len(result.comparisons)
    return (
        f"Differences with {100 * (1 - result.alpha):g} % bootstrap intervals of {result.draws} "
        f"draws; paired randomisation tests of {result.repeats} permutations, both by gold paper; "
        f"Holm over the {tests} test{'s' * (tests > 1)} of this family at {result.alpha:g}; the "
        f"smallest possible p is {result.least_p:.2g}. The t-test is clustered by gold paper."
    )


def tests_parts(results: Iterable[FamilyResult], metric: str) -> list[Part]:
    """Render families of tests: a heading, a table and a note for each."""
    parts: list[Part] = []
    for result in results:
        baselines = {c.baseline for c in result.comparisons}
        against = f" against {next(iter(baselines))}" if len(baselines) == 1 else ""
        parts += [
            f"{result.family}: {metric} ({result.average}){against}; "
            f"{result.claims} claims of {result.groups} papers",
            family_table(result),
            family_note(result),
        ]
    return parts
