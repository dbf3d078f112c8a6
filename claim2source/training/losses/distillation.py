"""Distil a teacher's scores of a claim's candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.config import Amount, Positive, Settings, require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DistillationConfig(Settings):
    """Set how to learn from the scores of a re-ranker, or of any other run.

    Only candidates in the batch are used: a pair's gold, its hard negatives, and the sources of
    other pairs. With `candidates` the hard negatives are the teacher's own. Without, mined ones
    (`mining.hard` + `mining.random`) that the teacher scores are used first, the hardest first:
    mine more than `optimisation.negatives`, or let the teacher score the mined file.

    Args:
        weight: of this term in the sum; 0 leaves it out.
        scores: run file (TREC) with the teacher's scores of training claims' candidates, or a
            folder of them: `runs`, which every evaluation writes.
        candidates: take a claim's hard negatives from the teacher's run, its highest first, in
            place of mining: `mining.first_rank` to `last_rank`, at most `mining.hard`.
        temperature: the teacher's scores are divided by it, the student's cosines by
            `optimisation.temperature`; both should then spread alike. 1 fits logits; take about
            0.1 for probabilities, or nearly all candidates get the same target and the gold is
            pushed down. none: the mean standard deviation of a claim's scores, whatever they are.
    """

    weight: Amount = 0.0
    scores: Path | None = None
    temperature: Positive | None = 1.0
    candidates: bool = False

    def check(self) -> None:
        key = "losses.distillation"
        allowed = "false while losses.distillation.weight is 0"
        require(self.weight > 0 or not self.candidates, f"{key}.candidates", True, allowed)
        require(
            self.weight == 0 or self.scores is not None,
            f"{key}.scores",
            self.scores,
            "a run file with the teacher's scores, since the weight is above 0",
        )


def taught(teacher: Tensor) -> Tensor:
    """Select the teacher's scores [n, m] (NaN: none) that the loss uses, as booleans.

    A claim needs two scores.
    """
    scored = ~teacher.isnan()
    return scored & (scored.sum(dim=1, keepdim=True) >= 2)


def distillation(
    claims: Tensor,
    sources: Tensor,
    teacher: Tensor,
    *,
    temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """Compare the student's distribution over the candidates with the teacher's.

    `claims` [n, d] and `sources` [m, d] are vectors, `teacher` [n, m] its scores, NaN where it
    gave none. The student's cosines are divided by `temperature`, the teacher's scores by theirs.
    Of every claim with two scored candidates or more it is KL(teacher, student); other claims
    count 0; the sum is divided by n. Returns a scalar.
    """
    student = claims @ sources.T / temperature
    counted = taught(teacher)
    target = teacher.nan_to_num() / teacher_temperature
    # A row without candidates keeps all columns: an empty softmax would be NaN.
    open_ = counted | ~counted.any(dim=1, keepdim=True)
    wanted = target.masked_fill(~open_, -math.inf).log_softmax(dim=1)
    given = student.masked_fill(~open_, -math.inf).log_softmax(dim=1)
    # -inf minus -inf would be NaN, and so would its gradient.
    terms = wanted.exp() * (wanted - given).masked_fill(~counted, 0.0)
    return terms.sum() / len(claims)
