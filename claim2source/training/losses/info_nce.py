"""Compute InfoNCE over in-batch negatives and mined hard negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from claim2source.core.config import Amount, Between, Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class InfoNCEConfig(Settings):
    """Set the contrastive loss (2026 paper, table 6).

    Args:
        weight: of this term in the sum.
        both_ways: also each source against the claims of the batch.
        false_negative_margin: what the model itself scores above the gold's cosine by more than
            this is no negative, either way (GISTEmbed; Qwen3-Embedding with 0.1); none: all are.
    """

    weight: Amount = 1.0
    both_ways: bool = False
    false_negative_margin: Annotated[float, Between(0, 2)] | None = None


def false_negatives(claims: Tensor, sources: Tensor, positives: Tensor, margin: float) -> Tensor:
    """Mark [n, m] the sources that score above a claim's own by more than `margin`.

    Vectors are taken as they are, without gradient; `positives` [n] is the column of each claim's
    source, which is never marked. With claims and sources exchanged it serves the way back.
    """
    scores = claims.detach() @ sources.detach().T
    return scores > scores.gather(1, positives.unsqueeze(1)) + margin


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
