"""InfoNCE over in-batch and mined negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from claim2source.core.config import require


@dataclass(frozen=True)
class InfoNCEConfig:
    """The contrastive loss (2026 paper, table 6).

    Args:
        weight: of this term in the sum.
        both_ways: also each source against the claims of the batch.
    """

    weight: float = 1.0
    both_ways: bool = False

    def __post_init__(self) -> None:
        key = "losses.info_nce.weight"
        require(0 <= self.weight < math.inf, key, self.weight, "0 or more, and finite")


def info_nce(
    claims: Tensor, sources: Tensor, positives: Tensor, masked: Tensor, temperature: float
) -> Tensor:
    """Mean cross-entropy of every claim's own source against all sources of the batch.

    `claims` [n, d] and `sources` [m, d] are float32 vectors, `positives` [n] the column of
    each claim's source, `masked` [n, m] true where a source is gold for the claim without
    being the one trained on: neither positive nor negative. Returns a scalar.
    """
    logits = claims @ sources.T / temperature
    logits = logits.masked_fill(masked, -torch.inf)
    return torch.nn.functional.cross_entropy(logits, positives)


def source_to_claim(
    own_sources: Tensor, claims: Tensor, rows: Tensor, masked: Tensor, temperature: float
) -> Tensor:
    """The other way round: every claim's source against all claims of the batch.

    `own_sources` [n, d] are the sources of n claims, `claims` [c, d] all claims, `rows` [n] the
    place of each of the n among them, `masked` [n, c] true where another claim has that source
    as gold too. Returns a scalar.
    """
    return info_nce(own_sources, claims, rows, masked, temperature)
