"""Compute a two-way ANOVA of systems and claims, with Tukey's HSD, as the rumour paper does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from claim2source.core.tables import Cell, Part, TextTable

ALPHA = 0.05  # of Tukey's HSD
_ROUNDING = 1e-10  # relative to the largest score


@dataclass(frozen=True)
class Effect:
    """One line of an ANOVA table; `f` and `p` are None without a residual."""

    squares: float
    freedom: int
    f: float | None
    p: float | None


@dataclass(frozen=True)
class TukeyPair:
    """Tukey's HSD of two systems: mean(second) - mean(first), its interval and adjusted p.

    p comes from a table that ends at 0.001 and 0.9. Interval, p and `differs` are None without a
    residual.
    """

    first: str
    second: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    differs: bool | None


@dataclass(frozen=True)
class Anova:
    """ANOVA of systems and claims without interaction; `pairs` is Tukey's HSD."""

    systems: Effect
    claims: Effect
    residual_squares: float
    residual_freedom: int
    pairs: tuple[TukeyPair, ...]


def two_way_anova(scores: Mapping[str, np.ndarray]) -> Anova:
    """Compute the ANOVA of scores [claims] by system; every system must score every claim.

    The design is balanced, so the sums of squares are those of row and column means, as in
    statsmodels' `anova_lm` for `score ~ C(system) + C(claim)`, for any number of claims. Claims
    are treated as independent: if several share a gold paper, use the paired tests by paper
    instead. Without a residual (systems differ by a constant in every claim) there is no test.
    Raises ValueError for fewer than two systems or two claims.
    """
    from scipy import stats

    values = np.stack([np.asarray(row, np.float64) for row in scores.values()])
    systems, claims = values.shape
    if systems < 2 or claims < 2:
        raise ValueError(f"{systems} systems and {claims} claims: ANOVA needs two of each")
    grand = values.mean()
    means = values.mean(axis=1)
    topics = values.mean(axis=0)
    left = values - means[:, None] - topics[None, :] + grand
    freedom = (systems - 1) * (claims - 1)
    squares = float((left**2).sum())
    # Rounding leaves a tiny residual.
    has_residual = bool(np.abs(left).max() > _ROUNDING * np.abs(values).max())

    def effect(between: np.ndarray, size: int) -> Effect:
        sum_of_squares = float(size * ((between - grand) ** 2).sum())
        degrees = len(between) - 1
        if not has_residual:
            return Effect(sum_of_squares, degrees, None, None)
        f = sum_of_squares / degrees / (squares / freedom)
        p = float(stats.f.sf(f, degrees, freedom))
        return Effect(sum_of_squares, degrees, f, p)

    error = squares / freedom if has_residual else None
    pairs = _tukey(tuple(scores), means, error, claims, freedom)
    of_systems, of_claims = effect(means, claims), effect(topics, systems)
    return Anova(of_systems, of_claims, squares, freedom, tuple(pairs))


def _tukey(
    names: tuple[str, ...], means: np.ndarray, error: float | None, claims: int, freedom: int
) -> list[TukeyPair]:
    """Compare all pairs of systems; `error` is the residual's mean square, None without one."""
    from statsmodels.stats.libqsturng import psturng, qsturng

    pairs = list(combinations(range(len(names)), 2))
    first, second = np.array(pairs).T
    differences = means[second] - means[first]
    found: list[TukeyPair] = []
    if error is None:
        for (i, j), difference in zip(pairs, differences.tolist(), strict=True):
            found.append(TukeyPair(names[i], names[j], difference, None, None, None, None))
        return found
    unit = float(np.sqrt(error / claims))
    reach = float(qsturng(1 - ALPHA, len(names), freedom)) * unit
    q = np.abs(differences) / unit
    # The table is slow: look up each distinct hundredth of q once, and nothing beyond its end.
    distinct, index = np.unique(np.minimum(np.round(q, 2), 50.0), return_inverse=True)
    p_values = np.atleast_1d(psturng(distinct, len(names), freedom))[index]
    for (i, j), difference, p in zip(
        pairs,
        differences.tolist(),
        p_values.tolist(),
        strict=True,
    ):
        found.append(
            TukeyPair(
                first=names[i],
                second=names[j],
                difference=difference,
                low=difference - reach,
                high=difference + reach,
                p=p,
                differs=abs(difference) > reach,
            )
        )
    return found


def anova_parts(anova: Anova) -> list[Part]:
    """Tabulate an ANOVA and its pairs, with headings."""
    rows: list[list[Cell]] = []
    for name, effect in (("systems", anova.systems), ("claims", anova.claims)):
        rows.append([name, effect.squares, effect.freedom, effect.f, effect.p])
    rows.append(["residual", anova.residual_squares, anova.residual_freedom, None, None])
    words = {True: "yes", False: "no", None: None}
    pairs: list[list[Cell]] = []
    for pair in anova.pairs:
        title = f"{pair.second} - {pair.first}"
        differs = words[pair.differs]
        pairs.append([title, pair.difference, pair.low, pair.high, pair.p, differs])
    return [
        "Two-way ANOVA over systems and claims (claims treated as independent):",
        TextTable(["factor", "squares", "df", "F", "p"], rows),
        f"Tukey's HSD at {ALPHA:g}:",
        TextTable(["pair", "difference", "low", "high", "p", "differs"], pairs),
    ]
