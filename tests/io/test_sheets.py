"""Sheets for people: what a post says is text, never a formula."""

import csv
from pathlib import Path

import pytest

from claim2source.io.sheets import write_sheet


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", " =", "\uff1d", "\t="])
def test_no_cell_begins_as_a_formula(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    post = f'{begin}HYPERLINK("http://x";"y")\r\n,\x1b[31m\u202eevil'
    write_sheet(path, ["id", "post"], [["1", post], ["2", 'says "no", twice']])
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["id", "post"] and rows[2] == ["2", 'says "no", twice'] and len(rows) == 3
    cell = rows[1][1]
    assert cell.startswith(("'", "\\t")) and "HYPERLINK" in cell
    assert not any(sign in cell for sign in "\n\r\x1b\u202e\t")
