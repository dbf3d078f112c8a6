"""Divide the CPU's cores among the processes of a machine."""

from __future__ import annotations

import os


def use_cores(processes: int, threads: int | None = None) -> int:
    """Set torch's threads, by default the cores divided by `processes`; returns their number.

    `accelerate launch` gives each process one thread unless a number is set; a number above 1 is
    kept, and outside a launch nothing changes. `processes` counts those of this machine.
    """
    import torch

    if threads is None:
        launched = any(name.startswith("ACCELERATE_") for name in os.environ)
        if not launched or os.environ.get("OMP_NUM_THREADS", "1") != "1":
            return torch.get_num_threads()
        threads = max(1, len(os.sched_getaffinity(0)) // processes)
    # Libraries loaded later, such as FAISS, read the variable.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    return threads
