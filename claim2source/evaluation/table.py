"""Evaluate systems, checkpoints and stages: plan, run, score, test, write and print."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from claim2source.core.arguments import require_kind, whole_number
from claim2source.core.config import Between, as_plain, list_field, require, require_one_of
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.folders import RUN_FILE, require_output
from claim2source.core.records import DATASET_WANTED, Dataset
from claim2source.core.report import MAIN_METRIC, NotRun, Report, TrainingReport
from claim2source.core.tables import Part, render
from claim2source.data.store import Store
from claim2source.data.wandb import log_tables, require_tracking
from claim2source.evaluation.declared import declared_families
from claim2source.evaluation.evaluate import (
    METRICS,
    ScoredSystem,
    Scoring,
    add_tests,
    load_reported,
    make_report,
    with_depth_notes,
    with_missing_notes,
    with_shared_note,
)
from claim2source.evaluation.files import require_submittable, submit
from claim2source.evaluation.options import ChoosingOptions, EvaluationOptions
from claim2source.evaluation.plan import RowPlan, list_checkpoints, over_forms, plan_rows
from claim2source.evaluation.rows import SystemRow, read_or_run, run_row, run_rows
from claim2source.evaluation.style_grid import StyleOptions, add_styles
from claim2source.evaluation.summary import summary_parts
from claim2source.evaluation.views import report_parts, report_tables, write_report
from claim2source.llm.config import LLMConfig
from claim2source.metrics.metrics import ALLOWED, cutoff
from claim2source.models import ModelConfig
from claim2source.models.hub import require_model
from claim2source.models.local import with_local_models
from claim2source.search.dense import Dense
from claim2source.search.translator import TranslatorConfig, Translators
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.read import read_systems, shipped_files
from claim2source.systems.system import DEPTH, RunSettings, System, SystemRunner
from claim2source.text import ClaimForm, Rendering
from claim2source.text.styles import require_texts
from claim2source.text.views import distinct_forms, read_rewrites

PROGRAM = "eval/evaluate.py"


@dataclass(frozen=True)
class EvaluateConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `eval/evaluate.py`.

    Args:
        out: folder for the reports; rows that are already there with these settings are kept.
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        split: split to report on; no setting is chosen on it.
        routes: language -> checkpoint that ranks its claims instead of `checkpoint`; on the
            command line `--route de=RUN`.
        stages: a file of systems to run on each checkpoint instead of their own dense model.
        run: a ranking of another program (TREC, a lab's TSV, the 2026 paper's score JSON) that
            replaces the systems' first stages.
        vary: settings to change, one at a time, each with its values: `retrieve.KEY`, or
            `stages.N.KEY` with N from 1. Each is tested against the unchanged system. On
            the command line `--vary stages.1.depth=10,50`.
        styles: the grid of text styles, for every system; none: texts as they are.
        val: the claims of train that settings are chosen on: a part `carved` out as in training,
            all of `train` (only for models that were not trained on it), or `auto`: carved for a
            trained checkpoint of ours, else train. BM25 always uses all of train.
        rewrites: JSON lines {"_id": claim, "text": ..}: a rewriting that is appended to each
            reported claim; settings are chosen without it.
        translator: translates the reported claims to English in the languages that it supports;
            its translations replace the data set's in claim forms with a translation. If it fails
            for a claim, the original is used. Settings are chosen without it.
        llm: the language model of stages that do not name one.
        model: settings of a model that is not a checkpoint of ours; its name is `checkpoint`.
        rendering: form of claims and sources for a `checkpoint` that is not ours; one of ours has
            its own.
        depth: sources kept per claim; deeper metrics are left out. None: 100, or the depth of the
            deepest metric.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    systems: list[Path] = list_field(
        (), help="YAML files of systems; none: all of configs/systems, if no checkpoint is named"
    )
    only: list[str] = list_field(
        (),
        help="only these systems, by name; `chosen`: a training's chosen checkpoint, and the "
        "systems that run on it; `chosen+NAME`: one of these",
    )
    checkpoint: list[str] = list_field(
        (),
        help="checkpoints, models' names, or training runs: every kept epoch of a run, and step 0, "
        "is a row; systems with `dense: checkpoint` run on each",
    )
    routes: dict[str, str] = field(default_factory=dict)
    stages: Path | None = None
    run: Path | None = None
    vary: dict[str, list[Any]] = field(default_factory=dict)
    styles: StyleOptions | None = None
    claims: list[str] = list_field(
        (), help="claim forms: original, translated, bilingual or paired; none: each system's own"
    )
    languages: list[str] | None = list_field(help="score claims in these languages only")
    val: Literal["auto", "carved", "train"] = "auto"
    rewrites: Path | None = None
    translator: TranslatorConfig | None = None
    llm: LLMConfig = field(default_factory=LLMConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None
    metrics: list[str] = list_field(
        METRICS, help="such as recall@500; if set, each metric has intervals"
    )
    depth: Annotated[int, Between(1, 10**6)] | None = None

    def check(self) -> None:
        super().check()
        require(bool(self.metrics), "metrics", self.metrics, f"one or more of {ALLOWED}")
        for metric in self.metrics:
            cutoff(metric)
        for form in self.claims:
            require_one_of("claims", form, get_args(ClaimForm))
        for key, values in self.vary.items():
            require(bool(values), f"vary {key}", values, "one or more values")
        is_one = len(self.checkpoint) == 1
        require(is_one or not self.routes, "routes", self.routes, "none without one --checkpoint")
        none = not self.checkpoint
        require(not (none and self.stages), "stages", self.stages, "none without --checkpoint")
        if none:
            allowed = "none without --checkpoint: systems files have the settings of their models"
            default = ModelConfig()
            for spec in fields(ModelConfig):
                value = getattr(self.model, spec.name)
                is_unset = value == getattr(default, spec.name)
                require(is_unset, f"model.{spec.name}", value, allowed)
        has_both = self.styles is not None and self.rewrites is not None
        require(
            not has_both,
            "rewrites",
            str(self.rewrites),
            "none with styles, which replace the texts",
        )
        good = self.styles is None or MAIN_METRIC in self.scoring.metrics
        require(good, "depth", self.depth, f"with styles, a depth that gives {MAIN_METRIC}")

    @property
    def deepest(self) -> int:
        return self.depth or max(DEPTH, *(cutoff(metric) or 0 for metric in self.metrics))

    @property
    def scoring(self) -> Scoring:
        """Return the scoring, with intervals of MRR@5, or of all metrics if the user named some."""
        scored = []
        for metric in self.metrics:
            if (cutoff(metric) or self.deepest) <= self.deepest:
                scored.append(metric)
        bounded = [MAIN_METRIC] if tuple(self.metrics) == METRICS else scored
        return Scoring(scored, self.repeats if self.tests else 0, self.seed, bounded=bounded)

    def plans(self) -> list[RowPlan]:
        """List the systems to evaluate, each with its own claim form. Raises `UserError`."""
        shipped = shipped_files()
        files = self.systems or ([] if self.checkpoint else shipped)
        systems = read_systems(files, shipped, self.llm)
        staged = read_systems([self.stages] if self.stages else [], shipped, self.llm)
        checkpoints = list_checkpoints(self.checkpoint)
        sources = (self.rendering or Rendering()).sources
        return plan_rows(
            systems,
            staged,
            checkpoints,
            Dense(self.model, sources=sources, rendering=self.rendering),
            routes=self.routes,
            only=self.only,
            vary=self.vary,
            run=self.run,
        )


@dataclass(frozen=True)
class _Planned:
    """Plan of an evaluation: what its rows are made and scored with.

    `training` belongs to the folder of a single run.
    """

    plans: list[RowPlan]
    runner: SystemRunner
    scoring: Scoring
    training: TrainingReport | None
    notes: list[str]

    @property
    def is_tested(self) -> bool:
        """Whether MRR@5 can be tested: it is a metric, and claims have golds."""
        has_golds = bool(self.runner.reported.golds)
        return has_golds and self.scoring.repeats > 0 and MAIN_METRIC in self.scoring.metrics


@with_local_models
def evaluate_table(config: EvaluateConfig, train_split: str | None = None) -> str:
    """Run the planned rows, write `config.out`, return the tables as text.

    A row's folder has its own `report.json`, the runs of its stages and its submissions. The
    top `report.json` has all rows, those that did not run, the tests and the published numbers.
    Settings are chosen on `train_split`; None: the split in a checkpoint's manifest, else train.
    """
    planned = _plan(config, train_split)
    runner = planned.runner
    scoring = planned.scoring
    rows, not_run = run_rows(
        planned.plans,
        lambda plan: read_or_run(config.out, plan, runner, scoring, PROGRAM),
        runner.runtime,
    )
    report = _make_report(rows, not_run, runner, planned.notes, config.dataset, PROGRAM)
    report = replace(report, training=planned.training)
    if planned.is_tested:
        families, untested = declared_families(rows)
        report = add_tests(
            report,
            scored_rows(rows),
            families,
            runner.reported,
            scoring.repeats,
            scoring.seed,
        )
        report = replace(report, notes=(*report.notes, *untested))
    report, details = _write(config, report, rows, planned)
    if config.submit is not None and report.not_run:
        raise UserError(f"submit: {planned.plans[0].name} did not run: {report.not_run[0].reason}")
    if not rows:
        raise nothing_ran(report.not_run, config.out)
    summary = render(summary_parts(report, config.out, details))
    return f"{report.dataset}, {report.split}\n{summary}"


def _plan(config: EvaluateConfig, train_split: str | None) -> _Planned:
    """Plan the rows; raise `UserError` for impossible settings before anything is run."""
    training = _training(config.checkpoint)
    plans = config.plans()
    for name in config.checkpoint:
        require_model(replace(config.model, name=name))
    if config.styles is not None:
        require_texts(config.styles.texts, config.styles.rewritten)
    require_tracking(config.wandb)
    require_output(config.out)
    dataset = load_reported(config.dataset, config.split, config.languages, lenient=config.lenient)
    rewrites = _read_rewrites(config, dataset)
    dataset, translation_notes = _translated(config, dataset)
    forms, notes = distinct_forms(config.claims, dataset.claims)
    notes += translation_notes
    plans = over_forms(plans, forms)
    names = [plan.name for plan in plans]
    require_submittable(config.submit, dataset, names, "choose with --only and --claims")
    if config.submit and any(plan.system.is_simulated for plan in plans):
        allowed = "systems without a simulated stage or a stage that gets the golds"
        raise ConfigError("submit", str(config.submit), allowed)
    scoring = config.scoring
    deeper = [metric for metric in config.metrics if metric not in scoring.metrics]
    if deeper:
        notes.append(f"{', '.join(deeper)}: left out, deeper than --depth {config.depth}.")
    settings = RunSettings(
        config.dataset,
        ChoosingOn(train_split, config.val, config.lenient, config.rule),
        rewrites,
        Store(config.store),
        config.device,
        config.deepest,
        rewrites_file=str(config.rewrites) if config.rewrites else None,
    )
    return _Planned(plans, SystemRunner(dataset, settings), scoring, training, notes)


def _read_rewrites(config: EvaluateConfig, dataset: Dataset) -> Mapping[str, str]:
    """Read the rewritings of claims. Raises `UserError` if no reported claim has one."""
    if config.rewrites is None:
        return {}
    rewrites = read_rewrites(config.rewrites)
    if rewrites.keys().isdisjoint(claim.id for claim in dataset.claims):
        raise UserError(f"{config.rewrites}: no claim of {config.split} has a rewriting")
    return rewrites


def _translated(config: EvaluateConfig, dataset: Dataset) -> tuple[Dataset, list[str]]:
    """Return claims with the translator's translations; note its failures and its pace."""
    if config.translator is None:
        return dataset, []
    translators = Translators.open(config.translator, Store(config.store))
    started = time.perf_counter()
    claims, _ = translators.translate_claims(dataset.claims, overwrite=True)
    seconds = time.perf_counter() - started
    if not translators.asked:
        reason = "no claim is in a language that it supports"
        raise ConfigError("translator", "", "", reason)
    pace = 1000 * seconds / translators.asked
    notes = [f"Translator: {translators.asked} claims, {pace:.1f} ms each."]
    if summary := translators.summary():
        notes.append(f"Translator: {summary}.")
    return dataset.with_claims(claims), notes


