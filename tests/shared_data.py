"""Where the real data for tests is: CLAIM2SOURCE_DATA, else ../shared/data of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def shared(name: str) -> Path:
    """A folder or file of the real data; skips the test, naming it, where it is absent."""
    root = Path(os.environ.get("CLAIM2SOURCE_DATA") or "../shared/data")
    path = (REPOSITORY / root / name).resolve()
    if not path.exists():
        pytest.skip(f"no {path} (set CLAIM2SOURCE_DATA to the folder that holds {name})")
    return path
