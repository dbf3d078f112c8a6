"""The sum of the losses, by the weights in the config."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from claim2source.core.config import require
from claim2source.training.losses.consistency import ConsistencyConfig, consistency
from claim2source.training.losses.distillation import DistillationConfig, distillation
from claim2source.training.losses.info_nce import InfoNCEConfig, info_nce, source_to_claim
from claim2source.training.losses.keep_base import KeepBaseConfig, keep_base
from claim2source.training.losses.matryoshka import MatryoshkaConfig, shortened


@dataclass(frozen=True)
class LossesConfig:
    """What is minimised: a weighted sum of losses.

    Args:
        info_nce: claim to source, and back.
        distillation: from a teacher's scores.
        keep_base: from the base model's similarities.
        consistency: between a claim and its translation.
        matryoshka: InfoNCE on shortened vectors.
    """

    info_nce: InfoNCEConfig = field(default_factory=InfoNCEConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    keep_base: KeepBaseConfig = field(default_factory=KeepBaseConfig)
    consistency: ConsistencyConfig = field(default_factory=ConsistencyConfig)
    matryoshka: MatryoshkaConfig = field(default_factory=MatryoshkaConfig)

    def __post_init__(self) -> None:
        shortened = self.matryoshka.weight if self.matryoshka.dimensions else 0.0
        others = (self.distillation.weight, self.keep_base.weight, self.consistency.weight)
        require(
            any((self.info_nce.weight, shortened, *others)),
            "losses.info_nce.weight",
            self.info_nce.weight,
            "above 0 where no other loss is on",
        )


@dataclass(frozen=True)
class LossInputs:
    """All that a loss may look at, for this process's n claims.

    `claims` [n, d]; `sources` [m, d], of every process where they are gathered; `positives`
    [n] and `masked` [n, m] as in `info_nce`. `all_claims` [c, d] with `rows` [n] and
    `claims_masked` [n, c] serve the way from source to claim. `teacher` [n, m], `base_claims`
    [n, d], `base_sources` [m, d], `keep_weights` [n], `views` [v, d] and `owners` [v] are
    there where their loss is on.
    """

    claims: Tensor
    sources: Tensor
    positives: Tensor
    masked: Tensor
    all_claims: Tensor | None = None
    rows: Tensor | None = None
    claims_masked: Tensor | None = None
    teacher: Tensor | None = None
    base_claims: Tensor | None = None
    base_sources: Tensor | None = None
    keep_weights: Tensor | None = None
    views: Tensor | None = None
    owners: Tensor | None = None


def combined(
    inputs: LossInputs, config: LossesConfig, temperature: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum, and each term before weighting (detached) by its name."""
    terms: dict[str, Tensor] = {}
    weights: dict[str, float] = {}
    terms["info_nce"] = _contrastive(inputs, config, temperature, None)
    weights["info_nce"] = config.info_nce.weight
    sizes = config.matryoshka.dimensions
    if sizes:
        parts = [_contrastive(inputs, config, temperature, size) for size in sizes]
        terms["matryoshka"] = sum(parts[1:], parts[0]) / len(parts)
        weights["matryoshka"] = config.matryoshka.weight
    if inputs.teacher is not None:
        terms["distillation"] = distillation(
            inputs.claims,
            inputs.sources,
            inputs.positives,
            inputs.teacher,
            kind=config.distillation.kind,
            temperature=temperature,
            teacher_temperature=config.distillation.temperature,
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
            config.keep_base.temperature,
        )
        weights["keep_base"] = config.keep_base.weight
    if inputs.views is not None:
        assert inputs.owners is not None
        terms["consistency"] = consistency(
            inputs.claims, inputs.views, inputs.owners, len(inputs.claims)
        )
        weights["consistency"] = config.consistency.weight
    weighted = [weights[name] * term for name, term in terms.items()]
    total = sum(weighted[1:], weighted[0])
    return total, {name: term.detach() for name, term in terms.items()}


def _contrastive(
    inputs: LossInputs, config: LossesConfig, temperature: float, size: int | None
) -> Tensor:
    """InfoNCE, one way or the mean of both, on whole or on shortened vectors."""

    def cut(vectors: Tensor) -> Tensor:
        return vectors if size is None else shortened(vectors, size)

    claims, sources = cut(inputs.claims), cut(inputs.sources)
    forth = info_nce(claims, sources, inputs.positives, inputs.masked, temperature)
    if not config.info_nce.both_ways:
        return forth
    assert inputs.all_claims is not None and inputs.rows is not None
    assert inputs.claims_masked is not None
    back = source_to_claim(
        sources[inputs.positives],
        cut(inputs.all_claims),
        inputs.rows,
        inputs.claims_masked,
        temperature,
    )
    return (forth + back) / 2
