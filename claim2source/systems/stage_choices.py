"""Choose what a stage leaves to be fitted: a re-ranker's mix, the margin of a doubtful ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claim2source.core.records import Dataset
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result
from claim2source.systems.choose import MARGIN, choose, choose_margin
from claim2source.systems.heldout import SelectionData
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import FIT, MIX, WHEN, applied, is_fit
from claim2source.systems.when import WhenConfig

# The default, nothing of the stage before, is the first.
MIXES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
Entry = Mapping[str, Any]


def fit_stages(
    entries: Sequence[Entry],
    before: Sequence[tuple[str, Result]],
    data: Dataset,
    selection: SelectionData,
    runtime: SystemRuntime,
    rule: Rule = "one_se",
) -> tuple[tuple[Entry, ...], list[Choice]]:
    """Choose the `mix` and `when.margin_below` that are `fit`, by MRR@5 on claims of val.

    `before` are the named results of the first stage for `data`, the claims of val with a gold.
    Pairs are scored once: their scores are in the store.
    """
    named, fitted, choices = list(before), list[Entry](), list[Choice]()
    last = max((place for place, entry in enumerate(entries) if is_fit(entry)), default=-1)
    for place, entry in enumerate(entries):
        if entry.get(MIX) == FIT:
            entry, choice = _with_mix(entry, named, data, selection, runtime, rule)
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
