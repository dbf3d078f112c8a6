"""The store of answers: other files are refused in one line; test_soak.py kills its writers."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.llm import AnswerStore, Token, Usage
from claim2source.llm.answers import StoredReply


def test_what_is_no_store_of_answers_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, foreign, newer = (tmp_path / name for name in ("text", "other", "newer"))
    text.write_text("not a database, " * 100)
    with sqlite3.connect(foreign) as base:
        base.execute("CREATE TABLE t (x)")
    base.close()
    AnswerStore(newer).close()
    with sqlite3.connect(newer) as base:
        base.execute("PRAGMA user_version = 99")
    base.close()
    for path in (text, foreign, newer, tmp_path):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(InputError) as error:
            AnswerStore(path)
        assert str(error.value).startswith(f"{path}: ") and "store of answers" in str(error.value)
        assert not path.is_file() or path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newer", "other", "text"]


REPLY = StoredReply(
    *("a\0b \u2028 ü, some length " * 20, "stop", Usage(3, 4), (Token("J", -0.5, {"J": -0.5}),)),
    *(2, "cut off", "qwen", "1", "r7"),
)


def full(path: Path) -> Path:
    """Write a store of some replies."""
    with AnswerStore(path) as store:
        for i in range(30):
            store.put(f"k{i}", REPLY)
    return path


def use(path: Path) -> None:
    """Read and write as a program does; every read value equals the written one."""
    with AnswerStore(path) as store:
        for i in range(30):
            assert store.get(f"k{i}") in (REPLY, None)
        store.put("new", REPLY)
        assert store.get("new") == REPLY


def refused(path: Path) -> bool:
    """Whether a store is refused in one line with a remedy; anything else fails."""
    try:
        use(path)
    except InputError as error:
        message = str(error)
        assert message.startswith(f"{path}: ") and "\n" not in message
        assert "move it away" in message or "is not a store of answers of this version" in message
        return True
    return False


@pytest.mark.slow
def test_a_damaged_store_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    content = full(tmp_path / "whole").read_bytes()
    assert not refused(tmp_path / "whole")
    draw, refusals = random.Random(0), 0
    for number in range(60):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 3, 200))):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path = tmp_path / f"flipped{number}"
        path.write_bytes(damaged)
        refusals += refused(path)
    assert refusals > 30
    for size in (99, 4096, 5000, len(content) - 1):
        path = tmp_path / f"cut{size}"
        path.write_bytes(content[:size])
        assert refused(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE answers SET raw = raw || 'x'",
        "UPDATE answers SET key = 'k' || (substr(key, 2) + 1) || '' WHERE key = 'k29'; "
        "UPDATE answers SET key = 'k29' WHERE key = 'k28'",
        "UPDATE answers SET hash = NULL, raw = x'ff'",
        "UPDATE answers SET hash = NULL, logprobs = '[[1]]'",
        "DROP TABLE answers; CREATE TABLE answers (key)",
        "PRAGMA user_version = -3",
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
