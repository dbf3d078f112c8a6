"""Read papers from tables (CSV, TSV, Excel, Parquet) by the headings of their columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import BadZipFile

from claim2source.core.errors import InputError, Problems
from claim2source.data.authors import person_name
from claim2source.data.beir import OF_SOURCES
from claim2source.data.doi import plain_doi, plain_dois
from claim2source.data.headings import KNOWN, Columns, match_columns, table_columns
from claim2source.data.jsonl import Row
from claim2source.data.markup import clean
from claim2source.data.paper_json import row_to_paper
from claim2source.data.paper_keys import (
    ATTACHED,
    NOTES,
    PUBMED,
    choose_key,
    dated,
    first_address,
    is_placeholder,
    pubmed_id,
)
from claim2source.data.papers import Paper, PaperTexts, cell_state, notice_state
from claim2source.data.references import missing_library
from claim2source.data.text_files import (
    csv_rows,
    header_position,
    heading_key,
    open_spreadsheet,
    text_error,
)

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["csv", "xlsx", "parquet"]
OPENALEX = "https://openalex.org/"
# The field in corpus.jsonl for each field of a table.
_FIELD_OF = {"id": "_id", "title": "title", "abstract": "text"}
_NAMES = {key: field for field, key in _FIELD_OF.items()}
_NAMES |= {f"metadata.{field}": field for field in OF_SOURCES}
# Missing values as pandas and R write them.
_EMPTY = frozenset(
    "nan NaN -nan -NaN None NaT NA <NA> N/A n/a #N/A #NA null NULL Null undefined".split()
)
# Arrow's text for a day outside Python's years.
_NO_YEAR = "<value out of range"
# Number of rows of a Parquet file that are read at a time.
_BATCH = 1024
# Scopus's number of an author, after the name.
_AUTHOR_NUMBER = re.compile(r"\s*\(\d+\)(?=\s*(?:;|$))")
# Beginnings of names that continue with a capital letter.
_BEGINS = ("Mc", "Mac", "De", "Di", "La", "Le", "O'", "-")
# PubMed ends its list of authors (surnames and initials) with a full stop.
_LAST_INITIALS = re.compile(r"(?<= )([^\W\d_]{1,4})\.$")

# Embase's journal, year and volume in one cell: "Lancet (2020) 395:10223 (497-506). Date of ..".
_EMBASE_SOURCE = re.compile(
    r"(?P<venue>.{1,300}?) \((?P<year>(?:19|20)[0-9]{2})\)"
    r"(?:\.? Date of Publication:| (?:\(|[A-Z]?[0-9]|Article Number|Part |Supp))"
)
_EMBASE_DATE = re.compile(r"\bDate of Publication:\s*([^.;()]+)")

# A row's line and its cells by column.
Cells = tuple[int, Mapping[str, object]]
TableReader = Callable[[Path, Mapping[str, str], Problems], Iterator[tuple[Columns, Cells]]]


def read_table(
    path: Path, kind: Kind, renamed: Mapping[str, str], problems: Problems
) -> Iterator[Paper | None]:
    """Yield the papers of a table; None for a row that is skipped and counted.

    Raises `InputError` if there is no column for a title or an abstract.
    """
    for columns, (line, cells) in _READERS[kind](path, renamed, problems):
        yield _TableRow(path, line, cells, columns, problems).paper()


def record_to_paper(row: Row, path: Path, problems: Problems) -> Paper | None:
    """Read a JSON record from an unknown source by its keys, like a row of a table."""
    columns = match_columns(list(row.record), {})
    if not {"title", "abstract"} & set(columns.fields):
        listed = ", ".join(row.record)
        row.complain("title", f"is missing, and so is abstract; there are: {listed}")
        return None
    cells = {name: _plain_value(row.record[name]) for name in columns.names}
    return _TableRow(path, row.location, cells, columns, problems).paper()


def _plain_value(value: object) -> object:
    """Convert a JSON value to a cell: a list of authors is kept, an object becomes its name."""
    if isinstance(value, Mapping):
        return person_name(value)
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    return value


class _TableRow:
    """Row of a table, whose cells are read by field."""

    def __init__(
        self,
        path: Path,
        location: int | str,
        cells: Mapping[str, object],
        columns: Columns,
        problems: Problems,
    ) -> None:
        self.path, self.location, self.problems = path, location, problems
        self.cells, self.columns = cells, columns

    def paper(self) -> Paper | None:
        """Make the paper; None for a row without title and abstract, or with a note."""
        if self.text("type").lower() in ATTACHED:
            self.problems.count(NOTES, self.path, self.location)
            return None
        title, abstract = self.prose("title"), self.prose("abstract")
        if not f"{title}{abstract}".strip():
            return None
        doi, pmid = self.doi(), pubmed_id(self.text("pmid"))
        date = self.date()
        texts = PaperTexts("", title, abstract, date=date)
        key = choose_key(self.path, self.location, self.problems, self.ids(doi, pmid), texts)
        metadata: dict[str, object] = {
            "authors": self.authors(),
            "venue": self.venue(),
            "date": date,
            "doi": doi,
            "url": self.address(pmid),
            "lang": self.text("lang"),
            "retracted": self.state(),
        }
        record = {"_id": key, "title": title, "text": abstract, "metadata": metadata}
        line = self.location if isinstance(self.location, int) else 0
        return row_to_paper(Row(record, line, self._complain))

    def _complain(self, field: str, reason: str, kind: str = "", /) -> None:
        label = self.columns.label(_NAMES.get(field, field))
        if isinstance(self.location, int):
            self.problems.add(self.path, self.location, label, reason, kind)
        else:
            self.problems.add(self.path, None, f"{self.location}: {label}", reason, kind)

    def values(self, field: str) -> Iterator[object]:
        """Yield the filled cells of a field."""
        for column in self.columns.fields.get(field, ()):
            value = self._cell(field, self.cells.get(column))
            if value not in ("", []):
                yield value

    def text(self, field: str) -> str:
        """Return the first filled cell of a field as text."""
        value = next(self.values(field), "")
        if isinstance(value, list):
            return "; ".join(str(item) for item in value)
        return str(value).strip() if field != "abstract" else str(value)

    def prose(self, field: str) -> str:
        """Return the first cell that is not a placeholder, without markup."""
        for value in self.values(field):
            text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
            if not is_placeholder(text):
                return clean(text, self.path, self.location, self.problems)
        return ""

    def _cell(self, field: str, cell: object) -> object:
        """Return a cell as text, but a list of authors unchanged; "" if it is empty."""
        if cell is None:
            return ""
        if isinstance(cell, list):
            listed = [item for item in cell if item is not None and str(item) not in _EMPTY]
            return listed if field in ("authors", "groups") else "; ".join(map(str, listed))
        text = str(cell)
        if text.strip() in _EMPTY:
            note = "cells such as nan or None, treated as empty"
            self.problems.count(note, self.path, self.location)
            return ""
        if field == "date" and text.startswith(_NO_YEAR):
            self.problems.count("unreadable dates", self.path, text)
            return ""
        return text if text.strip() else ""

    def ids(self, doi: str, pmid: str) -> Iterator[str]:
        """Yield the possible ids: the table's own, the DOI, PubMed's, a key."""
        for value in self.values("id"):
            yield str(value).strip().removeprefix(OPENALEX)
        yield from filter(None, (doi, pmid))
        for value in self.values("key"):
            yield str(value).strip().removeprefix(OPENALEX)

    def doi(self) -> str:
        """Return the DOI in its own cell, else the only one in Embase's source."""
        if doi := plain_doi(self.text("doi")):
            return doi
        dois = plain_dois(self.embase.string) if self.embase else []
        return dois[0] if len(dois) == 1 else ""

    def venue(self) -> str:
        """Return the venue, which Embase writes before the year and the volume."""
        return self.embase["venue"] if self.embase else self.prose("venue")

    def date(self) -> str:
        """Return the date as precisely as the cells have it."""
        year = self.text("year").partition("//")[0].removesuffix(".0")
        found = self.text("date").partition("//")[0] or year or self.text("early")
        if self.embase and not found:
            year = self.embase["year"]
            dates = _EMBASE_DATE.findall(self.embase.string)
            found = dates[0].strip() if len(dates) == 1 else year
        return dated(found.removesuffix(".0"), year)

    @cached_property
    def embase(self) -> re.Match[str] | None:
        """Embase's source in a single cell, if there is no better venue."""
        column = next(iter(self.columns.fields.get("venue", ())), "")
        if heading_key(column) != "source":
            return None
        return _EMBASE_SOURCE.match(str(self.cells.get(column)))

    def address(self, pmid: str) -> str:
        """Return the first web address, or else the paper's page at PubMed or OpenAlex."""
        texts = [str(value) for value in self.values("url")]
        if address := first_address(texts):
            return address
        if texts:
            return texts[0].strip()
        if pmid:
            return f"{PUBMED}{pmid}/"
        own = self.text("id")
        return own if own.startswith(OPENALEX) else ""

    def authors(self) -> object:
        """Return the authors, followed by group authors."""
        people = next(self.values("authors"), "")
        if isinstance(people, list):
            return [person_name(item) for item in people]
        text = _AUTHOR_NUMBER.sub("", str(people))
        if is_placeholder(text):
            text = ""
        if self.columns.has("itemtitle", "itemdoi") and not re.search("[;,|]", text):
            text = "; ".join(_run_together(text))
        if self.columns.has("journalbook"):
            text = _LAST_INITIALS.sub(r"\1", text.strip())
        groups = [str(value) for value in self.values("groups")]
        return "; ".join(filter(None, [text, *groups])) if groups else text

    def state(self) -> str:
        """Return whether the paper was retracted, by its own cell or the type of the document."""
        if state := cell_state(self.text("retracted")):
            return state
        for value in self.values("type"):
            if re.search(r"\b(retracted|withdrawn)\b", str(value), re.IGNORECASE):
                return notice_state(str(value))
        return ""


