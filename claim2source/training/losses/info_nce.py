"""Compute InfoNCE over in-batch negatives and mined hard negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claim2source.core.config import Amount, Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class InfoNCEConfig(Settings):
    """Set the contrastive loss (2026 paper, table 6).

    Args:
        weight: of this term in the sum.
        both_ways: also each source against the claims of the batch.
    """

    weight: Amount = 1.0
    both_ways: bool = False


def info_nce(
    claims: Tensor, sources: Tensor, positives: Tensor, masked: Tensor, temperature: float
) -> Tensor:
    """Compute the mean cross-entropy of each claim's own source against all sources.

    `claims` [n, d] and `sources` [m, d] are float32 vectors, `positives` [n] the column of
    each claim's source, `masked` [n, m] true where a source is neither positive nor negative:
    another gold of the claim. With claims and sources exchanged it is the loss of the way back.
    Returns a scalar.
    """
    from torch.nn.functional import cross_entropy

    logits = claims @ sources.T / temperature
    logits = logits.masked_fill(masked, -math.inf)
    return cross_entropy(logits, positives)
