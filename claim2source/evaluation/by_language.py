"""Names of 0.1.0 for intervals and tests of saved systems, until their callers use `families`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from claim2source.core.records import Dataset
from claim2source.core.report import FamilyResult
from claim2source.core.run import Run
from claim2source.evaluation.families import (
    MAIN_METRIC,
    Family,
    compare_families,
    score_intervals,
)
from claim2source.evaluation.metrics import evaluate, judged_claims
from claim2source.evaluation.saved import SavedSystem, whole_run

SHOWN = MAIN_METRIC
tested_families = compare_families


def intervals_of(run: Run, dataset: Dataset, repeats: int, seed: int) -> dict[str, Any]:
    """Return `score_intervals` of a run as JSON values."""
    found = score_intervals(
        evaluate(run, dataset.qrels, [SHOWN]), dataset, repeats=repeats, seed=seed
    )
    values = {lang: list(bounds) for lang, bounds in found.values[SHOWN].items()}
    return {SHOWN: values, "repeats": repeats, "seed": seed, "papers": found.papers}


def saved_families(
    systems: Iterable[SavedSystem],
    families: Sequence[Family],
    dataset: Dataset,
    *,
    repeats: int = 10_000,
    seed: int = 0,
) -> list[FamilyResult]:
    """Test families of saved systems by their names, on MRR@5."""
    named = {name for family in families for pair in family.pairs for name in pair}
    claims = judged_claims(dataset.qrels)
    scores = {
        system.name: evaluate(whole_run(system), dataset.qrels, [SHOWN], claims)[SHOWN]
        for system in systems
        if system.name in named
    }
    return compare_families(scores, families, dataset, claims, repeats=repeats, seed=seed)
