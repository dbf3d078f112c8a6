"""List claims with the ranks of their sources in several runs, for the pages' browser of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.run import Run
from claim2source.evaluation.compare import ScoredRuns

SEVERAL, NOBODY = "several", "nobody"
# What became of a claim's first gold, from the first stage to the last.
TO_FIRST, ROSE, EQUAL, FELL, ABSENT = "to rank 1", "promoted", "same rank", "demoted", "not found"
OUTCOMES = (TO_FIRST, ROSE, EQUAL, FELL, ABSENT)
# The first sources that are listed of each system, and of each stage.
_OF_SYSTEM, _OF_STAGE = 5, 10


@dataclass(frozen=True)
class Candidate:
    """Hold a source's rank in every run; "-" where a run does not have it."""

    title: str
    gold: bool
    ranks: list[str]


@dataclass(frozen=True)
class ClaimEntry:
    """Hold a claim as a page shows it; `golds` are the ranks of its first gold, 0 if absent.

    `number` is the claim's number, which links name; `tag` what it is filtered by: the system that
    wins it, or what the stages did to its gold.
    """

    number: int
    claim: Claim
    golds: list[int]
    candidates: list[Candidate]
    tag: str = ""

    @property
    def ranks(self) -> str:
        """Return the ranks of the gold, for the page's script."""
        return " ".join(map(str, self.golds))


def compared_claims(scored: ScoredRuns, limit: int) -> list[ClaimEntry]:
    """List at most `limit` claims, those that systems differ on first, with who wins each."""
    values = np.stack(list(scored.values.values()))
    order = np.argsort(-np.ptp(values, axis=0), kind="stable")[:limit].tolist()
    rows = {scored.claim_ids[i]: i for i in order}
    entries = _entries(scored.runs, scored.dataset, rows, _OF_SYSTEM)
    return [replace(e, tag=_winner(list(scored.runs), values[:, e.number])) for e in entries]


def traced_claims(runs: Mapping[str, Run], dataset: Dataset) -> list[ClaimEntry]:
    """Follow every claim through the stages of a system, those whose gold moved most first."""
    rows = {claim.id: i for i, claim in enumerate(dataset.claims)}
    entries = [
        replace(entry, tag=_outcome(entry.golds[0], entry.golds[-1]) if golds else "")
        for entry in _entries(runs, dataset, rows, _OF_STAGE, arrows=True)
        for golds in [dataset.qrels.golds(entry.claim.id)]
    ]
    if len(runs) == 1:
        entries = [replace(entry, tag=entry.tag.replace(EQUAL, "")) for entry in entries]
    return sorted(entries, key=_reciprocal_rank_change, reverse=True)


def _entries(
    runs: Mapping[str, Run],
    dataset: Dataset,
    rows: Mapping[str, int],
    top: int,
    arrows: bool = False,
) -> list[ClaimEntry]:
    sources = {source.id: source for source in dataset.sources}
    claims = {claim.id: claim for claim in dataset.claims}
    entries = []
    for name, row in rows.items():
        orders = [run.sources(name) for run in runs.values()]
        ranks = [{source: rank for rank, source in enumerate(order, 1)} for order in orders]
        golds = dataset.qrels.golds(name)
        # In the order of the last run; then what earlier ones have, and golds that none has.
        listed = dict.fromkeys([s for order in reversed(orders) for s in order[:top]] + [*golds])
        first = [min((rank[gold] for gold in golds if gold in rank), default=0) for rank in ranks]
        candidates = []
        for source in listed:
            mine = [rank.get(source, 0) for rank in ranks]
            before = [mine[0], *mine[:-1]] if arrows else mine
            texts = [
                f"{new or '-'}{_arrow(old, new)}" for old, new in zip(before, mine, strict=True)
            ]
            candidates.append(Candidate(_source_title(source, sources), source in golds, texts))
        entries.append(ClaimEntry(row, claims[name], first, candidates))
    return entries


def _source_title(source: str, sources: Mapping[str, Source]) -> str:
    record = sources.get(source)
    return f"{record.title or record.abstract[:120]} ({source})" if record else source


def _arrow(before: int, after: int) -> str:
    old, new = before or float("inf"), after or float("inf")
    return "" if old == new else "↑" if new < old else "↓"


def _winner(names: Sequence[str], values: np.ndarray) -> str:
    best = np.flatnonzero(values == values.max())
    if values.max() <= 0:
        return NOBODY
    return names[best[0]] if len(best) == 1 else SEVERAL


def _outcome(before: int, after: int) -> str:
    if not after:
        return FELL if before else ABSENT
    if after == 1 and before != 1:
        return TO_FIRST
    return EQUAL if before == after else ROSE if not before or after < before else FELL


def _reciprocal_rank_change(entry: ClaimEntry) -> float:
    values = [1 / rank if rank else 0.0 for rank in entry.golds]
    return max(values) - min(values) if values else 0.0
