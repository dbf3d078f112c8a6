"""Compare our scores with the cells of published tables, as text, Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from claim2source.core.config import require
from claim2source.core.costs import COST_COLUMNS, ENERGY, cost_cells, cost_columns
from claim2source.core.report import (
    MACRO,
    Place,
    PublishedScore,
    Report,
    SystemReport,
)
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.evaluation.published.leaderboards import places, places_parts, with_places
from claim2source.evaluation.published.tables import Column, PublishedRow, Table, load_published
from claim2source.evaluation.reports import LoadedSystem

WIDEST = 10  # most columns of a table in a terminal
# A file for programs has the same columns with and without energy.
_CSV_COSTS = (*COST_COLUMNS, ENERGY)
CSV_COLUMNS = (
    *("table", "row", "column", "metric", "language", "unit", "published", "unreliable"),
    *("ours", "difference", "low", "high", "inside", "same_claims", "report", *_CSV_COSTS),
)


class OurScore(NamedTuple):
    """Our score for a published cell, and its system."""

    cell: PublishedScore
    system: LoadedSystem


Cells = dict[tuple[str, str], OurScore]
_Bounded = tuple[float, float | None, float | None]  # a mean and the bounds of its interval


def our_scores(table: Table, systems: Sequence[LoadedSystem]) -> Cells:
    """Map (row, column) to our score, for every cell that a report has a score for.

    Of several reports, one over the paper's own claims is preferred, then the first.
    """
    cells: Cells = {}
    for row in table.rows:
        mine = [system for system in systems if _is_row(row, system)]
        for column in table.columns if mine else ():
            fitting = [s for s in mine if column.metric and _is_cell(table, column, s)]
            for system in sorted(fitting, key=lambda s: not _same_claims(column, s)):
                same_claims = _same_claims(column, system)
                if column.minus is None:
                    bounded = _bounded_score(column, system, same_claims)
                else:
                    bounded = _bounded_difference(table, column, system, systems)
                if bounded is not None:
                    cell = _published_score(table, row.name, column, bounded, same_claims)
                    cells[row.name, column.name] = OurScore(cell, system)
                    break
    return cells


def _published_score(
    table: Table,
    row: str,
    column: Column,
    bounded: _Bounded,
    same_claims: bool,
) -> PublishedScore:
    """Compare our score with a cell; there is no difference if the claims are not the paper's."""
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


def _bounded_difference(
    table: Table,
    column: Column,
    system: LoadedSystem,
    systems: Sequence[LoadedSystem],
) -> _Bounded | None:
    """Return a score minus that of the row `minus`, preferably of the same system and report.

    It has no bounds: those of the two scores are not bounds of their difference.
    """
    base_row = table.row(str(column.minus))
    bases = []
    for s in systems:
        if _is_row(base_row, s) and _is_cell(table, column, s):
            bases.append(s)
    bases = [base for base in bases if base.report.queries == system.report.queries]

    def distance(base: LoadedSystem) -> tuple[bool, bool]:
        is_elsewhere = base.report_folder != system.report_folder
        return is_elsewhere, base.report.system != system.report.system

    same_claims = _same_claims(column, system)
    ours = _bounded_score(column, system, same_claims)
    for base in sorted(bases, key=distance):
        theirs = _bounded_score(column, base, same_claims)
        if ours is not None and theirs is not None:
            return ours[0] - theirs[0], None, None
    return None


def _bounded_score(column: Column, system: LoadedSystem, same_claims: bool) -> _Bounded | None:
    """Return a report's score for a column and its bounds, in the paper's unit; None if absent."""
    report = system.report
    metric = str(column.metric)
    if metric == "seconds":
        # The costs are those of all claims of the system.
        fits = same_claims and list(report.languages) == [column.language]
        return (report.cost.seconds, None, None) if fits and report.cost is not None else None
    value = report.table.get(column.language, {}).get(metric)
    if value is None:
        return None
    factor = column.factor
    bounds = report.interval(metric, column.language)
    if bounds is None:
        return factor * value, None, None
    return factor * value, factor * bounds[0], factor * bounds[1]


