"""Compute the training losses; `combined` adds them by weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.config import Amount, Number, Positive, Settings, require
from claim2source.core.languages import by_primary_language

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossConfig(Settings):
    """Weight a loss.

    Args:
        weight: of this term in the sum; 0 leaves it out.
    """

    weight: Amount = 0.0


@dataclass(frozen=True)
class InfoNCEConfig(LossConfig):
    """Weight the contrastive loss (2026 paper, table 6)."""

    weight: Amount = 1.0


def info_nce(
    claims: Tensor, sources: Tensor, positives: Tensor, masked: Tensor, temperature: float
) -> Tensor:
    """Compute the mean cross-entropy of each claim's own source against all sources.

    `claims` [n, d] and `sources` [m, d] are float32 vectors, `positives` [n] the column of
    each claim's source, `masked` [n, m] true if a source is neither positive nor negative:
    another gold of the claim. Returns a scalar.
    """
    from torch.nn.functional import cross_entropy

    logits = claims @ sources.T / temperature
    logits = logits.masked_fill(masked, -math.inf)
    return cross_entropy(logits, positives)


@dataclass(frozen=True)
class DistillationConfig(LossConfig):
    """Set how to learn from the scores of a re-ranker, or of any other run.

    Only candidates in the batch are used: a pair's gold, its hard negatives, and the sources of
    other pairs. With `candidates` the hard negatives are the teacher's own. Without, mined ones
    (`mining.hard` + `mining.random`) that the teacher scores are used first, the hardest first:
    mine more than `optimisation.negatives`, or let the teacher score the mined file.

    Args:
        scores: run file (TREC) with the teacher's scores of training claims' candidates, or a
            folder of them: `runs`, which every evaluation writes.
        candidates: take a claim's hard negatives from the teacher's run, its highest first, in
            place of mining: `mining.first_rank` to `last_rank`, at most `mining.hard`.
        temperature: the teacher's scores are divided by it, the student's cosines by
            `optimisation.temperature`; both should then spread alike. 1 fits logits; take about
            0.1 for probabilities, or nearly all candidates get the same target and the gold is
            pushed down. none: the mean standard deviation of a claim's scores, whatever they are.
    """

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


def distillation(
    claims: Tensor, sources: Tensor, teacher: Tensor, temperature: float, teacher_temperature: float
) -> Tensor:
    """Compare the student's distribution over the candidates with the teacher's.

    `claims` [n, d] and `sources` [m, d] are vectors, `teacher` [n, m] its scores, NaN if it
    gave none. The student's cosines are divided by `temperature`, the teacher's scores by theirs.
    Of every claim with two scored candidates or more it is KL(teacher, student); other claims
    count 0; the sum is divided by n. Returns a scalar.
    """
    student = claims @ sources.T / temperature
    scored = ~teacher.isnan()
    mask = scored & (scored.sum(dim=1, keepdim=True) >= 2)
    target = teacher.nan_to_num() / teacher_temperature
    # A row without candidates keeps all columns: an empty softmax would be NaN.
    open_ = mask | ~mask.any(dim=1, keepdim=True)
    expected = target.masked_fill(~open_, -math.inf).log_softmax(dim=1)
    predicted = student.masked_fill(~open_, -math.inf).log_softmax(dim=1)
    # -inf minus -inf would be NaN, and so would its gradient.
    terms = expected.exp() * (expected - predicted).masked_fill(~mask, 0.0)
    return terms.sum() / len(claims)


@dataclass(frozen=True)
class KeepBaseConfig(LossConfig):
    """Set the penalty for leaving the base model's ranking of each batch.

    Args:
        languages: a claim's weight by its language, such as {en: 1.0, de: 0.2}; others count
            0. Empty: every language 1.
    """

    languages: dict[str, Amount] = field(default_factory=dict)

    @property
    def by_language(self) -> dict[str, float]:
        """Return the weights by the languages' primary subtags."""
        return by_primary_language(self.languages, "losses.keep_base.languages")

    def check(self) -> None:
        key = "losses.keep_base"
        self.by_language  # noqa: B018  it checks that no language has two weights
        require(
            self.weight == 0 or not self.languages or any(self.languages.values()),
            f"{key}.languages",
            self.languages,
            "a share above 0 for one language at least, since the weight is above 0",
        )


def keep_base(
    claims: Tensor,
    sources: Tensor,
    base_claims: Tensor,
    base_sources: Tensor,
    weights: Tensor,
    temperature: float,
) -> Tensor:
    """Compute the weighted KL(base, tuned) of each claim's distribution over the sources.

    `claims` [n, d] and `sources` [m, d] are the tuned vectors, `base_*` the base model's,
    `weights` [n] the claims' weights. The sum is divided by n, not by the weights' sum, so that
    a batch without a protected language contributes 0. Returns a scalar.
    """
    tuned = (claims @ sources.T / temperature).log_softmax(dim=1)
    base = (base_claims @ base_sources.T / temperature).log_softmax(dim=1)
    divergence = (base.exp() * (base - tuned)).sum(dim=1)
    return (weights * divergence).sum() / len(weights)


