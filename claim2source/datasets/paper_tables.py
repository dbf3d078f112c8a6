"""Read tables of papers, CSV and Parquet, as spreadsheets and pandas write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.errors import CountedProblems, InputError
from claim2source.datasets.beir import OF_SOURCES
from claim2source.datasets.papers import clean
from claim2source.io.jsonl import Row
from claim2source.io.text_files import open_spreadsheet, tsv_rows

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = ("id", "title", "abstract", *OF_SOURCES)
# The field of a record of corpus.jsonl that a field of a table becomes.
_FIELD_OF = {"id": "_id", "title": "title", "abstract": "text"}
# What pandas and R write for a value that is absent.
_EMPTY = frozenset(
    "nan NaN -nan -NaN None NaT NA <NA> N/A n/a #N/A #NA null NULL Null undefined".split()
)
# What Arrow writes for a day that is in none of Python's years.
_NO_YEAR = "<value out of range"
# Rows of a Parquet file that are read at a time.
_BATCH = 1024

Cells = tuple[int, Mapping[str, object]]


def table_rows(
    path: Path, columns: Mapping[str, str], problems: CountedProblems, parquet: bool
) -> Iterator[Row]:
    """Yield the rows of a table as records of corpus.jsonl are; `columns` map fields to columns.

    Raises `InputError` where the columns of id and of title or abstract are not there.
    """
    rows = _parquet if parquet else _csv
    for line, cells in rows(path, columns, problems):
        yield _row(path, line, cells, columns, problems)


def _csv(path: Path, renamed: Mapping[str, str], problems: CountedProblems) -> Iterator[Cells]:
    header, separator, lines = open_spreadsheet(
        path, problems, (*FIELDS, "text", *renamed.values())
    )
    columns = _columns(path, header, renamed, problems)
    names = list(dict.fromkeys(columns.values()))
    for number, cells in tsv_rows(path, names, problems, lines=lines, delimiter=separator):
        values = dict(zip(names, cells, strict=True))
        yield number, {field: values[column] for field, column in columns.items()}


def _parquet(path: Path, renamed: Mapping[str, str], problems: CountedProblems) -> Iterator[Cells]:
    from pyarrow import ArrowException, Table, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = _columns(path, file.schema_arrow.names, renamed, problems)
            for field, column in columns.items():
                if why := _why_not_cells(file.schema_arrow.field(column).type, field):
                    raise InputError(path, field=column, why=why)
            names = list(dict.fromkeys(columns.values()))
            for batch in file.iter_batches(_BATCH, columns=names):
                table = Table.from_batches([batch])
                values = {name: _dates_as_text(table.column(name)).to_pylist() for name in names}
                for row in range(len(table)):
                    number += 1
                    yield number, {field: values[name][row] for field, name in columns.items()}
    except (ArrowException, OSError, ValueError) as error:
        why = " ".join(str(error).split())
        problems.add(path, number or None, None, f"not Parquet that can be read: {why}")


def _why_not_cells(kind: pa.DataType, field: str) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    listed = field == "authors" and any(is_list(kind) for is_list in lists)
    inner = kind.value_type if listed else kind
    if pa.types.is_nested(inner) or "binary" in str(inner):
        return f"is of the type {kind}, not text"
    return ""


def _dates_as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write days and times as text: those beyond Python's years have none."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Seconds of the time zone's clock, as Python writes them.
        if column.type.tz:
            import pyarrow.compute as pc

            column = pc.local_timestamp(column)
        column = column.cast(pa.timestamp("s"), safe=False)
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def _columns(
    path: Path, header: Sequence[str], renamed: Mapping[str, str], problems: CountedProblems
) -> dict[str, str]:
    small = {column.lower(): column for column in reversed(header)} | {c: c for c in header}
    columns = {name: small[name] for name in FIELDS if name in small}
    if "abstract" not in columns and "text" in small:
        columns["abstract"] = small["text"]
    columns |= renamed
    if not header:
        raise InputError(path, why="is empty: a first line of columns is wanted")
    header_text = ", ".join(header)
    for name, column in columns.items():
        if column not in header:
            raise InputError(
                path, field=name, why=f"no column {column!r}; there are: {header_text}"
            )
        if header.count(column) > 1:
            why = f"{header.count(column)} columns have this name; there are: {header_text}"
            raise InputError(path, field=column, why=why)
    if "id" not in columns or not {"title", "abstract"} & set(columns):
        why = f"name the columns of id and of title or abstract; there are: {header_text}"
        raise InputError(path, field="columns", why=why)
    if unread := [column for column in header if column and column not in columns.values()]:
        listed = ", ".join(unread[:8]) + ", .." * (len(unread) > 8)
        problems.count(f"tables with columns that are not read ({listed})", path)
    return columns


def _row(
    path: Path,
    line: int,
    cells: Mapping[str, object],
    columns: Mapping[str, str],
    problems: CountedProblems,
) -> Row:
    labels = {_FIELD_OF.get(name, f"metadata.{name}"): columns.get(name, name) for name in FIELDS}

    def complain(field: str, why: str, kind: str = "", /) -> None:
        problems.add(path, line, labels.get(field, field), why, kind)

    record: dict[str, object] = {"title": "", "text": ""}
    metadata: dict[str, object] = {}
    for name, value in cells.items():
        if value is None:
            value = ""
        if isinstance(value, list):
            value = [item for item in value if item is not None and str(item) not in _EMPTY]
        if name not in ("id", "authors") and not isinstance(value, str):
            value = str(value)  # a number
        if isinstance(value, str) and value.strip() in _EMPTY:
            problems.count("cells such as nan or None, read as empty", path, line)
            value = ""
        if name == "date" and str(value).startswith(_NO_YEAR):
            problems.count("dates that are not read", path, str(value))
            value = ""
        if name in ("title", "abstract", "venue"):
            value = clean(str(value), path, line, problems)
        (record if name in _FIELD_OF else metadata)[_FIELD_OF.get(name, name)] = value
    return Row({**record, "metadata": metadata}, line, complain)
