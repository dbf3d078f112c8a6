"""A process's share of the cores."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from claim2source.core.machine import use_cores


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("processes", "threads"), [(1, 6), (2, 3), (4, 1), (12, 1)])
def test_the_launchers_single_thread_is_not_taken_for_a_wish(
    processes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert use_cores(processes) == torch.get_num_threads() == threads
    assert os.environ["OMP_NUM_THREADS"] == str(threads)


def test_a_number_told_to_the_launcher_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # Outside a launch nothing changes without an explicit number.
    assert use_cores(1) == torch.get_num_threads() == 1
    assert use_cores(3, 5) == torch.get_num_threads() == 5
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    assert use_cores(1) == torch.get_num_threads() == 2
