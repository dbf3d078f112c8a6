"""Measuring what a stage costs."""

from __future__ import annotations

import resource
import sys


def peak_memory() -> int:
    """Most memory this process has held so far, in bytes (GPU memory where one is used)."""
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
            return int(torch.cuda.max_memory_allocated())
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return int(used if sys.platform == "darwin" else used * 1024)
