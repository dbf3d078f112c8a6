"""Choose settings by their scores on val, with a declared mix of claims and robust to noise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from claim2source.core.config import require
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Rule, Settings, Table, Trial
from claim2source.core.run import Run
from claim2source.data.grouping import gold_groups
from claim2source.metrics.families import Family, compare_family, language_strata
from claim2source.metrics.metrics import (
    Scores,
    evaluate,
    judged_claims,
    language_masks,
    language_table,
    macro,
)
from claim2source.metrics.significance import standard_errors

# Depth of the metrics that settings are chosen by.
DEPTH = 5
# Setting -> values to try, the default first. Settings that need no new index come last.
Grid = tuple[tuple[str, tuple[Any, ...]], ...]
Setting = TypeVar("Setting")


SEEN, UNSEEN = "seen", "unseen"


@dataclass(frozen=True, eq=False)
class Weighing:
    """Weights of the claims that settings are chosen on.

    `weights` [claims] sum to 1; `groups` number each claim's group of connected golds, `seen`
    is whether its paper is seen, in the order of `claim_ids`. `seen_share` is the weight of seen
    papers; None if the claims are all of one part: then scores are macro averages over languages.
    Settings are chosen by `metric` over lists cut at 5.
    """

    data: Dataset
    claim_ids: tuple[str, ...]
    weights: np.ndarray
    groups: np.ndarray
    seen: np.ndarray
    seen_share: float | None = None
    metric: str = MAIN_METRIC

    def of(self, run: Run) -> np.ndarray:
        """Return a run's values of the metric by claim, [claims] float64."""
        scores = evaluate(run, self.data.qrels, [self.metric], self.claim_ids)
        return scores[self.metric]

    def score(self, values: np.ndarray) -> float:
        """Return the score that settings are chosen by.

        It is rounded to 12 digits, so that sums of reciprocal ranks do not depend on their order.
        """
        average = float(values @ self.weights)
        return round(average, 12)

    def select_claims(self, claims: np.ndarray) -> Weighing:
        """Return the weighing of some of the claims, bool [claims], with the same weights."""
        all_ids = np.array(self.claim_ids, dtype=object)
        ids = all_ids[claims].tolist()
        weights = self.weights[claims]
        return replace(
            self,
            claim_ids=tuple(ids),
            weights=weights / weights.sum(),
            groups=self.groups[claims],
            seen=self.seen[claims],
        )

    def table(self, values: np.ndarray, part: str | None = None) -> Table:
        """Average by language and `macro`, over all claims or the part `seen` or `unseen`.

        A part without claims has no scores.
        """
        among: np.ndarray | None = None
        if part is not None:
            among = self.seen if part == SEEN else ~self.seen
        scores = Scores(self.claim_ids, {self.metric: values})
        rows = language_table(scores, self.data.claims, among)
        if not rows:
            return {}
        return {**rows, MACRO: macro(rows)}


def weigh(
    on: Dataset,
    seen: Collection[str] = (),
    seen_share: float | None = None,
    language: str = MACRO,
    metric: str = MAIN_METRIC,
) -> Weighing:
    """Weigh the claims with a gold: `seen_share` for the ids `seen`, the rest for the others.

    Each language has the same weight, or a named one has all of it. A language that lacks a
    part uses the other. Without a share, or without both parts, a language's claims have equal
    weights. Raises ValueError if no claim has a gold.
    """
    ids = (claim.id for claim in on.claims)
    judged = on.qrels.restricted(ids)
    claims = judged_claims(judged)
    if not claims:
        raise ValueError("no claim has a gold")
    of_seen = np.array([claim in seen for claim in claims], dtype=bool)
    has_both_parts = seen_share is not None and of_seen.any() and not of_seen.all()
    is_share = seen_share is None or 0 <= seen_share <= 1
    require(is_share, "seen_share", seen_share, "0 to 1")

    masks = language_masks(on.claims, claims)
    masks_of_part = masks if language == MACRO else {language: masks[language]}
    weights = np.zeros(len(claims))
    for mask in masks_of_part.values():
        seen_part = mask & of_seen
        unseen_part = mask & ~of_seen
        parts = [(mask, 1.0)]
        if has_both_parts and seen_part.any() and unseen_part.any():
            assert seen_share is not None
            unseen_share = 1 - seen_share
            parts = [(seen_part, seen_share), (unseen_part, unseen_share)]
        for part, mix in parts:
            equal_parts = len(masks_of_part) * part.sum()
            weights[part] = mix / equal_parts
    groups = gold_groups(on.qrels, claims)
    return Weighing(
        on,
        claims,
        weights,
        groups,
        of_seen,
        seen_share if has_both_parts else None,
        metric,
    )


