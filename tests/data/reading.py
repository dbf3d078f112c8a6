"""Write a file of papers, and read it."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.data.paper_files import PaperFiles
from claim2source.data.papers import Paper
from tests import refusals


def write(path: Path, data: str | bytes) -> Path:
    """Write a file; a text whose name ends in .gz is compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, str):
        data = gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode()
    path.write_bytes(data)
    return path


def read(
    path: Path, data: str | bytes, columns: Mapping[str, str] | None = None
) -> tuple[list[Paper], str]:
    files = PaperFiles.of(str(write(path, data)), columns)
    return list(files), files.omissions()


def refused(path: Path, data: str | bytes, *facts: object) -> None:
    """Check that a file is refused in one line with these facts."""
    with refusals.refused(InputError, path, *facts) as error:
        read(path, data)
    assert len(error.value.lines) == 1
