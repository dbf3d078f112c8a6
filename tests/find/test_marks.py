"""People's marks of posts: their file, and abstention that is fitted to them."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from claim2source.eval.find import main as find
from claim2source.eval.index import main as index

from claim2source.core.errors import UserError
from claim2source.find import marks as module
from claim2source.find.abstention import read_abstention
from claim2source.find.marks import ENOUGH, Mark, MarksFile
from claim2source.search.engine import open_index
from tests.refusals import refused

PAPERS = 30


def write_many(path: Path, name: str) -> None:
    for number in range(100):
        MarksFile(path).add(Mark(f"{name} {number} " + "x" * 5000, None, "en"))


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    writers = []
    for name in ("first", "second"):
        process = multiprocessing.get_context("fork").Process(target=write_many, args=(path, name))
        process.start()
        writers.append(process)
    for process in writers:
        process.join(60)
        assert process.exitcode == 0
    marks = MarksFile(path).read()
    assert len(marks.marks) == 200 and not marks.damaged


def test_the_last_mark_of_a_post_counts(tmp_path: Path) -> None:
    file = MarksFile(tmp_path / "new" / "marks.jsonl")
    assert file.read().marks == ()
    file.add(Mark("Masks work", "p1", "en"))
    file.add(Mark("other", None, "de", "2020-05-01", 3, "2026-01-01T00:00:00+00:00"))
    file.add(Mark("masks  work ", "p2", "en"))
    marks = file.read()
    assert [(mark.post, mark.paper) for mark in marks.marks] == [
        ("other", None),
        ("masks  work ", "p2"),
    ]
    assert marks.marks[0].version == 3 and marks.missing == ENOUGH - 2
    assert len(file.path.read_text().splitlines()) == 3


def test_damaged_lines_are_named_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    good = json.dumps({"post": "masks", "paper": "p1", "lang": "en", "later": {"key": 1}})
    bad = ["{", "[]", '{"post": "a", "lang": "en"}', '{"post": 1, "paper": null, "lang": "en"}']
    bad += ['{"post": "", "paper": null, "lang": "en"}', "[" * 100_000, "\\xff"]
    lines = [*(line.encode() for line in bad[:-1]), b"\xff", b"", good.encode(), b'{"post": "tor']
    path.write_bytes(b"\n".join(lines))
    MarksFile(path).add(Mark("next", None, "en"))
    marks = MarksFile(path).read()
    assert [mark.post for mark in marks.marks] == ["masks", "next"]
    assert [damage.line for damage in marks.damaged] == [1, 2, 3, 4, 5, 6, 7, 10]
    assert path.read_bytes().startswith(b"\n".join(lines))


def test_a_full_file_and_what_is_no_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError):
        MarksFile(tmp_path).add(Mark("post", None, "en"))
    file = MarksFile(tmp_path / "marks.jsonl")
    file.add(Mark("post", None, "en"))
    monkeypatch.setattr(module, "MOST_BYTES", 150)
    before = file.path.read_bytes()
    with pytest.raises(UserError):
        file.add(Mark("another post" * 5, None, "en"))
    assert file.path.read_bytes() == before


def mark_file(path: Path, count: int) -> None:
    for number in range(count):
        paper = None if number % 3 == 2 else f"p{number % PAPERS}"
        post = f"new: study{number} of sleep{number % PAPERS} and masks"
        MarksFile(path).add(Mark(post, paper, "en"))


@pytest.mark.slow
def test_marks_of_the_shell_are_fitted_by_index(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    papers = tmp_path / "papers.jsonl"
    lines = []
    for i in range(PAPERS):
        title = f"Sleep{i} and masks{i}"
        lines.append(json.dumps({"_id": f"p{i}", "title": title, "text": f"study{i} of {title}"}))
    papers.write_text("\n".join(lines))
    out = ["--out", str(tmp_path / "idx"), "--store", str(tmp_path / "store"), "--device", "cpu"]
    model = ["--model", str(tiny_folder), "--model.pooling", "mean", "--model.max_length", "32"]
    index([str(papers), *out, *model])
    own = tmp_path / "idx.marks.jsonl"
    mark_file(own, ENOUGH - 1)

    index([str(papers), *out])
    assert " 1 more" in capsys.readouterr().out
    with refused(UserError, own, " 1 more"):
        index(["--claims", str(own), *out])
    assert read_abstention(open_index(str(tmp_path / "idx"))) is None

    asked = ["--index", str(tmp_path / "idx"), "--device", "cpu"]
    with pytest.raises(UserError):
        find(["a new post", "--mark", "p999", *asked])
    find(["a new post about sleep", "--mark", "p3", "--date", "2020-05-04", *asked])
    mark = json.loads(own.read_text().splitlines()[-1])
    assert (mark["post"], mark["paper"]) == ("a new post about sleep", "p3")
    assert (mark["lang"], mark["date"]) == ("en", "2020-05-04")
    assert mark["version"] == open_index(str(tmp_path / "idx")).version and mark["time"]
    find(["something else", "--mark", "none", "--marks", str(tmp_path / "mine"), *asked])
    (alone,) = MarksFile(tmp_path / "mine").read().marks
    assert alone.paper is None

    # A damaged line is named, a paper that has gone is left out.
    with own.open("a") as file:
        file.write("{\n")
    MarksFile(own).add(Mark("a post of a paper that goes", "p999", "en"))
    capsys.readouterr()
    index([str(papers), *out])
    text = capsys.readouterr().out
    assert f"{own}:{ENOUGH + 1}: " in text and "1 marks are left out" in text
    fitted = read_abstention(open_index(str(tmp_path / "idx")))
    assert fitted is not None
    assert "34 claims of 20 papers" in fitted.fitted and "16 posts whose papers" in fitted.fitted
    present = sum(tenth.here for tenth in fitted.tenths)
    assert present == 34

    index(["--claims", str(own), *out])
    assert read_abstention(open_index(str(tmp_path / "idx"))) == fitted
