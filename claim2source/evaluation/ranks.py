"""Where the first gold stands: ranks, their mean and median, and buckets of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.evaluation.metrics import evaluate

# First and last rank of every bucket; what is deeper or absent is "not found" or "101+".
BUCKETS: Mapping[str, tuple[int, float]] = {
    "1": (1, 1),
    "2-5": (2, 5),
    "6-10": (6, 10),
    "11-50": (11, 50),
    "51-100": (51, 100),
    "101+": (101, np.inf),
}
NOT_FOUND = "not found"
_WHOLE_RUN = "mrr@1000000"


@dataclass(frozen=True)
class RankSummary:
    """Ranks of the first gold over claims.

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
    """Claim ids and the rank of each one's first gold, [claims] float64, inf where absent.

    Raises as `evaluate` does, whose reciprocal rank this is.
    """
    scores = evaluate(run, qrels, [_WHOLE_RUN], claim_ids)
    reciprocal = scores[_WHOLE_RUN]
    ranks = np.full(len(reciprocal), np.inf)
    found = reciprocal > 0
    ranks[found] = np.round(1 / reciprocal[found])
    return scores.claim_ids, ranks


def bucket_of(rank: float) -> str:
    """The bucket that a rank falls into; an infinite one is "not found"."""
    if not np.isfinite(rank):
        return NOT_FOUND
    return next(name for name, (first, last) in BUCKETS.items() if first <= rank <= last)


def summarise(ranks: np.ndarray) -> RankSummary:
    """Mean, median and buckets of ranks [claims]. Raises ValueError when there are none."""
    if not len(ranks):
        raise ValueError("no ranks to summarise")
    found = ranks[np.isfinite(ranks)]
    middle = np.sort(ranks)[[(len(ranks) - 1) // 2, len(ranks) // 2]]
    median = float(middle.mean())
    named = [bucket_of(rank) for rank in ranks]
    return RankSummary(
        claims=len(ranks),
        found=len(found),
        mean=float(found.mean()) if len(found) else None,
        median=median if np.isfinite(median) else None,
        buckets={name: named.count(name) for name in (*BUCKETS, NOT_FOUND)},
    )


def bucket_changes(before: np.ndarray, after: np.ndarray) -> dict[str, dict[str, int]]:
    """Bucket before -> bucket after -> claims, for two systems' ranks of the same claims.

    Raises ValueError on ranks of different claims' numbers.
    """
    if before.shape != after.shape:
        raise ValueError(f"ranks of {len(before)} and of {len(after)} claims")
    names = (*BUCKETS, NOT_FOUND)
    table = {name: dict.fromkeys(names, 0) for name in names}
    for one, other in zip(before, after, strict=True):
        table[bucket_of(one)][bucket_of(other)] += 1
    return table
