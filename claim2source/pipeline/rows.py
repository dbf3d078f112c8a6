"""Make rows: what a system gives over one claim form, with a row for each of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, NotRun, SystemReport
from claim2source.core.run import Result, Run
from claim2source.core.stage import Stage
from claim2source.core.tables import Part
from claim2source.evaluation.ranks import gold_moves, moves_table
from claim2source.evaluation.verifiers import Verified, places_table, verified, verified_table
from claim2source.models import Manifest, checkpoint_folder
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.pipeline.evaluate import ScoredSystem, Scoring, score_result, with_whole
from claim2source.pipeline.plan import Planned
from claim2source.pipeline.versions import score_versions, versions_table
from claim2source.systems.heldout import NothingToChooseOn
from claim2source.systems.nodes import AnyNode, RouteNode
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import SIMULATED, is_simulated
from claim2source.systems.system import (
    StageResult,
    System,
    SystemResult,
    SystemRunner,
    choosing_claims,
)
from claim2source.systems.when import share_asked
from claim2source.text import ClaimForm

FIRST_STAGE = "first stage"
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
class Row:
    """Hold what a system gave over one claim form: a scored system for each stage, by row name.

    The last one is the whole system and has the cell's name; the others add the stage's. `notes`
    say what stages did; `parts` tabulate it, of a row that was read from its folder none.
    """

    planned: Planned
    form: ClaimForm
    stages: Mapping[str, ScoredSystem]
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """Name the whole system over this claim form."""
        return Cell(self.planned.system.name, self.form).name

    @property
    def real(self) -> list[str]:
        """Name the stages that are not simulated and follow no simulated one."""
        return [name for name, one in self.stages.items() if not one.report.simulated]


def run_row(
    planned: Planned, form: ClaimForm | None, runner: SystemRunner, scoring: Scoring
) -> Row:
    """Run a system over a claim form (none: its own), and score each of its stages."""
    system, dataset = planned.system, runner.reported
    found = runner.run(system, form)
    results = found.stages[-len(system.stages) - 1 :]
    scoring = replace(scoring, seen_golds=_seen_golds(runner, system))
    cell, last = Cell(system.name, found.form).name, len(results) - 1
    short = _stage_names(system, results)
    names = [cell if place == last else f"{cell}: {stage}" for place, stage in enumerate(short)]
    scored = {}
    for place, name in enumerate(names):
        one = score_result(name, results[place].result, dataset, scoring)
        report = _described(one.report, planned, found, place, runner)
        report = replace(report, stage="" if place == last else short[place])
        if runner.settings.rewrites:
            # Appended to the claims: none of the papers' styles, which replace them.
            report = replace(report, style="rewritten", rewrites=runner.settings.rewrites_file)
        scored[name] = replace(one, report=report)
    notes, parts = _stage_details(system, short[1:], results, dataset)
    if versions := score_versions(system, short[1:], results, dataset, runner.runtime):
        parts += ["Stages that were asked several times, and each version alone:"]
        parts.append(versions_table(versions))
    return Row(planned, found.form, scored, tuple(notes), tuple(parts))


def _stage_names(system: System, results: Sequence[StageResult]) -> list[str]:
    """Name stages by their place; a simulated one, and what follows it, says so."""
    real = _first_simulated(system)
    named = [
        f"{place}. {one.name}" + (f" ({SIMULATED})" if place > real else "")
        for place, one in enumerate(results)
    ]
    return [FIRST_STAGE, *named[1:]]


def _first_simulated(system: System) -> int:
    """Count the stages before the first simulated one."""
    entries = system.stages
    return next((i for i, entry in enumerate(entries) if is_simulated(entry)), len(entries))


def _described(
    report: SystemReport, planned: Planned, found: SystemResult, place: int, runner: SystemRunner
) -> SystemReport:
    """Say of a row what a report tells beside its scores."""
    system, checkpoint = planned.system, planned.checkpoint
    model = system.label_of(place)
    if place == len(system.stages):
        parts = [
            Cell(part.name, part.form_of(found.form, runner.runtime)).name
            for part in system.parts
            if part.name
        ]
        report = with_whole(report, found, runner.reported)
        report = replace(report, parts=tuple(dict.fromkeys(parts)))
    if checkpoint is not None:
        # The base of step 0, or the label, stands for the path, or for all routes.
        is_routed = isinstance(system.first, RouteNode)
        own = system.first.label_of() if is_routed else checkpoint.path
        known = own if is_routed else found.untrained_base or own
        model = model.replace(own, checkpoint.label or known)
        if place == 0:
            report = replace(report, val=checkpoint.scores_on_val)
    return replace(
        report,
        model=model,
        system=system.name,
        claims=found.form,
        # A stage that reads texts of sources may read others than the first one.
        sources=getattr(system.loaded_stages()[place - 1][1], "sources", found.sources)
        if place
        else found.sources,
        simulated=place > _first_simulated(system),
        choices=found.choices if place == 0 else report.choices,
        settings=_given(as_plain(system)),
        runs=f"runs/{place}",
    )


def _given(value: Any) -> Any:
    """Drop what was not set, for a reader, and where servers are."""
    if isinstance(value, list):
        return [_given(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _given(item)
        for key, item in value.items()
        if item not in (None, "", [], False) and key not in ("url", "key_env")
    }


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


def _stage_details(
    system: System, names: Sequence[str], results: Sequence[StageResult], dataset: Dataset
) -> tuple[list[str], list[Part]]:
    """Say and tabulate what each stage after the first did to the golds, and was asked."""
    notes, moves, verifiers = list[str](), {}, dict[str, Verified]()
    for place, (name, (_, stage)) in enumerate(zip(names, system.loaded_stages(), strict=True)):
        before, after = results[place].result, results[place + 1].result
        depth = getattr(stage, "depth", 0)
        moved = gold_moves(before.run, after.run, dataset, depth)
        moves[name] = depth, moved
        notes += stage_lines(name, depth, before.run, after)
        if work := verified(after, moved.get(MACRO), is_shuffled(stage)):
            verifiers[name] = work
            notes.append(f"{name}: {work.sentence()}.")
    parts: list[Part] = []
    if any(moved for _, moved in moves.values()):
        parts += ["What each stage did to the golds:", moves_table(moves)]
    if verifiers:
        parts += ["What verifiers were asked, and what it cost:", verified_table(verifiers)]
    for name, one in verifiers.items():
        if one.bias is not None:
            how = "in changing orders" if one.shuffled else "in the ranking's order, which wins"
            said = f"{name}: picks by place of the papers, shown {how}"
            parts += [f"{said} (uneven by {one.bias:.1%}):", places_table(one)]
    return notes, parts


def stage_lines(name: str, depth: int, before: Run, result: Result) -> list[str]:
    """Say how deep a stage looked, how many claims it read as posted, and what failed."""
    longest = int(np.diff(before.offsets).max(initial=0))
    seen = f"the first {depth} of up to {longest} sources of a claim were re-ranked"
    lines = [f"{name}: {seen}; what is beyond keeps its place below."]
    posted = sum("no translation" in note for note in result.notes.values())
    if posted:
        lines.append(f"{name}: {posted} claims have no translation and were read as posted.")
    failed = [f"{reason} ({count})" for reason, count in result.failure_counts().items()]
    if failed:
        what = "answers that are no good" if result.details else "pairs without a score"
        lines.append(f"{name}: {what}: {'; '.join(failed[:3])}.")
    share = share_asked(result)
    if share < 1:
        lines.append(
            f"{name}: {1 - share:.1%} of the claims were not in doubt and not asked about."
        )
    return lines


def is_shuffled(stage: Stage) -> bool:
    """Tell whether a stage shows papers in changing orders."""
    return bool(getattr(getattr(stage, "stage", stage), "is_shuffled", False))


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
            "have golds; or leave systems with `fit` out with --only"
        )
    if full:
        return (
            "lower model.max_length or take a 16-bit model.dtype in its entry, or run it where "
            "there is more memory; what is done is kept"
        )
    if isinstance(error, RuntimeError):
        return f"try it alone on the CPU: --only {system} --device cpu; what is done is kept"
    if isinstance(error, ConfigError):
        return "correct that setting in the system's entry or on the command line"
    return None