def with_published(report: Report, systems: Iterable[SystemReport]) -> Report:
    """Add to every row of a report the published scores of the same system and metric."""
    loaded: list[LoadedSystem] = []
    for system in systems:
        if system.macro:
            loaded.append(LoadedSystem(system, Path(), report.dataset, report.split))
    cells: dict[str, list[PublishedScore]] = {system.name: [] for system in loaded}
    for table in load_published():
        for ours in our_scores(table, loaded).values():
            if ours.cell.published is not None:
                cells[ours.system.name].append(ours.cell)
    rows: dict[str, SystemReport] = {}
    for name, own in cells.items():
        rows[name] = replace(report.systems[name], published=tuple(own))
    placed = replace(report, systems={**report.systems, **rows})
    return with_places(placed, [placed.systems[system.name] for system in loaded])


def published_parts(systems: Mapping[str, SystemReport]) -> list[Part]:
    """Tabulate places on leaderboards, then published scores and ours; [] if there are none."""
    placed = []
    for system in systems.values():
        for place in system.places:
            placed.append((system.name, place))
    return [*places_parts(placed), *_beside_ours(systems)]


def _beside_ours(systems: Mapping[str, SystemReport]) -> list[Part]:
    cells = []
    for system in systems.values():
        for cell in system.published:
            cells.append((system, cell))
    if not cells:
        return []
    scores = ("published", "ours", "difference", "95 %")
    costs = cost_columns(system.cost for system, _ in cells)
    columns = ["table", "row", "column", *scores, "inside", "system", *costs]
    rows = []
    for system, cell in sorted(cells, key=lambda pair: pair[1].table):
        rows.append(
            [
                cell.table,
                cell.row,
                cell.column,
                *_score_cells(cell),
                system.name,
                *cost_cells(system.cost, costs),
            ]
        )
    notes = []
    if any(cell.unreliable for _, cell in cells):
        notes.append("?: not a target; eval/report.py --published gives the reason.")
    if not all(cell.same_claims for _, cell in cells):
        notes.append("*: not compared, because the claims are not the paper's.")
    numeric = [*[False] * 3, *[True] * 4, False, False, *[True] * len(costs)]
    return ["Published numbers next to ours:", TextTable(columns, rows, numeric=numeric), *notes]


def _score_cells(cell: PublishedScore) -> list[Cell]:
    """Format the published score, ours, the difference, our interval, and whether it is inside."""
    digits = cell.digits
    unreliable = "?" if cell.unreliable else ""
    others = "" if cell.same_claims else "*"
    difference = None if cell.difference is None else f"{cell.difference:+.{digits}f}"
    bounds = None
    if cell.low is not None and cell.high is not None:
        bounds = f"{cell.low:.{digits}f} to {cell.high:.{digits}f}"
    published = f"{cell.published:.{digits}f}{unreliable}"
    return [published, f"{cell.ours:.{digits}f}{others}", difference, bounds, cell.inside]


def _is_row(row: PublishedRow, system: LoadedSystem) -> bool:
    # The news paper injects the golds; rows with this label do the same.
    if system.report.simulated and not system.report.model.endswith("+gold"):
        return False

    def kind_and_name(model: str) -> tuple[str, str]:
        if "(" in model:  # composed of several models, so it is not a folder's name
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


