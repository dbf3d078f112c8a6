"""Peak memory: of one stage, not of the process so far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from claim2source.core.memory import peak_memory
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
