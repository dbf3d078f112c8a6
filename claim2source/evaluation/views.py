"""Show a report as tables: for a terminal, Markdown, HTML or W&B."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claim2source.core.costs import cost_cells, cost_columns
from claim2source.core.files import write_text
from claim2source.core.records import sorted_languages
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    TWINS,
    Choice,
    Report,
    SystemReport,
)
from claim2source.core.tables import Cell, Part, TextTable, markdown_text, render
from claim2source.core.terminal import printable_line
from claim2source.evaluation.choices import choice_notes, choice_text, tried_table, val_table
from claim2source.evaluation.published.scores import published_parts
from claim2source.metrics.families import family_table, tests_parts


def overview_table(report: Report) -> TextTable | None:
    """Tabulate many systems: MRR@5 by language, each metric's macro average, intervals, costs."""
    scored = report.scored
    if not scored:
        return None
    languages = sorted_languages(lang for system in scored for lang in system.languages)
    by_language = languages if len(languages) > 1 else []
    metrics = [metric for metric in scored[0].macro if metric != "queries"]
    main = MAIN_METRIC if MAIN_METRIC in metrics else metrics[0]
    bounded = list(scored[0].intervals.values) if scored[0].intervals is not None else []
    columns = ["system", "claims", *(f"{main} {language}" for language in by_language)]
    for metric in metrics:
        columns.append(f"{metric} {MACRO}")
        if metric in bounded:
            columns.append("95 %" if metric == main else f"95 % of {metric}")
    costs = cost_columns(system.cost for system in scored)
    rows: list[list[Cell]] = []
    for system in scored:
        title = f"{system.title} (chosen)" if system.title == report.chosen else system.title
        row: list[Cell] = [title, system.claims]
        for language in by_language:
            row.append(system.languages[language][main])
        row += _macro_cells(system, metrics, bounded)
        rows.append([*row, *cost_cells(system.cost, costs)])
    columns += costs
    return TextTable(columns, rows, numeric=[False, False, *[True] * (len(columns) - 2)])


def _macro_cells(
    system: SystemReport,
    metrics: Sequence[str],
    bounded: Sequence[str],
) -> list[Cell]:
    """List the macro averages of a system, each with its interval if there is one."""
    cells: list[Cell] = []
    for metric in metrics:
        cells.append(system.macro[metric])
        if metric in bounded:
            cells.append(system.bounds(MACRO, metric))
    return cells


def interval_parts(report: Report) -> list[Part]:
    """Note how intervals were drawn; list those by language if there are several."""
    scored = [system for system in report.scored if system.intervals is not None]
    if not scored or scored[0].intervals is None:
        return []
    languages = sorted_languages(lang for system in scored for lang in system.languages)
    first = scored[0].intervals
    note = (
        f"95 % intervals of {', '.join(first.values)}: {first.repeats} bootstrap samples of gold "
        f"papers ({first.papers} of them)."
    )
    if len(languages) < 2:
        return [note]
    rows: list[list[Cell]] = []
    for system in scored:
        bounds = []
        for language in languages:
            bounds.append(system.bounds(language))
        rows.append([system.title, system.claims, *bounds])
    return [note, TextTable(["system", "claims", *languages], rows)]


def choices_parts(report: Report, chosen_on: str) -> list[Part]:
    """List the choices for systems and by a training, with their claims; show val scores."""
    by_name = []
    for system in report.systems.values():
        by_name.append((system.name, system.choices))
    trained = None if report.training is None else report.training.choice
    training = () if trained is None else (trained,)
    lines = []
    for name, choices in [*by_name, ("training", training)]:
        texts = []
        for choice in choices:
            texts.append(_choice_line(choice))
        if texts:
            lines.append(f"- {name}: {'; '.join(texts)}")
    parts: list[Part] = []
    if lines:
        parts.append("\n".join([f"Chosen on {chosen_on}:", *lines]))
    tables = _tried_tables(by_name)
    if trained is not None:
        tables["Compared by the training on val:"] = tried_table(trained)
    tables["Scores on val:"] = val_table(report.systems)
    for title, table in tables.items():
        if table is not None:
            parts += [title, table]
    return parts


def _choice_line(choice: Choice) -> str:
    details = "; ".join([f"{choice.score:.4f}", *choice_notes(choice)])
    on = f"{choice.claims} claims of {choice.split}"
    return f"{choice_text(choice)}, on {on} ({choice.metric} {details})"


def _tried_tables(
    choices_by_name: Sequence[tuple[str, Sequence[Choice]]],
) -> dict[str, TextTable | None]:
    """Tabulate the alternatives of every choice; a choice that two systems share has one table."""
    tables: dict[str, TextTable | None] = {}
    tabulated: list[Choice] = []
    for name, choices in choices_by_name:
        for choice in choices:
            # A hybrid's BM25 may be a system of its own.
            if not choice.tried or choice in tabulated:
                continue
            tabulated.append(choice)
            title = f"{choice.what} of {name}, {len(choice.tried)} compared:"
            tables[title] = tried_table(choice)
    return tables


def report_parts(report: Report, wide: bool = False) -> list[Part]:
    """Describe a report: scores, choices, notes, rows not run, tests, published numbers.

    With `wide` there is one row per system; else there is one per system and language.
    """
    table = _scores(report, wide)
    parts: list[Part] = [] if table is None else [table]
    if wide:
        parts += interval_parts(report)
    return parts + remaining_parts(report)


def _scores(report: Report, wide: bool) -> TextTable | None:
    return overview_table(report) if wide else report.score_table()


def remaining_parts(
    report: Report, chosen_on: str = "claims that are not reported on"
) -> list[Part]:
    """List the parts below a report's scores: choices, notes, rows not run, tests."""
    parts = [*choices_parts(report, chosen_on), *report.notes]
    twins = report.twins_table
    not_run = report.not_run_table()
    if twins is not None:
        parts += [TWINS, twins]
    if not_run is not None:
        parts += [f"Not run ({len(report.not_run)}):", not_run]
    return [*parts, *tests_parts(report.tests, MAIN_METRIC), *published_parts(report.systems)]


def report_tables(report: Report, wide: bool = False) -> dict[str, Any]:
    """Return the tables of a report by name, for W&B."""
    intervals = [part for part in interval_parts(report) if isinstance(part, TextTable)]
    tables = {
        "scores": _scores(report, wide),
        "intervals": intervals[0] if wide and intervals else None,
        "not run": report.not_run_table(),
        "Twins": report.twins_table,
        **{f"Tests: {test.family}": family_table(test) for test in report.tests},
    }
    parts = published_parts(report.systems)
    for title, part in zip(parts, parts[1:], strict=False):
        if isinstance(part, TextTable):
            is_places = str(title).startswith("Places")
            tables["Places" if is_places else "Published"] = part
    return {name: table for name, table in tables.items() if table is not None}


def write_report(report: Report, folder: Path, heading: str, parts: Sequence[Part]) -> None:
    """Write `report.md`, then `report.json`, so that all files it names exist."""
    write_markdown(folder, heading, parts)
    report.write(folder)


def write_markdown(folder: Path, heading: str, parts: Sequence[Part]) -> None:
    """Write `report.md`."""
    title = markdown_text(printable_line(heading))
    write_text(folder / "report.md", f"# {title}\n\n{render(parts, 'markdown')}\n")
