"""Run systems over claim forms and put their rows into one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from claim2source.core.errors import UserError
from claim2source.core.progress import watched
from claim2source.core.records import Dataset
from claim2source.core.report import NotRun, Report
from claim2source.pipeline.evaluate import ScoredSystem, Scoring, make_report, with_depth_notes
from claim2source.pipeline.plan import Planned, PlannedCell, cells_of
from claim2source.pipeline.row_files import row_of
from claim2source.pipeline.rows import Cell, Row, form_of_failed, not_run_row, run_row
from claim2source.systems.read import Systems, read_systems
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import ClaimForm
from claim2source.text.views import FORMS, why_same_forms

ALL_FORMS: tuple[ClaimForm, ...] = get_args(ClaimForm)


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
    named = dict(systems) if isinstance(systems, Mapping) else read_systems([Path(systems)])
    distinct, notes = distinct_forms(forms, dataset)
    planned = [Planned(replace(system, name=name)) for name, system in named.items()]
    runner = SystemRunner(dataset, settings)
    cells = cells_of(planned, distinct)
    rows, not_run = run_rows(cells, runner, Scoring(repeats=repeats, seed=seed))
    return rows_report(rows, not_run, dataset, notes=notes)


def run_rows(
    cells: Sequence[PlannedCell],
    runner: SystemRunner,
    scoring: Scoring,
    out: Path | None = None,
    program: str = "",
) -> tuple[list[Row], list[NotRun]]:
    """Run and score systems over claim forms; what fails is listed as not run.

    With `out` each row is written to a folder there, and read from it where it was made alike.
    """
    rows: dict[int, Row] = {}
    failed: dict[int, NotRun] = {}
    for place in watched(_by_model(cells), "systems", len(cells)):
        one, form = cells[place]
        try:
            if out is None:
                rows[place] = run_row(one, form, runner, scoring)
            else:
                rows[place] = row_of(one, form, runner, scoring, out, program)
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: one system's failure is not the table's.
            shown = Cell(one.system.name, form_of_failed(one.system, runner.runtime, form))
            failed[place] = not_run_row(shown, one.system, error)
    return [rows[place] for place in sorted(rows)], [failed[place] for place in sorted(failed)]


def _by_model(cells: Sequence[PlannedCell]) -> list[int]:
    """Order cells with those of one dense model together, so that it is loaded once."""
    models = [repr(one.system.first.main_model or one.system.name) for one, _ in cells]
    first = {model: models.index(model) for model in models}
    return sorted(range(len(cells)), key=lambda place: first[models[place]])


def ordered(systems: Systems) -> list[str]:
    """Order systems with those of one dense model together, so that it is loaded once."""
    cells = cells_of([Planned(replace(one, name=name)) for name, one in systems.items()], [])
    return [cells[place][0].system.name for place in _by_model(cells)]


def scored_rows(rows: Sequence[Row]) -> dict[str, ScoredSystem]:
    """List the stages of all rows by their names."""
    return {name: one for row in rows for name, one in row.stages.items()}


def rows_report(
    rows: Sequence[Row],
    not_run: Sequence[NotRun],
    dataset: Dataset,
    *,
    name: str | None = None,
    program: str = "",
    notes: Sequence[str] = (),
) -> Report:
    """Put rows into a report; at its top are the scores of the only one, or of the chosen one."""
    scored = scored_rows(rows)
    reports = {name: one.report for name, one in scored.items()}
    report = make_report(dataset, reports, _main(rows, not_run), name=name, program=program)
    # First stages are asked for more than any metric needs; later ones may cut the lists.
    cut = scored_rows([row for row in rows if row.planned.system.stages])
    report = with_depth_notes(report, cut, dataset)
    chosen = {
        one.checkpoint.name for row in rows if (one := row.planned).checkpoint and one.is_chosen
    }
    of_rows = [
        f"{row.name}: {note}" for row in rows for note in row.notes if note not in report.notes
    ]
    return replace(
        report,
        chosen=chosen.pop() if len(chosen) == 1 else None,
        not_run=tuple(not_run),
        notes=(*report.notes, *notes, *of_rows),
    )


def _main(rows: Sequence[Row], not_run: Sequence[NotRun]) -> str | None:
    if len(rows) == 1 and not not_run:
        return rows[0].name
    chosen = [row.name for row in rows if row.planned.is_chosen and not row.planned.on]
    return chosen[0] if len(chosen) == 1 else None


def distinct_forms(asked: Sequence[str], dataset: Dataset) -> tuple[list[ClaimForm], list[str]]:
    """List the claim forms that differ here, with a note on those that are left out."""
    forms = [form for form in ALL_FORMS if form in asked]
    if (why := why_same_forms(dataset.claims)) is None:
        return forms, []
    others = [form for form in forms if form in FORMS[1:]]
    note = f"{' and '.join(others)}: the same as original here, since {why}."
    distinct: list[ClaimForm] = [] if forms == ["paired"] else ["original"]
    distinct += [form for form in forms if form == "paired"]
    return distinct, [note] if others else []
