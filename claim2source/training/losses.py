"""Define the training losses: each is a dataclass that computes its term of the sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, get_args

from claim2source.core.config import Amount, Number, Positive, Settings, require
from claim2source.core.languages import by_primary_language

if TYPE_CHECKING:
    from torch import Tensor


# Inputs that a loss may need besides the vectors of claims and sources and the positives.
Need = Literal["base_vectors", "teacher_scores", "translations", "aligned_texts"]
NEEDS: tuple[Need, ...] = get_args(Need)


@dataclass(frozen=True, kw_only=True)
class LossTargets:
    """Targets of the losses for this process's n claims and m sources.

    `positives` [n] is the column of each claim's gold; `masked` [n, m] is true if a source is
    the paper of a gold of the claim (`TrainingPairs.papers`) but not its positive; `languages` are
    those of the claims. The others are set if a loss needs them: `teacher` [n, m] (NaN: no
    score) for `teacher_scores`; `base_claims` [n, d] and `base_sources` [m, d] for `base_vectors`;
    `owners` [v], the row of each view's claim, for `translations`; and `aligned` [n + t, d], the
    teacher's vectors of the claims and of t texts without labels, for `aligned_texts`.
    """

    positives: Tensor
    masked: Tensor
    languages: tuple[str, ...] = ()
    teacher: Tensor | None = None
    base_claims: Tensor | None = None
    base_sources: Tensor | None = None
    owners: Tensor | None = None
    aligned: Tensor | None = None


@dataclass(frozen=True)
class LossInputs:
    """Inputs of a loss: a batch's vectors, float32, and its targets.

    `claims` [n, d] are this process's claims, `sources` [m, d] the sources of all processes if
    they are gathered, `views` [v, d] other representations of the claims, and `texts` [t, d] texts
    without labels. Cosines are divided by `temperature`.
    """

    claims: Tensor
    sources: Tensor
    views: Tensor
    texts: Tensor
    targets: LossTargets
    temperature: float


class Loss(Protocol):
    """Compute one term of the sum: any dataclass with a `weight` and this method.

    `needs`, an optional class attribute, names the inputs that it uses besides vectors and
    positives, from `NEEDS`. Batches may be chunked or whole, in one process or several: the
    gradients are the same.
    """

    @property
    def weight(self) -> float:
        """Return the factor of the term in the sum; 0 leaves it out."""
        ...

    def compute(self, inputs: LossInputs) -> Tensor:
        """Compute the term, a scalar."""
        ...


def combined(losses: Mapping[str, Loss], inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the weighted sum of losses, and each term before weighting (detached) by its name."""
    terms: dict[str, Tensor] = {}
    weighted: list[Tensor] = []
    for name, loss in losses.items():
        term = loss.compute(inputs)
        terms[name] = term.detach()
        weighted.append(loss.weight * term)
    return sum(weighted[1:], weighted[0]), terms


@dataclass(frozen=True)
class WeightedLoss(Settings):
    """Base of the package's own losses.

    Args:
        weight: weight of this term in the sum; 0 leaves it out. A loss that is not listed has 0.
    """

    weight: Amount = 1.0
    needs: ClassVar[tuple[Need, ...]] = ()


@dataclass(frozen=True)
class InfoNCE(WeightedLoss):
    """Contrastive loss (2026 paper, table 6).

    Args:
        weight: weight of the contrastive loss: a claim's gold against all sources of the batch.
    """

    def compute(self, inputs: LossInputs) -> Tensor:
        pairs = inputs.targets.positives, inputs.targets.masked
        return info_nce(inputs.claims, inputs.sources, *pairs, inputs.temperature)


def info_nce(
    claims: Tensor, sources: Tensor, positives: Tensor, masked: Tensor, temperature: float
) -> Tensor:
    """Compute the mean cross-entropy of each claim's own source against all sources.

    `claims` [n, d] and `sources` [m, d] are float32 vectors, `positives` [n] the column of
    each claim's source, `masked` [n, m] is true if a source is neither positive nor negative:
    another gold of the claim. Returns a scalar.
    """
    from torch.nn.functional import cross_entropy

    logits = claims @ sources.T / temperature
    logits = logits.masked_fill(masked, -math.inf)
    return cross_entropy(logits, positives)


@dataclass(frozen=True)
class Distillation(WeightedLoss):
    """Learn from the scores of a re-ranker, or of any other run.

    Only candidates in the batch are used: a pair's gold, its hard negatives, and the sources of
    other pairs. With `candidates` the hard negatives are the teacher's own. Otherwise mined ones
    (`mining.hard` + `mining.random`) with a teacher's score are used first, hardest first: mine
    more than `optimisation.negatives`, or have the teacher score the mined file.

    Args:
        weight: weight of the loss that learns a teacher's scores of each claim's candidates.
        scores: run file (TREC) with the teacher's scores of training claims' candidates, or a
            folder of them, such as `runs` of an evaluation.
        candidates: take a claim's hard negatives from the teacher's run, highest first, instead of
            mining: `mining.first_rank` to `last_rank`, at most `mining.hard`.
        temperature: divisor of the teacher's scores; the student's cosines are divided by
            `optimisation.temperature`, and both should then have a similar spread. 1 fits logits;
            use about 0.1 for probabilities, or nearly all candidates get the same target and the
            gold is pushed down. none: the mean standard deviation of a claim's scores.
    """

    scores: Path | None = None
    temperature: Positive | None = 1.0
    candidates: bool = False

    needs: ClassVar[tuple[Need, ...]] = ("teacher_scores",)

    def check(self) -> None:
        allowed = "false while losses.distillation.weight is 0"
        require(self.weight > 0 or not self.candidates, "candidates", True, allowed)
        allowed = "a run file with the teacher's scores, because the weight is above 0"
        require(self.weight == 0 or self.scores is not None, "scores", self.scores, allowed)

    def compute(self, inputs: LossInputs) -> Tensor:
        teacher = inputs.targets.teacher
        assert teacher is not None
        # Without one, the scores were divided when they were read.
        own = self.temperature or 1.0
        return distillation(inputs.claims, inputs.sources, teacher, inputs.temperature, own)


