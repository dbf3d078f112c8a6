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

    `digits` are the decimals of floats; `numeric` tells which columns hold numbers, where their
    cells are already texts.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 4
    numeric: Sequence[bool] | None = None


Part = str | TextTable  # of a text: a paragraph or a table
Style = Literal["plain", "markdown", "markup", "html"]
_TAG = re.compile(r"<(?=[A-Za-z/!?])[^>]*>?|&(?=#?\w+;)")
_MARKUP = re.compile(
    r"[`*]|\\(?=[!-/:-@\[-`{-~]|$)|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|~(?=~)|(?<=~)~",
    re.MULTILINE,
)
# At the beginning of a line; a cell of a table is none.
_BLOCK = re.compile("^[#>]", re.MULTILINE)


def render(parts: Iterable[Part], style: Style = "plain") -> str:
    """Render paragraphs and tables; in HTML and Markdown, everything is escaped.

    `markup` is Markdown whose paragraphs and cells are written in Markdown themselves.

    Numbers stand to the right. Control characters are written as Python does: what is rendered
    ends in terminals.
    """
    if style == "html":
        return "\n".join(
            f"<p>{escape(printable(part))}</p>" if isinstance(part, str) else _html(part)
            for part in parts
        )
    if style == "plain":
        texts = (printable(part) if isinstance(part, str) else _plain_text(part) for part in parts)
        return "\n\n".join(texts)
    is_text = style == "markdown"
    drawn = []
    for part in parts:
        if isinstance(part, str):
            text = printable(part)
            drawn.append(markdown_text(text) if is_text else text)
        else:
            drawn.append(_markdown(part, _cell_text if is_text else str))
    return "\n\n".join(drawn)


def markdown_text(text: str) -> str:
    """Escape what Markdown would read as markup in a text; lists remain."""
    return _BLOCK.sub(r"\\\g<0>", _cell_text(text))


def _cell_text(text: str) -> str:
    text = _TAG.sub(lambda match: escape(match[0]), text)
    return _MARKUP.sub(r"\\\g<0>", text)


def cell_text(cell: Cell, digits: int = 4) -> str:
    """Render a cell: floats with `digits` decimals, None as "-"."""
    if cell is None:
        return "-"
    return f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)


def _plain_text(table: TextTable) -> str:
    lines, right = _texts(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _markdown(table: TextTable, write: Callable[[str], str]) -> str:
    lines, right = _texts(table)
    lines = [[write(cell).replace("|", "\\|") for cell in line] for line in lines]
    lines.insert(1, ["---:" if is_right else "---" for is_right in right])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _html(table: TextTable) -> str:
    lines, right = _texts(table)
    align = [' style="text-align: right"' if is_right else "" for is_right in right]
    rows = [
        "".join(f"<{tag}{a}>{escape(cell)}</{tag}>" for cell, a in zip(line, align, strict=True))
        for tag, line in zip(["th", *["td"] * len(table.rows)], lines, strict=True)
    ]
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"


def _texts(table: TextTable) -> tuple[list[list[str]], Sequence[bool]]:
    columns, rows, digits, right = table
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row does not have {len(columns)} cells")
    if right is None:
        right = [
            bool(rows) and not any(isinstance(row[i], str) for row in rows)
            for i in range(len(columns))
        ]
    lines = [columns, *([cell_text(cell, digits) for cell in row] for row in rows)]
    return [[printable_line(cell) for cell in line] for line in lines], right
