"""Compute a large batch's gradient in the memory of one chunk: GradCache (Gao et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from claim2source.training.resume import RandomState, random_state, restore_random_state

Chunks = Sequence[Sequence[int]]
Encode = Callable[[Sequence[int]], Tensor]  # row numbers -> their vectors [rows, d]
LossOf = Callable[[Tensor], Tensor]  # all vectors [n, d] -> the loss, a scalar
# A context of one backward pass from an output; none follows where the flag says it is the last.
BackwardContext = Callable[[Tensor, bool], AbstractContextManager[object]]


@dataclass
class Forward:
    """Hold a batch's loss, and the chunks that are to be encoded again in its backward pass.

    Each of them has its rows, the RNG state of its first pass and its vectors, which the loss
    takes for leaves. `after` is the RNG state after the forward pass.
    """

    loss: Tensor
    encode: Encode
    repeats: list[tuple[Sequence[int], RandomState, Tensor]]
    after: RandomState | None = None

    def backward(self, loss: Tensor, context: BackwardContext = lambda *_: nullcontext()) -> None:
        """Add the gradients of `loss`, which is `self.loss` or a multiple of it."""
        with context(loss, not self.repeats):
            loss.backward()  # type: ignore[no-untyped-call]
        while self.repeats:
            rows, state, leaf = self.repeats.pop(0)
            # Dropout must be that of the first pass.
            restore_random_state(state)
            vectors = self.encode(rows)
            with context(vectors, not self.repeats):
                torch.autograd.backward(vectors, leaf.grad)
        if self.after is not None:
            restore_random_state(self.after)


def whole_forward(chunks: Chunks, encode: Encode, loss_of: LossOf) -> Forward:
    vectors = torch.cat([encode(rows) for rows in chunks])
    return Forward(loss_of(_in_order(vectors, chunks)), encode, [])


def chunked_forward(chunks: Chunks, encode: Encode, loss_of: LossOf) -> Forward:
    """Compute the loss for the same gradients, keeping one chunk's activations.

    All chunks but the last are encoded without gradient, the last with. The loss goes backward
    through the last chunk and leaves its gradient with respect to the other vectors; then each
    other chunk is encoded again with the RNG state it had, and its gradient goes backward.
    """
    repeats = []
    with torch.no_grad():
        for rows in chunks[:-1]:
            state = random_state()
            repeats.append((rows, state, encode(rows)))
    # Autocast caches the cast weights without gradient and would reuse them below.
    torch.clear_autocast_cache()
    leaves = [vectors.requires_grad_() for _, _, vectors in repeats]
    vectors = torch.cat([*leaves, encode(chunks[-1])])
    after = random_state()
    return Forward(loss_of(_in_order(vectors, chunks)), encode, repeats, after)


def halved(chunks: Chunks, times: int) -> Chunks:
    """Divide every chunk in two, so many times; a single text stays whole."""
    for _ in range(times):
        halves = [(chunk, len(chunk) // 2) for chunk in chunks]
        chunks = [part for chunk, half in halves for part in (chunk[:half], chunk[half:]) if part]
    return chunks


def length_chunks(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Group positions of texts of these lengths into chunks of `size`, shortest first.

    The last chunk is full and has the longest texts: it is encoded only once.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    bounds = [*range(len(order) % size, len(order), size), len(order)]
    return [order[start:end] for start, end in pairwise([0, *bounds]) if end > start]


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
    order = torch.tensor([row for rows in chunks for row in rows])
    return vectors[order.argsort().to(vectors.device)]
