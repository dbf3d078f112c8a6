"""Read and write the files of an index, in a folder or in a bucket, and lock it for one writer.

Object stores are accessed with obstore, whose conditional writes never overwrite an object.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import InputError, UserError, did_you_mean
from claim2source.core.files import (
    atomic_path,
    clean_leftovers,
    file_hash,
    is_leftover,
    require_writable,
)
from claim2source.core.lock import LOCK_FILE, STALE, TOUCH, FolderLock, Holder
from claim2source.core.validate import require_size, size_error

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "az")
# Total bytes of the smallest files whose hashes are checked when an index is opened. Larger files
# are checked only if they were written later.
HASH_LIMIT = 256 * 2**20
# LanceDB rewrites this file with each version, and works without it if it is damaged.
REWRITTEN = "/latest_version_hint.json"
_NO_FILE = "is not a regular file: remove it"
# A larger file with less than a hundredth of its bytes on disk was not written completely.
_SPARSE = 2**30
# Version names count down from it, so that the newest is listed first.
LAST_VERSION = 2**64 - 1
# Prefixes of the files of an empty table, its version 1.
_FIRST_VERSION = (
    "_transactions/0-",
    f"_versions/{LAST_VERSION - 1}.manifest",
    "_versions/latest_version_hint.json",
)
_NOT_WRITTEN = "was not written completely: restore it from a backup"
# State of a file: bytes, time or version of writing, and its hash ("" in a bucket).
Seal = Mapping[str, tuple[int, str, str]]


class Folder:
    """Read and write the files of an index in a folder by their names; LanceDB opens `uri`."""

    def __init__(self, path: Path) -> None:
        self.path, self.uri = path, str(path)

    def absence_reason(self) -> str:
        """Return the reason why there cannot be files; "" if there may be some."""
        if self.path.is_dir():
            return ""
        if os.path.lexists(self.path):
            return "is not a folder"
        near = did_you_mean(self.path.name, self._siblings()).strip()
        return f"no such folder; {near}" if near else "no such folder"

    def _siblings(self) -> list[str]:
        """List the folders next to where this one should be."""
        try:
            return sorted(path.name for path in self.path.parent.iterdir() if path.is_dir())
        except OSError:
            return []

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none."""
        path = self.path / name
        if path.is_file():
            require_size(path)
            return path.read_bytes()
        if os.path.lexists(path):  # reading it may block forever
            raise InputError(path, reason=_NO_FILE)
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        with atomic_path(self.path / name) as temporary:
            temporary.write_bytes(data)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def stamp(self, name: str) -> str:
        """Return a file's version, which changes with its content; "" if there is no file."""
        try:
            status = (self.path / name).stat()
        except OSError:
            return ""
        return f"{status.st_mtime_ns}-{status.st_ino}"

    def listed(self, under: str = "") -> dict[str, tuple[int, str]]:
        """Map the files below a name to bytes and stamps. Raises `InputError` for a pipe."""
        stamps, sparse, blocks = {}, list[Path](), 0
        for folder, _, names in os.walk(self.path / under):
            for path in (Path(folder) / name for name in names):
                with suppress(FileNotFoundError):  # a writer may be removing files
                    try:
                        status = path.stat()
                    except OSError as error:
                        if error.errno != errno.ELOOP:
                            raise
                        raise InputError(path, reason=_NO_FILE) from None
                    if not stat.S_ISREG(status.st_mode):
                        raise InputError(path, reason=_NO_FILE)
                    if status.st_size > max(_SPARSE, 100 * 512 * status.st_blocks):
                        sparse.append(path)
                    blocks += status.st_blocks
                    key = path.relative_to(self.path).as_posix()
                    stamps[key] = status.st_size, str(status.st_mtime_ns)
        # Some mounts report no blocks of any file: then only sizes are known.
        if sparse and blocks:
            raise InputError(sparse[0], reason=_NOT_WRITTEN)
        return stamps

    def hash(self, name: str) -> str:
        """Hash a file's bytes; "" if the store does so."""
        return file_hash(self.path / name)

    def prepare(self) -> HeldFolder:
        """Prepare the place of a new index, and lock it."""
        require_writable(self.path, "folder")
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.lock()
        clean_leftovers(self.path)
        return lock

    def lock(self) -> HeldFolder:
        """Take the writer's lock. Raises `UserError` if another process has it."""
        return HeldFolder(self.path)


class HeldFolder(FolderLock):
    """Writer's lock of a folder."""

    def check(self) -> None:
        if not self._is(self._file):
            raise UserError(f"{self.path.parent}: the writer's lock was removed; run it again")


