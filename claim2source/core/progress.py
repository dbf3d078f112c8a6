"""Show the progress of long work on stderr: a bar on a terminal, else a line now and then.

Nothing is written to stdout, which is for results, and control characters are escaped.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Timer
from typing import Any, TypeVar

from claim2source.core.terminal import printable_line

Item = TypeVar("Item")

# A line is printed at each tenth of the work, but at most one in QUIET seconds, and at least one in
# LONGEST seconds.
PARTS = 10
QUIET = 10.0
LONGEST = 60.0
# Seconds after which a line explains what the program waits for.
PATIENCE = 1.0


class Progress(AbstractContextManager["Progress"]):
    """Count and show the finished items; without a name nothing is shown.

    `quiet` is the least number of seconds between two lines and before the first one, so that
    quick work prints none. If `total` is known, the time left is estimated.
    """

    def __init__(
        self,
        name: str | None,
        total: int | None,
        start: int = 0,
        quiet: float = QUIET,
    ) -> None:
        self.name = name
        self.total = total
        self.count = start
        self.quiet = quiet
        self._started_at = self._printed_at = time.monotonic()
        self._start = self._last = start
        self._bar: Any = None
        if name is not None and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                initial=start,
                desc=name,
                leave=False,
                file=sys.stderr,
            )

    def update(self, count: int = 1, note: str = "") -> None:
        """Add to the count; `note` is shown next to it, such as a loss."""
        self.count += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif self.name is not None and self._is_due():
            self._last = self.count
            self._printed_at = time.monotonic()
            of = "" if self.total is None else f" of {self.total}"
            parts = f"{self.name}: {self.count}{of}", self._time_left(), note
            _print_line(", ".join(filter(None, parts)))

    def part(self, share: int, total: int) -> Progress:
        """Count `total` items of another kind as `share` of this work; `close` adds the rest."""
        return _Part(self, share, total)

    def _is_due(self) -> bool:
        waited = time.monotonic() - self._printed_at
        total = max(self.total or 0, 1)
        is_step = False
        if self.total is not None:
            is_step = self.count * PARTS // total > self._last * PARTS // total
        is_first = self._last == self._start  # the first line is printed early
        if is_step or is_first:
            return waited >= min(self.quiet, LONGEST)
        return waited >= LONGEST

    def _time_left(self) -> str:
        count = self.count - self._start
        if self.total is None or not 0 < count < self.total - self._start:
            return ""
        took = time.monotonic() - self._started_at
        seconds = took / count * (self.total - self.count)
        return f"{duration(seconds)} left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class _Part(Progress):
    def __init__(self, parent: Progress, share: int, total: int) -> None:
        super().__init__(None, total)
        self._parent = parent
        self._share = share
        self._parent_count = 0

    def update(self, count: int = 1, note: str = "") -> None:
        self.count += count
        total = self.total or 0
        done = min(self.count, total)
        self._count(self._share * done // max(total, 1))

    def close(self) -> None:
        self._count(self._share)

    def _count(self, count: int) -> None:
        if count > self._parent_count:
            self._parent.update(count - self._parent_count)
            self._parent_count = count


def duration(seconds: float) -> str:
    """Write a number of seconds for people, such as "40 s", "3 min" or "2.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def track(items: Iterable[Item], name: str, total: int) -> Iterator[Item]:
    with Progress(name, total) as progress:
        for item in items:
            yield item
            progress.update()


@contextmanager
def waiting(line: str) -> Iterator[None]:
    """Print a line on stderr once the body has taken longer than `PATIENCE`."""
    timer = Timer(PATIENCE, _print_line, [line])
    timer.daemon = True  # does not keep a stopped program alive
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_line(line: str) -> None:
    print(printable_line(line), file=sys.stderr, flush=True)


def quiet_libraries() -> None:
    """Stop libraries from printing progress bars, tips and deprecation warnings.

    A user's own environment variables are kept, and so are progress bars on a terminal.
    """
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        # transformers reads the environment only at import.
        imported = sys.modules.get("transformers.utils.logging")
        if imported:
            imported.disable_progress_bar()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if not sys.warnoptions:
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=kind)
