"""Choose on val how doubtful a claim's ranking must be for a stage to be asked about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from claim2source.core.config import require
from claim2source.core.records import Dataset
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Run
from claim2source.pipeline.choosing import choose, weigh
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.systems import WHEN, Systems
from claim2source.pipeline.when import WhenConfig
from claim2source.text import ClaimForm

# The default asks about no claim; each further one asks about more.
MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
WHAT = "margin_below"


def choose_margin(
    before: Run,
    after: Run,
    data: Dataset,
    when: WhenConfig | None = None,
    earlier: Run | None = None,
    margins: Sequence[float] = MARGINS,
    rule: Rule = "one_se",
) -> tuple[float, Choice]:
    """Choose `margin_below` for a stage that was asked about all claims and gave `after`.

    By `one_se` it is the margin that asks about fewest claims, of those that are not worse than
    the best one by more than one standard error. With `when.disagree` claims whose first source
    the stage before has changed, from `earlier`, are asked about as well.
    """
    weighing = weigh(data)
    old, new = weighing.of(before), weighing.of(after)
    tried, shares = {}, {}
    for margin in sorted(margins):
        condition = WhenConfig(margin, when.disagree if when is not None else False)
        kept = [condition.kept(claim, before, earlier) for claim in weighing.claim_ids]
        asked = np.array([why is None for why in kept])
        tried[margin], shares[margin] = np.where(asked, new, old), float(asked.mean())
    chosen, choice = choose(WHAT, tried, weighing, settings=lambda one: {WHAT: one}, rule=rule)
    both = f"asks about {shares[chosen]:.1%} of these claims"
    everywhere = f"asked about all it scores {weighing.score(new):.4f}, about none"
    return chosen, replace(choice, note=f"{both}; {everywhere} {weighing.score(old):.4f}")


def with_chosen_margin(
    systems: Systems, name: str, runner: SystemRunner, form: ClaimForm | None, rule: Rule = "one_se"
) -> tuple[Systems, Choice]:
    """Choose the margin of a system's last stage on the runner's split.

    Returns the systems with it, and the choice. `runner` must have the systems of `without_when`.
    """
    last = systems[name].stages[-1]
    found = runner.run(name, form).stages
    require(len(found) > 1, "system", name, "a system with stages")
    given = last.get(WHEN) or {}
    when = WhenConfig(1.0, bool(given.get("disagree", False)))
    earlier = found[-3].result.run if len(found) > 2 else None
    margin, choice = choose_margin(
        found[-2].result.run, found[-1].result.run, runner.reported, when, earlier, rule=rule
    )
    changed = {**last, WHEN: {**given, WHAT: margin}}
    return _with_last(systems, name, changed), choice


def without_when(systems: Systems, name: str) -> Systems:
    """Have a system's last stage asked about all claims.

    Raises `ConfigError` for a system without stages.
    """
    require(bool(systems[name].stages), "system", name, "a system with stages")
    last = {key: value for key, value in systems[name].stages[-1].items() if key != WHEN}
    return _with_last(systems, name, last)


def _with_last(systems: Systems, name: str, stage: dict[str, object]) -> Systems:
    system = systems[name]
    return {**systems, name: replace(system, stages=[*system.stages[:-1], stage])}
