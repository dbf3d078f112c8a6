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
    "table",
    "row",
    "column",
    "metric",
    "language",
    "unit",
    "published",
    "unreliable",
    "ours",
    "difference",
    "low",
    "high",
    "inside",
    "same_claims",
    "report",
    *_CSV_COSTS,
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
        if not mine:
            continue
        for column in table.columns:
            fitting = [s for s in mine if column.metric and _is_cell(table, column, s)]
            ours = _our_score(table, row, column, fitting, systems)
            if ours is not None:
                cells[row.name, column.name] = ours
    return cells


def _our_score(
    table: Table,
    row: PublishedRow,
    column: Column,
    fitting: Sequence[LoadedSystem],
    systems: Sequence[LoadedSystem],
) -> OurScore | None:
    """Return the score of the first `fitting` system that has one; same claims come first."""
    for system in sorted(fitting, key=lambda s: not _same_claims(column, s)):
        same_claims = _same_claims(column, system)
        if column.minus is None:
            bounded = _bounded_score(column, system, same_claims)
        else:
            bounded = _bounded_difference(table, column, system, systems)
        if bounded is not None:
            cell = _published_score(table, row.name, column, bounded, same_claims)
            return OurScore(cell, system)
    return None


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
    difference: float | None = None
    if same_claims and published is not None:
        difference = ours - published
    is_inside = "unknown"
    if low is not None and high is not None and published is not None and same_claims:
        is_inside = "yes" if low <= published <= high else "no"
    return PublishedScore(
        table=table.id,
        row=row,
        column=column.name,
        published=published,
        unreliable=table.reasons(row, column.name),
        ours=ours,
        difference=difference,
        low=low,
        high=high,
        inside=is_inside,
        same_claims=same_claims,
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
        is_other = base.report.system != system.report.system
        return is_elsewhere, is_other

    same_claims = _same_claims(column, system)
    ours = _bounded_score(column, system, same_claims)
    for base in sorted(bases, key=distance):
        theirs = _bounded_score(column, base, same_claims)
        if ours is not None and theirs is not None:
            difference = ours[0] - theirs[0]
            return difference, None, None
    return None


def _bounded_score(
    column: Column,
    system: LoadedSystem,
    same_claims: bool,
) -> _Bounded | None:
    """Return a report's score for a column and its bounds, in the paper's unit; None if absent."""
    report = system.report
    metric = str(column.metric)
    if metric == "seconds":
        # The costs are those of all claims of the system.
        fits = same_claims and list(report.languages) == [column.language]
        if not fits or report.cost is None:
            return None
        return report.cost.seconds, None, None
    scores = report.table.get(column.language, {})
    value = scores.get(metric)
    if value is None:
        return None
    factor = column.factor
    mean = factor * value
    bounds = report.interval(metric, column.language)
    if bounds is None:
        return mean, None, None
    low, high = bounds
    return mean, factor * low, factor * high


def with_published(report: Report, systems: Iterable[SystemReport]) -> Report:
    """Add to every row of a report the published scores of the same system and metric."""
    loaded: list[LoadedSystem] = []
    for system in systems:
        if system.macro:
            loaded.append(LoadedSystem(system, Path(), report.dataset, report.split))
    cells: dict[str, list[PublishedScore]] = {system.name: [] for system in loaded}
    for table in load_published():
        found = our_scores(table, loaded)
        for ours in found.values():
            if ours.cell.published is not None:
                cells[ours.system.name].append(ours.cell)

    rows: dict[str, SystemReport] = {}
    for name, own in cells.items():
        rows[name] = replace(report.systems[name], published=tuple(own))
    placed = replace(report, systems={**report.systems, **rows})
    scored = [placed.systems[system.name] for system in loaded]
    return with_places(placed, scored)


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
    numeric = [*[False] * 3, *[True] * 4, False, False, *[True] * len(costs)]
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
    table = TextTable(columns, rows, numeric=numeric)

    notes = []
    if any(cell.unreliable for _, cell in cells):
        notes.append("?: not a target; eval/report.py --published gives the reason.")
    if not all(cell.same_claims for _, cell in cells):
        notes.append("*: not compared, because the claims are not the paper's.")
    return ["Published numbers next to ours:", table, *notes]


def _score_cells(cell: PublishedScore) -> list[Cell]:
    """Format the published score, ours, the difference, our interval, and whether it is inside."""
    digits = cell.digits
    unreliable = "?" if cell.unreliable else ""
    published = f"{cell.published:.{digits}f}{unreliable}"
    others = "" if cell.same_claims else "*"
    ours = f"{cell.ours:.{digits}f}{others}"
    difference = None
    if cell.difference is not None:
        difference = f"{cell.difference:+.{digits}f}"
    bounds = None
    if cell.low is not None and cell.high is not None:
        bounds = f"{cell.low:.{digits}f} to {cell.high:.{digits}f}"
    return [published, ours, difference, bounds, cell.inside]


def _is_row(row: PublishedRow, system: LoadedSystem) -> bool:
    report = system.report
    # The news paper injects the golds; rows with this label do the same.
    if report.simulated and not report.model.endswith("+gold"):
        return False

    def kind_and_name(model: str) -> tuple[str, str]:
        if "(" in model:  # composed of several models, so it is not a folder's name
            return "", model.casefold()
        kind, _, name = model.rpartition(":")
        folder = Path(name)
        return kind, folder.name.casefold()

    own = kind_and_name(report.model)
    return own in map(kind_and_name, row.models)


def _is_cell(table: Table, column: Column, system: LoadedSystem) -> bool:
    report = system.report
    if column.splits and system.split not in column.splits:
        return False
    if column.style != report.style:
        return False
    # English claims are the same text in every representation.
    if column.claims and column.language != "en" and column.claims != report.claims:
        return False
    if column.sources and report.sources and column.sources != report.sources:
        return False
    dataset = Path(system.dataset).name.casefold()
    if any(name in dataset for name in table.names):
        return True
    return bool(column.queries) and _same_claims(column, system)


def _same_claims(column: Column, system: LoadedSystem) -> bool:
    queries = column.queries or {}
    for lang, claims in queries.items():
        if column.language not in (MACRO, lang):
            continue
        scored = system.report.queries.get(lang)
        if scored != claims:
            return False
    return True


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
            papers = dict.fromkeys(table.paper for table in tables)
            ids = [table.id for table in tables]
            allowed = [*papers, *ids]
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
            cells = self.cells[table.id]
            for row in table.rows:
                for column in table.columns:
                    ours = cells.get((row.name, column.name))
                    line = csv_row(table, row, column, ours)
                    writer.writerow(line)
        return out.getvalue()

    def with_ours(self) -> dict[str, tuple[TextTable, str]]:
        """Return the tables that have a score of ours by name, each with its notes."""
        rows = {}
        for table in self.tables:
            cells = self.cells[table.id]
            if not cells:
                continue
            heading, source, values, *rest = table_parts(table, cells, markdown=True)
            assert isinstance(values, TextTable) and isinstance(heading, str)
            remarks = [part for part in rest if isinstance(part, str)]
            note = "\n".join([str(source), *remarks])
            name = heading.removeprefix("## ")
            rows[name] = (values, note)
        if self.placed:
            title, values, *rest = places_parts(self.placed)
            assert isinstance(values, TextTable)
            note = "\n".join(map(str, rest))
            name = str(title).removesuffix(":")
            rows[name] = (values, note)
        return rows


def table_parts(table: Table, cells: Cells, markdown: bool) -> list[Part]:
    """Show a table with ours below each row, then its notes; wide ones in blocks for a terminal."""
    heading = f"{table.paper}: {table.title} [{table.id}]"
    underlined = f"{heading}\n{'=' * len(heading)}"
    parts: list[Part] = [f"## {heading}" if markdown else underlined]
    parts.append(f"Source: {table.source}.")
    step = len(table.columns) if markdown else WIDEST
    for start in range(0, len(table.columns), step):
        end = start + step
        columns = table.columns[start:end]
        lines = []
        for row in table.rows:
            for line in row_lines(table, row, columns, cells):
                lines.append(line)
        names = ["", *map(_column_name, columns)]
        values = zip(*(row.values[start:end] for row in table.rows), strict=True)
        numeric = [False]
        for column_values in values:
            has_text = any(isinstance(value, str) for value in column_values)
            numeric.append(not has_text)
        parts.append(TextTable(names, padded(lines), numeric=numeric))
    parts += notes(table, cells)
    parts += used_systems(cells)
    return parts


def _column_name(column: Column) -> str:
    if column.unit == "s":
        return f"{column.name} (s)"
    return column.name


def padded(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad cells to the longest mark of their column, so that digits align."""

    def mark(cell: str) -> int:
        if not cell.endswith("]"):
            return 0
        return len(cell) - cell.rindex("[")

    widest = []
    for column in zip(*rows, strict=True):
        widest.append(max(map(mark, column)))
    lines = []
    for row in rows:
        line = []
        for cell, width in zip(row, widest, strict=True):
            padding = " " * (width - mark(cell))
            line.append(cell + padding)
        lines.append(line)
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
        printed.append(_published_text(table, row, column))
        ours.append(our_text(table, row, column, cells))
        cell = cells.get((row.name, column.name))
        difference = cell.cell.difference if cell else None
        if cell is None or difference is None:
            differences.append("-")
            verdicts.append("-")
        else:
            differences.append(f"{difference:+.{column.digits}f}")
            verdicts.append(cell.cell.inside)

    if not any(column.metric for column in columns):
        return [printed]
    has_ours = any((row.name, column.name) in cells for column in columns)
    if not has_ours:
        return [printed, ours]
    return [printed, ours, differences, ["  inside interval", *verdicts]]


def _published_text(table: Table, row: PublishedRow, column: Column) -> str:
    """Format a published value, with the letters of the notes on it."""
    value = table.value(row.name, column.name)
    text = column.text(value)
    flags = [*table.cell_flags(row.name, column.name)]
    if table.empty and value is None:
        flags.append(len(table.flags))  # the note on empty cells follows those on flags
    if not flags:
        return text
    letters = "".join(map(_letter, flags))
    return f"{text}[{letters}]"


def _letter(note: int) -> str:
    return chr(97 + note)


def our_text(
    table: Table,
    row: PublishedRow,
    column: Column,
    cells: Cells,
) -> str:
    """Format our number as the paper would print it: a difference if it prints one."""
    cell = cells.get((row.name, column.name))
    if cell is None:
        return "-"
    value: float | None = cell.cell.ours
    if table.relative_to not in (None, column.name):
        base = cells.get((row.name, str(table.relative_to)))
        value = cell.cell.ours - base.cell.ours if base else None
    others = "" if cell.cell.same_claims else "*"
    return column.text(value) + others


def notes(table: Table, cells: Cells) -> list[Part]:
    lines = []
    for i, flag in enumerate(table.flags):
        lines.append(f"[{_letter(i)}] unreliable: {flag.reason}.")
    if table.empty:
        letter = _letter(len(table.flags))
        lines.append(f"[{letter}] empty: {table.empty}.")
    if table.note:
        lines.append(f"Note: {table.note}")

    labels = set()
    for ours in cells.values():
        if not ours.cell.same_claims:
            system = ours.system
            labels.add(f"{system.name}: {system.report.queries}")
    if labels:
        systems = "; ".join(sorted(labels))
        lines.append(f"* not compared, because the claims are not the paper's ({systems}).")
    if not lines:
        return []
    return ["\n".join(lines)]


def used_systems(cells: Cells) -> list[Part]:
    by_row: dict[tuple[str, Path, str], SystemReport] = {}
    for (row, _), ours in cells.items():
        system = ours.system
        by_row[row, system.report_folder, system.name] = system.report
    costs = cost_columns(report.cost for report in by_row.values())
    rows: list[list[Cell]] = []
    for (row, folder, name), report in by_row.items():
        own_costs = cost_cells(report.cost, costs)
        rows.append([row, name, str(folder), *own_costs])
    if not rows:
        return []
    columns = ["ours in", "system", "report", *costs]
    numeric = [False, False, False, *[True] * len(costs)]
    return [TextTable(columns, rows, numeric=numeric)]


def csv_row(
    table: Table,
    row: PublishedRow,
    column: Column,
    ours: OurScore | None,
) -> list[Cell]:
    value = table.value(row.name, column.name)
    line: list[Cell] = [
        table.id,
        row.name,
        column.name,
        column.metric,
        column.language,
        column.unit,
        "" if value is None else column.text(value),
        table.reasons(row.name, column.name),
    ]
    if ours is None:
        missing = len(CSV_COLUMNS) - len(line)
        return line + [None] * missing
    cell, system = ours
    numbers = cell.ours, cell.difference, cell.low, cell.high
    for number in numbers:
        line.append(None if number is None else f"{number:.6f}")
    line.append(cell.inside)
    line.append("yes" if cell.same_claims else "no")
    line.append(str(system.report_folder))
    return line + cost_cells(system.report.cost, _CSV_COSTS)
