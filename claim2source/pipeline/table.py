"""Evaluate systems, checkpoints and stages: plan, run, score, test, write and print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from claim2source.core.config import Between, as_plain, list_field, require, require_one_of
from claim2source.core.errors import InputError, UserError
from claim2source.core.folders import RUN_FILE, require_output
from claim2source.core.records import Dataset
from claim2source.core.report import MAIN_METRIC, Report, TrainingReport
from claim2source.core.tables import render
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.metrics.metrics import ALLOWED, cutoff
from claim2source.models import ModelConfig
from claim2source.models.local import with_local_models
from claim2source.pipeline.declared import declared_families
from claim2source.pipeline.evaluate import METRICS, Scoring, add_tests
from claim2source.pipeline.evaluate_systems import (
    ALL_FORMS,
    distinct_forms,
    rows_report,
    run_rows,
    scored_rows,
)
from claim2source.pipeline.options import ChoosingOptions, EvaluationOptions
from claim2source.pipeline.plan import Planned, cells_of, checkpoints_of, plan
from claim2source.pipeline.rows import Row
from claim2source.pipeline.style_grid import StyleOptions, add_styles
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.systems.nodes import DenseNode
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from claim2source.systems.stages import is_simulated
from claim2source.systems.system import DEPTH, RunSettings, SystemRunner
from claim2source.text import Rendering
from claim2source.text.views import read_rewrites

PROGRAM = "eval/evaluate.py"


@dataclass(frozen=True)
class EvaluateConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `eval/evaluate.py`.

    Args:
        out: folder for the reports; what lies there from the same settings is not done again.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        checkpoint: checkpoints, models, or training runs, of which every kept epoch and step 0
            is a system; systems with `dense: checkpoint` run on each.
        routes: language -> checkpoint that ranks its claims in place of `checkpoint`; on the
            command line `--route de=RUN`.
        stages: a file of systems that run on each checkpoint, in place of their own dense model.
        run: a ranking of another program (TREC, a lab's TSV, the 2026 paper's score JSON) in
            place of the systems' first stages.
        vary: settings to change, one at a time, each with its values: `retrieve.KEY` or
            `stages.N.KEY`, stages counted from 1; each is tested against the system as it is. On
            the command line `--vary stages.1.depth=10,50`.
        styles: the grid of text styles, of every system; none: texts as they are.
        val: the claims of train that something is chosen on: a part `carved` out as in training,
            all of `train` (only for models that were not trained on it), or `auto`: carved for a
            trained checkpoint of ours, else train. BM25 is always chosen on all of train.
        rewrites: JSON lines {"_id": claim, "text": ..}: a rewriting appended to each claim.
        model: how a model that is no checkpoint of ours is read; its name is `checkpoint`.
        rendering: representation for such a model; a checkpoint has its own.
        label: name by which published tables know the checkpoint, such as GritLM-F; none: a
            model's own, and at step 0 its base's.
        depth: sources kept per claim; metrics that look deeper are left out. None: 100, or what
            the deepest metric looks at.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    systems: list[Path] = list_field(
        (), help="YAML files of systems; none: all of configs/systems, if no checkpoint is named"
    )
    only: list[str] = list_field(
        (),
        help="only these systems; chosen: a training's chosen checkpoint, and what stands on it; "
        "chosen+NAME: one of these",
    )
    checkpoint: list[str] = list_field((), help="checkpoints, training runs, or models' names")
    routes: dict[str, str] = field(default_factory=dict)
    stages: Path | None = None
    run: Path | None = None
    vary: dict[str, list[Any]] = field(default_factory=dict)
    styles: StyleOptions | None = None
    claims: list[str] = list_field((), help="claim forms; none: each system's own")
    languages: list[str] | None = list_field(help="score claims in these languages only")
    val: Literal["auto", "carved", "train"] = "auto"
    rewrites: Path | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None
    label: str | None = None
    metrics: list[str] = list_field(
        METRICS, help="such as recall@500; others than these have intervals each"
    )
    depth: Annotated[int, Between(1, 10**6)] | None = None

    def check(self) -> None:
        super().check()
        require(bool(self.metrics), "metrics", self.metrics, f"one or more of {ALLOWED}")
        for metric in self.metrics:
            cutoff(metric)
        for form in self.claims:
            require_one_of("claims", form, ALL_FORMS)
        one = len(self.checkpoint) == 1
        require(one or not self.routes, "routes", self.routes, "none without one --checkpoint")
        none = not self.checkpoint
        require(not (none and self.stages), "stages", self.stages, "none without --checkpoint")
        good = self.styles is None or MAIN_METRIC in self.scoring.metrics
        require(good, "depth", self.depth, f"with styles, a depth that gives {MAIN_METRIC}")

    @property
    def deepest(self) -> int:
        """Count the sources that are kept per claim."""
        return self.depth or max(DEPTH, *(cutoff(metric) or 0 for metric in self.metrics))

    @property
    def scoring(self) -> Scoring:
        """Say what is computed: intervals of MRR@5, or of all metrics that were named."""
        scored = [one for one in self.metrics if (cutoff(one) or self.deepest) <= self.deepest]
        bounded = [MAIN_METRIC] if tuple(self.metrics) == METRICS else scored
        return Scoring(scored, self.repeats if self.tests else 0, self.seed, bounded=bounded)

    def planned(self) -> list[Planned]:
        """List what is evaluated. Raises `UserError`."""
        shipped = sorted(SYSTEMS_FOLDER.glob("*.yaml"))
        files = self.systems or ([] if self.checkpoint else shipped)
        sources = (self.rendering or Rendering()).sources
        return plan(
            read_systems(files, shipped),
            read_systems([self.stages] if self.stages else [], shipped),
            checkpoints_of(self.checkpoint, self.label),
            DenseNode(model=self.model, sources_form=sources, rendering=self.rendering),
            routes=self.routes,
            only=self.only,
            vary=self.vary,
            run=self.run,
        )

    def run_settings(self, train_split: str | None = None) -> RunSettings:
        """Say how systems are run, and on which split settings are chosen."""
        return RunSettings(
            self.dataset,
            replace(self.choosing(self.val), split=train_split),
            read_rewrites(self.rewrites) if self.rewrites else {},
            self.models,
            self.open_store(),
            self.device,
            self.deepest,
            rewrites_file=str(self.rewrites) if self.rewrites else None,
        )


@with_local_models
def evaluate_table(config: EvaluateConfig, train_split: str | None = None) -> str:
    """Run everything that is planned, write `config.out`, return the tables as text.

    A row's folder holds its own `report.json`, the runs of its stages and its submissions; the
    top `report.json` holds all rows, with what did not run, the tests and the published numbers.
    Settings are chosen on `train_split`; none: as a checkpoint's manifest says, else train.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    planned, scoring, settings = config.planned(), config.scoring, config.run_settings(train_split)
    dataset = load_reported(config.dataset, config.split, config.languages, lenient=config.lenient)
    if config.rewrites and settings.rewrites.keys().isdisjoint(c.id for c in dataset.claims):
        raise UserError(f"{config.rewrites}: no rewriting of a claim of {config.split}")
    forms, notes = distinct_forms(config.claims, dataset)
    cells = cells_of(planned, forms)
    names = [one.system.name + (f".{form}" if form else "") for one, form in cells]
    require_submittable(config.submit, dataset, names, "choose with --only and --claims")
    simulated = any(is_simulated(entry) for one in planned for entry in one.system.stages)
    allowed = "none of a simulated stage, or of one that is handed the golds"
    require(config.submit is None or not simulated, "submit", str(config.submit), allowed)

    runner = SystemRunner(dataset, settings)
    rows, not_run = run_rows(cells, runner, scoring, config.out, PROGRAM)
    if deeper := [metric for metric in config.metrics if metric not in scoring.metrics]:
        notes += [f"{', '.join(deeper)}: left out, deeper than --depth {config.depth}."]
    report = rows_report(rows, not_run, dataset, name=config.dataset, program=PROGRAM, notes=notes)
    report = replace(report, training=_training(config.checkpoint))
    if scoring.repeats and dataset.golds and MAIN_METRIC in scoring.metrics:
        report = _tested(report, rows, dataset, scoring)
    parts, tables = report_parts(report, wide=True), report_tables(report, wide=True)
    if len(rows) == 1:
        parts += rows[0].parts
    if config.styles is not None:
        report, more, grids = add_styles(report, rows, runner, config.styles, scoring, config.out)
        parts, tables = parts + more, tables | grids
    if config.submit is not None and rows:
        parts += submit(config.submit, rows[0].stages[rows[0].name].run, dataset)

    title = f"{config.dataset}, {config.split}"
    write_markdown(config.out, title, parts)
    # Last: when it lies there, all that it names does too.
    report.write(config.out)
    program = Path(PROGRAM).stem
    log_tables(config.wandb, tables, folder=config.out, program=program, config=as_plain(config))
    if config.submit is not None and report.not_run:
        raise UserError(f"submit: {names[0]} did not run: {report.not_run[0].reason}")
    return f"{title}\n{render(parts)}"


def _tested(report: Report, rows: Sequence[Row], dataset: Dataset, scoring: Scoring) -> Report:
    """Add the tests of what ran, in declared families, and the published numbers."""
    families, untested = declared_families(rows)
    scored = scored_rows(rows)
    report = add_tests(report, scored, families, dataset, scoring.repeats, scoring.seed)
    return replace(report, notes=(*report.notes, *untested))


def _training(checkpoints: Sequence[str]) -> TrainingReport | None:
    """Return what the report of the one training run's folder says of the training."""
    if len(checkpoints) != 1:
        return None
    folder = Path(checkpoints[0])
    try:
        return Report.read(folder).training if (folder / RUN_FILE).is_file() else None
    except InputError:
        return None  # it has not ended, or an older version wrote it
