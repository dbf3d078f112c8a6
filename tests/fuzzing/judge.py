"""Run a case in this process as a user's command, and judge what it did."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import io
import logging
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import traceback
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from claim2source.core.errors import run_program
from claim2source.core.files import is_leftover
from tests.fuzzing.cases import Case
from tests.fuzzing.world import PROGRAMS, REPOSITORY, make_world

LIMIT = 30  # seconds of computing, and three times as many of waiting
LONGEST = 700  # characters of an error line
ALLOWED = "\n\t"
MOST = 30  # error lines
_TRACE = re.compile(r"the full trace is in (\S+)")
_OUTS = re.compile(r"--(?:out|output|store|html)(?:=(.*))?", re.DOTALL)
# What may be written without being named: where runs keep what is made from them.
_DEFAULTS = {"finetune": r"checkpoints"}


class _Kept(io.BytesIO):
    """What was printed, also after the stream over it is closed."""

    def close(self) -> None:
        """Stay open."""


class TooLong(BaseException):
    """Tell that a program did not end; no `except Exception` stops it."""


@dataclass(frozen=True)
class Outcome:
    """Say how a case ended: the exit code, what was printed, and everything that is wrong."""

    code: int | str
    printed: str
    errors: str
    seconds: float
    wrong: tuple[str, ...]

    @property
    def signature(self) -> str:
        if not self.wrong:
            return ""
        first = self.wrong[0].partition(": ")
        # Of the last resort's, the kind of exception and its place: not the values in its text.
        text = first[0] + first[2].partition(": ")[0] if first[0] == "exit 1" else self.wrong[0]
        return re.sub(r"[0-9]+|0x[0-9a-f]+", "#", text)[:200]


class Fuzzer:
    """Keep one world of valid inputs; run cases in copies of it."""

    def __init__(self, folder: Path, limit: float = LIMIT) -> None:
        self.folder, self.limit = folder, limit
        self.world = folder / "world"
        self.modules = 0
        self.world.mkdir(parents=True)
        make_world(self.world)

    def run(self, case: Case) -> Outcome:
        if len(sys.modules) > self.modules:
            # statsmodels collects garbage in every test: let it not look through all of torch.
            gc.collect()
            gc.freeze()
            self.modules = len(sys.modules)
        with self.copy() as world:
            case.prepare(world)
            before = tree(world.parent)
            code, printed, errors, seconds = self._call(case, world)
            after = tree(world.parent)
            prefix = f"{world.name}/"
            wrong = [
                *_wrong_ending(code, errors),
                *_wrong_words(printed, errors, code),
                *_wrong_files(case, code, before, after, prefix),
            ]
        return Outcome(code, printed, errors, seconds, tuple(wrong))

    @contextlib.contextmanager
    def copy(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as temporary:
            world = Path(temporary) / "work"
            shutil.copytree(self.world, world, symlinks=True)
            yield world

    def _call(self, case: Case, world: Path) -> tuple[int | str, str, str, float]:
        # As Python's own: stdout refuses what is no UTF-8, stderr escapes it.
        streams = _Kept(), _Kept()
        out = io.TextIOWrapper(streams[0], "utf-8", "strict", write_through=True)
        err = io.TextIOWrapper(streams[1], "utf-8", "backslashreplace", write_through=True)
        main = PROGRAMS[case.program].main()
        code: int | str
        started = time.monotonic()
        with _restored(world), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                with _limited(self.limit), _watched(10 * self.limit):
                    run_program(main, list(case.argv))
                code = "returned"
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else f"exit {ended.code!r}"
            except TooLong:
                code = "too long"
                traceback.print_exc()
            except BaseException as error:
                code = type(error).__name__
                traceback.print_exc()
        seconds = time.monotonic() - started
        printed, errors = (stream.getvalue().decode("utf-8", "replace") for stream in streams)
        return code, printed, errors + _trace(errors), seconds


@contextlib.contextmanager
def _restored(world: Path) -> Iterator[None]:
    """Work in a world, with a store of its own; undo what a program changes in this process."""
    folder, environment, argv = Path.cwd(), dict(os.environ), sys.argv
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    os.environ["CLAIM2SOURCE_STORE"] = str(world.parent / "store")
    os.environ.pop("CLAIM2SOURCE_DATA", None)
    os.chdir(world)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = argv
        root.handlers[:] = handlers
        root.setLevel(level)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the body after so many seconds, also if it waits for a pipe."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds} s")

    # Waiting alone says nothing on a machine that does other work.
    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, 3 * seconds),
    }
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, duration in timers.values():
        signal.setitimer(timer, duration, 0.2)  # again, should it be caught
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@contextlib.contextmanager
def _watched(seconds: float) -> Iterator[None]:
    """End the process if no signal is heard: a loop in C."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _trace(errors: str) -> str:
    result = _TRACE.search(errors)
    if result is None:
        return ""
    path = Path(result[1])
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return text


