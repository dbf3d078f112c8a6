"""Compare the time of a cascade with that of stages that score the whole list, for single claims.

Both systems re-rank the same first sources of each claim, one claim at a time. BM25's counts and
the papers' vectors are computed beforehand, as in an index, and the claim's vector comes from the
first stage. Scores of pairs are not kept. `ratio` is the time of the whole list divided by that of
the cascade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from claim2source.core.config import Number, require, require_one_of
from claim2source.core.records import Dataset, Source
from claim2source.core.run import Run
from claim2source.core.stage import Stage
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.stages.pairs import Reranker
from claim2source.systems.read import read_systems
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.system import RunSettings, System, SystemRunner
from scripts.benches.common import SEED, DataBench, Measured, Watch

WHOLE = "whole list"
CASCADE = "cascade"
# First sources that are scored before anything is timed.
WARM = 4


@dataclass(frozen=True)
class Config(DataBench):
    """Settings of `scripts/bench.py cascade`.

    Args:
        systems: YAML file of both systems; their first stage is that of `whole`.
        whole: system whose stage scores the whole list.
        cascade: system whose stages score fewer sources each.
        claims: number of claims drawn.
    """

    systems: Path = Path("configs/systems/cascade.yaml")
    whole: str = "Deep-MaxSim"
    cascade: str = "Cascade-MaxSim"
    claims: Number = 3


def run(config: Config) -> Measured:
    systems = read_systems([config.systems])
    names = list(systems)
    for key in ("whole", "cascade"):
        chosen = getattr(config, key)
        require_one_of(key, chosen, names)
    data = draw_claims(config)
    store = Store()
    settings = RunSettings(config.dataset, store=store, progress=False)
    whole = systems[config.whole]
    depth = whole.first_depth(1)
    first = replace(whole, stages=(), depth=depth)
    runner = SystemRunner(data, settings)
    listed = runner.run(first).result.run

    asked = data.claims[0]
    warm_data = data.with_claims([asked])
    scores = listed.scored(asked.id)
    warm_scores = list(scores.items())[:WARM]
    warm_run = Run.from_lists({asked.id: warm_scores})
    sides = {}
    compared = {
        WHOLE: whole,
        CASCADE: systems[config.cascade],
    }
    for side, system in compared.items():
        stages = ready_stages(system, data.sources, store)
        sides[side] = partial(ask_alone, stages, data, listed)
        ask_alone(stages, warm_data, warm_run)  # reads models, counts terms
    watch = Watch(config.clock)
    watch.take_turns(sides, config.repeats)

    count = len(data.claims)
    lengths = np.diff(listed.offsets)
    seconds_per_claim: dict[str, float] = {}
    for side, seconds in watch.medians.items():
        seconds_per_claim[side] = round(seconds / count, 4)
    return {
        **watch.ratio(WHOLE, CASCADE),
        "seconds_per_claim": seconds_per_claim,
        "claims": count,
        "longest_list": int(lengths.max()),
    }


def draw_claims(config: Config) -> Dataset:
    """Draw claims of the split; the seed fixes them."""
    data = load(config.dataset, config.split)
    count = len(data.claims)
    allowed = f"at most {count} of {config.dataset}"
    require(config.claims <= count, "claims", config.claims, allowed)

    draw = np.random.default_rng([SEED, config.claims])
    picks = draw.choice(count, size=config.claims, replace=False)
    in_order = sorted(picks.tolist())
    claims = [data.claims[pick] for pick in in_order]
    return data.with_claims(claims)


def ready_stages(
    system: System,
    pool: Sequence[Source],
    store: Store,
) -> list[Stage]:
    """Give stages what an index has: the pool's counts and vectors, but no scores of pairs."""
    stages: list[Stage] = []
    for stage in system.stages:
        kept = None if isinstance(stage.stage, Reranker) else store
        runtime = SystemRuntime(kept, progress=False)
        ready = stage.with_runtime(runtime).with_corpus_stats(pool)
        stages.append(ready.stage)
    return stages


def ask_alone(stages: Sequence[Stage], data: Dataset, listed: Run) -> None:
    """Apply the stages to one claim after the other."""
    for claim in data.claims:
        ranked = listed
        for stage in stages:
            staged = stage.apply([claim], data.sources, ranked)
            ranked = staged.run
