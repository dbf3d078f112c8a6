"""Fit a learned fusion: score candidates by views, and choose views by held-out papers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.report import Choice, Rule, Settings, Table
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
        total = weights.sum()
        return replace(
            self,
            features=self.features[claims],
            is_candidate=self.is_candidate[claims],
            gold=self.gold[claims],
            weights=weights / total,
            groups=self.groups[claims],
        )

    def select_views(self, views: Sequence[int]) -> Lists:
        columns = list(views)
        selected = self.features[:, :, columns]
        return replace(
            self,
            features=np.ascontiguousarray(selected),
            scale=self.scale[columns],
            signed=self.signed[columns],
        )

    @property
    def reachable(self) -> np.ndarray:
        """Determine which claims have a gold among their candidates, bool [claims]."""
        has_gold = self.gold.any(axis=1)
        return np.asarray(has_gold)


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
    longest = max(map(len, gold), default=0)
    shape = (len(gold), longest)
    features = np.zeros((*shape, len(columns)), np.float32)
    is_listed = np.zeros(shape, bool)
    golds = np.zeros(shape, bool)
    scale = np.ones(len(columns))
    for row, values in enumerate(gold):
        count = len(values)
        is_listed[row, :count] = True
        golds[row, :count] = values
    for number, column in enumerate(columns):
        scores = [filled(values) for values in column]
        spread = _spread(scores)
        scale[number] = spread if spread > 1e-9 else 1.0
        for row, values in enumerate(scores):
            count = len(values)
            features[row, :count, number] = values / scale[number]
    return Lists(
        features,
        is_listed,
        golds,
        weights,
        groups,
        scale,
        signed,
    )


def _spread(scores: Sequence[np.ndarray]) -> float:
    """Compute the root of the mean variance among a claim's candidates."""
    variances = [score.var() if len(score) else 0.0 for score in scores]
    mean = np.mean(variances)
    return float(np.sqrt(mean))


def fit_linear(lists: Lists, penalty: float) -> np.ndarray:
    """Fit weights [views] by the listwise softmax loss over each claim's candidates.

    The loss of a claim is the mean of -log softmax over its golds. The total is the weighted mean
    over claims with a gold among their candidates, plus `penalty` / 2 times the squared weights.
    Raises `UserError` if no claim has a gold.
    """
    from scipy.optimize import minimize

    is_reachable = lists.reachable
    reachable = lists if is_reachable.all() else lists.of(is_reachable)
    if not len(reachable.weights):
        raise UserError("no claim has a gold among its candidates, so there is nothing to fit on")
    views = reachable.features.shape[2]
    flat = reachable.features.reshape(-1, views)
    golds_per_claim = reachable.gold.sum(axis=1, keepdims=True)
    target = reachable.gold / golds_per_claim
    share = reachable.weights

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = flat @ weights.astype(np.float32)
        scores = scores.reshape(reachable.gold.shape)
        scores = np.where(reachable.is_candidate, scores.astype(np.float64), -np.inf)
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        total = odds.sum(axis=1, keepdims=True)

        gold_scores = np.where(reachable.gold, scores, 0.0)
        gold_means = (gold_scores * target).sum(axis=1)
        by_claim = np.log(total[:, 0]) - gold_means
        value = share @ by_claim + penalty / 2 * weights @ weights

        pull = share[:, None] * (odds / total - target)
        flat_pull = pull.ravel().astype(np.float32)
        slope = (flat_pull @ flat).astype(np.float64)
        return float(value), slope + penalty * weights

    bounds: list[tuple[int | None, None]] = []
    for is_signed in lists.signed:
        least = None if is_signed else 0
        bounds.append((least, None))
    fitted = minimize(
        loss,
        np.full(views, 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 500, "ftol": 1e-9, "gtol": 1e-5},
    )
    weights: np.ndarray = fitted.x
    return weights


