"""Choose on val the margin below which a stage is applied, and a verdict's threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from claim2source.core.records import Dataset
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result, Run
from claim2source.metrics.verdicts import MACRO_F1, macro_f1
from claim2source.search.choose import Preference, choose, weigh
from claim2source.stages.stance import HIGHEST, MEAN, Stance, to_verdict
from claim2source.systems.conditions import MARGIN, WhenConfig

# A re-ranker's; the first is the default and ignores the stage before.
MIXES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
# Of known posts, and of neighbours; the first does not change the order.
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_TWENTIETHS = [round(step / 20, 2) for step in range(1, 20 * HIGHEST + 1)]
# Of a verdict; the first is the default.
THRESHOLDS = tuple(dict.fromkeys([Stance.threshold, *_TWENTIETHS]))
# Of a margin: the default selects no claim; each further one selects more claims.
MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)


def choose_margin(
    before: Run,
    after: Run,
    data: Dataset,
    when: WhenConfig | None = None,
    earlier: Run | None = None,
    margins: Sequence[float] = MARGINS,
    rule: Rule = "one_se",
) -> tuple[float, Choice]:
    """Choose `margin_below` for a stage that returned `after` for all claims.

    `one_se` chooses the margin that selects the fewest claims within one standard error of the
    best. With `when.disagree`, the stage is also applied to claims whose first source changed
    between `earlier` and the stage before.
    """
    weighing = weigh(data)
    old = weighing.of(before)
    new = weighing.of(after)
    disagree = when.disagree if when is not None else False
    candidates = {}
    shares = {}
    for margin in sorted(margins):
        condition = WhenConfig(margin, disagree)
        reasons = [condition.reason_to_skip(claim, before, earlier) for claim in weighing.claim_ids]
        is_asked = np.array([reason is None for reason in reasons])
        candidates[margin] = np.where(is_asked, new, old)
        shares[margin] = float(is_asked.mean())

    margin_chosen, choice = choose(
        MARGIN,
        candidates,
        weighing,
        settings=lambda margin: {MARGIN: margin},
        by=Preference(rule),
    )
    share = shares[margin_chosen]
    score_to_all = weighing.score(new)
    score_to_none = weighing.score(old)
    asked_share = f"applied to {share:.1%} of these claims"
    everywhere = f"applied to all it scores {score_to_all:.4f}, to none {score_to_none:.4f}"
    note = f"{asked_share}; {everywhere}"
    return margin_chosen, replace(choice, note=note)


def choose_threshold(
    result: Result,
    data: Dataset,
    labels: Mapping[str, str],
) -> tuple[float, Choice]:
    """Choose a verdict's threshold by macro F1; of equal ones the nearest to the default."""
    name = "threshold"
    default = Stance.threshold
    means = [result.details.get(claim.id, {}).get(MEAN) for claim in data.claims]
    actual = [labels[claim.id] for claim in data.claims]
    scores: dict[float, float] = {}
    for threshold in THRESHOLDS:
        verdicts = [to_verdict(mean, threshold) for mean in means]
        scores[threshold] = macro_f1(actual, verdicts)

    def preference(threshold: float) -> tuple[float, float]:
        score = round(scores[threshold], 12)
        distance = abs(threshold - default)
        return score, -distance

    best = max(scores, key=preference)
    return best, Choice(
        name,
        {name: best},
        scores[best],
        data.split,
        len(actual),
        metric=MACRO_F1,
        best={name: best},
        best_score=scores[best],
        compared=len(scores),
    )
