"""Measure memory, and divide the cores of this machine among its processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
# A container's memory limit in versions 2 and 1 of control groups.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Writing it to clear_refs resets the peak resident size (proc(5)).
_RESET_PEAK = "5"
# Parameter of mallopt(3): the size from which a block gets its own mapping.
_MMAP_THRESHOLD = -3


def peak_memory(gpu: bool = True) -> int:
    """Measure the peak memory since `reset_peak_memory`, or since the process's start, in bytes.

    GPU memory if a GPU is used, unless `gpu` is false, as for a stage that runs on the CPU.
    """
    if gpu and "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
            return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return int(peak if sys.platform == "darwin" else peak * 1024)


def reset_peak_memory() -> None:
    """Reset the peak, so that a stage does not report the peak of an earlier one.

    If the system does not allow it, the peak remains that of the entire process.
    """
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")


def release_memory() -> None:
    """Return freed memory to the system, if the C library can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def return_large_blocks() -> Iterator[None]:
    """Make the C library return freed blocks of 64 KiB or more at once, if it can.

    Otherwise they lie between other blocks in each thread's memory and are not returned. A user's
    own settings of the C library are kept.
    """
    if {"MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        yield
        return
    _map_from(2**16)
    try:
        yield
    finally:
        _map_from(2**25)  # the highest value that the C library chooses itself
        release_memory()


def _map_from(size: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, size)


def machine_memory() -> int:
    """Return the memory of this machine, or of this container, in bytes."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        # "max" is not a number.
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(path.read_text(encoding="ascii")))
    return min(sizes)


def use_cores(processes: int, threads: int | None = None) -> int:
    """Set torch's threads, by default the cores divided by `processes`; return their number.

    `accelerate launch` gives each process one thread unless a number is set; a number above 1 is
    kept, and outside a launch nothing changes. `processes` is the number on this machine.
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
