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


def test_windows_average_what_they_hold_and_close_with_the_epoch() -> None:
    sampler = BatchSampler(list(range(20)), 4, epochs=2, accumulation=2)  # 5 batches an epoch
    plans = list(sampler)
    assert [plan.window for plan in plans] == [2, 2, 2, 2, 1] * 2
    assert sampler.optimizer_steps == 6


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_a_thread_makes_the_next_batches_of_the_epoch_and_the_state_counts_those_given() -> None:
    sampler = BatchSampler(list(range(40)), 8, epochs=2)  # 5 batches an epoch
    plans, plans_made = list(sampler), queue.SimpleQueue[BatchPlan]()

    def make(plan: BatchPlan) -> tuple[BatchPlan, bool]:
        plans_made.put(plan)
        return plan, threading.current_thread() is threading.main_thread()

    loader = BatchLoader(sampler, make)
    loader.set_epoch(0)
    batches = iter(loader)
    assert plans_made.empty()
    for i in range(2):
        assert next(batches) == (plans[i], False)
        assert loader.state_dict() == {"batches": i + 1}
    # Those that follow are made unasked, and no more than so many.
    assert [plans_made.get(timeout=60) for _ in range(2 + AHEAD)] == plans[: 2 + AHEAD]
    with pytest.raises(queue.Empty):
        plans_made.get(timeout=0.05)
    assert len(threads()) == 1
    batches.close()  # type: ignore[attr-defined]
    assert not threads()
    batch_loader = BatchLoader(sampler, make)
    batch_loader.load_state_dict(loader.state_dict())
    assert [plan for plan, _ in batch_loader] == plans[2:5] and not threads()
    # Nothing of the next epoch is made before it begins.
    assert [plans_made.get(timeout=60) for _ in range(3)] == plans[2:5] and plans_made.empty()
    batch_loader.set_epoch(1)
    assert [plan for plan, _ in batch_loader] == plans[5:]


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
