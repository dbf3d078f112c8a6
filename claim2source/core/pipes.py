"""Run a text through local programs, from standard input to standard output, without a shell."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import IO

# Bytes that are read or written at a time, and the limit of an output.
_PART, _MOST = 2**16, 2**22
# Bytes of messages that are kept, and characters of a line that are quoted.
_MESSAGES, _QUOTED = 4_096, 100
# Seconds to wait until killed programs are gone.
_GONE = 5.0
Command = tuple[str, ...]


class ProgramError(Exception):
    """Report why programs returned no text."""


class TimedOut(ProgramError):
    """Report that programs took too long and were killed."""


def read_pipe(text: str) -> tuple[Command, ...]:
    """Split `first -a | second` into the words of each program; quote a word that has spaces.

    No shell is involved. Raises ValueError if a program is missing.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[Command] = []
    words: list[str] = []
    for word in [*lexer, "|"]:
        if word.strip("|"):
            words.append(word)
            continue
        if not words or word != "|":
            raise ValueError("names no program")
        commands.append(tuple(words))
        words = []
    return tuple(commands)


def find_program(name: str) -> Path | None:
    """Find a program by its name or path; None if there is none."""
    found = which(name)
    return None if found is None else Path(found)


def run_pipe(commands: Sequence[Command], text: str, seconds: float) -> str:
    """Send a text through programs, and return the output of the last one.

    After `seconds`, they and their child processes are killed. Raises `ProgramError`.
    """
    running: list[subprocess.Popen[bytes]] = []
    messages_out, messages_in = os.pipe()
    try:
        for command in commands:
            running.append(_start(command, running, messages_in))
        os.close(messages_in)
        messages_in = -1
        output, messages = _exchange(running, messages_out, text.encode(), seconds)
        for process in running:
            _require_success(process, messages)
        return output.decode("utf-8")
    except UnicodeDecodeError:
        raise ProgramError("its output is not UTF-8") from None
    finally:
        for descriptor in (messages_out, messages_in):
            if descriptor >= 0:
                os.close(descriptor)
        _end(running)


def _start(
    command: Command, before: Sequence[subprocess.Popen[bytes]], messages: int
) -> subprocess.Popen[bytes]:
    source: int | IO[bytes] | None = subprocess.PIPE
    if before:
        source = before[-1].stdout
    try:
        # Each leads a session, so that it can be killed with its child processes.
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=messages,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProgramError(f"{command[0]}: {reason.lower()}") from None
    if before:
        assert before[-1].stdout is not None
        before[-1].stdout.close()  # the next program has it now
    return process


def _exchange(
    running: Sequence[subprocess.Popen[bytes]], messages: int, text: bytes, seconds: float
) -> tuple[bytes, bytes]:
    """Write a text to the first program; return the output of the last one and all messages."""
    ends_at = time.monotonic() + seconds
    source, output = running[0].stdin, running[-1].stdout
    assert source is not None and output is not None
    os.set_blocking(source.fileno(), False)
    parts: dict[object, bytearray] = {output: bytearray(), messages: bytearray()}
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_WRITE)
        for end in parts:
            selector.register(end, selectors.EVENT_READ)  # type: ignore[arg-type]
        while selector.get_map():
            left = ends_at - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise TimedOut(f"no output within {seconds:g} s")
            for key, _ in ready:
                if key.fileobj is source:
                    text = _write(key.fd, text)
                    if not text:
                        selector.unregister(source)
                        with suppress(OSError):
                            source.close()
                elif part := os.read(key.fd, _PART):
                    parts[key.fileobj] += part
                else:
                    selector.unregister(key.fileobj)
            del parts[messages][:-_MESSAGES]
            if len(parts[output]) > _MOST:
                raise ProgramError(f"it writes more than {_MOST} bytes")
    for process in running:
        try:
            process.wait(max(0.1, ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimedOut(f"still running after {seconds:g} s") from None
    return bytes(parts[output]), bytes(parts[messages])


def _write(descriptor: int, text: bytes) -> bytes:
    """Write a part of a text; return the rest, or nothing if the program has stopped reading."""
    try:
        return text[os.write(descriptor, text[:_PART]) :]
    except BlockingIOError:
        return text
    except OSError:
        return b""


def _require_success(process: subprocess.Popen[bytes], messages: bytes) -> None:
    # It is not a failure if the next program stops reading early.
    if process.returncode in (0, -signal.SIGPIPE):
        return
    assert isinstance(process.args, tuple)
    reason = f"{Path(process.args[0]).name} exited with code {process.returncode}"
    lines = messages.decode("utf-8", "replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    if said:
        reason += f": {said[-1][:_QUOTED]}"
    raise ProgramError(reason)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill programs and their child processes."""
    for process in running:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GONE)
