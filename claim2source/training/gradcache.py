"""Compute a large batch's gradient in the memory of one chunk: GradCache (Gao et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from claim2source.training.resume import RandomState, random_state, restore_random_state

Chunks = Sequence[Sequence[int]]
Encode = Callable[[Sequence[int]], Tensor]  # row numbers -> their vectors [rows, d]
LossOf = Callable[[Tensor], Tensor]  # all vectors [n, d] -> the loss, a scalar


@dataclass
class GradCache:
    """Compute a batch's loss and its gradients: in one graph if it is `whole`, else in chunks.

    All chunks but the last are encoded without gradient, the last with. The loss goes backward
    through the last chunk and leaves its gradient with respect to the other vectors; then each
    other chunk is encoded again with the RNG state it had, and its gradient goes backward. The
    gradients are the same, and one chunk's activations are kept.
    """

    chunks: Chunks
    encode: Encode
    loss_of: LossOf
    whole: bool = False

    def __post_init__(self) -> None:
        self._before = self._after = random_state()
        # Rows, the RNG state of their first pass, and their vectors: leaves for the loss.
        self._repeats: list[tuple[Sequence[int], RandomState, Tensor]] = []

    def forward(self) -> Tensor:
        """Compute the loss, before `backward`."""
        repeated = 0 if self.whole else len(self.chunks) - 1
        with torch.no_grad():
            for rows in self.chunks[:repeated]:
                state = random_state()
                self._repeats.append((rows, state, self.encode(rows)))
        # Autocast caches the cast weights without gradient and would reuse them below.
        torch.clear_autocast_cache()
        leaves = [vectors.requires_grad_() for _, _, vectors in self._repeats]
        vectors = torch.cat([*leaves, *map(self.encode, self.chunks[repeated:])])
        order = torch.tensor([row for rows in self.chunks for row in rows])
        loss = self.loss_of(vectors[order.argsort().to(vectors.device)])
        # Behind the loss, which may draw random numbers of its own.
        self._after = random_state()
        return loss

    def backward(
        self, loss: Tensor, before_last: Callable[[Tensor], None] = lambda output: None
    ) -> None:
        """Add the gradients of `loss`, which `forward` returned, or of a multiple of it.

        `before_last` is called with the output that the last of the backward passes begins at.
        """
        if not self._repeats:
            before_last(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        while self._repeats:
            rows, state, leaf = self._repeats.pop(0)
            # Dropout must be that of the first pass.
            restore_random_state(state)
            vectors = self.encode(rows)
            if not self._repeats:
                before_last(vectors)
            torch.autograd.backward(vectors, leaf.grad)
        if not self.whole:
            restore_random_state(self._after)

    def begin_again(self) -> None:
        """Go back to before the forward pass, and divide every chunk in two."""
        self.chunks, self.whole, self._repeats = halved(self.chunks, 1), False, []
        restore_random_state(self._before)


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
    return [order[max(end - size, 0) : end] for end in range(len(order), 0, -size)][::-1]


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
