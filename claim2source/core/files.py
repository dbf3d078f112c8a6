"""Write files completely or not at all: under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Target and kind in the names that `tempfile` makes below.
_LEFTOVER = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.(tmp|old)")


@contextlib.contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `target`, renamed to `target` if the body succeeds."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _allow_umask(temporary, 0o666)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside `target`, which replaces it if the body succeeds."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    try:
        yield temporary
        _allow_umask(temporary, 0o777)
        if target.exists():
            # Two renames: after a crash between them `clean_leftovers` restores the old folder.
            old = Path(
                tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old")
            )
            os.replace(target, old / target.name)
            try:
                os.replace(temporary, target)
            except BaseException:
                os.replace(old / target.name, target)
                raise
            finally:
                shutil.rmtree(old)
        else:
            os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Tell whether a killed process left this path of `atomic_path` or `atomic_folder`."""
    return _LEFTOVER.fullmatch(path.name) is not None


def clean_leftovers(folder: str | Path, name: str | None = None) -> None:
    """Remove what killed writers left in a folder, of one target or of all.

    A folder whose writer was killed between the two renames is restored. No process may be
    writing there.
    """
    folder = Path(folder)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = _LEFTOVER.fullmatch(path.name)
        if found is None or name not in (None, found[1]):
            continue
        if found[2] == "old" and (path / found[1]).exists() and not (folder / found[1]).exists():
            os.replace(path / found[1], folder / found[1])
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _allow_umask(path: Path, mode: int) -> None:
    """Set the permissions that a plain open() or mkdir() would have set."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(mode & ~umask)


def write_text(target: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(target: str | Path, value: object) -> None:
    """Write indented UTF-8 JSON atomically."""
    write_text(target, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def file_hash(path: str | Path) -> str:
    """Hash a file's bytes with sha256, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(value: object) -> str:
    """Hash a value's canonical JSON with sha256, in hex."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
