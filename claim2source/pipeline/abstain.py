"""Fit and measure abstention on claims that each are there once with its papers, once without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.files import atomic_path, write_json
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.datasets.grouping import connected_groups
from claim2source.evaluation.abstention import (
    Curve,
    Outcomes,
    abstention_table,
    curve_table,
    draw_curves,
    measure,
    point_at,
    risk_coverage,
    safe_threshold,
)
from claim2source.mining.near_duplicates import same_papers
from claim2source.stages.abstain import (
    NONE,
    AbstainModel,
    Design,
    fit,
    margin_shares,
)
from claim2source.systems.stages import named_stages
from claim2source.systems.system import System, SystemResult, SystemRunner
from claim2source.text import ClaimForm

Target = Literal["present", "right"]
FOLDS = 5
SCORES = (1, 2, 5, 10)
SHARES = tuple(step / 10 for step in range(1, 11))
PENALTIES = (0.1, 1.0, 10.0, 100.0)


def without(dataset: Dataset, removed: Mapping[str, frozenset[str]]) -> Dataset:
    """Rank each claim as if its removed sources were not there.

    BM25's statistics stay those of the whole pool.
    """
    return dataset.with_claims(
        replace(claim, excluded=tuple(sorted({*claim.excluded, *removed.get(claim.id, ())})))
        for claim in dataset.claims
    )


def papers_of_claims(
    dataset: Dataset, max_title: float | None = 0.9, max_text: float | None = 0.9
) -> dict[str, frozenset[str]]:
    """Map every claim with a gold to its golds and all near-duplicates of them."""
    pairs = same_papers(dataset.sources, max_title, max_text)
    ids = [source.id for source in dataset.sources]
    numbers = connected_groups([[key] for key in ids] + [list(pair) for pair in pairs])[: len(ids)]
    group = dict(zip(ids, numbers, strict=True))
    members: dict[int, set[str]] = {}
    for source in ids:
        members.setdefault(group[source], set()).add(source)
    return {
        claim.id: frozenset().union(*(members.get(group.get(g, -1), {g}) for g in claim.golds))
        for claim in dataset.claims
        if claim.golds
    }


@dataclass(frozen=True, eq=False)
class PairedResults:
    """Hold a system's results for claims, each once with and once without its papers.

    `stages` has the claims with their papers first; `claims` counts them. `outcomes` are of
    both, in that order.
    """

    claim_ids: tuple[str, ...]
    stages: Mapping[str, Result]
    absent: Mapping[str, Result]
    outcomes: Outcomes

    @classmethod
    def of(
        cls,
        claims: Sequence[Claim],
        stages: Mapping[str, Result],
        absent: Mapping[str, Result],
    ) -> Self:
        """Compare the last stage's first sources with the golds of the claims."""
        last, missing = list(stages.values())[-1].run, np.zeros(len(claims), bool)
        right = np.array([bool({*last.sources(claim.id, 1)} & {*claim.golds}) for claim in claims])
        groups = np.array(connected_groups(claim.golds for claim in claims))
        outcomes = Outcomes(
            np.concatenate([~missing, missing]),
            np.concatenate([right, missing]),
            np.tile(groups, 2),
        )
        return cls(tuple(claim.id for claim in claims), stages, absent, outcomes)

    def features(self, design: Design) -> np.ndarray:
        """Describe all claims twice, [2 x claims, features]."""
        parts = (design.features(self.claim_ids, stages) for stages in (self.stages, self.absent))
        return np.concatenate(list(parts))

    def single_scores(self) -> dict[str, np.ndarray]:
        """Name the first score and the margin of each stage, as confidences."""
        scores = {}
        for name in self.stages:
            values = self.features(Design((name,), 1))[:, 0]
            margins = [
                margin_shares(s[name].run, self.claim_ids) for s in (self.stages, self.absent)
            ]
            scores[f"{name}: first score"] = values
            scores[f"{name}: margin"] = np.concatenate(margins)
        return scores

    @property
    def has_none(self) -> bool:
        """Tell whether a verifier gave a probability of "none" with and without the papers."""
        return all(
            any(
                NONE in details
                for result in results.values()
                for details in result.details.values()
            )
            for results in (self.stages, self.absent)
        )


