"""What evaluations end with: their paired tests, and the papers' numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claim2source.core.config import as_plain
from claim2source.core.records import Dataset, Qrels
from claim2source.evaluation.by_language import SHOWN, saved_families
from claim2source.evaluation.families import (
    Family,
    FamilyResult,
    Pairs,
    family_table,
    family_text,
)
from claim2source.evaluation.published.cells import Beside, Scorer, beside, beside_text
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.saved import SavedSystem
from claim2source.io.wandb import LoggedTable, TableTaker


@dataclass(frozen=True)
class Ending:
    """Tests and published numbers of one comparison, and what the systems cost."""

    tests: Sequence[FamilyResult]
    published: Sequence[Beside]
    costs: Mapping[str, Mapping[str, Any]]

    def text(self, table: Callable[..., str]) -> str:
        """Both, drawn by `table`; empty where there is neither."""
        parts = [family_text(result, SHOWN, table, self.costs) for result in self.tests]
        return "\n\n".join([*parts, *beside_text(self.published, table)])

    def tables(self) -> dict[str, LoggedTable]:
        """The same tables by name, as cells."""
        found = {
            f"Tests: {result.family}": LoggedTable(*family_table(result, self.costs))
            for result in self.tests
        }
        if self.published:
            found["Published"] = TableTaker.last_of(
                lambda taker: beside_text(self.published, taker)
            )
        return found

    def plain(self) -> dict[str, Any]:
        """The same as JSON-ready values for the report."""
        return {"tests": as_plain(list(self.tests)), "published": as_plain(list(self.published))}


def ending_of(
    saved: Sequence[SavedSystem],
    families: Sequence[Family | Pairs],
    dataset: Dataset,
    repeats: int,
    seed: int,
) -> Ending:
    """Test the families of saved systems, and find the systems in published tables."""
    tests = saved_families(saved, families, dataset, repeats=repeats, seed=seed)
    found = beside(load_published(), saved, Scorer(Qrels(), repeats, seed))
    return Ending(tests, found, {system.name: system.cost for system in saved})
