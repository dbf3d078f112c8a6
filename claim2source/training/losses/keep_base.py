"""Keep the base model's ranking of each batch: KL to its similarities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from claim2source.core.config import Amount, Positive, Settings, require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KeepBaseConfig(Settings):
    """Set the penalty for leaving the base model's ranking of each batch.

    Args:
        weight: of this term in the sum; 0 leaves it out.
        languages: a claim's weight by its language, such as {en: 1.0, de: 0.2}; others count
            0. Empty: every language 1.
        temperature: cosines are divided by it on both sides; none:
            `optimisation.temperature`.
    """

    weight: Amount = 0.0
    languages: dict[str, Amount] = field(default_factory=dict)
    temperature: Positive | None = None

    def check(self) -> None:
        key = "losses.keep_base"
        require(
            self.weight == 0 or not self.languages or any(self.languages.values()),
            f"{key}.languages",
            self.languages,
            "a share above 0 for one language at least, since the weight is above 0",
        )


def language_weights(languages: list[str], wanted: Mapping[str, float]) -> list[float]:
    """Look up each claim's weight by its language."""
    return [wanted.get(language, 0.0) if wanted else 1.0 for language in languages]


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
