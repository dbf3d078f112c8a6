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
        allowed = "margin_below, disagree or both"
        require(is_set, "when", asdict(self), allowed)

    def reason_to_skip(
        self,
        claim: str,
        run: Run,
        earlier: Run | None,
    ) -> str | None:
        """Return the reason to keep a claim's ranking; None if the stage is applied."""
        margin = top_margin(run, claim)
        is_close = self.margin_below is not None and margin < self.margin_below
        if is_close:
            return None
        if self.disagree and earlier is not None:
            before = earlier.sources(claim, 1)
            now = run.sources(claim, 1)
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
        notes: dict[str, str] = {}
        for claim in claims:
            reason = self.reason_to_skip(claim.id, run, earlier)
            if reason is not None:
                notes[claim.id] = reason
        kept = run.restricted(notes)
        undoubted = Result(kept, notes, stored=True)
        doubtful = [claim for claim in claims if claim.id not in notes]
        if not doubtful:
            return undoubted

        doubtful_run = run.restricted(claim.id for claim in doubtful)
        result = stage(doubtful, doubtful_run)
        return join_results([result, undoubted], claims)


def top_margin(run: Run, claim: str) -> float:
    """Return the lead of a claim's first score, as a share of its list's range.

    0 if all scores are equal, 1 if there is only one source.
    """
    rows = run.rows(claim)
    scores = run.scores[rows]
    if len(scores) < 2:
        return 1.0
    first = float(scores[0])
    second = float(scores[1])
    last = float(scores[-1])
    if first > last:
        return (first - second) / (first - last)
    return 0.0


def share_asked(result: Result) -> float:
    """Return the share of claims that a stage was applied to."""
    claims = result.run.claim_ids
    notes = [result.notes.get(claim, "") for claim in claims]
    asked = sum(not note.startswith(UNCHANGED) for note in notes)
    return asked / max(len(notes), 1)
