"""Locate the data sets of benchmarks and tests: in CLAIM2SOURCE_DATA, else in ../shared/data."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def data_folder(name: str = "") -> Path:
    """Give the folder of a data set, whether it exists or not.

    A relative CLAIM2SOURCE_DATA starts at the repository's root, as the default does.
    """
    root = os.environ.get("CLAIM2SOURCE_DATA") or "../shared/data"
    return (REPOSITORY / root / name).resolve()
