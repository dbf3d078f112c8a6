"""Deal training pairs to batches, keeping claims of one paper apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

from claim2source.mining import Negative
from claim2source.training.config import BatchesConfig

# Batches that are made while the step before them runs.
AHEAD = 2

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Plan one batch of one process: its row numbers and its place in the training.

    `window` is the number of batches of this one's optimizer step, over which gradients are
    averaged. `shares` are the rows of every process that shares its sources with the others, by
    rank; empty: only this process's own. `turns` has a number for each row, or for each of `shares`
    one after another: how often its pair was used before, since its negatives were mined; empty:
    never.
    """

    rows: tuple[int, ...]
    epoch: int
    index: int
    window: int
    shares: tuple[tuple[int, ...], ...] = ()
    rank: int = 0
    turns: tuple[int, ...] = ()


@dataclass
class BatchSampler:
    """Deal pairs to batches so that no batch has one paper twice, if possible.

    Pairs of one group (claims that share a gold) are dealt to consecutive batches in turn: two
    meet only when a group has more pairs than there are batches; `repeats` counts those. With
    `config.order` `mixed`, batches differ in size by one claim at most; with `language`, those of
    one language do. `languages` and `config.alpha` set every language's share of an epoch. The
    order depends on seed and epoch alone. Of `world_size` processes each gets an equal part of
    every batch: sizes are multiples of `world_size`, and differ by that at most; up to
    `world_size - 1` pairs are left out of an epoch (`left_out`). What is left of the languages
    shares batches of its own. With `gather`, plans name the rows of the other processes too. Every
    pair has `repeat` row numbers: its own, and each later one after as many as there are pairs.
    Turns begin again after every `remine_every` epochs (0: never). With `fixed`, all epochs have
    the batches of the first.
    """

    groups: Sequence[int]
    batch_size: int
    _: KW_ONLY
    epochs: int
    accumulation: int = 1
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    gather: bool = True
    config: BatchesConfig = field(default_factory=BatchesConfig)
    languages: Sequence[str] | None = None
    repeat: int = 1
    remine_every: int = 0
    fixed: bool = False
    # Batches that an epoch is cut to.
    limit: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._groups = np.tile(np.asarray(self.groups, dtype=np.int64), self.repeat)
        count, world = len(self._groups), self.world_size
        if count < world:
            raise ValueError(f"{count} pairs for {world} processes")
        self._per_step = min(self.batch_size, count // world) * world
        names = np.tile(self.languages or [""] * len(self.groups), self.repeat)
        self._of_language = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
        sizes = {name: len(rows) for name, rows in self._of_language.items()}
        self.quotas = language_quotas(sizes, self.config.alpha)
        # An epoch, and the uses of every pair before it.
        self._uses = 0, np.zeros(len(self.groups), dtype=np.int64)
        # The same in every epoch, since quotas are.
        self.full_epoch = len(self.epoch_batches(0))

    @property
    def batches(self) -> int:
        """Count the batches of an epoch, up to the limit."""
        return min(self.full_epoch, self.limit or self.full_epoch)

    @property
    def optimizer_steps(self) -> int:
        return -(-self.batches // self.accumulation) * self.epochs

    def epoch_rows(self, epoch: int) -> list[np.ndarray]:
        """Take each language's rows of an epoch: the next ones of its endless permutations."""
        rows_by_language = []
        for number, (name, rows) in enumerate(self._of_language.items()):
            quota = self.quotas[name]
            first, last = epoch * quota, (epoch + 1) * quota
            turns = range(first // len(rows), (last - 1) // len(rows) + 1)
            # Each language has its own RNG: the sizes of the others do not change its order.
            permutations = [
                np.random.default_rng([self.seed, turn, number]).permutation(rows) for turn in turns
            ]
            start = turns[0] * len(rows)
            rows_by_language.append(np.concatenate(permutations)[first - start : last - start])
        return rows_by_language

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """List the row numbers of every batch of an epoch, over all processes."""
        epoch = 0 if self.fixed else epoch
        draw = np.random.default_rng([self.seed, epoch])
        parts = self.epoch_rows(epoch)
        if self.config.order == "mixed":
            parts = [np.concatenate(parts)]
        batches: list[np.ndarray] = []
        rest = []
        for part in parts:
            order = draw.permutation(part)
            batches += self._deal(order, draw)
            rest.append(order[len(order) - len(order) % self.world_size :])
        # No pair is left out for being of a small language.
        batches += self._deal(np.concatenate(rest), draw)
        return [batches[i] for i in draw.permutation(len(batches))[: self.limit]]

    def _deal(self, shuffled: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
        """Deal the rows that all processes can share equally, if any.

        Groups come in random order, each group's pairs go to consecutive batches. Rounds go over
        all batches; the last `world_size` ones, if they cannot, over the first.
        """
        shuffled = shuffled[: len(shuffled) - len(shuffled) % self.world_size]
        if not len(shuffled):
            return []
        count, world = -(-len(shuffled) // self._per_step), self.world_size
        groups = self._groups[shuffled]
        _, first, inverse, sizes = np.unique(
            groups, return_index=True, return_inverse=True, return_counts=True
        )
        # The largest groups come first where the last rounds are shorter: there they would meet.
        keys = (first[inverse], -sizes[inverse]) if world > 1 else (first[inverse],)
        dealt = shuffled[np.lexsort(keys)]
        even = len(dealt) // (count * world) * count * world
        fuller = (len(dealt) - even) // world
        seats = np.arange(len(dealt)) % count
        seats[even:] = np.arange(len(dealt) - even) % max(fuller, 1)
        return [draw.permutation(dealt[seats == i]) for i in range(count)]

    def repeats(self, epoch: int = 0) -> int:
        """Count the pairs that share a batch with an earlier pair of their group."""
        return sum(
            len(batch) - len(np.unique(self._groups[batch])) for batch in self.epoch_batches(epoch)
        )

    def left_out(self, epoch: int = 0) -> int:
        """Count the pairs that no process gets in this epoch, so that all get equally many."""
        return sum(self.quotas.values()) - sum(map(len, self.epoch_batches(epoch)))

    def __iter__(self) -> Iterator[BatchPlan]:
        """Plan this process's batches of all epochs."""
        for epoch in range(self.epochs):
            yield from self.plans(epoch)

    def plans(self, epoch: int, first: int = 0) -> Iterator[BatchPlan]:
        """Plan this process's batches of one epoch, from number `first`."""
        uses = self._used_before(epoch)
        for index, batch in enumerate(self.epoch_batches(epoch)):
            shares = self._split_by_rank(batch)
            turns = [self._turns(rows, uses) for rows in shares]
            if index < first:
                continue
            first_of_window = index - index % self.accumulation
            shared = self.gather and self.world_size > 1
            yield BatchPlan(
                rows=shares[self.rank],
                epoch=epoch,
                index=index,
                window=min(self.accumulation, self.batches - first_of_window),
                shares=shares if shared else (),
                rank=self.rank if self.gather else 0,
                turns=sum(turns, ()) if shared else turns[self.rank],
            )

    def _used_before(self, epoch: int) -> np.ndarray:
        """Count the uses of every pair before an epoch, since its negatives were mined."""
        mined = epoch - epoch % self.remine_every if self.remine_every else 0
        counted, uses = self._uses
        if not mined < counted <= epoch:
            counted, uses = mined, np.zeros_like(uses)
        for earlier in range(counted, epoch):
            pairs = np.concatenate(self.epoch_batches(earlier)) % len(uses)
            uses = uses + np.bincount(pairs, minlength=len(uses))
        self._uses = epoch, uses
        return uses.copy()

    def _turns(self, rows: Sequence[int], uses: np.ndarray) -> tuple[int, ...]:
        """Look up how often each row's pair was used, and count this use."""
        turns: list[int] = []
        for row in rows:
            pair = row % len(uses)
            turns.append(int(uses[pair]))
            uses[pair] += 1
        return tuple(turns)

    def _split_by_rank(self, batch: np.ndarray) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(rows) for rows in batch.reshape(-1, self.world_size).T.tolist())


class BatchLoader(Generic[Batch]):
    """Feed Lightning the batches that `make` builds from a sampler's plans, one epoch at a time.

    The next `AHEAD` batches are made in a thread, of one epoch only: before the next one negatives
    may be mined again. Its state is the place in an epoch: the batches given, not those made.
    """

    def __init__(self, sampler: BatchSampler, make: Callable[[BatchPlan], Batch]) -> None:
        self.make = make
        # Lightning looks for `sampler` and tells it the epoch.
        self.sampler = self
        self.plans = sampler
        self._epoch = self._first = self._position = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"batches": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._first = state["batches"]

    def __len__(self) -> int:
        """Count the batches of a whole epoch: if it was cut, Lightning cuts it alike."""
        return self.plans.full_epoch

    def __iter__(self) -> Iterator[Batch]:
        """Yield the remaining batches of the epoch. Raises the error of `make` for the next one."""
        first, self._first, self._position = self._first, 0, self._first
        plans = self.plans.plans(self._epoch, first)
        thread = ThreadPoolExecutor(1, "batches")
        try:
            futures = (thread.submit(self.make, plan) for plan in plans)
            queue = deque(islice(futures, AHEAD))
            while queue:
                batch = queue.popleft().result()
                queue.extend(islice(futures, 1))
                self._position += 1
                yield batch
        finally:
            # Also where the training ends within an epoch: this generator is closed then.
            thread.shutdown(cancel_futures=True)


def language_quotas(sizes: dict[str, int], alpha: float) -> dict[str, int]:
    """Divide an epoch among languages in proportion to size ** alpha; the total stays the same.

    Rounded by largest remainder, then by name; at least 1 each.
    """
    total = sum(sizes.values())
    if alpha == 1:
        return dict(sizes)
    powers = {name: size**alpha for name, size in sizes.items()}
    exact = {name: total * power / sum(powers.values()) for name, power in powers.items()}
    quotas = {name: max(1, int(share)) for name, share in exact.items()}
    by_remainder = sorted(sizes, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: max(0, total - sum(quotas.values()))]:
        quotas[name] += 1
    return quotas


def in_turn(negatives: Sequence[Negative], count: int, turn: int) -> list[Negative]:
    """Take the next `count` of an endlessly repeated list, its random ones spread evenly."""
    hard: list[Negative] = []
    random: list[Negative] = []
    for negative in negatives:
        (random if negative.origin == "random" else hard).append(negative)
    size = len(negatives)
    taken: list[Negative] = []
    for position in range(turn * count, (turn + 1) * count):
        row = position % size
        before = row * len(random) // size
        after = (row + 1) * len(random) // size
        taken.append(random[before] if after > before else hard[row - before])
    return taken
