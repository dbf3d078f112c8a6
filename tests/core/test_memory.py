"""Peak memory: of one stage, not of the process so far."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.memory import large_blocks_returned, peak_memory
from claim2source.core.records import Claim, Source
from claim2source.retrieve import BM25

_MIB = 2**20
CLEAR = Path("/proc/self/clear_refs")


def can_reset() -> bool:
    try:
        CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


needs_reset = pytest.mark.skipif(not can_reset(), reason="the system does not allow a reset")


def touched(mib: int) -> np.ndarray:
    return np.ones(mib * _MIB, dtype=np.uint8)


@needs_reset
def test_the_peak_of_one_stage_is_not_that_of_the_one_before() -> None:
    array = touched(200)
    del array
    large = peak_memory(gpu=False)
    searched = BM25().index([Source("s", "Masks")]).search([Claim("c", "masks")], 1)
    small = searched.cost.peak_memory
    assert small < large - 100 * _MIB
    rerun = touched(200)
    assert peak_memory(gpu=False) > small + 150 * _MIB
    del rerun


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="of the GNU C library")
def test_freed_blocks_that_lie_between_others_are_returned() -> None:
    def held_back() -> int:
        before = resident()
        blocks = [np.ones(100 * 1024, dtype=np.uint8) for _ in range(1_500)]
        kept = blocks[::50]
        del blocks
        return resident() - before - sum(block.nbytes for block in kept)

    with large_blocks_returned():
        assert held_back() < 20 * _MIB
    assert held_back() > 50 * _MIB
