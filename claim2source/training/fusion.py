"""Fit a learned fusion: score candidates by views, choose among these by held-out papers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from claim2source.core.records import Dataset
from claim2source.core.report import Choice, Rule, Table
from claim2source.core.run import Run
from claim2source.models import ModelConfig
from claim2source.models.reranker_manifest import manifest_of
from claim2source.stages.learned import FittedOn, Learned, LearnedFusion, LearnedView
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.systems.choose import Weighing, choose, weigh
from claim2source.systems.heldout import SelectionData, unknown_claims
from claim2source.systems.nodes import DenseNode
from claim2source.systems.system import RunSettings, System, SystemResult, SystemRunner
from claim2source.text import ClaimForm
from claim2source.training.rankers import (
    Lists,
    Recipe,
    deal_papers,
    fit_linear,
    held_out,
    linear,
    make_lists,
    reciprocal_ranks,
    try_recipes,
)

PENALTIES = (0.001, 0.01, 0.1)
# Claims whose scoring is timed together.
_TIMED = 10


@dataclass(frozen=True)
class Candidates:
    """Hold the system whose first `depth` sources are re-ranked.

    Where the system has a learned stage itself, they are what stands before that. `form` is the
    claim form.
    """

    system: System
    depth: int
    form: ClaimForm | None = None

    def __post_init__(self) -> None:
        stages, name = self.system.stages, Learned.__name__.lower()
        learned = [entry.get("rerank") == name for entry in stages]
        if any(learned):
            before = replace(self.system, stages=stages[: learned.index(True)])
            object.__setattr__(self, "system", before)

    @property
    def models(self) -> list[ModelConfig]:
        """List the dense models that find the candidates."""
        return [node.model for node in self.system.first.walk() if isinstance(node, DenseNode)]

    def run(self, data: Dataset, reported: Dataset, settings: RunSettings) -> SystemResult:
        """Rank claims; what the system chooses, it chooses for the `reported` split, off it."""
        runner = SystemRunner(reported, replace(settings, depth=self.depth))
        return runner.run(self.system, self.form, data)


@dataclass(frozen=True, eq=False)
class Gathered:
    """Hold claims with a gold, their candidates, and what each view says of these.

    `columns` are by view and claim, without the `constant` views that say the same of all of a
    claim's candidates; `seconds` is the CPU time of each view, `note` says how trained encoders'
    scores were taken.
    """

    data: Dataset
    run: Run
    weighing: Weighing
    columns: Mapping[str, Sequence[np.ndarray]]
    seconds: Mapping[str, float]
    note: str = ""
    constant: tuple[str, ...] = ()

    def lists(self) -> Lists:
        """Pad them for fitting."""
        gold = [
            np.array([source in claim.golds for source in self.run.sources(claim.id)], bool)
            for claim in self.data.claims
        ]
        weighing = self.weighing
        return make_lists(list(self.columns.values()), gold, weighing.weights, weighing.groups)


def known_claims(
    views: Mapping[str, ViewConfig],
    candidates: Candidates,
    reported: str,
    settings: RunSettings,
) -> SelectionData:
    """Find the claims that no model of the views and of the candidates was trained on.

    Where none was trained, these are all of train. Raises `UserError` where nothing is left.
    """
    models = [view.model for view in views.values()] + candidates.models
    names = [model.name for model in models if model is not None] + candidates.system.models()
    manifests = map(manifest_of, dict.fromkeys(names))
    return unknown_claims(settings.dataset, reported, settings.choosing, manifests)


def gather(
    views: Mapping[str, ViewConfig],
    candidates: Candidates,
    reported: Dataset,
    settings: RunSettings,
    scorer: Scorer,
) -> Gathered:
    """Score the candidates of training claims by every view.

    Only claims that no model was trained on are taken. Raises `UserError` where there are none.
    """
    selection = known_claims(views, candidates, reported.split, settings)
    data = selection.val.with_claims(claim for claim in selection.val.claims if claim.golds)
    run = candidates.run(data, reported, settings).result.run.top(candidates.depth)
    columns, seconds = score_views(views, scorer, data, run)
    note = selection.note
    if selection.val is not selection.train and not note:
        note = "the claims that its training held out (val)"
    weighing = weigh(data, selection.seen, selection.seen_share)
    telling = {name: found for name, found in columns.items() if any(map(_differs, found))}
    constant = tuple(name for name in columns if name not in telling)
    return Gathered(data, run, weighing, telling, seconds, note, constant)


def _differs(scores: np.ndarray) -> bool:
    """Tell whether the known scores of a claim's candidates are not all equal."""
    return len(set(scores[~np.isnan(scores)].tolist())) > 1


def score_views(
    views: Mapping[str, ViewConfig], scorer: Scorer, data: Dataset, run: Run
) -> tuple[dict[str, list[np.ndarray]], dict[str, float]]:
    """Score a run's sources by every view, and measure the CPU seconds of each."""
    asked = [run.sources(claim.id) for claim in data.claims]
    columns, seconds = {}, {}
    # Views of one encoder follow one another, so that it is loaded once.
    for name in sorted(views, key=lambda one: str(views[one].model)):
        started = time.process_time()
        columns[name] = scorer.scores(views[name], data.claims, asked)
        seconds[name] = time.process_time() - started
    return {name: columns[name] for name in views}, seconds