@dataclass(frozen=True)
class PublishedTables:
    """Papers' tables, our scores for their cells, and our systems without a row."""

    tables: Sequence[Table]
    cells: Mapping[str, Cells]
    unplaced: Sequence[LoadedSystem]
    placed: Sequence[tuple[str, Place]] = ()

    @classmethod
    def of(cls, systems: Sequence[LoadedSystem], names: Sequence[str] | None = None) -> Self:
        """Find our scores for the cells of these tables or papers, by default for all."""
        tables = load_published()
        if names:
            allowed = [*dict.fromkeys(table.paper for table in tables), *(t.id for t in tables)]
            for name in names:
                require(name in allowed, "tables", name, ", ".join(allowed))
            tables = tuple(t for t in tables if t.id in names or t.paper in names)
        cells = {}
        for table in tables:
            cells[table.id] = our_scores(table, systems)
        used_ids = set()
        for scores in cells.values():
            for ours in scores.values():
                used_ids.add(id(ours.system))
        unplaced = []
        for system in systems:
            if id(system) not in used_ids:
                unplaced.append(system)
        placed = []
        for system in systems:
            for place in places(system):
                placed.append((system.name, place))
        return cls(tables, cells, unplaced, placed)

    def text(self, markdown: bool) -> str:
        """Format all tables, as Markdown or for a terminal."""
        parts: list[Part] = []
        for table in self.tables:
            parts += table_parts(table, self.cells[table.id], markdown)
        parts += places_parts(self.placed)
        text = render(parts, "markup" if markdown else "plain") + "\n"
        if not self.unplaced:
            return text
        lines = []
        for system in self.unplaced:
            origin = f"{system.report.model}, {system.dataset}, {system.split}"
            lines.append(f"In no table: {system.name} of {system.report_folder} ({origin})\n")
        return f"{text}\n{''.join(lines)}"

    def csv(self) -> str:
        """Write one line per cell; our scores and differences are absolute, in the paper's unit."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for table in self.tables:
            for row in table.rows:
                for column in table.columns:
                    ours = self.cells[table.id].get((row.name, column.name))
                    writer.writerow(csv_row(table, row, column, ours))
        return out.getvalue()

    def with_ours(self) -> dict[str, tuple[TextTable, str]]:
        """Return the tables that have a score of ours by name, each with its notes."""
        rows = {}
        for table in self.tables:
            if cells := self.cells[table.id]:
                heading, source, values, *rest = table_parts(table, cells, markdown=True)
                assert isinstance(values, TextTable) and isinstance(heading, str)
                lines = [str(source), *(part for part in rest if isinstance(part, str))]
                rows[heading.removeprefix("## ")] = (values, "\n".join(lines))
        if self.placed:
            title, values, *rest = places_parts(self.placed)
            assert isinstance(values, TextTable)
            rows[str(title).removesuffix(":")] = (values, "\n".join(map(str, rest)))
        return rows


def table_parts(table: Table, cells: Cells, markdown: bool) -> list[Part]:
    """Show a table with ours below each row, then its notes; wide ones in blocks for a terminal."""
    heading = f"{table.paper}: {table.title} [{table.id}]"
    parts: list[Part] = [f"## {heading}" if markdown else f"{heading}\n{'=' * len(heading)}"]
    parts.append(f"Source: {table.source}.")
    step = len(table.columns) if markdown else WIDEST
    for start in range(0, len(table.columns), step):
        columns = table.columns[start : start + step]
        values = zip(*(row.values[start : start + step] for row in table.rows), strict=True)
        numeric = [False, *(not any(isinstance(v, str) for v in column) for column in values)]
        names = ["", *(c.name if c.unit != "s" else f"{c.name} (s)" for c in columns)]
        lines = []
        for row in table.rows:
            for line in row_lines(table, row, columns, cells):
                lines.append(line)
        parts.append(TextTable(names, padded(lines), numeric=numeric))
    return parts + notes(table, cells) + used_systems(cells)


def padded(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad cells to the longest mark of their column, so that digits align."""

    def mark(cell: str) -> int:
        return len(cell) - cell.rindex("[") if cell.endswith("]") else 0

    widest = []
    for column in zip(*rows, strict=True):
        widest.append(max(map(mark, column)))
    lines = []
    for row in rows:
        cells = zip(row, widest, strict=True)
        lines.append([cell + " " * (width - mark(cell)) for cell, width in cells])
    return lines


