"""Intervals and tables of `eval/baselines.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from claim2source.evaluation.metrics import evaluate, judged_claims
from claim2source.evaluation.significance import bootstrap_intervals, gold_groups
from claim2source.evaluation.slices import language_strata
from claim2source.evaluation.tables import COST_COLUMNS, cost_cells
from claim2source.records import Dataset, sorted_languages
from claim2source.run import Run
from claim2source.tracking import LoggedTable, TableTaker

SHOWN, DEEP = "mrr@5", "recall@100"


@dataclass(frozen=True)
class NotRun:
    """A system and claim form that did not run, why, and what to do about it."""

    system: str
    claims: str
    reason: str
    advice: str | None


def intervals_of(run: Run, dataset: Dataset, repeats: int, seed: int) -> dict[str, Any]:
    """95 % bootstrap intervals of MRR@5 by language and of their macro average.

    Gold papers are drawn, not claims; systems of one data set meet the same draws.
    """
    claims = judged_claims(dataset.qrels)
    scores = evaluate(run, dataset.qrels, [SHOWN], claims)[SHOWN]
    groups, strata = gold_groups(dataset.qrels, claims), language_strata(dataset.claims, claims)
    language_of = {claim.id: claim.lang for claim in dataset.claims}
    languages = np.array([language_of[claim] for claim in claims])
    found: dict[str, Any] = {}
    for language in sorted_languages(languages.tolist()):
        mine = languages == language
        found[language] = _interval(scores[mine], groups[mine], None, repeats, seed)
    found["macro"] = _interval(scores, groups, strata, repeats, seed)
    return {SHOWN: found, "repeats": repeats, "seed": seed, "papers": int(groups.max()) + 1}


def _interval(
    scores: np.ndarray, groups: np.ndarray, strata: np.ndarray | None, repeats: int, seed: int
) -> list[float]:
    low, high = bootstrap_intervals(scores[None], groups, strata, repeats=repeats, seed=seed)[0]
    return [float(low), float(high)]


def baselines_text(
    reports: Mapping[str, Mapping[str, Any]],
    not_run: Sequence[NotRun],
    notes: Sequence[str],
    table: Callable[..., str],
) -> str:
    """Scores, intervals and cost of the cells that ran, then those that did not, with why."""
    scored = {name: report for name, report in reports.items() if "macro" in report}
    parts = []
    if scored:
        parts += [_scores(scored, table), *_intervals(scored, table)]
    elif reports:
        parts.append("No golds: nothing to score; runs are written.")
    if tuned := [_chosen(name, report) for name, report in scored.items() if report["tuned"]]:
        parts.append("Chosen on claims that nothing is reported on:\n" + "\n".join(tuned))
    parts += notes
    if not_run:
        parts.append(f"Not run ({len(not_run)}):")
        parts.append(_left_out(not_run, table))
    return "\n\n".join(parts)


def baselines_tables(
    reports: Mapping[str, Mapping[str, Any]], not_run: Sequence[NotRun]
) -> dict[str, LoggedTable]:
    """The same tables by name, as cells."""
    scored = {name: report for name, report in reports.items() if "macro" in report}
    tables = {}
    if scored:
        tables["scores"] = TableTaker.last_of(lambda taker: _scores(scored, taker))
        tables["intervals"] = TableTaker.last_of(lambda taker: _intervals(scored, taker))
    if not_run:
        tables["not run"] = TableTaker.last_of(lambda taker: _left_out(not_run, taker))
    return tables


def _left_out(not_run: Sequence[NotRun], table: Callable[..., str]) -> str:
    rows = [[row.system, row.claims, row.reason, row.advice] for row in not_run]
    return table(["system", "claims", "why", "what to do"], rows)


def _scores(scored: Mapping[str, Mapping[str, Any]], table: Callable[..., str]) -> str:
    languages = _languages(scored)
    columns = [
        "system", "claims", *(f"{SHOWN} {language}" for language in languages), f"{SHOWN} macro",
        "95 %", f"{DEEP} macro", *COST_COLUMNS,
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for report in scored.values():
        by_language, macro = report["languages"], report["macro"]
        rows.append([
            report["system"], report["rendering"]["claims"],
            *(by_language[language][SHOWN] for language in languages), macro[SHOWN],
            _bounds(report["intervals"][SHOWN]["macro"]), macro[DEEP], *cost_cells(report["cost"]),
        ])  # fmt: skip
    numeric = [False, False, *[True] * (len(columns) - 2)]
    return table(columns, rows, numeric=numeric)


def _intervals(scored: Mapping[str, Mapping[str, Any]], table: Callable[..., str]) -> list[str]:
    """How intervals were made, and those by language where the first table has not said them."""
    languages = _languages(scored)
    first = next(iter(scored.values()))["intervals"]
    rows = [
        [report["system"], report["rendering"]["claims"],
         *(_bounds(report["intervals"][SHOWN][language]) for language in languages)]
        for report in scored.values()
    ]  # fmt: skip
    said = (
        f"95 % intervals of {SHOWN}: {first['repeats']} bootstrap samples of gold papers "
        f"({first['papers']} of them)."
    )
    drawn = table(["system", "claims", *languages], rows)
    return [said, drawn] if len(languages) > 1 else [said]


def _languages(scored: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    return sorted_languages(lang for report in scored.values() for lang in report["languages"])


def _bounds(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.4f} to {bounds[1]:.4f}"


def _chosen(name: str, report: Mapping[str, Any]) -> str:
    tuned, words = report["tuned"], [f"- {name}:"]
    if bm25 := tuned.get("bm25"):
        words.append(
            f"BM25 k1 {bm25['k1']:g}, b {bm25['b']:g}, title weight {bm25['title_weight']}"
            f"{_on(bm25)};"
        )
    if fusion := tuned.get("fusion"):
        kind = f"k {fusion['rrf_k']}" if fusion["method"] == "rrf" else fusion["scale"]
        words.append(
            f"{fusion['method']} fusion, {kind}, depth {fusion['depth']}, "
            f"alpha {fusion['alpha']:g} (weight of BM25){_on(fusion)};"
        )
    return " ".join(words).rstrip(";")


def _on(choice: Mapping[str, Any]) -> str:
    return f", on {choice['on']['claims']} claims of {choice['on']['split']}"
