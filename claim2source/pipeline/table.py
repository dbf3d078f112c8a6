"""Evaluate systems: every system, claim form and stage is a row of one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from claim2source.core.config import Between, as_plain, list_field, require, require_one_of
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.folders import RUN_FILE, require_output
from claim2source.core.progress import watched
from claim2source.core.records import Dataset
from claim2source.core.report import (
    MAIN_METRIC,
    NotRun,
    Report,
    Table,
    TrainingReport,
)
from claim2source.core.tables import render
from claim2source.evaluation.reports import LoadedSystem, whole_run
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.metrics.metrics import ALLOWED, cutoff
from claim2source.models import Manifest, ModelConfig
from claim2source.models.local import local_name, with_local_models
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.models.resolve import checkpoint_folder
from claim2source.pipeline.declared import Row, declared_families
from claim2source.pipeline.evaluate import (
    METRICS,
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    with_depth_notes,
    with_whole,
)
from claim2source.pipeline.evaluate_systems import (
    ALL_FORMS,
    Cell,
    distinct_forms,
    form_of_failed,
    not_run_row,
)
from claim2source.pipeline.options import ChoosingOptions, EvaluationOptions
from claim2source.pipeline.plan import Checkpoint, Planned, checkpoints_of, plan
from claim2source.pipeline.staged import ScoredStages, score_stages
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.pipeline.versions import score_versions
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.retrieve.saved import SavedRunConfig
from claim2source.systems.heldout import NothingToChooseOn
from claim2source.systems.nodes import DenseNode, RunNode
from claim2source.systems.read import SYSTEMS_FOLDER, Systems, read_systems
from claim2source.systems.system import (
    DEPTH,
    RunSettings,
    System,
    SystemResult,
    SystemRunner,
    choosing_claims,
)
from claim2source.text import ClaimForm, Rendering
from claim2source.text.views import read_rewrites

PROGRAM = "eval/evaluate.py"
# Counted up when the same settings would give another report.
_FORMAT = 1


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
        (), help="only these systems; chosen: a training's chosen checkpoint"
    )
    checkpoint: list[str] = list_field((), help="checkpoints, training runs, or models' names")
    routes: dict[str, str] = field(default_factory=dict)
    stages: Path | None = None
    run: Path | None = None
    vary: dict[str, list[Any]] = field(default_factory=dict)
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

    @property
    def deepest(self) -> int:
        """Count the sources that are kept per claim."""
        return self.depth or max(DEPTH, *(cutoff(metric) or 0 for metric in self.metrics))

    @property
    def scored(self) -> list[str]:
        """List the metrics that lists of so many sources give."""
        return [one for one in self.metrics if (cutoff(one) or self.deepest) <= self.deepest]

    @property
    def scoring(self) -> Scoring:
        """Say what is computed: intervals of MRR@5, or of all metrics that were named."""
        bounded = [MAIN_METRIC] if tuple(self.metrics) == METRICS else self.scored
        repeats = self.repeats if self.tests else 0
        return Scoring(self.scored, repeats, self.seed, bounded=bounded)

    def dense(self, path: str) -> DenseNode:
        """Describe how a checkpoint or model is read."""
        return DenseNode(
            model=replace(self.model, name=path),
            sources_form=(self.rendering or Rendering()).sources,
            rendering=self.rendering,
        )

    def run_settings(self) -> RunSettings:
        """Say how systems are run."""
        return RunSettings(
            self.dataset,
            self.choosing(self.val),
            read_rewrites(self.rewrites) if self.rewrites else {},
            self.models,
            self.open_store(),
            self.device,
            self.deepest,
        )

    def planned(self) -> list[Planned]:
        """List what is evaluated. Raises `UserError`."""
        files = list(self.systems)
        if not files and not self.checkpoint:
            files = sorted(SYSTEMS_FOLDER.glob("*.yaml"))
        shipped = sorted(SYSTEMS_FOLDER.glob("*.yaml"))
        systems: Systems = read_systems(files, shipped) if files else {}
        behind = read_systems([self.stages], shipped) if self.stages is not None else {}
        return plan(
            systems,
            behind,
            checkpoints_of(self.checkpoint),
            self.dense,
            routes=self.routes,
            only=self.only,
            vary=self.vary,
            run=self.run,
        )


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Hold the report of all rows, with the rows themselves."""

    report: Report
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()


