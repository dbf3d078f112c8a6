"""Verify rumours: `python eval/rumors.py --systems FILE --dataset FILE.json --out DIR`.

CheckThat! 2024 Task 5: up to five tweets of authorities as evidence, and a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from claim2source.core.config import Between, Seed, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import finite, refuse_input, write_json
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.records import Claim
from claim2source.core.report import MACRO, Choice, Report, Rule
from claim2source.core.run import Cost, join_results
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.rumors import (
    MAX_TWEETS,
    Rumors,
    load_rumors,
    read_evidence,
    read_verification,
    write_evidence,
    write_verification,
)
from claim2source.data.store import Store
from claim2source.data.submissions import require_zip, zip_submission
from claim2source.evaluation.evaluate import Scoring, make_report
from claim2source.evaluation.files import require_one_row
from claim2source.evaluation.plan import RowPlan, plan_rows
from claim2source.evaluation.published.scores import with_published
from claim2source.evaluation.rows import run_rows
from claim2source.evaluation.rumors import DEFINITIONS, HEADLINE, RumorRow, score_row
from claim2source.evaluation.table import nothing_ran, scored_rows
from claim2source.evaluation.views import remaining_parts, write_report
from claim2source.llm.config import LLMConfig
from claim2source.metrics.anova import anova_parts, two_way_anova
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.systems.heldout import ChoosingOn, HeldOut
from claim2source.systems.read import read_systems
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import StageResult
from claim2source.systems.system import System, SystemResult

PROGRAM = "eval/rumors.py"
# The keys that people need first.
COMMON = (
    "systems",
    "dataset",
    "out",
    "split",
    "only",
    "choose_on",
    "folds",
    "submit",
    "store",
    "device",
)
EVIDENCE, VERIFICATION, ANOVA = "evidence.trec", "verification.json", "anova.json"
# Tukey's HSD is undefined with fewer degrees of freedom.
LEAST_FREEDOM = 2


@dataclass(frozen=True, kw_only=True)
class RumorsConfig(ModelOptions):
    """Settings of `eval/rumors.py`.

    Args:
        dataset: the organisers' JSON: a list of rumours, or one on each line.
        out: folder for the report and, for each system, its evidence (`evidence.trec`) and its
            verdicts (`verification.json`).
        split: name of the split; none: the end of the file's name.
        choose_on: another file of rumours to choose `fit` settings on; none: cross-validation.
        folds: number of folds of the cross-validation.
        rule: `one_se`: BM25's settings nearest to the default within one standard error of the
            best; or the `best`.
        llm: the language model of stages that do not name one.
        store: folder of the store of vectors, scores and answers; none: the user's cache.
        device: none uses a GPU if there is one.
        submit: zip file for the lab's submission of the one system: its evidence and verdicts,
            which are checked.
        repeats: draws of the intervals, by rumour; 0 for none.
        seed: seed of the draws and of the folds.
    """

    systems: list[Path] = list_field((), help="YAML files of systems")
    only: list[str] | None = list_field(help="names of the systems to run")
    dataset: Path
    out: Path
    split: str | None = None
    choose_on: Path | None = None
    folds: Annotated[int, Between(2, 1000)] = 8
    rule: Rule = "one_se"
    llm: LLMConfig = field(default_factory=LLMConfig)
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    submit: Path | None = None
    repeats: Annotated[int, Between(0, 1_000_000)] = 10_000
    seed: Seed = 0


def main(argv: Sequence[str] | None = None) -> None:
    """Run the systems, score their output, write the folder, print the tables."""
    config = read_config(RumorsConfig, argv, program=PROGRAM, description=__doc__, common=COMMON)
    say(verify_rumors(config))


@with_local_models
def verify_rumors(config: RumorsConfig) -> str:
    """Find evidence and verdicts, score them; write `config.out`, return the tables.

    Raises `UserError` for files, models and servers that cannot be used.
    """
    # Check everything before anything is run.
    require_output(config.out)
    plans = _plan(config)
    _require_outputs(config, [plan.name for plan in plans])
    rumors = load_rumors(config.dataset, config.split)
    validation = None if config.choose_on is None else load_rumors(config.choose_on)
    _require_runnable(config, [plan.system for plan in plans], rumors, validation)

    # Run and score.
    runtime = SystemRuntime(Store(config.store), config.device)
    scoring = Scoring(repeats=config.repeats, seed=config.seed)

    def run(plan: RowPlan) -> RumorRow:
        result = _run_system(plan.system, config, rumors, validation, runtime)
        return score_row(plan, result, rumors, scoring)

    rows, not_run = run_rows(plans, run, runtime, raise_errors=len(plans) == 1)
    if config.submit is not None and not_run:
        raise UserError(f"submit: {not_run[0].system} did not run")
    report = replace(_make_report(config, rumors, rows), not_run=tuple(not_run))

    parts = _write(config, report, rows, rumors)
    if not rows:
        raise nothing_ran(report.not_run, config.out)
    return render(parts)


def _plan(config: RumorsConfig) -> list[RowPlan]:
    """List the systems to run, in the order of `only`. Raises `ConfigError`."""
    require(bool(config.systems), "systems", config.systems, "one or more files")
    systems = read_systems(config.systems, llm=config.llm)
    only = config.only or []
    ordered = {}
    for name in only:
        if name in systems:
            ordered[name] = systems[name]
    return plan_rows({**ordered, **systems}, {}, [], only=only)


def _write(
    config: RumorsConfig,
    report: Report,
    rows: Sequence[RumorRow],
    rumors: Rumors,
) -> list[Part]:
    """Write the systems' files and the report; return its tables."""
    parts: list[Part] = [f"{config.dataset}, {report.split}"]
    if rows and rumors.is_labelled:
        parts.append(_score_table(rows))
    if rows:
        parts.append(_stage_table(rows))
    is_cross_validated = config.choose_on is None
    chosen_on = "all rumours" if is_cross_validated else "rumours that are not reported on"
    parts += remaining_parts(report, chosen_on)
    for row in rows:
        folder = config.out / row.name
        run = row.whole.run
        write_evidence(run, folder / EVIDENCE, row.name.replace(" ", "_"))
        write_verification(rumors, run, row.verdicts, folder / VERIFICATION)
        if config.submit is not None:
            parts += _submit(config.submit, folder, rumors)
    parts += _compare_precision(rows, config.out / ANOVA)
    write_report(report, config.out, "Rumours", parts)
    return parts


