"""Measure the energy of this machine's processors (RAPL) and GPUs (NVML), if it reports that.

The counters belong to the machine: they include everything else that runs on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
# Packages of processors; a name with a second colon is a part of one.
_PACKAGES = "*-rapl:[0-9]*"
_MICRO, _MILLI = 1e-6, 1e-3


@dataclass(frozen=True)
class Counter:
    """Energy so far, and the value at which the counter wraps around (0: never), in joules."""

    joules: float
    highest: float = 0.0

    def since(self, before: Counter) -> float:
        used = self.joules - before.joules
        return used if used >= 0 else used + self.highest


@dataclass(frozen=True)
class EnergyMeter:
    """Measure energy from the moment it is made."""

    before: Mapping[str, Counter] = field(default_factory=lambda: read_counters())

    def joules(self) -> float | None:
        """Return the energy used since then, in joules; None if the machine does not report it."""
        after = read_counters()
        if not after or after.keys() != self.before.keys():
            return None
        used = 0.0
        for name, counter in after.items():
            used += counter.since(self.before[name])
        return max(used, 0.0)


def read_counters() -> dict[str, Counter]:
    """Read the counters of all processors and GPUs, except those that cannot be read."""
    counters: dict[str, Counter] = {}
    for folder in sorted(POWERCAP.glob(_PACKAGES)):
        if folder.name.count(":") > 1:
            continue
        # Only root may read it on most systems.
        with contextlib.suppress(OSError, ValueError):
            energy = int((folder / "energy_uj").read_text(encoding="ascii"))
            highest = int((folder / "max_energy_range_uj").read_text(encoding="ascii"))
            counters[folder.name] = Counter(energy * _MICRO, highest * _MICRO)
    return counters | _gpu_counters()


def _gpu_counters() -> dict[str, Counter]:
    """Read NVML's counters (GPUs since Volta); none without the package nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        return {}
    counters: dict[str, Counter] = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(number)
            energy = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
            counters[f"gpu {number}"] = Counter(energy * _MILLI)
    return counters
