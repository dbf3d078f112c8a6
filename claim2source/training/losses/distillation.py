"""Distillation from a teacher's scores for a claim's candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from claim2source.core.config import require

Kind = Literal["kl", "margin_mse"]


@dataclass(frozen=True)
class DistillationConfig:
    """Learning from scores of a re-ranker, or of any other run.

    Only candidates that are in the batch teach: a pair's gold, its mined negatives, and what
    other pairs bring. So of a pair's mined negatives (`mining.hard` + `mining.random`) those
    that the teacher scores are trained on first, the hardest first; mine more of them than
    `optimisation.negatives`, or let the teacher score what was mined.

    Args:
        weight: of this term in the sum; 0 leaves it out.
        scores: run file (TREC) with the teacher's scores of training claims' candidates.
        kind: `kl`: the teacher's distribution over the candidates; `margin_mse`: its margins
            between the gold and each other candidate.
        temperature: the teacher's scores are divided by it, the student's cosines by
            `optimisation.temperature`: both should then spread alike. 1 fits logits; for
            probabilities, which lie in 0 to 1, take about 0.1, or nearly all candidates are
            asked to be alike and the gold is pushed down.
    """

    weight: float = 0.0
    scores: Path | None = None
    kind: Kind = "kl"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        key = "losses.distillation"
        good = 0 <= self.weight < math.inf
        require(good, f"{key}.weight", self.weight, "0 or more, and finite")
        good = 0 < self.temperature < math.inf
        require(good, f"{key}.temperature", self.temperature, "above 0, and finite")
        require(
            self.weight == 0 or self.scores is not None,
            f"{key}.scores",
            self.scores,
            "a run file with the teacher's scores, since the weight is above 0",
        )


def taught(teacher: Tensor, positives: Tensor, kind: Kind) -> Tensor:
    """Which of the teacher's scores [n, m] (NaN: none) teach, as booleans.

    `positives` [n] is the column of each claim's gold. `kl` needs two scores of a claim;
    `margin_mse` the gold's, and marks the candidates it is compared with.
    """
    scored = ~teacher.isnan()
    if kind == "kl":
        return scored & (scored.sum(dim=1, keepdim=True) >= 2)
    own = positives.unsqueeze(1)
    return (scored & scored.gather(1, own)).scatter(1, own, False)


def distillation(
    claims: Tensor,
    sources: Tensor,
    positives: Tensor,
    teacher: Tensor,
    *,
    kind: Kind,
    temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """How far the student's scores of the scored candidates lie from the teacher's.

    `claims` [n, d] and `sources` [m, d] are vectors, `positives` [n] the column of each claim's
    source, `teacher` [n, m] its scores, NaN where it gave none. The student's cosines are
    divided by `temperature`, the teacher's scores by theirs. `kl`: KL(teacher, student) of
    every claim with two scored candidates or more. `margin_mse`: mean squared difference of
    the margins between gold and candidates, of every claim whose gold is scored. A claim of
    which the teacher says nothing counts 0; the sum is divided by n, so that equal shares of a
    batch add up. Returns a scalar.
    """
    student = claims @ sources.T / temperature
    counted = taught(teacher, positives, kind)
    target = teacher.nan_to_num() / teacher_temperature
    if kind == "kl":
        # A row without candidates keeps all: its terms are dropped below, and none is NaN.
        open_ = counted | ~counted.any(dim=1, keepdim=True)
        wished = target.masked_fill(~open_, -torch.inf).log_softmax(dim=1)
        given = student.masked_fill(~open_, -torch.inf).log_softmax(dim=1)
        # -inf minus -inf would be NaN, and its gradient too.
        terms = wished.exp() * (wished - given).masked_fill(~counted, 0.0)
        return terms.sum() / len(claims)
    own = positives.unsqueeze(1)
    margins = (student.gather(1, own) - student) - (target.gather(1, own) - target)
    squares = margins.square().masked_fill(~counted, 0.0).sum(dim=1)
    return (squares / counted.sum(dim=1).clamp(min=1)).sum() / len(claims)
