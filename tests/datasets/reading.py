"""Write a file of papers, and read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from claim2source.datasets.paper_files import PaperFiles
from claim2source.datasets.papers import Paper


def written(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read(
    path: Path, data: str | bytes, columns: Mapping[str, str] | None = None
) -> tuple[list[Paper], str]:
    files = PaperFiles.of(str(written(path, data)), columns)
    return list(files), files.said()