def _require_runnable(
    config: RumorsConfig,
    systems: Iterable[System],
    rumors: Rumors,
    validation: Rumors | None,
) -> None:
    simulated = any(system.is_simulated for system in systems)
    allowed = "systems without a simulated stage"
    require(config.submit is None or not simulated, "submit", str(config.submit), allowed)
    fit = []
    for system in systems:
        if system.is_fit:
            fit.append(system.name)
    if not fit:
        return
    labelled = rumors if validation is None else validation
    allowed = "systems without `fit`: the rumours have no labels"
    require(labelled.is_labelled, "only", fit[0], allowed)
    count = len(rumors.rumors)
    is_enough = validation is not None or config.folds <= count
    require(is_enough, "folds", config.folds, f"at most the {count} rumours")


def _submit(file: Path, folder: Path, rumors: Rumors) -> list[Part]:
    """Check a system's files by the lab's rules, and zip them; return notes on them."""
    files = [folder / EVIDENCE, folder / VERIFICATION]
    read_evidence(files[0], rumors)
    verdicts, _ = read_verification(files[1], rumors)
    zip_submission(files, file)
    silent = sum(label is None for label in verdicts.values())
    line = f"Submission in the form of CheckThat! 2024 Task 5: {file}: {len(verdicts)} rumours"
    return [f"{line}, {silent} of them without a verdict." if silent else f"{line}."]


def _require_outputs(config: RumorsConfig, names: Sequence[str]) -> None:
    """Check all files to write before anything is run. Raises `UserError`."""
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
    data = rumors.dataset
    on = rumors if validation is None else validation
    choosing = ChoosingOn(rule=config.rule)
    held_out = HeldOut(on.name, "", choosing, on.dataset, on.labels)
    fitted_system = system.fit(runtime, held_out, data.languages)
    if validation is not None or not system.is_fit:
        return fitted_system.index(data.sources).search(data.claims, MAX_TWEETS)
    folds = make_folds(rumors, config.folds, config.seed)
    parts = []
    for fold in folds:
        fitted = system.fit(runtime, held_out.without(fold), data.languages)
        claims = []
        for claim in data.claims:
            if claim.id in fold:
                claims.append(claim)
        parts.append(fitted.index(data.sources).search(claims, MAX_TWEETS))
    choices = _cross_validated(fitted_system.choices, parts)
    return _join_folds(parts, data.claims, choices)


