"""List what a store holds, and prune it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.io.store import NAME_FILE

_HASH = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[0-9a-f]{64}\.(safetensors|verified)")
# What a killed writer left: `atomic_path` makes such names. One that lives needs seconds.
_LEFT = re.compile(r"\.[0-9a-f]{64}\.(safetensors|verified)\.[a-z0-9_]{8}\.tmp")
DAY = 86_400.0
RUNS, LEFT, UNNAMED = "ranked lists", "left by killed processes", "vectors of a model without name"


@dataclass(frozen=True)
class Entry:
    """Describe a file of the store: what it holds, how many texts or runs, bytes, time written."""

    path: Path
    what: str
    count: int
    size: int
    written: float


def entries(root: Path) -> list[Entry]:
    """List the files that a store wrote, the oldest first; anything else in the folder is not ours.

    A file that another process removes meanwhile is left out.
    """
    found = []
    for path in _files(root):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if _LEFT.fullmatch(path.name):
                if time.time() - status.st_mtime < DAY:
                    continue  # its writer may live
                what, count = LEFT, 1
            elif path.parent.name == "runs":
                what, count = RUNS, 1
            else:
                what, count = _vectors(path)
            found.append(Entry(path, what, count, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: (entry.written, entry.path))


def _files(root: Path) -> Iterator[Path]:
    folders = [root / "runs", *(root / "embeddings").glob("*")]
    for folder in folders:
        if folder.parent.name == "embeddings" and not _HASH.fullmatch(folder.name):
            continue
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            ours = _FILE.fullmatch(path.name) or _LEFT.fullmatch(path.name)
            if ours and path.suffix != ".verified" and path.is_file() and not path.is_symlink():
                yield path


def _vectors(path: Path) -> tuple[str, int]:
    """Read what a shard says of itself: its model, and how many vectors it holds."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, 1_000_000)))
        shape, kind = header["vectors"]["shape"], header["vectors"]["dtype"]
        named = path.with_name(NAME_FILE)
        name = f"vectors of {named.read_text(encoding='utf-8')}" if named.is_file() else UNNAMED
        if shape[1] == 1:
            return name.replace("vectors of", "scores of pairs by", 1), int(shape[0])
        return f"{name}, {int(shape[1])} x {kind}", int(shape[0])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "damaged files", 1


def chosen(
    found: Sequence[Entry], *, days: float | None, mebibytes: float | None, everything: bool
) -> list[Entry]:
    """Choose what to remove: all, what is older than `days`, the oldest beyond `mebibytes`."""
    if everything:
        return list(found)
    oldest = -1.0 if days is None else time.time() - days * DAY
    left, removed = sum(entry.size for entry in found), []
    for entry in found:
        too_much = mebibytes is not None and left > mebibytes * 2**20
        if entry.written < oldest or too_much or entry.what == LEFT:
            removed.append(entry)
            left -= entry.size
    return removed


def remove(removed: Sequence[Entry]) -> None:
    """Remove files; folders stay, since another process may be writing there.

    A process that has read a file goes on with it; others make again what it held.
    """
    for entry in removed:
        entry.path.unlink(missing_ok=True)
        entry.path.with_suffix(".verified").unlink(missing_ok=True)
