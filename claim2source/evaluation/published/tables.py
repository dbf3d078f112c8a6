"""The papers' numbers as data: `published/*.yaml`, one file a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.errors import InputError

FOLDER = Path(__file__).resolve().parent
MACRO = "macro"

Value = float | str | None


@dataclass(frozen=True)
class Column:
    """One column of a table; what is set for the table holds for its columns too.

    Args:
        name: as the paper prints it.
        metric: name in our reports; none: nothing of ours goes here.
        language: language code, or `macro` for the mean of the languages.
        splits: names that the split may have in a report of ours.
        queries: language -> claims the paper scored; a report of ours with others is marked.
        claims: representation of claims that the cell is for; none: any.
        sources: representation of sources that the cell is for; none: any.
        style: cell of the style grid, S0C0 being texts as they are.
        digits: decimals the paper prints.
        unit: "", "%" or "s".
        signed: a difference, printed with its sign.
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

    @property
    def factor(self) -> float:
        """What a score of ours is multiplied by to be in the paper's unit."""
        return 100.0 if self.unit == "%" else 1.0

    def text(self, value: Value) -> str:
        """A value as the paper would print it; "-" for a gap."""
        if value is None or isinstance(value, str):
            return value or "-"
        if isinstance(value, int):
            return str(value)  # a count
        return f"{value:{'+' if self.signed else ''}.{self.digits}f}"


@dataclass(frozen=True)
class Row:
    """One system of a table: `values` in the order of the columns, `models` the names it has here.

    `hybrid:NAME` is BM25 fused with the dense model NAME.
    """

    name: str
    values: tuple[Value, ...]
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """Cells not to be taken as targets, and why; no columns: all of the rows'."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    reason: str

    def covers(self, row: str, column: str) -> bool:
        """Is this cell meant?"""
        return row in self.rows and (not self.columns or column in self.columns)


@dataclass(frozen=True)
class Table:
    """A published table. `relative_to` names the column that the others are differences to."""

    id: str
    paper: str
    title: str
    source: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    flags: tuple[Flag, ...] = ()
    relative_to: str | None = None
    note: str = ""

    def flags_of(self, row: str, column: str) -> tuple[int, ...]:
        """Places of the flags on a cell, from 0."""
        return tuple(i for i, flag in enumerate(self.flags) if flag.covers(row, column))

    def row(self, name: str) -> Row:
        """The row of this name. Raises KeyError without it."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def value(self, row: str, column: str) -> Value:
        """One cell as printed. Raises KeyError without such a cell."""
        names = [c.name for c in self.columns]
        if column not in names:
            raise KeyError(column)
        return self.row(row).values[names.index(column)]

    def column(self, name: str) -> Column:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def absolute(self, row: str, column: str) -> float | None:
        """A cell as a score: with `relative_to`, the reference cell is added."""
        value = self.value(row, column)
        if value is None or isinstance(value, str):
            return None
        if self.relative_to in (None, column):
            return value
        base = self.value(row, str(self.relative_to))
        return None if base is None or isinstance(base, str) else base + value


_SHARED = {f.name for f in fields(Column)} - {"name"}
_TABLE_KEYS = {"id", "title", "source", "columns", "rows", "unreliable", "relative_to", "note"}


def load_published(folder: Path = FOLDER) -> tuple[Table, ...]:
    """Every table of every file, in order of file names.

    Raises `InputError` naming file and field of what is wrong: an unknown key, a row with
    another number of values than columns, a flag on a cell that is not there, an id twice.
    """
    tables: dict[str, Table] = {}
    for path in sorted(folder.glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for raw in data["tables"]:
            table = _table(path, data, raw)
            if table.id in tables:
                raise InputError.at(path, None, table.id, "a table of this id is there already")
            tables[table.id] = table
    return tuple(tables.values())


def _table(path: Path, paper: Mapping[str, Any], raw: Mapping[str, Any]) -> Table:
    where = str(raw.get("id"))
    unknown = set(raw) - _TABLE_KEYS - _SHARED
    absent = {"id", "title", "source", "columns", "rows"} - set(raw)
    if unknown or absent:
        why = f"unknown: {sorted(unknown)}; missing: {sorted(absent)}"
        raise InputError.at(path, None, where, why)
    relative = raw.get("relative_to")
    shared = {key: raw[key] for key in _SHARED & set(raw)}
    columns = []
    for name, own in raw["columns"].items():
        if set(own) - _SHARED:
            raise InputError.at(path, None, f"{where}.{name}", f"unknown: {sorted(own)}")
        settings = {"signed": relative not in (None, name), **shared, **own}
        settings["splits"] = tuple(settings.get("splits", ()))
        columns.append(Column(str(name), **settings))
    rows = tuple(
        Row(str(name), tuple(own["values"]), tuple(own.get("models", ())))
        for name, own in raw["rows"].items()
    )
    for row in rows:
        if len(row.values) != len(columns):
            why = f"{len(row.values)} values for {len(columns)} columns"
            raise InputError.at(path, None, f"{where}.{row.name}", why)
    flags = tuple(
        Flag(
            tuple(map(str, flag["rows"])),
            tuple(map(str, flag.get("columns", ()))),
            " ".join(flag["reason"].split()),
        )
        for flag in raw.get("unreliable", ())
    )
    known_rows, known_columns = {r.name for r in rows}, {c.name for c in columns}
    for flag in flags:
        wrong = (set(flag.rows) - known_rows) | (set(flag.columns) - known_columns)
        if wrong or not flag.rows:
            raise InputError.at(
                path, None, f"{where}.unreliable", f"no such cells: {sorted(wrong)}"
            )
    if relative is not None and relative not in known_columns:
        raise InputError.at(path, None, where, f"relative_to: no column {relative!r}")
    return Table(
        where,
        str(paper["paper"]),
        raw["title"],
        raw["source"],
        tuple(paper["names"]),
        tuple(columns),
        rows,
        flags,
        relative,
        " ".join(raw.get("note", "").split()),
    )
