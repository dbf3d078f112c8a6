"""Report a user's mistakes in one clear line each; programs end with exit code 2."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from claim2source.core.progress import quiet_libraries
from claim2source.core.terminal import printable, printable_line, shortened

EXIT_CODE = 2
UNFORESEEN = 1
MOST_SHOWN = 20
# Letters of a value that may be a mistyped one.
LONGEST_GUESSED = 100
_WAITED = 10.0  # seconds within which a launcher ends the other processes after one failed
# Errors of writing that the user can correct although they name no file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STDOUT = "standard output"
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


class UserError(Exception):
    """Report a mistake that the user can correct; a program prints only its text, on one line.

    `model` is the name of a model that could not be used, if that is the mistake.
    """

    model: str | None = None

    @property
    def lines(self) -> list[str]:
        """Lines that a program prints, one for each problem."""
        return [printable_line(str(self))]


class Stopped(BaseException):
    """End a program after a signal: it prints the text and exits with 128 + `signal`.

    Not a KeyboardInterrupt, because Lightning ends the process itself when it catches one.
    """

    def __init__(self, text: str, signal: int) -> None:
        self.signal = signal
        self.code = 128 + signal
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem at one location of an input: file, line (1-based), field, reason."""

    file: str
    line: int | None
    field: str | None
    reason: str

    def __str__(self) -> str:
        position = self.file if self.line is None else f"{self.file}:{self.line}"
        if self.field:
            parts = [position, self.field, self.reason]
        else:
            parts = [position, self.reason]
        return printable_line(": ".join(parts))


class InputError(UserError):
    """Report bad input with file, line, field and reason; several problems have a line each."""

    def __init__(
        self,
        file: str | Path,
        line: int | None = None,
        field: str | None = None,
        reason: str = "",
    ) -> None:
        self._list([Problem(str(file), line, field, reason)], 1, "")

    @classmethod
    def of(cls, problems: Iterable[Problem], total: int, hint: str = "") -> InputError:
        """Report several problems: the first 20, the number of the others, and a remedy."""
        error = cls.__new__(cls)
        error._list(problems, total, hint)
        return error

    def _list(self, problems: Iterable[Problem], total: int, hint: str) -> None:
        self.problems = tuple(problems)
        self.total = total
        lines = [str(problem) for problem in self.problems[:MOST_SHOWN]]
        if total > len(lines):
            lines.append(f"... and {total - len(lines)} more problems")
        if hint:
            lines.append(hint)
        super().__init__("\n".join(lines))

    @property
    def lines(self) -> list[str]:
        return str(self).split("\n")


class ConfigError(UserError, ValueError):
    """Report a setting that is not allowed: its key, its value and the allowed values.

    A ValueError, so that pydantic adds the group of the key.
    """

    def __init__(self, key: str, value: object, allowed: str, reason: str = "") -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        missing = value is None or value == [] or value == ()
        issue = "is missing; wanted"
        if not missing:
            near = did_you_mean_value(value, allowed)
            issue = f"{value_text(value)} is not allowed; {near}allowed"
        self.reason = reason or f"{issue}: {allowed}"
        super().__init__(f"config: {key}: {self.reason}")

    def at(self, location: tuple[str, int] | None) -> UserError:
        """Return the error with the file and line that set the key, if it comes from a file."""
        if location is None:
            return self
        return InputError(*location, self.key or None, self.reason)


def value_text(value: object) -> str:
    """Write a value for a message, at most 200 characters of it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = repr(str(value) if isinstance(value, Path) else value)
    except ValueError:  # Python does not write numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest known names, with a trailing space; "" if none is similar.

    `epochs` finds `optimisation.epochs`, `lr` finds `learning_rate`, `top_k` finds the key `k`. A
    refused name that is known is the dotted form of a flag in a file: its nested form is suggested.
    """
    names = list(names)
    if "." in name and name in names:
        return f"in a file write {name.replace('.', ': {')}: ..{'}' * name.count('.')}; "
    near = _nearest_keys(_plain(name), list(dict.fromkeys(names)))
    if not near:
        return ""
    return f"did you mean {' or '.join(near)}? "


