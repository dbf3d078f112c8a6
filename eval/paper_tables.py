"""Set our numbers beside the papers': `python eval/paper_tables.py --reports DIR... --out FILE`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from claim2source.core.config import (
    Repeats,
    Seed,
    Settings,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import ConfigError, UserError, run_program
from claim2source.core.files import refuse_input, write_text
from claim2source.core.folders import require_output_file
from claim2source.core.records import Qrels
from claim2source.core.report import COST_COLUMNS, cost_cells
from claim2source.core.tables import Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.published.scores import Cells, Scorer, our_scores
from claim2source.evaluation.published.tables import Column, Row, Table, load_published
from claim2source.evaluation.reports import LoadedSystem, files_of_report, read_reports
from claim2source.io.trec import read_qrels

WIDEST = 10  # columns beside each other in a terminal
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
class Config(Settings):
    """Settings of `eval/paper_tables.py`.

    Args:
        out: file to write; none: the terminal.
        format: `text`, `markdown`, or `csv` with one line a cell.
        repeats: bootstrap draws of an interval.
        seed: of the draws.
    """

    reports: list[Path] | None = list_field(
        help="folders that eval/checkpoint.py or eval/hybrid.py wrote"
    )
    qrels: list[Path] | None = list_field(
        help="judgements of the runs, for intervals; none: reports' own"
    )
    rows: list[str] | None = list_field(
        help="rows that names do not match: 'GritLM-F=NAME' puts system NAME in"
    )
    tables: list[str] | None = list_field(
        help="only these tables or papers, such as 2025-styles or 2026; none: all"
    )
    format: Literal["text", "markdown", "csv"] = "text"
    out: Path | None = None
    repeats: Repeats = 10_000
    seed: Seed = 0

    def check(self) -> None:
        for named in self.rows or ():
            require("=" in named, "rows", named, "ROW=SYSTEM, such as GritLM-F=epoch-2")


def main(argv: Sequence[str] | None = None) -> None:
    """Find our scores for the papers' cells; write or print the tables."""
    config = read_config(Config, argv, program="eval/paper_tables.py", description=__doc__)
    if config.out is not None:
        reports = [file for path in config.reports or () for file in files_of_report(path)]
        refuse_input(config.out, [*reports, *(config.qrels or ())])
        marks = [f"[{table.id}]" for table in load_published()]
        require_output_file(config.out, ",".join(CSV_COLUMNS[:3]), *marks)
    tables = selected_tables(config.tables)
    systems = read_reports(config.reports or [])
    named = named_rows(config.rows or [], tables, systems)
    scorer = Scorer(read_judgements(config.qrels or []), config.repeats, config.seed)
    cells = {table.id: our_scores(table, systems, named, scorer) for table in tables}
    if config.format == "csv":
        text = as_csv(tables, cells)
    else:
        markdown = config.format == "markdown"
        parts = [part for table in tables for part in table_parts(table, cells[table.id], markdown)]
        text = render(parts, "markdown" if markdown else "plain") + "\n"
        used = {id(ours.system) for found in cells.values() for ours in found.values()}
        text += unplaced([s for s in systems if id(s) not in used], scorer.notes)
    if config.out is None:
        say(text.rstrip("\n"))
        return
    write_text(config.out, text)
    say(f"{len(tables)} tables in {config.out}")


def selected_tables(wanted: Sequence[str] | None) -> list[Table]:
    """Read the tables of these ids or papers, without any of all."""
    tables = load_published()
    for name in wanted or ():
        if not any(name in (table.id, table.paper) for table in tables):
            allowed = [*dict.fromkeys(t.paper for t in tables), *(t.id for t in tables)]
            raise ConfigError("tables", name, ", ".join(allowed))
    return [t for t in tables if not wanted or {t.id, t.paper} & set(wanted)]


def read_judgements(paths: Iterable[Path]) -> Qrels:
    """Read files of judgements as one; a claim may repeat with the same judgements."""
    grades: dict[str, Mapping[str, int]] = {}
    for path in paths:
        for claim, judged in read_qrels(path).grades.items():
            if grades.setdefault(claim, judged) != judged:
                raise UserError(f"{path}: {claim!r} is judged otherwise in an earlier file")
    return Qrels(grades)


def named_rows(
    given: Sequence[str], tables: Sequence[Table], systems: Sequence[LoadedSystem]
) -> dict[str, str]:
    """Map published rows to our systems' names, as `--rows` says."""
    named = dict(pair.split("=", 1) for pair in given)
    rows = {row.name for table in tables for row in table.rows}
    for row, system in named.items():
        require(row in rows, "rows", row, "a row of the tables shown")
        known = sorted(s.name for s in systems)
        require(system in known, "rows", system, f"a system of --reports: {', '.join(known)}")
    return named


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
        lines = [line for row in table.rows for line in row_lines(table, row, columns, cells)]
        parts.append(TextTable(names, padded(lines), numeric=numeric))
    return parts + notes(table, cells) + used_systems(cells)