def _write(
    config: EvaluateConfig,
    report: Report,
    rows: Sequence[SystemRow],
    planned: _Planned,
) -> tuple[Report, list[Part]]:
    """Write the report, with the grid of styles if configured; return it and its details.

    Details are the parts that a single row, the grid and a submission add to the report's own.
    """
    parts = report_parts(report, wide=True)
    tables = report_tables(report, wide=True)
    details = list(rows[0].parts) if len(rows) == 1 else []
    if config.styles is not None:
        report, style_parts, grids = add_styles(
            report,
            rows,
            planned.runner,
            config.styles,
            planned.scoring,
            config.out,
        )
        details += style_parts
        tables |= grids
    if rows:
        details += submit(config.submit, rows[0].whole.run, planned.runner.reported)
    title = f"{report.dataset}, {report.split}"
    write_report(report, config.out, title, parts + details)
    program = Path(PROGRAM).stem
    values = as_plain(config)
    log_tables(config.wandb, tables, folder=config.out, program=program, config=values)
    return report, details


def nothing_ran(not_run: Sequence[NotRun], out: Path) -> UserError:
    """Make the error of an evaluation without a row; it names the first row that failed."""
    first = not_run[0]
    more = f" ({len(not_run)} rows did not run: {out}/report.md)" if len(not_run) > 1 else ""
    return UserError(f"nothing ran: {first.system}: {first.reason}; {first.advice}{more}")


