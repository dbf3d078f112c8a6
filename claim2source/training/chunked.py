"""GradCache: the gradient of a large batch in the memory of one chunk (Gao et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from claim2source.training.checkpoint import random_state, restore_random_state

Chunks = Sequence[Sequence[int]]
# From row numbers to their vectors [rows, d].
Encode = Callable[[Sequence[int]], Tensor]
# From all vectors [n, d] to the loss, a scalar.
LossOf = Callable[[Tensor], Tensor]
Backward = Callable[[Tensor], None]


def whole_backward(
    chunks: Sequence[Sequence[int]],
    encode: Encode,
    loss_of: LossOf,
    backward: Callable[[Tensor], None],
) -> Tensor:
    """Forward and backward with every chunk's activations kept; returns the loss, detached."""
    parts = [encode(rows) for rows in chunks]
    loss = loss_of(_in_order(torch.cat(parts), chunks))
    backward(loss)
    return loss.detach()


def chunked_backward(
    chunks: Sequence[Sequence[int]],
    encode: Encode,
    loss_of: LossOf,
    backward: Callable[[Tensor], None],
) -> Tensor:
    """The same gradients with one chunk's activations at a time; returns the loss, detached.

    All chunks but the last are encoded without gradient, the last with; the loss goes backward
    through the last, and its gradient by the other vectors is kept; then each of them is encoded
    again, with the random state it had, and takes its share backward.
    """
    states, parts = [], []
    with torch.no_grad():
        for rows in chunks[:-1]:
            states.append(random_state())
            parts.append(encode(rows))
    # Autocast keeps weights cast without gradient, and would use them again below.
    torch.clear_autocast_cache()
    leaves = [part.requires_grad_() for part in parts]
    last = encode(chunks[-1])
    after = random_state()
    loss = loss_of(_in_order(torch.cat([*leaves, last]), chunks))
    backward(loss)
    del last
    for rows, state, leaf in zip(chunks, states, leaves, strict=False):
        # Dropout must fall as it fell in the first pass.
        restore_random_state(state)
        torch.autograd.backward(encode(rows), leaf.grad)
    restore_random_state(after)
    return loss.detach()


def _in_order(vectors: Tensor, chunks: Chunks) -> Tensor:
    """Vectors that stand chunk after chunk, in the order of their row numbers."""
    order = torch.tensor([row for rows in chunks for row in rows])
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return vectors[back.to(vectors.device)]
