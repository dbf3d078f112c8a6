"""Write a file of papers, and read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from claim2source.datasets.paper_files import PaperFiles
from claim2source.datasets.papers import Paper


def written(path: Path, data: str | bytes) -> Path:
    """Write a file of text or bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read(
    path: Path, data: str | bytes, columns: Mapping[str, str] | None = None
) -> tuple[list[Paper], str]:
    """Write a file and read it; return its papers and what is said."""
    files = PaperFiles.of(str(written(path, data)), columns)
    return list(files), files.said()
