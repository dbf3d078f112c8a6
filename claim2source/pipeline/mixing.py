"""Choose a re-ranker's `mix`, the weight of the stage before, on claims that are not reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from claim2source.core.config import require
from claim2source.core.report import Choice
from claim2source.pipeline.choosing import choose
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.selection import SelectionData
from claim2source.pipeline.stages import apply_stage
from claim2source.pipeline.systems import SystemConfig, load_stages
from claim2source.text import ClaimForm

_KIND = "rerank"


def choose_mix(
    runner: SystemRunner,
    name: str,
    form: ClaimForm | None,
    selection: SelectionData,
    mixes: Sequence[float],
) -> tuple[SystemConfig, Choice]:
    """Choose the `mix` of a system's last re-ranker, by MRR@5 on val; stages after it are cut.

    Its own mix is the default of the rule. Pairs are scored once: their scores are in the store.
    Raises `ConfigError` for a system without a re-ranker.
    """
    system = runner.systems[name]
    places = [place for place, entry in enumerate(system.stages) if _KIND in entry]
    require(bool(places), "choose_mix", list(mixes), "nothing: the system has no re-ranker")
    place = places[-1]
    bare = {**runner.systems, name: replace(system, stages=system.stages[:place])}
    judged = selection.val.with_claims(claim for claim in selection.val.claims if claim.golds)
    settings = runner.settings
    found = SystemRunner(bare, runner.reported, settings).run(name, form, judged)
    entry, weighing = system.stages[place], selection.weighing(judged)
    own = float(getattr(load_stages([entry])[0][1], "mix", 0.0))
    tried = {}
    for mix in dict.fromkeys([own, *mixes]):
        ((_, stage),) = load_stages([{**entry, "mix": mix}])
        result = apply_stage(
            stage,
            judged.claims,
            judged.sources,
            found.result,
            settings.store,
            device=settings.device,
            progress=settings.progress,
        )
        tried[mix] = weighing.of(result.run)
    chosen, choice = choose(
        "mix",
        tried,
        weighing,
        settings=lambda mix: {"mix": mix},
        distance=lambda mix: abs(mix - own),
        rule=settings.choosing.rule,
        trials=True,
        note=selection.note,
    )
    stages = [*system.stages[:place], {**entry, "mix": chosen}, *system.stages[place + 1 :]]
    return replace(system, stages=stages), choice