@dataclass(frozen=True)
class Preference:
    """Rule of choosing a setting by scores.

    `one_se`: of the settings within one standard error of the difference to the best (paired, by
    gold paper), the one nearest to the default, by `distance`; without `distance` the settings are
    ordered by it, the default first. `best`: the setting with the best score; of equal ones the
    first, or with `group` the middle one of the first group that has the best score (settings of a
    group differ in a single weight).

    A setting below `floor` on val is never chosen.
    """

    rule: Rule = "one_se"
    distance: Callable[[Any], float] | None = None
    floor: Any = None
    group: Callable[[Any], object] | None = None


def choose(
    name: str,
    candidates: Mapping[Setting, np.ndarray],
    weighing: Weighing,
    *,
    settings: Callable[[Setting], Settings] = lambda setting: asdict(setting),  # type: ignore[call-overload]
    by: Preference = Preference(),
    tables: Mapping[Setting, Table] | None = None,
    trials: bool = False,
    note: str = "",
) -> tuple[Setting, Choice]:
    """Choose a setting by its values on val, [claims] each, and record the choice.

    `by` is the rule. `trials` records every setting's scores, with its own table if there are
    `tables`.
    """
    if not candidates:
        raise ValueError(f"{name}: no settings to choose from")
    scores = {setting: weighing.score(values) for setting, values in candidates.items()}
    selected, best, error = _selected(candidates, scores, weighing, by)
    reason = ""
    if selected != best:
        all_settings = map(settings, candidates)
        varied = _varied_settings(settings(best), all_settings)
        top = max(scores.values())
        reason = _reason_for_choice(varied, top, scores[selected], error[selected])
    tried: list[Trial] = []
    if trials:
        for setting, values in candidates.items():
            table = weighing.table(values) if tables is None else tables[setting]
            trial = Trial(settings(setting), scores[setting], table)
            tried.append(trial)
    choice = Choice(
        name,
        settings(selected),
        float(candidates[selected] @ weighing.weights),
        weighing.data.split,
        len(weighing.claim_ids),
        metric=weighing.metric,
        note=note,
        tried=tuple(tried),
        rule=by.rule,
        seen_share=weighing.seen_share,
        best=settings(best),
        best_score=scores[best],
        error=error[selected],
        compared=len(candidates),
        reason=reason,
    )
    return selected, choice


def _selected(
    candidates: Mapping[Setting, np.ndarray],
    scores: Mapping[Setting, float],
    weighing: Weighing,
    by: Preference,
) -> tuple[Setting, Setting, dict[Setting, float]]:
    """Return the chosen setting, the best one, and all standard errors of differences from it."""
    top = max(scores.values())
    best = [setting for setting, score in scores.items() if score == top]
    first = best[0]
    if by.rule == "best":
        if by.group is not None:
            first = _middle_of_group(best, by.group)
        no_errors = dict.fromkeys(candidates, 0.0)
        return first, first, no_errors
    error = _errors_from_best(candidates, first, weighing)
    floor = -np.inf if by.floor is None else scores[by.floor]
    near = _near_best(scores, error, top, floor)
    selected = _nearest_to_default(near, scores, by.distance)
    if scores[selected] == top:
        first = selected
    return selected, first, error


def _middle_of_group(best: Sequence[Setting], group: Callable[[Setting], Any]) -> Setting:
    """Return the middle one of the settings in the first one's group."""
    first_group = group(best[0])
    members = [setting for setting in best if group(setting) == first_group]
    middle = len(members) // 2
    return members[middle]


def _errors_from_best(
    candidates: Mapping[Setting, np.ndarray],
    best: Setting,
    weighing: Weighing,
) -> dict[Setting, float]:
    """Compute the standard error of each setting's difference from the best one."""
    best_values = candidates[best]
    differences = np.stack([best_values - values for values in candidates.values()])
    errors = standard_errors(differences, weighing.groups, weighing.weights)
    return dict(zip(candidates, errors.tolist(), strict=True))


def _near_best(
    scores: Mapping[Setting, float],
    error: Mapping[Setting, float],
    top: float,
    floor: float,
) -> list[Setting]:
    """List the settings within one standard error of the best score, none below the floor."""
    near = []
    for setting, score in scores.items():
        beyond = top - score - error[setting]
        if score >= floor and round(beyond, 12) <= 0:
            near.append(setting)
    return near


def _nearest_to_default(
    near: Sequence[Setting],
    scores: Mapping[Setting, float],
    distance: Callable[[Setting], float] | None,
) -> Setting:
    """Choose the setting nearest to the default; of equally near ones the best, then the first."""
    steps = {setting: float(position) for position, setting in enumerate(scores)}

    def rank(setting: Setting) -> tuple[float, float, float]:
        step = steps[setting]
        far = step if distance is None else distance(setting)
        return round(far, 12), -scores[setting], step

    return min(near, key=rank)


