"""What `eval/paper_tables.py` does: the papers' tables with ours beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from claim2source.core.config import list_field, require
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import write_text
from claim2source.core.records import Qrels
from claim2source.core.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table
from claim2source.evaluation.published.cells import Cells, Scorer, fill
from claim2source.evaluation.published.tables import Column, Row, Table, load_published
from claim2source.evaluation.saved import SavedSystem, read_reports
from claim2source.io.trec import read_qrels

_WIDEST = 10  # columns beside each other in a terminal
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
    *COST_COLUMNS,
)


@dataclass(frozen=True)
class PaperTablesConfig:
    """Settings of `eval/paper_tables.py`.

    Args:
        out: file to write; none: the terminal.
        format: `text`, `markdown`, or `csv` with one line a cell.
        repeats: bootstrap draws of an interval.
        seed: of the draws.
    """

    reports: list[Path] | None = list_field(
        Path, repeats=True, help="folders that eval/checkpoint.py or eval/hybrid.py wrote"
    )
    qrels: list[Path] | None = list_field(
        Path, repeats=True, help="judgements of the runs, for intervals; none: reports' own"
    )
    rows: list[str] | None = list_field(
        str, repeats=True, help="what names do not tell: 'GritLM-F=NAME' puts system NAME in a row"
    )
    tables: list[str] | None = list_field(
        str, help="only these tables or papers, such as 2025-styles or 2026; none: all"
    )
    format: Literal["text", "markdown", "csv"] = "text"
    out: Path | None = None
    repeats: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")
        for named in self.rows or ():
            require("=" in named, "rows", named, "ROW=SYSTEM, such as GritLM-F=epoch-2")


def paper_tables(config: PaperTablesConfig) -> str:
    """Render the tables; writes `config.out` and returns what a terminal shows."""
    tables = _chosen(load_published(), config.tables)
    systems = read_reports(config.reports or [])
    scorer = Scorer(_judgements(config.qrels or []), config.repeats, config.seed)
    named = _named_rows(config.rows or [], tables, systems)
    cells = {table.id: fill(table, systems, named, scorer) for table in tables}
    if config.format == "csv":
        text = as_csv(tables, cells)
    else:
        used = {id(ours.system) for found in cells.values() for ours in found.values()}
        text = _as_text(tables, cells, config.format == "markdown")
        text += _unplaced([s for s in systems if id(s) not in used], scorer.notes)
    if config.out is None:
        return text.rstrip("\n")
    write_text(config.out, text)
    return f"{len(tables)} tables in {config.out}"


def _chosen(tables: Sequence[Table], wanted: Sequence[str] | None) -> list[Table]:
    for name in wanted or ():
        if not any(name in (table.id, table.paper) for table in tables):
            allowed = [*dict.fromkeys(t.paper for t in tables), *(t.id for t in tables)]
            raise ConfigError("tables", name, ", ".join(allowed))
    return [t for t in tables if not wanted or {t.id, t.paper} & set(wanted)]


def _judgements(paths: Iterable[Path]) -> Qrels:
    grades: dict[str, Mapping[str, int]] = {}
    for path in paths:
        for claim, judged in read_qrels(path).grades.items():
            if grades.setdefault(claim, judged) != judged:
                raise UserError(f"{path}: {claim!r} is judged otherwise in an earlier file")
    return Qrels(grades)


def _named_rows(
    given: Sequence[str], tables: Sequence[Table], systems: Sequence[SavedSystem]
) -> dict[str, str]:
    """Published row -> our system's name, as `--rows` says."""
    named = dict(pair.split("=", 1) for pair in given)
    rows = {row.name for table in tables for row in table.rows}
    for row, system in named.items():
        require(row in rows, "rows", row, "a row of the tables shown")
        known = sorted(s.name for s in systems)
        require(system in known, "rows", system, f"a system of --reports: {', '.join(known)}")
    return named


def _as_text(tables: Sequence[Table], cells: Mapping[str, Cells], markdown: bool) -> str:
    """Every table with its notes; wide ones in blocks for a terminal."""
    parts = []
    draw = markdown_table if markdown else plain_table
    for table in tables:
        heading = f"{table.paper}: {table.title}" + f" [{table.id}]"
        parts.append(f"## {heading}" if markdown else f"{heading}\n{'=' * len(heading)}")
        parts.append(f"Source: {table.source}.")
        step = len(table.columns) if markdown else _WIDEST
        for start in range(0, len(table.columns), step):
            columns = table.columns[start : start + step]
            rows = _padded(
                [line for row in table.rows for line in _lines(table, row, columns, cells)]
            )
            numeric = [False, *(_is_numeric(table, column) for column in columns)]
            names = ["", *(c.name if c.unit != "s" else f"{c.name} (s)" for c in columns)]
            parts.append(draw(names, rows, numeric=numeric))
        parts += _notes(table, cells[table.id])
        parts += _whose(cells[table.id], draw)
    return "\n\n".join(parts) + "\n"