def _run_together(text: str) -> list[str]:
    """Split the names in Springer's table, which have no separator."""
    names: list[str] = []
    first = 0
    for position in range(1, len(text)):
        before = text[first:position]
        is_end = before[-1].islower() or before[-1] == ")"
        if text[position].isupper() and is_end and not before.split()[-1].endswith(_BEGINS):
            names.append(before)
            first = position
    return [*names, text[first:]]


def _csv(
    path: Path, renamed: Mapping[str, str], problems: Problems
) -> Iterator[tuple[Columns, Cells]]:
    before = len(problems)
    header, separator, lines = open_spreadsheet(path, problems, (*KNOWN, *renamed.values()))
    if len(problems) > before:
        return
    # Web of Science does not quote cells, and its texts contain quotes.
    is_wos = separator == "\t" and {"pt", "ti", "ut"} <= set(map(heading_key, header))
    csv.field_size_limit(2**31 - 1)
    if is_wos:
        reader = csv.reader(lines, delimiter=separator, strict=True, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=separator, strict=True)
    columns: Columns | None = None
    width = 0
    rows = csv_rows(reader, path, problems)
    first = list(islice(rows, 2))
    rows = chain(first, rows)
    if _has_a_field_a_line([cells for _, cells in first]):
        yield from _records_by_field(rows, renamed)
        return
    for number, cells in rows:
        if columns is None:
            header = [cell.strip() for cell in cells]
            width = len(header)
            columns = table_columns(path, header, renamed, problems)
            continue
        row = _of_width(cells, width)
        if row is None:
            reason = f"{len(cells)} columns; the header has {width}"
            problems.add(path, number, None, reason)
        else:
            yield columns, (number, dict(zip(columns.header, row, strict=True)))
    if columns is None:
        table_columns(path, [], renamed, problems)


