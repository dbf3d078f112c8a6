"""Fit a learned fusion: score candidates by views, and choose views by held-out papers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.report import Choice, Rule, Table
from claim2source.core.run import Run
from claim2source.data.split import claims_of_shared_papers
from claim2source.models.manifest import read_any_manifest
from claim2source.models.trained_on import TrainedOn
from claim2source.search.choose import Preference, Weighing, choose, weigh
from claim2source.stages.learned import FittingData, LearnedFusion, LearnedView, filled
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.systems.heldout import HeldOut, SelectionData
from claim2source.systems.system import System, SystemRunner
from claim2source.text import ClaimForm

# Depth of the metric that views are chosen by.
_DEPTH = 5
PENALTIES = (0.001, 0.01, 0.1)
_SEED = 13
# Number of claims in a timed batch.
_TIMED = 10


@dataclass(frozen=True, eq=False)
class Lists:
    """Views' scores of claims' candidates, padded to the longest list.

    `features` [claims, longest, views] float32 are scores divided by `scale` [views];
    `is_candidate` and `gold` [claims, longest] bool mark candidates and golds. `weights` [claims]
    sum to 1, `groups` [claims] number the papers. A view with `signed` [views] may have a negative
    weight.
    """

    features: np.ndarray
    is_candidate: np.ndarray
    gold: np.ndarray
    weights: np.ndarray
    groups: np.ndarray
    scale: np.ndarray
    signed: np.ndarray

    def of(self, claims: np.ndarray) -> Lists:
        """Select claims by a mask or by numbers."""
        weights = self.weights[claims]
        return replace(
            self,
            features=self.features[claims],
            is_candidate=self.is_candidate[claims],
            gold=self.gold[claims],
            weights=weights / weights.sum(),
            groups=self.groups[claims],
        )

    def select_views(self, views: Sequence[int]) -> Lists:
        columns = list(views)
        features = np.ascontiguousarray(self.features[:, :, columns])
        scale = self.scale[columns]
        signed = self.signed[columns]
        return replace(self, features=features, scale=scale, signed=signed)

    @property
    def reachable(self) -> np.ndarray:
        """Determine which claims have a gold among their candidates, bool [claims]."""
        return np.asarray(self.gold.any(axis=1))


def make_lists(
    columns: Sequence[Sequence[np.ndarray]],
    gold: Sequence[np.ndarray],
    weights: np.ndarray,
    groups: np.ndarray,
    signed: np.ndarray,
) -> Lists:
    """Pad raw scores (an array per view and claim) and measure the views' spread.

    A view's scale is the root of its mean variance among a claim's candidates; 1 if it has none.
    """
    shape = (len(gold), max(map(len, gold), default=0))
    features = np.zeros((*shape, len(columns)), np.float32)
    is_listed = np.zeros(shape, bool)
    golds = np.zeros(shape, bool)
    scale = np.ones(len(columns))
    for row, values in enumerate(gold):
        is_listed[row, : len(values)], golds[row, : len(values)] = True, values
    for number, column in enumerate(columns):
        scores = [filled(values) for values in column]
        spread = float(np.sqrt(np.mean([score.var() if len(score) else 0.0 for score in scores])))
        scale[number] = spread if spread > 1e-9 else 1.0
        for row, values in enumerate(scores):
            features[row, : len(values), number] = values / scale[number]
    return Lists(features, is_listed, golds, weights, groups, scale, signed)


def fit_linear(lists: Lists, penalty: float) -> np.ndarray:
    """Fit weights [views] by the listwise softmax loss over each claim's candidates.

    The loss of a claim is the mean of -log softmax over its golds. The total is the weighted mean
    over claims with a gold among their candidates, plus `penalty` / 2 times the squared weights.
    Raises `UserError` if no claim has a gold.
    """
    from scipy.optimize import minimize

    reachable = lists if lists.reachable.all() else lists.of(lists.reachable)
    if not len(reachable.weights):
        raise UserError("no claim has a gold among its candidates, so there is nothing to fit on")
    flat = reachable.features.reshape(-1, reachable.features.shape[2])
    target = reachable.gold / reachable.gold.sum(axis=1, keepdims=True)
    share = reachable.weights

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = (flat @ weights.astype(np.float32)).reshape(reachable.gold.shape)
        scores = np.where(reachable.is_candidate, scores.astype(np.float64), -np.inf)
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        total = odds.sum(axis=1, keepdims=True)
        gold_scores = np.where(reachable.gold, scores, 0.0)
        by_claim = np.log(total[:, 0]) - (gold_scores * target).sum(axis=1)
        pull = share[:, None] * (odds / total - target)
        slope = (pull.ravel().astype(np.float32) @ flat).astype(np.float64)
        value = share @ by_claim + penalty / 2 * weights @ weights
        return float(value), slope + penalty * weights

    bounds: list[tuple[int | None, None]] = []
    for is_signed in lists.signed:
        bounds.append((None, None) if is_signed else (0, None))
    first = np.full(flat.shape[1], 0.5)
    options = {"maxiter": 500, "ftol": 1e-9, "gtol": 1e-5}
    fitted = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    weights: np.ndarray = fitted.x
    return weights


def reciprocal_ranks(scores: np.ndarray, lists: Lists) -> np.ndarray:
    """Return reciprocal ranks cut at 5, [claims]; equal scores keep the lists' order."""
    scores = np.where(lists.is_candidate, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_DEPTH]
    hit = np.take_along_axis(lists.gold, order, axis=1)
    first = hit.argmax(axis=1)
    return np.where(hit.any(axis=1), 1 / (first + 1), 0.0)


