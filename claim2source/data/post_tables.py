"""Read rows from tables of posts: CSV, TSV, and the first sheet of an Excel workbook."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import file_error
from claim2source.data.frames import cell_text, plain_value
from claim2source.data.jsonl import Row
from claim2source.data.text_files import open_spreadsheet, tsv_rows

# Column names that reveal the separator of a CSV file.
_KNOWN = (
    "text post tweet tweet_text full_text content body message id _id post_id tweet_id index lang "
    "language date created_at translation url username"
).split()
TABLES, WORKBOOKS = (".csv", ".tsv"), (".xlsx", ".xlsm")
KINDS = (*TABLES, *WORKBOOKS)
# A workbook's row is as wide as the position of its last cell.
MOST_COLUMNS = 2_048
# Errors of a damaged workbook: of its zip, its XML, and their contents.
_BROKEN = (
    ValueError,
    LookupError,
    TypeError,
    SyntaxError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)
# Chooses the columns to read, given the header.
Choose = Callable[[Sequence[str]], list[str]]


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name. Raises `InputError` for other zip archives."""
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    if not suffixes.isdisjoint(KINDS):
        return True
    if path.is_file() and zipfile.is_zipfile(path):
        raise InputError(path, reason="is a zip archive: unpack it, and pass the file of posts")
    return False


def table_rows(path: Path, choose: Choose, problems: Problems) -> Iterator[Row]:
    """Yield the rows of a table with all of their columns; `choose` picks the columns to read.

    A column without a name, or with the name of an earlier one, gets another name. Raises
    `InputError` if the file cannot be read, and the errors of `choose`.
    """
    if path.suffix.lower() in WORKBOOKS:
        rows = _sheet_rows(path, choose)
    else:
        rows = _csv_rows(path, choose, problems)
    for number, cells in rows:

        def complain(field: str, reason: str, kind: str = "", /, number: int = number) -> None:
            problems.add(path, number, field, reason, kind)

        yield Row(cells, number, complain)


def _csv_rows(
    path: Path, choose: Choose, problems: Problems
) -> Iterator[tuple[int, dict[str, object]]]:
    header, separator, lines = open_spreadsheet(path, problems, _KNOWN)
    problems.raise_if_any()
    chosen = choose(header)
    names = _distinct(header)
    rows = tsv_rows(path, chosen, problems, lines=lines, delimiter=separator, whole=True)
    for number, cells in rows:
        yield number, dict(zip(names, cells, strict=True))


def table_separator(path: Path) -> str:
    """Return the separator for a CSV file like this one: a semicolon if it uses that, else a comma.

    In many countries spreadsheets open only files with semicolons.
    """
    if path.suffix.lower() != ".csv" or not path.is_file():
        return ","
    _, separator, _ = open_spreadsheet(path, Problems(), _KNOWN)
    return ";" if separator == ";" else ","


def _distinct(header: Sequence[str]) -> list[str]:
    """Make column names unique: the second `a` is `a (2)`, a missing name is `column 3`."""
    names: list[str] = []
    for place, name in enumerate(header, start=1):
        base = candidate = name or f"column {place}"
        number = 1
        while candidate in names:
            number += 1
            candidate = f"{base} ({number})"
        names.append(candidate)
    return names


def _sheet_rows(path: Path, choose: Choose) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a workbook's first sheet, numbered as in Excel."""
    header: list[str] = []
    names: list[str] = []
    for number, texts in _sheet(path):
        if not header:
            header = [text.strip() for text in texts]
            counts = Counter(header)
            for name in choose(header):
                if counts[name] > 1:
                    raise InputError(path, number, name, "is the name of several columns")
            names = _distinct(header)
            continue
        if len(texts) > len(header):  # cells outside the table
            header += [""] * (len(texts) - len(header))
            names = _distinct(header)
        missing = [""] * (len(names) - len(texts))
        yield number, dict(zip(names, [*texts, *missing], strict=True))
    if not header:
        choose([])


def _sheet_text(cell: Any) -> str:
    """Convert a cell to text: a date with its time if it has one, "" for an error."""
    value = cell.value
    if value is None or cell.data_type == "e":
        return ""
    if isinstance(value, datetime) and value.time() != time():
        return value.isoformat(sep=" ")
    return cell_text(plain_value(value))


def _sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows with text, up to their last filled cell, with their numbers."""
    if reason := file_error(path):
        raise InputError(path, reason=reason)
    if find_spec("openpyxl") is None:
        raise InputError(path, reason="needs the package openpyxl: pip install openpyxl")
    from openpyxl import load_workbook

    try:
        with path.open("rb") as file:
            book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
            sheet = book.worksheets[0]
            # Some programs write a size that is too small, others one that is huge.
            sheet.reset_dimensions()
            for number, row in enumerate(sheet.iter_rows(), start=1):
                if len(row) > MOST_COLUMNS:
                    reason = f"has more than {MOST_COLUMNS} columns"
                    raise InputError(path, number, reason=reason)
                texts = [_sheet_text(cell) for cell in row]
                while texts and not texts[-1].strip():
                    texts.pop()
                if texts:
                    yield number, texts
    except _BROKEN as error:
        reason = f"is not a readable Excel workbook: {' '.join(str(error).split())}"
        raise InputError(path, reason=reason) from None


def unpacked_bytes(path: Path) -> int:
    """Return the size in memory of the files in a workbook; 0 if it is not a workbook."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(file.file_size for file in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return 0
