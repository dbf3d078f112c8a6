"""Keeping what the base model knew: KL to its similarities on each batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from claim2source.core.config import require


@dataclass(frozen=True)
class KeepBaseConfig:
    """A penalty on leaving the base model's ranking of each batch.

    Args:
        weight: of this term in the sum; 0 leaves it out.
        languages: a claim's share by its language, such as {en: 1.0, de: 0.2}; others count
            0. Empty: every language 1.
        temperature: cosines are divided by it on both sides.
    """

    weight: float = 0.0
    languages: dict[str, float] = field(default_factory=dict)
    temperature: float = 0.05

    def __post_init__(self) -> None:
        key = "losses.keep_base"
        good = 0 <= self.weight < math.inf
        require(good, f"{key}.weight", self.weight, "0 or more, and finite")
        good = 0 < self.temperature < math.inf
        require(good, f"{key}.temperature", self.temperature, "above 0, and finite")
        for language, share in self.languages.items():
            good = 0 <= share < math.inf
            require(good, f"{key}.languages.{language}", share, "0 or more, and finite")
        shares = self.languages.values()
        require(
            self.weight == 0 or not shares or any(shares),
            f"{key}.languages",
            self.languages,
            "a share above 0 for one language at least, since the weight is above 0",
        )


def language_weights(languages: list[str], wanted: Mapping[str, float]) -> list[float]:
    """The weight of each claim, by its language."""
    return [wanted.get(language, 0.0) if wanted else 1.0 for language in languages]


def keep_base(
    claims: Tensor,
    sources: Tensor,
    base_claims: Tensor,
    base_sources: Tensor,
    weights: Tensor,
    temperature: float,
) -> Tensor:
    """Weighted KL(base, tuned) of every claim's distribution over the batch's sources.

    `claims` [n, d] and `sources` [m, d] are the tuned vectors, `base_*` the base model's,
    `weights` [n] the claims' weights. Divided by n, not by the weights' sum: a batch without
    a protected language is left alone. Golds count as all others do. Returns a scalar.
    """
    tuned = (claims @ sources.T / temperature).log_softmax(dim=1)
    base = (base_claims @ base_sources.T / temperature).log_softmax(dim=1)
    divergence = (base.exp() * (base - tuned)).sum(dim=1)
    return (weights * divergence).sum() / len(weights)
