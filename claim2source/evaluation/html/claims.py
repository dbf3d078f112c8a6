"""List claims with the systems' first sources, for the page's browser of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Source
from claim2source.evaluation.compare import ScoredRuns

SEVERAL, NOBODY = "several", "nobody"
_TOP = 5


@dataclass(frozen=True)
class Hit:
    """Name a source that a system ranks, and whether it is a gold."""

    title: str
    gold: bool


@dataclass(frozen=True)
class Ranking:
    """Hold a system's first sources for a claim, and the rank of the first gold, 0 if absent."""

    name: str
    rank: int
    hits: list[Hit]


@dataclass(frozen=True)
class ClaimEntry:
    """Hold a claim as the page shows it; `winner` is the one system with the best score.

    `place` is the claim's among those with a gold: the page's links name it.
    """

    place: int
    id: str
    language: str
    text: str
    translation: str
    golds: list[str]
    winner: str
    systems: list[Ranking]

    @property
    def ranks(self) -> str:
        """Return the ranks of the systems, for the page's script."""
        return " ".join(str(system.rank) for system in self.systems)


def claim_entries(scored: ScoredRuns, most: int) -> list[ClaimEntry]:
    """List at most `most` claims, those that systems differ on first."""
    sources = {source.id: source for source in scored.dataset.sources}
    claims = {claim.id: claim for claim in scored.dataset.claims}
    values = np.stack(list(scored.values.values()))
    entries = []
    for i in np.argsort(-np.ptp(values, axis=0), kind="stable")[:most]:
        claim = claims[scored.claim_ids[i]]
        golds = scored.dataset.qrels.golds(claim.id)
        rankings = [
            Ranking(
                name,
                int(scored.ranks[name][i]) if np.isfinite(scored.ranks[name][i]) else 0,
                [Hit(title_of(s, sources), s in golds) for s in run.sources(claim.id, _TOP)],
            )
            for name, run in scored.runs.items()
        ]
        entries.append(
            ClaimEntry(
                int(i),
                claim.id,
                claim.lang,
                claim.text,
                claim.translation or "",
                [title_of(gold, sources) for gold in golds],
                _winner(list(scored.runs), values[:, i]),
                rankings,
            )
        )
    return entries


def title_of(source: str, sources: Mapping[str, Source]) -> str:
    """Name a source by its title, else by how its abstract begins."""
    known = sources.get(source)
    return f"{known.title or known.abstract[:120]} ({source})" if known else source


def _winner(names: Sequence[str], values: np.ndarray) -> str:
    best = np.flatnonzero(values == values.max())
    if values.max() <= 0:
        return NOBODY
    return names[best[0]] if len(best) == 1 else SEVERAL
