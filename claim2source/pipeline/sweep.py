"""Change one setting of a system's stages at a time, and compare each with the system as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from claim2source.core.config import as_plain, require
from claim2source.core.folders import require_output
from claim2source.core.report import MACRO
from claim2source.core.tables import Part, render
from claim2source.evaluation.families import Family
from claim2source.evaluation.moves import gold_moves
from claim2source.evaluation.verifiers import Verified, verified, verified_table
from claim2source.io.wandb import log_tables
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_result,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.staged import StagedOptions, is_shuffled
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.systems.stages import STAGE_KINDS, load_stages
from claim2source.systems.system import System

AS_IS = "as it is"
Vary = Mapping[str, Sequence[Any]]


def variations(system: System, vary: Vary) -> dict[str, System]:
    """Make the systems that differ in one setting, by name: `verify.depth 5`.

    A key is the kind of a stage, of which the last one is meant, and its setting. Raises
    `ConfigError` for one that is not there.
    """
    found = {AS_IS: system}
    for key, values in vary.items():
        kind, _, path = key.partition(".")
        places = [place for place, stage in enumerate(system.stages) if kind in stage]
        allowed = f"a setting of a stage of the system, such as {STAGE_KINDS[-1]}.depth"
        require(kind in STAGE_KINDS and bool(places) and bool(path), f"vary.{key}", kind, allowed)
        require(
            isinstance(values, list) and bool(values), f"vary.{key}", values, "a list of values"
        )
        for value in values:
            stages = deepcopy([dict(stage) for stage in system.stages])
            part = stages[places[-1]]
            *outer, last = path.split(".")
            for name in outer:
                part = part.setdefault(name, {})
            part[last] = value
            load_stages(stages)  # a mistyped setting is found before anything is run
            found[f"{key} {_shown(value)}"] = replace(system, stages=tuple(stages))
    return found


def evaluate_sweep(config: StagedOptions, whole: System, vary: Vary, *, program: str) -> str:
    """Run a system and its variations, and test each against it; write `config.out`."""
    changed = variations(whole, vary)
    require_output(config.out)
    dataset = config.reported(list(changed), "leave out --vary")
    runner = config.runner(dataset)
    scoring = Scoring(repeats=config.repeats if config.tests else 0, seed=config.seed)
    scored: dict[str, ScoredSystem] = {}
    work: dict[str, Verified] = {}
    for place, (variation, system) in enumerate(changed.items()):
        found = runner.run(system, config.claims)
        one = score_result(variation, found.result, dataset, scoring)
        folder = f"runs/{place}"
        report = replace(one.report, claims=found.form, sources=found.sources, runs=folder)
        scored[variation] = replace(one, report=report)
        write_runs(one.run, dataset, config.out / folder)
        write_submissions(one.run, dataset, config.out / folder)
        stage = system.loaded_stages()[-1][1]
        depth = int(getattr(stage, "depth", 0))
        moves = gold_moves(found.stages[-2].result.run, one.run, dataset, depth)
        last = verified(found.result, moves.get(MACRO), is_shuffled(stage))
        if last is not None:
            work[variation] = last
    reports = {variation: one.report for variation, one in scored.items()}
    report_ = make_report(dataset, reports, AS_IS, name=config.dataset, program=program)
    if config.tests and dataset.golds:
        pairs = tuple((variation, AS_IS) for variation in changed if variation != AS_IS)
        families = [Family("One setting at a time", pairs)]
        report_ = add_tests(report_, scored, families, dataset, config.repeats, config.seed)
    report_.write(config.out)
    parts: list[Part] = [f"{config.dataset}, {config.split}: {whole.name}, one setting at a time"]
    parts += report_parts(report_, "setting")
    if work:
        parts += ["What verifiers were asked, and what it cost:", verified_table(work)]
    write_markdown(config.out, "One setting at a time", parts)
    log_tables(
        config.wandb,
        report_tables(report_),
        folder=config.out,
        program=Path(program).stem,
        config=as_plain(config),
    )
    return render(parts)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
