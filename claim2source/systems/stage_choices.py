"""Choose what a stage leaves to be fitted: a mix, a verdict's threshold, a margin of doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claim2source.core.records import Dataset
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result
from claim2source.evaluation.rumors import MACRO_F1, macro_f1
from claim2source.stages.stance import HIGHEST, MEAN, Stance, verdict_of
from claim2source.systems.choose import MARGIN, choose, choose_margin
from claim2source.systems.heldout import NothingToChooseOn, SelectionData
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import FIT, MIX, THRESHOLD, WHEN, applied, is_fit
from claim2source.systems.when import WhenConfig

# The default, nothing of the stage before, is the first.
MIXES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
# Of a verdict: the default first.
THRESHOLDS = tuple(
    dict.fromkeys([Stance.threshold, *(round(step / 20, 2) for step in range(1, 20 * HIGHEST + 1))])
)
Entry = Mapping[str, Any]


def fit_stages(
    entries: Sequence[Entry],
    before: Sequence[tuple[str, Result]],
    data: Dataset,
    selection: SelectionData,
    runtime: SystemRuntime,
    rule: Rule = "one_se",
) -> tuple[tuple[Entry, ...], list[Choice]]:
    """Choose the `mix`, `threshold` and `when.margin_below` that are `fit` on claims of val.

    `before` are the named results of the first stage for `data`, the claims of val with a gold.
    Pairs are scored once: their scores are in the store.
    """
    named, fitted, choices = list(before), list[Entry](), list[Choice]()
    last = max((place for place, entry in enumerate(entries) if is_fit(entry)), default=-1)
    for place, entry in enumerate(entries):
        if entry.get(MIX) == FIT:
            entry, choice = _with_mix(entry, named, data, selection, runtime, rule)
            choices.append(choice)
        if entry.get(THRESHOLD) == FIT:
            entry, choice = _with_threshold(entry, named, data, selection, runtime)
            choices.append(choice)
        if is_fit(entry):
            entry, choice = _with_margin(entry, named, data, runtime, rule)
            choices.append(choice)
        fitted.append(entry)
        if place < last:
            named += applied([entry], named, data.claims, data.sources, runtime)
    return tuple(fitted), choices


def _with_mix(
    entry: Entry,
    named: Sequence[tuple[str, Result]],
    data: Dataset,
    selection: SelectionData,
    runtime: SystemRuntime,
    rule: Rule,
) -> tuple[Entry, Choice]:
    weighing = selection.weighing(data)

    def of(mix: float) -> Result:
        stages = [{**entry, MIX: mix}]
        ((_, result),) = applied(stages, named, data.claims, data.sources, runtime)
        return result

    mix, choice = choose(
        MIX,
        {mix: weighing.of(of(mix).run) for mix in MIXES},
        weighing,
        settings=lambda mix: {MIX: mix},
        distance=lambda mix: mix,
        rule=rule,
        trials=True,
        note=selection.note,
    )
    return {**entry, MIX: mix}, choice


def _with_margin(
    entry: Entry,
    named: Sequence[tuple[str, Result]],
    data: Dataset,
    runtime: SystemRuntime,
    rule: Rule,
) -> tuple[Entry, Choice]:
    everywhere = {key: value for key, value in entry.items() if key != WHEN}
    ((_, after),) = applied([everywhere], named, data.claims, data.sources, runtime)
    when = WhenConfig(1.0, bool(entry[WHEN].get("disagree", False)))
    earlier = named[-2][1].run if len(named) > 1 else None
    margin, choice = choose_margin(named[-1][1].run, after.run, data, when, earlier, rule=rule)
    return {**entry, WHEN: {**entry[WHEN], MARGIN: margin}}, choice


def _with_threshold(
    entry: Entry,
    named: Sequence[tuple[str, Result]],
    data: Dataset,
    selection: SelectionData,
    runtime: SystemRuntime,
) -> tuple[Entry, Choice]:
    """Choose a verdict's threshold by macro-F1; of equal ones the nearest to the default."""
    if not data.claims or not all(claim.id in selection.labels for claim in data.claims):
        raise NothingToChooseOn(f"{THRESHOLD}: fit: the claims to choose on have no verdicts")
    ((_, result),) = applied([entry], named, data.claims, data.sources, runtime)
    means = [result.details.get(claim.id, {}).get(MEAN) for claim in data.claims]
    actual = [selection.labels[claim.id] for claim in data.claims]
    scores = {t: macro_f1(actual, [verdict_of(m, t) for m in means]) for t in THRESHOLDS}
    best = max(scores, key=lambda t: (round(scores[t], 12), -abs(t - Stance.threshold)))
    settings, score = {THRESHOLD: best}, scores[best]
    choice = Choice(
        THRESHOLD,
        settings,
        score,
        data.split,
        len(actual),
        metric=MACRO_F1,
        best=settings,
        best_score=score,
        compared=len(scores),
    )
    return {**entry, THRESHOLD: best}, choice