def _training(checkpoints: Sequence[str]) -> TrainingReport | None:
    """Return the training from the report of a single run's folder; None if there is none."""
    if len(checkpoints) != 1:
        return None
    folder = Path(checkpoints[0])
    try:
        return Report.read(folder).training if (folder / RUN_FILE).is_file() else None
    except InputError:
        return None  # the run has not ended, or an older version wrote it


def _make_report(
    rows: Sequence[SystemRow],
    not_run: Sequence[NotRun],
    runner: SystemRunner,
    notes: Sequence[str],
    name: str | None = None,
    program: str = "",
) -> Report:
    """Make the report of all rows; its own scores are those of the only row or the chosen one."""
    dataset = runner.reported
    on_chosen = [row for row in rows if row.plan.is_chosen]
    main = _main_row(rows, on_chosen, not_run)
    report = make_report(dataset, scored_rows(rows), main, name=name, program=program)
    whole = {row.name: row.whole for row in rows}
    report = with_shared_note(report, [*whole])
    report = with_missing_notes(report, whole, dataset)
    # First stages return more sources than any metric needs; later ones may cut the lists.
    with_stages = scored_rows([row for row in rows if row.plan.system.stages])
    report = with_depth_notes(report, with_stages, dataset)
    details = []
    for row in rows:
        for note in row.notes:
            if note not in report.notes:
                details.append(f"{row.name}: {note}")
    checkpoints = {row.plan.checkpoint for row in on_chosen}
    chosen_names = set()
    for checkpoint in checkpoints:
        if checkpoint is not None:
            chosen_names.add(checkpoint.name)
    return replace(
        report,
        chosen=chosen_names.pop() if len(chosen_names) == 1 else None,
        not_run=tuple(not_run),
        notes=(*report.notes, *notes, *details),
    )


