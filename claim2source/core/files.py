"""Write files completely or not at all: under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from claim2source.core.errors import FULL, InputError, UserError

_PROBE = 2**16  # bytes: a full disk may have room for a name or a few characters
# Target and kind in the temporary names that are made below.
_LEFTOVER = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.(tmp|old)")


@contextlib.contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `target`, renamed to `target` if the body succeeds."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        with _naming(target, temporary):
            yield temporary
            _allow_umask(temporary, 0o666)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def same_file(path: Path, target: Path) -> None:
    """Link `target` to the content of `path`, or copy it if the file system has no links."""
    with atomic_path(target) as temporary:
        temporary.unlink()
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)


@contextlib.contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Yield a temporary folder next to `target`, which replaces it if the body succeeds."""
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    try:
        with _naming(target, temporary):
            yield temporary
            # safetensors, like `mkdtemp`, makes its files readable for their owner only.
            for path in (temporary, *temporary.rglob("*")):
                if not path.is_symlink():
                    _allow_umask(path, 0o777 if path.is_dir() else 0o666)
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


@contextlib.contextmanager
def _naming(target: Path, temporary: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        full = _disk_full_error(target.parent)
        if full is None and isinstance(error, OSError) and error.errno is not None:
            is_named = error.filename is not None and os.fsdecode(error.filename)
            full = None
            if not is_named or str(temporary) in str(is_named):
                full = error
        if full is None:
            raise
        raise OSError(full.errno, full.strerror, str(target)) from error


def _disk_full_error(folder: Path) -> OSError | None:
    """Test whether a folder's disk is full: libraries raise all kinds of errors for that."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0" * _PROBE)
            file.flush()
    except OSError as error:
        return error if error.errno in FULL else None
    return None


def require_writable(target: str | Path, kind: Literal["file", "folder"]) -> None:
    """Raise `InputError` unless `target` can be written as a file, or files into it as a folder.

    Programs check their output before they start to work. Nothing is left behind.
    """
    target = Path(target)
    folder = target if kind == "folder" else target.parent
    try:
        # A device would be replaced by a file.
        if kind == "file" and target.exists() and not target.is_file():
            reason = "is a folder, not a file" if target.is_dir() else "is not a regular file"
            raise InputError(target, reason=reason)
        while not os.path.lexists(folder) and folder != folder.parent:
            folder = folder.parent
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise InputError(folder, reason="is a file, not a folder")
        prefix = f".{target.name}."  # a name may be too long
        with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix, suffix=".tmp") as file:
            file.write(b"0" * _PROBE)
            file.flush()
    except OSError as error:
        reason = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise InputError(target, reason=reason) from None


def refuse_input(target: Path, inputs: Iterable[str | Path], option: str = "--out") -> None:
    """Raise `InputError` if the file `target` is one of the `inputs` or is inside one."""
    output = Path(os.path.realpath(target))
    read = {Path(os.path.realpath(path)) for path in inputs}
    if target.exists() and read & {output, *output.parents}:
        raise InputError(target, reason=f"is an input of this command; choose another {option}")


def real_path(path: str | Path) -> Path:
    """Resolve links; unlike `Path.resolve`, leave a loop of links unchanged."""
    return Path(os.path.realpath(path))


def file_error(path: Path) -> str | None:
    """Return the reason why a path is not a readable file; None if it is one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, ValueError):  # the latter: a NUL character
        broken = path.is_symlink()
        return "a link to a missing file" if broken else "no such file"
    except NotADirectoryError:
        return "no such file: its path contains a file as a folder"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if stat.S_ISDIR(mode):
        return "is a folder, not a file"
    # The shell's <(..) is a pipe without a path in the file system; a named pipe may never end.
    pipe = stat.S_ISFIFO(mode) and not os.path.exists(os.path.realpath(path))
    if stat.S_ISREG(mode) or pipe:
        return None
    return "is not a regular file"


def folder_error(path: Path) -> str | None:
    """Return the reason why a path is not a folder; None if it is one."""
    if path.is_dir():
        return None
    reason = file_error(path) or "is a file, not a folder"
    return "no such folder" if reason == "no such file" else reason


def is_leftover(path: Path) -> bool:
    """Whether a killed process left this path of `atomic_path` or `atomic_folder`."""
    return _LEFTOVER.fullmatch(path.name) is not None


def clean_leftovers(folder: str | Path, name: str | None = None) -> None:
    """Remove the temporary files of killed processes from a folder, for one target or for all.

    A folder whose writer was killed between the two renames is restored. No process may be
    writing there.
    """
    folder = Path(folder)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or name not in (None, match[1]):
            continue
        if match[2] == "old" and (path / match[1]).exists() and not (folder / match[1]).exists():
            os.replace(path / match[1], folder / match[1])
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _allow_umask(path: Path, mode: int) -> None:
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


def finite(value: object) -> object:
    """Replace the numbers that JSON does not have, infinity and NaN, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def file_hash(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(value: object) -> str:
    """Return the sha256 of a value's canonical JSON, in hex."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
