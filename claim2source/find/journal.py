"""Store the answers to a file of posts as they are made, so that a stopped run can resume."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from claim2source.core.errors import InputError
from claim2source.core.progress import Progress
from claim2source.find.bulk import Asking, Outcome, PostsToAnswer
from claim2source.find.finder import Finder

PARTIAL = ".partial"
_HEADER = b'{"claim2source": "answers"'
_LINE = b'{"post": '


class Journal(AbstractContextManager["Journal"]):
    """Answers of an unfinished run, in a file next to its output.

    The file has JSON lines. The first one identifies the run: `asked` are hashes of input, index
    and settings. If they match, the stored answers are used, and `done` is their number; an
    incomplete last line is removed. Raises `InputError`, without changing the file, if the run is
    another one, another process uses the file, or it is damaged. `posts` are the ids of the posts
    in order.
    """

    def __init__(self, out: Path, asked: Mapping[str, object], posts: Iterator[str]) -> None:
        self.path = out.with_name(out.name + PARTIAL)
        self.done = 0
        self.left_out = 0
        self._asked = dict(asked)
        out.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        try:
            self._go_on(posts)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        # A link or a pipe, which somebody may have placed there, is not followed.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = open(os.open(self.path, flags, 0o666), "r+b")
        except OSError as error:
            reason = f"cannot be written: {(error.strerror or str(error)).lower()}"
            raise InputError(self.path, reason=reason) from None
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(self.path, reason="is not a regular file")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(self.path, reason="in use by another run; wait for it") from None
        except OSError:  # a network file system without locks
            return file
        except InputError:
            file.close()
            raise
        return file

    def _go_on(self, posts: Iterator[str]) -> None:
        """Count the answers of an earlier run, and remove an incomplete last line."""
        header = self._file.readline()
        if not header.endswith(b"\n"):
            if not (header.startswith(_HEADER) or _HEADER.startswith(header)):
                raise self._damaged(1)
            self._file.seek(0)
            self._file.truncate()
            self._write({"claim2source": "answers", "asked": self._asked})
            return
        self._require_same(header)
        end, number = self._file.tell(), 1
        while line := self._file.readline():
            number += 1
            if not line.endswith(b"\n"):
                if not (line.startswith(_LINE) or _LINE.startswith(line)):
                    raise self._damaged(number)
                break
            outcome = _outcome(line)
            if outcome is None or outcome.post != next(posts, None):
                raise self._damaged(number)
            self._count(outcome)
            end = self._file.tell()
        self._file.seek(end)
        self._file.truncate()

    def _require_same(self, header: bytes) -> None:
        before = _json_object(header).get("asked") if header.startswith(_HEADER) else None
        if not isinstance(before, dict):
            raise self._damaged(1)
        changed = [name for name, value in self._asked.items() if before.get(name) != value]
        if changed:
            names = " and ".join(changed)
            reason = f"belongs to another run: {names} changed"
            raise InputError(self.path, reason=f"{reason}; remove it, or choose another --out")

    def _damaged(self, line: int) -> InputError:
        reason = "is damaged or was not written by find; remove it, or choose another --out"
        return InputError(self.path, line, reason=reason)

    def _write(self, *values: object) -> None:
        for value in values:
            self._file.write(json.dumps(value).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _count(self, outcome: Outcome) -> None:
        self.done += 1
        self.left_out += bool(outcome.left_out)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Write some answers; they are on disk when this returns."""
        self._write(*map(asdict, outcomes))
        for outcome in outcomes:
            self._count(outcome)

    def outcomes(self) -> Iterator[Outcome]:
        """Yield all stored answers. Raises `InputError` if they change in the meantime."""
        with open(self.path, "rb") as file:
            file.readline()
            for number, line in enumerate(file, start=2):
                outcome = _outcome(line)
                if outcome is None:
                    raise self._damaged(number)
                yield outcome

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def remove(self) -> None:
        """Remove the file, after its answers were written to the output."""
        self.path.unlink(missing_ok=True)


def _json_object(line: bytes) -> dict[str, object]:
    """Parse a JSON object; return {} if it is invalid."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _outcome(line: bytes) -> Outcome | None:
    """Parse an answer; None if it is not one."""
    values = _json_object(line)
    if list(values) != [field.name for field in fields(Outcome)]:
        return None
    texts = [value for value in values.values() if isinstance(value, str)]
    papers = values["papers"]
    if len(texts) != len(values) - 1 or not isinstance(papers, list):
        return None
    if not all(isinstance(paper, dict) for paper in papers):
        return None
    post, text, left_out, verdict = texts
    return Outcome(post, text, left_out, verdict, papers)


def answer_rest(finder: Finder, posts: PostsToAnswer, asking: Asking, journal: Journal) -> None:
    """Answer the posts that a journal lacks, and store the answers in it."""
    rest = islice(posts.to_answer(), journal.done, None)
    with Progress("find", posts.posts, journal.done) as progress:
        for outcomes in asking.answers(finder, rest):
            journal.add(outcomes)
            progress.update(len(outcomes))
