"""Compute a large batch's gradient in the memory of one chunk: GradCache (Gao et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from claim2source.models import Tokens
from claim2source.training.state import random_state, restore_random_state

Chunks = Sequence[Sequence[int]]
Encode = Callable[[Sequence[int]], Tensor]  # row numbers -> their vectors [rows, d]
LossOf = Callable[[Tensor], Tensor]  # all vectors [n, d] -> the loss, a scalar
Backward = Callable[[Tensor], None]
Run = Callable[[Chunks, Encode, LossOf, Backward], Tensor]


def whole_backward(chunks: Chunks, encode: Encode, loss_of: LossOf, backward: Backward) -> Tensor:
    """Run forward and backward, keeping all activations; returns the loss, detached."""
    loss = loss_of(_in_order(torch.cat([encode(rows) for rows in chunks]), chunks))
    backward(loss)
    return loss.detach()


def chunked_backward(chunks: Chunks, encode: Encode, loss_of: LossOf, backward: Backward) -> Tensor:
    """Compute the same gradients, keeping one chunk's activations; returns the loss, detached.

    All chunks but the last are encoded without gradient, the last with. The loss goes backward
    through the last chunk and leaves its gradient with respect to the other vectors; then each
    other chunk is encoded again with the RNG state it had, and its gradient goes backward.
    """
    states, vectors = [], []
    with torch.no_grad():
        for rows in chunks[:-1]:
            states.append(random_state())
            vectors.append(encode(rows))
    # Autocast caches the cast weights without gradient and would reuse them below.
    torch.clear_autocast_cache()
    leaves = [part.requires_grad_() for part in vectors]
    last = encode(chunks[-1])
    after = random_state()
    loss = loss_of(_in_order(torch.cat([*leaves, last]), chunks))
    backward(loss)
    del last
    for rows, state, leaf in zip(chunks, states, leaves, strict=False):
        # Dropout must be that of the first pass.
        restore_random_state(state)
        torch.autograd.backward(encode(rows), leaf.grad)
    restore_random_state(after)
    return loss.detach()


def length_chunks(tokens: Sequence[Tokens], size: int) -> list[list[int]]:
    """Group positions of texts into chunks of `size` by length, shortest first.

    The last chunk is full and has the longest texts: it is encoded only once.
    """
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row].ids))
    cuts = [*range(len(order) % size, len(order), size), len(order)]
    return [order[start:end] for start, end in pairwise([0, *cuts]) if end > start]


def token_chunks(lengths: Sequence[int], budget: int, *, packed: bool = False) -> list[list[int]]:
    """Group positions of texts of these lengths into chunks of at most `budget` tokens.

    Padding counts, unless texts are packed. As in `length_chunks` the shortest texts come first
    and the last chunk, which is encoded only once, is full; a longer text is a chunk by itself.
    """
    chunks: list[list[int]] = []
    longest = total = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        padded = (len(chunks[-1]) + 1) * longest if chunks else 0
        if not chunks or (total + lengths[row] if packed else padded) > budget:
            chunks.append([])
            longest, total = lengths[row], 0
        chunks[-1].append(row)
        total += lengths[row]
    return [chunk[::-1] for chunk in reversed(chunks)]


def _in_order(vectors: Tensor, chunks: Chunks) -> Tensor:
    """Put vectors that come chunk after chunk into the order of their row numbers."""
    order = torch.tensor([row for rows in chunks for row in rows])
    return vectors[order.argsort().to(vectors.device)]