def padded(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad cells with a shorter mark than their column's longest, so that digits align."""

    def mark(cell: str) -> int:
        return len(cell) - cell.rindex("[") if cell.endswith("]") else 0

    widest = [max(map(mark, column)) for column in zip(*rows, strict=True)]
    return [
        [cell + " " * (width - mark(cell)) for cell, width in zip(row, widest, strict=True)]
        for row in rows
    ]


def row_lines(table: Table, row: Row, columns: Sequence[Column], cells: Cells) -> list[list[str]]:
    """Show a row as printed, with its marks; ours below; then, where known, the differences."""
    printed, ours, differences, inside = [row.name], ["  ours"], ["  difference"], []
    for column in columns:
        places = [*table.flags_of(row.name, column.name)]
        if table.empty and table.value(row.name, column.name) is None:
            places.append(len(table.flags))  # the note on empty cells comes after the flags'
        mark = f"[{''.join(chr(97 + place) for place in places)}]" if places else ""
        printed.append(column.text(table.value(row.name, column.name)) + mark)
        ours.append(our_text(table, row, column, cells))
        cell = cells.get((row.name, column.name))
        published = table.absolute(row.name, column.name)
        difference = cell.difference(published) if cell else None
        differences.append("-" if difference is None else f"{difference:+.{column.digits}f}")
        inside.append("-" if cell is None or difference is None else cell.inside(published))
    if not any(column.metric for column in columns):
        return [printed]
    if not any((row.name, column.name) in cells for column in columns):
        return [printed, ours]
    return [printed, ours, differences, ["  inside interval", *inside]]


def our_text(table: Table, row: Row, column: Column, cells: Cells) -> str:
    """Format our number as the paper would print it: a difference where it prints one."""
    cell = cells.get((row.name, column.name))
    if cell is None:
        return "-"
    value: float | None = cell.value
    if table.relative_to not in (None, column.name):
        base = cells.get((row.name, str(table.relative_to)))
        value = cell.value - base.value if base else None
    return column.text(value) + ("" if cell.same else "*")


def notes(table: Table, cells: Cells) -> list[Part]:
    """Explain the marks of a table."""
    lines = [f"[{chr(97 + i)}] unreliable: {flag.reason}." for i, flag in enumerate(table.flags)]
    if table.empty:
        lines.append(f"[{chr(97 + len(table.flags))}] empty: {table.empty}.")
    if table.note:
        lines.append(f"Note: {table.note}")
    others = (ours.system for ours in cells.values() if not ours.same)
    if other := sorted({f"{system.name}: {system.queries}" for system in others}):
        lines.append(f"* over other claims than the paper's, so not compared ({'; '.join(other)}).")
    return ["\n".join(lines)] if lines else []


def used_systems(cells: Cells) -> list[Part]:
    """Tabulate which of our systems are in which rows, and what they cost."""
    found = {(row, ours.system.folder, ours.system.name): ours for (row, _), ours in cells.items()}
    rows = [
        [row, name, str(folder), *cost_cells(ours.system.cost)]
        for (row, folder, name), ours in found.items()
    ]
    columns = ["ours in", "system", "report", *COST_COLUMNS]
    numeric = [False, False, False, *[True] * len(COST_COLUMNS)]
    return [TextTable(columns, rows, numeric=numeric)] if rows else []


def unplaced(systems: Sequence[LoadedSystem], missing: Iterable[str]) -> str:
    """List systems that are in no table, and why intervals are missing."""
    lines = [
        f"In no table: {s.name} of {s.folder} ({s.model}, {s.dataset}, {s.split})" for s in systems
    ]
    lines += [f"No interval: {note}" for note in missing]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def as_csv(tables: Sequence[Table], cells: Mapping[str, Cells]) -> str:
    """Write one line a cell; scores of ours and differences are absolute, in the paper's unit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                writer.writerow(csv_row(table, row, column, cells[table.id]))
    return out.getvalue()


def csv_row(table: Table, row: Row, column: Column, cells: Cells) -> list[str]:
    """Return the texts for `CSV_COLUMNS` of one cell."""
    place = row.name, column.name
    value, published = table.value(*place), table.absolute(*place)
    line = [
        table.id,
        *place,
        column.metric or "",
        column.language,
        column.unit,
        "" if value is None else column.text(value),
        table.reasons(*place),
    ]
    cell = cells.get(place)
    if cell is None:
        return [*line, *[""] * (len(CSV_COLUMNS) - len(line))]
    numbers = cell.value, cell.difference(published), cell.low, cell.high
    return [
        *line,
        *("" if n is None else f"{n:.6f}" for n in numbers),
        cell.inside(published),
        "yes" if cell.same else "no",
        str(cell.system.folder),
        *("" if c is None else str(c) for c in cost_cells(cell.system.cost)),
    ]


if __name__ == "__main__":
    run_program(main)
