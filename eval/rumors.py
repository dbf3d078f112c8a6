"""Verify rumours: `python eval/rumors.py --systems FILE --dataset FILE.json --out DIR`.

CheckThat! 2024 Task 5: up to five tweets of authorities as evidence, and a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from claim2source.core.config import Between, Seed, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import finite, refuse_input, write_json
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.report import MACRO, NotRun, Report, Rule, SystemReport, Table
from claim2source.core.run import Cost, Run, join_results
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.rumors import (
    LABELS,
    MAX_TWEETS,
    Rumors,
    Verdicts,
    load_rumors,
    read_evidence,
    read_verification,
    write_evidence,
    write_verification,
)
from claim2source.data.store import Store
from claim2source.data.submissions import require_zip, zip_submission
from claim2source.evaluation.evaluate import make_report, with_whole
from claim2source.evaluation.files import require_one_row
from claim2source.evaluation.published.scores import with_published
from claim2source.evaluation.rows import not_run_row
from claim2source.evaluation.rumors import (
    DEFINITIONS,
    HEADLINE,
    RumorScores,
    anova_parts,
    score_rumors,
    two_way_anova,
)
from claim2source.evaluation.table import nothing_ran
from claim2source.evaluation.views import remaining_parts, write_markdown
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.systems.heldout import ChoosingOn, HeldOut
from claim2source.systems.read import read_systems
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import StageResult
from claim2source.systems.system import System, SystemResult

PROGRAM = "eval/rumors.py"
EVIDENCE, VERIFICATION, ANOVA = "evidence.trec", "verification.json", "anova.json"
# Tukey's HSD is not defined with fewer degrees of freedom.
LEAST_FREEDOM = 2


@dataclass(frozen=True, kw_only=True)
class RumorsConfig(ModelOptions):
    """Settings of `eval/rumors.py`.

    Args:
        dataset: the organisers' JSON: a list of rumours, or one on each line.
        out: folder for the report and, for each system, its evidence (`evidence.trec`) and its
            verdicts (`verification.json`).
        split: name of the split; none: as the file's name ends.
        choose_on: another file of rumours to choose on what is `fit`; none: cross-validation.
        folds: parts of the rumours for cross-validation.
        rule: `one_se`: of BM25's settings within one standard error of the best, the one nearest
            to the default; or the `best`.
        store: folder of the store of vectors, scores and answers; none: the user's cache.
        device: none takes a GPU if there is one.
        submit: zip file for the lab's submission of the one system: its evidence and verdicts,
            checked as they are read.
        repeats: draws of the intervals, by rumour; 0 for none.
        seed: of the draws, and of the folds.
    """

    systems: list[Path] = list_field((), help="YAML files of systems")
    only: list[str] | None = list_field(help="names of the systems to run")
    dataset: Path
    out: Path
    split: str | None = None
    choose_on: Path | None = None
    folds: Annotated[int, Between(2, 1000)] = 8
    rule: Rule = "one_se"
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    submit: Path | None = None
    repeats: Annotated[int, Between(0, 1_000_000)] = 10_000
    seed: Seed = 0


@dataclass(frozen=True, eq=False)
class Row:
    """System's evidence, verdicts and report."""

    report: SystemReport
    run: Run
    verdicts: Verdicts
    scores: RumorScores | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the systems, read given outputs, score all, write the folder, print the tables."""
    say(verify_rumors(read_config(RumorsConfig, argv, program=PROGRAM, description=__doc__)))


@with_local_models
def verify_rumors(config: RumorsConfig) -> str:
    """Find evidence and verdicts, score them; write `config.out`, return the tables.

    Raises `UserError` for files, models and servers that cannot be used.
    """
    # Refuse what cannot be done before anything is run.
    require_output(config.out)
    require(bool(config.systems), "systems", config.systems, "one or more files")
    systems = read_systems(config.systems)
    for name in config.only or ():
        require(name in systems, "only", name, ", ".join(systems))
    systems = {name: systems[name] for name in config.only or systems}
    _require_outputs(config, [*systems])
    rumors = load_rumors(config.dataset, config.split)
    validation = None if config.choose_on is None else load_rumors(config.choose_on)
    _require_runnable(config, systems.values(), rumors, validation)

    # Run and score.
    rows, not_run = _run(config, systems, rumors, validation)
    if config.submit is not None and not_run:
        raise UserError(f"submit: {not_run[0].system} did not run")
    report = replace(_make_report(config, rumors, rows), not_run=tuple(not_run))

    # Write.
    parts: list[Part] = [f"{config.dataset}, {report.split}"]
    parts += [_score_table(rows)] if rows and rumors.is_labelled else []
    parts += [_stage_table(rows)] if rows else []
    other = "rumours that nothing is reported on"
    parts += remaining_parts(report, "all rumours" if validation is None else other)
    for row in rows:
        folder = config.out / row.report.name
        write_evidence(row.run, folder / EVIDENCE, row.report.name.replace(" ", "_"))
        write_verification(rumors, row.run, row.verdicts, folder / VERIFICATION)
        if config.submit is not None:
            parts += _submit(config.submit, folder, rumors)
    parts += _compare_precision(rows, config.out / ANOVA)
    write_markdown(config.out, "Rumours", parts)
    report.write(config.out)
    if not rows:
        raise nothing_ran(report.not_run, config.out)
    return render(parts)


def _require_runnable(
    config: RumorsConfig, systems: Iterable[System], rumors: Rumors, validation: Rumors | None
) -> None:
    simulated = any(system.is_simulated for system in systems)
    allowed = "none of a simulated stage"
    require(config.submit is None or not simulated, "submit", str(config.submit), allowed)
    if fit := [system.name for system in systems if system.is_fit]:
        labelled = (rumors if validation is None else validation).is_labelled
        require(labelled, "only", fit[0], "systems without `fit`: the rumours have no labels")
        fewest = validation is not None or config.folds <= len(rumors.rumors)
        require(fewest, "folds", config.folds, f"at most the {len(rumors.rumors)} rumours")


def _run(
    config: RumorsConfig,
    systems: Mapping[str, System],
    rumors: Rumors,
    validation: Rumors | None,
) -> tuple[list[Row], list[NotRun]]:
    """Run and score systems; list those that fail as not run, but for one alone."""
    runtime = SystemRuntime(Store(config.store), config.device)
    rows, not_run = [], []
    for system in systems.values():
        try:
            result = _run_system(system, config, rumors, validation, runtime)
            rows.append(_make_row(system, result, rumors, config))
        except (UserError, MemoryError, RuntimeError) as error:
            if len(systems) == 1:
                raise
            not_run.append(not_run_row(system, "original", error))
    return rows, not_run


def _submit(file: Path, folder: Path, rumors: Rumors) -> list[Part]:
    """Check a system's files as a lab reads them, and zip them; return notes on them."""
    files = [folder / EVIDENCE, folder / VERIFICATION]
    read_evidence(files[0], rumors)
    verdicts, _ = read_verification(files[1], rumors)
    zip_submission(files, file)
    silent = sum(label is None for label in verdicts.values())
    line = f"Submission in the form of CheckThat! 2024 Task 5: {file}: {len(verdicts)} rumours"
    return [f"{line}, {silent} of them without a verdict." if silent else f"{line}."]


