"""What every program refuses, by one table for each program: tests/refusals.yaml.

A row names the type and the facts of a refusal, not its sentence.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from claim2source.cli import PROGRAMS
from claim2source.core.config import Settings, as_plain, read_yaml
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.validate import validated
from scripts.sentences import GOLDEN, collect, sentences
from tests.shared_data import FIXTURES, REPOSITORY

FILE = Path(__file__).with_name("refusals.yaml")
# Name of a file -> its text.
FILES = {
    "unknown.yaml": "# settings\nno_such_key: 1\n",
    "broken.yaml": "# settings\na: [1, 2\nb: 3\n",
    "file": "a file of somebody\n",
    "system.yaml": "A: {retrieve: {bm25: {k1: 1.5}}}\n",
    "systems.yaml": "A: {retrieve: {bm25: {k1: -1}}}\n",
    "views.yaml": "a: {score: bm25}\nb: {score: bm26}\n",
    "one_view.yaml": "a: {score: bm25}\n",
    "two_views.yaml": "a: {score: bm25}\nb: {terms: bigrams}\n",
    "broken.jsonl": '{"id": "a", "title": "masks"}\n{"id": \n',
    "broken.trec": "q1 Q0 d1 1 0.5 run\nq1 Q0 d1\n",
    "run.trec": "q1 Q0 d1 1 0.5 run\n",
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "badqrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\tmany\n",
}
PLACEHOLDER = re.compile(r"\{.*?\}|%s|%d")


@dataclass(frozen=True)
class Refusal(Settings):
    """One row: a program's arguments, and the facts of its refusal."""

    words: str
    key: str | None = None
    file: str | None = None
    line: int | None = None
    field: str | None = None
    names: str | None = None
    problems: int = 1

    @property
    def kind(self) -> type[UserError]:
        if self.key is not None:
            return ConfigError
        return UserError if self.file is None else InputError


TABLE = validated(dict[str, list[Refusal]], as_plain(read_yaml(FILE)), FILE)
ROWS = [(program, row) for program, rows in TABLE.items() for row in rows]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with good and bad inputs, and enter it."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    shutil.copytree(FIXTURES / "data", tmp_path / "data")
    shutil.copytree(FIXTURES / "data", tmp_path / "bad")
    queries = tmp_path / "bad" / "queries.jsonl"
    lines = queries.read_text().splitlines()
    lines[1] = '{"_id": 7'
    queries.write_text("\n".join(lines) + "\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text('{"systems": 3}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLAIM2SOURCE_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes | None]:
    paths = folder.rglob("*")
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize(
    ("program", "row"), ROWS, ids=[f"{name} {row.words}" for name, row in ROWS]
)
def test_a_refusal_has_its_type_and_its_facts(program: str, row: Refusal, folder: Path) -> None:
    before = contents(folder)
    main = import_module(f"claim2source.{PROGRAMS[program][0]}").main
    with pytest.raises(UserError) as info:
        main(row.words.split())
    error = info.value
    assert isinstance(error, row.kind)
    assert row.kind is not UserError or not isinstance(error, (ConfigError, InputError))
    assert row.names is None or row.names in str(error)
    assert len(error.lines) == row.problems
    if isinstance(error, ConfigError):
        assert error.key == row.key
    if isinstance(error, InputError):
        first = error.problems[0]
        assert (folder / first.file) == folder / str(row.file)
        assert (first.line, first.field or None) == (row.line, row.field)
    # Nothing is lost, and nothing is half-written.
    assert contents(folder) == before
    for line in error.lines:
        assert any(pattern.search(line) for pattern in patterns()), line


def test_every_program_has_its_table() -> None:
    assert list(TABLE) == list(PROGRAMS)
    for _, row in ROWS:
        facts = [row.key, row.file, row.names]
        assert sum(fact is not None for fact in facts) == 1, row
    for program, rows in TABLE.items():
        kinds = {row.kind for row in rows}
        assert {ConfigError, InputError} <= kinds, program
        assert len({row.words for row in rows}) == len(rows) > 3


@cache
def patterns() -> tuple[re.Pattern[str], ...]:
    """Return a pattern for each sentence of the golden file: after a colon, 'is', or alone."""
    found: list[re.Pattern[str]] = []
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        literal = PLACEHOLDER.split(line.removeprefix("- "))
        if line.startswith("- ") and len(re.findall(r"[^\W\d_]{2,}", " ".join(literal))) > 1:
            sentence = ".*".join(map(re.escape, literal))
            found.append(re.compile(f"(^|: | is ){sentence}"))
    return tuple(found)


def test_the_golden_file_has_the_sentences_of_the_code() -> None:
    """After a change of words, `python scripts/sentences.py` renews it."""
    golden = GOLDEN.read_text(encoding="utf-8")
    assert golden == collect(REPOSITORY), "run python scripts/sentences.py"


def test_what_is_a_sentence() -> None:
    code = '''
"""Write a page."""
from dataclasses import dataclass


def main(count, names):
    """Not a sentence."""
    log.info("%s: was read", names)
    raise UserError(f"{count} claims have no gold: {', '.join(names)}" " in this file")


@dataclass
class Config:
    """Settings of a page.

    Args:
        out: the file
            to write.
    """

    out: str = "page.html"


class Other:
    """Not a sentence either."""

    text: str = "one"
    other = {"a key": "a b", "cd": f"{out!r:>9} is new"}
'''
    assert list(sentences(code)) == [
        "Write a page.",
        "%s: was read",
        "{count} claims have no gold: {', '.join(names)} in this file",
        "Settings of a page.\n\nArgs:\n    out: the file\n        to write.",
        "{out} is new",
    ]
    library = code.replace("def main", "def write")
    assert "Write a page." not in list(sentences(library))


def test_the_file_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    main = import_module("scripts.sentences").main
    out = tmp_path / "new" / "sentences.txt"
    main(["--out", str(out)])
    assert out.read_text(encoding="utf-8") == collect(REPOSITORY)
    other = tmp_path / "other.txt"
    other.write_text("a text of somebody\n")
    with pytest.raises(UserError):
        main(["--out", str(other)])
    assert other.read_text() == "a text of somebody\n"