def deal_papers(groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Deal papers to folds, at random and evenly by claims; returns the fold of each claim.

    Raises `UserError` if there are fewer papers than folds.
    """
    papers, number_of, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(papers) < folds:
        raise UserError(f"a fusion needs at least {folds} papers; there are {len(papers)}")
    shuffled = np.random.default_rng(seed).permutation(len(papers))
    load = np.zeros(folds)
    fold_of = np.empty(len(papers), np.int64)
    # The largest first; papers with equally many claims are in random order.
    for paper in sorted(shuffled.tolist(), key=lambda number: -counts[number]):
        fold_of[paper] = fold = int(load.argmin())
        load[fold] += counts[paper]
    return fold_of[number_of]


def held_out(lists: Lists, folds: np.ndarray, penalty: float) -> np.ndarray:
    """Rank each fold's claims by weights fitted on the others: reciprocal ranks [claims]."""
    values = np.zeros(len(folds))
    for fold in np.unique(folds):
        values[folds == fold] = rank_fold(lists, folds == fold, penalty)
    return values


def rank_fold(lists: Lists, in_fold: np.ndarray, penalty: float) -> np.ndarray:
    """Rank a fold's claims by weights fitted on the others: reciprocal ranks [claims]."""
    test = lists.of(in_fold)
    weights = fit_linear(lists.of(~in_fold), penalty)
    return reciprocal_ranks(test.features @ weights.astype(np.float32), test)


class Recipe(NamedTuple):
    """Views by number, and the penalty of their weights."""

    views: tuple[int, ...]
    penalty: float


def try_recipes(
    lists: Lists,
    folds: np.ndarray,
    penalties: Sequence[float],
) -> dict[Recipe, np.ndarray]:
    """Score sets of views at each penalty on held-out papers.

    The first two views are the first set; every further set adds the view that helps most at the
    first penalty.
    """

    def score(views: Sequence[int]) -> float:
        values = held_out(lists.select_views(views), folds, penalties[0])
        return round(float(values @ lists.weights), 12)

    results = {}
    numbers = list(range(len(lists.scale)))
    views = numbers[:2]
    remaining = numbers[2:]
    while True:
        visible = lists.select_views(views)
        for penalty in penalties:
            results[Recipe(tuple(views), penalty)] = held_out(visible, folds, penalty)
        if not remaining:
            return results
        views = [*views, max(remaining, key=lambda view: score([*views, view]))]
        remaining.remove(views[-1])


def known_claims(
    views: Mapping[str, ViewConfig],
    system: System,
    held_out: HeldOut,
) -> SelectionData:
    """Find the claims that no model of the views and of the candidates was trained on.

    If no model was trained, these are all of train. Raises `UserError` if none is left.
    """
    models = [view.model for view in views.values()] + system.dense_models
    names = [model.name for model in models if model is not None] + system.models()
    return held_out.claims(map(read_any_manifest, dict.fromkeys(names)), system.fitted_on())


def gather(
    views: Mapping[str, ViewConfig],
    system: System,
    form: ClaimForm | None,
    runner: SystemRunner,
    scorer: Scorer,
    folds: int = 5,
    expected: float | None = None,
) -> Fitting:
    """Score a system's first sources of training claims by every view.

    Uses only claims that no model was trained on. `expected` is the weight of claims of seen
    papers, which have another claim; None: as when the models were chosen, or their share here.
    Raises `UserError` if there are no such claims.
    """
    selection = known_claims(views, system, runner.held_out)
    data = selection.val.with_claims(claim for claim in selection.val.claims if claim.golds)
    depth = runner.settings.depth
    run = runner.run(system, form, data).result.run.top(depth)
    # Held-out claims must not know each other; claims of all of train know all but themselves.
    hidden = () if selection.val is selection.train else selection.val.claims
    columns, seconds = _score_views(views, scorer, data, run, hidden)
    seen, share = selection.seen, selection.seen_share
    if expected is not None:
        share = expected
        if not hidden:
            seen = claims_of_shared_papers(data)
    weighing = weigh(data, seen, share)
    telling: dict[str, ViewConfig] = {}
    signed: list[bool] = []
    for name, view in views.items():
        if _tells_apart(columns[name]):
            telling[name] = view
            signed.append(not view.is_similarity)
    lists = make_lists(
        [columns[name] for name in telling],
        _gold_masks(data, run),
        weighing.weights,
        weighing.groups,
        np.array(signed),
    )
    note = selection.note
    if selection.val is not selection.train and not note:
        note = "the claims that its training held out (val)"
    return Fitting(
        system=system.name,
        depth=depth,
        data=data,
        run=run,
        weighing=weighing,
        views=telling,
        lists=lists,
        seconds=seconds,
        note=note,
        constant=tuple(name for name in views if name not in telling),
        folds=folds,
        rule=runner.settings.choosing.rule,
    )


def _score_views(
    views: Mapping[str, ViewConfig],
    scorer: Scorer,
    data: Dataset,
    run: Run,
    hidden: Sequence[Claim],
) -> tuple[dict[str, list[np.ndarray]], dict[str, float]]:
    """Score each claim's candidates by every view; also return the CPU seconds of each.

    `hidden` claims are not known posts.
    """
    candidates = [run.sources(claim.id) for claim in data.claims]
    columns: dict[str, list[np.ndarray]] = {}
    seconds: dict[str, float] = {}
    # Views of one encoder are consecutive, so that it is loaded once.
    for name in sorted(views, key=lambda view_name: str(views[view_name].model)):
        started = time.process_time()
        columns[name] = scorer.scores(views[name], data.claims, candidates, hidden=hidden)
        seconds[name] = time.process_time() - started
    return columns, seconds


def _tells_apart(column: Sequence[np.ndarray]) -> bool:
    """Whether a view has two different scores for the candidates of any claim."""
    for scores in column:
        known = scores[~np.isnan(scores)]
        if len(np.unique(known)) > 1:
            return True
    return False


def _gold_masks(data: Dataset, run: Run) -> list[np.ndarray]:
    """Mark the golds among each claim's candidates, bool [candidates]."""
    masks: list[np.ndarray] = []
    for claim in data.claims:
        is_gold = [source in claim.golds for source in run.sources(claim.id)]
        masks.append(np.array(is_gold, bool))
    return masks


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitting:
    """Fit rankers of the first `depth` sources of a system, for claims with a gold.

    The `constant` views score all candidates of a claim equally; the first two of the other
    `views` are in every ranker. `seconds` is the CPU time of each view, `note` describes the
    scores of trained encoders. Papers are dealt to `folds` parts; views and penalty are chosen by
    `rule`.
    """

    system: str
    depth: int
    data: Dataset
    run: Run
    weighing: Weighing
    views: Mapping[str, ViewConfig]
    lists: Lists
    seconds: Mapping[str, float]
    note: str
    constant: tuple[str, ...]
    folds: int
    rule: Rule

    @property
    def names(self) -> list[str]:
        return list(self.views)

    def milliseconds(self, scorer: Scorer) -> dict[str, float]:
        """Measure the CPU milliseconds that each view takes for a new claim, in a batch of 10."""
        # A claim without candidates costs nothing, and loads nothing.
        claims = [claim for claim in self.data.claims if self.run.sources(claim.id)][:_TIMED]
        candidates = []
        for claim in claims:
            candidates.append(self.run.sources(claim.id))
        times = {}
        for name, view in self.views.items():
            scorer.scores(view, claims[:1], candidates[:1], fresh=True)  # loads the model
            started = time.process_time()
            scorer.scores(view, claims, candidates, fresh=True)
            times[name] = 1000 * (time.process_time() - started) / max(len(claims), 1)
        return times

    def linear_on(self, names: Sequence[str]) -> np.ndarray:
        """Rank claims by a linear ranker of these views that was fitted on other papers."""
        visible = self.lists.select_views([self.names.index(name) for name in names])
        return held_out(visible, deal_papers(visible.groups, self.folds, _SEED), PENALTIES[0])

    def choose(self, lists: Lists, weighing: Weighing, seed: int) -> tuple[Recipe, Choice]:
        scores = try_recipes(lists, deal_papers(lists.groups, self.folds, seed), PENALTIES)
        none: dict[Recipe, Table] = dict.fromkeys(scores, {})
        return choose(
            "learned fusion",
            scores,
            weighing,
            settings=lambda recipe: {
                "views": ", ".join(self.names[view] for view in recipe.views),
                "penalty": recipe.penalty,
            },
            # Fewer views are nearer to the base; a penalty counts less than a view.
            by=Preference(
                self.rule,
                distance=lambda recipe: (
                    len(recipe.views) + PENALTIES.index(recipe.penalty) / len(PENALTIES)
                ),
            ),
            tables=none,
            trials=True,
            note="; ".join(filter(None, ("on held-out papers", self.note))),
        )

    def nested(self) -> np.ndarray:
        """Rank claims by rankers whose views, penalty and weights come from other papers."""
        folds = deal_papers(self.lists.groups, self.folds, _SEED)
        values = np.zeros(len(folds))
        for fold in np.unique(folds):
            in_fold = folds == fold
            others = self.lists.of(~in_fold)
            weighing = self.weighing.select_claims(~in_fold)
            recipe, _ = self.choose(others, weighing, _SEED + 1)
            visible = self.lists.select_views(recipe.views)
            values[in_fold] = rank_fold(visible, in_fold, recipe.penalty)
        return values

    def fit(self, scorer: Scorer) -> tuple[LearnedFusion, Choice]:
        """Choose views and fit weights on all claims; name the data in the fusion."""
        lists = self.lists
        data = self.data
        recipe, choice = self.choose(lists, self.weighing, _SEED)
        weights = fit_linear(lists.select_views(recipe.views), recipe.penalty).tolist()
        fitted = FittingData(
            data.name,
            data.split,
            int(lists.reachable.sum()),
            len(np.unique(lists.groups[lists.reachable])),
            data.fingerprint,
            self.system,
            self.depth,
            recipe.penalty,
            self.note,
            TrainedOn.on(data.claims).as_text(),
        )
        views = []
        for number, weight in zip(recipe.views, weights, strict=True):
            name = self.names[number]
            scale = float(lists.scale[number])
            view = self.views[name]
            views.append(LearnedView(name, view, scorer.key(view), scale, weight))
        return LearnedFusion(tuple(views), fitted), choice