def paired_results(
    runner: SystemRunner, system: System, form: ClaimForm | None, dataset: Dataset
) -> PairedResults:
    """Run a system for the claims with a gold, with and without their papers.

    Raises `UserError` where no claim has a gold.
    """
    judged = dataset.with_claims(claim for claim in dataset.claims if claim.golds)
    if not judged.claims:
        raise UserError(
            f"{dataset.name or 'the data set'}: no claim of {dataset.split!r} has a gold"
        )
    bare_of_papers = without(judged, papers_of_claims(judged))
    results = _stages(runner.run(system, form, judged), judged)
    absent = _stages(runner.run(system, form, bare_of_papers), judged)
    return PairedResults.of(judged.claims, results, absent)


def _stages(result: SystemResult, dataset: Dataset) -> dict[str, Result]:
    return named_stages(result.stages, dataset.claims)


@dataclass(frozen=True, eq=False)
class FittedModel:
    """Hold a model that was fitted to a target, and how its settings were chosen.

    `safe` is the probability from which answers were wrong at most as often as `risk` allows, at
    95 % (None: no such one); `tried` maps (scores, penalty) to the mean log loss on held-out
    papers, `out_of_fold` are the probabilities there, [2 x claims].
    """

    model: AbstainModel
    safe: float | None
    setting: tuple[int, float]
    losses: Mapping[tuple[int, float], float]
    out_of_fold: np.ndarray
    target: Target = "present"

    def __str__(self) -> str:
        """Describe the choice of scores and penalty."""
        scores, penalty = self.setting
        losses = ", ".join(
            f"{s} {min(v for k, v in self.losses.items() if k[0] == s):.4f}" for s in SCORES
        )
        return (
            f"fitted on {self.model.fitted}; the first {scores} scores of each stage, penalty "
            f"{penalty:g}, by log loss on held-out papers (best by number of scores: {losses})."
        )


def fit_abstention(
    paired: PairedResults,
    target: Target = "present",
    none: bool = False,
    risk: float = 0.1,
    seed: int = 13,
    on: str = "",
) -> FittedModel:
    """Choose the number of scores and the penalty on held-out papers, and fit on all claims.

    The papers are dealt to five folds; of all settings the one with the smallest log loss on
    the folds it was not fitted on is taken. Raises `UserError` with fewer papers than folds.
    """
    outcomes = paired.outcomes
    papers = np.unique(outcomes.groups)
    if len(papers) < FOLDS:
        raise UserError(f"abstention is fitted on {FOLDS} papers at least; there are {len(papers)}")
    labels = outcomes.present if target == "present" else outcomes.right
    dealt = np.random.default_rng(seed).permutation(len(papers)) % FOLDS
    fold = dealt[np.searchsorted(papers, outcomes.groups)]
    if any(len(np.unique(labels[fold != number])) < 2 for number in range(FOLDS)):
        raise UserError(
            f"abstention cannot be fitted: no two kinds of claims to tell apart ({target})"
        )
    losses: dict[tuple[int, float], float] = {}
    held_out: dict[tuple[int, float], np.ndarray] = {}
    for scores in SCORES:
        design = Design(tuple(paired.stages), scores, none)
        features = paired.features(design)
        for penalty in PENALTIES:
            shares = np.empty(len(labels))
            for number in range(FOLDS):
                rest = fold != number
                model = fit(design, features[rest], labels[rest], penalty)
                shares[~rest] = model.probabilities(features[~rest])
            sure = np.clip(np.where(labels, shares, 1 - shares), 1e-12, None)
            losses[scores, penalty] = round(float(-np.log(sure).mean()), 12)
            held_out[scores, penalty] = shares
    best = min(losses, key=lambda setting: losses[setting])
    design = Design(tuple(paired.stages), best[0], none)
    model = fit(design, paired.features(design), labels, best[1])
    safe = safe_threshold(risk_coverage(held_out[best], ~outcomes.right), risk)
    about = f"{len(paired.claim_ids)} claims of {len(papers)} papers{on}"
    about += " (is the first source right?)" * (target == "right")
    return FittedModel(replace(model, fitted=about), safe, best, losses, held_out[best], target)


