"""The families of paired tests that `eval/baselines.py` declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claim2source.evaluation.baseline_systems import Systems
from claim2source.evaluation.comparison import Family, Pairs
from claim2source.evaluation.ending import Ending, ending_of
from claim2source.evaluation.saved import systems_in
from claim2source.records import Dataset

Reports = Mapping[str, Mapping[str, Any]]


def ending(
    reports: Reports, out: Path, systems: Systems, dataset: Dataset, repeats: int, seed: int
) -> Ending:
    """Test the cells of `reports`, whose runs lie in `out`, and find them in published tables."""
    saved = systems_in({"checkpoints": reports}, out)
    return ending_of(saved, declared(reports, systems), dataset, repeats, seed)


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
