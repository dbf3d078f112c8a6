"""Find the real data of tests: CLAIM2SOURCE_DATA, else ../shared/data of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
# Runs of version 1.0, with their data and model.
FIXTURES = REPOSITORY / "tests" / "fixtures_100"


def data_folder(name: str = "") -> Path:
    """Return the folder of a data set, which may not exist; relative to the repository."""
    root = os.environ.get("CLAIM2SOURCE_DATA") or "../shared/data"
    return (REPOSITORY / root / name).resolve()


def set_data_folder() -> None:
    """Set CLAIM2SOURCE_DATA for tests that load data sets by name, if the folder exists."""
    if data_folder().is_dir():
        os.environ["CLAIM2SOURCE_DATA"] = str(data_folder())


def shared(name: str) -> Path:
    """Return a folder or file of the real data; skip the test if it is missing."""
    path = data_folder(name)
    if not path.exists():
        pytest.skip(f"no {path} (set CLAIM2SOURCE_DATA to the folder that holds {name})")
    return path
