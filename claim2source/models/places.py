"""Keep a machine's paths out of manifests, and find bases and data sets without them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from claim2source.core.files import write_text
from claim2source.core.folders import run_settings
from claim2source.io.store import default_root
from claim2source.models.local import local_name

# A base that was a folder is recorded by its name alone, after this.
LOCAL = f".{os.sep}"


def without_paths(value: object) -> object:
    """Replace absolute paths among JSON values by their last part."""
    if isinstance(value, Mapping):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def base_record(name: str) -> str:
    """Return the name under which a base is recorded: of a folder `./` and its last part."""
    return f"{LOCAL}{Path(name).name}" if os.path.isabs(name) else name


def remember_base(name: str, sha256: str) -> None:
    """Note a base's folder in the user's cache, for checkpoints apart from their run."""
    if os.path.isabs(name) and Path(name).is_dir():
        try:
            write_text(_note(sha256), name)
        except OSError:
            return  # it is found beside the run all the same


def _note(sha256: str) -> Path:
    return default_root() / "bases" / f"{Path(sha256).name}.txt"


def find_base(record: str, sha256: str, checkpoint: Path, group: str = "model") -> str:
    """Find the folder of a recorded base; return the record itself where there is none.

    Its run's config names it as `name` of this group, or the user's cache, or it lies among the
    user's models, beside the checkpoint or in the current folder. Whoever loads it compares its
    hash.
    """
    if not record.startswith(LOCAL):
        return record
    name = Path(record).name
    paths = [_path_in_run_config(checkpoint, group, "name", name)]
    try:
        paths.append(_note(sha256).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    beside = checkpoint.resolve().parent / name
    paths += [local_name(record), str(beside), str(Path(name).resolve())]
    return next((path for path in paths if path and Path(path).is_dir()), record)


def find_dataset(record: str | None, checkpoint: Path) -> str | None:
    """Find the data set of a record in the config of the checkpoint's run; else return it."""
    if not record or os.path.isabs(record):
        return record
    return _path_in_run_config(checkpoint, "data", "dataset", record) or record


def _path_in_run_config(checkpoint: Path, group: str, key: str, name: str) -> str | None:
    """Read a path from the config of a checkpoint's run, if its last part is `name`."""
    settings = run_settings(checkpoint.resolve().parent.parent).get(group)
    value = settings.get(key) if isinstance(settings, dict) else None
    return value if isinstance(value, str) and Path(value).name == name else None
