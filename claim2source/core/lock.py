"""Lock a folder that one process works on, and identify that process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import UserError

log = logging.getLogger(__name__)

LOCK_FILE = ".claim2source-lock"
# A running process touches its lock this often; a lock untouched for STALE seconds is stale.
TOUCH = 30.0
STALE = 120.0


@dataclass(frozen=True)
class Holder:
    """Identify the process that has a lock."""

    host: str = "an unknown host"
    pid: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def read(cls, text: str) -> Holder | None:
        """Read the holder from a lock's text; None for an empty one."""
        if not text:
            return None
        try:
            values = json.loads(text)
            return cls(str(values["host"]), int(values["pid"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()


class FolderLock:
    """Lock of a folder until `release`; raises `UserError` if a running process has it.

    The kernel drops a dead process's flock, so a reused process number is not mistaken for it.
    If flock does not work (another host, some network file systems), a lock is in use as long as
    it is touched. A stale lock is taken over with a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._file = self._try_lock()
        self._stop = threading.Event()
        # A daemon thread, so that it does not keep a program alive.
        threading.Thread(target=self._touch, name="lock", daemon=True).start()

    def _try_lock(self) -> int:
        own = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        while True:
            # Links and pipes, which somebody else may have made, are not followed.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                file = os.open(self.path, flags, 0o666)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                    raise
                raise self._no_file() from None
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                    raise self._no_file()
                locked = _flock(file)
                holder = Holder.read(os.read(file, 4096).decode("utf-8", "replace"))
                if locked is False:
                    raise self._lock_error(holder or Holder())
                if not self._is(file):  # removed by `release` after it was opened
                    os.close(file)
                    continue
                # A free flock on this host means that the process is gone; else wait and see.
                if holder is not None and (locked is None or holder.host != socket.gethostname()):
                    self._wait_until_stale(file, holder)
                if holder is not None:
                    log.warning(
                        "%s: locked by %s, which is gone; taken over", self.path.parent, holder
                    )
                os.ftruncate(file, 0)
                os.pwrite(file, own.encode(), 0)
                os.fsync(file)
                return file
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(file)
                raise

    def _no_file(self) -> UserError:
        return UserError(f"{self.path}: is not a lock of this program; remove it")

    def _lock_error(self, holder: Holder) -> UserError:
        return UserError(f"{self.path.parent}: in use by {holder}; wait for it, or stop it")

    def _wait_until_stale(self, file: int, holder: Holder) -> None:
        touched = os.fstat(file).st_mtime
        # A lock with a time in the future (a clock was set back) gets the same wait.
        left = min(STALE, STALE - (_file_system_time(self.path.parent) - touched))
        if left > 0:
            log.warning(
                "%s: locked by %s; waiting at most %.0f s to see whether it is still running",
                *(self.path.parent, holder, left),
            )
        end = time.monotonic() + left
        while time.monotonic() < end:
            time.sleep(min(1.0, TOUCH, max(end - time.monotonic(), 0)))
            if not self._is(file) or self.path.stat().st_mtime != touched:
                raise self._lock_error(holder)

    def _is(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except OSError:
            return False

    def _touch(self) -> None:
        while not self._stop.wait(TOUCH):
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def release(self) -> None:
        """Remove the lock; safe to call twice. If its folder was moved, set `path` first."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._is(self._file):
            self.path.unlink(missing_ok=True)
        os.close(self._file)


def _flock(file: int) -> bool | None:
    """Acquire the kernel's lock: False if another process has it, None if it is not supported."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems do not support it
        return None
    return True


def _file_system_time(folder: Path) -> float:
    # A server's clock may differ from ours.
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
