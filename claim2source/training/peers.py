"""Notice another machine's silence: its connections do not break by themselves."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import torch.distributed as dist

from claim2source.core.errors import EXIT_CODE

# Seconds between two signs of life, and of silence after which a process is taken for lost: longer
# than any library keeps Python from running.
BEAT, SILENT = 10.0, 300.0
_LEFT = b"left"


@contextlib.contextmanager
def watched_peers(rank: int, size: int) -> Iterator[None]:
    """End this process, with one line, where another one is silent for `SILENT` seconds.

    A process that is killed closes its connections, and the others' exchange with it fails. A
    machine without power or network closes nothing, and they would wait for it for hours. Signs of
    life go through the launcher's store, which has joined the processes.
    """
    watch = Watch(rank, size)
    watch.start()
    try:
        yield
    except BaseException:
        watch.stop()
        raise
    # The first process reports when the others have nothing left to do.
    watch.leave()


class Watch:
    """Give signs of life in one thread, and look for those of the others in a second.

    The first waits as long as the store's machine says nothing.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        now = time.monotonic()
        self.heard = {other: (b"", now) for other in range(size) if other != rank}
        self._ended = threading.Event()
        self._leaves = False
        launcher = os.environ
        host, port = launcher["MASTER_ADDR"], int(launcher["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
        attempt = launcher.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"claim2source/alive/{attempt}", store)
        self._talker = threading.Thread(target=self._talk, name="signs of life", daemon=True)
        self._judge = threading.Thread(target=self._look, name="watched peers", daemon=True)

    def start(self) -> None:
        """Begin with both."""
        self._talker.start()
        self._judge.start()

    def stop(self) -> None:
        """Give no more signs, and look for none."""
        self._ended.set()

    def leave(self) -> None:
        """Say that this process is done, so that its silence means nothing."""
        self._leaves = True
        self.stop()
        self._talker.join(BEAT)

    def _talk(self) -> None:
        beats = 0
        while not self._ended.wait(BEAT):
            beats += 1
            # A store that fails is its machine's silence.
            with contextlib.suppress(RuntimeError):
                self._store.set(str(self.rank), str(beats))
                self._listen()
        if self._leaves:
            with contextlib.suppress(RuntimeError):
                self._store.set(str(self.rank), _LEFT.decode())

    def _listen(self) -> None:
        for other, (before, _) in [*self.heard.items()]:
            key = str(other)
            sign = self._store.get(key) if self._store.check([key]) else b""
            if sign == _LEFT:
                del self.heard[other]
            elif sign != before:
                self.heard[other] = sign, time.monotonic()

    def _look(self) -> None:
        lost: set[int] = set()
        while not self._ended.wait(BEAT):
            now = time.monotonic()
            silent = {rank for rank, (_, last) in [*self.heard.items()] if now - last > SILENT}
            # Twice: a process that was itself stopped must listen first.
            if lost & silent and not self._ended.is_set():
                self._end(lost & silent)
            lost = silent

    def _end(self, lost: set[int]) -> None:
        """End the process from this thread: the main one waits in the exchange."""
        names = ", ".join(map(str, sorted(lost)))
        print(
            f"error: nothing was heard from process {names} for {SILENT:.0f} seconds: its machine, "
            "or the network, is gone; start all again (a training goes on with --resume)",
            file=sys.stderr,
            flush=True,
        )
        sys.stdout.flush()
        os._exit(EXIT_CODE)