def reciprocal_ranks(scores: np.ndarray, lists: Lists) -> np.ndarray:
    """Return reciprocal ranks cut at 5, [claims]; equal scores keep the lists' order."""
    scores = np.where(lists.is_candidate, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    first_places = order[:, :_DEPTH]
    is_hit = np.take_along_axis(lists.gold, first_places, axis=1)
    has_hit = is_hit.any(axis=1)
    rank = is_hit.argmax(axis=1) + 1
    return np.where(has_hit, 1 / rank, 0.0)


def deal_papers(
    groups: np.ndarray,
    folds: int,
    seed: int,
) -> np.ndarray:
    """Deal papers to folds, at random and evenly by claims; returns the fold of each claim.

    Raises `UserError` if there are fewer papers than folds.
    """
    papers, numbers, counts = np.unique(
        groups,
        return_inverse=True,
        return_counts=True,
    )
    count = len(papers)
    if count < folds:
        raise UserError(f"a fusion needs at least {folds} papers; there are {count}")
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(count).tolist()
    load = np.zeros(folds)
    fold_by_paper = np.empty(count, np.int64)
    # The largest first; papers with equally many claims are in random order.
    for paper in sorted(shuffled, key=lambda number: -counts[number]):
        fold = int(load.argmin())
        fold_by_paper[paper] = fold
        load[fold] += counts[paper]
    return fold_by_paper[numbers]


def held_out(
    lists: Lists,
    folds: np.ndarray,
    penalty: float,
) -> np.ndarray:
    """Rank each fold's claims by weights fitted on the others: reciprocal ranks [claims]."""
    values = np.zeros(len(folds))
    for fold in np.unique(folds):
        in_fold = folds == fold
        values[in_fold] = rank_fold(lists, in_fold, penalty)
    return values


def rank_fold(
    lists: Lists,
    in_fold: np.ndarray,
    penalty: float,
) -> np.ndarray:
    """Rank a fold's claims by weights fitted on the others: reciprocal ranks [claims]."""
    test = lists.of(in_fold)
    others = lists.of(~in_fold)
    weights = fit_linear(others, penalty)
    scores = test.features @ weights.astype(np.float32)
    return reciprocal_ranks(scores, test)


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
        visible = lists.select_views(views)
        values = held_out(visible, folds, penalties[0])
        mean = float(values @ lists.weights)
        return round(mean, 12)

    results = {}
    numbers = list(range(len(lists.scale)))
    views = numbers[:2]
    remaining = numbers[2:]
    while True:
        visible = lists.select_views(views)
        for penalty in penalties:
            recipe = Recipe(tuple(views), penalty)
            results[recipe] = held_out(visible, folds, penalty)
        if not remaining:
            return results
        best = max(remaining, key=lambda view: score([*views, view]))
        views = [*views, best]
        remaining.remove(best)


def known_claims(
    views: Mapping[str, ViewConfig],
    system: System,
    held_out: HeldOut,
) -> SelectionData:
    """Find the claims that no model of the views and of the candidates was trained on.

    If no model was trained, these are all of train. Raises `UserError` if none is left.
    """
    configs = [view.model for view in views.values()] + system.dense_models
    names = [config.name for config in configs if config is not None]
    names += system.models()
    manifests = map(read_any_manifest, dict.fromkeys(names))
    return held_out.claims(manifests, system.fitted_on())


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
    is_held_out = selection.val is not selection.train
    data = selection.val.with_claims(claim for claim in selection.val.claims if claim.golds)
    depth = runner.settings.depth
    ranked = runner.run(system, form, data)
    run = ranked.result.run.top(depth)
    # Held-out claims must not know each other; claims of all of train know all but themselves.
    hidden = selection.val.claims if is_held_out else ()
    columns, seconds = _score_views(views, scorer, data, run, hidden)
    seen = selection.seen
    share = selection.seen_share
    if expected is not None:
        share = expected
        if not hidden:
            seen = claims_of_shared_papers(data)
    weighing = weigh(data, seen, share)

    telling, constant = _split_views(views, columns)
    signed = [not view.is_similarity for view in telling.values()]
    lists = make_lists(
        [columns[name] for name in telling],
        _gold_masks(data, run),
        weighing.weights,
        weighing.groups,
        np.array(signed),
    )
    note = selection.note
    if is_held_out and not note:
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
        constant=constant,
        folds=folds,
        rule=runner.settings.choosing.rule,
    )


