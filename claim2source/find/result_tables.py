"""Write answers next to the rows of a file of posts: as CSV, an Excel workbook or JSON lines.

Cells are untrusted text: none becomes a formula.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.core.files import atomic_path
from claim2source.data.posts import PostRecord
from claim2source.find.answers import COLUMNS, INDEX_COLUMN, result_cell, safe_cell, table_values
from claim2source.find.bulk import Outcome

# Separators of CSV, as Excel writes it.
LINE_END = "\r\n"
ENDINGS = (".csv", ".xlsx", ".jsonl")
# Most rows of an Excel sheet, including its header; most characters of a cell.
MOST_ROWS, MOST_LETTERS = 1_048_576, 32_767
_POST = ("post", "post_text", "left_out")
# Columns of a result, for one index and for several.
RESULT = (*_POST, *(name for name in COLUMNS if name != "post"))
RESULT_OF_SEVERAL = (*RESULT, INDEX_COLUMN)
# Prefix of a result's column if the user's file has a column of this name.
_PREFIX = "result_"
# Characters that cells of a workbook must not contain, removed from files of both kinds.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
# Excel keeps 15 digits: longer ids stay text.
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{0,5}[1-9])?")

Answered = Iterable[tuple[PostRecord, Outcome]]
Row = list[object]


def result_columns(indexes: Sequence[str]) -> Sequence[str]:
    """Name the columns of a result; papers of several indexes name theirs."""
    return RESULT_OF_SEVERAL if indexes else RESULT


def header(columns: Iterable[str], result: Sequence[str] = RESULT) -> list[str]:
    """Return the columns: the file's own unchanged, then those of the results."""
    names = list(columns)
    taken = {name.casefold() for name in names}
    for name in result:
        while name.casefold() in taken:
            name = _PREFIX + name
        taken.add(name.casefold())
        names.append(name)
    return names


def _rows(
    columns: Sequence[str], answered: Answered, result: Sequence[str]
) -> Iterator[tuple[list[str], Row]]:
    """Yield rows of the file's own cells and the result's: one per paper, or one without papers."""
    for record, outcome in answered:
        own = [record.columns.get(name, "") for name in columns]
        about = {"post": outcome.post, "post_text": outcome.text, "left_out": outcome.left_out}
        about["verdict"] = outcome.verdict
        for paper in outcome.papers or ({},):
            values = {**about, **table_values(paper)}
            yield own, [values.get(name) for name in result]


def csv_lines(
    columns: Sequence[str],
    answered: Answered,
    separator: str = ",",
    result: Sequence[str] = RESULT,
) -> Iterator[str]:
    """Write the header and each row as a line of CSV, without its line break."""
    yield csv_line(map(_own_cell, header(columns, result)), separator)
    yield from csv_rows(columns, answered, separator, result)


def csv_rows(
    columns: Sequence[str],
    answered: Answered,
    separator: str = ",",
    result: Sequence[str] = RESULT,
) -> Iterator[str]:
    """Write each row as a line of CSV; between semicolons, decimals have a comma."""
    for own, values in _rows(columns, answered, result):
        cells: Row = [_own_cell(text) for text in own]
        for value in values:
            cell = result_cell(value)
            if isinstance(cell, float) and separator == ";":
                cell = str(cell).replace(".", ",")
            cells.append(cell)
        yield csv_line(cells, separator)


def csv_line(cells: Iterable[object], separator: str = ",") -> str:
    """Write cells as Excel does, without the line break at their end."""
    text = io.StringIO()
    # A cell is quoted if it contains a line break.
    csv.writer(text, delimiter=separator, lineterminator=LINE_END).writerow(cells)
    return text.getvalue().removesuffix(LINE_END)


def _own_cell(text: str) -> str:
    """Return a user's cell unchanged, except for text that a spreadsheet would run."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return safe_cell(_CONTROL.sub(" ", lines))


def json_line(record: PostRecord, outcome: Outcome) -> str:
    """Write a record with its papers as one line of JSON."""
    values = {
        "post": outcome.post,
        "text": outcome.text,
        "columns": record.columns,
        "left_out": outcome.left_out,
        "verdict": outcome.verdict,
        "papers": outcome.papers,
    }
    return json.dumps(values)


def require_kind(out: Path, rows: int) -> None:
    """Raise `InputError` if a workbook cannot be written, or has too few rows."""
    if out.suffix.lower() != ".xlsx":
        return
    if find_spec("openpyxl") is None:
        raise InputError(out, reason="needs the package openpyxl: pip install openpyxl")
    if rows >= MOST_ROWS:
        reason = f"a sheet has at most {MOST_ROWS} rows, and these may be {rows}: choose .csv"
        raise InputError(out, reason=reason)


def write_table(
    out: Path,
    columns: Sequence[str],
    answered: Answered,
    separator: str,
    result: Sequence[str] = RESULT,
) -> None:
    """Write a table or JSON lines, by the ending of the file's name."""
    kind = out.suffix.lower()
    with atomic_path(out) as temporary:
        if kind == ".xlsx":
            _write_workbook(temporary, columns, answered, result)
        elif kind == ".csv":
            # Without a byte order mark Excel assumes a Windows encoding.
            lines = csv_lines(columns, answered, separator, result)
            _write_lines(temporary, lines, "utf-8-sig", LINE_END)
        else:
            lines = (json_line(*pair) for pair in answered)
            _write_lines(temporary, lines, "utf-8", "\n")


def _write_lines(path: Path, lines: Iterable[str], encoding: str, end: str) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        for line in lines:
            file.write(line + end)


def _write_workbook(
    path: Path, columns: Sequence[str], answered: Answered, result: Sequence[str]
) -> None:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("find")
    sheet.freeze_panes = "A2"

    def cell(value: object) -> object:
        if not isinstance(value, str):
            return "" if value is None else value
        text = _CONTROL.sub(" ", value)
        if len(text) > MOST_LETTERS:
            text = text[: MOST_LETTERS - 3] + " .."
        made = WriteOnlyCell(sheet, text)
        made.data_type = "s"  # never a formula or an error
        return made

    sheet.append([cell(name) for name in header(columns, result)])
    for own, values in _rows(columns, answered, result):
        cells = [cell(_number(text)) for text in own]
        sheet.append(cells + [cell(value) for value in values])
    book.save(path)


def _number(text: str) -> object:
    """Return a number if a cell would show it as written; else the text."""
    if not _PLAIN_NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)