def distillation(
    claims: Tensor, sources: Tensor, teacher: Tensor, temperature: float, teacher_temperature: float
) -> Tensor:
    """Compare the student's distribution over the candidates with the teacher's.

    `claims` [n, d] and `sources` [m, d] are vectors, `teacher` [n, m] are its scores, NaN if
    absent. The student's cosines are divided by `temperature`, the teacher's scores by theirs.
    The term of a claim with at least two scored candidates is KL(teacher, student), and 0 for
    others; the sum is divided by n. Returns a scalar.
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
class KeepBase(WeightedLoss):
    """Penalise deviating from the base model's ranking of each batch.

    Args:
        weight: weight of the KL divergence from the base model's ranking of each batch.
        languages: a claim's weight by its language, such as {en: 1.0, de: 0.2}; others have
            0. Empty: every language has 1.
    """

    languages: dict[str, Amount] = field(default_factory=dict)

    needs: ClassVar[tuple[Need, ...]] = ("base_vectors",)

    @property
    def by_language(self) -> dict[str, float]:
        """Return the weights by primary language subtag."""
        return by_primary_language(self.languages, "languages")

    def check(self) -> None:
        self.by_language  # noqa: B018  checks that no language has two weights
        require(
            self.weight == 0 or not self.languages or any(self.languages.values()),
            "languages",
            self.languages,
            "a share above 0 for at least one language, because the weight is above 0",
        )

    def claim_weights(self, languages: Sequence[str]) -> list[float]:
        """Return the weight of each claim by its language."""
        by_language = self.by_language
        if not by_language:
            return [1.0] * len(languages)
        return [by_language.get(language, 0.0) for language in languages]

    def compute(self, inputs: LossInputs) -> Tensor:
        from torch import tensor  # here: arguments are read before torch is imported

        targets = inputs.targets
        assert targets.base_claims is not None and targets.base_sources is not None
        weights = tensor(self.claim_weights(targets.languages))
        # A GPU continues to compute meanwhile.
        weights = weights.to(inputs.claims.device, non_blocking=True)
        return keep_base(
            inputs.claims,
            inputs.sources,
            targets.base_claims,
            targets.base_sources,
            weights,
            inputs.temperature,
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


@dataclass(frozen=True)
class Consistency(WeightedLoss):
    """Bring a claim and its translation together.

    Args:
        weight: weight of the distance between a claim and its translation.
    """

    needs: ClassVar[tuple[Need, ...]] = ("translations",)

    def compute(self, inputs: LossInputs) -> Tensor:
        assert inputs.targets.owners is not None
        return consistency(inputs.claims, inputs.views, inputs.targets.owners)


def consistency(claims: Tensor, views: Tensor, owners: Tensor) -> Tensor:
    """Sum 1 - cosine of each view and its claim, divided by the number of claims.

    Views are a claim's original, its translation and both together. `claims` [n, d], `views`
    [v, d] (v may be 0), `owners` [v] the row of each view's claim. Returns a scalar.
    """
    from torch.nn.functional import cosine_similarity

    cosine = cosine_similarity(views, claims[owners], dim=1)
    return (1 - cosine).sum() / len(claims)


@dataclass(frozen=True)
class Alignment(WeightedLoss):
    """Move the student's vectors to the teacher's (LEAF, arXiv 2509.12539).

    The texts are training claims, and titles and sentences of the pool's papers, which need no
    labels and are encoded as claims.

    Args:
        weight: weight of the distance between the student's vectors and the teacher's.
        most: number of titles and sentences, drawn at random; the teacher encodes them once;
            none: all.
    """

    most: Number | None = 10_000
    needs: ClassVar[tuple[Need, ...]] = ("aligned_texts",)

    def compute(self, inputs: LossInputs) -> Tensor:
        assert inputs.targets.aligned is not None
        return alignment(inputs.claims, inputs.texts, inputs.targets.aligned)


def alignment(claims: Tensor, texts: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean squared distance of the student's vectors to the teacher's.

    `claims` [n, d] and `texts` [t, d] are the student's, `targets` [n + t, d] the teacher's. For
    vectors of length 1 it is the mean of 2 (1 - cosine). Returns a scalar.
    """
    from torch import cat  # here: arguments are read before torch is imported

    return (cat((claims, texts)) - targets).square().sum(dim=1).mean()
