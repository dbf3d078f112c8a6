"""Render tables as aligned text, Markdown or HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Literal, NamedTuple

from claim2source.core.terminal import printable, printable_line

Cell = str | int | float | None


class TextTable(NamedTuple):
    """Table before it is rendered; each row is as long as `columns`.

    `digits` is the number of decimals of floats; `numeric` marks the columns with numbers if their
    cells are already texts.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 4
    numeric: Sequence[bool] | None = None


Part = str | TextTable  # a paragraph or a table
Style = Literal["plain", "markdown", "markup", "html"]
_TAG = re.compile(r"<(?=[A-Za-z/!?])[^>]*>?|&(?=#?\w+;)")
_MARKUP = re.compile(
    r"[`*]|\\(?=[!-/:-@\[-`{-~]|$)|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|~(?=~)|(?<=~)~",
    re.MULTILINE,
)
# Markup only at the beginning of a line, which a table cell is not.
_BLOCK = re.compile("^[#>]", re.MULTILINE)


def render(parts: Iterable[Part], style: Style = "plain") -> str:
    """Render paragraphs and tables; in HTML and Markdown, everything is escaped.

    In the style `markup`, paragraphs and cells are Markdown already, and are not escaped.

    Numbers are aligned right. Control characters are escaped as in Python, since the result may be
    shown in a terminal.
    """
    drawn: list[str] = []
    for part in parts:
        if isinstance(part, str):
            drawn.append(_paragraph(printable(part), style))
        else:
            drawn.append(_table(part, style))
    return ("\n" if style == "html" else "\n\n").join(drawn)


def _paragraph(text: str, style: Style) -> str:
    if style == "html":
        return f"<p>{escape(text)}</p>"
    return markdown_text(text) if style == "markdown" else text


def _table(table: TextTable, style: Style) -> str:
    if style == "html":
        return _html(table)
    if style == "plain":
        return _plain_text(table)
    return _markdown(table, _cell_text if style == "markdown" else str)


def markdown_text(text: str) -> str:
    """Escape Markdown's markup in a text, except lists."""
    return _BLOCK.sub(r"\\\g<0>", _cell_text(text))


def _cell_text(text: str) -> str:
    text = _TAG.sub(lambda match: escape(match[0]), text)
    return _MARKUP.sub(r"\\\g<0>", text)


def cell_text(cell: Cell, digits: int = 4) -> str:
    """Render a cell: floats with `digits` decimals, None as "-"."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.{digits}f}"
    return str(cell)


def _plain_text(table: TextTable) -> str:
    lines, right = _texts(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn: list[str] = []
    for line in lines:
        cells: list[str] = []
        for cell, width, is_right in zip(line, widths, right, strict=True):
            cells.append(cell.rjust(width) if is_right else cell.ljust(width))
        drawn.append("  ".join(cells).rstrip())
    return "\n".join(drawn)


def _markdown(table: TextTable, write: Callable[[str], str]) -> str:
    lines, right = _texts(table)
    rule = ["---:" if is_right else "---" for is_right in right]
    drawn: list[str] = []
    for line in lines:
        cells = [write(cell).replace("|", "\\|") for cell in line]
        drawn.append(f"| {' | '.join(cells)} |")
    drawn.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(drawn)


def _html(table: TextTable) -> str:
    lines, right = _texts(table)
    drawn = ["<table>"]
    tag = "th"
    for line in lines:
        row = ""
        for cell, is_right in zip(line, right, strict=True):
            align = ' style="text-align: right"' if is_right else ""
            row += f"<{tag}{align}>{escape(cell)}</{tag}>"
        drawn.append(f"<tr>{row}</tr>")
        tag = "td"
    return "\n".join([*drawn, "</table>"])


def _texts(table: TextTable) -> tuple[list[list[str]], Sequence[bool]]:
    columns, rows, digits, right = table
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row does not have {len(columns)} cells")
    if right is None:
        right = [_is_numeric(rows, position) for position in range(len(columns))]
    lines = [[printable_line(column) for column in columns]]
    for row in rows:
        lines.append([printable_line(cell_text(cell, digits)) for cell in row])
    return lines, right


def _is_numeric(rows: Sequence[Sequence[Cell]], position: int) -> bool:
    """Whether a column has no texts; a column without rows is not numeric."""
    return bool(rows) and not any(isinstance(row[position], str) for row in rows)
