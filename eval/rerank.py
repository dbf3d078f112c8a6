"""Re-rank, and score each stage: `python eval/rerank.py --system NAME --dataset DIR --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from claim2source.core.config import as_plain, list_field, read_config, require
from claim2source.core.errors import ConfigError, run_program
from claim2source.core.folders import require_output
from claim2source.core.run import Result, Run
from claim2source.core.tables import Part, render
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.evaluation.families import Family
from claim2source.evaluation.moves import gold_moves, moves_table
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_result,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.options import EvaluationOptions
from claim2source.pipeline.runner import RunSettings, SystemRunner
from claim2source.pipeline.selection import ChoosingOn
from claim2source.pipeline.systems import (
    SYSTEMS_FOLDER,
    SystemConfig,
    load_stages,
    read_systems,
)
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.retrieve.saved import ALL, SavedRunConfig
from claim2source.text import ClaimForm


@dataclass(frozen=True)
class RerankConfig(EvaluationOptions):
    """Settings of `eval/rerank.py`.

    Args:
        system: name of a system with stages, of the YAML files.
        out: folder for the report, a run of each stage, and the last one's submissions.
        run: a ranking of another program (TREC, a lab's TSV, the 2026 paper's score JSON) in
            place of the system's first stage.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on.
        claims: claim form of the first stage; none: the system's own.
        models: folder of models by the last part of their name, taken before the hub's.
    """

    system: str
    out: Path
    run: Path | None = None
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(Path, help="YAML files of systems; none: all of configs/systems")
    claims: ClaimForm | None = None
    models: Path | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stages, score each against the one before, print the tables."""
    config = read_config(RerankConfig, argv, program="eval/rerank.py", description=__doc__ or "")
    say(rerank(config))


def rerank(config: RerankConfig) -> str:
    """Run a system's stages, score and test each; write `config.out`, return the tables.

    Raises `UserError` for a system that is not there, or has no stages.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    dataset = load(config.dataset, config.split, lenient=config.lenient)
    systems = read_systems(config.files or sorted(SYSTEMS_FOLDER.glob("*.yaml")))
    staged = [name for name, one in systems.items() if one.stages]
    if config.system not in systems:
        raise ConfigError("system", config.system, f"one of {', '.join(staged) or 'none here'}")
    system = systems[config.system]
    require(bool(system.stages), "system", config.system, "a system with stages")
    if config.run is not None:
        ranking = SavedRunConfig({ALL: config.run})
        system = SystemConfig(run=ranking, stages=system.stages, claims=system.claims)
        systems[config.system] = system
    settings = RunSettings(
        config.dataset,
        ChoosingOn(lenient=config.lenient),
        models=config.models,
        store=config.open_store(),
        device=config.device,
        index=config.index,
    )
    found = SystemRunner(systems, dataset, settings).run(config.system, config.claims)
    results = found.stages[-len(system.stages) - 1 :]
    names = ["first stage", *(f"{i}. {one.name}" for i, one in enumerate(results[1:], 1))]
    scoring = Scoring(repeats=config.repeats if config.tests else 0, seed=config.seed)
    scored: dict[str, ScoredSystem] = {}
    for place, (name, stage) in enumerate(zip(names, results, strict=True)):
        one = score_result(name, stage.result, dataset, scoring)
        folder = f"runs/{place}"
        described = replace(one.report, claims=found.form, sources=found.sources, runs=folder)
        scored[name] = replace(one, report=described)
        write_runs(one.run, dataset, config.out / folder)
    write_submissions(scored[names[-1]].run, dataset, config.out, both=False)
    reports = {name: one.report for name, one in scored.items()}
    report = make_report(dataset, reports, names[-1], name=config.dataset, program="eval/rerank.py")
    depths = [getattr(stage, "depth", 0) for _, stage in load_stages(system.stages)]
    runs = [stage.result.run for stage in results]
    said = [
        line
        for name, depth, before, stage in zip(names[1:], depths, runs, results[1:], strict=False)
        for line in stage_lines(name, depth, before, stage.result)
    ]
    report = replace(report, notes=(*report.notes, *said))
    if config.tests and dataset.golds:
        pairs = [(names[i], names[i - 1]) for i in range(1, len(names))]
        if len(names) > 2:
            pairs.append((names[-1], names[0]))
        families = [Family("Each stage against the one before", tuple(pairs))]
        report = add_tests(report, scored, families, dataset, config.repeats, config.seed)
    report.write(config.out)
    parts: list[Part] = [f"{config.dataset}, {config.split}: {config.system}"]
    parts += report_parts(report, "stage")
    if dataset.golds:
        moves = {
            name: (depth, gold_moves(before, after, dataset, depth))
            for name, depth, before, after in zip(names[1:], depths, runs, runs[1:], strict=False)
        }
        parts += ["What each stage did to the golds:", moves_table(moves)]
    write_markdown(config.out, "Re-ranking", parts)
    log_tables(
        config.wandb,
        report_tables(report),
        folder=config.out,
        program="rerank",
        config=as_plain(config),
    )
    return render(parts)


def stage_lines(name: str, depth: int, before: Run, result: Result) -> list[str]:
    """Say how deep a stage looked, how many claims it read as posted, and what failed."""
    longest = int(np.diff(before.offsets).max(initial=0))
    seen = f"the first {depth} of up to {longest} sources of a claim were re-ranked"
    lines = [f"{name}: {seen}; what is beyond keeps its place below."]
    posted = sum("no translation" in note for note in result.notes.values())
    if posted:
        lines.append(f"{name}: {posted} claims have no translation and were read as posted.")
    failed = [f"{reason} ({count})" for reason, count in result.failure_counts().items()]
    if failed:
        lines.append(f"{name}: pairs without a score: {'; '.join(failed[:3])}.")
    return lines


if __name__ == "__main__":
    run_program(main)
