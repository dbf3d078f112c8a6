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

# Batches that are prepared in advance, while steps run.
AHEAD = 2

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Plan one batch of one process: its row numbers and its place in the training.

    `window` is the number of batches of this one's optimizer step, over which gradients are
    averaged. `shares` are the rows of all processes that share their sources, by rank; empty: only
    this process's own. `turns` counts, for each row, or for all rows of `shares` in order, how
    often its pair was used since its negatives were mined; empty: never.
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
    share a batch only if a group has more pairs than there are batches; `repeats` counts those.
    With `config.order` `mixed`, batch sizes differ by at most one claim; with `language`, those of
    one language do. `languages` and `config.alpha` set every language's share of an epoch. The
    order depends only on seed and epoch. Each of `world_size` processes gets an equal part of
    every batch: sizes are multiples of `world_size` and differ by at most that; up to
    `world_size - 1` pairs are left out of an epoch (`left_out`). Rows that do not fill a batch of
    their language share extra batches. With `gather`, plans contain the rows of the other
    processes too. Pair i of n has the row numbers i, i + n, .., `repeat` in all. Turns restart
    after every `remine_every` epochs (0: never). With `fixed`, all epochs have the batches of the
    first.
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
    # Limit of batches per epoch.
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
        # An epoch and the uses of every pair before it.
        self._uses = 0, np.zeros(len(self.groups), dtype=np.int64)
        # The same in every epoch, because quotas are.
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
        # Pairs of small languages are not left out.
        batches += self._deal(np.concatenate(rest), draw)
        return [batches[i] for i in draw.permutation(len(batches))[: self.limit]]

    def _deal(self, shuffled: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
        """Deal the rows that all processes can share equally, if any.

        Groups are in random order, and each group's pairs go to consecutive batches. Every round
        covers all batches; the last `world_size` rounds may cover only the first batches.
        """
        shuffled = shuffled[: len(shuffled) - len(shuffled) % self.world_size]
        if not len(shuffled):
            return []
        count, world = -(-len(shuffled) // self._per_step), self.world_size
        groups = self._groups[shuffled]
        _, first, inverse, sizes = np.unique(
            groups, return_index=True, return_inverse=True, return_counts=True
        )
        # If the last rounds are shorter, the largest groups come first, to keep their pairs apart.
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
        """Count the pairs left out of this epoch so that all processes get equally many."""
        return sum(self.quotas.values()) - sum(map(len, self.epoch_batches(epoch)))

    def __iter__(self) -> Iterator[BatchPlan]:
        """Plan this process's batches of all epochs."""
        for epoch in range(self.epochs):
            yield from self.plans(epoch)

    def plans(self, epoch: int, first: int = 0) -> Iterator[BatchPlan]:
        """Plan this process's batches of one epoch, from batch `first` on."""
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

    The next `AHEAD` batches of the same epoch are made in a thread: between epochs, negatives may
    be mined again. Its state is the number of batches yielded, not of those made.
    """

    def __init__(self, sampler: BatchSampler, make: Callable[[BatchPlan], Batch]) -> None:
        self.make = make
        # Lightning looks for `sampler` and sets its epoch.
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
        """Count the batches of a full epoch; Lightning applies its own limits."""
        return self.plans.full_epoch

    def __iter__(self) -> Iterator[Batch]:
        """Yield the remaining batches of the epoch. Raises an error of `make` at its batch."""
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
            # Also if training ends within an epoch, which closes this generator.
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