class Bucket:
    """Files in an object store, with `Folder`'s methods: s3://BUCKET/PREFIX, gs:// or az://."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    @cached_property
    def store(self) -> Any:
        """Open the store with the usual environment variables, such as AWS_ENDPOINT_URL."""
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise UserError(
                f"{self.uri}: a bucket needs {error.name}, which is not installed; "
                "pip install 'claim2source[index]'"
            ) from None
        options: Any = {"timeout": "60s", **self.options}
        with self._named_errors():
            return from_url(self.uri, client_options=options, retry_config={"max_retries": 4})

    @property
    def options(self) -> dict[str, str]:
        """Allow plain HTTP if the user's endpoint has it."""
        names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
        allows_http = any(os.environ.get(name, "").startswith("http://") for name in names)
        return {"allow_http": "true"} if allows_http else {}

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Report the store's errors in one line, without secrets."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            message, _, _ = str(error).partition("Debug source")
            reason = " ".join(message.split())[:300]
            raise UserError(
                f"{self.uri}: unexpected answer of the object store: {reason}"
            ) from None

    def absence_reason(self) -> str:
        return ""

    def read(self, name: str) -> bytes | None:
        with self._named_errors(), suppress(FileNotFoundError):
            entry = self.store.get(name)
            if reason := size_error(int(entry.meta["size"])):
                raise InputError(f"{self.uri}/{name}", reason=reason)
            return bytes(entry.bytes())
        return None

    def write(self, name: str, data: bytes) -> None:
        with self._named_errors():
            self.store.put(name, data)

    def remove(self, name: str) -> None:
        with self._named_errors(), suppress(FileNotFoundError):
            self.store.delete(name)

    def stamp(self, name: str) -> str:
        with self._named_errors(), suppress(FileNotFoundError):
            entry = self.store.head(name)
            return f"{entry['e_tag']}-{entry['last_modified']}"
        return ""

    def listed(self, under: str = "") -> dict[str, tuple[int, str]]:
        with self._named_errors():
            parts = self.store.list(prefix=under or None)
            return {
                entry["path"]: (entry["size"], str(entry["e_tag"]))
                for part in parts
                for entry in part
            }

    def hash(self, name: str) -> str:
        return ""

    def prepare(self) -> BucketLock:
        return self.lock()

    def lock(self) -> BucketLock:
        return BucketLock(self)


class BucketLock:
    """Bucket's lock, an object that is rewritten every `TOUCH` seconds.

    It is taken over if it was not written for `STALE` seconds, or at once if its process was on
    this machine and has ended. A writer that cannot write it for half as long stops before that.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._own = {"host": _this_machine(), "pid": os.getpid(), "key": secrets.token_hex(8)}
        self._lost, self._beat, self._stop = False, 0, threading.Event()
        self._tag = self._acquire()
        self._written_at = time.monotonic()
        threading.Thread(target=self._touch, name="lock", daemon=True).start()

    def _write_lock(self, mode: Any) -> str:
        self._beat += 1  # equal contents would have equal tags
        data = json.dumps({**self._own, "beat": self._beat}).encode()
        return str(self.bucket.store.put(LOCK_FILE, data, mode=mode)["e_tag"])

    def _acquire(self) -> str:
        from obstore.exceptions import AlreadyExistsError, NotModifiedError, PreconditionError

        with self.bucket._named_errors():
            try:
                return self._write_lock("create")
            except AlreadyExistsError:
                pass
            except FileNotFoundError:
                raise UserError(f"{self.bucket.uri}: no such bucket") from None
            holder = Holder()
            try:
                entry = self.bucket.store.get(LOCK_FILE)
                tag, text = (
                    str(entry.meta["e_tag"]),
                    bytes(entry.bytes()).decode("utf-8", "replace"),
                )
                holder = Holder.read(text) or holder
                if not (holder.host == _this_machine() and _is_gone(holder.pid)):
                    self._wait_until_stale(holder, tag)
                lock_tag = self._write_lock({"e_tag": tag})
            except FileNotFoundError:  # released in the meantime
                return self._acquire()
            except (PreconditionError, NotModifiedError):
                raise self._refusal(holder) from None
        log.warning("%s: taken over the lock of %s, which has ended", self.bucket.uri, holder)
        return lock_tag

    def _refusal(self, holder: Holder) -> UserError:
        return UserError(f"{self.bucket.uri}: in use by {holder}; wait for it, or stop it")

    def _wait_until_stale(self, holder: Holder, tag: str) -> None:
        message = "%s: locked by %s; waiting up to %.0f s to see if it is still running"
        log.warning(message, self.bucket.uri, holder, STALE)
        end = time.monotonic() + STALE
        while time.monotonic() < end:
            time.sleep(min(5.0, TOUCH))
            if str(self.bucket.store.head(LOCK_FILE)["e_tag"]) != tag:
                raise self._refusal(holder)

    def _touch(self) -> None:
        from obstore.exceptions import BaseError, PreconditionError

        while not self._stop.wait(TOUCH):
            try:
                self._tag = self._write_lock({"e_tag": self._tag})
                self._written_at = time.monotonic()
            except (PreconditionError, FileNotFoundError):
                self._lost = True
                return
            except BaseError:  # the network: `check` counts the seconds
                continue

    def check(self) -> None:
        """Raise `UserError` if another process may write: before every commit."""
        if self._lost or time.monotonic() - self._written_at > STALE / 2 + TOUCH:
            raise UserError(
                f"{self.bucket.uri}: the writer's lock was lost; written data are kept: run it "
                "again"
            )

    def release(self) -> None:
        """Remove the lock; safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        if not self._lost:
            with suppress(UserError):
                self.bucket.remove(LOCK_FILE)


