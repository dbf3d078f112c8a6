"""A user's losses, in their own file."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from claim2source.training.losses import LossInputs


@dataclass(frozen=True)
class Uniformity:
    """Penalise sources that lie close together (Wang and Isola, 2020)."""

    weight: float = 1.0
    sharpness: float = 2.0

    def compute(self, inputs: LossInputs) -> torch.Tensor:
        distances = torch.pdist(inputs.sources).square()
        return distances.mul(-self.sharpness).exp().mean().log()


@dataclass(frozen=True)
class NearBase:
    """Penalise the distance of claims and views from the base model's vectors of the claims.

    It needs two inputs, and draws random numbers.
    """

    weight: float = 1.0
    noise: float = 0.1

    needs = ("base_vectors", "translations")

    def compute(self, inputs: LossInputs) -> torch.Tensor:
        targets = inputs.targets
        assert targets.base_claims is not None and targets.owners is not None
        noise = torch.randn_like(inputs.claims) * self.noise
        claims = (inputs.claims + noise - targets.base_claims).square().sum()
        views = (inputs.views - targets.base_claims[targets.owners]).square().sum()
        return (claims + views) / len(inputs.claims)


@dataclass(frozen=True)
class NoWeight:
    """Lack a weight."""

    def compute(self, inputs: LossInputs) -> torch.Tensor:
        return inputs.claims.sum()


@dataclass(frozen=True)
class NeedsMore(Uniformity):
    """Need an input that does not exist."""

    needs = ("more",)
