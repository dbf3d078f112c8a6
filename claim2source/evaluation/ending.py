"""What evaluations end with: their paired tests, and the papers' numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from claim2source.core.config import as_plain
from claim2source.core.records import Dataset, Qrels
from claim2source.core.report import FamilyResult, PublishedComparison, SystemCost
from claim2source.core.tables import TextTable, markdown_table, render
from claim2source.evaluation.by_language import SHOWN, saved_families
from claim2source.evaluation.families import Family, family_parts, family_table
from claim2source.evaluation.published.scores import (
    Scorer,
    compare_published,
    published_parts,
)
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.saved import SavedSystem
from claim2source.io.wandb import LoggedTable


@dataclass(frozen=True)
class Ending:
    """Tests and published numbers of one comparison, and what the systems cost."""

    tests: Sequence[FamilyResult]
    published: Sequence[PublishedComparison]
    costs: Mapping[str, SystemCost | None]

    def text(self, table: Callable[..., str]) -> str:
        """Both, drawn by `table`; empty where there is neither."""
        parts = [part for test in self.tests for part in family_parts(test, SHOWN, self.costs)]
        style: Literal["markdown", "plain"] = "markdown" if table is markdown_table else "plain"
        return render([*parts, *published_parts(self.published)], style)

    def tables(self) -> dict[str, LoggedTable]:
        """The same tables by name, as cells."""
        found = {
            f"Tests: {result.family}": LoggedTable(*family_table(result, self.costs)[:2])
            for result in self.tests
        }
        for part in published_parts(self.published):
            if isinstance(part, TextTable):
                found["Published"] = LoggedTable(*part[:2])
        return found

    def plain(self) -> dict[str, Any]:
        """The same as JSON-ready values for the report."""
        return {"tests": as_plain(list(self.tests)), "published": as_plain(list(self.published))}


def ending_of(
    saved: Sequence[SavedSystem],
    families: Sequence[Family],
    dataset: Dataset,
    repeats: int,
    seed: int,
) -> Ending:
    """Test the families of saved systems, and find the systems in published tables."""
    tests = saved_families(saved, families, dataset, repeats=repeats, seed=seed)
    found = compare_published(load_published(), saved, Scorer(Qrels(), repeats, seed))
    return Ending(tests, found, {system.name: system.cost for system in saved})
