"""Describe what verifiers did: claims asked about, what a promoted gold cost, bias of places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from claim2source.core.run import Result
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.ranks import Moves


@dataclass(frozen=True)
class Place:
    """Say how often papers shown at a place were picked, and how often chance would."""

    place: int
    picks: int
    expected: float


@dataclass(frozen=True)
class Verified:
    """Describe a verifier's work on a split.

    `asked` of the `claims` were asked about, by `asks` requests of `tokens` in all. `promoted` and
    `demoted` count golds. `shuffled`: papers were shown in changing orders, so that `places` tell
    a bias; else they follow the ranking.
    """

    claims: int
    asked: int
    asks: int
    tokens: int
    promoted: int
    demoted: int
    shuffled: bool
    places: tuple[Place, ...]

    @property
    def share_asked(self) -> float:
        """Return the share of claims that were asked about."""
        return self.asked / max(self.claims, 1)

    @property
    def tokens_per_promoted(self) -> float | None:
        """Return the tokens spent for each gold that was promoted; None without any."""
        return self.tokens / self.promoted if self.promoted else None

    @property
    def bias(self) -> float | None:
        """Return the share of picks that would have to move to spread them evenly over places."""
        picks = sum(place.picks for place in self.places)
        if not picks:
            return None
        return sum(abs(place.picks - place.expected) for place in self.places) / (2 * picks)

    def sentence(self) -> str:
        """Say it in one line."""
        each = self.tokens_per_promoted
        price = "" if each is None else f", {each:.0f} tokens for each"
        return (
            f"asked about {self.asked} of {self.claims} claims ({self.share_asked:.1%}) by "
            f"{self.asks} requests of {self.tokens} tokens: {self.promoted} golds promoted{price}, "
            f"{self.demoted} demoted"
        )


def verified(result: Result, moves: Moves | None, shuffled: bool) -> Verified | None:
    """Describe a verifier's result; None for other stages. `moves` are those of all languages."""
    if not result.details:
        return None
    asked = [one for one in result.details.values() if one.get("asks")]
    return Verified(
        claims=len(result.run.claim_ids),
        asked=len(asked),
        asks=int(sum(one["asks"] for one in asked)),
        tokens=int(sum(one["tokens"] for one in asked)),
        promoted=0 if moves is None else moves.promoted,
        demoted=0 if moves is None else moves.demoted,
        shuffled=shuffled,
        places=_places(asked),
    )


def _places(asked: Sequence[Mapping[str, float]]) -> tuple[Place, ...]:
    deepest = max((int(one.get("shown", 0)) for one in asked), default=0)
    found = [Place(place, 0, 0.0) for place in range(1, deepest + 1)]
    for one in asked:
        picks = {name: count for name, count in one.items() if name.startswith("picked@")}
        shown = int(one.get("shown", 0))
        for i, place in enumerate(found):
            more = int(picks.get(f"picked@{place.place}", 0))
            even = sum(picks.values()) / shown if i < shown else 0.0
            found[i] = Place(place.place, place.picks + more, place.expected + even)
    return tuple(found)


def verified_table(stages: Mapping[str, Verified]) -> TextTable:
    """Tabulate what verifiers did."""
    columns = "stage claims asked share requests tokens promoted demoted tokens/promoted".split()
    rows: list[list[Cell]] = []
    for name, one in stages.items():
        price = one.tokens_per_promoted
        rows.append(
            [
                *(name, one.claims, one.asked, one.share_asked, one.asks, one.tokens),
                *(one.promoted, one.demoted, None if price is None else f"{price:.0f}"),
            ]
        )
    return TextTable(columns, rows, numeric=[False, *[True] * 8])


def places_table(one: Verified) -> TextTable:
    """Tabulate the picks by shown place, against an even spread."""
    picks = max(sum(place.picks for place in one.places), 1)
    rows: list[list[Cell]] = [
        [place.place, place.picks, place.picks / picks, place.expected / picks]
        for place in one.places
    ]
    return TextTable(["place", "picks", "share", "even"], rows, numeric=[True] * 4)
