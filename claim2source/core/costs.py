"""Describe the cost of systems and stages, and write it as cells of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from claim2source.core.run import Cost
from claim2source.core.tables import Cell

COST_COLUMNS = ("seconds", "items/s", "peak MB", "tokens", "parameters")
ENERGY = "kJ"


@dataclass(frozen=True)
class SystemCost:
    """Cost of a system or a stage.

    `stored`: whether the run comes from the store; the cost is that of its first computation.
    `reused`: texts whose vectors were in the store already; the cost excludes their encoding.
    `joules`: energy that the entire machine used meanwhile; None if it does not report that.
    """

    seconds: float = 0.0
    claims: int = 0
    peak_memory_bytes: int = 0
    tokens: int = 0
    reused: int = 0
    stored: bool = False
    parameters: int | None = None
    joules: float | None = None

    @classmethod
    def of(cls, cost: Cost, from_store: bool = False, parameters: int | None = None) -> SystemCost:
        return cls(
            round(cost.seconds, 3),
            cost.items,
            cost.peak_memory,
            cost.tokens,
            cost.reused,
            from_store,
            parameters,
            None if cost.joules is None else round(cost.joules, 1),
        )


def known_cost(
    cost: Cost, from_store: bool = False, parameters: int | None = None
) -> SystemCost | None:
    """Return a cost; None if nothing was measured, because another program made the ranking."""
    return None if cost == Cost() else SystemCost.of(cost, from_store, parameters)


def cost_columns(costs: Iterable[SystemCost | None]) -> tuple[str, ...]:
    """Return the columns of costs: `COST_COLUMNS`, and energy if one of the costs has it."""
    if any(cost is not None and cost.joules is not None for cost in costs):
        return (*COST_COLUMNS, ENERGY)
    return COST_COLUMNS


def cost_cells(
    cost: SystemCost | None,
    columns: Sequence[str] = COST_COLUMNS,
) -> list[Cell]:
    """Return the cells for `cost_columns`; None if a cost is not known.

    ">3.2" seconds: some vectors were in the store already, so the cost excludes their encoding.
    """
    if cost is None or cost == SystemCost():
        return [None] * len(columns)
    prefix, less = (">", "<") if cost.reused else ("", "")
    cells: list[Cell] = [
        f"{prefix}{cost.seconds:.1f}",
        f"{less}{cost.claims / cost.seconds:.1f}" if cost.claims and cost.seconds else None,
        f"{cost.peak_memory_bytes / 2**20:.0f}" if cost.peak_memory_bytes else None,
        str(cost.tokens) if cost.tokens else None,
        str(cost.parameters) if cost.parameters else None,
    ]
    if ENERGY in columns:
        cells.append(None if cost.joules is None else f"{prefix}{cost.joules / 1000:.2f}")
    return cells