def _has_a_field_a_line(first: Sequence[Sequence[str]]) -> bool:
    """Whether each line has a field's name and its values, another format of Embase."""
    names = [cells[0] for cells in first if len(cells) > 1]
    is_named = all(name.isupper() and heading_key(name) in KNOWN for name in names)
    return len(names) == 2 and is_named and names[0] == "TITLE" and not first[0][1].isupper()


def _records_by_field(
    rows: Iterator[tuple[int, list[str]]], renamed: Mapping[str, str]
) -> Iterator[tuple[Columns, Cells]]:
    """Collect records from lines with one field each; TITLE begins a record."""
    line = 0
    record: dict[str, object] = {}
    for number, cells in rows:
        name, values = cells[0].strip(), [cell.strip() for cell in cells[1:] if cell.strip()]
        if name == "TITLE":
            if record:
                yield match_columns(list(record), renamed), (line, record)
            line, record = number, {}
        record[name] = values[0] if len(values) == 1 else values
    yield match_columns(list(record), renamed), (line, record)


def _of_width(cells: Sequence[str], width: int) -> Sequence[str] | None:
    """Fit a row to the header by dropping surplus empty cells at its end."""
    if len(cells) > width and not any(cell.strip() for cell in cells[width:]):
        return cells[:width]
    return cells if len(cells) == width else None