def row_lines(
    table: Table,
    row: PublishedRow,
    columns: Sequence[Column],
    cells: Cells,
) -> list[list[str]]:
    """Return a row as printed, with its marks; ours below; then the differences, if known."""
    printed = [row.name]
    ours = ["  ours"]
    differences = ["  difference"]
    verdicts = []
    for column in columns:
        flags = [*table.cell_flags(row.name, column.name)]
        if table.empty and table.value(row.name, column.name) is None:
            flags.append(len(table.flags))  # the note on empty cells follows those on flags
        mark = f"[{''.join(chr(97 + flag) for flag in flags)}]" if flags else ""
        printed.append(column.text(table.value(row.name, column.name)) + mark)
        ours.append(our_text(table, row, column, cells))
        cell = cells.get((row.name, column.name))
        difference = cell.cell.difference if cell else None
        differences.append("-" if difference is None else f"{difference:+.{column.digits}f}")
        verdicts.append("-" if cell is None or difference is None else cell.cell.inside)
    if not any(column.metric for column in columns):
        return [printed]
    if not any((row.name, column.name) in cells for column in columns):
        return [printed, ours]
    return [printed, ours, differences, ["  inside interval", *verdicts]]


def our_text(table: Table, row: PublishedRow, column: Column, cells: Cells) -> str:
    """Format our number as the paper would print it: a difference if it prints one."""
    cell = cells.get((row.name, column.name))
    if cell is None:
        return "-"
    value: float | None = cell.cell.ours
    if table.relative_to not in (None, column.name):
        base = cells.get((row.name, str(table.relative_to)))
        value = cell.cell.ours - base.cell.ours if base else None
    return column.text(value) + ("" if cell.cell.same_claims else "*")


def notes(table: Table, cells: Cells) -> list[Part]:
    lines = []
    for i, flag in enumerate(table.flags):
        lines.append(f"[{chr(97 + i)}] unreliable: {flag.reason}.")
    if table.empty:
        lines.append(f"[{chr(97 + len(table.flags))}] empty: {table.empty}.")
    if table.note:
        lines.append(f"Note: {table.note}")
    labels = set()
    for ours in cells.values():
        if not ours.cell.same_claims:
            labels.add(f"{ours.system.name}: {ours.system.report.queries}")
    if labels:
        systems = "; ".join(sorted(labels))
        lines.append(f"* not compared, because the claims are not the paper's ({systems}).")
    return ["\n".join(lines)] if lines else []


def used_systems(cells: Cells) -> list[Part]:
    by_row: dict[tuple[str, Path, str], SystemReport] = {}
    for (row, _), ours in cells.items():
        by_row[row, ours.system.report_folder, ours.system.name] = ours.system.report
    costs = cost_columns(report.cost for report in by_row.values())
    rows: list[list[Cell]] = []
    for (row, folder, name), report in by_row.items():
        rows.append([row, name, str(folder), *cost_cells(report.cost, costs)])
    columns = ["ours in", "system", "report", *costs]
    numeric = [False, False, False, *[True] * len(costs)]
    return [TextTable(columns, rows, numeric=numeric)] if rows else []


def csv_row(table: Table, row: PublishedRow, column: Column, ours: OurScore | None) -> list[Cell]:
    value = table.value(row.name, column.name)
    line: list[Cell] = [
        *(table.id, row.name, column.name, column.metric, column.language, column.unit),
        *("" if value is None else column.text(value), table.reasons(row.name, column.name)),
    ]
    if ours is None:
        return line + [None] * (len(CSV_COLUMNS) - len(line))
    cell, system = ours
    numbers = cell.ours, cell.difference, cell.low, cell.high
    for number in numbers:
        line.append(None if number is None else f"{number:.6f}")
    line += [cell.inside, "yes" if cell.same_claims else "no", str(system.report_folder)]
    return line + cost_cells(system.report.cost, _CSV_COSTS)
