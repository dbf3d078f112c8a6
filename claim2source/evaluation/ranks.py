"""Rank each claim's first gold, and count the golds that rise and fall between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from claim2source.core.records import Dataset, Qrels
from claim2source.core.report import MACRO
from claim2source.core.run import Result, Run
from claim2source.core.tables import Cell, TextTable
from claim2source.metrics.metrics import evaluate, judged_claims, language_masks

# First and last rank of every bucket; deeper ranks are "101+", absent golds "not found".
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


def first_ranks(
    run: Run,
    qrels: Qrels,
    claim_ids: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return claim ids and the rank of each one's first gold, [claims] float64, inf if absent.

    Raises as `evaluate` does, because the ranks are those of its reciprocal rank.
    """
    scores = evaluate(run, qrels, [_UNCUT], claim_ids)
    with np.errstate(divide="ignore"):
        ranks = np.round(1 / scores[_UNCUT])
    return scores.claim_ids, ranks


def rank_bucket(rank: float) -> str:
    """Return the name of a rank's bucket; an infinite rank is "not found"."""
    if not np.isfinite(rank):
        return NOT_FOUND
    fitting = (name for name, (first, last) in BUCKETS.items() if first <= rank <= last)
    return next(fitting)


def bucket_changes(before: np.ndarray, after: np.ndarray) -> dict[str, dict[str, int]]:
    """Count claims by bucket before and bucket after, for two systems' ranks of the same claims."""
    names = (*BUCKETS, NOT_FOUND)
    changes = {}
    for name in names:
        changes[name] = dict.fromkeys(names, 0)
    for first, second in zip(before, after, strict=True):
        row = changes[rank_bucket(first)]
        row[rank_bucket(second)] += 1
    return changes


@dataclass(frozen=True)
class Moves:
    """Count claims by the move of their first gold.

    `ceiling` is the share of claims with a gold among the re-ranked sources: the best score that
    re-ranking can reach. `promoted` and `demoted` golds have a better or worse rank than before;
    `to_first` and `from_first` golds reached or left rank 1.
    """

    claims: int
    ceiling: float
    promoted: int
    demoted: int
    to_first: int
    from_first: int


def gold_moves(
    before: Run,
    after: Run,
    dataset: Dataset,
    depth: int,
) -> dict[str, Moves]:
    """Compare two rankings by language; `macro` has the mean ceiling and the sums.

    Languages without a gold are left out; the result is empty if no claim has a gold.
    """
    judged = judged_claims(dataset.qrels)
    if not judged:
        return {}
    _, old = first_ranks(before, dataset.qrels, judged)
    _, new = first_ranks(after, dataset.qrels, judged)
    is_reachable = old <= depth
    is_promoted = new < old
    is_demoted = new > old
    is_to_first = (new == 1) & (old > 1)
    is_from_first = (new > 1) & (old == 1)

    moves = {}
    masks = language_masks(dataset.claims, judged)
    for lang, mine in masks.items():
        moves[lang] = Moves(
            claims=int(mine.sum()),
            ceiling=float(is_reachable[mine].mean()),
            promoted=int(is_promoted[mine].sum()),
            demoted=int(is_demoted[mine].sum()),
            to_first=int(is_to_first[mine].sum()),
            from_first=int(is_from_first[mine].sum()),
        )

    rows = [astuple(move) for move in moves.values()]
    claims, ceilings, *counts = zip(*rows, strict=True)
    ceiling = sum(ceilings) / len(ceilings)
    totals = map(sum, counts)
    moves[MACRO] = Moves(sum(claims), ceiling, *totals)
    return moves


def moves_table(stages: Mapping[str, tuple[int, Mapping[str, Moves]]]) -> TextTable:
    """Tabulate the moves of stages: name -> (depth, language -> moves)."""
    columns = "stage depth language claims ceiling promoted demoted to-first from-first".split()
    numeric = [False, True, False, *[True] * 6]
    rows: list[list[Cell]] = []
    for name, (depth, moves) in stages.items():
        for language, move in moves.items():
            counts = astuple(move)
            rows.append([name, depth, language, *counts])
    return TextTable(columns, rows, numeric=numeric)


def verifier_note(result: Result, moves: Moves | None) -> str | None:
    """Describe a verifier's requests and the golds that they moved, in one line.

    None for a stage that sends no requests.
    """
    if not result.details:
        return None
    polls = []
    for detail in result.details.values():
        if detail.get("asks"):
            polls.append(detail)
    asks = int(sum(poll["asks"] for poll in polls))
    tokens = int(sum(poll["tokens"] for poll in polls))
    claims = len(result.run.claim_ids)
    share = len(polls) / max(claims, 1)

    promoted = 0
    demoted = 0
    if moves is not None:
        promoted = moves.promoted
        demoted = moves.demoted
    price = ""
    if promoted:
        price = f", {tokens / promoted:.0f} tokens for each"
    return (
        f"{asks} requests of {tokens} tokens for {len(polls)} of {claims} claims ({share:.1%}): "
        f"{promoted} golds promoted{price}, {demoted} demoted"
    )