def consistency(claims: Tensor, views: Tensor, owners: Tensor) -> Tensor:
    """Sum 1 - cosine of each view and its claim, divided by the number of claims.

    Views are a claim's original, its translation and both together. `claims` [n, d], `views`
    [v, d] (v may be 0), `owners` [v] the row of each view's claim. Returns a scalar.
    """
    from torch.nn.functional import cosine_similarity

    cosine = cosine_similarity(views, claims[owners], dim=1)
    return (1 - cosine).sum() / len(claims)


@dataclass(frozen=True)
class AlignmentConfig(LossConfig):
    """Set how the student's vectors are brought to the teacher's (LEAF, arXiv 2509.12539).

    Of training claims, and of titles and sentences of the pool's papers, which need no judgement:
    the student reads them as claims.

    Args:
        most: titles and sentences that are drawn, which the teacher encodes once; none: all.
    """

    most: Number | None = 10_000


def alignment(claims: Tensor, texts: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean squared distance of the student's vectors to the teacher's.

    `claims` [n, d] and `texts` [t, d] are the student's, `targets` [n + t, d] the teacher's. Of
    vectors of length 1 it is the mean of 2 (1 - cosine). Returns a scalar.
    """
    from torch import cat  # here: arguments are read before torch is imported

    return (cat((claims, texts)) - targets).square().sum(dim=1).mean()


@dataclass(frozen=True)
class LossesConfig(Settings):
    """Set the loss to minimise: a weighted sum of terms.

    Args:
        info_nce: claim to source.
        distillation: from a teacher's scores.
        keep_base: from the base model's similarities.
        consistency: between a claim and its translation.
        alignment: to a teacher's vectors, without labels.
    """

    info_nce: InfoNCEConfig = field(default_factory=InfoNCEConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    keep_base: KeepBaseConfig = field(default_factory=KeepBaseConfig)
    consistency: LossConfig = field(default_factory=LossConfig)
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)

    def check(self) -> None:
        weighted = (self.distillation, self.keep_base, self.consistency, self.alignment)
        require(
            any(term.weight for term in (self.info_nce, *weighted)),
            "losses.info_nce.weight",
            self.info_nce.weight,
            "above 0 where no other loss is on",
        )

    @property
    def terms(self) -> tuple[str, ...]:
        """Name the terms that `combined` computes: InfoNCE always, others if they have weight."""
        others = {
            "distillation": self.distillation.weight,
            "keep_base": self.keep_base.weight,
            "consistency": self.consistency.weight,
            "alignment": self.alignment.weight,
        }
        return ("info_nce", *(name for name, weight in others.items() if weight))


@dataclass(frozen=True, kw_only=True)
class LossTargets:
    """Losses' targets for this process's n claims and m sources.

    `positives` [n] is the column of each claim's gold; `masked` [n, m] is true if a source is
    the paper of a gold of the claim (`TrainingPairs.papers`) without being its positive. The
    others are set if their loss is on: `teacher` [n, m] (NaN: no score), `base_claims` [n, d],
    `base_sources` [m, d], `keep_weights` [n], `owners` [v], the row of each view's claim, and
    `aligned` [n + t, d], the teacher's vectors of the claims and of t texts without labels.
    """

    positives: Tensor
    masked: Tensor
    teacher: Tensor | None = None
    base_claims: Tensor | None = None
    base_sources: Tensor | None = None
    keep_weights: Tensor | None = None
    owners: Tensor | None = None
    aligned: Tensor | None = None


def combined(
    vectors: Sequence[Tensor], targets: LossTargets, config: LossesConfig, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the weighted sum, and each term before weighting (detached) by its name.

    `vectors` are those of the claims [n, d], the sources [m, d], of all processes if they are
    gathered, the claims' other representations [v, d], and the alignment's texts [t, d].
    """
    claims, sources, views, texts = vectors
    pairs = targets.positives, targets.masked
    terms = {"info_nce": info_nce(claims, sources, *pairs, temperature)}
    if targets.teacher is not None:
        # Without one the scores were divided when they were read.
        own = config.distillation.temperature or 1.0
        terms["distillation"] = distillation(claims, sources, targets.teacher, temperature, own)
    if targets.base_claims is not None:
        assert targets.base_sources is not None and targets.keep_weights is not None
        base = targets.base_claims, targets.base_sources, targets.keep_weights
        terms["keep_base"] = keep_base(claims, sources, *base, temperature)
    if targets.owners is not None:
        terms["consistency"] = consistency(claims, views, targets.owners)
    if targets.aligned is not None:
        terms["alignment"] = alignment(claims, texts, targets.aligned)
    weighted = [getattr(config, name).weight * term for name, term in terms.items()]
    total = sum(weighted[1:], weighted[0])
    return total, {name: term.detach() for name, term in terms.items()}
