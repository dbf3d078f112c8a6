"""Add the losses, weighted as the config says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from claim2source.core.config import Settings, require
from claim2source.training.losses.alignment import AlignmentConfig, alignment
from claim2source.training.losses.consistency import ConsistencyConfig, consistency
from claim2source.training.losses.distillation import DistillationConfig, distillation
from claim2source.training.losses.info_nce import InfoNCEConfig, info_nce
from claim2source.training.losses.keep_base import KeepBaseConfig, keep_base
from claim2source.training.losses.matryoshka import MatryoshkaConfig, shortened

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossesConfig(Settings):
    """Set the loss to minimise: a weighted sum of terms.

    Args:
        info_nce: claim to source, and back.
        distillation: from a teacher's scores.
        keep_base: from the base model's similarities.
        consistency: between a claim and its translation.
        matryoshka: InfoNCE on shortened vectors.
        alignment: to a teacher's vectors, without labels.
    """

    info_nce: InfoNCEConfig = field(default_factory=InfoNCEConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    keep_base: KeepBaseConfig = field(default_factory=KeepBaseConfig)
    consistency: ConsistencyConfig = field(default_factory=ConsistencyConfig)
    matryoshka: MatryoshkaConfig = field(default_factory=MatryoshkaConfig)
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)

    def check(self) -> None:
        named = (self.distillation, self.keep_base, self.consistency, self.alignment)
        others = (term.weight for term in named)
        require(
            any((self.info_nce.weight, self.matryoshka.dimensions, *others)),
            "losses.info_nce.weight",
            self.info_nce.weight,
            "above 0 where no other loss is on",
        )


@dataclass(frozen=True, kw_only=True)
class LossTargets:
    """Hold what the losses compare the vectors with, for this process's n claims and m sources.

    `positives` [n] is the column of each claim's gold; `masked` [n, m] is true where a source is
    the paper of a gold of the claim (`TrainingPairs.papers`) without being its positive. `rows`
    [n] are the places of the n claims among the c claims of all processes, and `claims_masked`
    [n, c] is true where another claim has the paper of the row's source as gold (set only where
    InfoNCE is trained both ways). The others are set where their loss is on: `teacher`
    [n, m] (NaN: no score), `base_claims` [n, d], `base_sources` [m, d], `keep_weights` [n],
    `owners` [v], the row of each view's claim, and `aligned` [n + t, d], the teacher's vectors of
    the claims and of t texts without labels.
    """

    positives: Tensor
    masked: Tensor
    rows: Tensor | None = None
    claims_masked: Tensor | None = None
    teacher: Tensor | None = None
    base_claims: Tensor | None = None
    base_sources: Tensor | None = None
    keep_weights: Tensor | None = None
    owners: Tensor | None = None
    aligned: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossInputs(LossTargets):
    """Hold the vectors beside their targets.

    `claims` [n, d]; `sources` [m, d], of all processes where they are gathered; `all_claims`
    [c, d] for InfoNCE both ways; `views` [v, d], other representations of claims; `texts` [t, d],
    for the alignment.
    """

    claims: Tensor
    sources: Tensor
    all_claims: Tensor | None = None
    views: Tensor | None = None
    texts: Tensor | None = None


def combined(
    inputs: LossInputs, config: LossesConfig, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the weighted sum, and each term before weighting (detached) by its name."""
    terms = {"info_nce": _contrastive(inputs, config, temperature, None)}
    weights = {"info_nce": config.info_nce.weight}
    sizes = config.matryoshka.dimensions
    if sizes:
        parts = [_contrastive(inputs, config, temperature, size) for size in sizes]
        terms["matryoshka"] = sum(parts[1:], parts[0]) / len(parts)
        weights["matryoshka"] = 1.0
    if inputs.teacher is not None:
        terms["distillation"] = distillation(
            inputs.claims,
            inputs.sources,
            inputs.teacher,
            temperature=temperature,
            # Without one the scores were divided when they were read.
            teacher_temperature=config.distillation.temperature or 1.0,
        )
        weights["distillation"] = config.distillation.weight
    if inputs.base_claims is not None:
        assert inputs.base_sources is not None and inputs.keep_weights is not None
        terms["keep_base"] = keep_base(
            inputs.claims,
            inputs.sources,
            inputs.base_claims,
            inputs.base_sources,
            inputs.keep_weights,
            temperature if config.keep_base.temperature is None else config.keep_base.temperature,
        )
        weights["keep_base"] = config.keep_base.weight
    if inputs.owners is not None:
        assert inputs.views is not None
        terms["consistency"] = consistency(inputs.claims, inputs.views, inputs.owners)
        weights["consistency"] = config.consistency.weight
    if inputs.aligned is not None:
        assert inputs.texts is not None
        terms["alignment"] = alignment(inputs.claims, inputs.texts, inputs.aligned)
        weights["alignment"] = config.alignment.weight
    weighted = [weights[name] * term for name, term in terms.items()]
    total = sum(weighted[1:], weighted[0])
    return total, {name: term.detach() for name, term in terms.items()}


def _contrastive(
    inputs: LossInputs, config: LossesConfig, temperature: float, size: int | None
) -> Tensor:
    """Compute InfoNCE, one way or the mean of both, on vectors cut to `size` numbers."""

    def cut(vectors: Tensor) -> Tensor:
        return vectors if size is None else shortened(vectors, size)

    claims, sources = cut(inputs.claims), cut(inputs.sources)
    forth = info_nce(claims, sources, inputs.positives, inputs.masked, temperature)
    if not config.info_nce.both_ways:
        return forth
    assert inputs.all_claims is not None and inputs.rows is not None
    assert inputs.claims_masked is not None
    own, others = sources[inputs.positives], cut(inputs.all_claims)
    back = info_nce(own, others, inputs.rows, inputs.claims_masked, temperature)
    return (forth + back) / 2
