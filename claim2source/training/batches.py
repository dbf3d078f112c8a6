"""Which training pairs share a batch: one paper's claims are kept apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.training.config import BatchesConfig

# Batches whose pairs are of like length are dealt together: wide enough to keep papers apart.
BUCKET_BATCHES = 8


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One step of one process: row numbers, its place, and whether the optimizer steps after it.

    `window` is the number of batches whose gradients this one's step averages. `shares` are the
    rows of every process that shares its sources with the others, by rank; empty: this
    process's own rows alone.
    """

    rows: tuple[int, ...]
    epoch: int
    index: int
    window: int
    closes_window: bool
    closes_epoch: bool
    shares: tuple[tuple[int, ...], ...] = ()
    rank: int = 0


class BatchSampler:
    """Deals pairs to batches so that no batch holds one paper twice, where that is possible.

    Pairs of one group (claims that share a gold) are dealt to consecutive batches in turn, so
    that two meet only when a group has more pairs than there are batches; `repeats` counts
    those. With `config.order` `mixed` the batches differ in size by one claim at most; with
    `language` those of one language do; with `length` pairs are first put in order of
    `lengths` and dealt within runs of `BUCKET_BATCHES` batches. `languages` and `config.alpha`
    set every language's share of an epoch. The order depends on seed and epoch alone. With
    `world_size` processes each gets an equal share of every batch; up to `world_size - 1` pairs
    of a batch sit an epoch out (`left_out`); with `gather` plans name the others' rows too.
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
        gather: bool = True,
        config: BatchesConfig | None = None,
        languages: Sequence[str] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.config = config or BatchesConfig()
        self.groups = np.asarray(groups, dtype=np.int64)
        if len(self.groups) < world_size:
            raise ValueError(f"{len(self.groups)} pairs for {world_size} processes")
        names = list(languages) if languages is not None else [""] * len(self.groups)
        self.languages = sorted(set(names))
        self._of_language = {
            name: np.flatnonzero(np.array(names) == name) for name in self.languages
        }
        self.lengths = np.asarray(lengths if lengths is not None else [0] * len(self.groups))
        self.quotas = language_quotas(
            {name: len(rows) for name, rows in self._of_language.items()}, self.config.alpha
        )
        self.per_step = min(batch_size * world_size, len(self.groups))
        self.epochs, self.accumulation, self.seed = epochs, accumulation, seed
        self.rank, self.world_size, self.start, self.gather = rank, world_size, start, gather
        # How many there are does not depend on the epoch: quotas do not.
        self.batches = len(self.epoch_batches(0))
        if not self.batches:
            raise ValueError(f"no language has a pair for each of {world_size} processes")

    def __len__(self) -> int:
        """Batches left, from `start` to the last epoch's end."""
        return self.batches * self.epochs - self.start

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return -(-self.batches // self.accumulation) * self.epochs

    def epoch_rows(self, epoch: int) -> dict[str, np.ndarray]:
        """Each language's rows of an epoch: the next of an endless row of its permutations."""
        found = {}
        for number, name in enumerate(self.languages):
            rows, quota = self._of_language[name], self.quotas[name]
            first = epoch * quota
            taken: list[np.ndarray] = []
            for turn in range(first // len(rows), (first + quota - 1) // len(rows) + 1):
                # A language of its own dice: others' sizes do not move its order.
                order = np.random.default_rng([self.seed, turn, number]).permutation(rows)
                begin, end = first - turn * len(rows), first + quota - turn * len(rows)
                taken.append(order[max(begin, 0) : end])
            found[name] = np.concatenate(taken)
        return found

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """Row numbers of every batch of an epoch, over all processes."""
        draw = np.random.default_rng([self.seed, epoch])
        rows = self.epoch_rows(epoch)
        batches: list[np.ndarray] = []
        if self.config.order == "language":
            for part in rows.values():
                batches += self._dealt(draw.permutation(part), draw)
        elif self.config.order == "length":
            together = draw.permutation(np.concatenate(list(rows.values())))
            by_length = together[np.argsort(self.lengths[together], kind="stable")]
            size = BUCKET_BATCHES * self.per_step
            for start in range(0, len(by_length), size):
                batches += self._dealt(draw.permutation(by_length[start : start + size]), draw)
        else:
            batches = self._dealt(draw.permutation(np.concatenate(list(rows.values()))), draw)
        # A language with fewer pairs than processes cannot be shared out.
        batches = [batch for batch in batches if len(batch) >= self.world_size]
        return [batches[i] for i in draw.permutation(len(batches))]

    def _dealt(self, shuffled: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
        """Deal rows out: groups in random order, each group's pairs to batches in turn."""
        # A share for every process: a batch smaller than the world would leave some without.
        count = max(1, min(-(-len(shuffled) // self.per_step), len(shuffled) // self.world_size))
        groups = self.groups[shuffled]
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        dealt = shuffled[np.argsort(first[inverse], kind="stable")]
        return [draw.permutation(dealt[i::count]) for i in range(count)]

    def repeats(self, epoch: int = 0) -> int:
        """Pairs that share a batch with an earlier pair of their group in this epoch."""
        return sum(
            len(batch) - len(np.unique(self.groups[batch])) for batch in self.epoch_batches(epoch)
        )

    def left_out(self, epoch: int = 0) -> int:
        """Pairs that no process gets in this epoch, for the processes' shares to be equal."""
        used = sum(len(b) - len(b) % self.world_size for b in self.epoch_batches(epoch))
        return sum(self.quotas.values()) - used

    def __iter__(self) -> Iterator[BatchPlan]:
        """This process's batches of all epochs, from batch number `start`."""
        for epoch in range(self.start // self.batches, self.epochs):
            batches = self.epoch_batches(epoch)
            skip = self.start - epoch * self.batches if epoch == self.start // self.batches else 0
            for index in range(skip, self.batches):
                opened = index - index % self.accumulation
                closed = min(opened + self.accumulation, self.batches) - 1
                shares = self._shares(batches[index])
                yield BatchPlan(
                    rows=shares[self.rank],
                    epoch=epoch,
                    index=index,
                    window=closed - opened + 1,
                    closes_window=index == closed,
                    closes_epoch=index == self.batches - 1,
                    shares=shares if self.gather and self.world_size > 1 else (),
                    rank=self.rank if self.gather else 0,
                )

    def _shares(self, batch: np.ndarray) -> tuple[tuple[int, ...], ...]:
        even = batch[: len(batch) - len(batch) % self.world_size]
        return tuple(
            tuple(int(row) for row in even[rank :: self.world_size])
            for rank in range(self.world_size)
        )


def language_quotas(sizes: dict[str, int], alpha: float) -> dict[str, int]:
    """Pairs of each language in an epoch: shares as size ** alpha, as many as there are in all.

    Whole numbers by largest remainder, of equals the first by name; at least 1 each.
    """
    total = sum(sizes.values())
    if alpha == 1:
        return dict(sizes)
    powers = {name: size**alpha for name, size in sizes.items()}
    exact = {name: total * power / sum(powers.values()) for name, power in powers.items()}
    quotas = {name: max(1, int(share)) for name, share in exact.items()}
    by_remainder = sorted(sizes, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder:
        if sum(quotas.values()) >= total:
            break
        quotas[name] += 1
    return quotas
