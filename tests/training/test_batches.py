"""Orders of batches against a slow reference, shares of languages, rotation of negatives, the loader."""

from __future__ import annotations

import math
import queue
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.training.batches import AHEAD, BatchLoader, BatchPlan, BatchSampler
from claim2source.training.config import BatchesConfig

PAIR = st.tuples(
    st.integers(0, 9),
    st.sampled_from(["de", "en", "fr"]),
)
PAIRS = st.lists(PAIR, min_size=4, max_size=60)


def sampler(
    pairs: list[tuple[int, str]], order: str, batch_size: int = 4, **options: object
) -> BatchSampler:
    alpha = float(options.pop("alpha", 1.0))  # type: ignore[arg-type]
    settings_ = BatchesConfig(order, alpha)  # type: ignore[arg-type]
    groups = [group for group, _ in pairs]
    languages = [language for _, language in pairs]
    return BatchSampler(
        groups,
        batch_size,
        epochs=6,
        config=settings_,
        languages=languages,
        **options,
    )


def reference_deal(
    shuffled: list[int], group_of: dict[int, int], count: int, world: int
) -> list[list[int]]:
    """Slow and plain: groups in order of appearance, their pairs one by one round the table.

    Of several processes each gets one of every `world` rounds; the last ones are of fewer seats.
    """
    groups: dict[int, list[int]] = {}
    for row in shuffled:
        group = group_of[row]
        members = groups.setdefault(group, [])
        members.append(row)
    waiting = list(groups.values())
    if world > 1:
        waiting.sort(key=len, reverse=True)
    queue: list[int] = []
    for rows in waiting:
        queue += rows

    batches: list[list[int]] = [[] for _ in range(count)]
    while queue:
        rounds_left = len(queue) // world
        seats = min(count, rounds_left)
        for _ in range(world):
            for seat in range(seats):
                row = queue.pop(0)
                batches[seat].append(row)
    return batches


def reference_quotas(sizes: dict[str, int], alpha: float) -> dict[str, int]:
    """Whole parts first, at least 1; then one more to the largest remainder, till all are dealt."""
    if alpha == 1:
        return sizes
    total = sum(sizes.values())
    powers = {name: size**alpha for name, size in sizes.items()}
    all_powers = sum(powers.values())
    exact: dict[str, float] = {}
    quotas: dict[str, int] = {}
    for name, power in powers.items():
        share = total * power / all_powers
        exact[name] = share
        whole_part = math.floor(share)
        quotas[name] = max(1, whole_part)

    waiting = dict(exact)
    while sum(quotas.values()) < total and waiting:
        rest: dict[str, float] = {}
        for name, share in waiting.items():
            rest[name] = share - math.floor(share)
        largest = max(rest.values())
        winner = min(name for name in rest if rest[name] == largest)
        quotas[winner] += 1
        del waiting[winner]
    return quotas


