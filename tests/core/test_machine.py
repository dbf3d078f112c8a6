"""Peak memory of one stage, not of the process so far."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.machine import peak_memory
from claim2source.core.records import Claim, Source
from claim2source.search.bm25 import BM25

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


HELD_BACK = """
import os
from pathlib import Path

import numpy as np

from claim2source.core.machine import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def held_back():
    before = resident()
    blocks = [np.ones(100 * 1024, dtype=np.uint8) for _ in range(1_500)]
    kept = blocks[::50]
    del blocks
    return (resident() - before - sum(block.nbytes for block in kept)) // 2**20

with return_large_blocks():
    print(held_back())
print(held_back())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of the GNU C library")
@pytest.mark.parametrize("own", [False, True])
def test_freed_blocks_that_lie_between_others_are_returned(own: bool) -> None:
    """Measured in a new process, in which nothing was freed before."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    environment |= {"MALLOC_MMAP_THRESHOLD_": str(2**25)} if own else {}
    command = [sys.executable, "-c", HELD_BACK]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    within, after = map(int, output.stdout.split())
    # A user's own setting is kept.
    assert within > 50 if own else within < 20
    assert after > 50 or own