@with_local_models
def evaluate_table(config: EvaluateConfig) -> str:
    """Run everything that is planned, write `config.out`, return the tables as text.

    A system's folder holds its own `report.json`, the runs of its stages and its submissions; the
    top `report.json` holds all rows, with what did not run, the tests and the published numbers.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    planned = config.planned()
    dataset = load_reported(config.dataset, config.split, config.languages, lenient=config.lenient)
    if config.rewrites is not None:
        known = {claim.id for claim in dataset.claims}
        if known.isdisjoint(read_rewrites(config.rewrites)):
            raise UserError(f"{config.rewrites}: no rewriting of a claim of {config.split}")
    forms, notes = distinct_forms(config.claims, dataset)
    wanted: Sequence[ClaimForm | None] = forms or [None]
    cells = [(one, form) for one in planned for form in wanted]
    names = [one.system.name + (f".{form}" if form else "") for one, form in cells]
    require_submittable(config.submit, dataset, names, "choose with --only and --claims")
    evaluated = run_planned(config, dataset, cells)
    report = replace(evaluated.report, notes=(*evaluated.report.notes, *notes))
    parts = report_parts(report, wide=True)
    if config.submit is not None and evaluated.rows:
        parts += submit(config.submit, list(evaluated.rows[0].stages.values())[-1].run, dataset)
    title = f"{config.dataset}, {config.split}"
    write_markdown(config.out, title, parts)
    # Last: when it lies there, all that it names does too.
    report.write(config.out)
    log_tables(
        config.wandb,
        report_tables(report, wide=True),
        folder=config.out,
        program=Path(PROGRAM).stem,
        config=as_plain(config),
    )
    if config.submit is not None and report.not_run:
        raise UserError(f"submit: {names[0]} did not run: {report.not_run[0].reason}")
    return f"{title}\n{render(parts)}"


def run_planned(
    config: EvaluateConfig, dataset: Dataset, cells: Sequence[tuple[Planned, ClaimForm | None]]
) -> Evaluated:
    """Run and score every system over its claim forms; what fails is listed as not run."""
    runner = SystemRunner(dataset, config.run_settings())
    rows: dict[int, Row] = {}
    not_run: dict[int, NotRun] = {}
    for place in watched(_by_model(cells), "systems", len(cells)):
        one, form = cells[place]
        try:
            rows[place] = _row(config, runner, one, form)
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: one system's failure is not the table's.
            shown = Cell(one.system.name, form_of_failed(one.system, runner.runtime, form))
            not_run[place] = not_run_row(shown, one.system, error)
    found = tuple(rows[place] for place in sorted(rows))
    scored = {name: one for row in found for name, one in row.stages.items()}
    reports = {name: one.report for name, one in scored.items()}
    main = _main(found, cells)
    report = make_report(dataset, reports, main, name=config.dataset, program=PROGRAM)
    report = with_depth_notes(report, scored, dataset)
    chosen = [one.checkpoint.name for one, _ in cells if one.checkpoint and one.checkpoint.chosen]
    report = replace(
        report,
        chosen=chosen[0] if len(set(chosen)) == 1 else None,
        training=_training(config.checkpoint),
        not_run=tuple(not_run[place] for place in sorted(not_run)),
        notes=(*report.notes, *_left_out(config)),
    )
    if config.tests and dataset.golds and MAIN_METRIC in config.scored:
        families, untested = declared_families(found)
        report = add_tests(report, scored, families, dataset, config.repeats, config.seed)
        report = replace(report, notes=(*report.notes, *untested))
    return Evaluated(report, found)


def _by_model(cells: Sequence[tuple[Planned, ClaimForm | None]]) -> list[int]:
    """Order cells with those of one dense model together, so that it is loaded once."""
    models = [repr(one.system.first.main_model or one.system.name) for one, _ in cells]
    first = {model: models.index(model) for model in models}
    return sorted(range(len(cells)), key=lambda place: first[models[place]])


def _main(rows: Sequence[Row], cells: Sequence[tuple[Planned, ClaimForm | None]]) -> str | None:
    """Name the row whose scores stand at the report's top: the only one, or the chosen one."""
    if len(rows) == len(cells) == 1:
        return rows[0].name
    chosen = [
        row.name
        for row in rows
        if row.planned.checkpoint is not None
        and row.planned.checkpoint.chosen
        and row.planned.system.name == row.planned.checkpoint.name
    ]
    return chosen[0] if len(chosen) == 1 else None


