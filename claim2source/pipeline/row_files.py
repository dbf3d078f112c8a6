"""Write a row to a folder of its own, and read it back where it was made alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from claim2source.core.config import as_plain
from claim2source.core.errors import InputError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.evaluation.html.page import trace_page
from claim2source.evaluation.reports import LoadedSystem, whole_run
from claim2source.models.local import local_name
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.plan import Planned
from claim2source.pipeline.rows import Cell, Row, run_row
from claim2source.pipeline.views import report_parts, write_markdown
from claim2source.systems.nodes import DenseNode, RunNode
from claim2source.systems.system import System, SystemRunner
from claim2source.text import ClaimForm

# Counted up when the same settings would give another report.
_FORMAT = 2
# The page of every claim's way through the stages.
PAGE = "claims.html"


def row_of(
    planned: Planned,
    form: ClaimForm | None,
    runner: SystemRunner,
    scoring: Scoring,
    out: Path,
    program: str,
) -> Row:
    """Take a row from its folder in `out`, if it was made alike, or make it and write it there."""
    system, dataset = planned.system, runner.reported
    own = system.form_of(form, runner.runtime)
    folder = out / Cell(system.name, own).name
    key = _key(runner, scoring, system, own)
    if (row := _read(planned, own, folder, key, dataset.languages)) is None:
        # A report of other settings must not stand beside these runs if this stops halfway.
        (folder / "report.json").unlink(missing_ok=True)
        row = run_row(planned, form, runner, scoring)
        stages = {
            name: replace(one, report=replace(one.report, key=key))
            for name, one in row.stages.items()
        }
        row = replace(row, stages=stages)
        _write(row, dataset, folder, runner.settings.dataset, program)
    within = {
        name: replace(one, report=replace(one.report, runs=f"{folder.name}/{one.report.runs}"))
        for name, one in row.stages.items()
    }
    return replace(row, stages=within)


def _write(row: Row, dataset: Dataset, folder: Path, name: str, program: str) -> None:
    """Write the runs, the whole system's submissions, the page of claims, then the report."""
    for one in row.stages.values():
        write_runs(one.run, dataset, folder / one.report.runs)
    write_submissions(row.stages[row.name].run, dataset, folder)
    runs = {stage: one.run for stage, one in row.stages.items()}
    trace_page(runs, dataset, folder / PAGE, title=f"{name}, {dataset.split}")
    reports = {stage: one.report for stage, one in row.stages.items()}
    report = make_report(dataset, reports, row.name, name=name, program=program)
    report = replace(report, notes=(*report.notes, *row.notes))
    write_markdown(folder, row.name, [*report_parts(report), *row.parts])
    report.write(folder)


def _read(
    planned: Planned, form: ClaimForm, folder: Path, key: str, languages: Sequence[str]
) -> Row | None:
    """Read a row that was made before; None where it is another or a file is missing."""
    try:
        report = Report.read(folder)
        stages = {}
        for name, system in report.systems.items():
            runs = [folder / system.runs / f"{lang}.trec" for lang in languages]
            if system.key != key or not all(run.is_file() for run in runs):
                return None
            loaded = LoadedSystem(system, folder, report.dataset, report.split)
            stages[name] = ScoredSystem(system, whole_run(loaded))
    except InputError:
        return None
    return Row(planned, form, stages, report.notes) if stages else None


def _key(runner: SystemRunner, scoring: Scoring, system: System, form: ClaimForm) -> str:
    """Hash all that makes a system's rows: another key, another report."""
    nodes, data, settings = list(system.first.walk()), runner.reported, runner.settings
    dense = [node.model.name for node in nodes if isinstance(node, DenseNode)]
    runs = [node.run for node in nodes if isinstance(node, RunNode)]
    files = [path for run in runs for path in (*run.files.values(), run.selections) if path]
    parts: dict[str, Any] = {
        "format": _FORMAT,
        "system": as_plain(system),
        # A stage may read a model in a folder, where another may lie by now.
        "weights": {name: _weights(name) for name in (*dense, *system.models())},
        "runs": [file_hash(path) if path.is_file() else None for path in files],
        "claims": form,
        "split": data.split,
        "data": data.fingerprint,
        "rewrites": content_hash(dict(settings.rewrites)),
        "scoring": as_plain(scoring),
        "depth": settings.depth,
    }
    if system.is_fit:
        choosing = settings.choosing
        known = runner.held_out.train().fingerprint
        parts["chosen on"] = [known, choosing.val, choosing.rule]
    return content_hash(parts)


def _weights(model: str) -> Mapping[str, Any] | None:
    """Identify a folder's content; a hub's model is identified by its revision."""
    folder = Path(local_name(model))
    if not folder.is_dir():
        return None
    # Sizes and times, not hashes: seven billion weights take longer to read than to skip.
    states = {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*"))}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}
