"""The store of answers: what is no store is refused in one line, and a killed process leaves it whole."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.llm import AnswerStore, Token, Usage
from claim2source.llm.answers import Stored
from tests.shared_data import REPOSITORY

# Stores replies until it is killed, and holds a request all the while.
WRITER = """
import sys
from claim2source.llm.answers import AnswerStore, Stored
store = AnswerStore(sys.argv[1])
assert store.take("held")
for i in range(10**6):
    store.take(f"k{i}")
    store.put(f"k{i}", Stored("r" * 1000, "stop"))
    print(i, flush=True)
"""


def test_a_reply_comes_back_as_it_was(tmp_path: Path) -> None:
    reply = Stored(
        *("a\0b \u2028 ü", "length", Usage(3, 4), (Token("J", -0.5, {"J": -0.5, "K": -9.0}),)),
        *(2, "cut off", "qwen", "1", "r7"),
    )
    with AnswerStore(tmp_path / "new" / "a.sqlite") as store:
        store.put("k", reply)
        store.put("k", reply)
    with AnswerStore(tmp_path / "new" / "a.sqlite") as store:
        assert store.get("k") == reply and store.get("other") is None and len(store) == 1


def test_what_is_no_store_of_answers_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, other, newer = (tmp_path / name for name in ("text", "other", "newer"))
    text.write_text("not a database, " * 100)
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE t (x)")
    base.close()
    AnswerStore(newer).close()
    with sqlite3.connect(newer) as base:
        base.execute("PRAGMA user_version = 99")
    base.close()
    for path in (text, other, newer, tmp_path):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(InputError) as error:
            AnswerStore(path)
        assert str(error.value).startswith(f"{path}: ") and "store of answers" in str(error.value)
        assert not path.is_file() or path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newer", "other", "text"]


def test_a_kill_loses_nothing_that_was_stored_and_frees_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True,
    )
    assert writer.stdout is not None
    for _ in range(20):
        last = int(writer.stdout.readline())
    with AnswerStore(path) as store:
        assert not store.take("held")
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        last = int(rest[-1]) if rest else last
        assert store.take("held")
        assert [store.get(f"k{i}") is not None for i in range(last + 1)] == [True] * (last + 1)
        assert len(store) <= last + 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]
