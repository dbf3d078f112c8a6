"""Make rows of rumours: evidence and verdicts, scored as in CheckThat! 2024 Task 5.

`DEFINITIONS` has the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from claim2source.core.report import MACRO, Intervals
from claim2source.core.run import Run
from claim2source.data.rumors import LABELS, MAX_TWEETS, UNVERIFIABLE, Label, Rumors, Verdicts
from claim2source.evaluation.evaluate import Scoring, unscored, with_whole
from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.rows import SystemRow
from claim2source.metrics.metrics import evaluate
from claim2source.metrics.significance import draw_groups
from claim2source.metrics.verdicts import MACRO_F1, weighted_macro_f1
from claim2source.systems.system import SystemResult

MAP, RECALL, MAP_TASK = "map", "recall@5", "map_task"
STRICT = "strict_macro_f1"
# Measure -> its definition and source.
DEFINITIONS = {
    MAP: "mean average precision of the first five tweets over the rumours that have evidence, as "
    "the organisers' scorer computes it with their qrels of verifiable rumours; the published "
    "figures are of this kind",
    RECALL: "share of a rumour's evidence among the first five tweets, mean over the same rumours; "
    "the same source",
    MAP_TASK: "the same average precision over all rumours; one without evidence scores 1 if "
    "nothing is retrieved for it, else 0: the task's page, \"no credit if they retrieve any "
    'tweets for unverifiable rumors"; the organisers\' qrels of all rumours judge a tweet "-1" '
    "relevant there",
    MACRO_F1: "mean of the F1 of the labels that occur: the organisers' scorer",
    STRICT: "the same, but a right SUPPORTS or REFUTES counts only if one of its tweets is "
    "evidence: the organisers' scorer, which takes such a label for a false positive, and for no "
    "miss",
}
# At the top of a report.
HEADLINE = (MAP, RECALL, MAP_TASK, MACRO_F1, STRICT)
# Map counts of rumours in draws, [draws, rumours], to the values of a measure, [draws].
_Measure = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class RumorScores:
    """Scores of evidence and verdicts; the latter are None without verdicts.

    `average_precision` has the rumours with evidence. `intervals` (95 %) are drawn by rumour.
    """

    values: Mapping[str, float | None]
    average_precision: Mapping[str, float]
    intervals: Intervals | None = None

    @property
    def defined(self) -> dict[str, float]:
        return {name: value for name, value in self.values.items() if value is not None}


@dataclass(frozen=True, eq=False)
class RumorRow(SystemRow):
    """Row of a system with verdicts on rumours, and its scores; None without labels."""

    verdicts: Verdicts = field(default_factory=dict)
    scores: RumorScores | None = None


def score_row(plan: RowPlan, result: SystemResult, rumors: Rumors, settings: Scoring) -> RumorRow:
    """Make a system's row: scores of its evidence and verdicts, with intervals by rumour."""
    system = plan.system
    failures: dict[str, int] = {}
    for stage in result.stages:
        for reason, count in stage.result.failure_counts().items():
            failures[f"{stage.name}: {reason}"] = count
    scored = unscored(system.name, result.result)
    report = replace(
        with_whole(scored.report, result, rumors.dataset),
        model=system.full_label(),
        failures=failures,
        runs=system.name,
        simulated=system.is_simulated,
    )
    verdicts = read_verdicts(result)
    scores = None
    if rumors.is_labelled:
        scores = score_rumors(rumors, scored.run, verdicts, settings.repeats, settings.seed)
        means = {**scores.defined, "queries": len(rumors.rumors)}
        report = replace(
            report,
            languages={rumors.language: means},
            macro=means,
            intervals=scores.intervals,
        )
    scored = replace(scored, report=report)
    return RumorRow(plan, result.form, {system.name: scored}, (), (), verdicts, scores)


def read_verdicts(result: SystemResult) -> Verdicts:
    """Return the verdicts of a system's last stage: its notes that are labels."""
    verdicts: dict[str, Label | None] = {}
    for claim, note in result.result.notes.items():
        for label in LABELS:
            if note == label:
                verdicts[claim] = label
    return verdicts


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
        raise ValueError("the rumours have no labels")
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
    """Score the tweets of every rumour: measure -> [rumours]; NaN if a rumour is not averaged."""
    ids = []
    for rumor in rumors.rumors:
        ids.append(rumor.id)
    qrels = rumors.dataset.qrels
    precision = np.full(len(ids), np.nan)
    recall = np.full(len(ids), np.nan)
    judged = []
    for claim in ids:
        if qrels.golds(claim):
            judged.append(claim)
    if judged:
        scores = evaluate(top, qrels, [MAP, RECALL], judged)
        at = []
        for claim in judged:
            at.append(ids.index(claim))
        precision[at], recall[at] = scores[MAP], scores[RECALL]
    nothing = np.array([float(not top.sources(claim, 1)) for claim in ids])
    task = np.where(np.isnan(precision), nothing, precision)
    return {MAP: precision, RECALL: recall, MAP_TASK: task}


def _verdict_measures(rumors: Rumors, top: Run, verdicts: Verdicts) -> dict[str, _Measure]:
    """Return the measures of verdicts: macro F1, and strict macro F1, which needs evidence."""
    actual = []
    labels = []
    evidenced = []
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
    """Average the values [rumours] that are not NaN, with weights `times` [draws, rumours]."""
    is_number = ~np.isnan(values)
    counts = times @ is_number
    sums = times @ np.where(is_number, values, 0.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _intervals(
    measures: Mapping[str, _Measure],
    rumors: Rumors,
    repeats: int,
    seed: int,
) -> Intervals:
    """Draw rumours with replacement; draws in which a measure is undefined are left out."""
    count = len(rumors.rumors)
    draws = list(draw_groups(count, repeats, seed, count))
    bounds = {}
    for name, measure in measures.items():
        values = np.concatenate([measure(times) for times in draws])
        if not np.isnan(values).all():
            low, high = np.nanquantile(values, [0.025, 0.975]).tolist()
            bounds[name] = dict.fromkeys((rumors.language, MACRO), (low, high))
    return Intervals(bounds, repeats, seed, count)
