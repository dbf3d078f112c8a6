"""Apply a stage to the claims that are in doubt: by a margin, or a disagreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from claim2source.core.config import Settings, Share, require
from claim2source.core.records import Claim
from claim2source.core.run import Result, Run, join_results

MARGIN = "margin_below"
# Prefix of the note of a claim to which a stage was not applied.
UNCHANGED = "ranking kept"


@dataclass(frozen=True)
class WhenConfig(Settings):
    """Set which claims a stage is applied to; one met condition is enough.

    Args:
        margin_below: claims whose first score leads the second by less than this share of the
            range of the claim's list, 0 to 1.
        disagree: claims whose first source was changed by the stage before.
    """

    margin_below: Share | None = None
    disagree: bool = False

    def check(self) -> None:
        is_set = self.margin_below is not None or self.disagree
        require(is_set, "when", asdict(self), "margin_below, disagree or both")

    def reason_to_skip(self, claim: str, run: Run, earlier: Run | None) -> str | None:
        """Return the reason to keep a claim's ranking; None if the stage is applied."""
        margin = top_margin(run, claim)
        if self.margin_below is not None and margin < self.margin_below:
            return None
        if self.disagree and earlier is not None:
            before, now = earlier.sources(claim, 1), run.sources(claim, 1)
            # A single source cannot be re-ranked.
            if before and before != now and len(run.sources(claim, 2)) > 1:
                return None
        return f"{UNCHANGED}: a margin of {margin:.3f}"

    def apply(
        self,
        claims: Sequence[Claim],
        run: Run,
        earlier: Run | None,
        stage: Callable[[Sequence[Claim], Run], Result],
    ) -> Result:
        """Apply a stage to the claims that meet its conditions; keep the other rankings."""
        cause = {claim.id: self.reason_to_skip(claim.id, run, earlier) for claim in claims}
        notes = {claim: reason for claim, reason in cause.items() if reason is not None}
        undoubted = Result(run.restricted(notes), notes, stored=True)
        doubtful = [claim for claim in claims if claim.id not in notes]
        if not doubtful:
            return undoubted
        result = stage(doubtful, run.restricted(claim.id for claim in doubtful))
        return join_results([result, undoubted], claims)


def top_margin(run: Run, claim: str) -> float:
    """Return the lead of a claim's first score, as a share of its list's range.

    0 if all scores are equal, 1 if there is only one source.
    """
    scores = run.scores[run.rows(claim)]
    if len(scores) < 2:
        return 1.0
    first, second, last = float(scores[0]), float(scores[1]), float(scores[-1])
    return (first - second) / (first - last) if first > last else 0.0


def share_asked(result: Result) -> float:
    """Return the share of claims that a stage was applied to."""
    notes = [result.notes.get(claim, "") for claim in result.run.claim_ids]
    return sum(not note.startswith(UNCHANGED) for note in notes) / max(len(notes), 1)
