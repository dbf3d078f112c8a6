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
_FIELD_OF = {
    "id": "_id",
    "title": "title",
    "abstract": "text",
}
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
    path: Path,
    kind: Kind,
    renamed: Mapping[str, str],
    problems: Problems,
) -> Iterator[Paper | None]:
    """Yield the papers of a table; None for a row that is skipped and counted.

    Raises `InputError` if there is no column for a title or an abstract.
    """
    read_rows = _READERS[kind]
    for columns, (line, cells) in read_rows(path, renamed, problems):
        row = _TableRow(path, line, cells, columns, problems)
        yield row.paper()


def record_to_paper(row: Row, path: Path, problems: Problems) -> Paper | None:
    """Read a JSON record from an unknown source by its keys, like a row of a table."""
    keys = list(row.record)
    columns = match_columns(keys, {})
    if not {"title", "abstract"} & set(columns.fields):
        listed = ", ".join(row.record)
        row.complain("title", f"is missing, and so is abstract; there are: {listed}")
        return None
    cells = {name: _plain_value(row.record[name]) for name in columns.names}
    table_row = _TableRow(path, row.location, cells, columns, problems)
    return table_row.paper()


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
        self.path = path
        self.location = location
        self.problems = problems
        self.cells = cells
        self.columns = columns

    def paper(self) -> Paper | None:
        """Make the paper; None for a row without title and abstract, or with a note."""
        document_type = self.text("type").lower()
        if document_type in ATTACHED:
            self.problems.count(NOTES, self.path, self.location)
            return None
        title = self.prose("title")
        abstract = self.prose("abstract")
        if not f"{title}{abstract}".strip():
            return None

        doi = self.doi()
        pmid = pubmed_id(self.text("pmid"))
        date = self.date()
        texts = PaperTexts("", title, abstract, date=date)
        ids = self.ids(doi, pmid)
        key = choose_key(self.path, self.location, self.problems, ids, texts)
        metadata: dict[str, object] = {
            "authors": self.authors(),
            "venue": self.venue(),
            "date": date,
            "doi": doi,
            "url": self.address(pmid),
            "lang": self.text("lang"),
            "retracted": self.state(),
        }
        record = {
            "_id": key,
            "title": title,
            "text": abstract,
            "metadata": metadata,
        }
        line = self.location if isinstance(self.location, int) else 0
        row = Row(record, line, self._complain)
        return row_to_paper(row)

    def _complain(self, field: str, reason: str, kind: str = "", /) -> None:
        name = _NAMES.get(field, field)
        label = self.columns.label(name)
        if isinstance(self.location, int):
            self.problems.add(self.path, self.location, label, reason, kind)
        else:
            place = f"{self.location}: {label}"
            self.problems.add(self.path, None, place, reason, kind)

    def values(self, field: str) -> Iterator[object]:
        """Yield the filled cells of a field."""
        for column in self.columns.fields.get(field, ()):
            cell = self.cells.get(column)
            value = self._cell(field, cell)
            if value not in ("", []):
                yield value

    def text(self, field: str) -> str:
        """Return the first filled cell of a field as text."""
        value = next(self.values(field), "")
        if isinstance(value, list):
            return "; ".join(str(item) for item in value)
        text = str(value)
        return text if field == "abstract" else text.strip()

    def prose(self, field: str) -> str:
        """Return the first cell that is not a placeholder, without markup."""
        for value in self.values(field):
            if isinstance(value, list):
                text = "; ".join(map(str, value))
            else:
                text = str(value)
            if not is_placeholder(text):
                return clean(text, self.path, self.location, self.problems)
        return ""

    def _cell(self, field: str, cell: object) -> object:
        """Return a cell as text, but a list of authors unchanged; "" if it is empty."""
        if cell is None:
            return ""
        if isinstance(cell, list):
            listed = [item for item in cell if not _is_empty(item)]
            if field in ("authors", "groups"):
                return listed
            return "; ".join(map(str, listed))

        text = str(cell)
        stripped = text.strip()
        if stripped in _EMPTY:
            note = "cells such as nan or None, treated as empty"
            self.problems.count(note, self.path, self.location)
            return ""
        if field == "date" and text.startswith(_NO_YEAR):
            self.problems.count("unreadable dates", self.path, text)
            return ""
        return text if stripped else ""

    def ids(self, doi: str, pmid: str) -> Iterator[str]:
        """Yield the possible ids: the table's own, the DOI, PubMed's, a key."""
        for value in self.values("id"):
            own = str(value).strip()
            yield own.removeprefix(OPENALEX)
        yield from filter(None, (doi, pmid))
        for value in self.values("key"):
            key = str(value).strip()
            yield key.removeprefix(OPENALEX)

    def doi(self) -> str:
        """Return the DOI in its own cell, else the only one in Embase's source."""
        doi = plain_doi(self.text("doi"))
        if doi:
            return doi
        if not self.embase:
            return ""
        dois = plain_dois(self.embase.string)
        return dois[0] if len(dois) == 1 else ""

    def venue(self) -> str:
        """Return the venue, which Embase writes before the year and the volume."""
        if self.embase:
            return self.embase["venue"]
        return self.prose("venue")

    def date(self) -> str:
        """Return the date as precisely as the cells have it."""
        first_year = self.text("year").partition("//")[0]
        year = first_year.removesuffix(".0")
        first_date = self.text("date").partition("//")[0]
        found = first_date or year or self.text("early")
        if self.embase and not found:
            year = self.embase["year"]
            dates = _EMBASE_DATE.findall(self.embase.string)
            found = dates[0].strip() if len(dates) == 1 else year
        return dated(found.removesuffix(".0"), year)

    @cached_property
    def embase(self) -> re.Match[str] | None:
        """Embase's source in a single cell, if there is no better venue."""
        venue_columns = self.columns.fields.get("venue", ())
        column = next(iter(venue_columns), "")
        if heading_key(column) != "source":
            return None
        cell = str(self.cells.get(column))
        return _EMBASE_SOURCE.match(cell)

    def address(self, pmid: str) -> str:
        """Return the first web address, or else the paper's page at PubMed or OpenAlex."""
        texts = [str(value) for value in self.values("url")]
        address = first_address(texts)
        if address:
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
        is_springer = self.columns.has("itemtitle", "itemdoi")
        if is_springer and not re.search("[;,|]", text):
            names = _run_together(text)
            text = "; ".join(names)
        if self.columns.has("journalbook"):
            text = _LAST_INITIALS.sub(r"\1", text.strip())

        groups = [str(value) for value in self.values("groups")]
        if not groups:
            return text
        parts = filter(None, [text, *groups])
        return "; ".join(parts)

    def state(self) -> str:
        """Return whether the paper was retracted, by its own cell or the type of the document."""
        state = cell_state(self.text("retracted"))
        if state:
            return state
        for value in self.values("type"):
            document_type = str(value)
            if re.search(r"\b(retracted|withdrawn)\b", document_type, re.IGNORECASE):
                return notice_state(document_type)
        return ""


