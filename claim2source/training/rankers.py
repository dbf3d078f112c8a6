"""Fit rankers of candidates by several similarities, and choose among views by held-out papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.errors import UserError
from claim2source.stages.learned import known

# As deep as the metric that is chosen by.
_CUT = 5


@dataclass(frozen=True, eq=False)
class Lists:
    """Hold the candidates of claims with what the views say of them, padded to the longest list.

    `features` [claims, longest, views] float32 are scores divided by `scale` [views]; `found` and
    `gold` [claims, longest] bool mark candidates and golds. `weights` [claims] sum to 1, `groups`
    [claims] number the papers.
    """

    features: np.ndarray
    found: np.ndarray
    gold: np.ndarray
    weights: np.ndarray
    groups: np.ndarray
    scale: np.ndarray

    def of(self, claims: np.ndarray) -> Lists:
        """Keep some claims, by a mask or by numbers."""
        weights = self.weights[claims]
        return Lists(
            self.features[claims],
            self.found[claims],
            self.gold[claims],
            weights / weights.sum(),
            self.groups[claims],
            self.scale,
        )

    def seeing(self, views: Sequence[int]) -> Lists:
        """Keep some views."""
        features = np.ascontiguousarray(self.features[:, :, list(views)])
        scale = self.scale[list(views)]
        return Lists(features, self.found, self.gold, self.weights, self.groups, scale)

    @property
    def reachable(self) -> np.ndarray:
        """Tell which claims have a gold among their candidates, bool [claims]."""
        return np.asarray(self.gold.any(axis=1))


def make_lists(
    columns: Sequence[Sequence[np.ndarray]],
    gold: Sequence[np.ndarray],
    weights: np.ndarray,
    groups: np.ndarray,
) -> Lists:
    """Pad raw scores (for each view an array for each claim) and measure the views' spread.

    A view's scale is the root of its mean variance among a claim's candidates; 1 where it has none.
    """
    lengths = [len(one) for one in gold]
    shape = (len(gold), max(lengths, default=0))
    features = np.zeros((*shape, len(columns)), np.float32)
    found, golds = np.zeros(shape, bool), np.zeros(shape, bool)
    scale = np.ones(len(columns))
    for row, one in enumerate(gold):
        found[row, : len(one)], golds[row, : len(one)] = True, one
    for place, column in enumerate(columns):
        scores = [known(one) for one in column]
        spread = float(np.sqrt(np.mean([one.var() if len(one) else 0.0 for one in scores])))
        scale[place] = spread if spread > 1e-9 else 1.0
        for row, one in enumerate(scores):
            features[row, : len(one), place] = one / scale[place]
    return Lists(features, found, golds, weights, groups, scale)


def fit_linear(
    lists: Lists, penalty: float, signed: np.ndarray, start: np.ndarray | None = None
) -> np.ndarray:
    """Fit weights [views] by the listwise softmax loss over each claim's candidates.

    The loss of a claim is the mean over its golds of -log softmax; to the weighted mean over claims
    with a gold among their candidates, `penalty` / 2 times the squared weights is added. Weights
    are at least 0 where `signed` [views] is false. Raises `UserError` where no claim has a gold.
    """
    from scipy.optimize import minimize

    kept = lists.of(lists.reachable) if not lists.reachable.all() else lists
    if not len(kept.weights):
        raise UserError("no claim has a gold among its candidates: nothing to fit on")
    flat = kept.features.reshape(-1, kept.features.shape[2])
    target = kept.gold / kept.gold.sum(axis=1, keepdims=True)
    share = kept.weights[:, None]

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        scores = (flat @ weights.astype(np.float32)).reshape(kept.found.shape).astype(np.float64)
        scores = np.where(kept.found, scores, -np.inf)
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        total = odds.sum(axis=1, keepdims=True)
        of_gold = np.where(kept.gold, scores, 0.0)
        value = share[:, 0] @ (np.log(total[:, 0]) - (of_gold * target).sum(axis=1))
        pull = (share * (odds / total - target)).ravel().astype(np.float32)
        slope = (pull @ flat).astype(np.float64)
        return float(value + penalty / 2 * weights @ weights), slope + penalty * weights

    first = np.full(flat.shape[1], 0.5) if start is None else start
    bounds = [(None, None) if free else (0, None) for free in signed]
    options = {"maxiter": 500, "ftol": 1e-9, "gtol": 1e-5}
    found: np.ndarray = minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    return found


def reciprocal_ranks(scores: np.ndarray, lists: Lists) -> np.ndarray:
    """Return reciprocal ranks cut at 5, [claims]; equal scores keep the lists' order."""
    scores = np.where(lists.found, scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_CUT]
    hit = np.take_along_axis(lists.gold, order, axis=1)
    first = hit.argmax(axis=1)
    found: np.ndarray = np.where(hit.any(axis=1), 1 / (first + 1), 0.0)
    return found


