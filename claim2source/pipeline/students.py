"""Set students beside their teacher: quality, and what answering a claim takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC, NotRun, Report, SystemReport
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.evaluation.families import Family
from claim2source.pipeline.evaluate import (
    Scoring,
    add_tests,
    make_report,
    score_system,
    write_runs,
)
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.speed import Answering, measure
from claim2source.pipeline.systems import Systems
from claim2source.pipeline.views import report_parts, write_markdown

TEACHER, STUDENT = "teacher", "student"
MEASURED = (
    "CPU milliseconds: processor time, all threads together, of answering a claim (encoding, "
    "searching, further stages) that comes by itself, the median over {claims} claims, {threads} "
    "threads; claims a second: of one core, where these come as one batch. Sources are indexed "
    "before; nothing of a claim is kept. Weights: those that a claim needs; vectors: the sources'."
)


def compare_with_teacher(
    names: Mapping[str, str],
    systems: Systems,
    dataset: Dataset,
    settings: RunSettings,
    out: Path,
    *,
    name: str,
    measured: int,
    repeats: int,
    program: str,
) -> list[Part]:
    """Score systems, time them, write report, runs and chart to `out`; return what to print.

    `names` has the systems by their name in the table: the teacher, the student, and others.
    `measured` claims are timed on the CPU, 0: none.
    """
    runner = SystemRunner(systems, dataset, settings)
    scored, not_run = {}, []
    for shown, system in names.items():
        try:
            found = runner.run(system)
        except UserError as error:
            if shown in (TEACHER, STUDENT):
                raise
            not_run.append(NotRun(shown, "", str(error), ""))
            continue
        one = score_system(shown, found, dataset, Scoring(repeats=repeats))
        report = replace(one.report, model=system, runs=f"runs/{shown.replace(' ', '-')}")
        scored[shown] = replace(one, report=report)
    notes: list[str] = []
    step = max(len(dataset.claims) // measured, 1) if measured else 0
    for shown in scored if measured else ():
        system = names[shown]
        try:
            answering = Answering(system, runner.systems, dataset, replace(settings, device="cpu"))
        except UserError as error:
            notes.append(f"{shown}: not timed; {error}")
            continue
        speed = measure(answering, dataset.claims[::step][:measured])
        report = replace(scored[shown].report, speed=speed)
        scored[shown] = replace(scored[shown], report=report)
        del answering  # two models may not fit
    reports = {shown: one.report for shown, one in scored.items()}
    compared = make_report(dataset, reports, STUDENT, name=name, program=program)
    compared = replace(compared, notes=(*compared.notes, *notes), not_run=tuple(not_run))
    if repeats and dataset.golds:
        others = [shown for shown in scored if shown != TEACHER]
        families = [Family.against("Against the teacher", TEACHER, others)]
        compared = add_tests(compared, scored, families, dataset, repeats, 0)
    compared.write(out)
    for one in scored.values():
        write_runs(one.run, dataset, out / one.report.runs)
    title = f"{name}, {dataset.split}: students beside their teacher"
    parts: list[Part] = [title, *student_parts(compared), *notes]
    parts += [f"{one.system}: not run; {one.reason}" for one in not_run]
    write_markdown(out, title, [*parts[1:], *report_parts(compared)])
    return parts


def student_parts(report: Report) -> list[Part]:
    """Tabulate MRR@5 by language and cost beside the teacher's, and say how they compare."""
    systems, teacher = report.systems, report.systems[TEACHER]
    languages = list(teacher.table)
    speeds = [system.speed for system in systems.values() if system.speed is not None]
    columns = ["system", *languages, f"95 % of {MAIN_METRIC}", "of the teacher's"]
    timed = ["CPU ms a claim", "claims a second", "times the teacher's", "weights MB", "vectors MB"]
    rows: list[list[Cell]] = []
    for system in systems.values():
        # A re-ranker's are not counted: those of the first stage alone would mislead.
        alone = system.cost is not None and len(system.stages) < 2
        parameters = system.cost.parameters if alone and system.cost is not None else None
        rows.append(
            [
                system.name,
                *(system.table[language][MAIN_METRIC] for language in languages),
                system.bounds(MACRO),
                _percent(share_of(system, teacher)),
                f"{parameters:,}" if parameters else None,
                *(_speed_cells(system, teacher) if speeds else ()),
            ]
        )
    table = TextTable([*columns, "parameters", *(timed if speeds else ())], rows)
    parts: list[Part] = [table]
    if speeds:
        parts.append(MEASURED.format(claims=speeds[0].claims, threads=speeds[0].threads))
    student = systems[STUDENT]
    times = times_of(student, teacher)
    said = f"The student has {_percent(share_of(student, teacher))} of the teacher's {MAIN_METRIC}"
    parts.append(said + (f", at {times:.1f} times its claims a second." if times else "."))
    return parts


def share_of(system: SystemReport, teacher: SystemReport) -> float | None:
    """Return the share of the teacher's macro MRR@5 that a system has."""
    own, whole = system.macro[MAIN_METRIC], teacher.macro[MAIN_METRIC]
    return own / whole if whole else None


def times_of(system: SystemReport, teacher: SystemReport) -> float | None:
    """Return how many claims a system answers while the teacher answers one, in batches."""
    if system.speed is None or teacher.speed is None:
        return None
    return teacher.speed.batch_milliseconds / max(system.speed.batch_milliseconds, 1e-6)


def _speed_cells(system: SystemReport, teacher: SystemReport) -> Sequence[Cell]:
    speed, times = system.speed, times_of(system, teacher)
    if speed is None:
        return [None] * 5
    return [
        f"{speed.milliseconds:.2f}",
        f"{1000 / max(speed.batch_milliseconds, 1e-6):.0f}",
        None if times is None else f"{times:.1f}",
        f"{speed.weights_bytes / 1e6:.1f}" if speed.weights_bytes else None,
        f"{speed.vectors_bytes / 1e6:.1f}" if speed.vectors_bytes else None,
    ]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
