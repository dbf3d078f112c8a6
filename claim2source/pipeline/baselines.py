"""Evaluate many systems over claim forms: zero-shot baselines, hybrids, tuned systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from claim2source.core.config import as_plain, list_field, require, require_one_of
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.folders import require_output
from claim2source.core.report import Report, SystemReport
from claim2source.core.tables import render
from claim2source.evaluation.families import Family
from claim2source.evaluation.reports import LoadedSystem, whole_run
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.models.local import local_name, with_local_models
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.evaluate_systems import (
    ALL_FORMS,
    Cell,
    cells_of,
    distinct_forms,
    run_cells,
    score_cell,
)
from claim2source.pipeline.options import ChoosingOptions, EvaluationOptions
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.retrieve.saved import SavedRunConfig
from claim2source.systems.nodes import PAPERS_LABEL, BM25Node, DenseNode, HybridNode, RunNode
from claim2source.systems.read import Systems, named_systems
from claim2source.systems.system import DEPTH, RunSettings, System, SystemRunner
from claim2source.text.views import FORMS, read_rewrites

PROGRAM = "eval/baselines.py"
# Counted up when the same settings would give another report.
_FORMAT = 7


@dataclass(frozen=True)
class BaselinesConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `eval/baselines.py`.

    Args:
        out: folder for the reports; what lies there from the same settings is not done again.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        val: the claims of train that fusions are chosen on: a part `carved` out as in training, all
            of `train` (only for models that were not trained on it), or `auto`: carved for a
            trained checkpoint of ours, else train. BM25 is always chosen on all of train.
        rewrites: JSON lines {"_id": claim, "text": ..}: a rewriting appended to each claim.
    """

    out: Path
    dataset: str = "demo"
    split: str = "dev"
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    systems: list[str] = list_field(help="only these systems of the files")
    claims: list[str] = list_field(FORMS, help="claim forms")
    languages: list[str] | None = list_field(help="score claims in these languages only")
    val: Literal["auto", "carved", "train"] = "auto"
    rewrites: Path | None = None

    def check(self) -> None:
        super().check()
        require(bool(self.claims), "claims", self.claims, "one or more of " + ", ".join(ALL_FORMS))
        for form in self.claims:
            require_one_of("claims", form, ALL_FORMS)


@with_local_models
def evaluate_baselines(config: BaselinesConfig, train_split: str | None = None) -> str:
    """Run every system over every claim form, write `config.out`, return the table as text.

    Settings are chosen on `train_split`; none: as a checkpoint's manifest says, else train.

    A cell's folder holds its own `report.json` and `runs/`; the top `report.json` holds them all,
    with what did not run, the tests and the published numbers.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    systems, names = named_systems(config.files, config.systems)
    dataset = load_reported(config.dataset, config.split, config.languages, lenient=config.lenient)
    rewrites = read_rewrites(config.rewrites) if config.rewrites else {}
    if config.rewrites and rewrites.keys().isdisjoint(claim.id for claim in dataset.claims):
        raise UserError(f"{config.rewrites}: no rewriting of a claim of {config.split}")
    settings = RunSettings(
        config.dataset,
        replace(config.choosing(config.val), split=train_split),
        rewrites=rewrites,
        models=config.models,
        store=config.open_store(),
        device=config.device,
    )
    systems = {name: systems[name] for name in names}
    runner = SystemRunner(dataset, settings)
    forms, notes = distinct_forms(config.claims, dataset)
    rows = [cell.name for cell in cells_of(names, systems, forms)]
    require_submittable(config.submit, dataset, rows, "choose with --systems and --claims")
    table = run_cells(
        dataset,
        systems,
        forms,
        lambda cell: _cell(config, runner, systems[cell.system], cell),
        name=config.dataset,
        program=PROGRAM,
        notes=notes,
    )
    report = table.report
    if config.tests and dataset.golds:
        families = declared_families(report.systems, systems)
        report = add_tests(report, table.systems, families, dataset, config.repeats, config.seed)
        missing = untested_hybrids(report.systems, systems)
        report = replace(report, notes=(*report.notes, *missing))
    title = f"{config.dataset}, {config.split}"
    parts = report_parts(report, wide=True)
    if config.submit is not None and rows[0] in table.systems:
        parts += submit(config.submit, table.systems[rows[0]].run, dataset)
    write_markdown(config.out, title, parts)
    # Last: when it lies there, all that it names does too.
    report.write(config.out)
    log_tables(
        config.wandb,
        report_tables(report, wide=True),
        folder=config.out,
        program="baselines",
        config=as_plain(config),
    )
    if config.submit is not None and report.not_run:
        raise UserError(f"submit: {rows[0]} did not run: {report.not_run[0].reason}")
    return f"{title}\n{render(parts)}"


def _cell(
    config: BaselinesConfig, runner: SystemRunner, system: System, cell: Cell
) -> ScoredSystem:
    """Take a cell from its folder, if it was made with the same settings, or make it."""
    folder, key, data = config.out / cell.name, _key(config, runner, system, cell), runner.reported
    if (known := _known(folder, key, data.languages)) is not None:
        return known
    # A report of other settings must not stand beside these runs if this stops halfway.
    (folder / "report.json").unlink(missing_ok=True)
    scoring = Scoring(repeats=config.repeats, seed=config.seed)
    scored = score_cell(runner, system, cell, scoring)
    report = replace(
        scored.report,
        settings=_given(as_plain(system)),
        rewrites=str(config.rewrites) if config.rewrites else None,
        # Appended to the claims: none of the papers' styles, which replace them.
        style="rewritten" if config.rewrites else "S0C0",
        runs="runs",
        key=key,
    )
    write_runs(scored.run, data, folder / "runs")
    write_submissions(scored.run, data, folder)
    alone = make_report(data, {cell.name: report}, cell.name, name=config.dataset, program=PROGRAM)
    alone.write(folder)
    return replace(scored, report=report)


def _known(folder: Path, key: str, languages: Sequence[str]) -> ScoredSystem | None:
    """Read a cell that was made before; None where it is another's or a file is missing."""
    try:
        report = Report.read(folder)
        system = next((one for one in report.systems.values() if one.key == key), None)
        runs = [folder / "runs" / f"{lang}.trec" for lang in languages]
        if system is None or not all(run.is_file() for run in runs):
            return None
        loaded = LoadedSystem(system, folder, report.dataset, report.split)
        return ScoredSystem(system, whole_run(loaded))
    except InputError:
        return None