def _require_outputs(config: RumorsConfig, names: Sequence[str]) -> None:
    """Check all that is written, before anything is run. Raises `UserError`."""
    inputs = [config.dataset, *filter(None, [config.choose_on]), *config.systems]
    files = [(config.out / ANOVA, "systems")]
    for name in names:
        files.append((config.out / name / EVIDENCE, "\tQ0\t"))
        files.append((config.out / name / VERIFICATION, "predicted_label"))
    for file, sign in files:
        refuse_input(file, inputs)
        require_output_file(file, sign)
    if config.submit is not None:
        require_one_row(config.submit, names, "choose with --only")
        require_zip(config.submit)


def _run_system(
    system: System,
    config: RumorsConfig,
    rumors: Rumors,
    validation: Rumors | None,
    runtime: SystemRuntime,
) -> SystemResult:
    """Choose open settings on other rumours or on the other folds, and run the system."""
    data, on = rumors.dataset, rumors if validation is None else validation
    choosing = ChoosingOn(rule=config.rule)
    held_out = HeldOut(on.name, "", choosing, on.dataset, on.labels)
    fitted_system = system.fit(runtime, held_out, data.languages)
    if validation is not None or not system.is_fit:
        return fitted_system.index(data.sources).search(data.claims, MAX_TWEETS)
    folds = make_folds(rumors, config.folds, config.seed)
    parts = []
    for fold in folds:
        fitted = system.fit(runtime, held_out.without(fold), data.languages)
        claims = [claim for claim in data.claims if claim.id in fold]
        parts.append(fitted.index(data.sources).search(claims, MAX_TWEETS))
    choices = []
    for number, choice in enumerate(fitted_system.choices):
        different = len({repr(part.choices[number].settings) for part in parts})
        note = (
            f"the report's scores are cross-validated: {len(folds)} folds, each ranked and judged "
            f"by what was chosen on the others ({different} different settings)"
        )
        choices.append(replace(choice, note=note))
    stages = []
    for number, (name, first) in enumerate(parts[0].stages):
        joined = join_results([part.stages[number].result for part in parts], data.claims)
        stages.append(StageResult(name, replace(joined, settings=first.settings)))
    cost = sum((part.cost for part in parts), Cost())
    return replace(parts[0], stages=tuple(stages), cost=cost, choices=tuple(choices))


