"""The store of answers: what is no store is refused in one line, and a killed process leaves it whole."""

from __future__ import annotations

import os
import random
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


REPLY = Stored(
    *("a reply of some length " * 20, "stop", Usage(3, 4), (Token("J", -0.5, {"J": -0.5}),)),
    *(2, None, "qwen", "1", "r7"),
)


def full(path: Path) -> Path:
    """Write a store of some replies, one of them being asked for by a process that is gone."""
    with AnswerStore(path) as store:
        for i in range(30):
            store.put(f"k{i}", REPLY)
    with sqlite3.connect(path) as base:
        base.execute("INSERT INTO asking VALUES ('asked', '0123456789abcdef')")
    base.close()
    return path


def use(path: Path) -> None:
    """Read and write all that a program does; whatever is read is what was written."""
    with AnswerStore(path) as store:
        for i in range(30):
            assert store.get(f"k{i}") in (REPLY, None)
        store.take("asked")
        store.put("new", REPLY)
        assert store.get("new") == REPLY


def refused(path: Path) -> bool:
    """Tell whether a store is refused, in one line that says what to do; nothing else may happen."""
    try:
        use(path)
    except InputError as error:
        said = str(error)
        assert said.startswith(f"{path}: ") and "\n" not in said
        assert "move it away" in said or "is no store of answers of this version" in said
        return True
    return False


@pytest.mark.slow
def test_a_damaged_store_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    whole = full(tmp_path / "whole").read_bytes()
    assert not refused(tmp_path / "whole")
    draw, found = random.Random(0), 0
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 3, 200))):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path = tmp_path / f"flipped{number}"
        path.write_bytes(damaged)
        found += refused(path)
    assert found > 30
    for place in range(100):  # SQLite's header, byte by byte
        path = tmp_path / f"header{place}"
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        refused(path)
    for size in (99, 100, 4095, 4096, 5000, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"cut{size}"
        path.write_bytes(whole[:size])
        assert refused(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE asking SET owner = 'a' || char(0) || 'b'",
        "UPDATE asking SET owner = '../../../etc/x'",
        "UPDATE asking SET owner = x'00ff'",
        "UPDATE answers SET raw = raw || 'x'",
        "UPDATE answers SET key = 'k' || (substr(key, 2) + 1) || '' WHERE key = 'k29'; "
        "UPDATE answers SET key = 'k29' WHERE key = 'k28'",
        "UPDATE answers SET hash = NULL, raw = x'ff'",
        "UPDATE answers SET hash = NULL, raw = CAST(x'ff' AS TEXT)",
        "UPDATE answers SET hash = NULL, logprobs = '[[1]]'",
        "UPDATE answers SET hash = NULL, prompt_tokens = 'x'",
        "UPDATE answers SET hash = NULL, finish = x'00'",
        "DROP TABLE answers",
        "DROP TABLE answers; CREATE TABLE answers (key)",
        "ALTER TABLE answers RENAME COLUMN raw TO text",
        "DROP TABLE asking; CREATE VIEW asking AS SELECT 1 AS key, 2 AS owner",
        "PRAGMA user_version = -3",
        "PRAGMA user_version = 1",
    ],
)
def test_a_store_with_other_values_or_tables_is_refused(tmp_path: Path, change: str) -> None:
    path = full(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as base:
        base.executescript(change)
    base.close()
    assert refused(path)


def test_a_store_of_the_first_version_is_read_and_goes_on(tmp_path: Path) -> None:
    path = full(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as base:
        base.executescript("ALTER TABLE answers DROP COLUMN hash; PRAGMA user_version = 1")
    base.close()
    use(path)
    with AnswerStore(path) as store:
        assert [store.get(f"k{i}") for i in range(30)] == [REPLY] * 30
