"""Choose BM25's settings and the verdict's threshold for rumours, off what is reported.

Without other rumours to choose on, both are cross-validated: each rumour is ranked and judged by
what was chosen on the other folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, Seed, Settings, require
from claim2source.core.progress import watched
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Run
from claim2source.datasets.rumor_outputs import MOST
from claim2source.datasets.rumors import Rumors
from claim2source.evaluation.rumors import MACRO_F1, MAP, macro_f1
from claim2source.metrics.metrics import evaluate
from claim2source.pipeline.rumors import RumorResult, verdict_of
from claim2source.retrieve.fielded import FieldedConfig, FieldedIndex, ranked
from claim2source.stages.stance import HIGHEST
from claim2source.systems.choose import choose, weigh

BM25, THRESHOLD = "fielded BM25", "threshold"
THRESHOLDS = tuple(round(step / 20, 2) for step in range(1, 20 * HIGHEST + 1))


@dataclass(frozen=True)
class RumorGrid(Settings):
    """Settings of BM25 that are tried; the system's own is the default.

    Args:
        folds: parts of the rumours for cross-validation.
        seed: of the parting.
        rule: `one_se`: of BM25's settings within one standard error of the best, the one nearest
            to the system's; or the `best`.
        k1: values to try.
        b: values to try.
        boost: boosts of the hashtags to try.
        shortest: lengths of the shortest word to try; stop words, stemmer and hashtags' words are
            tried with and without.
    """

    folds: Annotated[int, Between(2, 1000)] = 8
    seed: Seed = 0
    rule: Rule = "one_se"
    k1: tuple[float, ...] = (0.6, 0.9, 1.2, 1.5, 2.0)
    b: tuple[float, ...] = (0.3, 0.5, 0.75, 1.0)
    boost: tuple[float, ...] = (0.0, 0.5, 1.0, 1.1, 1.5, 2.0)
    shortest: tuple[int, ...] = (2, 3, 4)

    def check(self) -> None:
        for key in ("k1", "b", "boost", "shortest"):
            require(bool(getattr(self, key)), f"grid.{key}", getattr(self, key), "some values")
        for analysis in self.analyses(FieldedConfig()):
            for k1, b, boost in product(self.k1, self.b, self.boost):
                replace(analysis, k1=k1, b=b, boost=boost)

    def analyses(self, base: FieldedConfig) -> Iterator[FieldedConfig]:
        """Yield the settings of the analysis, the default first."""
        columns = (
            [base.hashtag_words, not base.hashtag_words],
            [base.stop_words, not base.stop_words],
            [base.stemmer, not base.stemmer],
            dict.fromkeys([base.shortest, *self.shortest]),
        )
        for words, stop, stem, shortest in product(*columns):
            yield replace(
                base, hashtag_words=words, stop_words=stop, stemmer=stem, shortest=shortest
            )


def try_bm25(
    rumors: Rumors, base: FieldedConfig, grid: RumorGrid
) -> dict[FieldedConfig, np.ndarray]:
    """Score every setting: average precision of the first five tweets, [rumours with evidence].

    Every analysis is made once for each rumour; the default is the first setting.
    """
    judged = [rumor for rumor in rumors.rumors if rumor.evidence]
    ids = [rumor.id for rumor in judged]
    qrels = rumors.dataset.qrels
    weights = list(dict.fromkeys([(base.k1, base.b), *product(grid.k1, grid.b)]))
    boosts = list(dict.fromkeys([base.boost, *grid.boost]))
    tried: dict[FieldedConfig, np.ndarray] = {}
    analyses = list(grid.analyses(base))
    for analysis in watched(analyses, "BM25's analyses", len(analyses)):
        indexes = [FieldedIndex(rumors.sources(r), analysis, rumors.language) for r in judged]
        for k1, b in weights:
            scores = [
                index.reweighted(k1, b).field_scores(rumors.claim(rumor))
                for index, rumor in zip(indexes, judged, strict=True)
            ]
            for boost in boosts:
                run = Run.from_lists(
                    {
                        rumor.id: ranked(index.source_ids, found, boost, MOST)
                        for rumor, index, found in zip(judged, indexes, scores, strict=True)
                    }
                )
                setting = replace(analysis, k1=k1, b=b, boost=boost)
                tried[setting] = evaluate(run, qrels, [MAP], ids)[MAP]
    return tried


def choose_bm25(
    rumors: Rumors,
    tried: Mapping[FieldedConfig, np.ndarray],
    rule: Rule,
    without: frozenset[str] = frozenset(),
) -> tuple[FieldedConfig, Choice]:
    """Choose a setting by what `try_bm25` gave for these rumours, some of them left out."""
    ids = [rumor.id for rumor in rumors.rumors if rumor.evidence]
    kept = [place for place, rumor in enumerate(ids) if rumor not in without]
    data = rumors.of([ids[place] for place in kept]).dataset
    values = {setting: scores[kept] for setting, scores in tried.items()}
    chosen, choice = choose(BM25, values, weigh(data), distance=_distance(list(tried)), rule=rule)
    return chosen, replace(choice, metric=MAP)


def _distance(tried: Sequence[FieldedConfig]) -> Callable[[FieldedConfig], float]:
    """Count a setting's steps, within the grid, from the first one."""
    names = [spec.name for spec in fields(FieldedConfig)]
    steps = {name: sorted({getattr(setting, name) for setting in tried}) for name in names}

    def distance(setting: FieldedConfig) -> float:
        return sum(
            abs(
                steps[name].index(getattr(setting, name))
                - steps[name].index(getattr(tried[0], name))
            )
            for name in names
        )

    return distance


