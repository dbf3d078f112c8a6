"""Run a system with stages, score each stage, and say what it did to the golds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from claim2source.core.config import as_plain, list_field, require
from claim2source.core.config_yaml import read_yaml
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, Choice, Report
from claim2source.core.run import Result, Run
from claim2source.core.stage import Stage
from claim2source.core.tables import Part, render
from claim2source.evaluation.families import Family
from claim2source.evaluation.html.page import trace_page
from claim2source.evaluation.moves import Moves, gold_moves, moves_table
from claim2source.evaluation.verifiers import Verified, places_table, verified, verified_table
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
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.pipeline.versions import VersionScores, score_versions, versions_table
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.retrieve.saved import ALL, SavedRunConfig
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.nodes import RunNode
from claim2source.systems.read import SYSTEMS_FOLDER, named_systems, read_systems
from claim2source.systems.stages import SIMULATED, is_simulated
from claim2source.systems.system import DEPTH, RunSettings, System, SystemResult, SystemRunner
from claim2source.systems.when import share_asked
from claim2source.text import ClaimForm

FIRST_STAGE = "first stage"
# The page of every claim's way through the stages.
PAGE = "claims.html"


@dataclass(frozen=True, kw_only=True)
class StagedOptions(EvaluationOptions):
    """Say what systems with stages are run on.

    Args:
        out: folder for the report, a run of each stage, and the last one's submissions.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on.
        claims: claim form of the first stage; none: the system's own.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    claims: ClaimForm | None = None

    @property
    def choosing_on(self) -> ChoosingOn:
        """Name the claims that settings of the systems are chosen on."""
        return ChoosingOn(lenient=self.lenient)

    def reported(self, rows: Sequence[str], how: str = "") -> Dataset:
        """Load the split to report on; `rows` and `how` as for `require_submittable`.

        Before anything is run it is known what can be scored and submitted.
        """
        require_tracking(self.wandb)
        dataset = load_reported(self.dataset, self.split, lenient=self.lenient)
        require_submittable(self.submit, dataset, rows, how)
        return dataset

    def runner(self, dataset: Dataset, depth: int = DEPTH) -> SystemRunner:
        """Make what runs systems, keeping `depth` sources of a claim at least."""
        settings = RunSettings(
            self.dataset,
            self.choosing_on,
            models=self.models,
            store=self.open_store(),
            device=self.device,
            depth=depth,
        )
        return SystemRunner(dataset, settings)


@dataclass(frozen=True, eq=False)
class ScoredStages:
    """Hold the scores and runs of a system's stages, the first stage in front.

    `moves` has, of each stage after the first, its depth and what it did to the golds; `verified`
    what verifiers did, `versions` the scores of each version of those asked several times.
    """

    report: Report
    scored: Mapping[str, ScoredSystem]
    moves: Mapping[str, tuple[int, Mapping[str, Moves]]]
    verified: Mapping[str, Verified] = field(default_factory=dict)
    versions: VersionScores = field(default_factory=dict)

    @property
    def last(self) -> ScoredSystem:
        """Return the last stage."""
        return list(self.scored.values())[-1]

    def parts(self) -> list[Part]:
        """Describe scores, tests, and what each stage did to the golds."""
        parts = report_parts(self.report, "stage")
        if any(moves for _, moves in self.moves.values()):
            parts += ["What each stage did to the golds:", moves_table(self.moves)]
        if self.versions:
            parts += ["Stages that were asked several times, and each version alone:"]
            parts.append(versions_table(self.versions))
        if self.verified:
            parts += ["What verifiers were asked, and what it cost:", verified_table(self.verified)]
        for name, one in self.verified.items():
            if one.bias is not None:
                how = "in changing orders" if one.shuffled else "in the ranking's order, which wins"
                said = f"{name}: picks by place of the papers, shown {how}"
                parts += [f"{said} (uneven by {one.bias:.1%}):", places_table(one)]
        return parts

    def with_choices(self, choices: Sequence[Choice]) -> ScoredStages:
        """Record what was chosen of the last stage."""
        name, last = list(self.report.systems.items())[-1]
        described = replace(last, choices=(*last.choices, *choices))
        return replace(
            self, report=replace(self.report, systems={**self.report.systems, name: described})
        )

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write the report, the last stage's submissions, and the page of claims.

        Each stage's run and own report lie in a folder of `runs/`.
        """
        for name, one in self.scored.items():
            place = folder / one.report.runs
            write_runs(one.run, dataset, place)
            alone = {name: replace(one.report, runs=".")}
            program = self.report.provenance.program
            make_report(dataset, alone, name, name=self.report.dataset, program=program).write(
                place
            )
        write_submissions(self.last.run, dataset, folder)
        runs = {name: one.run for name, one in self.scored.items()}
        title = f"{self.report.dataset}, {self.report.split}"
        trace_page(runs, dataset, folder / PAGE, title=title)
        self.report.write(folder)


def read_staged(files: Sequence[Path], name: str, run: Path | None) -> System:
    """Read the system to run, perhaps over another program's ranking.

    One without stages is its first stage alone. Raises `ConfigError` where it is not there.
    """
    systems, _ = named_systems(files, None)
    require(name in systems, "system", name, f"one of {', '.join(systems)}")
    system = systems[name]
    if run is None:
        return system
    first = RunNode(name=name, run=SavedRunConfig({ALL: run}))
    return System(name, first, system.stages, system.claims)


def pipeline_words(words: Sequence[str]) -> list[str]:
    """Turn `--config FILE` into `--pipeline FILE`, unless the file is a config that names one."""
    found = list(words)
    for place, word in enumerate(words):
        option, equals, text = word.partition("=")
        file = text if equals else "".join(words[place + 1 : place + 2])
        if option == "--config" and file and not _names_pipeline(Path(file)):
            found[place] = f"--pipeline{equals}{text}"
    return found


def _names_pipeline(file: Path) -> bool:
    """Tell whether a YAML file is a program's config, as `--print_config` writes it."""
    try:
        root = read_yaml(file)
    except InputError:  # found again by who reads it
        return False
    return isinstance(root, dict) and not isinstance(root.get("pipeline", {}), list | dict)


