"""Stop a training run at SIGINT or SIGTERM, at a step that it can resume from."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from claim2source.core.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PARENT_DEATH = 1  # prctl's PR_SET_PDEATHSIG


class StopSignals:
    """Note the first SIGINT or SIGTERM in `received`, and raise `Stopped` for it.

    It is raised at once, but within `after_step` only where the training asks: a step is
    finished and saved. A second SIGINT is raised at once there too.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waits = False
        self._process = os.getpid()

    @contextlib.contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """Handle the signals while the body runs; in other threads than the main, do nothing."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        _end_with_launcher()
        try:
            yield self
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def install(self) -> None:
        """Put our handlers in place, also of those that Lightning puts there for itself."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            # `nohup` and background jobs ignore SIGINT: that stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    @contextlib.contextmanager
    def after_step(self, waits: bool = True) -> Iterator[None]:
        """Wait within the body until the training asks; with `waits` false, not again."""
        before, self._waits = self._waits, waits
        try:
            if not waits:
                self.check()
            yield
        finally:
            self._waits = before
        if not before:
            self.check()

    def check(self) -> None:
        """Raise `Stopped` where a signal was received."""
        if self.received is not None:
            raise Stopped("", self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child's end is not this program's
            os._exit(128 + number)
        again = self.received == number == signal.SIGINT
        first, self.received = self.received is None, self.received or number
        if again or (first and not self._waits):
            raise Stopped("", self.received)


def _end_with_launcher() -> None:
    """Get SIGTERM when the launcher dies: `accelerate launch` hands no signal on."""
    launched = any(name.startswith(("ACCELERATE_", "TORCHELASTIC_")) for name in os.environ)
    if launched and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)
