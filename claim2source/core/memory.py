"""Measure the peak memory of a stage."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Written to clear_refs it resets the highest resident size (proc(5)).
_RESET_PEAK = "5"


def peak_memory(gpu: bool = True) -> int:
    """Measure the most memory held since `reset_peak_memory`, or the process's start, in bytes.

    GPU memory where one is used, unless `gpu` is false: for a stage that runs on the CPU.
    """
    if gpu and "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
            return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return int(used if sys.platform == "darwin" else used * 1024)


def reset_peak_memory() -> None:
    """Reset the peak, so that a stage does not show that of an earlier one.

    Where the system does not allow it the peak stays that of the whole process.
    """
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