def _is_empty(item: object) -> bool:
    """Whether an entry of a list is a missing value."""
    return item is None or str(item) in _EMPTY


def _run_together(text: str) -> list[str]:
    """Split the names in Springer's table, which have no separator."""
    names: list[str] = []
    first = 0
    for position in range(1, len(text)):
        before = text[first:position]
        is_end = before[-1].islower() or before[-1] == ")"
        if not is_end or not text[position].isupper():
            continue
        last_word = before.split()[-1]
        if not last_word.endswith(_BEGINS):
            names.append(before)
            first = position
    return [*names, text[first:]]


def _csv(
    path: Path,
    renamed: Mapping[str, str],
    problems: Problems,
) -> Iterator[tuple[Columns, Cells]]:
    before = len(problems)
    known = (*KNOWN, *renamed.values())
    header, separator, lines = open_spreadsheet(path, problems, known)
    if len(problems) > before:
        return
    # Web of Science does not quote cells, and its texts contain quotes.
    headings = set(map(heading_key, header))
    is_wos = separator == "\t" and {"pt", "ti", "ut"} <= headings
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
    first_cells = [cells for _, cells in first]
    if _has_a_field_a_line(first_cells):
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
            record = dict(zip(columns.header, row, strict=True))
            yield columns, (number, record)
    if columns is None:
        table_columns(path, [], renamed, problems)


def _has_a_field_a_line(first: Sequence[Sequence[str]]) -> bool:
    """Whether each line has a field's name and its values, another format of Embase."""
    names = [cells[0] for cells in first if len(cells) > 1]
    are_known = all(name.isupper() and heading_key(name) in KNOWN for name in names)
    if len(names) != 2 or not are_known:
        return False
    first_value = first[0][1]
    return names[0] == "TITLE" and not first_value.isupper()


