"""Read offline runs of W&B: the files that `wandb sync` would upload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HEAD, _BLOCK = 7, 2**15


@dataclass
class OfflineRun:
    """Contents of a run file."""

    folder: Path  # of the run
    id: str = ""
    project: str = ""
    group: str = ""
    name: str = ""
    job: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    files: Path = Path()

    def table(self, key: str) -> list[list[Any]]:
        """Return the rows of a logged table."""
        path = self.files / self.summary[f"{key}/path"]
        rows: list[list[Any]] = json.loads(path.read_text(encoding="utf-8"))["data"]
        return rows


def offline_runs(folder: Path) -> list[OfflineRun]:
    """Read every run below a folder, in the order in which they began."""
    files = folder.rglob("wandb/offline-run-*/run-*.wandb")
    return [_read(path) for path in sorted(files, key=lambda path: path.parent.name)]


def _read(path: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    run = OfflineRun(path.parent.parent.parent, files=path.parent / "files")
    for data in _records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            message = record.run
            run.id, run.project, run.group = message.run_id, message.project, message.run_group
            run.name, run.job = message.display_name, message.job_type
            run.config |= {item.key: json.loads(item.value_json) for item in message.config.update}
        for item in (*record.history.item, *record.summary.update):
            run.summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return run


def _records(data: bytes) -> Iterator[bytes]:
    """Split LevelDB's log format: blocks of 32 KiB, pieces with checksum, length and kind."""
    at, content = _HEAD, b""
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        content += data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        if kind in (1, 4):  # a complete record, or its last piece
            yield content
            content = b""
