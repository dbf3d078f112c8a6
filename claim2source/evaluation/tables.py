"""Tables as text: aligned for a terminal, Markdown for a report."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | float | None


def text_of(cell: Cell, digits: int = 4) -> str:
    """A cell as text: floats with `digits` decimals, None as "-"."""
    if cell is None:
        return "-"
    return f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)


def plain_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    digits: int = 4,
    numeric: Sequence[bool] | None = None,
) -> str:
    """Aligned columns, numbers to the right, no trailing blanks; rows as long as `columns`.

    `numeric` says which columns hold numbers where their cells are texts already.
    """
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
    """A Markdown table, numbers to the right; a bar or line break in a cell is escaped."""
    texts, numeric = _texts(columns, rows, digits, numeric)
    lines = [[" ".join(cell.replace("|", "\\|").split("\n")) for cell in line] for line in texts]
    lines.insert(1, ["---:" if right else "---" for right in numeric])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _texts(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    digits: int,
    known: Sequence[bool] | None,
) -> tuple[list[list[str]], Sequence[bool]]:
    """Header and rows as text, and which columns hold numbers only."""
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row does not have {len(columns)} cells")
    numeric = [
        bool(rows) and all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))
    ]
    texts = [list(columns), *([text_of(cell, digits) for cell in row] for row in rows)]
    return texts, numeric if known is None else known