def _records_by_field(
    rows: Iterator[tuple[int, list[str]]],
    renamed: Mapping[str, str],
) -> Iterator[tuple[Columns, Cells]]:
    """Collect records from lines with one field each; TITLE begins a record."""
    line = 0
    record: dict[str, object] = {}
    for number, cells in rows:
        name = cells[0].strip()
        stripped = [cell.strip() for cell in cells[1:]]
        values = [cell for cell in stripped if cell]
        if name == "TITLE":
            if record:
                columns = match_columns(list(record), renamed)
                yield columns, (line, record)
            line = number
            record = {}
        record[name] = values[0] if len(values) == 1 else values
    columns = match_columns(list(record), renamed)
    yield columns, (line, record)


def _of_width(cells: Sequence[str], width: int) -> Sequence[str] | None:
    """Fit a row to the header by dropping surplus empty cells at its end."""
    if len(cells) == width:
        return cells
    if len(cells) < width:
        return None
    surplus = cells[width:]
    if any(cell.strip() for cell in surplus):
        return None
    return cells[:width]


def _xlsx(
    path: Path,
    renamed: Mapping[str, str],
    problems: Problems,
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
            sheet_rows = sheet.iter_rows(values_only=True)
            rows = (list(map(_cell_value, row)) for row in sheet_rows)
            yield from _sheet_rows(path, rows, renamed, problems)
    except (BadZipFile, InvalidFileException, KeyError, ValueError, OSError, EOFError) as error:
        words = str(error).split()
        reason = " ".join(words)
        problems.add(path, None, None, f"is not a readable Excel workbook: {reason}")


def _sheet_rows(
    path: Path,
    rows: Iterator[list[str]],
    renamed: Mapping[str, str],
    problems: Problems,
) -> Iterator[tuple[Columns, Cells]]:
    first_rows = islice(rows, 15)
    first = list(enumerate(first_rows, start=1))
    filled = [(number, row) for number, row in first if any(row)]
    filled_rows = [row for _, row in filled]
    known = (*KNOWN, *renamed.values())
    position = header_position(filled_rows, known)
    if not filled:
        filled = [(1, [])]
    if position:
        problems.count("tables with lines before the header, which were skipped", path)
    _, headings = filled[position]
    header = [cell.strip() for cell in headings]
    while header and not header[-1]:
        del header[-1]
    columns = table_columns(path, header, renamed, problems)

    below_header = filled[position + 1 :]
    other_rows = enumerate(rows, start=len(first) + 1)
    for number, row in chain(below_header, other_rows):
        if any(row):
            record = dict(zip(header, row, strict=False))
            yield columns, (number, record)


def _cell_value(value: object) -> str:
    """Convert a workbook's cell to the text that a CSV file would have."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        if value.time() == time():
            return value.date().isoformat()
        return value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).replace("_x000D_", "")
    return "" if text_error(text) else text


def _parquet(
    path: Path,
    renamed: Mapping[str, str],
    problems: Problems,
) -> Iterator[tuple[Columns, Cells]]:
    from pyarrow import ArrowException, Table, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = _parquet_columns(path, file.schema_arrow, renamed, problems)
            names = columns.names
            for batch in file.iter_batches(_BATCH, columns=names):
                table = Table.from_batches([batch])
                values: dict[str, list[object]] = {}
                for name in names:
                    column = _dates_as_text(table.column(name))
                    values[name] = column.to_pylist()
                for row in range(len(table)):
                    number += 1
                    record = {name: values[name][row] for name in names}
                    yield columns, (number, record)
    except (ArrowException, OSError, ValueError) as error:
        words = str(error).split()
        reason = " ".join(words)
        problems.add(path, number or None, None, f"not readable Parquet: {reason}")


def _parquet_columns(
    path: Path,
    schema: pa.Schema,
    renamed: Mapping[str, str],
    problems: Problems,
) -> Columns:
    """Match the columns with text; other types are ignored, unless the user named the column."""
    columns = table_columns(path, schema.names, renamed, problems)
    fields: dict[str, tuple[str, ...]] = {}
    for field, names in columns.fields.items():
        readable: list[str] = []
        for name in names:
            kind = schema.field(name).type
            reason = _cells_error(kind, field)
            if not reason:
                readable.append(name)
                continue
            is_named_by_user = field in renamed or name.lower() == field
            if is_named_by_user:
                raise InputError(path, field=name, reason=reason)
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
