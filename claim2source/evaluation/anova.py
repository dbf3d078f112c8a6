"""Test systems by two-way ANOVA and Tukey's HSD, as the rumour paper does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from claim2source.core.tables import Cell, Part, TextTable


@dataclass(frozen=True)
class Effect:
    """Hold one line of an ANOVA table."""

    squares: float
    freedom: int
    f: float
    p: float


@dataclass(frozen=True)
class Pair:
    """Hold Tukey's HSD of two systems: mean(second) - mean(first), its interval and adjusted p.

    p is read from a table that ends at 0.001 and 0.9.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    differs: bool


@dataclass(frozen=True)
class Anova:
    """Hold an ANOVA of systems and claims without interaction; `pairs` is Tukey's HSD."""

    systems: Effect
    claims: Effect
    residual_squares: float
    residual_freedom: int
    alpha: float
    pairs: tuple[Pair, ...]


def two_way_anova(scores: Mapping[str, np.ndarray], alpha: float = 0.05) -> Anova:
    """Compute the ANOVA of scores [claims] by system, every system having scored every claim.

    The design is balanced, so the sums of squares are those of row and column means, as
    statsmodels' `anova_lm` gives for `score ~ C(system) + C(claim)`, at any number of claims.
    Claims are taken as independent: where several share a gold paper, read the paired tests
    by paper instead. Raises ValueError on fewer than two systems or two claims.
    """
    from scipy import stats

    values = np.stack([np.asarray(row, np.float64) for row in scores.values()])
    systems, claims = values.shape
    if systems < 2 or claims < 2:
        raise ValueError(f"{systems} systems and {claims} claims: ANOVA needs two of each")
    grand = values.mean()
    means, topics = values.mean(axis=1), values.mean(axis=0)
    left = values - means[:, None] - topics[None, :] + grand
    freedom = (systems - 1) * (claims - 1)
    squares = float((left**2).sum())

    def effect(between: np.ndarray, size: int) -> Effect:
        sum_of_squares = float(size * ((between - grand) ** 2).sum())
        degrees = len(between) - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            f = float(np.divide(sum_of_squares / degrees, squares / freedom))
        return Effect(sum_of_squares, degrees, f, float(stats.f.sf(f, degrees, freedom)))

    pairs = _tukey(tuple(scores), means, squares / freedom, claims, freedom, alpha)
    return Anova(
        effect(means, claims), effect(topics, systems), squares, freedom, alpha, tuple(pairs)
    )


def _tukey(
    names: tuple[str, ...],
    means: np.ndarray,
    error: float,
    claims: int,
    freedom: int,
    alpha: float,
) -> list[Pair]:
    from statsmodels.stats.libqsturng import psturng, qsturng

    pairs = list(combinations(range(len(names)), 2))
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    differences = means[second] - means[first]
    unit = float(np.sqrt(error / claims))
    reach = float(qsturng(1 - alpha, len(names), freedom)) * unit
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(differences == 0, 0.0, np.abs(differences) / unit)
    # The table is slow to read: each distinct hundredth of q once, and nothing beyond its end.
    distinct, index = np.unique(np.minimum(np.round(q, 2), 50.0), return_inverse=True)
    p_values = np.atleast_1d(psturng(distinct, len(names), freedom))[index]
    ends = zip(pairs, differences.tolist(), p_values.tolist(), strict=True)
    return [
        Pair(names[i], names[j], d, d - reach, d + reach, p, abs(d) > reach)
        for (i, j), d, p in ends
    ]


def anova_parts(anova: Anova) -> list[Part]:
    """Tabulate an ANOVA and its pairs, with headings."""
    rows: list[list[Cell]] = [
        [name, effect.squares, effect.freedom, effect.f, effect.p]
        for name, effect in (("systems", anova.systems), ("claims", anova.claims))
    ]
    rows.append(["residual", anova.residual_squares, anova.residual_freedom, None, None])
    pairs = [
        [f"{p.second} - {p.first}", p.difference, p.low, p.high, p.p, "yes" if p.differs else "no"]
        for p in anova.pairs
    ]
    return [
        "Two-way ANOVA over systems and claims (claims taken as independent):",
        TextTable(["factor", "squares", "df", "F", "p"], rows),
        f"Tukey's HSD at {anova.alpha:g}:",
        TextTable(["pair", "difference", "low", "high", "p", "differs"], pairs),
    ]
