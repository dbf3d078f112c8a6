"""Apply a stage to the claims that are in doubt: by a margin, chosen on val, or a disagreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from claim2source.core.config import Settings, Share, require
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result, Run, join_results
from claim2source.core.stage import Stage
from claim2source.systems.choose import choose, weigh

MARGIN = "margin_below"
# The default asks about no claim; each further one asks about more.
MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
# How the note of a claim begins whose ranking a stage was not asked about.
KEPT = "ranking kept"


@dataclass(frozen=True)
class WhenConfig(Settings):
    """Set which claims a stage is asked about: one condition that holds is enough.

    Args:
        margin_below: claims whose first score leads the second by less than this share of the
            range of the claim's list, 0 to 1.
        disagree: claims whose first source is another one than before the last stage.
    """

    margin_below: Share | None = None
    disagree: bool = False

    def check(self) -> None:
        is_set = self.margin_below is not None or self.disagree
        require(is_set, "when", asdict(self), "margin_below, disagree or both")

    def reason_to_skip(self, claim: str, run: Run, earlier: Run | None) -> str | None:
        """Explain why a claim's ranking stays as it is; None where the stage is asked."""
        margin = margin_of(run, claim)
        if self.margin_below is not None and margin < self.margin_below:
            return None
        if self.disagree and earlier is not None:
            before, now = earlier.sources(claim, 1), run.sources(claim, 1)
            # A single source leaves nothing to choose.
            if before and before != now and len(run.sources(claim, 2)) > 1:
                return None
        return f"{KEPT}: a margin of {margin:.3f}"


@dataclass(frozen=True)
class Conditional:
    """Apply a stage to the claims for which it is asked; the others keep their ranking."""

    stage: Stage
    when: WhenConfig

    @property
    def depth(self) -> int:
        """Return the depth of the stage."""
        return int(getattr(self.stage, "depth", 0))

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        """Apply the stage by the margins of `run`; `apply_stage` knows the run before as well."""
        return self.apply_by(
            claims, run, None, lambda doubtful, part: self.stage.apply(doubtful, sources, part)
        )

    def apply_by(
        self,
        claims: Sequence[Claim],
        run: Run,
        earlier: Run | None,
        apply: Callable[[Sequence[Claim], Run], Result],
    ) -> Result:
        """Apply the stage by `apply` to the claims and rankings that it is asked about."""
        why = {claim.id: self.when.reason_to_skip(claim.id, run, earlier) for claim in claims}
        notes = {claim: reason for claim, reason in why.items() if reason is not None}
        undoubted = Result(run.restricted(notes), notes, stored=True)
        doubtful = [claim for claim in claims if claim.id not in notes]
        if not doubtful:
            return undoubted
        return join_results(
            [apply(doubtful, run.restricted(c.id for c in doubtful)), undoubted], claims
        )


def margin_of(run: Run, claim: str) -> float:
    """Return the lead of a claim's first score, as a share of its list's range.

    0 where all scores are equal, 1 where there is nothing to choose.
    """
    scores = run.scores[run.rows(claim)]
    if len(scores) < 2:
        return 1.0
    first, second, last = float(scores[0]), float(scores[1]), float(scores[-1])
    return (first - second) / (first - last) if first > last else 0.0


def share_asked(result: Result) -> float:
    """Return the share of claims that a stage was asked about."""
    notes = [result.notes.get(claim, "") for claim in result.run.claim_ids]
    return sum(not note.startswith(KEPT) for note in notes) / max(len(notes), 1)


def choose_margin(
    before: Run,
    after: Run,
    data: Dataset,
    when: WhenConfig | None = None,
    earlier: Run | None = None,
    margins: Sequence[float] = MARGINS,
    rule: Rule = "one_se",
) -> tuple[float, Choice]:
    """Choose `margin_below` for a stage that was asked about all claims and gave `after`.

    By `one_se` it is the margin that asks about fewest claims, of those that are not worse than
    the best one by more than one standard error. With `when.disagree` claims whose first source
    the stage before has changed, from `earlier`, are asked about as well.
    """
    weighing = weigh(data)
    old, new = weighing.of(before), weighing.of(after)
    tried, shares = {}, {}
    for margin in sorted(margins):
        condition = WhenConfig(margin, when.disagree if when is not None else False)
        reasons = [condition.reason_to_skip(claim, before, earlier) for claim in weighing.claim_ids]
        is_asked = np.array([why is None for why in reasons])
        tried[margin], shares[margin] = np.where(is_asked, new, old), float(is_asked.mean())
    chosen, choice = choose(MARGIN, tried, weighing, settings=lambda one: {MARGIN: one}, rule=rule)
    both = f"asks about {shares[chosen]:.1%} of these claims"
    everywhere = f"asked about all it scores {weighing.score(new):.4f}, about none"
    return chosen, replace(choice, note=f"{both}; {everywhere} {weighing.score(old):.4f}")
