"""Choose a re-ranker's mix and a verifier's margin on claims that are not reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from claim2source.core.config import require
from claim2source.core.records import Dataset
from claim2source.core.report import Choice, Rule
from claim2source.systems.choose import choose, choose_margin
from claim2source.systems.heldout import SelectionData
from claim2source.systems.stages import WHEN, apply_stage, load_stages
from claim2source.systems.system import System, SystemRunner
from claim2source.systems.when import MARGIN, WhenConfig
from claim2source.text import ClaimForm

_KIND = "rerank"


def choose_mix(
    runner: SystemRunner,
    system: System,
    form: ClaimForm | None,
    selection: SelectionData,
    mixes: Sequence[float],
) -> tuple[System, Choice]:
    """Choose the `mix` of a system's last re-ranker, by MRR@5 on val; stages after it are cut.

    Its own mix is the default of the rule. Pairs are scored once: their scores are in the store.
    Raises `ConfigError` for a system without a re-ranker.
    """
    places = [place for place, entry in enumerate(system.stages) if _KIND in entry]
    require(bool(places), "choose_mix", list(mixes), "nothing: the system has no re-ranker")
    place = places[-1]
    entry, bare = system.stages[place], replace(system, stages=system.stages[:place])
    judged = selection.val.with_claims(claim for claim in selection.val.claims if claim.golds)
    found = runner.run(bare, form, judged).result
    weighing = selection.weighing(judged)
    own = float(getattr(load_stages([entry])[0][1], "mix", 0.0))
    tried = {}
    for mix in dict.fromkeys([own, *mixes]):
        ((_, stage),) = load_stages([{**entry, "mix": mix}])
        result = apply_stage(
            stage,
            judged.claims,
            judged.sources,
            found,
            runner.runtime.store,
            device=runner.runtime.device,
            progress=runner.runtime.progress,
        )
        tried[mix] = weighing.of(result.run)
    chosen, choice = choose(
        "mix",
        tried,
        weighing,
        settings=lambda mix: {"mix": mix},
        distance=lambda mix: abs(mix - own),
        rule=runner.settings.choosing.rule,
        trials=True,
        note=selection.note,
    )
    stages = (*system.stages[:place], {**entry, "mix": chosen}, *system.stages[place + 1 :])
    return replace(system, stages=stages), choice


def with_chosen_margin(
    system: System,
    runner: SystemRunner,
    form: ClaimForm | None,
    data: Dataset,
    rule: Rule = "one_se",
) -> tuple[System, Choice]:
    """Choose the margin of a system's last stage on the claims of `data`; return both.

    Raises `ConfigError` for a system without stages.
    """
    require(bool(system.stages), "system", system.name, "a system with stages")
    last = system.stages[-1]
    everywhere = {key: value for key, value in last.items() if key != WHEN}
    stages = runner.run(
        replace(system, stages=(*system.stages[:-1], everywhere)), form, data
    ).stages
    given = last.get(WHEN) or {}
    when = WhenConfig(1.0, bool(given.get("disagree", False)))
    earlier = stages[-3].result.run if len(stages) > 2 else None
    margin, choice = choose_margin(
        stages[-2].result.run, stages[-1].result.run, data, when, earlier, rule=rule
    )
    changed = {**last, WHEN: {**given, MARGIN: margin}}
    return replace(system, stages=(*system.stages[:-1], changed)), choice
