"""A folder's lock: one running process at a time, and no dead one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from claim2source.core import lock
from claim2source.core.errors import UserError
from claim2source.core.lock import LOCK_FILE, STALE, FolderLock
from tests.refusals import refused
from tests.shared_data import REPOSITORY

HOLD = """
import sys
from pathlib import Path
from claim2source.core.lock import FolderLock
held = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def write_lock(folder: Path, host: str, pid: int) -> None:
    (folder / LOCK_FILE).write_text(json.dumps({"host": host, "pid": pid}))


def test_a_living_process_keeps_others_out_and_a_killed_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        holder = f"process {process.pid} on {socket.gethostname()}"
        with refused(UserError, tmp_path, holder):
            FolderLock(tmp_path)
        assert (tmp_path / LOCK_FILE).is_file()
        process.send_signal(signal.SIGKILL)
        process.wait()
    folder_lock = FolderLock(tmp_path)
    assert holder in caplog.text
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    with refused(UserError, f"process {os.getpid()} on"):
        FolderLock(tmp_path)
    folder_lock.release()
    folder_lock.release()
    assert list(tmp_path.iterdir()) == []
    # A reused process number: the parent is running, but has no lock.
    write_lock(tmp_path, socket.gethostname(), os.getppid())
    FolderLock(tmp_path).release()


@pytest.mark.parametrize("host", ["another host", "a file system without flock"])
@pytest.mark.parametrize("lives", [False, True])
def test_where_the_kernel_does_not_know_the_process_time_tells(
    host: str, lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / LOCK_FILE
    write_lock(tmp_path, "node7" if host == "another host" else socket.gethostname(), 12)
    if host != "another host":

        def unsupported(*_: object) -> None:
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr(fcntl, "flock", unsupported)
    # It is in use for another 0.4 seconds.
    touched = time.time() - STALE + 0.4
    os.utime(path, (touched, touched))
    if lives:
        threading.Timer(0.15, lambda: os.utime(path)).start()
        with refused(UserError, "process 12 on"):
            FolderLock(tmp_path)
        assert json.loads(path.read_text())["pid"] == 12
        return
    started = time.monotonic()
    FolderLock(tmp_path).release()
    assert time.monotonic() - started > 0.2
    write_lock(tmp_path, "node7", 12)
    os.utime(path, (0, 0))
    FolderLock(tmp_path).release()
    assert time.monotonic() - started < 30
    # Touched tomorrow, before a clock was set back: the wait is the same.
    monkeypatch.setattr("claim2source.core.lock.STALE", 0.4)
    write_lock(tmp_path, "node7", 12)
    os.utime(path, (time.time() + 86_400,) * 2)
    started = time.monotonic()
    FolderLock(tmp_path).release()
    assert 0.3 < time.monotonic() - started < 30


def test_a_process_touches_the_lock_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "TOUCH", 0.05)
    folder_lock = FolderLock(tmp_path)
    before = (tmp_path / LOCK_FILE).stat().st_mtime_ns
    time.sleep(0.2)
    assert (tmp_path / LOCK_FILE).stat().st_mtime_ns > before
    folder_lock.release()


def test_a_lock_goes_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    folder_lock = FolderLock(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    folder_lock.path = tmp_path / "b" / LOCK_FILE
    folder_lock.release()
    assert list(tmp_path.rglob("*")) == [tmp_path / "b"]
