"""Read the papers' numbers from `published/*.yaml`, one file per paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from claim2source.core.config import as_plain, read_yaml
from claim2source.core.errors import InputError
from claim2source.core.report import MACRO as MACRO
from claim2source.core.validate import Strict, validated

FOLDER = Path(__file__).resolve().parent

Value = int | float | str | None


@dataclass(frozen=True)
class Column(Strict):
    """Describe one column of a table; the table's settings apply to its columns too.

    Args:
        name: the paper's name of the column.
        metric: name in our reports; none: the column is not compared.
        language: language code, or `macro` for the mean of the languages.
        splits: names that the split may have in a report of ours.
        queries: language -> claims the paper scored; a report of ours with others is marked.
        claims: representation of claims in the cell; none: any.
        sources: representation of sources in the cell; none: any.
        style: cell of the style grid; S0C0 has the texts as they are.
        digits: decimals the paper prints.
        unit: "", "%" or "s".
        signed: whether it is a difference, printed with its sign.
        minus: row of the table whose score is subtracted; none: the column has scores.
    """

    name: str
    metric: str | None = None
    language: str = "en"
    splits: tuple[str, ...] = ()
    queries: Mapping[str, int] | None = None
    claims: str | None = None
    sources: str | None = None
    style: str = "S0C0"
    digits: int = 4
    unit: str = ""
    signed: bool = False
    minus: str | None = None

    @property
    def factor(self) -> float:
        return 100.0 if self.unit == "%" else 1.0

    def text(self, value: Value) -> str:
        """Format a value as the paper would print it; "-" for a gap."""
        if value is None or isinstance(value, str):
            return value or "-"
        if isinstance(value, int):
            return str(value)  # a count
        sign = "+" if self.signed else ""
        return f"{value:{sign}.{self.digits}f}"


@dataclass(frozen=True)
class PublishedRow(Strict):
    """One system of a table: `values` in the order of the columns, `models` its names here.

    `hybrid:NAME` is BM25 fused with the dense model NAME.
    """

    name: str
    values: tuple[Value, ...]
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag(Strict):
    """Cells that are not targets, and the reason; without columns, all cells of the rows."""

    rows: tuple[str, ...]
    reason: str
    columns: tuple[str, ...] = ()

    def covers(self, row: str, column: str) -> bool:
        if row not in self.rows:
            return False
        return not self.columns or column in self.columns


@dataclass(frozen=True)
class Table(Strict):
    """Published table; with `relative_to`, other columns are differences to that one.

    `empty` is the reason why cells have no value. Raises ValueError without rows or columns, if a
    row's length is not the number of columns, and on an unknown name of a row or column.
    """

    id: str
    paper: str
    title: str
    source: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[PublishedRow, ...]
    flags: tuple[Flag, ...] = ()
    relative_to: str | None = None
    note: str = ""
    empty: str = ""

    def __post_init__(self) -> None:
        rows = {row.name for row in self.rows}
        columns = {column.name for column in self.columns}
        if not rows or not columns:
            raise ValueError("must have rows and columns")
        wanted = len(self.columns)
        for row in self.rows:
            count = len(row.values)
            if count != wanted:
                numbers = f"{count} values for {wanted} columns"
                raise ValueError(f"rows.{row.name}: {numbers}")
        for flag in self.flags:
            strange_rows = set(flag.rows) - rows
            strange_columns = set(flag.columns) - columns
            wrong = strange_rows | strange_columns
            if wrong or not flag.rows:
                raise ValueError(f"unreliable: no such cells: {sorted(wrong)}")
        for column in self.columns:
            if column.minus not in (None, *rows):
                raise ValueError(f"columns.{column.name}: minus: no row {column.minus!r}")
        if self.relative_to not in (None, *columns):
            raise ValueError(f"relative_to: no column {self.relative_to!r}")

    def cell_flags(self, row: str, column: str) -> tuple[int, ...]:
        """List the positions of the flags on a cell, from 0."""
        positions: list[int] = []
        for i, flag in enumerate(self.flags):
            if flag.covers(row, column):
                positions.append(i)
        return tuple(positions)

    def reasons(self, row: str, column: str) -> str:
        """Join the reasons to doubt a cell; empty without any."""
        flags = [self.flags[position] for position in self.cell_flags(row, column)]
        return "; ".join(flag.reason for flag in flags)

    def row(self, name: str) -> PublishedRow:
        """Return the row of this name. Raises KeyError without it."""
        by_name = {row.name: row for row in self.rows}
        return by_name[name]

    def value(self, row: str, column: str) -> Value:
        """Return one cell as printed. Raises KeyError if there is no such cell."""
        values = self.row(row).values
        by_column: dict[str, Value] = {}
        for own, value in zip(self.columns, values, strict=True):
            by_column[own.name] = value
        return by_column[column]

    def absolute(self, row: str, column: str) -> float | None:
        """Return a cell as a score: with `relative_to`, the reference cell is added."""
        value = self.value(row, column)
        if value is None or isinstance(value, str):
            return None
        if self.relative_to in (None, column):
            return value
        base = self.value(row, str(self.relative_to))
        if base is None or isinstance(base, str):
            return None
        return base + value


@cache
def load_published(folder: Path = FOLDER) -> tuple[Table, ...]:
    """Read every table of every file, in order of file names.

    Raises `InputError` with file and field: an unknown or missing key, a wrong type, a row whose
    length is not the number of columns, a flag on an absent cell, a repeated id.
    """
    tables: dict[str, Table] = {}
    for path in sorted(folder.glob("*.yaml")):
        paper = as_plain(read_yaml(path))
        for raw in paper["tables"]:
            values = _table_fields(paper, raw)
            table_id = str(raw.get("id"))
            table = validated(Table, values, path, table_id)
            if table.id in tables:
                raise InputError(path, None, table.id, "another table has this id")
            tables[table.id] = table
    return tuple(tables.values())


def _table_fields(
    paper: Mapping[str, Any],
    raw: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of a table: names moved into rows and columns, shared keys into columns."""
    table = dict(raw, paper=paper["paper"], names=paper["names"])
    shared = {}
    for f in fields(Column):
        if f.name in table:
            shared[f.name] = table.pop(f.name)

    relative = table.get("relative_to")
    columns: list[dict[str, Any]] = []
    for name, own in raw.get("columns", {}).items():
        column: dict[str, Any] = {
            "name": str(name),
            "signed": relative not in (None, name),
            **shared,
            **own,
        }
        columns.append(column)
    table["columns"] = columns
    rows: list[dict[str, Any]] = []
    for name, own in raw.get("rows", {}).items():
        row: dict[str, Any] = {"name": str(name), **own}
        rows.append(row)
    table["rows"] = rows
    flags: list[dict[str, Any]] = []
    for flag in table.pop("unreliable", ()):
        reason = " ".join(flag["reason"].split())
        flags.append({**flag, "reason": reason})
    table["flags"] = flags

    for key in ("note", "empty"):
        text = raw.get(key, "")
        table[key] = " ".join(text.split())
    return table
