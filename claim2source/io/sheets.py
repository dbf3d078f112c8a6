"""Write tables as CSV for people, who open them in a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from claim2source.core.files import atomic_path
from claim2source.core.terminal import printable_line

# A cell that begins with one of these is a formula for a spreadsheet.
_FORMULA = tuple("=+-@|%\uff1d\uff0b\uff0d\uff20")


def write_sheet(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file whose cells are text: no formulas, control characters or line breaks."""
    with atomic_path(path) as temporary:
        # With a byte order mark, without which spreadsheets take UTF-8 for something else.
        with open(temporary, "w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows([_cell(cell) for cell in row] for row in rows)


def _cell(text: str) -> str:
    """Put a quotation mark before what a spreadsheet would compute."""
    plain = printable_line(text)
    return f"'{plain}" if plain.lstrip().startswith(_FORMULA) else plain
