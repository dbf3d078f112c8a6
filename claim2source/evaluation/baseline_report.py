"""Tables of `eval/baselines.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import sorted_languages
from claim2source.core.tables import COST_COLUMNS, cost_cells
from claim2source.evaluation.baseline_retrieval import NothingToChooseOn
from claim2source.evaluation.baseline_systems import Systems, parts_of
from claim2source.evaluation.by_language import SHOWN
from claim2source.io.wandb import LoggedTable, TableTaker

DEEP = "recall@100"
_OTHERWISE = "mend what the reason names and run the same command again; what is done is kept"


@dataclass(frozen=True)
class NotRun:
    """A system and claim form that did not run, why, and what to do about it."""

    system: str
    claims: str
    reason: str
    advice: str


def not_run_row(
    system: str, claims: str, systems: Systems, error: UserError | MemoryError | RuntimeError
) -> NotRun:
    """What is said of a system that raised `error`: what happened, and what to do about it.

    An entry's own advice is about weights that are not there; other errors have their own.
    """
    why = " ".join(str(error).split()) or type(error).__name__
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if full:
        why = f"out of memory: {why}"
    elif isinstance(error, RuntimeError):
        why = f"failed: {why}"
    named = (system, *reversed(parts_of(systems[system])))
    given = next((systems[name].advice for name in named if systems[name].advice), None)
    return NotRun(system, claims, why[:300], _advice(error, full, system) or given or _OTHERWISE)


def _advice(error: BaseException, full: bool, system: str) -> str | None:
    if isinstance(error, NothingToChooseOn):
        return (
            "name a split with golds, another than the reported, as --train_split, or leave "
            "tuned systems out with --systems"
        )
    if full:
        return (
            "lower model.max_length or take a 16-bit model.dtype in its entry, or run it where "
            "there is more memory; what is done is kept"
        )
    if isinstance(error, RuntimeError):
        return f"try it alone on the CPU: --systems {system} --device cpu; what is done is kept"
    if isinstance(error, ConfigError):
        return "correct that setting in the system's entry or on the command line"
    return None


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
        "system",
        "claims",
        *(f"{SHOWN} {language}" for language in languages),
        f"{SHOWN} macro",
        "95 %",
        f"{DEEP} macro",
        *COST_COLUMNS,
    ]
    rows: list[list[Any]] = []
    for report in scored.values():
        by_language, macro = report["languages"], report["macro"]
        rows.append(
            [
                report["system"],
                report["rendering"]["claims"],
                *(by_language[language][SHOWN] for language in languages),
                macro[SHOWN],
                _bounds(report["intervals"][SHOWN]["macro"]),
                macro[DEEP],
                *cost_cells(report["cost"]),
            ]
        )
    numeric = [False, False, *[True] * (len(columns) - 2)]
    return table(columns, rows, numeric=numeric)


def _intervals(scored: Mapping[str, Mapping[str, Any]], table: Callable[..., str]) -> list[str]:
    """How intervals were made, and those by language where the first table has not said them."""
    languages = _languages(scored)
    first = next(iter(scored.values()))["intervals"]
    rows = [
        [
            report["system"],
            report["rendering"]["claims"],
            *(_bounds(report["intervals"][SHOWN][language]) for language in languages),
        ]
        for report in scored.values()
    ]
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
