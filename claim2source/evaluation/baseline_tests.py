"""What `eval/baselines.py` ends with: its paired tests, and the papers' numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claim2source.config import as_plain
from claim2source.evaluation.baseline_systems import Systems
from claim2source.evaluation.by_language import SHOWN, saved_families
from claim2source.evaluation.comparison import Family, FamilyResult, Pairs, family_text
from claim2source.evaluation.paper_cells import Beside, Scorer, beside, beside_text
from claim2source.evaluation.published import load_published
from claim2source.evaluation.saved import systems_in
from claim2source.records import Dataset, Qrels

Reports = Mapping[str, Mapping[str, Any]]


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

    def plain(self) -> dict[str, Any]:
        """The same as JSON-ready values for the report."""
        return {"tests": as_plain(list(self.tests)), "published": as_plain(list(self.published))}


def ending(
    reports: Reports, out: Path, systems: Systems, dataset: Dataset, repeats: int, seed: int
) -> Ending:
    """Test the cells of `reports`, whose runs lie in `out`, and find them in published tables."""
    saved = systems_in({"checkpoints": reports}, out)
    families = declared(reports, systems)
    tests = saved_families(saved, families, dataset, repeats=repeats, seed=seed)
    found = beside(load_published(), saved, Scorer(Qrels(), repeats, seed))
    return Ending(tests, found, {name: report["cost"] for name, report in reports.items()})


def declared(reports: Reports, systems: Systems) -> list[Family | Pairs]:
    """The families, fixed by what ran: dense systems against BM25, hybrids against dense parts.

    Both are over the same form of claims. A hybrid whose dense part was not asked for is in
    neither.
    """
    ran = {(report["system"], name.rpartition(".")[2]): name for name, report in reports.items()
           if "macro" in report}  # fmt: skip
    dense, hybrids = [], []
    for (system, form), name in ran.items():
        settings = systems[system]
        if settings.hybrid is not None:
            if part := ran.get((settings.hybrid.dense, form)):
                hybrids.append((name, part))
        elif settings.bm25 is None:
            rich = reports[name]["rendering"]["sources"].startswith("metadata")
            if base := _bm25(ran, systems, form, rich):
                dense.append((name, base))
    named = (("Dense systems against BM25", dense), ("Hybrids against their dense part", hybrids))
    return [Pairs(name, tuple(pairs)) for name, pairs in named if pairs]


def _bm25(
    ran: Mapping[tuple[str, str], str], systems: Systems, form: str, rich: bool
) -> str | None:
    """The first BM25 over like sources, plain before tuned; where there is none, any."""
    found: list[tuple[tuple[bool, bool], str]] = []
    for (system, its_form), name in ran.items():
        settings = systems[system]
        if settings.bm25 is not None and its_form == form:
            found.append(((settings.bm25.metadata is not rich, settings.tune), name))
    return min(found, key=lambda one: one[0])[1] if found else None
