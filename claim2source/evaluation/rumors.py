"""Score evidence and verdicts as CheckThat! 2024 Task 5 does, and test as the rumour paper does.

`DEFINITIONS` has the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from claim2source.core.report import MACRO, Intervals
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.data.rumors import MAX_TWEETS, UNVERIFIABLE, Rumors, Verdicts
from claim2source.metrics.metrics import evaluate
from claim2source.metrics.significance import draw_groups
from claim2source.metrics.verdicts import MACRO_F1, weighted_macro_f1

MAP, RECALL, MAP_TASK = "map", "recall@5", "map_task"
STRICT = "strict_macro_f1"
# Measure -> what it is, and who says so.
DEFINITIONS = {
    MAP: "mean average precision of the first five tweets over the rumours that have evidence, as "
    "the organisers' scorer computes it with their qrels of verifiable rumours; the published "
    "figures are of this kind",
    RECALL: "share of a rumour's evidence among the first five tweets, mean over the same rumours; "
    "the same source",
    MAP_TASK: "the same average precision over all rumours, where one without evidence has 1 if "
    "nothing is retrieved for it and else 0: the task's page, \"no credit if they retrieve any "
    'tweets for unverifiable rumors"; the organisers\' qrels of all rumours judge a tweet "-1" '
    "relevant there",
    MACRO_F1: "mean of the F1 of the labels that occur: the organisers' scorer",
    STRICT: "the same, where a right SUPPORTS or REFUTES counts only if one of its tweets is "
    "evidence: the organisers' scorer, which takes such a label for a false positive, and for no "
    "miss",
}
# At the top of a report.
HEADLINE = (MAP, RECALL, MAP_TASK, MACRO_F1, STRICT)
ALPHA = 0.05  # of Tukey's HSD
_ROUNDING = 1e-10  # relative to the largest score
# The values of a measure, [draws], when every rumour counts so many times, [draws, rumours].
_Measure = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class RumorScores:
    """Scores of evidence and verdicts; those of verdicts are None if there are none.

    `average_precision` is by rumour, of those with evidence. `intervals` (95 %) are of samples of
    rumours.
    """

    values: Mapping[str, float | None]
    average_precision: Mapping[str, float]
    intervals: Intervals | None = None

    @property
    def defined(self) -> dict[str, float]:
        return {name: value for name, value in self.values.items() if value is not None}


def score_rumors(
    rumors: Rumors,
    run: Run,
    verdicts: Verdicts,
    repeats: int = 0,
    seed: int = 0,
) -> RumorScores:
    """Score the first five tweets of every rumour, and the verdicts, if there are any.

    `repeats` is the number of draws of the intervals, 0 for none. Raises ValueError if the
    rumours have no labels.
    """
    if not rumors.is_labelled:
        raise ValueError("no labels to score by")
    top = run.top(MAX_TWEETS)
    by_rumor = _ranking_scores(rumors, top)
    measures: dict[str, _Measure] = {}
    for name, values in by_rumor.items():
        measures[name] = partial(_weighted_mean, values)
    if any(label is not None for label in verdicts.values()):
        measures |= _verdict_measures(rumors, top, verdicts)
    scores = _point_scores(measures, len(rumors.rumors))
    precision: dict[str, float] = {}
    for rumor, value in zip(rumors.rumors, by_rumor[MAP].tolist(), strict=True):
        if not np.isnan(value):
            precision[rumor.id] = value
    intervals = _intervals(measures, rumors, repeats, seed) if repeats else None
    return RumorScores(scores, precision, intervals)


def _ranking_scores(rumors: Rumors, top: Run) -> dict[str, np.ndarray]:
    """Score the tweets of every rumour: measure -> [rumours]; NaN if it is not in the mean."""
    ids = [rumor.id for rumor in rumors.rumors]
    qrels = rumors.dataset.qrels
    precision, recall = np.full(len(ids), np.nan), np.full(len(ids), np.nan)
    judged = [claim for claim in ids if qrels.golds(claim)]
    if judged:
        scores = evaluate(top, qrels, [MAP, RECALL], judged)
        at = [ids.index(claim) for claim in judged]
        precision[at], recall[at] = scores[MAP], scores[RECALL]
    nothing = np.array([float(not top.sources(claim, 1)) for claim in ids])
    task = np.where(np.isnan(precision), nothing, precision)
    return {MAP: precision, RECALL: recall, MAP_TASK: task}


def _verdict_measures(rumors: Rumors, top: Run, verdicts: Verdicts) -> dict[str, _Measure]:
    """Return the measures of verdicts: macro F1, and the one that asks for evidence too."""
    actual, labels, evidenced = [], [], []
    for rumor in rumors.rumors:
        actual.append(str(rumor.label))
        labels.append(str(verdicts.get(rumor.id)))
        golds = set(rumors.dataset.qrels.golds(rumor.id))
        has_evidence = not golds.isdisjoint(top.sources(rumor.id))
        evidenced.append(rumor.label == UNVERIFIABLE or has_evidence)
    every = [True] * len(actual)
    return {
        MACRO_F1: partial(weighted_macro_f1, actual, labels, every),
        STRICT: partial(weighted_macro_f1, actual, labels, evidenced),
    }


def _point_scores(measures: Mapping[str, _Measure], rumors: int) -> dict[str, float | None]:
    """Score every rumour once; a measure that is not defined is None."""
    once = np.ones((1, rumors))
    scores: dict[str, float | None] = {}
    for name in HEADLINE:
        score = float(measures[name](once)[0]) if name in measures else float("nan")
        scores[name] = None if np.isnan(score) else score
    return scores


def _weighted_mean(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Average the values [rumours] that are not NaN, each so many `times` [draws, rumours]."""
    is_number = ~np.isnan(values)
    counts = times @ is_number
    sums = times @ np.where(is_number, values, 0.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _intervals(
    measures: Mapping[str, _Measure], rumors: Rumors, repeats: int, seed: int
) -> Intervals:
    """Draw rumours with replacement; a draw without a value of a measure is left out of it."""
    count = len(rumors.rumors)
    draws = list(draw_groups(count, repeats, seed, count))
    bounds = {}
    for name, measure in measures.items():
        values = np.concatenate([measure(times) for times in draws])
        if not np.isnan(values).all():
            low, high = np.nanquantile(values, [0.025, 0.975]).tolist()
            bounds[name] = dict.fromkeys((rumors.language, MACRO), (low, high))
    return Intervals(bounds, repeats, seed, count)


@dataclass(frozen=True)
class Effect:
    """One line of an ANOVA table; `f` and `p` are None if nothing is left as residual."""

    squares: float
    freedom: int
    f: float | None
    p: float | None


@dataclass(frozen=True)
class Pair:
    """Tukey's HSD of two systems: mean(second) - mean(first), its interval and adjusted p.

    p is read from a table that ends at 0.001 and 0.9. Interval, p and `differs` are None if nothing
    is left as residual.
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
    pairs: tuple[Pair, ...]


def two_way_anova(scores: Mapping[str, np.ndarray]) -> Anova:
    """Compute the ANOVA of scores [claims] by system, every system having scored every claim.

    The design is balanced, so the sums of squares are those of row and column means, as
    statsmodels' `anova_lm` gives for `score ~ C(system) + C(claim)`, at any number of claims.
    Claims are taken as independent: if several share a gold paper, read the paired tests
    by paper instead. Without a residual (systems differ by one amount in every claim) there is
    nothing to test by. Raises ValueError on fewer than two systems or two claims.
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
    # Rounding leaves a residual of the last digits.
    has_residual = bool(np.abs(left).max() > _ROUNDING * np.abs(values).max())

    def effect(between: np.ndarray, size: int) -> Effect:
        sum_of_squares = float(size * ((between - grand) ** 2).sum())
        degrees = len(between) - 1
        if not has_residual:
            return Effect(sum_of_squares, degrees, None, None)
        f = sum_of_squares / degrees / (squares / freedom)
        return Effect(sum_of_squares, degrees, f, float(stats.f.sf(f, degrees, freedom)))

    error = squares / freedom if has_residual else None
    pairs = _tukey(tuple(scores), means, error, claims, freedom)
    of_systems, of_claims = effect(means, claims), effect(topics, systems)
    return Anova(of_systems, of_claims, squares, freedom, tuple(pairs))


def _tukey(
    names: tuple[str, ...], means: np.ndarray, error: float | None, claims: int, freedom: int
) -> list[Pair]:
    """Compare every two systems; `error` is the residual's mean square, None without one."""
    from statsmodels.stats.libqsturng import psturng, qsturng

    pairs = list(combinations(range(len(names)), 2))
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    differences = means[second] - means[first]
    if error is None:
        return [
            Pair(names[i], names[j], difference, None, None, None, None)
            for (i, j), difference in zip(pairs, differences.tolist(), strict=True)
        ]
    unit = float(np.sqrt(error / claims))
    reach = float(qsturng(1 - ALPHA, len(names), freedom)) * unit
    q = np.abs(differences) / unit
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
    words = {True: "yes", False: "no", None: None}
    pairs = [
        [f"{p.second} - {p.first}", p.difference, p.low, p.high, p.p, words[p.differs]]
        for p in anova.pairs
    ]
    return [
        "Two-way ANOVA over systems and claims (claims taken as independent):",
        TextTable(["factor", "squares", "df", "F", "p"], rows),
        f"Tukey's HSD at {ALPHA:g}:",
        TextTable(["pair", "difference", "low", "high", "p", "differs"], pairs),
    ]
