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
from claim2source.systems.heldout import NothingToChooseOn
from claim2source.systems.nodes import AnyNode, RouteNode
from claim2source.systems.read import Systems, read_systems
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import ClaimForm
from claim2source.text.views import FORMS, why_same_forms

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
    systems: Mapping[str, System] | str | Path,
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
        >>> grid = {"BM25": {}, "BM25-b1": {"b": 1.0}}
        >>> systems = {k: c2s.make_system(k, {"retrieve": {"bm25": v}}) for k, v in grid.items()}
        >>> report = c2s.evaluate_systems(systems, c2s.load("demo", "dev"), repeats=100)
        >>> list(report.systems)
        ['BM25.original', 'BM25-b1.original']
    """
    named = dict(systems) if isinstance(systems, Mapping) else read_systems([Path(systems)])
    runner = SystemRunner(dataset, settings)
    shown, notes = distinct_forms(forms, dataset)
    scoring = Scoring(repeats=repeats, seed=seed)

    def score(cell: Cell) -> ScoredSystem:
        return score_cell(runner, named[cell.system], cell, scoring)

    return run_cells(runner.reported, named, shown, score, notes=notes).report


def score_cell(runner: SystemRunner, system: System, cell: Cell, scoring: Scoring) -> ScoredSystem:
    """Run and score one cell."""
    found = runner.run(system, cell.form)
    scored = score_system(cell.name, found, runner.reported, scoring)
    parts = [
        Cell(part.name, part.form_of(cell.form, runner.runtime)).name
        for part in system.parts
        if part.name
    ]
    report = replace(scored.report, model=system.label_of(), parts=tuple(dict.fromkeys(parts)))
    return replace(scored, report=report)


def run_cells(
    dataset: Dataset,
    systems: Systems,
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
    cells = cells_of(ordered(systems), systems, forms)
    for cell in watched(cells, "systems", len(cells)):
        try:
            done[cell] = score(cell)
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: one cell's failure is not the table's.
            not_run[cell] = not_run_row(cell, systems[cell.system], error)
    shown = cells_of(list(systems), systems, forms)
    scored = {cell.name: done[cell] for cell in shown if cell in done}
    reports = {cell: replace(one.report, runs=f"{cell}/runs") for cell, one in scored.items()}
    report = make_report(dataset, reports, None, name=name, program=program)
    # First stages are asked for more than any metric needs; later ones may cut the lists.
    cut = {cell.name: done[cell] for cell in done if systems[cell.system].stages}
    report = with_depth_notes(report, cut, dataset)
    rows = tuple(not_run[cell] for cell in shown if cell in not_run)
    notes = (*report.notes, *notes)
    return SystemsTable(replace(report, notes=notes, not_run=rows), scored)


def ordered(systems: Systems) -> list[str]:
    """Order systems with those of one dense model together, so that it is loaded once."""
    models = [repr(system.first.main_model or name) for name, system in systems.items()]
    firsts = {model: models.index(model) for model in models}
    return [
        name for _, name in sorted(zip(models, systems, strict=True), key=lambda m: firsts[m[0]])
    ]


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


def form_of_failed(
    system: System, runtime: SystemRuntime, form: ClaimForm | None = None
) -> ClaimForm:
    """Name the claim form of a system that could not run, as far as its files tell."""
    try:
        return system.form_of(form, runtime)
    except (UserError, MemoryError, RuntimeError):
        return system.claims or _form_of_files(system.first) or "original"


def _form_of_files(node: AnyNode) -> ClaimForm | None:
    """Read the claim form of a node, or the one of all its routes; None where no file tells."""
    if node.claims is not None:
        return node.claims
    if isinstance(node, RouteNode):
        forms = {_form_of_files(part) for part in node.parts} - {None}
        return forms.pop() if len(forms) == 1 else None
    folder = checkpoint_folder(node.main_model.name) if node.main_model is not None else None
    if folder is None or not (folder / MANIFEST).is_file():
        return None
    return Manifest.read(folder).rendering.claims


def not_run_row(
    cell: Cell, system: System, error: UserError | MemoryError | RuntimeError
) -> NotRun:
    """Describe a system that raised `error`: what happened, and what to do about it.

    A system's own advice is about weights that are missing; other errors have their own.
    """
    import torch

    why = " ".join(str(error).split()) or type(error).__name__
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if full:
        why = f"out of memory: {why}"
    elif isinstance(error, RuntimeError):
        why = f"failed: {why}"
    advised = (system, system.first, *reversed(system.parts))
    given = next((one.advice for one in advised if one.advice), None)
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