def _is_numeric(table: Table, column: Column) -> bool:
    place = table.columns.index(column)
    return all(not isinstance(row.values[place], str) for row in table.rows)


def _padded(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Blanks behind cells with a shorter mark than their column's longest: digits align."""
    widest = [max(map(_mark, column)) for column in zip(*rows, strict=True)]
    return [
        [cell + " " * (width - _mark(cell)) for cell, width in zip(row, widest, strict=True)]
        for row in rows
    ]


def _mark(cell: str) -> int:
    """Length of the mark that a cell ends with."""
    return len(cell) - cell.rindex("[") if cell.endswith("]") else 0


def _lines(
    table: Table, row: Row, columns: Sequence[Column], cells: Mapping[str, Cells]
) -> list[list[str]]:
    """A row as printed, with its marks; ours below; where there are any, the differences."""
    printed = []
    for column in columns:
        flags = "".join(chr(97 + place) for place in table.flags_of(row.name, column.name))
        mark = f"[{flags}]" if flags else ""
        printed.append(column.text(table.value(row.name, column.name)) + mark)
    lines = [[row.name, *printed]]
    if not any(column.metric for column in columns):
        return lines
    found = [cells[table.id].get((row.name, column.name)) for column in columns]
    ours, differences, inside = [], [], []
    for column, cell in zip(columns, found, strict=True):
        published = table.absolute(row.name, column.name)
        ours.append(_our_text(table, row, column, cells[table.id]))
        if cell is None or not cell.same or published is None:
            differences.append("-")
            inside.append("-")
        else:
            differences.append(f"{cell.value - published:+.{column.digits}f}")
            inside.append(cell.inside(published))
    lines.append(["  ours", *ours])
    if any(found):
        lines += [["  difference", *differences], ["  inside interval", *inside]]
    return lines


def _our_text(table: Table, row: Row, column: Column, cells: Cells) -> str:
    """Our number as the paper would print it: a difference where it prints one."""
    cell = cells.get((row.name, column.name))
    if cell is None:
        return "-"
    value: float | None = cell.value
    if table.relative_to not in (None, column.name):
        base = cells.get((row.name, str(table.relative_to)))
        value = cell.value - base.value if base else None
    return column.text(value) + ("" if cell.same else "*")


def _notes(table: Table, cells: Cells) -> list[str]:
    lines = [f"[{chr(97 + i)}] unreliable: {flag.reason}." for i, flag in enumerate(table.flags)]
    if table.note:
        lines.append(f"Note: {table.note}")
    other = {
        f"{ours.system.name}: {ours.system.queries}" for ours in cells.values() if not ours.same
    }
    if other:
        lines.append(
            f"* over other claims than the paper's, so not compared ({'; '.join(sorted(other))})."
        )
    return ["\n".join(lines)] if lines else []


def _whose(cells: Cells, draw: Callable[..., str]) -> list[str]:
    """Which of our systems stand in which rows, and what they cost; nothing without any."""
    found = {(row, ours.system.folder, ours.system.name): ours for (row, _), ours in cells.items()}
    rows = [
        [row, name, str(folder), *cost_cells(ours.system.cost)]
        for (row, folder, name), ours in found.items()
    ]
    columns = ["ours in", "system", "report", *COST_COLUMNS]
    numeric = [False, False, False, *[True] * len(COST_COLUMNS)]
    return [draw(columns, rows, numeric=numeric)] if rows else []


def _unplaced(systems: Sequence[SavedSystem], notes: Iterable[str]) -> str:
    lines = [
        f"In no table: {s.name} of {s.folder} ({s.model}, {s.dataset}, {s.split})" for s in systems
    ]
    lines += [f"No interval: {note}" for note in notes]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def as_csv(tables: Sequence[Table], cells: Mapping[str, Cells]) -> str:
    """One line a cell; scores of ours and differences are absolute, in the paper's unit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                writer.writerow(_csv_row(table, row, column, cells[table.id]))
    return out.getvalue()


def _csv_row(table: Table, row: Row, column: Column, cells: Cells) -> list[Any]:
    value = table.value(row.name, column.name)
    reasons = [table.flags[place].reason for place in table.flags_of(row.name, column.name)]
    line: list[Any] = [
        table.id,
        row.name,
        column.name,
        column.metric or "",
        column.language,
        column.unit,
        "" if value is None else column.text(value),
        "; ".join(reasons),
    ]
    cell = cells.get((row.name, column.name))
    if cell is None:
        return [*line, *[""] * (7 + len(COST_COLUMNS))]
    published = table.absolute(row.name, column.name)
    known = published is not None and cell.same
    numbers = [
        cell.value,
        cell.value - published if known and published is not None else None,
        cell.low,
        cell.high,
    ]
    texts = ["" if n is None else f"{n:.6f}" for n in numbers]
    return [
        *line,
        *texts,
        cell.inside(published),
        "yes" if cell.same else "no",
        str(cell.system.folder),
        *("" if c is None else c for c in cost_cells(cell.system.cost)),
    ]
