"""Read the rows of tables of posts: CSV, TSV, and the first sheet of an Excel workbook."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import file_error
from claim2source.data.frames import cell_text, plain_value
from claim2source.data.jsonl import Row
from claim2source.data.text_files import open_spreadsheet, tsv_rows

# Names by which the separator of a CSV file is found.
_KNOWN = (
    "text post tweet tweet_text full_text content body message id _id post_id tweet_id index lang "
    "language date created_at translation url username"
).split()
_TABLES, _WORKBOOKS = (".csv", ".tsv"), (".xlsx", ".xlsm")
# What a damaged workbook raises: its zip, its XML, and what these hold.
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
# Chooses the columns that are read from a header.
Choose = Callable[[Sequence[str]], list[str]]


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name. Raises `InputError` for other zip archives."""
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    if not suffixes.isdisjoint((*_TABLES, *_WORKBOOKS)):
        return True
    if path.is_file() and zipfile.is_zipfile(path):
        raise InputError(path, reason="is a zip archive: unpack it, and name the file of posts")
    return False


def table_rows(path: Path, choose: Choose, problems: Problems) -> Iterator[Row]:
    """Yield the rows of a table with the chosen columns.

    Raises `InputError` if the file cannot be read, or `choose` does.
    """
    if path.suffix.lower() in _WORKBOOKS:
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
    names = choose(header)
    for number, cells in tsv_rows(path, names, problems, lines=lines, delimiter=separator):
        yield number, dict(zip(names, cells, strict=True))


def _sheet_rows(path: Path, choose: Choose) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a workbook's first sheet, by the number that Excel shows."""
    names: list[str] = []
    places: list[int] = []
    for number, cells in enumerate(_sheet(path), start=1):
        texts = [cell_text(plain_value(cell)) for cell in cells]
        if not any(text.strip() for text in texts):
            continue
        if names:
            yield number, dict(zip(names, (texts[place] for place in places), strict=True))
            continue
        header = [text.strip() for text in texts]
        names = choose(header)
        for name in names:
            if header.count(name) > 1:
                raise InputError(path, number, name, "is the name of several columns")
        places = [header.index(name) for name in names]
    if not names:
        choose([])


def _sheet(path: Path) -> list[list[Any]]:
    if reason := file_error(path):
        raise InputError(path, reason=reason)
    if find_spec("openpyxl") is None:
        raise InputError(path, reason="needs the package openpyxl: pip install openpyxl")
    import pandas

    try:
        frame = pandas.read_excel(path, header=None, dtype=object, keep_default_na=False)
    except _BROKEN as error:
        reason = f"is no Excel workbook that can be read: {' '.join(str(error).split())}"
        raise InputError(path, reason=reason) from None
    return frame.to_numpy().tolist()
