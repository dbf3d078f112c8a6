"""Run a system with stages, score each stage, and say what it did to the golds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from claim2source.core.config import as_plain, list_field
from claim2source.core.folders import require_output
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.core.run import Result, Run
from claim2source.core.tables import Part, render
from claim2source.datasets import load
from claim2source.evaluation.families import Family
from claim2source.evaluation.moves import Moves, gold_moves, moves_table
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
from claim2source.pipeline.runner import RunSettings, SystemResult, SystemRunner
from claim2source.pipeline.selection import ChoosingOn
from claim2source.pipeline.systems import Systems, load_stages
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.text import ClaimForm

FIRST_STAGE = "first stage"


@dataclass(frozen=True, kw_only=True)
class StagedOptions(EvaluationOptions):
    """Say what systems with stages are run on.

    Args:
        out: folder for the report, a run of each stage, and the last one's submissions.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on.
        claims: claim form of the first stage; none: the system's own.
        models: folder of models by the last part of their name, taken before the hub's.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(Path, help="YAML files of systems; none: all of configs/systems")
    claims: ClaimForm | None = None
    models: Path | None = None

    def runner(self, systems: Systems, dataset: Dataset) -> SystemRunner:
        """Make what runs these systems."""
        settings = RunSettings(
            self.dataset,
            ChoosingOn(lenient=self.lenient),
            models=self.models,
            store=self.open_store(),
            device=self.device,
            index=self.index,
        )
        return SystemRunner(systems, dataset, settings)


@dataclass(frozen=True, eq=False)
class ScoredStages:
    """Hold the scores and runs of a system's stages, the first stage in front.

    `moves` has, of each stage after the first, its depth and what it did to the golds.
    """

    report: Report
    scored: Mapping[str, ScoredSystem]
    moves: Mapping[str, tuple[int, Mapping[str, Moves]]]

    @property
    def last(self) -> ScoredSystem:
        """Return the last stage."""
        return list(self.scored.values())[-1]

    def parts(self) -> list[Part]:
        """Describe scores, tests, and what each stage did to the golds."""
        parts = report_parts(self.report, "stage")
        if any(moves for _, moves in self.moves.values()):
            parts += ["What each stage did to the golds:", moves_table(self.moves)]
        return parts

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write the report, a run of each stage under `runs/`, and the last one's submissions."""
        for one in self.scored.values():
            write_runs(one.run, dataset, folder / one.report.runs)
        write_submissions(self.last.run, dataset, folder, both=False)
        self.report.write(folder)


def evaluate_staged(
    config: StagedOptions, systems: Systems, name: str, *, program: str, heading: str
) -> str:
    """Run a system's stages, score and test each; write `config.out`, return the tables."""
    require_output(config.out)
    require_tracking(config.wandb)
    dataset = load(config.dataset, config.split, lenient=config.lenient)
    found = config.runner(systems, dataset).run(name, config.claims)
    repeats = config.repeats if config.tests else 0
    stages = score_stages(
        found, systems, dataset, repeats, config.seed, name=config.dataset, program=program
    )
    stages.write(dataset, config.out)
    parts: list[Part] = [f"{config.dataset}, {config.split}: {name}", *stages.parts()]
    write_markdown(config.out, heading, parts)
    log_tables(
        config.wandb,
        report_tables(stages.report),
        folder=config.out,
        program=Path(program).stem,
        config=as_plain(config),
    )
    return render(parts)


def score_stages(
    found: SystemResult,
    systems: Systems,
    dataset: Dataset,
    repeats: int,
    seed: int,
    *,
    name: str | None = None,
    program: str = "",
) -> ScoredStages:
    """Score every stage of what a system gave, and test each against the one before.

    `repeats` is the number of bootstrap draws and permutations, 0 for no intervals and tests.
    """
    settings = systems[found.system].stages
    results = found.stages[-len(settings) - 1 :]
    names = [FIRST_STAGE, *(f"{i}. {one.name}" for i, one in enumerate(results[1:], 1))]
    scored: dict[str, ScoredSystem] = {}
    for place, (stage, one) in enumerate(zip(names, results, strict=True)):
        score = score_result(stage, one.result, dataset, Scoring(repeats=repeats, seed=seed))
        folder = f"runs/{place}"
        described = replace(score.report, claims=found.form, sources=found.sources, runs=folder)
        scored[stage] = replace(score, report=described)
    reports = {stage: one.report for stage, one in scored.items()}
    report = make_report(dataset, reports, names[-1], name=name, program=program)
    depths = [getattr(stage, "depth", 0) for _, stage in load_stages(settings)]
    moves, said = {}, list(report.notes)
    for stage, depth, before, after in zip(names[1:], depths, results, results[1:], strict=False):
        moved = gold_moves(before.result.run, after.result.run, dataset, depth)
        moves[stage] = depth, moved if dataset.golds else {}
        said += stage_lines(stage, depth, before.result.run, after.result)
    report = replace(report, notes=tuple(said))
    if repeats and dataset.golds:
        pairs = [(names[i], names[i - 1]) for i in range(1, len(names))]
        if len(names) > 2:
            pairs.append((names[-1], names[0]))
        families = [Family("Each stage against the one before", tuple(pairs))]
        report = add_tests(report, scored, families, dataset, repeats, seed)
    return ScoredStages(report, scored, moves)


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
