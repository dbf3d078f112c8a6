"""Vectors of all processes, with gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    """All-gather whose backward sums what every process's loss asks of a vector."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], rank: int) -> Tensor:
        ctx.counts, ctx.rank = counts, rank
        # Collectives want equal shapes: shares are padded, and cut again.
        padded = own.new_zeros(max(counts), own.shape[1])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        start = sum(ctx.counts[: ctx.rank])
        return total[start : start + ctx.counts[ctx.rank]], None, None


def gather_vectors(own: Tensor, counts: Sequence[int], rank: int) -> Tensor:
    """Vectors [sum of counts, d] of all processes by rank; `own` [counts[rank], d] are this one's.

    The gradient of a vector is the sum over the losses of all processes: once the weights'
    gradients are averaged over processes, as DDP does, they are those of the mean loss. Every
    process must call it, forward and backward, in the same order.
    """
    if len(counts) == 1:
        return own
    if len(own) != counts[rank]:
        raise ValueError(f"{len(own)} vectors for a share of {counts[rank]}")
    return _Gather.apply(own, tuple(counts), rank)  # type: ignore[no-any-return, no-untyped-call]
