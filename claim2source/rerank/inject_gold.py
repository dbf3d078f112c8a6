"""Put golds that a first stage missed among its candidates, as the news paper does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.config import require_between
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result, Run
from claim2source.rerank.frame import DEEPEST


@dataclass(frozen=True)
class InjectGold:
    """Put golds that the first stage missed in the place of its last candidates.

    ADMA 2023 paper, section 4.2: "we add it back to the list". What is re-ranked after that is no
    honest figure: the re-ranker is handed what nothing has found.

    Args:
        depth: candidates of a claim, up to 2,000; what is beyond is cut.
    """

    depth: int = 500

    def __post_init__(self) -> None:
        require_between("depth", self.depth, 1, DEEPEST)

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        """Give every claim its first `depth` sources, its golds among them; notes name what was
        added.
        """
        started = time.perf_counter()
        ranked, notes = {}, {}
        for claim in claims:
            found = list(run.scored(claim.id).items())[: self.depth]
            known = {source for source, _ in found}
            missing = [gold for gold in claim.golds if gold not in known][: self.depth]
            found = found[: self.depth - len(missing)]
            below = np.float32(found[-1][1] if found else 0)
            for gold in missing:
                below = np.nextafter(below, np.float32(-np.inf))
                found.append((gold, float(below)))
            ranked[claim.id] = found
            if missing:
                notes[claim.id] = f"gold added: {', '.join(missing)}"
        cost = Cost(time.perf_counter() - started, len(claims))
        return Result(Run.from_lists(ranked, pool=run.pool), notes, cost=cost)