def _varied_settings(best: Settings, others: Iterable[Settings]) -> Settings:
    """Return the best one's settings that differ among all."""
    all_settings = list(others)
    varied = {}
    for key, value in best.items():
        if any(item.get(key) != value for item in all_settings):
            varied[key] = value
    return varied


def _reason_for_choice(best: Settings, top: float, score: float, error: float) -> str:
    """Explain the choice of a setting that is not the best; `best` has the differing settings."""
    texts = [f"{key} {_value_text(value)}" for key, value in best.items()]
    changes = ", ".join(texts)
    return (
        f"{changes} is best with {top:.4f}; this setting is nearer to the default and has "
        f"{score:.4f}, within one standard error ({error:.4f})"
    )


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def choice_score(table: Table) -> float:
    """Return the macro average, by which settings are chosen.

    It is rounded to 12 digits, so that sums of reciprocal ranks do not depend on their order.
    """
    average = table[MACRO][MAIN_METRIC]
    return round(float(average), 12)


def settle(
    parts: Sequence[tuple[Setting, Choice]],
    candidates: Mapping[Setting, np.ndarray],
    weighing: Weighing,
) -> tuple[Setting, Choice]:
    """Choose among analyses, each with its chosen settings.

    The first is kept unless others are better by the paired test by gold paper, after Holm; then
    the best of these is chosen. Claims of one paper repeat its words, so the plain maximum would
    depend on a few papers with many claims.
    """
    names = [str(number) for number in range(len(parts))]
    scores: dict[str, np.ndarray] = {}
    for name, (setting, _) in zip(names, parts, strict=True):
        scores[name] = candidates[setting]
    strata = language_strata(weighing.data.claims, weighing.claim_ids)
    family = Family.against("analyses", names[0], names[1:])
    tested = compare_family(scores, family, weighing.groups, strata)
    verdicts: list[str] = ["given"]
    for comparison in tested.comparisons:
        verdicts.append(comparison.verdict)

    better = [number for number, verdict in enumerate(verdicts) if verdict == "better"]

    def score(number: int) -> float:
        _, own_choice = parts[number]
        return own_choice.score

    best = max(better, key=score, default=0)
    setting, choice = parts[best]
    trials: list[Trial] = []
    compared = 0
    for (_, own_choice), verdict in zip(parts, verdicts, strict=True):
        chosen = own_choice.settings.items()
        (trial,) = (tried for tried in own_choice.tried if tried.settings.items() <= chosen)
        trials.append(replace(trial, verdict=verdict))
        compared += own_choice.compared
    note = "an analysis other than the given one is chosen only if a paired test finds it better"
    settled = replace(
        choice,
        tried=tuple(trials),
        compared=compared,
        note=note,
    )
    return setting, settled


def choose_from_grid(
    name: str,
    candidates: Mapping[Any, np.ndarray],
    grid: Grid,
    weighing: Weighing,
    rule: Rule,
) -> tuple[Any, Choice]:
    """Choose one of a grid's settings; the record has the settings that differ in the grid.

    Distance from the first one, the default, is in steps of the grid.
    """
    steps = {name: sorted(set(values)) for name, values in grid}
    first = next(iter(candidates))

    def distance(setting: object) -> float:
        total = 0
        for key, values in steps.items():
            own = values.index(getattr(setting, key))
            default = values.index(getattr(first, key))
            total += abs(own - default)
        return total

    by = Preference(rule, distance)
    setting, choice = choose(name, candidates, weighing, by=by, trials=True)
    trials: list[Trial] = []
    for trial in choice.tried:
        varied = {key: trial.settings[key] for key in steps}
        reduced = replace(trial, settings=varied, scores={})
        trials.append(reduced)
    recorded = replace(choice, tried=tuple(trials))
    return setting, recorded


def grid_settings(base: Setting, grid: Grid) -> list[Setting]:
    """List a grid's settings, the default first."""
    names = [name for name, _ in grid]
    lists = [values for _, values in grid]
    settings: dict[Setting, None] = {}
    for cell in product(*lists):
        changes = dict(zip(names, cell, strict=True))
        setting = replace(base, **changes)  # type: ignore[type-var]
        settings[setting] = None
    return list(settings)


def by_analysis(settings: Sequence[Setting], *weights: str) -> list[tuple[Setting, list[Setting]]]:
    """Group settings that differ only in these weights: the first and all of each group."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        all_values = asdict(setting)  # type: ignore[call-overload]
        values = {key: value for key, value in all_values.items() if key not in weights}
        group = groups.setdefault(repr(values), [])
        group.append(setting)
    return [(group[0], group) for group in groups.values()]
