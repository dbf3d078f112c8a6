"""Count what a verifier chooses among a claim's first sources, shown in changing orders."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Failure


@dataclass
class Poll:
    """Collect the votes on a claim's first sources `ids`, by rank; the last vote is for none."""

    claim: Claim
    ids: list[str]
    votes: np.ndarray = field(init=False)
    asks: int = 0
    good: int = 0
    tokens: int = 0
    closed: bool = False
    # Shown places that were picked, and the last reasons for each rank.
    places: Counter[int] = field(default_factory=Counter)
    reasons: dict[int, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.votes = np.zeros(len(self.ids) + 1)
        self.closed = len(self.ids) < 2

    @property
    def none(self) -> int:
        """The place of the vote for none."""
        return len(self.ids)

    def count(self, weights: np.ndarray, order: list[int], reason: str) -> None:
        """Count a vote, whose weights [n + 1] are by shown place, the last one for none."""
        self.good += 1
        self.votes[order] += weights[:-1]
        self.votes[self.none] += weights[-1]
        place = int(np.argmax(weights))
        if place < self.none:
            self.places[place] += 1
            self.reasons[order[place]] = reason

    def fail(self, reason: str, *, close: bool = False) -> None:
        """Note that a vote failed, and whether more would."""
        self.failures.append(Failure(self.claim.id, reason))
        self.closed |= close

    def lead(self) -> tuple[int | None, float]:
        """Return what has most votes and its lead over all others; None where several have."""
        first, second = np.sort(self.votes)[::-1][:2]
        lead = float(first - second)
        # Sums of probabilities in different orders are not exact.
        return (int(np.argmax(self.votes)) if lead > 1e-9 else None), lead

    def needed(self, most: int) -> int:
        """Count the votes without which it cannot be settled, of `most` in all; 0: it is settled.

        It is settled where nothing can overtake the leader. A tie leaves the ranking as it is, so
        the first source and none need not be ahead of all.
        """
        left = most - self.asks
        if self.closed or left <= 0:
            return 0
        leader, lead = self.lead()
        stays = leader in (0, self.none) or not self.votes.any()
        if lead > left or (stays and self.votes.any() and lead >= left):
            return 0
        half = (left - lead) / 2
        return min(left, max(1, math.ceil(half) if stays else math.floor(half) + 1))

    def details(self) -> dict[str, float]:
        """Give the numbers of the poll for reports; `none` and `share` are shares of the votes."""
        total = float(self.votes.sum())
        found: dict[str, float] = {"asks": self.asks, "tokens": self.tokens}
        if total > 0:
            found |= {
                "none": float(self.votes[self.none]) / total,
                "share": float(self.votes.max()) / total,
                "shown": len(self.ids),
            }
        return found | {f"picked@{place + 1}": n for place, n in sorted(self.places.items())}


def shown_order(claim: str, seed: int, draw: int, count: int) -> list[int]:
    """Return the ranks in the order in which draw n shows them, by seed and claim.

    The first `count` draws show every source at every place once.
    """
    order = list(range(count))
    random.Random(f"{seed} {claim} {draw // count}").shuffle(order)
    turn = draw % count
    return order[turn:] + order[:turn]