def deal_papers(groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Deal papers to folds, at random and evenly by claims; returns the fold of each claim.

    Raises `UserError` where there are fewer papers than folds.
    """
    papers, counts = np.unique(groups, return_counts=True)
    if len(papers) < folds:
        raise UserError(f"a fusion is fitted on {folds} papers at least; there are {len(papers)}")
    shuffled = np.random.default_rng(seed).permutation(len(papers))
    load, fold_of = np.zeros(folds), np.empty(len(papers), np.int64)
    # The largest first; papers of as many claims come in random order.
    for paper in sorted(shuffled.tolist(), key=lambda one: -counts[one]):
        fold_of[paper] = fold = int(load.argmin())
        load[fold] += counts[paper]
    found: np.ndarray = fold_of[np.searchsorted(papers, groups)]
    return found


Scored = Callable[[Lists, Lists], np.ndarray]


def held_out(lists: Lists, folds: np.ndarray, scored: Scored) -> np.ndarray:
    """Rank each fold's claims by what is fitted on the others: reciprocal ranks [claims]."""
    found = np.zeros(len(folds))
    for fold in np.unique(folds):
        mine = folds == fold
        test = lists.of(mine)
        found[mine] = reciprocal_ranks(scored(lists.of(~mine), test), test)
    return found


def linear(penalty: float, signed: np.ndarray) -> Scored:
    """Score held-out claims by the weights that are fitted on others."""

    def scored(train: Lists, test: Lists) -> np.ndarray:
        found: np.ndarray = test.features @ fit_linear(train, penalty, signed).astype(np.float32)
        return found

    return scored


@dataclass(frozen=True)
class Recipe:
    """Name the views of a linear ranker, by number, and its penalty."""

    views: tuple[int, ...]
    penalty: float


def forward_path(
    lists: Lists, folds: np.ndarray, signed: np.ndarray, base: Sequence[int], penalty: float
) -> list[tuple[int, ...]]:
    """Add to the base, one after the other, the view that helps most on held-out papers.

    Returns the sets of views, the base first.
    """
    path = [tuple(base)]
    left = [view for view in range(len(signed)) if view not in base]
    while left:

        def helped(view: int) -> float:
            views = [*path[-1], view]
            values = held_out(lists.seeing(views), folds, linear(penalty, signed[views]))
            return round(float(values @ lists.weights), 12)

        best = max(left, key=helped)
        left.remove(best)
        path.append((*path[-1], best))
    return path


def try_recipes(
    lists: Lists,
    folds: np.ndarray,
    signed: np.ndarray,
    base: Sequence[int],
    penalties: Sequence[float],
) -> dict[Recipe, np.ndarray]:
    """Score on held-out papers each set of views of a path at each penalty, nearest first.

    The first penalty is the one by which the path is made.
    """
    tried = {}
    for views in forward_path(lists, folds, signed, base, penalties[0]):
        seen = lists.seeing(views)
        for penalty in penalties:
            recipe = Recipe(views, penalty)
            tried[recipe] = held_out(seen, folds, linear(penalty, signed[list(views)]))
    return tried
