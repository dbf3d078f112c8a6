"""Systems against their baselines: intervals, paired tests, Holm within a declared family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from claim2source.evaluation.significance import (
    bootstrap_intervals,
    claim_weights,
    clustered_t_test,
    enough_repeats,
    paired_randomisations,
)

_SAME = 1e-12


@dataclass(frozen=True)
class Family:
    """Tests that are corrected together: each system against one baseline, declared beforehand.

    Raises ValueError when there is nothing to test, or a system appears twice or against itself.
    """

    name: str
    baseline: str
    systems: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.systems or len(set(self.systems)) != len(self.systems):
            raise ValueError(f"family {self.name}: needs one or more systems, each once")
        if self.baseline in self.systems:
            raise ValueError(f"family {self.name}: {self.baseline} is compared with itself")


@dataclass(frozen=True)
class Comparison:
    """One system against its baseline on one metric.

    `low` and `high` bound the difference (95 %, by gold paper); `p` is the paired randomisation
    test's, `p_holm` the same after Holm within the family, `t_p` the cluster-robust t-test's
    and `t_p_holm` that after Holm. `wins`, `ties` and `losses` count claims.
    """

    system: str
    baseline: str
    mean: float
    baseline_mean: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    t: float
    t_p: float
    t_p_holm: float
    wins: int
    ties: int
    losses: int
    verdict: str


@dataclass(frozen=True)
class FamilyResult:
    """A family's comparisons and how they were made: `repeats` is what was really used."""

    family: str
    average: str
    alpha: float
    repeats: int
    least_p: float
    claims: int
    groups: int
    comparisons: tuple[Comparison, ...]


INSIDE = "inside the noise"
TOO_FEW = "too few papers differ"


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values, in the order given."""
    from statsmodels.stats.multitest import multipletests

    return np.asarray(multipletests(p_values, method="holm")[1])


def compare(
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

    `groups` are the claims' gold papers (`gold_groups`); with `strata` (languages) the means
    are macro averages. `repeats` is raised where it could not show a difference after Holm
    (`enough_repeats`). Raises ValueError on a system without scores.
    """
    absent = [s for s in (family.baseline, *family.systems) if s not in scores]
    if absent:
        raise ValueError(f"family {family.name}: no scores of {', '.join(absent)}")
    values = np.stack([np.asarray(scores[s], np.float64) for s in family.systems])
    base = np.asarray(scores[family.baseline], np.float64)
    differences = values - base
    repeats = max(repeats, enough_repeats(len(family.systems), alpha))
    tests = paired_randomisations(differences, groups, strata, repeats, seed)
    intervals = bootstrap_intervals(differences, groups, strata, seed=seed, level=1 - alpha)
    t, t_p = clustered_t_test(differences, groups, strata)
    adjusted, t_adjusted = holm(tests.p_values), holm(t_p)
    weights = claim_weights(strata, len(base))
    comparisons = []
    for i, system in enumerate(family.systems):
        # A difference of so few papers that no flips of them are rare enough is unknown.
        reachable = tests.least_p[i] * len(family.systems) <= alpha
        comparisons.append(
            Comparison(
                system=system,
                baseline=family.baseline,
                mean=float(values[i] @ weights),
                baseline_mean=float(base @ weights),
                difference=float(tests.differences[i]),
                low=float(intervals[i, 0]),
                high=float(intervals[i, 1]),
                p=float(tests.p_values[i]),
                p_holm=float(adjusted[i]),
                t=float(t[i]),
                t_p=float(t_p[i]),
                t_p_holm=float(t_adjusted[i]),
                wins=int((differences[i] > _SAME).sum()),
                ties=int((np.abs(differences[i]) <= _SAME).sum()),
                losses=int((differences[i] < -_SAME).sum()),
                verdict=_verdict(adjusted[i] <= alpha, reachable, tests.differences[i]),
            )
        )
    return FamilyResult(
        family=family.name,
        average="micro" if strata is None else "macro",
        alpha=alpha,
        repeats=repeats,
        least_p=float(tests.least_p.min()),
        claims=len(base),
        groups=tests.groups,
        comparisons=tuple(comparisons),
    )


def _verdict(significant: bool, reachable: bool, difference: float) -> str:
    if significant:
        return "better" if difference > 0 else "worse"
    return INSIDE if reachable else TOO_FEW


COLUMNS = (
    "system", "mean", "difference", "low", "high", "p", "p (Holm)", "t-test p", "win/tie/loss",
    "verdict",
)  # fmt: skip


def family_text(result: FamilyResult, metric: str, table: Callable[..., str]) -> str:
    """A family's comparisons, drawn by `table` (`plain_table` or `markdown_table`)."""
    first = result.comparisons[0]
    rows: list[list[Any]] = [[first.baseline, first.baseline_mean, *[None] * 6, "", "baseline"]]
    rows += [
        [c.system, c.mean, c.difference, c.low, c.high, c.p, c.p_holm, c.t_p,
         f"{c.wins}/{c.ties}/{c.losses}", c.verdict]
        for c in result.comparisons
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{result.family}: {metric} ({result.average}) against {first.baseline}; "
            f"{result.claims} claims of {result.groups} papers",
            table(COLUMNS, rows),
            f"Differences with {100 * (1 - result.alpha):g} % bootstrap intervals; paired "
            f"randomisation tests of {result.repeats} permutations, both by gold paper; Holm "
            f"over the {len(result.comparisons)} tests of this family at {result.alpha:g}; the "
            f"least p to be had is {result.least_p:.2g}. The t-test is clustered by gold paper.",
        ]
    )