def _cross_validated(choices: Sequence[Choice], parts: Sequence[SystemResult]) -> list[Choice]:
    """Add a note to the choices on all rumours: each fold was scored with its own choices."""
    noted = []
    for number, choice in enumerate(choices):
        different = len({repr(part.choices[number].settings) for part in parts})
        note = (
            f"the report's scores are cross-validated: {len(parts)} folds, each run with the "
            f"settings that were chosen on the others ({different} different settings)"
        )
        noted.append(replace(choice, note=note))
    return noted


def _join_folds(
    parts: Sequence[SystemResult],
    claims: Sequence[Claim],
    choices: Sequence[Choice],
) -> SystemResult:
    """Join the results of the folds, stage by stage."""
    stages = []
    for number, (name, first) in enumerate(parts[0].stages):
        joined = join_results([part.stages[number].result for part in parts], claims)
        stages.append(StageResult(name, replace(joined, settings=first.settings)))
    cost = sum((part.cost for part in parts), Cost())
    return replace(parts[0], stages=tuple(stages), cost=cost, choices=tuple(choices))


def make_folds(rumors: Rumors, folds: int, seed: int) -> list[frozenset[str]]:
    """Split rumours at random into folds, stratified by label."""
    order = np.random.default_rng(seed).permutation(len(rumors.rumors))
    shuffled = []
    for number in order:
        shuffled.append(rumors.rumors[number])
    by_label = sorted(shuffled, key=lambda rumor: str(rumor.label))
    return [frozenset(rumor.id for rumor in by_label[fold::folds]) for fold in range(folds)]


def _make_report(config: RumorsConfig, rumors: Rumors, rows: Sequence[RumorRow]) -> Report:
    """Make the report of the rows; its own scores are those of the first row."""
    systems = scored_rows(rows)
    main = rows[0].name if rows else None
    name = str(config.dataset)
    report = make_report(rumors.dataset, systems, main, name=name, program=PROGRAM)
    headline: dict[str, float | None] = dict.fromkeys(HEADLINE)
    if rows and rows[0].scores is not None:
        headline = {}
        for metric in HEADLINE:
            headline[metric] = rows[0].scores.values[metric]
    metrics: dict[str, None] = {}
    for row in rows:
        if row.scores is not None:
            metrics |= dict.fromkeys(row.scores.defined)
    definitions = []
    for metric in metrics:
        definitions.append(f"{metric}: {DEFINITIONS[metric]}.")
    report = replace(report, headline=headline, notes=(*report.notes, *definitions))
    real = []
    for system in systems.values():
        if not system.report.simulated:
            real.append(system.report)
    return with_published(report, real)


def _score_table(rows: Sequence[RumorRow]) -> TextTable:
    """Tabulate scores, and mark systems that use a simulated server."""
    cells: list[list[Cell]] = []
    for row in rows:
        report = row.whole.report
        name = f"{report.name} (simulated)" if report.simulated else report.name
        scores = []
        for metric in HEADLINE:
            scores.append(report.macro.get(metric))
        cells.append([name, *scores, report.bounds(MACRO, HEADLINE[0])])
    return TextTable(["system", *HEADLINE, f"95 % of {HEADLINE[0]}, by rumour"], cells)


def _stage_table(rows: Sequence[RumorRow]) -> TextTable:
    """Tabulate the costs and failures of each system's stages."""
    cells: list[list[Cell]] = []
    for row in rows:
        for stage in row.whole.report.stages:
            prefix = ">" if stage.cost.reused else ""
            failures = []
            for reason, count in stage.failures.items():
                failures.append(f"{reason} ({count})")
            cells.append(
                [
                    row.name,
                    stage.name,
                    f"{prefix}{stage.cost.seconds:.2f}",
                    stage.cost.tokens or None,
                    "; ".join(failures) or None,
                ]
            )
    columns = ["system", "stage", "seconds", "tokens", "failures"]
    return TextTable(columns, cells, numeric=[False, False, True, True, False])


def _compare_precision(rows: Sequence[RumorRow], file: Path) -> list[Part]:
    """Compare systems' average precision by rumour; write the ANOVA, return its tables."""
    values: dict[str, np.ndarray] = {}
    for row in rows:
        if row.scores is not None and not row.whole.report.simulated:
            values[row.name] = np.array(list(row.scores.average_precision.values()))
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
