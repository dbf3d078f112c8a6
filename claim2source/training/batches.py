"""Which training pairs share a batch: one paper's claims are kept apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One step of one process: row numbers, its place, and whether the optimizer steps after it.

    `window` is the number of batches whose gradients this one's step averages.
    """

    rows: tuple[int, ...]
    epoch: int
    index: int
    window: int
    closes_window: bool
    closes_epoch: bool


class BatchSampler:
    """Deals pairs to batches so that no batch holds one paper twice, where that is possible.

    Pairs of one group (claims that share a gold) are dealt to consecutive batches in turn, so
    that two meet only when a group has more pairs than there are batches; `repeats` counts
    those. Batches differ in size by one claim at most. The order depends on seed and epoch
    alone. With `world_size` processes each gets an equal share of every batch; up to
    `world_size - 1` pairs of a batch sit an epoch out (`left_out`).
    """

    def __init__(
        self,
        groups: Sequence[int],
        batch_size: int,
        *,
        epochs: int,
        accumulation: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        self.groups = np.asarray(groups, dtype=np.int64)
        if len(self.groups) < world_size:
            raise ValueError(f"{len(self.groups)} pairs for {world_size} processes")
        self.per_step = min(batch_size * world_size, len(self.groups))
        self.batches = -(-len(self.groups) // self.per_step)
        self.epochs, self.accumulation, self.seed = epochs, accumulation, seed
        self.rank, self.world_size, self.start = rank, world_size, start

    def __len__(self) -> int:
        """Batches left, from `start` to the last epoch's end."""
        return self.batches * self.epochs - self.start

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return -(-self.batches // self.accumulation) * self.epochs

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """Row numbers of every batch of an epoch, over all processes."""
        draw = np.random.default_rng([self.seed, epoch])
        shuffled = draw.permutation(len(self.groups))
        # Groups in random order, the pairs of a group next to each other in random order.
        first_seen = np.full(int(self.groups.max()) + 1, -1, dtype=np.int64)
        order_of_groups = self.groups[shuffled]
        _, first = np.unique(order_of_groups, return_index=True)
        first_seen[order_of_groups[first]] = first
        dealt = shuffled[np.argsort(first_seen[order_of_groups], kind="stable")]
        batches = [dealt[i :: self.batches] for i in range(self.batches)]
        batches = [draw.permutation(batch) for batch in batches]
        return [batches[i] for i in draw.permutation(self.batches)]

    def repeats(self, epoch: int = 0) -> int:
        """Pairs that share a batch with an earlier pair of their group in this epoch."""
        return sum(
            len(batch) - len(np.unique(self.groups[batch])) for batch in self.epoch_batches(epoch)
        )

    def left_out(self, epoch: int = 0) -> int:
        """Pairs that no process gets in this epoch, for the processes' shares to be equal."""
        return sum(len(batch) % self.world_size for batch in self.epoch_batches(epoch))

    def __iter__(self) -> Iterator[BatchPlan]:
        """This process's batches of all epochs, from batch number `start`."""
        for epoch in range(self.start // self.batches, self.epochs):
            batches = self.epoch_batches(epoch)
            skip = self.start - epoch * self.batches if epoch == self.start // self.batches else 0
            for index in range(skip, self.batches):
                batch = batches[index]
                even = batch[: len(batch) - len(batch) % self.world_size]
                opened = index - index % self.accumulation
                closed = min(opened + self.accumulation, self.batches) - 1
                yield BatchPlan(
                    rows=tuple(int(row) for row in even[self.rank :: self.world_size]),
                    epoch=epoch,
                    index=index,
                    window=closed - opened + 1,
                    closes_window=index == closed,
                    closes_epoch=index == self.batches - 1,
                )
