"""The families of paired tests that `eval/baselines.py` declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from claim2source.core.records import Dataset
from claim2source.evaluation.baseline_systems import Systems, label_of
from claim2source.evaluation.ending import Ending, ending_of
from claim2source.evaluation.families import Family
from claim2source.evaluation.saved import systems_in

Reports = Mapping[str, Mapping[str, Any]]


def ending(
    reports: Reports, out: Path, systems: Systems, dataset: Dataset, repeats: int, seed: int
) -> Ending:
    """Test the cells of `reports`, whose runs lie in `out`, and find them in published tables."""
    saved = systems_in({"checkpoints": reports}, out)
    return ending_of(saved, declared(reports, systems), dataset, repeats, seed)


def declared(reports: Reports, systems: Systems) -> list[Family]:
    """The families, fixed by what ran.

    Over the same form of claims: dense systems against BM25, hybrids against dense parts, other
    BM25s against the papers'. A system's other forms are tested against its original claims.
    """
    ran = _ran(reports)
    dense, hybrids, sparse, forms = [], [], [], []
    for (system, form), name in ran.items():
        settings = systems[system]
        if form != "original" and (original := ran.get((system, "original"))):
            forms.append((name, original))
        if settings.hybrid is not None:
            if part := ran.get((settings.hybrid.dense, form)):
                hybrids.append((name, part))
        elif settings.bm25 is not None:
            if (papers := _papers(ran, systems, form)) not in (None, name):
                sparse.append((name, str(papers)))
        else:
            rich = reports[name]["rendering"]["sources"].startswith("metadata")
            if base := _bm25(ran, systems, form, rich):
                dense.append((name, base))
    named = (
        ("Dense systems against BM25", dense),
        ("Hybrids against their dense part", hybrids),
        ("Other BM25s against the papers'", sparse),
        ("Other claim forms against original claims", forms),
    )
    return [Family(name, tuple(pairs)) for name, pairs in named if pairs]


def untested(reports: Reports, systems: Systems) -> list[str]:
    """One line on the hybrids that no family holds, since their dense part was not asked for."""
    ran = _ran(reports)
    found: dict[str, str] = {}
    for system, form in ran:
        hybrid = systems[system].hybrid
        if hybrid is not None and (hybrid.dense, form) not in ran:
            found[system] = f"{system} ({hybrid.dense})"
    listed = ", ".join(found.values())
    return [f"Not tested, their dense part not being among --systems: {listed}."] if found else []


def _ran(reports: Reports) -> dict[tuple[str, str], str]:
    """(system, form) -> name of every cell with scores."""
    return {
        (report["system"], name.rpartition(".")[2]): name
        for name, report in reports.items()
        if "macro" in report
    }


def _papers(ran: Mapping[tuple[str, str], str], systems: Systems, form: str) -> str | None:
    """The cell of the BM25 that the papers' tables know as `bm25`."""
    return next(
        (
            name
            for (system, its_form), name in ran.items()
            if its_form == form and label_of(system, systems) == "bm25"
        ),
        None,
    )


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