def fit_all(
    train: PairedResults, paired: PairedResults | None, risk: float, on: str
) -> dict[str, FittedModel]:
    """Fit both targets, also with a verifier's "none" where both results have it, the richest last.

    `on` names the claims of `train`, on which they are fitted.
    """
    with_none = train.has_none and (paired or train).has_none
    targets: tuple[Target, ...] = ("present", "right")
    return {
        f"logistic: {'paper present' if target == 'present' else 'first source right'}"
        + (", with none" if none else ""): fit_abstention(train, target, none, risk, on=on)
        for none in ([False, True] if with_none else [False])
        for target in targets
    }


def write_measures(
    paired: PairedResults,
    fitted: Mapping[str, FittedModel],
    out: Path,
    title: str,
    *,
    risk: float,
    repeats: int,
    seed: int,
) -> tuple[list[Part], TextTable]:
    """Measure fitted models, write `abstention.json` and the curves; return all, and the table."""
    confidences = paired.single_scores()
    baseline = list(confidences)[-2]
    for name, model in fitted.items():
        confidences[name] = model.model.probabilities(paired.features(model.model.design))
    outcomes = paired.outcomes
    figures = measure(confidences, outcomes, baseline, risk, repeats, seed)
    curves = {
        name: risk_coverage(confidence, ~outcomes.right) for name, confidence in confidences.items()
    }
    plotted = {name: curves[name] for name in (baseline, list(curves)[-len(fitted) - 1], *fitted)}
    papers = len(np.unique(outcomes.groups))
    table = abstention_table(figures, risk)
    parts: list[Part] = [
        f"{len(paired.claim_ids)} claims of {papers} papers, each once with its papers in the "
        f"pool and once without them and their near-duplicates. The right source is first for "
        f"{outcomes.right.sum()} of the former. 95 % intervals: {repeats} bootstrap "
        f"samples of gold papers. The difference is in AUROC, to {baseline!r}.",
        table,
        "Risk at most: the upper bound of the risk at that point (Clopper and Pearson, 95 %). "
        "The point is the best of the curve, which only the reported claims tell. Chosen before, "
        "on held-out papers:",
        thresholds_table(fitted, curves),
        "Risk by coverage:",
        curve_table(plotted, SHARES),
    ]
    with atomic_path(out / "curve.svg") as path:
        draw_curves(plotted, title).savefig(path, format="svg")
    write_json(
        out / "abstention.json",
        {
            "measures": {name: asdict(figure) for name, figure in figures.items()},
            "curves": {name: curve.as_json() for name, curve in curves.items()},
        },
    )
    return parts, table


def thresholds_table(fitted: Mapping[str, FittedModel], curves: Mapping[str, Curve]) -> TextTable:
    """Tabulate models at their own threshold, and at the one that was safe on train."""
    columns = ["model", "answered from", "coverage", "risk", "risk at most", "answered", "wrong"]
    rows: list[list[Cell]] = []
    for name, model in fitted.items():
        for why, threshold in (("", model.model.threshold), (" (safe on train)", model.safe)):
            at = point_at(curves[name], threshold)
            start = "nowhere" if threshold is None else f"{threshold:.4f}"
            rows.append([name, start + why, at.coverage, at.risk, at.upper, at.answered, at.wrong])
    return TextTable(columns, rows, numeric=[False, False, *[True] * 5])