def did_you_mean_value(value: object, allowed: str) -> str:
    """Suggest the allowed value that is nearest to a mistyped one, as `did_you_mean` does.

    `allowed` lists values, such as "cpu, cuda or null", perhaps after "there are: "; parts of
    several words are descriptions.
    """
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_GUESSED:
        return ""
    allowed = allowed.rpartition("there are: ")[2]
    values = [word for word in re.split(r",? or |, ", allowed) if word and " " not in word]
    return did_you_mean(value, values)


def _nearest_keys(wanted: str, keys: Sequence[str]) -> list[str]:
    """List the keys with the same last part, else those with its initials, else the closest."""
    group, _, last = wanted.rpartition(".")
    ends: dict[str, str] = {}
    for key in keys:
        ends[key] = _plain(key.rpartition(".")[2])
    near = [key for key in keys if ends[key] == last]
    if not near and len(last) > 1:
        near = [key for key in keys if _initials(ends[key]) == last]
    if near:
        near.sort(key=lambda key: (key.rpartition(".")[0] != group, key.count(".")))
        return near[:3]
    by_key = {_plain(key): key for key in keys}
    for close in get_close_matches(wanted, by_key, 1, 0.7):
        return [by_key[close]]
    close_ends = get_close_matches(last, ends.values(), 1, 0.7)
    words = last.split("_")
    # `top_k` means `k` rather than `top_p`.
    if close_ends and close_ends[0].split("_")[-1] != words[-1] and words[-1] in ends.values():
        close_ends = [words[-1]]
    for some in (close_ends, words):
        for key in keys:
            if ends[key] in some:
                return [key]
    return []


def _plain(key: str) -> str:
    return key.lower().replace("-", "_")


def _initials(words: str) -> str:
    return "".join(word[:1] for word in words.split("_"))


class Problems:
    """Collect problems while a file is read; only those that will be shown are stored.

    Also counts omissions and changes by kind, with the first location of each.
    """

    def __init__(self) -> None:
        self._shown_first: list[Problem] = []
        self._total = 0
        self.counts: dict[str, int] = {}
        self._first_of: dict[str, str] = {}

    def add(
        self,
        file: str | Path,
        line: int | None,
        field: str | None,
        reason: str,
        kind: str = "",
    ) -> None:
        """Add one problem; the first 20 are stored, the others only counted.

        `kind` names a common defect of data sets, which a lenient reader ignores (`lenient`).
        """
        self._total += 1
        if len(self._shown_first) < MOST_SHOWN:
            self._shown_first.append(Problem(str(file), line, field, reason))

    def count(self, kind: str, file: str | Path, line: int | str | None = None) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = Path(file).name
        self._first_of.setdefault(kind, name if line is None else f"{name}:{line}")

    def __len__(self) -> int:
        return self._total

    @property
    def first(self) -> str:
        """The first problem as text; "" if there is none."""
        if self._shown_first:
            return str(self._shown_first[0])
        return ""

    def summary(self, names: Mapping[str, str] | None = None) -> str:
        """Describe the counts of omissions and changes; `names` maps kinds to their names."""
        labels = names or {}
        kinds = (
            f"{labels.get(k, k)}: {n} (first: {self._first_of[k]})" for k, n in self.counts.items()
        )
        return "; ".join(kinds)

    def raise_if_any(self) -> None:
        if self._total:
            raise InputError.of(self._shown_first, self._total)