def read_pipeline(
    file: Path, name: str | None = None, beside: Sequence[Path] = (), *, staged: bool = True
) -> System:
    """Read the system of a pipeline's file that is to be run.

    `beside` are files of further systems that it may name, by default all of configs/systems.
    Without `staged` the system needs no stages, and without a name it is the file's last. Raises
    `ConfigError` where it is not clear which one is meant.
    """
    systems = read_systems([file], beside or sorted(SYSTEMS_FOLDER.glob("*.yaml")))
    fitting = [one for one in systems.values() if one.stages or not staged]
    named = fitting if staged else fitting[-1:]
    chosen = named if name is None else [one for one in fitting if one.name == name]
    if len(chosen) != 1:
        listed = ", ".join(one.name for one in fitting)
        raise ConfigError("system", name, f"one of {listed or 'none: it has no stages'}")
    return chosen[0]


def evaluate_staged(
    config: StagedOptions,
    dataset: Dataset,
    system: System,
    *,
    program: str,
    heading: str,
    choices: Sequence[Choice] = (),
) -> str:
    """Run a system's stages, score and test each; write `config.out`, return the tables.

    `dataset` is `config.reported`; `choices` are what was chosen of the last stage.
    """
    runner = config.runner(dataset)
    found = runner.run(system, config.claims)
    repeats = config.repeats if config.tests else 0
    stages = score_stages(
        found,
        system,
        dataset,
        Scoring(repeats=repeats, seed=config.seed),
        name=config.dataset,
        program=program,
    )
    loaded = [stage for _, stage in system.loaded_stages()]
    versions = score_versions(
        dict(zip(list(stages.scored)[1:], loaded, strict=True)),
        found.stages[-len(loaded) - 1 :],
        dataset,
        runner.runtime,
    )
    stages = replace(stages.with_choices(choices), versions=versions)
    stages.write(dataset, config.out)
    parts: list[Part] = [f"{config.dataset}, {config.split}: {system.name}", *stages.parts()]
    parts += submit(config.submit, stages.last.run, dataset)
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
    system: System,
    dataset: Dataset,
    scoring: Scoring,
    *,
    name: str | None = None,
    program: str = "",
) -> ScoredStages:
    """Score every stage of what a system gave, and test each against the one before.

    A simulated stage, and what follows one, says so and is not tested.
    """
    settings, loaded = system.stages, [stage for _, stage in system.loaded_stages()]
    results = found.stages[-len(settings) - 1 :]
    real = next((i for i, entry in enumerate(settings) if is_simulated(entry)), len(settings))
    said_so = ["" if i <= real else f" ({SIMULATED})" for i in range(len(results))]
    names = [FIRST_STAGE, *(f"{i}. {r.name}{said_so[i]}" for i, r in enumerate(results) if i)]
    # A stage that reads texts of sources may read others than the first one.
    read = [found.sources, *(getattr(stage, "sources", found.sources) for stage in loaded)]
    scored: dict[str, ScoredSystem] = {}
    for place, (stage, one) in enumerate(zip(names, results, strict=True)):
        score = score_result(stage, one.result, dataset, scoring)
        folder = f"runs/{place}"
        described = replace(
            score.report,
            model=system.label_of(place),
            claims=found.form,
            sources=read[place],
            simulated=place > real,
            choices=found.choices if place == 0 else (),
            runs=folder,
        )
        scored[stage] = replace(score, report=described)
    reports = {stage: one.report for stage, one in scored.items()}
    report = make_report(dataset, reports, names[-1], name=name, program=program)
    depths = [getattr(stage, "depth", 0) for stage in loaded]
    moves, said, verifiers = {}, list(report.notes), dict[str, Verified]()
    shuffled = [is_shuffled(stage) for stage in loaded]
    for stage, depth, before, after in zip(names[1:], depths, results, results[1:], strict=False):
        moved = gold_moves(before.result.run, after.result.run, dataset, depth)
        moves[stage] = depth, moved
        said += stage_lines(stage, depth, before.result.run, after.result)
        if work := verified(after.result, moved.get(MACRO), shuffled[len(moves) - 1]):
            verifiers[stage] = work
            said.append(f"{stage}: {work.sentence()}.")
    report = replace(report, notes=tuple(said))
    if scoring.repeats and dataset.golds:
        tested = names[: real + 1]
        pairs = [(tested[i], tested[i - 1]) for i in range(1, len(tested))]
        if len(tested) > 2:
            pairs.append((tested[-1], tested[0]))
        families = [Family("Each stage against the one before", tuple(pairs))] if pairs else []
        shown = {stage: scored[stage] for stage in tested}
        report = add_tests(report, shown, families, dataset, scoring.repeats, scoring.seed)
    return ScoredStages(report, scored, moves, verifiers)


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
        what = "answers that are no good" if result.details else "pairs without a score"
        lines.append(f"{name}: {what}: {'; '.join(failed[:3])}.")
    share = share_asked(result)
    if share < 1:
        lines.append(
            f"{name}: {1 - share:.1%} of the claims were not in doubt and not asked about."
        )
    return lines


def is_shuffled(stage: Stage) -> bool:
    """Tell whether a stage shows papers in changing orders."""
    return bool(getattr(getattr(stage, "stage", stage), "is_shuffled", False))