def _row(config: EvaluateConfig, runner: SystemRunner, one: Planned, form: ClaimForm | None) -> Row:
    """Take a system's rows from their folder, if they were made alike, or make them."""
    system, dataset = one.system, runner.reported
    own = system.form_of(form, runner.runtime)
    cell = Cell(system.name, own)
    folder, key = config.out / cell.name, _key(config, runner, system, own)
    if (known := _known(folder, key, dataset.languages)) is not None:
        return Row(one, own, _named(cell.name, known))
    # A report of other settings must not stand beside these runs if this stops halfway.
    (folder / "report.json").unlink(missing_ok=True)
    found = runner.run(system, form)
    scoring = replace(config.scoring, seen_golds=_seen_golds(runner, system))
    stages = score_stages(found, system, dataset, scoring, name=config.dataset, program=PROGRAM)
    loaded = [stage for _, stage in system.loaded_stages()]
    versions = score_versions(
        dict(zip(list(stages.scored)[1:], loaded, strict=True)),
        found.stages[-len(loaded) - 1 :],
        dataset,
        runner.runtime,
    )
    stages = replace(_described(config, dataset, one, found, stages, key), versions=versions)
    stages.write(dataset, folder)
    write_markdown(folder, cell.name, stages.parts())
    return Row(one, own, _named(cell.name, stages.scored))


def _described(
    config: EvaluateConfig,
    dataset: Dataset,
    one: Planned,
    found: SystemResult,
    stages: ScoredStages,
    key: str,
) -> ScoredStages:
    """Say of each row what the report tells of a system beside its scores."""
    system, checkpoint = one.system, one.checkpoint
    scored, last = {}, list(stages.scored)[-1]
    for place, (name, row) in enumerate(stages.scored.items()):
        whole = replace(row.report, published=stages.report.systems[name].published)
        if name == last:
            parts = [Cell(part.name, found.form).name for part in system.parts if part.name]
            whole = replace(
                with_whole(whole, found, dataset),
                sources=whole.sources,  # a stage may read others than the first one
                parts=tuple(dict.fromkeys(parts)),
            )
        report = replace(
            whole,
            key=key,
            settings=_given(as_plain(system)),
            rewrites=str(config.rewrites) if config.rewrites else None,
            # Appended to the claims: none of the papers' styles, which replace them.
            style="rewritten" if config.rewrites else "S0C0",
        )
        if checkpoint is not None and not place:
            model = found.untrained_base or config.label or checkpoint.path
            hybrid = system.first.kind == "hybrid"
            report = replace(
                report,
                model=f"hybrid:{model}" if hybrid else model,
                val={} if config.routes else _scores_on_val(checkpoint),
            )
        scored[name] = replace(row, report=report)
    reports = {name: row.report for name, row in scored.items()}
    return replace(stages, scored=scored, report=replace(stages.report, systems=reports))


def _named(cell: str, scored: Mapping[str, ScoredSystem]) -> dict[str, ScoredSystem]:
    """Name a cell's stages for the report of all: the last one is the whole system."""
    found, last = {}, list(scored)[-1]
    for stage, one in scored.items():
        name = cell if stage == last else f"{cell}: {stage}"
        report = replace(
            one.report,
            name=name,
            system=cell.rpartition(".")[0],
            stage="" if stage == last else stage,
            runs=f"{cell}/{one.report.runs}",
        )
        found[name] = replace(one, report=report)
    return found