def make_folds(rumors: Rumors, folds: int, seed: int) -> list[frozenset[str]]:
    """Part rumours at random in folds of alike labels."""
    order = np.random.default_rng(seed).permutation(len(rumors.rumors))
    by_label = sorted(
        (rumors.rumors[number] for number in order), key=lambda rumor: str(rumor.label)
    )
    return [frozenset(rumor.id for rumor in by_label[fold::folds]) for fold in range(folds)]


def _make_row(system: System, result: SystemResult, rumors: Rumors, config: RumorsConfig) -> Row:
    """Describe and score a system's result; a verdict is the last stage's note."""
    label = system.full_label()
    failures = {
        f"{stage.name}: {reason}": count
        for stage in result.stages
        for reason, count in stage.result.failure_counts().items()
    }
    report = SystemReport(
        system.name,
        label,
        system.name,
        failures=failures,
        runs=system.name,
        simulated=system.is_simulated,
    )
    notes = result.result.notes
    verdicts: Verdicts = {c: label for c, label in notes.items() if label in LABELS}  # type: ignore[misc]
    report, run = with_whole(report, result, rumors.dataset), result.result.run
    if not rumors.is_labelled:
        return Row(report, run, verdicts)
    scores = score_rumors(rumors, run, verdicts, config.repeats, config.seed)
    table: Table = {rumors.language: {**scores.defined, "queries": len(rumors.rumors)}}
    macro = table[rumors.language]
    report = replace(report, languages=table, macro=macro, intervals=scores.intervals)
    return Row(report, run, verdicts, scores)


def _make_report(config: RumorsConfig, rumors: Rumors, rows: Sequence[Row]) -> Report:
    """Collect the systems in a report; the first one's scores stand at its top."""
    systems = {row.report.name: row.report for row in rows}
    main = next(iter(rows), None)
    report = make_report(
        rumors.dataset,
        systems,
        None if main is None else main.report.name,
        name=str(config.dataset),
        program=PROGRAM,
    )
    first = None if main is None else main.scores
    headline = {name: None if first is None else first.values[name] for name in HEADLINE}
    metrics = dict.fromkeys(name for row in rows if row.scores for name in row.scores.defined)
    definitions = [f"{name}: {DEFINITIONS[name]}." for name in metrics]
    report = replace(report, headline=headline, notes=(*report.notes, *definitions))
    return with_published(report, [row.report for row in rows if not row.report.simulated])


def _score_table(rows: Sequence[Row]) -> TextTable:
    """Tabulate scores, and mark systems in which a made-up server has a part."""
    cells: list[list[Cell]] = [
        [
            row.report.name + (" (simulated)" if row.report.simulated else ""),
            *(row.report.macro.get(name) for name in HEADLINE),
            row.report.bounds(MACRO, HEADLINE[0]),
        ]
        for row in rows
    ]
    return TextTable(["system", *HEADLINE, f"95 % of {HEADLINE[0]}, by rumour"], cells)


def _stage_table(rows: Sequence[Row]) -> TextTable:
    """Tabulate the costs and failures of each system's stages."""
    cells: list[list[Cell]] = [
        [
            row.report.name,
            stage.name,
            f"{'>' if stage.cost.reused else ''}{stage.cost.seconds:.2f}",
            stage.cost.tokens or None,
            "; ".join(f"{reason} ({count})" for reason, count in stage.failures.items()) or None,
        ]
        for row in rows
        for stage in row.report.stages
    ]
    columns = ["system", "stage", "seconds", "tokens", "failures"]
    return TextTable(columns, cells, numeric=[False, False, True, True, False])


def _compare_precision(rows: Sequence[Row], file: Path) -> list[Part]:
    """Test systems by their average precision by rumour; write the ANOVA, return its tables."""
    values = {
        row.report.name: np.array([*row.scores.average_precision.values()])
        for row in rows
        if row.scores is not None and not row.report.simulated
    }
    if len(values) < 2:
        return []
    rumors = len(next(iter(values.values())))
    heading = f"Average precision of {len(values)} systems on {rumors} rumours"
    if (len(values) - 1) * (rumors - 1) < LEAST_FREEDOM:
        return [f"{heading}: too few for an ANOVA."]
    anova = two_way_anova(values)
    write_json(file, finite(asdict(anova)))
    return [f"{heading}:", *anova_parts(anova)]


if __name__ == "__main__":
    run_program(main)