def _main_row(
    rows: Sequence[SystemRow],
    on_chosen: Sequence[SystemRow],
    not_run: Sequence[NotRun],
) -> str | None:
    """Return the name of the only row, or of the chosen checkpoint; None if there is neither."""
    if len(rows) == 1 and not not_run:
        return rows[0].name
    own = []
    for row in on_chosen:
        if not row.plan.suffix:
            own.append(row.name)
    return own[0] if len(own) == 1 else None


def evaluate_systems(
    systems: Mapping[str, System] | str | Path,
    dataset: Dataset,
    forms: Sequence[ClaimForm] = ("original",),
    settings: RunSettings | None = None,
    *,
    repeats: int = 10_000,
    seed: int = 0,
) -> Report:
    """Run systems over claim forms and score every stage; `systems` is a YAML file or a mapping.

    A system that cannot run is listed in the report's `not_run`, with the reason.

    Example:
        >>> import claim2source as c2s
        >>> grid = {"BM25": {}, "BM25-b1": {"b": 1.0}}
        >>> systems = {k: c2s.make_system(k, {"retrieve": {"bm25": v}}) for k, v in grid.items()}
        >>> report = c2s.evaluate_systems(systems, c2s.load("demo", "dev"), repeats=100)
        >>> list(report.systems)
        ['BM25.original', 'BM25-b1.original']
    """
    require_kind(
        systems,
        (Mapping, str, Path),
        "systems",
        "a mapping of names to Systems, or a file",
    )
    require_kind(dataset, Dataset, "dataset", DATASET_WANTED)
    repeats = whole_number(repeats, "repeats", 0)
    seed = whole_number(seed, "seed", 0)
    for name, system in systems.items() if isinstance(systems, Mapping) else ():
        require_kind(system, System, f"systems.{name}", "a System, such as make_system makes")
    by_name = systems if isinstance(systems, Mapping) else read_systems([Path(systems)])
    distinct, notes = distinct_forms(forms, dataset.claims)
    plans = (RowPlan(replace(system, name=name)) for name, system in by_name.items())
    runner = SystemRunner(dataset, settings or RunSettings())
    scoring = Scoring(repeats=repeats, seed=seed)
    rows, not_run = run_rows(
        over_forms(plans, distinct),
        lambda plan: run_row(plan, runner, scoring),
        runner.runtime,
    )
    return _make_report(rows, not_run, runner, notes)


def scored_rows(rows: Sequence[SystemRow]) -> dict[str, ScoredSystem]:
    """Map the name of every stage of rows to it."""
    scored: dict[str, ScoredSystem] = {}
    for row in rows:
        scored |= row.stages
    return scored
