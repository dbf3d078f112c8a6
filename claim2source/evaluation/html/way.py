"""Write one HTML page of every claim's way through the stages of a system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from claim2source import __version__
from claim2source.core.files import write_text
from claim2source.core.folders import require_output_file
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.evaluation.html.claims import title_of
from claim2source.evaluation.html.page import GENERATOR, rendered

TEMPLATE = "way.html"
# The first sources of every stage are shown, and the golds.
SHOWN = 10
# What became of a claim's first gold, from the first stage to the last.
TO_FIRST, ROSE, SAME, FELL, ABSENT = "to rank 1", "promoted", "same rank", "demoted", "not found"
OUTCOMES = (TO_FIRST, ROSE, SAME, FELL, ABSENT)


@dataclass(frozen=True)
class Candidate:
    """Hold a source's rank in every stage, None where a stage does not have it."""

    title: str
    gold: bool
    ranks: list[int | None]
    moves: list[str]


@dataclass(frozen=True)
class Way:
    """Hold a claim as the page shows it; `golds` are the ranks of its first gold, 0 if absent."""

    place: int
    id: str
    language: str
    text: str
    translation: str
    outcome: str
    golds: list[int]
    candidates: list[Candidate]

    @property
    def ranks(self) -> str:
        """Return the ranks of the gold, for the page's script."""
        return " ".join(map(str, self.golds))


def way_page(
    runs: Mapping[str, Run], dataset: Dataset, out: Path, *, title: str, most: int = 1_000
) -> None:
    """Write the page of at most `most` claims: those whose gold moved most come first."""
    require_output_file(out, GENERATOR)
    found = sorted(ways(runs, dataset), key=_moved, reverse=True)
    page = rendered(
        TEMPLATE,
        title=f"{title}: claims through {len(runs)} stages",
        note=f"{min(len(found), most)} of {len(found)} claims, those whose gold moved most first.",
        claims=found[:most],
        languages=dataset.languages,
        stages=list(runs),
        outcomes=OUTCOMES if dataset.golds else (),
        made=f"Claim2Source {__version__}.",
    )
    write_text(out, page)


def ways(runs: Mapping[str, Run], dataset: Dataset) -> list[Way]:
    """Follow every claim through the stages: the first sources of each, and its golds."""
    sources = {source.id: source for source in dataset.sources}
    found = []
    for place, claim in enumerate(dataset.claims):
        orders = [run.sources(claim.id) for run in runs.values()]
        ranks = [{source: rank for rank, source in enumerate(order, 1)} for order in orders]
        golds = dataset.qrels.golds(claim.id)
        # In the order of the last stage; then what earlier ones had, and golds that none has.
        shown = [source for order in reversed(orders) for source in order[:SHOWN]]
        listed = list(dict.fromkeys([*shown, *golds]))
        first = [min((rank[gold] for gold in golds if gold in rank), default=0) for rank in ranks]
        candidates = []
        for source in listed:
            mine = [rank.get(source) for rank in ranks]
            moves = ["", *(_move(a, b) for a, b in zip(mine, mine[1:], strict=False))]
            candidates.append(Candidate(title_of(source, sources), source in golds, mine, moves))
        outcome = _outcome(first[0], first[-1]) if golds else ""
        found.append(
            Way(
                place,
                claim.id,
                claim.lang,
                claim.text,
                claim.translation or "",
                outcome,
                first,
                candidates,
            )
        )
    return found


def _move(before: int | None, after: int | None) -> str:
    """Say with an arrow that a source rose or fell."""
    old, new = before or float("inf"), after or float("inf")
    return "" if old == new else "↑" if new < old else "↓"


def _outcome(before: int, after: int) -> str:
    if not after:
        return FELL if before else ABSENT
    if after == 1 and before != 1:
        return TO_FIRST
    return SAME if before == after else ROSE if not before or after < before else FELL


def _moved(way: Way) -> float:
    """Measure by how much the reciprocal rank of the gold changed."""
    values = [1 / rank if rank else 0.0 for rank in way.golds]
    return max(values) - min(values) if values else 0.0
