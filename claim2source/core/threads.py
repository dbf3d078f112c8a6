"""A process's share of the CPU's cores."""

from __future__ import annotations

import os

import torch


def use_cores(processes: int, threads: int | None = None) -> int:
    """Let torch use `threads`, by default this process's share; returns their number.

    `accelerate launch` gives each process a single thread unless it is told a number; one that
    was told (above 1) is kept, and outside a launch nothing changes. `processes` are those of
    this machine.
    """
    if threads is None:
        launched = any(name.startswith("ACCELERATE_") for name in os.environ)
        if not launched or os.environ.get("OMP_NUM_THREADS", "1") != "1":
            return torch.get_num_threads()
        threads = max(1, len(os.sched_getaffinity(0)) // processes)
    # Libraries that are loaded later, such as FAISS, read the variable.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    return threads
