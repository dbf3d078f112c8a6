"""Measure verifiers: claims that were in doubt, and the cost of a promoted gold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from claim2source.core.run import Result
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.ranks import Moves


@dataclass(frozen=True)
class VerifierWork:
    """Describe a verifier's work on a split.

    `asked` of the `claims` were asked about, by `asks` requests of `tokens` in all. `promoted` and
    `demoted` count golds.
    """

    claims: int
    asked: int
    asks: int
    tokens: int
    promoted: int
    demoted: int

    @property
    def share_asked(self) -> float:
        """Return the share of claims that were asked about."""
        return self.asked / max(self.claims, 1)

    @property
    def tokens_per_promoted(self) -> float | None:
        """Return the tokens spent for each gold that was promoted; None without any."""
        return self.tokens / self.promoted if self.promoted else None

    def sentence(self) -> str:
        """Write the figures in one line."""
        tokens = self.tokens_per_promoted
        price = "" if tokens is None else f", {tokens:.0f} tokens for each"
        return (
            f"asked about {self.asked} of {self.claims} claims ({self.share_asked:.1%}) by "
            f"{self.asks} requests of {self.tokens} tokens: {self.promoted} golds promoted{price}, "
            f"{self.demoted} demoted"
        )


def verifier_work(result: Result, moves: Moves | None) -> VerifierWork | None:
    """Describe a verifier's result; None for other stages. `moves` are those of all languages."""
    if not result.details:
        return None
    polls = [detail for detail in result.details.values() if detail.get("asks")]
    return VerifierWork(
        claims=len(result.run.claim_ids),
        asked=len(polls),
        asks=int(sum(poll["asks"] for poll in polls)),
        tokens=int(sum(poll["tokens"] for poll in polls)),
        promoted=0 if moves is None else moves.promoted,
        demoted=0 if moves is None else moves.demoted,
    )


def verifier_table(stages: Mapping[str, VerifierWork]) -> TextTable:
    """Tabulate verifiers' work and its effect."""
    columns = "stage claims asked share requests tokens promoted demoted tokens/promoted".split()
    rows: list[list[Cell]] = []
    for name, stage in stages.items():
        price = stage.tokens_per_promoted
        rows.append(
            [
                *(name, stage.claims, stage.asked, stage.share_asked, stage.asks, stage.tokens),
                *(stage.promoted, stage.demoted, None if price is None else f"{price:.0f}"),
            ]
        )
    return TextTable(columns, rows, numeric=[False, *[True] * 8])