def _split_views(
    views: Mapping[str, ViewConfig],
    columns: Mapping[str, Sequence[np.ndarray]],
) -> tuple[dict[str, ViewConfig], tuple[str, ...]]:
    """Find the views that tell a claim's candidates apart, and the names of the others."""
    telling: dict[str, ViewConfig] = {}
    constant: list[str] = []
    for name, view in views.items():
        if _tells_apart(columns[name]):
            telling[name] = view
        else:
            constant.append(name)
    return telling, tuple(constant)


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
        view = views[name]
        started = time.process_time()
        columns[name] = scorer.scores(view, data.claims, candidates, hidden=hidden)
        seconds[name] = time.process_time() - started
    return columns, seconds


def _tells_apart(column: Sequence[np.ndarray]) -> bool:
    """Whether a view has two different scores for the candidates of any claim."""
    for scores in column:
        known = scores[~np.isnan(scores)]
        different = np.unique(known)
        if len(different) > 1:
            return True
    return False


def _gold_masks(data: Dataset, run: Run) -> list[np.ndarray]:
    """Mark the golds among each claim's candidates, bool [candidates]."""
    masks: list[np.ndarray] = []
    for claim in data.claims:
        candidates = run.sources(claim.id)
        is_gold = [source in claim.golds for source in candidates]
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
        claims: list[Claim] = []
        candidates: list[Sequence[str]] = []
        for claim in self.data.claims:
            sources = self.run.sources(claim.id)
            if sources:
                claims.append(claim)
                candidates.append(sources)
            if len(claims) == _TIMED:
                break
        times = {}
        for name, view in self.views.items():
            scorer.scores(view, claims, candidates, fresh=True)  # loads the model, makes indexes
            started = time.process_time()
            scorer.scores(view, claims, candidates, fresh=True)
            seconds = time.process_time() - started
            times[name] = 1000 * seconds / max(len(claims), 1)
        return times

    def linear_on(self, names: Sequence[str]) -> np.ndarray:
        """Rank claims by a linear ranker of these views that was fitted on other papers."""
        views = [self.names.index(name) for name in names]
        visible = self.lists.select_views(views)
        folds = deal_papers(visible.groups, self.folds, _SEED)
        return held_out(visible, folds, PENALTIES[0])

    def choose(
        self,
        lists: Lists,
        weighing: Weighing,
        seed: int,
    ) -> tuple[Recipe, Choice]:
        folds = deal_papers(lists.groups, self.folds, seed)
        scores = try_recipes(lists, folds, PENALTIES)
        none: dict[Recipe, Table] = dict.fromkeys(scores, {})
        # Fewer views are nearer to the base; a penalty counts less than a view.
        preference = Preference(self.rule, distance=_distance)
        notes = filter(None, ("on held-out papers", self.note))
        return choose(
            "learned fusion",
            scores,
            weighing,
            settings=self._settings,
            by=preference,
            tables=none,
            trials=True,
            note="; ".join(notes),
        )

    def _settings(self, recipe: Recipe) -> Settings:
        """Describe a recipe for a table of choices."""
        names = [self.names[view] for view in recipe.views]
        return {
            "views": ", ".join(names),
            "penalty": recipe.penalty,
        }

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
        recipe, choice = self.choose(lists, self.weighing, _SEED)
        visible = lists.select_views(recipe.views)
        weights = fit_linear(visible, recipe.penalty).tolist()
        fitted = self._fitting_data(recipe)
        views = []
        for number, weight in zip(recipe.views, weights, strict=True):
            name = self.names[number]
            view = self.views[name]
            key = scorer.key(view)
            scale = float(lists.scale[number])
            views.append(LearnedView(name, view, key, scale, weight))
        return LearnedFusion(tuple(views), fitted), choice

    def _fitting_data(self, recipe: Recipe) -> FittingData:
        """Name the data that a recipe's weights are fitted on."""
        data = self.data
        reachable = self.lists.reachable
        papers = np.unique(self.lists.groups[reachable])
        trained_on = TrainedOn.on(data.claims)
        return FittingData(
            data.name,
            data.split,
            int(reachable.sum()),
            len(papers),
            data.fingerprint,
            self.system,
            self.depth,
            recipe.penalty,
            self.note,
            trained_on.as_text(),
        )


def _distance(recipe: Recipe) -> float:
    """Count a recipe's views, and its penalty as less than one."""
    penalty_share = PENALTIES.index(recipe.penalty) / len(PENALTIES)
    return len(recipe.views) + penalty_share