# Places of an index, and their locks.
IndexFiles = Folder | Bucket
Lock = HeldFolder | BucketLock


def _this_machine() -> str:
    """Return the machine's name with its process namespace: containers may share a host's name."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def open_files(location: str | Path) -> IndexFiles:
    """Open the files at a folder or an object store's URL. Raises `UserError` for another URL."""
    scheme, separator, rest = str(location).partition("://")
    if not separator:
        return Folder(Path(location))
    if scheme not in SCHEMES or not rest.strip("/") or "@" in rest:  # the rest may hold a password
        allowed = "s3://BUCKET/PREFIX, gs:// or az://, and no password in it"
        raise UserError(f"{scheme}://..: is not a folder or bucket; allowed: {allowed}")
    return Bucket(str(location))


def replaceable_files(files: IndexFiles, table: str) -> list[str]:
    """List the files of an empty table that a killed process left; a new index may replace them.

    Raises `InputError` if there are other files.
    """
    left = tuple(f"{table}.lance/{name}" for name in _FIRST_VERSION)
    names = [
        name
        for name in files.listed()
        if name != LOCK_FILE and not any(is_leftover(Path(part)) for part in Path(name).parts)
    ]
    if any(not name.startswith(left) for name in names):
        reason = "exists and is not an index, so it is not replaced; choose another --out"
        if any(name.startswith(f"{table}.lance/") for name in names):
            reason = "exists and has no manifest.json, so it is not an index and not replaced"
            reason += ": restore it from a backup, or choose another --out"
        raise InputError(files.uri, reason=reason)
    return names


def require_free(location: str | Path, table: str = "papers") -> None:
    """Raise `InputError` if there are files where a new index would be made."""
    files = open_files(location)
    if not files.absence_reason():
        replaceable_files(files, table)


def make_seal(files: IndexFiles, under: str, before: Seal) -> Seal:
    """Hash the files below a name; the hashes of unchanged files are taken from `before`."""
    seal = {}
    for name, (size, stamp) in files.listed(f"{under}/").items():
        if name.endswith(REWRITTEN):
            continue
        entry = before.get(name)
        if entry is not None and entry[:2] == (size, stamp):
            seal[name] = entry
        else:
            seal[name] = size, stamp, files.hash(name)
    return seal


def read_seal(files: IndexFiles, name: str) -> Seal | None:
    """Read a seal; None if there is none. Raises `InputError` if it is damaged."""
    data = files.read(name)
    if data is None:
        return None
    try:
        seal: dict[str, tuple[int, str, str]] = {}
        for file_name, (size, stamp, hashed, *_) in json.loads(data).items():
            entry = int(size), str(stamp), str(hashed)
            if not file_name.endswith(REWRITTEN):
                seal[file_name] = entry
        return seal
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError):
        reason = "cannot be read; copy the index again, or remove this file to skip its check"
        raise InputError(f"{files.uri}/{name}", reason=reason) from None


def damage_reason(files: IndexFiles, seal: Seal, under: str, verified: Seal) -> str:
    """Describe a file that differs from the seal; "" if there is none.

    Files with the same state in `verified` and `seal` are not hashed again.
    """
    files_under = files.listed(f"{under}/")
    for name, (size, _, _) in seal.items():
        if name not in files_under:
            return f"{name} is missing"
        if files_under[name][0] != size:
            return f"{name} has {files_under[name][0]} bytes, not {size}"
    left = HASH_LIMIT
    smallest_first = sorted(seal.items(), key=lambda file: file[1][0])
    for name, (size, stamp, hashed) in smallest_first:
        left -= size
        if not hashed or verified.get(name) == (size, stamp, hashed):
            continue
        # Of large files, only those with another time, such as copies, are read.
        is_read = left >= 0 or files_under[name][1] != stamp
        if is_read and files.hash(name) != hashed:
            return f"{name} was changed after it was written"
    return ""
