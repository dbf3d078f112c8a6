"""Tabulate the systems of reports, the best first: scores, tests, ranks and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claim2source.core.report import COST_COLUMNS, MACRO, MAIN_METRIC, FamilyResult, cost_cells
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.compare import ScoredRuns
from claim2source.evaluation.ranks import summarise
from claim2source.evaluation.reports import LoadedSystem
from claim2source.evaluation.slices import SliceScore


def leaderboard(
    systems: Mapping[str, LoadedSystem],
    scored: ScoredRuns,
    slices: Sequence[SliceScore],
    tests: Sequence[FamilyResult],
) -> TextTable:
    """Tabulate a row for each system, by its macro average.

    `slices` are the scores over all claims and by language, `tests` those against the baseline, of
    which the first is shown. A checkpoint's score on val stands beside it where its report says it.
    """
    by_part = {(row.by, row.part, row.system): row for row in slices}
    languages = scored.dataset.languages
    on_val = {name: _on_val(system, scored.metric) for name, system in systems.items()}
    val = ["val"] if any(score is not None for score in on_val.values()) else []
    pairs = {pair.system: pair for pair in tests[0].comparisons} if tests else {}
    against = [f"- {scored.baseline}", "p (Holm)", "verdict"] if pairs else []
    columns = ["#", "system", "model", "claims", *languages, MACRO, "95 %", *val, *against]
    columns += ["micro", "mean rank", "median", "found", *COST_COLUMNS]
    order = sorted(systems, key=lambda name: -by_part["all", MACRO, name].value)
    rows: list[list[Cell]] = []
    for place, name in enumerate(order, start=1):
        system, ranks, pair = systems[name], summarise(scored.ranks[name]), pairs.get(name)
        overall = by_part["all", MACRO, name]
        tested: list[Cell] = [None, None, "baseline"]
        if pair is not None:
            tested = [pair.difference, pair.p_holm, pair.verdict]
        rows.append(
            [
                *(place, name, system.report.model, system.report.claims),
                *(by_part["language", language, name].value for language in languages),
                *(overall.value, f"{overall.low:.4f} to {overall.high:.4f}"),
                *([on_val[name]] if val else []),
                *(tested if pairs else []),
                by_part["all", "micro", name].value,
                None if ranks.mean is None else f"{ranks.mean:.1f}",
                None if ranks.median is None else f"{ranks.median:g}",
                f"{ranks.found}/{ranks.claims}",
                *cost_cells(system.report.cost),
            ]
        )
    return TextTable(columns, rows)


def _on_val(system: LoadedSystem, metric: str) -> float | None:
    """Return the score on all of val that a report states, where it is of this metric."""
    table = system.report.val.get("val", {}) if metric == MAIN_METRIC else {}
    return table.get(MACRO, {}).get(metric)