def tree(folder: Path) -> dict[str, str]:
    contents = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root) / name
            contents[str(path.relative_to(folder))] = _content(path)
    return contents


def _content(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link {os.readlink(path)}"
    if stat.S_ISREG(mode):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if stat.S_ISDIR(mode) else f"kind {stat.S_IFMT(mode)}"


def _wrong_ending(code: int | str, errors: str) -> Iterator[str]:
    if code == 1:
        # The last resort; the exception and where it was raised name the defect.
        lines = errors.splitlines() or ["nothing said"]
        ours = [line for line in lines if f'File "{REPOSITORY}' in line]
        kind, location = lines[-1].partition(":")[0], ours[-1].strip() if ours else ""
        yield f"exit 1: {kind} {location}: {lines[-1]}"[:LONGEST]
    elif code not in (0, 2):
        yield f"ended by {code}"
    if code == 2 and not errors.strip():
        yield "exit 2 without a word"


def _wrong_words(printed: str, errors: str, code: int | str) -> Iterator[str]:
    if code != 1 and "Traceback (most recent" in errors + printed:
        yield "a traceback"
    for name, text in (("stdout", printed), ("stderr", errors)):
        bad = {c for c in text if c not in ALLOWED and unprintable(c)}
        if bad:
            yield f"unprintable on {name}: {', '.join(sorted(map(ascii, bad)))}"
    lines = [line for line in errors.splitlines() if "error:" in line]
    if len(lines) > MOST:
        yield f"{len(lines)} lines of errors"
    if any(len(line) > LONGEST for line in lines):
        yield f"an error line of more than {LONGEST} characters"
    if code == 2 and not lines:
        yield "exit 2 without an error line"


def unprintable(character: str) -> bool:
    """Whether a character could change a terminal, or is none."""
    return unicodedata.category(character) in ("Cc", "Cs") or character in (
        "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


def named_outs(case: Case) -> list[str]:
    names: list[str] = []
    for at, word in enumerate(case.argv):
        match = _OUTS.fullmatch(word)
        if match:
            after = case.argv[at + 1 : at + 2]
            names += [match[1]] if match[1] is not None else after
    if case.program == "finetune" and "--config=run/config.yaml" in case.argv:
        names.append("run")
    return names


def _wrong_files(
    case: Case, code: int | str, before: Mapping[str, str], after: Mapping[str, str], prefix: str
) -> Iterator[str]:
    """Find what was lost, changed or left; `prefix` is the folder of the world, with its slash."""
    new = [path for path in after if path not in before]
    new = [path for path in new if not (path == "store" or path.startswith("store/"))]
    changed = [path for path in before if after.get(path) != before[path]]
    for path in new:
        if is_leftover(Path(path)):
            yield f"left {_shown(path)}"
    outs = [os.path.normpath(f"{prefix}{name}") for name in named_outs(case)]
    if code != 0:
        for path in changed:
            yield f"changed without success: {_shown(path)}"
        for path in new:
            yield f"wrote without success: {_shown(path)}"
        return
    pattern = _DEFAULTS.get(case.program, r"(?!)")
    for path in new:
        if not (_within(path, outs) or re.match(f"{re.escape(prefix)}{pattern}(/|$)", path)):
            yield f"wrote elsewhere: {_shown(path)}"
    words = {os.path.normpath(f"{prefix}{word.rpartition('=')[2]}") for word in case.argv}
    inputs = [word for word in words if word not in outs]
    for path in changed:
        ours = path.startswith((f"{prefix}reports/", f"{prefix}run/")) and _within(path, outs)
        is_output = path in outs and before[path] != "folder" and not _within(path, inputs)
        if not (ours or is_output):
            yield f"changed: {_shown(path)}"


def _within(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders) or any(
        # What an old run was moved to, and the folders that lead to a new one.
        path.startswith(f"{folder}.replaced") or folder.startswith(f"{path}/")
        for folder in folders
    )


def _shown(path: str) -> str:
    return re.sub(r"\.[a-z0-9_]{8}\.(tmp|old)", r".*.\1", path)[:100]
