"""Batches: everything once, papers apart, equal shares, exact resumption."""

from __future__ import annotations

import queue
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.training.batches import AHEAD, BatchLoader, BatchPlan, BatchSampler

GROUPS = st.lists(st.integers(0, 12), min_size=1, max_size=60)


def fewest_repeats(groups: list[int], batches: int) -> int:
    """By hand: a group of n pairs in b batches must repeat max(0, n - b) times."""
    return sum(max(0, count - batches) for count in Counter(groups).values())


@given(GROUPS, st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_every_pair_once_an_epoch_and_papers_apart(
    groups: list[int], batch_size: int, epoch: int
) -> None:
    sampler = BatchSampler(groups, batch_size, epochs=4, seed=3)
    batches = sampler.epoch_batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(groups)))
    assert all(0 < len(batch) <= batch_size for batch in batches)
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert sampler.repeats(epoch) == fewest_repeats(groups, len(batches))


@given(GROUPS, st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_ranks_share_each_batch_equally(
    groups: list[int], batch_size: int, world: int, accumulation: int
) -> None:
    if len(groups) < world:
        with pytest.raises(ValueError, match="processes"):
            BatchSampler(groups, batch_size, epochs=1, world_size=world)
        return
    ranks = [
        list(
            BatchSampler(
                groups, batch_size, epochs=2, accumulation=accumulation, rank=rank, world_size=world
            )
        )
        for rank in range(world)
    ]
    whole = BatchSampler(groups, batch_size, epochs=2, world_size=world)
    for step, plans in enumerate(zip(*ranks, strict=True)):
        assert len({len(plan.rows) for plan in plans}) == 1
        together = [row for plan in plans for row in plan.rows]
        assert len(set(together)) == len(together)
        batch = whole.epoch_batches(plans[0].epoch)[plans[0].index]
        assert set(together) <= set(batch.tolist())
        assert len(batch) - len(together) == len(batch) % world
        assert step == plans[0].epoch * whole.batches + plans[0].index
    assert whole.left_out(0) == sum(len(b) % world for b in whole.epoch_batches(0))


@given(GROUPS, st.integers(1, 9), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_starting_in_the_middle_goes_on_with_the_same_batches(
    groups: list[int], batch_size: int, accumulation: int, data: st.DataObject
) -> None:
    def sampler(start: int) -> BatchSampler:
        return BatchSampler(
            groups, batch_size, epochs=3, accumulation=accumulation, seed=5, start=start
        )

    whole = list(sampler(0))
    start = data.draw(st.integers(0, len(whole)))
    assert list(sampler(start)) == whole[start:]
    assert len(sampler(start)) == len(whole) - start


def test_windows_average_what_they_hold_and_close_with_the_epoch() -> None:
    sampler = BatchSampler(list(range(20)), 4, epochs=2, accumulation=2)  # 5 batches an epoch
    plans = list(sampler)
    assert [plan.window for plan in plans[:5]] == [2, 2, 2, 2, 1]
    assert [plan.closes_window for plan in plans[:5]] == [False, True, False, True, True]
    assert [plan.closes_epoch for plan in plans] == [*([False] * 4), True] * 2
    assert sampler.optimizer_steps == sum(plan.closes_window for plan in plans) == 6


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def rows(seed: int, epoch: int) -> list[list[int]]:
        batches = BatchSampler([i // 2 for i in range(40)], 8, epochs=9, seed=seed)
        return [batch.tolist() for batch in batches.epoch_batches(epoch)]

    assert rows(1, 0) == rows(1, 0)
    assert rows(1, 0) != rows(1, 1)
    assert rows(1, 0) != rows(2, 0)


def test_who_meets_whom_changes_between_epochs() -> None:
    sampler = BatchSampler(list(range(64)), 8, epochs=2)
    met = [
        {frozenset((a, b)) for batch in sampler.epoch_batches(e) for a in batch for b in batch}
        for e in (0, 1)
    ]
    # Chance alone leaves about one pair in nine together; the same batches would leave all.
    assert len(met[0] & met[1]) < len(met[0]) / 2


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_a_thread_makes_the_next_batches_of_the_epoch_and_the_state_counts_those_given() -> None:
    sampler = BatchSampler(list(range(40)), 8, epochs=2)  # 5 batches an epoch
    plans, made = list(sampler), queue.SimpleQueue[BatchPlan]()

    def make(plan: BatchPlan) -> tuple[BatchPlan, bool]:
        made.put(plan)
        return plan, threading.current_thread() is threading.main_thread()

    loader = BatchLoader(sampler, make)
    loader.set_epoch(0)
    batches = iter(loader)
    assert made.empty()
    for place in range(2):
        assert next(batches) == (plans[place], False)
        assert loader.state_dict() == {"batches": place + 1}
    # Those that follow are made unasked, and no more than so many.
    assert [made.get(timeout=60) for _ in range(2 + AHEAD)] == plans[: 2 + AHEAD]
    with pytest.raises(queue.Empty):
        made.get(timeout=0.05)
    assert len(threads()) == 1
    batches.close()  # type: ignore[attr-defined]
    assert not threads()
    again = BatchLoader(sampler, make)
    again.load_state_dict(loader.state_dict())
    assert [plan for plan, _ in again] == plans[2:5] and not threads()
    # Nothing of the next epoch is made before it begins.
    assert [made.get(timeout=60) for _ in range(3)] == plans[2:5] and made.empty()
    again.set_epoch(1)
    assert [plan for plan, _ in again] == plans[5:]


def test_what_goes_wrong_in_the_thread_is_raised_in_its_batchs_turn() -> None:
    sampler = BatchSampler(list(range(40)), 8, epochs=1)
    error = UserError("no such text")

    def make(plan: BatchPlan) -> int:
        if plan.index == 2:
            raise error
        return plan.index

    batches = iter(BatchLoader(sampler, make))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(UserError) as raised:
        next(batches)
    assert raised.value is error and not threads()
