"""Find the FLOPs per second that a device reaches: peaks by name, torch.mm's rate."""

from __future__ import annotations

import math
import re
import statistics

import torch

from scripts.benches.common import Clock, seconds_by

# Dense bf16 FLOPs per second from the makers' sheets, by words of the device's name; the first
# match counts.
PEAKS = (
    ("gb200", 2.5e15),
    ("b200", 2.25e15),
    ("b100", 1.8e15),
    ("h200 nvl", 835e12),
    ("h200", 989e12),
    ("h100 nvl", 835e12),
    ("h100 pcie", 756e12),
    ("h100", 989e12),
    ("gh200", 989e12),
    ("a100", 312e12),
    ("a800", 312e12),
    ("l40s", 362e12),
    ("l4", 121e12),
    ("a40", 149.7e12),
    ("a30", 165e12),
    ("rtx 5090", 209.5e12),
    ("rtx 4090", 165.2e12),
    ("rtx 3090", 71e12),
)


def matmul_rate(
    size: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    repeats: int = 5,
    clock: Clock = "wall",
) -> float:
    """Measure FLOPs per second of `torch.mm` on square matrices: the machine's limit."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def multiply() -> float:
        started = seconds_by(clock)
        torch.mm(left, right)
        if device != "cpu":
            torch.cuda.synchronize()
        return seconds_by(clock) - started

    multiply()
    return 2 * size**3 / statistics.median(multiply() for _ in range(repeats))


def peak_flops(name: str) -> float:
    """Look up a device's dense bf16 peak; infinity where unknown, so that shares are 0."""
    found = set(re.split(r"[^a-z0-9]+", name.lower()))
    # A laptop's chip has the name of a faster card.
    known = (peak for words, peak in PEAKS if found >= set(words.split()))
    return math.inf if "laptop" in found else next(known, math.inf)