def reference_epoch(
    pairs: list[tuple[int, str]],
    order: str,
    size: int,
    seed: int,
    epoch: int,
    alpha: float = 1.0,
    world: int = 1,
) -> list[list[int]]:
    """The documented draws with plain lists."""
    draw = np.random.default_rng([seed, epoch])
    group_of = {row: group for row, (group, _) in enumerate(pairs)}
    rows_of = reference_rows(pairs, seed, epoch, alpha)
    most_of_a_hand = min(size, len(pairs) // world)
    step = most_of_a_hand * world
    batches: list[list[int]] = []

    def drawn(rows: list[int]) -> tuple[list[int], list[int]]:
        shuffled = [int(row) for row in draw.permutation(rows)]
        even = len(rows) // world * world
        return shuffled[:even], shuffled[even:]

    def deal(shuffled: list[int]) -> None:
        count = -(-len(shuffled) // step)
        dealt = reference_deal(shuffled, group_of, count, world)
        for batch in dealt:
            permuted = draw.permutation(batch)
            batches.append([int(row) for row in permuted])

    if order == "language":
        rest: list[int] = []
        for rows in rows_of.values():
            shuffled, left = drawn(rows)
            deal(shuffled)
            rest += left
        even = len(rest) // world * world
        deal(rest[:even])
    else:
        all_rows: list[int] = []
        for rows in rows_of.values():
            all_rows += rows
        shuffled, _ = drawn(all_rows)
        deal(shuffled)
    places = draw.permutation(len(batches))
    return [batches[place] for place in places]


def reference_rows(
    pairs: list[tuple[int, str]],
    seed: int,
    epoch: int,
    alpha: float,
) -> dict[str, list[int]]:
    """Draw an epoch's rows of each language, the languages in order of their names."""
    languages = sorted({language for _, language in pairs})
    sizes = Counter(language for _, language in pairs)
    ordered_sizes = {name: sizes[name] for name in languages}
    quotas = reference_quotas(ordered_sizes, alpha)
    rows_of: dict[str, list[int]] = {}
    for number, name in enumerate(languages):
        mine = [row for row, pair in enumerate(pairs) if pair[1] == name]
        start = epoch * quotas[name]
        end = (epoch + 1) * quotas[name]
        # One permutation after another, of which every epoch takes the next `quota`.
        endless: list[int] = []
        turn = 0
        while len(endless) < end:
            dice = np.random.default_rng([seed, turn, number])
            permuted = dice.permutation(mine)
            endless += [int(row) for row in permuted]
            turn += 1
        rows_of[name] = endless[start:end]
    return rows_of


@pytest.mark.parametrize("order", ["mixed", "language"])
@given(
    pairs=PAIRS,
    size=st.integers(1, 7),
    world=st.integers(1, 3),
    alpha=st.sampled_from([1.0, 0.7, 0.5, 0.0]),
    gather=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_against_a_slow_reference(
    order: str,
    pairs: list[tuple[int, str]],
    size: int,
    world: int,
    alpha: float,
    gather: bool,
) -> None:
    """Every process's rows of every batch of two epochs: every `world`-th, none more than others."""
    epochs = []
    for number in (0, 1):
        batches = reference_epoch(pairs, order, size, 7, number, alpha, world)
        epochs.append(batches)
    first, second = epochs
    extra = {
        "seed": 7,
        "alpha": alpha,
        "world_size": world,
        "gather": gather,
    }
    if alpha == world == 1:
        rows = sorted(row for batch in first for row in batch)
        assert rows == list(range(len(pairs)))

    shares = []
    for batch in [*first, *second]:
        hands: list[list[int]] = [[] for _ in range(world)]
        for i, row in enumerate(batch):
            hands[i % world].append(row)
        share = tuple(tuple(hand) for hand in hands)
        shares.append(share)

    is_shared = gather and world > 1
    expected_shares = shares if is_shared else [()] * len(shares)
    expected_epochs = [0] * len(first) + [1] * len(second)
    for rank in range(world):
        batch_sampler = sampler(pairs, order, size, rank=rank, **extra)
        plans = list(batch_sampler)[: len(shares)]
        own_rows = [plan.rows for plan in plans]
        assert own_rows == [share[rank] for share in shares]
        assert [plan.epoch for plan in plans] == expected_epochs
        assert [plan.shares for plan in plans] == expected_shares
        ranks = {plan.rank for plan in plans}
        assert ranks == {rank if is_shared else 0}
        for number, batches in enumerate(epochs):
            total = sum(batch_sampler.quotas.values())
            dealt = sum(map(len, batches))
            left = total - dealt
            assert batch_sampler.left_out(number) == left <= world - 1


@pytest.mark.parametrize("order", ["mixed", "language"])
def test_few_pairs_are_left_out_for_many_processes(order: str) -> None:
    """15,395 pairs in batches of 8 for 8 processes: once 203 were left out; now 3 remain."""
    languages = ("de", "en", "fr")
    pairs = []
    for i in range(15_395):
        language = languages[i % 7 % 3]
        pairs.append((i // 2, language))
    batch_sampler = sampler(pairs, order, 8, world_size=8)
    batches = batch_sampler.epoch_batches(0)
    assert batch_sampler.left_out() == 3
    assert not batch_sampler.repeats()
    lengths = [len(batch) for batch in batches]
    assert {length % 8 for length in lengths} == {0}
    assert max(lengths) == 64
    if order == "mixed":
        assert max(lengths) - min(lengths) <= 8
    rows = np.concatenate(batches)
    distinct = set(rows.tolist())
    assert len(distinct) == len(rows) == 15_392


@given(
    pairs=PAIRS,
    order=st.sampled_from(["mixed", "language"]),
    remine_every=st.integers(0, 3),
    repeat=st.integers(1, 2),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_going_on_from_any_position(
    pairs: list[tuple[int, str]],
    order: str,
    remine_every: int,
    repeat: int,
    data: st.DataObject,
) -> None:
    extra: dict[str, Any] = {
        "alpha": 0.5,
        "remine_every": remine_every,
        "repeat": repeat,
    }
    batch_sampler = sampler(pairs, order, 3, **extra)
    plans = list(batch_sampler)
    last = len(plans) - 1
    start = data.draw(st.integers(0, last))
    epoch, first = divmod(start, batch_sampler.batches)
    resumed = sampler(pairs, order, 3, **extra)
    rest = [*resumed.plans(epoch, first)]
    for later in range(epoch + 1, batch_sampler.epochs):
        rest += resumed.plans(later)
    assert rest == plans[start:]


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize(
    ("world", "repeat", "remine_every"),
    [
        (1, 1, 0),
        (2, 3, 2),
        (2, 1, 1),
    ],
)
def test_every_use_of_a_pair_is_its_next_turn(
    gather: bool, world: int, repeat: int, remine_every: int
) -> None:
    """Within an epoch too, where alpha or `repeat` uses a pair again; a new list begins at 0."""
    pairs = [(i, "en" if i < 20 else "de") for i in range(25)]
    extra: dict[str, Any] = {
        "alpha": 0.5,
        "gather": gather,
        "world_size": world,
        "repeat": repeat,
        "remine_every": remine_every,
    }
    ranks = []
    for rank in range(world):
        own_sampler = sampler(pairs, "mixed", 3, rank=rank, **extra)
        ranks.append(list(own_sampler))

    uses: Counter[int] = Counter()
    maximum = 0
    for plans in zip(*ranks, strict=True):
        first = plans[0]
        epoch = first.epoch
        if remine_every and first.index == 0 and epoch % remine_every == 0:
            uses.clear()
        rows = [row for plan in plans for row in plan.rows]
        if gather:
            turns = first.turns
            assert all(plan.turns == turns for plan in plans)
        else:
            turns = tuple(turn for plan in plans for turn in plan.turns)

        expected = []
        for row in rows:
            pair = row % 25
            expected.append(uses[pair])
            uses[pair] += 1
        assert list(turns) == expected
        if epoch == 0:
            maximum = max(maximum, *turns)
    assert maximum >= repeat


GROUPS = st.lists(st.integers(0, 12), min_size=1, max_size=60)


def fewest_repeats(groups: list[int], batches: int) -> int:
    """By hand: a group of n pairs in b batches must repeat max(0, n - b) times."""
    counts = Counter(groups).values()
    return sum(max(0, count - batches) for count in counts)


@given(GROUPS, st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_every_pair_once_an_epoch_and_papers_apart(
    groups: list[int], batch_size: int, epoch: int
) -> None:
    sampler = BatchSampler(groups, batch_size, epochs=4, seed=3)
    batches = sampler.epoch_batches(epoch)
    rows = np.concatenate(batches).tolist()
    assert sorted(rows) == list(range(len(groups)))
    lengths = [len(batch) for batch in batches]
    assert all(0 < length <= batch_size for length in lengths)
    assert max(lengths) - min(lengths) <= 1
    fewest = fewest_repeats(groups, len(batches))
    assert sampler.repeats(epoch) == fewest


def test_windows_average_what_they_hold_and_close_with_the_epoch() -> None:
    groups = list(range(20))
    sampler = BatchSampler(groups, 4, epochs=2, accumulation=2)  # 5 batches an epoch
    plans = list(sampler)
    assert [plan.window for plan in plans] == [2, 2, 2, 2, 1] * 2
    assert sampler.optimizer_steps == 6


def threads() -> list[threading.Thread]:
    everything = threading.enumerate()
    return [thread for thread in everything if thread.name.startswith("batches")]


def test_a_thread_makes_the_next_batches_of_the_epoch_and_the_state_counts_those_given() -> None:
    groups = list(range(40))
    sampler = BatchSampler(groups, 8, epochs=2)  # 5 batches an epoch
    plans = list(sampler)
    plans_made = queue.SimpleQueue[BatchPlan]()

    def make(plan: BatchPlan) -> tuple[BatchPlan, bool]:
        plans_made.put(plan)
        is_main = threading.current_thread() is threading.main_thread()
        return plan, is_main

    def made(count: int) -> list[BatchPlan]:
        """Wait for the next plans that the thread took up."""
        return [plans_made.get(timeout=60) for _ in range(count)]

    loader = BatchLoader(sampler, make)
    loader.set_epoch(0)
    batches = iter(loader)
    assert plans_made.empty()
    for i in range(2):
        assert next(batches) == (plans[i], False)
        assert loader.state_dict() == {"batches": i + 1}
    # The next batches are made in advance, up to a limit.
    limit = 2 + AHEAD
    assert made(limit) == plans[:limit]
    with pytest.raises(queue.Empty):
        plans_made.get(timeout=0.05)
    assert len(threads()) == 1
    batches.close()  # type: ignore[attr-defined]
    assert not threads()
    batch_loader = BatchLoader(sampler, make)
    state = loader.state_dict()
    batch_loader.load_state_dict(state)
    given = [plan for plan, _ in batch_loader]
    assert given == plans[2:5]
    assert not threads()
    # Nothing of the next epoch is made before it begins.
    assert made(3) == plans[2:5]
    assert plans_made.empty()
    batch_loader.set_epoch(1)
    given = [plan for plan, _ in batch_loader]
    assert given == plans[5:]


def test_what_goes_wrong_in_the_thread_is_raised_in_its_batchs_turn() -> None:
    groups = list(range(40))
    sampler = BatchSampler(groups, 8, epochs=1)
    error = UserError("no such text")

    def make(plan: BatchPlan) -> int:
        if plan.index == 2:
            raise error
        return plan.index

    loader = BatchLoader(sampler, make)
    batches = iter(loader)
    assert next(batches) == 0
    assert next(batches) == 1
    with pytest.raises(UserError) as raised:
        next(batches)
    assert raised.value is error
    assert not threads()
