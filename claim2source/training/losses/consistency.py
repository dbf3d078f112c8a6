"""Translated-pair consistency: one post, several texts, one vector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from claim2source.core.config import require


@dataclass(frozen=True)
class ConsistencyConfig:
    """Original, translation and both together are views of one claim.

    Args:
        weight: of this term in the sum; 0 leaves it out.
    """

    weight: float = 0.0

    def __post_init__(self) -> None:
        key = "losses.consistency.weight"
        require(0 <= self.weight < math.inf, key, self.weight, "0 or more, and finite")


def consistency(claims: Tensor, views: Tensor, owners: Tensor, claims_in_batch: int) -> Tensor:
    """Sum of 1 - cosine between each view and its claim, divided by the claims in the batch.

    `claims` [n, d], `views` [v, d] (v may be 0), `owners` [v] the row of each view's claim.
    Returns a scalar.
    """
    cosine = torch.nn.functional.cosine_similarity(views, claims[owners], dim=1)
    return (1 - cosine).sum() / claims_in_batch
