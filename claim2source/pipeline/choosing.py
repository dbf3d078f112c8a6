"""Choose a setting by its scores on val, on a declared mix of claims, and not by noise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from claim2source.core.config import require
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Rule, Settings, Table, Trial
from claim2source.core.run import Run
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.metrics import (
    Scores,
    evaluate,
    judged_claims,
    language_masks,
    language_table,
    macro,
)
from claim2source.evaluation.significance import standard_errors

Setting = TypeVar("Setting")
SEEN, UNSEEN = "seen", "unseen"


@dataclass(frozen=True, eq=False)
class Weighing:
    """Weigh the claims that settings are chosen on.

    `weights` [claims] sum to 1; `groups` number each claim's group of connected golds, `seen`
    tells whether its paper is seen, in the order of `claim_ids`. `seen_share` is the mix; none
    where the claims are all of one part, which leaves the macro average over languages.
    """

    data: Dataset
    claim_ids: tuple[str, ...]
    weights: np.ndarray
    groups: np.ndarray
    seen: np.ndarray
    seen_share: float | None = None

    def of(self, run: Run) -> np.ndarray:
        """Return a run's reciprocal ranks, cut at 5, by claim, [claims] float64."""
        return evaluate(run, self.data.qrels, [MAIN_METRIC], self.claim_ids)[MAIN_METRIC]

    def score(self, values: np.ndarray) -> float:
        """Return the score to choose by.

        To 12 digits: sums of the same reciprocal ranks in another order are equal.
        """
        return round(float(values @ self.weights), 12)

    def among(self, claims: np.ndarray) -> Weighing:
        """Weigh some of the claims, bool [claims], as they are weighed here."""
        ids = np.array(self.claim_ids, dtype=object)[claims].tolist()
        weights = self.weights[claims] / self.weights[claims].sum()
        groups, seen = self.groups[claims], self.seen[claims]
        return replace(self, claim_ids=tuple(ids), weights=weights, groups=groups, seen=seen)

    def table(self, values: np.ndarray, part: str | None = None) -> Table:
        """Average by language, all claims or those of the part `seen` or `unseen`; with `macro`.

        A part without claims is empty.
        """
        among = None if part is None else self.seen if part == SEEN else ~self.seen
        scores = Scores(self.claim_ids, {MAIN_METRIC: values})
        rows = language_table(scores, self.data.claims, among)
        return {**rows, MACRO: macro(rows)} if rows else {}


def weigh(
    on: Dataset,
    seen: Collection[str] = (),
    seen_share: float | None = None,
    language: str = MACRO,
) -> Weighing:
    """Weigh the claims with a gold: `seen_share` for the ids `seen`, the rest for the others.

    Each language has the same weight (all of it is one language's, if named); one that lacks
    a part uses the other. Without a share, or without both parts, a language's claims weigh the
    same. Raises ValueError where no claim has a gold.
    """
    claims = judged_claims(on.qrels.restricted(claim.id for claim in on.claims))
    if not claims:
        raise ValueError("no claim has a gold to choose by")
    of_seen = np.array([claim in seen for claim in claims], dtype=bool)
    mixed = seen_share is not None and of_seen.any() and not of_seen.all()
    require(seen_share is None or 0 <= seen_share <= 1, "seen_share", seen_share, "0 to 1")
    masks = language_masks(on.claims, claims)
    named = masks if language == MACRO else {language: masks[language]}
    weights = np.zeros(len(claims))
    for name in named:
        mask, parts = masks[name], [(masks[name], 1.0)]
        if mixed and (mask & of_seen).any() and (mask & ~of_seen).any():
            assert seen_share is not None
            parts = [(mask & of_seen, seen_share), (mask & ~of_seen, 1 - seen_share)]
        for part, mix in parts:
            weights[part] = mix / (len(named) * part.sum())
    groups = gold_groups(on.qrels, claims)
    return Weighing(on, claims, weights, groups, of_seen, seen_share if mixed else None)


def choose(
    what: str,
    tried: Mapping[Setting, np.ndarray],
    weighing: Weighing,
    *,
    settings: Callable[[Setting], Settings] = lambda setting: asdict(setting),  # type: ignore[call-overload]
    distance: Callable[[Setting], float] | None = None,
    rule: Rule = "one_se",
    floor: Setting | None = None,
    group: Callable[[Setting], Any] | None = None,
    tables: Mapping[Setting, Table] | None = None,
    trials: bool = False,
    note: str = "",
) -> tuple[Setting, Choice]:
    """Choose a setting by reciprocal ranks on val, [claims] each, and record the choice.

    `one_se`: of the settings that are not worse than the best by more than one standard error of
    the difference (paired, by gold paper), the one nearest to the default, by `distance`; without
    it the first is the default and each further one lies further away. `best`: the one with the
    best score; of equal ones the first, or with `group` the middle one of the first group
    that has the best score (settings of a group differ in a single weight).

    A setting below `floor` on val is never taken. `trials` records every setting's scores, with
    its own table where there are `tables`.
    """
    if not tried:
        raise ValueError(f"{what}: no settings to choose from")
    scores = {setting: weighing.score(values) for setting, values in tried.items()}
    top = max(scores.values())
    best = [setting for setting, score in scores.items() if score == top]
    error = dict.fromkeys(tried, 0.0)
    first = best[0]
    if rule == "best":
        if group is not None:
            alike = [setting for setting in best if group(setting) == group(first)]
            first = alike[len(alike) // 2]
        chosen = first
    else:
        differences = np.stack([tried[first] - values for values in tried.values()])
        errors = standard_errors(differences, weighing.groups, weighing.weights)
        error = dict(zip(tried, errors.tolist(), strict=True))
        least = -np.inf if floor is None else scores[floor]
        near = [
            setting
            for setting, score in scores.items()
            if score >= least and round(top - score - error[setting], 12) <= 0
        ]
        steps = {setting: float(place) for place, setting in enumerate(tried)}
        far = {one: steps[one] if distance is None else distance(one) for one in near}
        chosen = min(near, key=lambda one: (round(far[one], 12), -scores[one], steps[one]))
        if scores[chosen] == top:
            first = chosen
    recorded = tuple(
        Trial(
            settings(setting),
            scores[setting],
            tables[setting] if tables is not None else weighing.table(values),
        )
        for setting, values in tried.items()
    )
    return chosen, Choice(
        what,
        settings(chosen),
        float(tried[chosen] @ weighing.weights),
        weighing.data.split,
        len(weighing.claim_ids),
        note=note,
        tried=recorded if trials else (),
        rule=rule,
        seen_share=weighing.seen_share,
        best=settings(first),
        best_score=scores[first],
        error=error[chosen],
        compared=len(tried),
        why="" if chosen == first else _why(settings(first), top, scores[chosen], error[chosen]),
    )


def _why(best: Settings, top: float, score: float, error: float) -> str:
    """Say why another than the best setting was taken."""
    named = ", ".join(f"{key} {_shown(value)}" for key, value in best.items())
    return (
        f"{named} is best with {top:.4f}; this one, nearer to the default, has {score:.4f}, "
        f"within one standard error ({error:.4f})"
    )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