def folds_of(rumors: Rumors, folds: int, seed: int) -> list[frozenset[str]]:
    """Part rumours at random in folds of alike labels. Raises `ConfigError` on too many."""
    count = len(rumors.rumors)
    require(folds <= count, "grid.folds", folds, f"at most the {count} rumours")
    order = np.random.default_rng(seed).permutation(count)
    by_label = sorted((rumors.rumors[place] for place in order), key=lambda rumor: str(rumor.label))
    return [frozenset(rumor.id for rumor in by_label[fold::folds]) for fold in range(folds)]


def cross_validated_bm25(
    rumors: Rumors, base: FieldedConfig, grid: RumorGrid
) -> tuple[dict[str, FieldedConfig], FieldedConfig, Choice]:
    """Choose BM25's settings for every rumour on the other folds; also on all, for other data.

    Raises `ConfigError` where a fold leaves no rumour with evidence to choose on.
    """
    folds = folds_of(rumors, grid.folds, grid.seed)
    judged = {rumor.id for rumor in rumors.rumors if rumor.evidence}
    allowed = "bm25 only where rumours of two folds have evidence"
    require(all(judged - fold for fold in folds), "choose", "bm25", allowed)
    tried = try_bm25(rumors, base, grid)
    of: dict[str, FieldedConfig] = {}
    for fold in folds:
        of |= dict.fromkeys(fold, choose_bm25(rumors, tried, grid.rule, fold)[0])
    chosen, choice = choose_bm25(rumors, tried, grid.rule)
    return of, chosen, replace(choice, note=_note(grid.folds, len(set(of.values()))))


def choose_threshold(
    rumors: Rumors, result: RumorResult, default: float, without: frozenset[str] = frozenset()
) -> tuple[float, Choice]:
    """Choose the threshold with the best macro-F1; of equal ones the nearest to the default."""
    kept = [rumor for rumor in rumors.rumors if rumor.id not in without]
    actual = [str(rumor.label) for rumor in kept]
    scores = {
        t: macro_f1(actual, [verdict_of(result.means[rumor.id], t) for rumor in kept])
        for t in dict.fromkeys([default, *THRESHOLDS])
    }
    best = max(scores, key=lambda t: (round(scores[t], 12), -abs(t - default)))
    choice = Choice(
        THRESHOLD,
        {"threshold": best},
        scores[best],
        rumors.split,
        len(kept),
        metric=MACRO_F1,
        best={"threshold": best},
        best_score=scores[best],
        compared=len(scores),
    )
    return best, choice


def cross_validated_threshold(
    rumors: Rumors,
    result_without: Callable[[frozenset[str]], RumorResult],
    default: float,
    grid: RumorGrid,
) -> tuple[dict[str, float], Choice]:
    """Choose the threshold for every rumour on the other folds; also on all, for other data.

    `result_without` gives the rumours as judged by a system that was chosen without a fold, or,
    for the last choice, an empty one, on all.
    """
    of: dict[str, float] = {}
    for fold in folds_of(rumors, grid.folds, grid.seed):
        of |= dict.fromkeys(fold, choose_threshold(rumors, result_without(fold), default, fold)[0])
    _, choice = choose_threshold(rumors, result_without(frozenset()), default)
    return of, replace(choice, note=_note(grid.folds, len(set(of.values()))))


def _note(folds: int, different: int) -> str:
    return (
        f"the report's scores are cross-validated: {folds} folds, each ranked and judged by what "
        f"was chosen on the others ({different} different settings)"
    )
