"""Render tables as aligned text, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal, NamedTuple

from claim2source.core.terminal import printable, printable_line

Cell = str | int | float | None


class TextTable(NamedTuple):
    """Hold a table before it is rendered; each row is as long as `columns`.

    `digits` are the decimals of floats; `numeric` tells which columns hold numbers, where their
    cells are already texts.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 4
    numeric: Sequence[bool] | None = None


Part = str | TextTable  # of a text: a paragraph or a table


def render(parts: Iterable[Part], style: Literal["plain", "markdown", "html"] = "plain") -> str:
    """Render paragraphs and tables; in HTML, everything is escaped.

    Control characters are written as Python does: what is rendered ends in terminals.
    """
    if style == "html":
        return "\n".join(
            f"<p>{escape(printable(part))}</p>" if isinstance(part, str) else _html_table(part)
            for part in parts
        )
    draw = plain_table if style == "plain" else markdown_table
    return "\n\n".join(printable(p) if isinstance(p, str) else draw(*p) for p in parts)


def text_of(cell: Cell, digits: int = 4) -> str:
    """Render a cell: floats with `digits` decimals, None as "-"."""
    if cell is None:
        return "-"
    return f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)


def plain_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    digits: int = 4,
    numeric: Sequence[bool] | None = None,
) -> str:
    """Align columns for a terminal, numbers to the right; arguments as in `TextTable`."""
    texts, numeric = _texts(columns, rows, digits, numeric)
    widths = [max(len(line[i]) for line in texts) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in texts
    )


def markdown_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    digits: int = 4,
    numeric: Sequence[bool] | None = None,
) -> str:
    """Render Markdown, numbers to the right; a bar in a cell is escaped."""
    texts, numeric = _texts(columns, rows, digits, numeric)
    lines = [[cell.replace("|", "\\|") for cell in line] for line in texts]
    lines.insert(1, ["---:" if right else "---" for right in numeric])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _html_table(table: TextTable) -> str:
    texts, numeric = _texts(*table)
    align = [' style="text-align: right"' if right else "" for right in numeric]
    lines = [
        "".join(f"<{tag}{a}>{escape(cell)}</{tag}>" for cell, a in zip(line, align, strict=True))
        for tag, line in zip(["th", *["td"] * len(table.rows)], texts, strict=True)
    ]
    return "<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"


def _texts(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    digits: int,
    known: Sequence[bool] | None,
) -> tuple[list[list[str]], Sequence[bool]]:
    """Return header and rows as texts of one line, and which columns hold numbers only."""
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row does not have {len(columns)} cells")
    numeric = [
        bool(rows) and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))
    ]
    lines = [columns, *([text_of(cell, digits) for cell in row] for row in rows)]
    texts = [[printable_line(cell) for cell in line] for line in lines]
    return texts, numeric if known is None else known
