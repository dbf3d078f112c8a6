"""InfoNCE over in-batch and mined negatives."""

from __future__ import annotations

import torch
from torch import Tensor


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