def milliseconds(
    views: Mapping[str, ViewConfig], scorer: Scorer, data: Dataset, run: Run
) -> dict[str, float]:
    """Measure the CPU milliseconds that each view takes for a new claim, in a batch of 10."""
    # One without candidates costs nothing, and loads nothing.
    claims = [claim for claim in data.claims if run.sources(claim.id)][:_TIMED]
    asked = [run.sources(claim.id) for claim in claims]
    found = {}
    for name, view in views.items():
        scorer.scores(view, claims[:1], asked[:1], fresh=True)  # loads what is needed
        started = time.process_time()
        scorer.scores(view, claims, asked, fresh=True)
        found[name] = 1000 * (time.process_time() - started) / max(len(claims), 1)
    return found


@dataclass(frozen=True, eq=False)
class Fitting:
    """Fit rankers of gathered claims; views are known by name.

    Args:
        base: the views that every ranker has.
        folds: parts that the papers are dealt to.
        seed: of the dealing.
        rule: how views and penalty are chosen.
    """

    gathered: Gathered
    views: Mapping[str, ViewConfig]
    base: Sequence[str]
    folds: int = 5
    seed: int = 13
    rule: Rule = "one_se"
    lists: Lists = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lists", self.gathered.lists())

    @property
    def names(self) -> list[str]:
        """Name the views, in order."""
        return list(self.views)

    @property
    def signed(self) -> np.ndarray:
        """Tell which views may have a weight below 0, bool [views]."""
        return np.array([not view.is_similarity for view in self.views.values()])

    @property
    def first(self) -> list[int]:
        """Number the views of the base."""
        return [self.names.index(name) for name in self.base]

    def _dealt(self, lists: Lists, inner: int = 0) -> np.ndarray:
        return deal_papers(lists.groups, self.folds, self.seed + inner)

    def linear_on(self, names: Sequence[str]) -> np.ndarray:
        """Rank claims by a linear ranker of these views that was fitted on other papers."""
        places = [self.names.index(name) for name in names]
        scored = linear(PENALTIES[0], self.signed[places])
        return held_out(self.lists.seeing(places), self._dealt(self.lists), scored)

    def chosen(self, lists: Lists, weighing: Weighing, inner: int = 0) -> tuple[Recipe, Choice]:
        """Choose views and penalty on these claims, by held-out papers among them."""
        tried = try_recipes(lists, self._dealt(lists, inner), self.signed, self.first, PENALTIES)
        none: dict[Recipe, Table] = dict.fromkeys(tried, {})
        place = {penalty: n for n, penalty in enumerate(PENALTIES)}
        return choose(
            "learned fusion",
            tried,
            weighing,
            settings=self._settings,
            # Fewer views are nearer to the base; a penalty is less than a view.
            distance=lambda one: len(one.views) + place[one.penalty] / len(PENALTIES),
            rule=self.rule,
            tables=none,
            trials=True,
            note="; ".join(filter(None, ("on held-out papers", self.gathered.note))),
        )

    def _settings(self, recipe: Recipe) -> dict[str, Any]:
        views = ", ".join(self.names[view] for view in recipe.views)
        return {"views": views, "penalty": recipe.penalty}

    def nested(self) -> np.ndarray:
        """Rank claims by rankers whose views, penalty and weights are of other papers."""

        def scored(train: Lists, test: Lists, among: np.ndarray) -> np.ndarray:
            recipe, _ = self.chosen(train, self.gathered.weighing.among(among), inner=1)
            signed = self.signed[list(recipe.views)]
            return linear(recipe.penalty, signed)(
                train.seeing(recipe.views), test.seeing(recipe.views)
            )

        return self._outer(scored)

    def _outer(self, scored: Callable[[Lists, Lists, np.ndarray], np.ndarray]) -> np.ndarray:
        folds = self._dealt(self.lists)
        found = np.zeros(len(folds))
        for fold in np.unique(folds):
            mine = folds == fold
            test = self.lists.of(mine)
            found[mine] = reciprocal_ranks(scored(self.lists.of(~mine), test, ~mine), test)
        return found

    def fit(self, scorer: Scorer, candidates: Candidates) -> tuple[LearnedFusion, Choice]:
        """Choose on all claims, fit on all claims, and say on what."""
        lists = self.lists
        recipe, choice = self.chosen(lists, self.gathered.weighing)
        seen = lists.seeing(recipe.views)
        weights = fit_linear(seen, recipe.penalty, self.signed[list(recipe.views)]).tolist()
        data = self.gathered.data
        fitted = FittedOn(
            data.name,
            data.split,
            int(lists.reachable.sum()),
            len(np.unique(lists.groups[lists.reachable])),
            data.fingerprint,
            candidates.system.name,
            candidates.depth,
            recipe.penalty,
            self.gathered.note,
        )
        views = tuple(
            LearnedView(
                self.names[place],
                self.views[self.names[place]],
                scorer.key(self.views[self.names[place]]),
                float(lists.scale[place]),
                weight,
            )
            for place, weight in zip(recipe.views, weights, strict=True)
        )
        return LearnedFusion(views, fitted), choice
