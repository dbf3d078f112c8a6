"""Find our scores for the cells of published tables, with the reports' intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from claim2source.core.report import (
    COST_COLUMNS,
    MACRO,
    PublishedScore,
    Report,
    SystemReport,
    cost_cells,
)
from claim2source.core.tables import Part, TextTable
from claim2source.evaluation.published.tables import Column, Row, Table, load_published
from claim2source.evaluation.reports import LoadedSystem


class OurScore(NamedTuple):
    """Hold our score beside a published cell, and the system that it is of."""

    cell: PublishedScore
    system: LoadedSystem


Cells = dict[tuple[str, str], OurScore]
_Bounded = tuple[float, float | None, float | None]  # a mean and the bounds of its interval


def our_scores(table: Table, systems: Sequence[LoadedSystem]) -> Cells:
    """Map (row, column) to our score, for every cell that a report has one for.

    Of several reports, those over the paper's own claims come first, then those listed first.
    """
    cells: Cells = {}
    for row in table.rows:
        mine = [system for system in systems if _is_row(row, system)]
        for column in table.columns if mine else ():
            fitting = [s for s in mine if column.metric and _is_cell(table, column, s)]
            for system in sorted(fitting, key=lambda s: not _same_claims(column, s)):
                same_claims = _same_claims(column, system)
                if (bounded := _bounded_score(column, system, same_claims)) is not None:
                    cell = _published_score(table, row.name, column, bounded, same_claims)
                    cells[row.name, column.name] = OurScore(cell, system)
                    break
    return cells


def _published_score(
    table: Table, row: str, column: Column, bounded: _Bounded, same_claims: bool
) -> PublishedScore:
    """Set our score beside a cell; no difference where the claims are not the paper's."""
    published = table.absolute(row, column.name)
    ours, low, high = bounded
    is_inside = "unknown"
    if low is not None and high is not None and published is not None and same_claims:
        is_inside = "yes" if low <= published <= high else "no"
    return PublishedScore(
        *(table.id, row, column.name, published, table.reasons(row, column.name), ours),
        *(
            ours - published if same_claims and published is not None else None,
            low,
            high,
            is_inside,
            same_claims,
        ),
        digits=column.digits,
    )


def _bounded_score(column: Column, system: LoadedSystem, same_claims: bool) -> _Bounded | None:
    """Return a report's score for a column and its bounds, in the paper's unit; None without it."""
    report, metric = system.report, str(column.metric)
    if metric == "seconds":
        # They are those of all claims that the system was given.
        fits = same_claims and list(report.languages) == [column.language]
        return (report.cost.seconds, None, None) if fits and report.cost is not None else None
    value = report.table.get(column.language, {}).get(metric)
    if value is None:
        return None
    factor, bounds = column.factor, system.interval(metric, column.language)
    if bounds is None:
        return factor * value, None, None
    return factor * value, factor * bounds[0], factor * bounds[1]


def with_published(report: Report, systems: Iterable[SystemReport]) -> Report:
    """Set beside every row of a report the published scores of the same system and metric."""
    loaded = [
        LoadedSystem(system, Path(), report.dataset, report.split)
        for system in systems
        if system.macro
    ]
    cells: dict[str, list[PublishedScore]] = {system.name: [] for system in loaded}
    for table in load_published():
        for ours in our_scores(table, loaded).values():
            if ours.cell.published is not None:
                cells[ours.system.name].append(ours.cell)
    rows = {
        name: replace(report.systems[name], published=tuple(own)) for name, own in cells.items()
    }
    return replace(report, systems={**report.systems, **rows})


def published_parts(systems: Mapping[str, SystemReport]) -> list[Part]:
    """Tabulate published scores and ours, and explain the marks; nothing for none."""
    cells = [(system, cell) for system in systems.values() for cell in system.published]
    if not cells:
        return []
    scores = ("published", "ours", "difference", "95 %")
    columns = ["table", "row", "column", *scores, "inside", "system", *COST_COLUMNS]
    rows = [
        [
            *(cell.table, cell.row, cell.column),
            f"{cell.published:.{cell.digits}f}{'?' if cell.unreliable else ''}",
            f"{cell.ours:.{cell.digits}f}{'' if cell.same_claims else '*'}",
            None if cell.difference is None else f"{cell.difference:+.{cell.digits}f}",
            None
            if cell.low is None or cell.high is None
            else f"{cell.low:.{cell.digits}f} to {cell.high:.{cell.digits}f}",
            *(cell.inside, system.name, *cost_cells(system.cost)),
        ]
        for system, cell in sorted(cells, key=lambda pair: pair[1].table)
    ]
    notes = []
    if any(cell.unreliable for _, cell in cells):
        notes.append("?: no target; eval/report.py --published says why.")
    if not all(cell.same_claims for _, cell in cells):
        notes.append("*: over other claims than the paper's, so not compared.")
    numeric = [*[False] * 3, *[True] * 4, False, False, *[True] * len(COST_COLUMNS)]
    return ["Published numbers beside ours:", TextTable(columns, rows, numeric=numeric), *notes]


def _is_row(row: Row, system: LoadedSystem) -> bool:
    # The news paper's own figures have the golds injected: rows with this label are like them.
    if system.report.simulated and not system.report.model.endswith("+gold"):
        return False

    def kind_and_name(model: str) -> tuple[str, str]:
        if "(" in model:  # composed of several, none of which is a folder's name
            return "", model.casefold()
        kind, _, name = model.rpartition(":")
        return kind, Path(name).name.casefold()

    return kind_and_name(system.report.model) in map(kind_and_name, row.models)


def _is_cell(table: Table, column: Column, system: LoadedSystem) -> bool:
    if column.splits and system.split not in column.splits or column.style != system.report.style:
        return False
    # English claims are the same text in every representation.
    if column.claims and column.language != "en" and column.claims != system.report.claims:
        return False
    if column.sources and system.report.sources and column.sources != system.report.sources:
        return False
    is_dataset = any(name in Path(system.dataset).name.casefold() for name in table.names)
    return is_dataset or bool(column.queries) and _same_claims(column, system)


def _same_claims(column: Column, system: LoadedSystem) -> bool:
    return all(
        system.report.queries.get(lang) == claims
        for lang, claims in (column.queries or {}).items()
        if column.language in (MACRO, lang)
    )
