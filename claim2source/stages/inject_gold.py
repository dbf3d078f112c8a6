"""Add golds that a first stage missed to its candidates, as the news paper does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, Settings
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.stages.pairs import DEEPEST, Ranking


@dataclass(frozen=True)
class InjectGold(Settings):
    """Replace the last candidates by golds that the first stage missed.

    ADMA 2023 paper, section 4.2: "we add it back to the list". Scores of later re-rankers are not
    honest figures, because no retriever found these golds.

    Args:
        depth: number of candidates to re-rank, up to 2,000; displaced sources follow them.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 500

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Add every claim's golds to its first `depth` sources; notes name the added ones."""
        ranked: dict[str, Ranking] = {}
        notes: dict[str, str] = {}
        for claim in claims:
            before = run.scored(claim.id)
            first = list(before)[: self.depth]
            missing = [gold for gold in claim.golds if gold not in first]
            missing = missing[: self.depth]
            kept = self.depth - len(missing)
            order = first[:kept] + missing
            order += [source for source in before if source not in order]
            scores = _falling_scores(before.values(), len(order))
            ranked[claim.id] = list(zip(order, scores, strict=True))
            if missing:
                notes[claim.id] = f"gold added: {', '.join(missing)}"
        return Result(Run.from_lists(ranked, pool=run.pool), notes)


def _falling_scores(scores: Collection[float], count: int) -> list[float]:
    """Make the first `count` scores strictly decreasing; the lowest fills in missing ones."""
    lowest = min(scores, default=0.0)
    padded = islice(chain(scores, repeat(lowest)), count)
    falling: list[float] = []
    last = np.float32(np.inf)
    for score in padded:
        below = np.nextafter(last, np.float32(-np.inf))
        last = min(np.float32(score), below)
        falling.append(float(last))
    return falling