def _known(folder: Path, key: str, languages: Sequence[str]) -> dict[str, ScoredSystem] | None:
    """Read rows that were made before; None where they are others or a file is missing."""
    try:
        report = Report.read(folder)
        found = {}
        for name, system in report.systems.items():
            runs = [folder / system.runs / f"{lang}.trec" for lang in languages]
            if system.key != key or not all(run.is_file() for run in runs):
                return None
            loaded = LoadedSystem(system, folder, report.dataset, report.split)
            found[name] = ScoredSystem(system, whole_run(loaded))
        return found or None
    except InputError:
        return None


def _given(value: Any) -> Any:
    """Drop what was not set, for a reader."""
    if not isinstance(value, dict):
        return value
    return {key: _given(item) for key, item in value.items() if item not in (None, "", [], False)}


def _key(config: EvaluateConfig, runner: SystemRunner, system: System, form: ClaimForm) -> str:
    """Hash all that makes a system's rows: another key, another report."""
    nodes, data = list(system.first.walk()), runner.reported
    dense = [node.model.name for node in nodes if isinstance(node, DenseNode)]
    files = [path for node in nodes if isinstance(node, RunNode) for path in _files(node.run)]
    parts: dict[str, Any] = {
        "format": _FORMAT,
        "system": as_plain(system),
        # A stage may read a model in a folder, where another may lie by now.
        "weights": {name: _weights(name) for name in (*dense, *system.models())},
        "runs": [file_hash(path) if path.is_file() else None for path in files],
        "claims": form,
        "split": data.split,
        "data": data.fingerprint,
        "rewrites": content_hash(dict(runner.settings.rewrites)),
        "scoring": as_plain(config.scoring),
        "vectors": config.vectors if dense else None,
        "depth": config.deepest,
    }
    if system.is_fit:
        parts["chosen on"] = [runner.held_out.train().fingerprint, config.val, config.rule]
    return content_hash(parts)


def _files(run: SavedRunConfig) -> list[Path]:
    return [*run.files.values(), *([] if run.selections is None else [run.selections])]


def _weights(model: str) -> Any:
    """Identify a folder's content; a hub's model is identified by its revision."""
    folder = Path(local_name(model))
    if not folder.is_dir():
        return None
    # Sizes and times, not hashes: seven billion weights take longer to read than to skip.
    states = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*"))}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def _seen_golds(runner: SystemRunner, system: System) -> frozenset[str] | None:
    """Return the golds of the claims that a system's models were trained on, if they were."""
    try:
        selection = choosing_claims(system, runner.runtime, runner.held_out)
    except (NothingToChooseOn, UserError):
        return None
    if selection.val is selection.train:
        return None
    held_out = {claim.id for claim in selection.val.claims}
    trained = (claim for claim in selection.train.claims if claim.id not in held_out)
    return frozenset(gold for claim in trained for gold in claim.golds)


def _scores_on_val(checkpoint: Checkpoint) -> Mapping[str, Table]:
    """Return the scores on val that a checkpoint's manifest states; none for any other model."""
    folder = checkpoint_folder(checkpoint.path)
    return Manifest.read(folder).scores if (folder / MANIFEST).is_file() else {}


def _training(checkpoints: Sequence[str]) -> TrainingReport | None:
    """Return what the report of the one training run's folder says of the training."""
    if len(checkpoints) != 1:
        return None
    folder = Path(checkpoints[0])
    try:
        return Report.read(folder).training if (folder / RUN_FILE).is_file() else None
    except InputError:
        return None  # it has not ended, or an older version wrote it


def _left_out(config: EvaluateConfig) -> list[str]:
    """Name the metrics that lists of `depth` sources do not give."""
    missing = [metric for metric in config.metrics if metric not in config.scored]
    said = f"{', '.join(missing)}: left out, deeper than --depth {config.depth}."
    return [said] if missing else []
