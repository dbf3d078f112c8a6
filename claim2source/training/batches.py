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
        group_numbers = np.asarray(self.groups, dtype=np.int64)
        self._groups = np.tile(group_numbers, self.repeat)
        count = len(self._groups)
        world = self.world_size
        if count < world:
            raise ValueError(f"{count} pairs for {world} processes")
        most_per_process = min(self.batch_size, count // world)
        self._per_step = most_per_process * world
        self._of_language = self._rows_by_language()
        sizes = {name: len(rows) for name, rows in self._of_language.items()}
        self.quotas = language_quotas(sizes, self.config.alpha)
        # An epoch and the uses of every pair before it.
        unused = np.zeros(len(self.groups), dtype=np.int64)
        self._uses = 0, unused
        # The same in every epoch, because quotas are.
        first_epoch = self.epoch_batches(0)
        self.full_epoch = len(first_epoch)

    def _rows_by_language(self) -> dict[str, np.ndarray]:
        """Find each language's row numbers; without languages, those of the language ""."""
        languages = self.languages or [""] * len(self.groups)
        names = np.tile(languages, self.repeat)
        rows: dict[str, np.ndarray] = {}
        for name in np.unique(names):
            is_in_language = names == name
            rows[str(name)] = np.flatnonzero(is_in_language)
        return rows

    @property
    def batches(self) -> int:
        """Count the batches of an epoch, up to the limit."""
        limit = self.limit or self.full_epoch
        return min(self.full_epoch, limit)

    @property
    def optimizer_steps(self) -> int:
        steps_per_epoch = -(-self.batches // self.accumulation)
        return steps_per_epoch * self.epochs

    def epoch_rows(self, epoch: int) -> list[np.ndarray]:
        """Take each language's rows of an epoch: the next ones of its endless permutations."""
        rows_by_language = []
        for number, (name, rows) in enumerate(self._of_language.items()):
            quota = self.quotas[name]
            size = len(rows)
            first = epoch * quota
            last = first + quota
            first_turn = first // size
            last_turn = (last - 1) // size
            # Each language has its own RNG: the sizes of the others do not change its order.
            permutations = []
            for turn in range(first_turn, last_turn + 1):
                draw = np.random.default_rng([self.seed, turn, number])
                permutations.append(draw.permutation(rows))
            start = first_turn * size
            permuted = np.concatenate(permutations)
            rows_by_language.append(permuted[first - start : last - start])
        return rows_by_language

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """List the row numbers of every batch of an epoch, over all processes."""
        epoch = 0 if self.fixed else epoch
        draw = np.random.default_rng([self.seed, epoch])
        parts = self.epoch_rows(epoch)
        if self.config.order == "mixed":
            all_rows = np.concatenate(parts)
            parts = [all_rows]
        batches: list[np.ndarray] = []
        rest = []
        for part in parts:
            order = draw.permutation(part)
            batches += self._deal(order, draw)
            shared = self._shared_count(order)
            rest.append(order[shared:])
        # Pairs of small languages are not left out.
        rows_left = np.concatenate(rest)
        batches += self._deal(rows_left, draw)
        shuffled = draw.permutation(len(batches))
        return [batches[number] for number in shuffled[: self.limit]]

    def _shared_count(self, rows: np.ndarray) -> int:
        """Count the rows that all processes can share equally."""
        return len(rows) - len(rows) % self.world_size

    def _deal(
        self,
        shuffled: np.ndarray,
        draw: np.random.Generator,
    ) -> list[np.ndarray]:
        """Deal the rows that all processes can share equally, if any.

        Groups are in random order, and each group's pairs go to consecutive batches. Every round
        covers all batches; the last `world_size` rounds may cover only the first batches.
        """
        total = self._shared_count(shuffled)
        if not total:
            return []
        shuffled = shuffled[:total]
        count = -(-total // self._per_step)
        dealt = self._by_group(shuffled)

        per_round = count * self.world_size
        even = total // per_round * per_round
        uneven = total - even
        fuller = uneven // self.world_size
        seats = np.arange(total) % count
        seats[even:] = np.arange(uneven) % max(fuller, 1)

        batches = []
        for seat in range(count):
            rows = dealt[seats == seat]
            batches.append(draw.permutation(rows))
        return batches

    def _by_group(self, shuffled: np.ndarray) -> np.ndarray:
        """Order rows by group, and groups by their first row."""
        groups = self._groups[shuffled]
        _, first, inverse, sizes = np.unique(
            groups,
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        keys = [first[inverse]]
        # If the last rounds are shorter, the largest groups come first, to keep their pairs apart.
        if self.world_size > 1:
            keys.append(-sizes[inverse])
        order = np.lexsort(keys)
        return shuffled[order]

    def repeats(self, epoch: int = 0) -> int:
        """Count the pairs that share a batch with an earlier pair of their group."""
        count = 0
        for batch in self.epoch_batches(epoch):
            groups = np.unique(self._groups[batch])
            count += len(batch) - len(groups)
        return count

    def left_out(self, epoch: int = 0) -> int:
        """Count the pairs left out of this epoch so that all processes get equally many."""
        in_epoch = sum(self.quotas.values())
        in_batches = sum(map(len, self.epoch_batches(epoch)))
        return in_epoch - in_batches

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
            remaining = self.batches - first_of_window
            shared = self.gather and self.world_size > 1
            yield BatchPlan(
                rows=shares[self.rank],
                epoch=epoch,
                index=index,
                window=min(self.accumulation, remaining),
                shares=shares if shared else (),
                rank=self.rank if self.gather else 0,
                turns=sum(turns, ()) if shared else turns[self.rank],
            )

    def _used_before(self, epoch: int) -> np.ndarray:
        """Count the uses of every pair before an epoch, since its negatives were mined."""
        mined = 0
        if self.remine_every:
            mined = epoch - epoch % self.remine_every
        counted, uses = self._uses
        is_usable = mined < counted <= epoch
        if not is_usable:
            counted = mined
            uses = np.zeros_like(uses)
        for earlier in range(counted, epoch):
            rows = np.concatenate(self.epoch_batches(earlier))
            pairs = rows % len(uses)
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
        by_rank = batch.reshape(-1, self.world_size).T
        return tuple(tuple(rows) for rows in by_rank.tolist())


class BatchLoader(Generic[Batch]):
    """Feed Lightning the batches that `make` builds from a sampler's plans, one epoch at a time.

    The next `AHEAD` batches of the same epoch are made in a thread: between epochs, negatives may
    be mined again. Its state is the number of batches yielded, not of those made.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        make: Callable[[BatchPlan], Batch],
    ) -> None:
        self.make = make
        # Lightning looks for `sampler` and sets its epoch.
        self.sampler = self
        self.plans = sampler
        self._epoch = 0
        self._first = 0
        self._position = 0

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
        first = self._first
        self._first = 0
        self._position = first
        plans = self.plans.plans(self._epoch, first)
        thread = ThreadPoolExecutor(1, "batches")
        try:
            futures = (thread.submit(self.make, plan) for plan in plans)
            queue = deque(islice(futures, AHEAD))
            while queue:
                future = queue.popleft()
                batch = future.result()
                next_futures = islice(futures, 1)
                queue.extend(next_futures)
                self._position += 1
                yield batch
        finally:
            # Also if training ends within an epoch, which closes this generator.
            thread.shutdown(cancel_futures=True)


def language_quotas(
    sizes: dict[str, int],
    alpha: float,
) -> dict[str, int]:
    """Divide an epoch among languages in proportion to size ** alpha; the total stays the same.

    Rounded by largest remainder, then by name; at least 1 each.
    """
    total = sum(sizes.values())
    if alpha == 1:
        return dict(sizes)
    powers = {name: size**alpha for name, size in sizes.items()}
    sum_of_powers = sum(powers.values())
    exact: dict[str, float] = {}
    quotas: dict[str, int] = {}
    for name, power in powers.items():
        share = total * power / sum_of_powers
        exact[name] = share
        quotas[name] = max(1, int(share))

    def by_remainder(name: str) -> tuple[float, str]:
        remainder = exact[name] - int(exact[name])
        return -remainder, name

    missing = max(0, total - sum(quotas.values()))
    names = sorted(sizes, key=by_remainder)
    for name in names[:missing]:
        quotas[name] += 1
    return quotas


def in_turn(
    negatives: Sequence[Negative],
    count: int,
    turn: int,
) -> list[Negative]:
    """Take the next `count` of an endlessly repeated list, its random ones spread evenly."""
    hard: list[Negative] = []
    random: list[Negative] = []
    for negative in negatives:
        if negative.origin == "random":
            random.append(negative)
        else:
            hard.append(negative)
    size = len(negatives)
    first = turn * count
    taken: list[Negative] = []
    for position in range(first, first + count):
        row = position % size
        # Numbers of random negatives up to this row, without and with it.
        before = row * len(random) // size
        after = (row + 1) * len(random) // size
        if after > before:
            taken.append(random[before])
        else:
            taken.append(hard[row - before])
    return taken
