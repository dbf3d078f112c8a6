"""Record the commit, the installed versions and the hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from claim2source.core.machine import machine_memory
from claim2source.core.report import Hardware

# Only if the package runs from a checkout.
_CHECKOUT = Path(__file__).resolve().parents[2]

_PACKAGES = (
    "claim2source torch transformers sentence-transformers peft accelerate pytorch-lightning "
    "tokenizers faiss-cpu faiss-gpu bm25s numpy"
)


@cache
def version(name: str) -> str:
    """Return the installed version of a package, read once per process because that takes 20 ms.

    Raises `PackageNotFoundError` if it is not installed.
    """
    return metadata.version(name)


def git_state() -> str | None:
    """Return the checkout's commit, with "+changes" if it is modified; None outside a checkout."""
    if not (_CHECKOUT / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}+changes" if _git("status", "--porcelain") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    process = subprocess.run(
        ["git", "-C", str(_CHECKOUT), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return process.stdout.strip()


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in _PACKAGES.split():
        with suppress(metadata.PackageNotFoundError):
            installed[name] = version(name)
    return installed


def hardware() -> Hardware:
    """Describe processor, memory and the GPUs that torch can use; never the machine's name."""
    gpus: tuple[str, ...] = ()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Hardware(_processor(), os.cpu_count() or 1, machine_memory(), gpus)


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next(line for line in lines if line.startswith("model name"))
        return model.partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
