"""Systems against their baselines: intervals, paired tests, Holm within a declared family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from claim2source.core.report import Comparison, FamilyResult
from claim2source.core.tables import COST_COLUMNS, Cell, cost_cells
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

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(system, baseline) of every test."""
        return tuple((system, self.baseline) for system in self.systems)


@dataclass(frozen=True)
class Pairs:
    """Tests that are corrected together where each system has a baseline of its own.

    `pairs` are (system, baseline), declared beforehand. Raises ValueError as `Family` does.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.pairs or len(set(self.pairs)) != len(self.pairs):
            raise ValueError(f"family {self.name}: needs one or more pairs, each once")
        if same := [system for system, baseline in self.pairs if system == baseline]:
            raise ValueError(f"family {self.name}: {same[0]} is compared with itself")


INSIDE = "inside the noise"
TOO_FEW = "too few papers differ"


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values, in the order given."""
    from statsmodels.stats.multitest import multipletests

    return np.asarray(multipletests(p_values, method="holm")[1])


def compare(
    scores: Mapping[str, np.ndarray],
    family: Family | Pairs,
    groups: np.ndarray,
    strata: np.ndarray | None = None,
    *,
    alpha: float = 0.05,
    repeats: int = 10_000,
    seed: int = 0,
) -> FamilyResult:
    """Test every system of a family against its baseline; `scores` are [claims] by system.

    `groups` are the claims' gold papers (`gold_groups`); with `strata` (languages) the means
    are macro averages. `repeats` are permutations, raised where they could not show a
    difference after Holm (`enough_repeats`), and draws of the bootstrap, as given. Raises
    ValueError on a system without scores.
    """
    pairs, draws = family.pairs, repeats
    named = dict.fromkeys(name for pair in pairs for name in reversed(pair))
    if absent := [name for name in named if name not in scores]:
        raise ValueError(f"family {family.name}: no scores of {', '.join(absent)}")
    values = np.stack([np.asarray(scores[system], np.float64) for system, _ in pairs])
    bases = np.stack([np.asarray(scores[baseline], np.float64) for _, baseline in pairs])
    differences = values - bases
    repeats = max(repeats, enough_repeats(len(pairs), alpha))
    tests = paired_randomisations(differences, groups, strata, repeats, seed)
    intervals = bootstrap_intervals(differences, groups, strata, draws, seed, 1 - alpha)
    t, t_p = clustered_t_test(differences, groups, strata)
    adjusted, t_adjusted = holm(tests.p_values), holm(t_p)
    weights = claim_weights(strata, values.shape[1])
    comparisons = []
    for i, (system, baseline) in enumerate(pairs):
        # A difference of so few papers that no flips of them are rare enough is unknown.
        reachable = tests.least_p[i] * len(pairs) <= alpha
        comparisons.append(
            Comparison(
                system=system,
                baseline=baseline,
                mean=float(values[i] @ weights),
                baseline_mean=float(bases[i] @ weights),
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
        draws=draws,
        least_p=float(tests.least_p.min()),
        claims=values.shape[1],
        groups=tests.groups,
        comparisons=tuple(comparisons),
    )


def _verdict(significant: bool, reachable: bool, difference: float) -> str:
    if significant:
        return "better" if difference > 0 else "worse"
    return INSIDE if reachable else TOO_FEW


_COLUMNS = (
    "mean",
    "difference",
    "low",
    "high",
    "p",
    "p (Holm)",
    "t-test p",
    "win/tie/loss",
    "verdict",
)
Costs = Mapping[str, Mapping[str, Any]]


def family_table(
    result: FamilyResult, costs: Costs | None = None
) -> tuple[list[str], list[list[Cell]]]:
    """Columns and rows of a family: a row a baseline, then a row a comparison.

    `costs` are reports' costs by system; where any is known, columns for it close the table.
    """
    baselines = {c.baseline: c.baseline_mean for c in result.comparisons}
    # One baseline has its row; several are named beside what is compared with them.
    against = len(baselines) > 1
    shown = {name: costs[name] for name in costs or () if costs and costs[name]}
    rows: list[list[Cell]] = []
    for name, mean in baselines.items():
        cells: list[Cell] = [mean, *[None] * 6, "", "baseline"]
        rows.append([name, *([""] if against else []), *cells])
    for c in result.comparisons:
        cells = [
            c.mean,
            c.difference,
            c.low,
            c.high,
            c.p,
            c.p_holm,
            c.t_p,
            f"{c.wins}/{c.ties}/{c.losses}",
            c.verdict,
        ]
        rows.append([c.system, *([c.baseline] if against else []), *cells])
    columns = ["system", *(["against"] if against else []), *_COLUMNS]
    if any(str(row[0]) in shown for row in rows):
        columns += COST_COLUMNS
        rows = [[*row, *cost_cells(shown.get(str(row[0])))] for row in rows]
    return columns, rows


def family_note(result: FamilyResult) -> str:
    """How a family's table was made."""
    return (
        f"Differences with {100 * (1 - result.alpha):g} % bootstrap intervals of {result.draws} "
        f"draws; paired randomisation tests of {result.repeats} permutations, both by gold paper; "
        f"Holm over the {len(result.comparisons)} tests of this family at {result.alpha:g}; the "
        f"least p to be had is {result.least_p:.2g}. The t-test is clustered by gold paper."
    )


def family_text(
    result: FamilyResult, metric: str, table: Callable[..., str], costs: Costs | None = None
) -> str:
    """A family's comparisons, drawn by `table` (`plain_table` or `markdown_table`)."""
    baselines = {c.baseline for c in result.comparisons}
    against = f" against {next(iter(baselines))}" if len(baselines) == 1 else ""
    return "\n\n".join(
        [
            f"{result.family}: {metric} ({result.average}){against}; "
            f"{result.claims} claims of {result.groups} papers",
            table(*family_table(result, costs)),
            family_note(result),
        ]
    )
