"""Tables as text: aligned for a terminal, Markdown for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


COST_COLUMNS = ("seconds", "items/s", "peak MB", "tokens", "parameters")


def cost_cells(cost: Mapping[str, Any] | None) -> list[Cell]:
    """Cells for `COST_COLUMNS` from a report's cost; "-" for what it does not say.

    ">3.2": some vectors were in the store already, and what they cost is not in the seconds.
    """
    if not cost:
        return [None] * len(COST_COLUMNS)
    seconds = cost.get("seconds")
    items = cost.get("items", cost.get("claims"))
    peak = cost.get("peak_memory", cost.get("peak_memory_bytes"))
    more, less = (">", "<") if cost.get("reused") else ("", "")
    return [
        None if seconds is None else f"{more}{seconds:.1f}",
        f"{less}{items / seconds:.1f}" if items and seconds else None,
        f"{peak / 2**20:.0f}" if peak else None,
        str(cost["tokens"]) if cost.get("tokens") else None,
        str(cost["parameters"]) if cost.get("parameters") else None,
    ]