def _xlsx(
    path: Path, renamed: Mapping[str, str], problems: Problems
) -> Iterator[tuple[Columns, Cells]]:
    try:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as error:
        raise missing_library(error) from None
    try:
        with open(path, "rb") as file:
            book = load_workbook(file, read_only=True, data_only=True)
            if not book.worksheets:
                raise InputError(path, reason="has no sheet with cells")
            sheet = book.worksheets[0]
            if len(book.worksheets) > 1:
                problems.count("workbooks of which only the first sheet is read", path)
            # Some programs write a size that is too small, and rows would be lost.
            sheet.reset_dimensions()
            rows = (list(map(_cell_value, row)) for row in sheet.iter_rows(values_only=True))
            yield from _sheet_rows(path, rows, renamed, problems)
    except (BadZipFile, InvalidFileException, KeyError, ValueError, OSError, EOFError) as error:
        reason = " ".join(str(error).split())
        problems.add(path, None, None, f"is not a readable Excel workbook: {reason}")


def _sheet_rows(
    path: Path, rows: Iterator[list[str]], renamed: Mapping[str, str], problems: Problems
) -> Iterator[tuple[Columns, Cells]]:
    first = list(enumerate(islice(rows, 15), start=1))
    filled = [(number, row) for number, row in first if any(row)]
    position = header_position([row for _, row in filled], (*KNOWN, *renamed.values()))
    if not filled:
        filled = [(1, [])]
    if position:
        problems.count("tables with lines before the header, which were skipped", path)
    header = [cell.strip() for cell in filled[position][1]]
    while header and not header[-1]:
        del header[-1]
    columns = table_columns(path, header, renamed, problems)
    for number, row in chain(filled[position + 1 :], enumerate(rows, start=len(first) + 1)):
        if any(row):
            yield columns, (number, dict(zip(header, row, strict=False)))


def _cell_value(value: object) -> str:
    """Convert a workbook's cell to the text that a CSV file would have."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).replace("_x000D_", "")
    return "" if text_error(text) else text


def _parquet(
    path: Path, renamed: Mapping[str, str], problems: Problems
) -> Iterator[tuple[Columns, Cells]]:
    from pyarrow import ArrowException, Table, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = _parquet_columns(path, file.schema_arrow, renamed, problems)
            names = columns.names
            for batch in file.iter_batches(_BATCH, columns=names):
                table = Table.from_batches([batch])
                values = {name: _dates_as_text(table.column(name)).to_pylist() for name in names}
                for row in range(len(table)):
                    number += 1
                    yield columns, (number, {name: values[name][row] for name in names})
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        problems.add(path, number or None, None, f"not readable Parquet: {reason}")


def _parquet_columns(
    path: Path, schema: pa.Schema, renamed: Mapping[str, str], problems: Problems
) -> Columns:
    """Match the columns with text; other types are ignored, unless the user named the column."""
    columns = table_columns(path, schema.names, renamed, problems)
    fields: dict[str, tuple[str, ...]] = {}
    for field, names in columns.fields.items():
        readable: list[str] = []
        for name in names:
            reason = _cells_error(schema.field(name).type, field)
            if reason and (field in renamed or name.lower() == field):
                raise InputError(path, field=name, reason=reason)
            if not reason:
                readable.append(name)
        if readable:
            fields[field] = tuple(readable)
    return Columns(fields, columns.header)


def _cells_error(kind: pa.DataType, field: str) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    inner = kind
    if any(is_list(kind) for is_list in lists):
        inner = kind.value_type
        # An object may be an author's name.
        if field == "authors" and pa.types.is_struct(inner):
            return ""
    if pa.types.is_nested(inner) or "binary" in str(inner):
        return f"is of the type {kind}, not text"
    return ""


def _dates_as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert days and times to text, except those outside Python's years."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Seconds in the local time of the time zone, as Python writes them.
        if column.type.tz:
            import pyarrow.compute as pc

            column = pc.local_timestamp(column)
        column = column.cast(pa.timestamp("s"), safe=False)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    return column


_READERS: dict[Kind, TableReader] = {"csv": _csv, "xlsx": _xlsx, "parquet": _parquet}
