"""Rank the first gold of every claim; summarise ranks and their changes between systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.core.tables import Cell, TextTable
from claim2source.metrics.metrics import evaluate

# First and last rank of every bucket; what is deeper or absent is "101+" or "not found".
BUCKETS: Mapping[str, tuple[int, float]] = {
    "1": (1, 1),
    "2-5": (2, 5),
    "6-10": (6, 10),
    "11-50": (11, 50),
    "51-100": (51, 100),
    "101+": (101, np.inf),
}
NOT_FOUND = "not found"
_UNCUT = "mrr@1000000"
Changes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class RankSummary:
    """Summarise the ranks of the first gold over claims.

    `mean` is over the claims whose gold is in the run (None: there are none), `median` over
    all, an absent gold being below every rank (None: more than half are absent). `buckets`
    counts claims, absent ones under "not found".
    """

    claims: int
    found: int
    mean: float | None
    median: float | None
    buckets: Mapping[str, int]


def first_ranks(
    run: Run, qrels: Qrels, claim_ids: Sequence[str] | None = None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return claim ids and the rank of each one's first gold, [claims] float64, inf if absent.

    Raises as `evaluate` does, whose reciprocal rank this is.
    """
    scores = evaluate(run, qrels, [_UNCUT], claim_ids)
    with np.errstate(divide="ignore"):
        return scores.claim_ids, np.round(1 / scores[_UNCUT])


def bucket_of(rank: float) -> str:
    """Name the bucket that a rank falls into; an infinite one is "not found"."""
    if not np.isfinite(rank):
        return NOT_FOUND
    return next(name for name, (first, last) in BUCKETS.items() if first <= rank <= last)


def summarise(ranks: np.ndarray) -> RankSummary:
    """Compute mean, median and buckets of ranks [claims]. Raises ValueError when there are none."""
    if not len(ranks):
        raise ValueError("no ranks to summarise")
    found = ranks[np.isfinite(ranks)]
    median = float(np.median(ranks))
    buckets = [bucket_of(rank) for rank in ranks]
    return RankSummary(
        claims=len(ranks),
        found=len(found),
        mean=float(found.mean()) if len(found) else None,
        median=median if np.isfinite(median) else None,
        buckets={name: buckets.count(name) for name in (*BUCKETS, NOT_FOUND)},
    )


def bucket_changes(before: np.ndarray, after: np.ndarray) -> Changes:
    """Count claims by bucket before and bucket after, for two systems' ranks of the same claims.

    Raises ValueError where the numbers of claims differ.
    """
    if before.shape != after.shape:
        raise ValueError(f"ranks of {len(before)} and of {len(after)} claims")
    names = (*BUCKETS, NOT_FOUND)
    changes = {name: dict.fromkeys(names, 0) for name in names}
    for first, second in zip(before, after, strict=True):
        changes[bucket_of(first)][bucket_of(second)] += 1
    return changes


def changes_table(changes: Changes, corner: str = "") -> TextTable:
    """Tabulate claims by bucket: rows before, columns after."""
    rows: list[list[Cell]] = [[before, *row.values()] for before, row in changes.items()]
    return TextTable([corner, *changes], rows)
