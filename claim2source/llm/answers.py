"""Store servers' replies in one SQLite file that several processes may share.

A row is an unchanged reply, under the hash of everything that it depends on. It is checked again
each time it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from claim2source.core.errors import InputError
from claim2source.data.store import default_root
from claim2source.llm.work import Token, Usage

VERSION = 3
# The file in the folder of a store.
ANSWERS = "answers.sqlite"
# Seconds that a process waits for another's write.
PATIENCE = 120.0
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, id TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,
    raw TEXT NOT NULL, finish TEXT, logprobs TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, tries INTEGER NOT NULL, failure TEXT, at REAL NOT NULL,
    hash TEXT, sent TEXT, reasoned INTEGER
) WITHOUT ROWID
"""
_COLUMNS = (
    "raw, finish, prompt_tokens, completion_tokens, logprobs, tries, failure, model, version, id"
    ", sent, reasoned"
)
# Columns that the stores of earlier versions lack, with their types.
_ADDED = {"hash": "TEXT", "sent": "TEXT", "reasoned": "INTEGER"}
# Since version 3: they are hashed only if they are filled.
_LATER = 2
# SQLite's errors for damaged files.
_DAMAGED = ("CORRUPT", "NOTADB", "FORMAT", "MISMATCH", "SCHEMA", "ERROR", "IOERR_SHORT_READ")


@dataclass(frozen=True)
class StoredReply:
    """Unchanged reply, the number of its requests, and its failure at that time."""

    raw: str
    finish: str | None
    usage: Usage = Usage()
    logprobs: tuple[Token, ...] = ()
    tries: int = 1
    failure: str | None = None
    model: str = ""
    version: str = ""
    id: str = ""
    # The request's thinking settings, and whether the reply reasoned; None: not recorded.
    sent: str | None = None
    reasoned: bool | None = None


def default_answers() -> Path:
    return default_root() / ANSWERS


class AnswerStore(contextlib.AbstractContextManager["AnswerStore"]):
    """Store replies in a file, or, without a file, as long as the object lives.

    Raises `InputError` if the file is not a store of answers or cannot be written.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        with self._named_errors():
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(
                ":memory:" if self.path is None else self.path,
                timeout=PATIENCE,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._open()
            except BaseException:
                self._base.close()
                raise

    def _open(self) -> None:
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        tables = [name for (name,) in self._base.execute("SELECT name FROM sqlite_master")]
        if not 0 <= version <= VERSION or version == 0 and tables:
            raise InputError(str(self.path), reason="is not a store of answers of this version")
        self._base.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing; a power failure may lose the last replies.
        self._base.execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:
            with self._writing():
                # Another process may have created the table meanwhile.
                (version,) = self._base.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    self._base.execute(_TABLE)
                present = {row[1] for row in self._base.execute("PRAGMA table_info(answers)")}
                for column, kind in _ADDED.items():
                    if column not in present:
                        self._base.execute(f"ALTER TABLE answers ADD COLUMN {column} {kind}")
                self._base.execute(f"PRAGMA user_version = {VERSION}")

    def get(self, key: str) -> StoredReply | None:
        """Look up a stored reply by its request's hash."""
        with self._named_errors():
            row = self._base.execute(
                f"SELECT {_COLUMNS}, hash FROM answers WHERE key = ?", (key,)
            ).fetchone()
        if row is None:
            return None
        *values, digest = row
        # Rows of the first version have no hash.
        if digest is not None and digest != _hash(key, values):
            raise self._damaged("a reply was changed")
        try:
            return _row_to_reply(*values)
        except (ValueError, TypeError, RecursionError):
            raise self._damaged("a reply cannot be read") from None

    def put(self, key: str, reply: StoredReply) -> None:
        logprobs = json.dumps([(t.text, t.logprob, t.top) for t in reply.logprobs])
        values = (
            *(reply.raw, reply.finish, reply.usage.prompt, reply.usage.completion, logprobs),
            *(reply.tries, reply.failure, reply.model, reply.version, reply.id),
            *(reply.sent, None if reply.reasoned is None else int(reply.reasoned)),
        )
        row = (key, *values, time.time(), _hash(key, values))
        with self._named_errors(), self._writing():
            self._base.execute(
                f"INSERT OR REPLACE INTO answers (key, {_COLUMNS}, at, hash)"
                f" VALUES ({', '.join('?' * len(row))})",
                row,
            )

    def __len__(self) -> int:
        with self._named_errors():
            return int(self._base.execute("SELECT count(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._base.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            # Errors without a name are texts that are not UTF-8, in a row or in SQLite's message.
            damaged = not name or name.removeprefix("SQLITE_").startswith(_DAMAGED)
            # A flipped bit of the header causes this for a file that can be written.
            if damaged or name == "SQLITE_READONLY" and os.access(str(self.path), os.W_OK):
                raise self._damaged(str(error)) from None
            raise InputError(str(self.path), reason=f"the store of answers: {error}") from None

    def _damaged(self, reason: str) -> InputError:
        return InputError(
            str(self.path),
            reason=f"the store of answers is damaged ({reason}); "
            "move it away, and its replies are requested again",
        )


def _hash(key: str, values: Sequence[object]) -> str:
    later = values[-_LATER:]
    if all(value is None for value in later):
        values = values[:-_LATER]
    # `str`, because damaged text may be bytes.
    return sha256(json.dumps([key, *values], default=str).encode()).hexdigest()[:16]


def _row_to_reply(
    raw: str,
    finish: str | None,
    prompt: int,
    completion: int,
    logprobs: str,
    *rest: Any,
) -> StoredReply:
    """Make a reply from a row. Raises ValueError or TypeError for values of a wrong type."""
    from pydantic import TypeAdapter

    tokens = []
    for t in json.loads(logprobs):
        tokens.append(dict(zip(("text", "logprob", "top"), t, strict=True)))
    usage = {"prompt": prompt, "completion": completion}
    *others, reasoned = rest
    if reasoned not in (None, 0, 1):
        raise ValueError("reasoned must be 0 or 1")
    names = ("raw", "finish", "usage", "logprobs", "tries", "failure", "model", "version", "id")
    values = dict(zip((*names, "sent"), (raw, finish, usage, tokens, *others), strict=True))
    values["reasoned"] = None if reasoned is None else bool(reasoned)
    return TypeAdapter(StoredReply).validate_json(json.dumps(values), strict=True)
