"""State what runs: the checkout's commit and the installed versions."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

# Only where the package runs from a checkout.
_CHECKOUT = Path(__file__).resolve().parents[2]

_PACKAGES = (
    "claim2source torch transformers peft accelerate pytorch-lightning tokenizers faiss-cpu "
    "faiss-gpu bm25s numpy"
)


@cache
def version(name: str) -> str:
    """Return the installed version of a package, read once a process: its file takes 20 ms.

    Raises `PackageNotFoundError` where it is not installed.
    """
    return metadata.version(name)


def git_state() -> str | None:
    """Return the commit of the running checkout, "+changes" if modified; None outside one."""
    if not (_CHECKOUT / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}+changes" if _git("status", "--porcelain") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_CHECKOUT), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect vectors."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES.split():
        try:
            found[name] = version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