class FileProblems:
    """Collect the problems of one file, so that its parsers need not know its name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.collected = Problems()

    def add(self, line: int | None, field: str | None, reason: str) -> None:
        self.collected.add(self.file, line, field, reason)


def _reports() -> bool:
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    return not launched or os.environ.get("LOCAL_RANK", "0") == "0"


@contextlib.contextmanager
def report_once() -> Iterator[None]:
    """Report a `UserError` that all processes of a launcher raise only once, by the first one.

    The others wait until the launcher ends them; a process that is not ended reports it too.
    """
    try:
        yield
    except UserError:
        if not _reports():
            try:
                time.sleep(_WAITED)
            except Stopped:
                raise SystemExit(EXIT_CODE) from None
        raise


def run_program(
    main: Callable[[Sequence[str] | None], Any],
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Run a program's `main` and exit: with 0, or with another code and one line per problem.

    2: a mistake that the user can correct, including a full disk. 130 and 143: SIGINT and SIGTERM,
    after temporary files are removed. 141, without a line: the reader of the pipe is gone, as with
    `head`. 1: a bug; the line names a file with the trace, without the values of keys and tokens.
    """
    _open_streams()
    quiet_libraries()
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # some libraries lower the level of their own loggers
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    with _raising_at_sigterm():
        code = _exit_code(main, argv)
    for stream in (sys.stdout, sys.stderr):
        _close_stream(stream)
    sys.exit(code)


def _exit_code(main: Callable[[Sequence[str] | None], Any], argv: Sequence[str] | None) -> int:
    code = 0
    try:
        try:
            main(argv)
        except SystemExit as error:  # argparse's, after --help or its own message
            if isinstance(error.code, int):
                code = error.code
            else:
                code = EXIT_CODE if error.code else 0
        sys.stdout.flush()  # detects a full disk or a closed pipe
    except UserError as error:
        for line in error.lines:
            _complain(f"error: {line}")
        return EXIT_CODE
    except KeyboardInterrupt:
        _complain("interrupted")
        return 128 + signal.SIGINT
    except Stopped as error:
        if str(error):  # of several processes only the first one reports it
            _complain(str(error))
        return error.code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and error.filename == _STDOUT:
            return 128 + signal.SIGPIPE
        # The user can correct an unreadable or unwritable file, but not other causes.
        file = error.filename2 or error.filename
        if error.strerror is None or file is None and error.errno not in FULL:
            return _write_trace(error)
        prefix = "" if file is None else f"{os.fsdecode(file)}: "
        _complain(f"error: {prefix}{error.strerror.lower()}")
        return EXIT_CODE
    except Exception as error:
        return _write_trace(error)
    return code


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Output(io.TextIOWrapper):
    """Name stdout in errors of writing to it; escape characters that its encoding lacks."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str) -> int:
        with self._handled():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._handled():
            super().flush()

    @contextlib.contextmanager
    def _handled(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = _STDOUT
            raise


class _Diagnostics(_Output):
    """Write to stderr if possible: a note that cannot be written does not stop the work."""

    @contextlib.contextmanager
    def _handled(self) -> Iterator[None]:
        with contextlib.suppress(OSError):
            yield


def _open_streams() -> None:
    for name, kind in (("stdout", _Output), ("stderr", _Diagnostics)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif type(stream := getattr(sys, name)) is io.TextIOWrapper:
            setattr(sys, name, kind(stream))


@contextlib.contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a child process has nothing to clean up
            os._exit(128 + number)
        signal.signal(number, signal.SIG_IGN)  # a second signal must not stop the clean-up
        # The launcher ends the others once one has failed, maybe before they find the same mistake.
        raise Stopped("terminated" if _reports() else "", number)

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, stop)
    except ValueError:  # only the main thread may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(shortened(printable_line(line)), file=sys.stderr, flush=True)


def _close_stream(stream: TextIO) -> None:
    """Flush a stream; drop what cannot be written, or Python would complain at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _write_trace(error: Exception) -> int:
    first = f"{type(error).__name__}: {error}".split("\n")[0].removesuffix(": ")
    try:
        handle, path = tempfile.mkstemp(prefix="claim2source-", suffix=".log")
        trace = "".join(traceback.format_exception(error))
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_without_secrets(trace))
        trace_note = f"the full trace is in {path}"
    except OSError as failed:
        trace_note = f"its trace could not be written: {failed.strerror}"
    reason = _without_secrets(first)[:500]
    _complain(f"error: internal error, please report: {reason}; {trace_note}")
    return UNFORESEEN


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        is_secret = any(word in name.upper() for word in _SECRETS)
        if is_secret and len(value) > 7:
            text = text.replace(value, f"<{name}>")
    return text