def _given(value: Any) -> Any:
    """Drop what was not set, for a reader."""
    if not isinstance(value, dict):
        return value
    return {key: _given(item) for key, item in value.items() if item not in (None, "", [])}


def _key(config: BaselinesConfig, runner: SystemRunner, system: System, cell: Cell) -> str:
    """Hash all that makes a cell: another key, another report."""
    nodes, data = list(system.first.walk()), runner.reported
    dense = [node.model.name for node in nodes if isinstance(node, DenseNode)]
    parts: dict[str, Any] = {
        "format": _FORMAT,
        "system": as_plain(system),
        "weights": {name: _weights(name) for name in dense},
        "claims": cell.form,
        "split": data.split,
        "data": data.fingerprint,
        "rewrites": content_hash(dict(runner.settings.rewrites)),
        "depth": DEPTH,
        "bootstrap": [config.repeats, config.seed],
    }
    # One that a stage reads may lie in a folder, where another may lie by now.
    behind = [] if system.unsupported is not None else system.models()
    if any(Path(local_name(model)).is_dir() for model in behind):
        parts["weights behind"] = {model: _weights(model) for model in behind}
    if files := [path for node in nodes if isinstance(node, RunNode) for path in _files(node.run)]:
        parts["runs"] = [file_hash(path) if path.is_file() else None for path in files]
    if dense:
        parts["search"] = config.vectors
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


def declared_families(reports: Mapping[str, SystemReport], systems: Systems) -> list[Family]:
    """Declare the tests, fixed by what ran.

    Over the same claim form: dense systems against BM25, hybrids against dense parts, other BM25s
    against the papers'. A system's other forms are tested against its original claims.
    """
    ran = _ran(reports)
    dense, hybrids, sparse, forms = [], [], [], []
    for (system, form), name in ran.items():
        first = systems[system].first
        if form != "original" and (original := ran.get((system, "original"))):
            forms.append((name, original))
        if isinstance(first, HybridNode):
            if part := ran.get((first.dense.name, form)):
                hybrids.append((name, part))
        elif isinstance(first, BM25Node):
            if (papers := _papers_bm25(ran, systems, form)) not in (None, name):
                sparse.append((name, str(papers)))
        else:
            rich = reports[name].sources != "title_abstract"
            if base := _nearest_bm25(ran, systems, form, rich):
                dense.append((name, base))
    named = (
        ("Dense systems against BM25", dense),
        ("Hybrids against their dense part", hybrids),
        ("Other BM25s against the papers'", sparse),
        ("Other claim forms against original claims", forms),
    )
    return [Family(name, tuple(pairs)) for name, pairs in named if pairs]


def untested_hybrids(reports: Mapping[str, SystemReport], systems: Systems) -> list[str]:
    """List the hybrids that no family holds, since their dense part was not asked for."""
    ran = _ran(reports)
    found: dict[str, str] = {}
    for system, form in ran:
        first = systems[system].first
        if isinstance(first, HybridNode) and (first.dense.name, form) not in ran:
            found[system] = f"{system} ({first.dense.shown})"
    listed = ", ".join(found.values())
    return [f"Not tested, their dense part not being among --systems: {listed}."] if found else []


def _ran(reports: Mapping[str, SystemReport]) -> dict[tuple[str, str], str]:
    """Map (system, form) to the name of every cell with scores."""
    return {
        (report.system, name.rpartition(".")[2]): name
        for name, report in reports.items()
        if report.macro
    }


def _papers_bm25(ran: Mapping[tuple[str, str], str], systems: Systems, form: str) -> str | None:
    """Find the cell of the BM25 that the papers' tables know as `bm25`."""
    names = (
        name
        for (system, its_form), name in ran.items()
        if its_form == form and systems[system].label_of() == PAPERS_LABEL
    )
    return next(names, None)


def _nearest_bm25(
    ran: Mapping[tuple[str, str], str], systems: Systems, form: str, rich: bool
) -> str | None:
    """Find the first BM25 over like sources, plain before tuned; where there is none, any."""
    found: list[tuple[tuple[bool, bool], str]] = []
    for (system, its_form), name in ran.items():
        first = systems[system].first
        if isinstance(first, BM25Node) and its_form == form:
            found.append(((first.bm25.metadata is not rich, first.is_fit), name))
    return min(found, key=lambda one: one[0])[1] if found else None
