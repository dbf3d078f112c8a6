"""Evaluate many systems over claim forms: the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.progress import watched
from claim2source.core.records import Dataset
from claim2source.core.report import NotRun, Report
from claim2source.models import Manifest, checkpoint_folder
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    score_system,
    with_depth_notes,
)
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.selection import NothingToChooseOn
from claim2source.pipeline.systems import (
    SystemConfig,
    Systems,
    dense_of,
    label_of,
    ordered,
    parts_of,
    read_systems,
)
from claim2source.text import ClaimForm
from claim2source.text.render import FORMS, why_same_forms

ALL_FORMS: tuple[ClaimForm, ...] = get_args(ClaimForm)
_ADVICE = "mend what the reason names and run the same command again; what is done is kept"


@dataclass(frozen=True)
class Cell:
    """Name a system over a claim form; its folder has this name."""

    system: str
    form: ClaimForm

    @property
    def name(self) -> str:
        """Join both: E5-Large.translated."""
        return f"{self.system}.{self.form}"


@dataclass(frozen=True, eq=False)
class SystemsTable:
    """Hold the report of many systems beside their runs and scores."""

    report: Report
    systems: Mapping[str, ScoredSystem]


def evaluate_systems(
    systems: Mapping[str, SystemConfig] | str | Path,
    dataset: Dataset,
    forms: Sequence[ClaimForm] = ("original",),
    settings: RunSettings | None = None,
    *,
    repeats: int = 10_000,
    seed: int = 0,
) -> Report:
    """Run systems over claim forms and score them; `systems` is a YAML file or a mapping.

    A system that cannot run is listed in the report's `not_run`, with the reason.

    Example:
        >>> import claim2source as c2s
        >>> from claim2source.pipeline.systems import SystemConfig
        >>> from claim2source.retrieve import BM25Config
        >>> systems = {"BM25": SystemConfig(bm25=BM25Config()),
        ...            "BM25-b1": SystemConfig(bm25=BM25Config(b=1.0))}
        >>> report = c2s.evaluate_systems(systems, c2s.load("demo", "dev"), repeats=100)
        >>> list(report.systems)
        ['BM25.original', 'BM25-b1.original']
    """
    named = dict(systems) if isinstance(systems, Mapping) else read_systems([Path(systems)])
    runner = SystemRunner(named, dataset, settings)
    shown, notes = distinct_forms(forms, dataset)
    scoring = Scoring(repeats=repeats, seed=seed)

    def score(cell: Cell) -> ScoredSystem:
        return score_cell(runner, cell, scoring)

    return run_cells(runner, list(named), shown, score, notes=notes).report


def score_cell(runner: SystemRunner, cell: Cell, scoring: Scoring) -> ScoredSystem:
    """Run and score one cell."""
    data, systems = runner.data(cell.form), runner.systems
    scored = score_system(cell.name, runner.run(cell.system, cell.form), data, scoring)
    report = replace(
        scored.report,
        model=label_of(cell.system, systems),
        parts=tuple(
            Cell(part, runner.form_of(part, cell.form)).name
            for part in parts_of(systems[cell.system])
        ),
    )
    return replace(scored, report=report)


def run_cells(
    runner: SystemRunner,
    names: Sequence[str],
    forms: Sequence[ClaimForm],
    score: Callable[[Cell], ScoredSystem],
    *,
    name: str | None = None,
    program: str = "",
    notes: Sequence[str] = (),
) -> SystemsTable:
    """Score every system over every form with `score`; what fails is listed as not run."""
    done: dict[Cell, ScoredSystem] = {}
    not_run: dict[Cell, NotRun] = {}
    cells = cells_of(ordered(names, runner.systems), runner.systems, forms)
    for cell in watched(cells, "systems", len(cells)):
        try:
            done[cell] = score(cell)
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: one cell's failure is not the table's.
            not_run[cell] = not_run_row(cell, runner.systems, error)
    shown = cells_of(names, runner.systems, forms)
    systems = {cell.name: done[cell] for cell in shown if cell in done}
    reports = {
        cell: replace(scored.report, runs=f"{cell}/runs") for cell, scored in systems.items()
    }
    report = make_report(runner.reported, reports, None, name=name, program=program)
    # First stages are asked for more than any metric needs; later ones may cut the lists.
    cut = {cell.name: done[cell] for cell in done if runner.systems[cell.system].stages}
    report = with_depth_notes(report, cut, runner.reported)
    rows = tuple(not_run[cell] for cell in shown if cell in not_run)
    notes = (*report.notes, *notes)
    return SystemsTable(replace(report, notes=notes, not_run=rows), systems)


def cells_of(names: Sequence[str], systems: Systems, forms: Sequence[ClaimForm]) -> list[Cell]:
    """List the cells of systems; one with claims of its own is run over those alone."""
    found = []
    for name in names:
        own = systems[name].claims
        found += [Cell(name, form) for form in ([own] if own is not None else forms)]
    return found


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


def form_of_failed(runner: SystemRunner, name: str, asked: ClaimForm | None = None) -> ClaimForm:
    """Name the claim form of a system that could not run, as far as its files tell."""
    try:
        return runner.form_of(name, asked)
    except (UserError, MemoryError, RuntimeError):
        return _form_of_files(name, runner.systems) or "original"


def _form_of_files(name: str, systems: Systems) -> ClaimForm | None:
    """Read the claim form of a system, or the one of all its routes; None where no file tells."""
    system = systems[name]
    if system.claims is not None:
        return system.claims
    if system.routes is not None:
        forms = {_form_of_files(part, systems) for part in parts_of(system)} - {None}
        return forms.pop() if len(forms) == 1 else None
    model = systems[dense_of(name, systems)].model
    folder = checkpoint_folder(model.name) if model is not None else None
    if folder is None or not (folder / MANIFEST).is_file():
        return None
    return Manifest.read(folder).rendering.claims


def not_run_row(
    cell: Cell, systems: Systems, error: UserError | MemoryError | RuntimeError
) -> NotRun:
    """Describe a system that raised `error`: what happened, and what to do about it.

    An entry's own advice is about weights that are missing; other errors have their own.
    """
    import torch

    why = " ".join(str(error).split()) or type(error).__name__
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if full:
        why = f"out of memory: {why}"
    elif isinstance(error, RuntimeError):
        why = f"failed: {why}"
    named = (cell.system, *reversed(parts_of(systems[cell.system])))
    given = next((systems[name].advice for name in named if systems[name].advice), None)
    advice = _advice(error, full, cell.system) or given or _ADVICE
    return NotRun(cell.system, cell.form, why[:300], advice)


def _advice(error: BaseException, full: bool, system: str) -> str | None:
    if isinstance(error, NothingToChooseOn):
        return (
            "report on a split that nothing is chosen on: settings are chosen on train, which must "
            "have golds; or leave tuned systems out with --systems"
        )
    if full:
        return (
            "lower model.max_length or take a 16-bit model.dtype in its entry, or run it where "
            "there is more memory; what is done is kept"
        )
    if isinstance(error, RuntimeError):
        return f"try it alone on the CPU: --systems {system} --device cpu; what is done is kept"
    if isinstance(error, ConfigError):
        return "correct that setting in the system's entry or on the command line"
    return None
