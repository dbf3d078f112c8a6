"""`find --input`: the user's columns next to each answer, for spreadsheets, in resumable runs."""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook

from claim2source.core.errors import InputError, UserError
from claim2source.data.posts import Post, PostRecord
from claim2source.find import bulk
from claim2source.find.answers import safe_cell
from claim2source.find.bulk import Outcome
from claim2source.find.finder import Answer, Finder
from claim2source.find.result_tables import csv_lines
from tests.eval.papers import POST
from tests.refusals import refused

Ask = Callable[..., str]
# A formula, an id that is too long for a number, a quote, a line break, and no text.
TABLE = [
    ["Beitrag", "id", "title", "Notiz", "likes", "Notiz"],
    [POST, "1234567890123456789", "mine", '=HYPERLINK("http://x")', "-5", "ü"],
    ["vaccine b", "b", "", "two\nlines; and", "3.5", " @SUM(A1)"],
    ["", "c", "", "no text", "", ""],
    [POST, "1234567890123456789", "again", "+49 170", "7", ""],
]


def write(path: Path, rows: list[list[str]], delimiter: str = ";") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows(rows)
    return path


def opened(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        assert file.read(1) == "\ufeff"
        return list(csv.DictReader(file, delimiter=";"))


def bulk_words(file: Path, out: Path) -> list[str]:
    return [
        "--input",
        str(file),
        "--columns",
        "text=Beitrag",
        "--k",
        "1",
        "--out",
        str(out),
    ]


def test_columns_and_text_stay_beside_one_row_for_each_post(ask: Ask, tmp_path: Path) -> None:
    file = write(tmp_path / "posts.csv", TABLE)
    out = tmp_path / "found.csv"
    words = bulk_words(file, out)
    said = ask(*words)
    assert "4 posts: 2 answered, 2 left out" in said
    found = opened(out)
    first, second, empty, repeated = found
    assert list(first)[:6] == [
        "Beitrag",
        "id",
        "title",
        "Notiz",
        "likes",
        "Notiz (2)",
    ]
    texts = [row["Beitrag"] for row in found]
    assert texts == [POST, "vaccine b", "", POST]
    for row in found:
        assert row["post"] == row["id"]
    ranks = [row["rank"] for row in found]
    assert ranks == ["1", "1", "", ""]
    assert first["post_text"] == POST
    assert first["title"] == "mine"
    (paper,) = json.loads(ask(POST, "--k", "1", "--json"))
    assert first["result_id"] == paper["id"]
    assert first["result_title"] == paper["title"]
    assert empty["left_out"]
    assert repeated["left_out"]
    assert not first["left_out"]
    # What a spreadsheet would run is a text; numbers and line breaks are as they were.
    assert first["Notiz"] == "'" + TABLE[1][3]
    assert second["Notiz (2)"] == "' @SUM(A1)"
    assert repeated["Notiz"] == "'+49 170"
    assert second["Notiz"] == "two\nlines; and"
    likes = [row["likes"] for row in found]
    assert likes == ["-5", "3.5", "", "7"]
    # The same on standard output, with commas and without a byte order mark.
    without_file = words[:-2]
    printed = ask(*without_file, "--csv")
    rows = csv.DictReader(io.StringIO(printed))
    assert list(rows) == found
    files = [path.name for path in tmp_path.glob("found*")]
    assert files == ["found.csv"]


def test_a_workbook_holds_texts_and_numbers_but_no_formula(ask: Ask, tmp_path: Path) -> None:
    file = write(tmp_path / "posts.csv", TABLE)
    out = tmp_path / "found.xlsx"
    ask(*bulk_words(file, out))
    sheet = load_workbook(out).active
    assert sheet is not None
    header, first, second, *others = sheet.iter_rows()
    names = [cell.value for cell in header]
    assert names[:3] == ["Beitrag", "id", "title"]
    assert len(others) == 2
    values: dict[Any, Any] = dict(zip(names, first, strict=True))
    note = values["Notiz"]
    assert note.value == TABLE[1][3]
    assert note.data_type == "s"
    assert values["likes"].value == -5
    assert values["id"].value == TABLE[1][1]
    assert values["rank"].value == 1
    assert second[3].value == TABLE[2][3]
    # It is read again, with its results as further columns.
    again = ask(
        "--input",
        str(out),
        "--columns",
        "text=Beitrag",
        "--csv",
    )
    lines = again.splitlines()
    assert "result_result_id" in lines[0]


def test_keys_of_json_and_posts_of_a_network_are_columns(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "posts.jsonl"
    records = [
        {"id": "a", "text": POST, "tags": ["x", 1], "n": None},
        {"text": "vaccine", "m": 2},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    file.write_text("".join(lines))
    words = ["--input", str(file)]
    found = tmp_path / "found.jsonl"
    ask(*words, "--k", "2", "--out", str(found))
    text = found.read_text(encoding="utf-8")
    first, second = map(json.loads, text.splitlines())
    assert first["columns"] == {
        "id": "a",
        "text": POST,
        "tags": '["x", 1]',
        "n": "",
    }
    assert second["post"] == "2"
    assert second["text"] == "vaccine"
    assert second["left_out"] == ""
    papers = json.loads(ask(POST, "--k", "2", "--json"))
    assert first["papers"] == papers

    table = tmp_path / "found.csv"
    ask(*words, "--k", "1", "--out", str(table))
    lines = table.read_text(encoding="utf-8-sig").splitlines()
    header = lines[0]
    assert header.startswith("id,text,tags,n,m,post,post_text,left_out,rank,result_id")
    nothing = ask(*words, "--k", "1", "--venue", "none", "--csv")
    rows = csv.DictReader(io.StringIO(nothing))
    assert [row["rank"] for row in rows] == ["", ""]


def damage(stopped: bytes) -> list[bytes]:
    """What is not the file of a stopped run, but looks like it."""
    head, *answers = stopped.splitlines(keepends=True)
    all_answers = b"".join(answers)
    backwards = b"".join(reversed(answers))
    first = answers[0]
    return [
        b"mine\n",
        b"mine",
        stopped.replace(b'"papers"', b'"paper"', 1),
        head + backwards,
        head + first + all_answers,
        head[:-2] + b"\n" + all_answers,
        stopped + b"\0\0\0",
    ]


def test_a_stopped_run_goes_on_and_another_question_begins_anew(
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = [f"p{number}" for number in range(7)]
    rows = [["text", "id"]]
    for number, key in enumerate(ids):
        rows.append([f"claim {number} a", key])
    file = write(tmp_path / "posts.csv", rows)
    out = tmp_path / "found.csv"
    words = [
        "--input",
        str(file),
        "--out",
        str(out),
        "--k",
        "1",
    ]
    monkeypatch.setattr(bulk, "MAX_BATCH", 2)
    find = Finder.find
    searched = []

    def stopping(self: Finder, posts: Any, *args: Any) -> Any:
        if len(searched) == 4:
            raise KeyboardInterrupt
        searched.extend(post.id for post in posts)
        return find(self, posts, *args)

    def run(*words: str, stops: bool = False) -> tuple[str, list[str]]:
        searched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Finder, "find", stopping)
            if not stops:
                searched.append("none")  # so that four are never reached
            try:
                said = ask(*words)
            except KeyboardInterrupt:
                said = "interrupted"
        asked = [key for key in searched if key != "none"]
        return said, asked

    said, asked = run(*words, stops=True)
    assert said == "interrupted"
    assert asked == ids[:4]
    assert not out.exists()
    partial = tmp_path / "found.csv.partial"
    stopped = partial.read_bytes()
    # An incomplete line does not count.
    partial.write_bytes(stopped + b'{"post": "p4", "te')
    said, asked = run(*words)
    assert asked == ids[4:]
    assert "4 of 7" in said
    found = opened(out)
    assert [row["id"] for row in found] == ids
    assert {row["rank"] for row in found} == {"1"}
    assert not partial.exists()
    expected = out.read_bytes()
    # What another question, or nobody, has begun is refused and stays as it is.
    check_that_others_are_refused(ask, words, file, rows, stopped)
    partial.unlink()
    partial.symlink_to(file)
    assert is_refused(ask, *words)
    assert out.read_bytes() == expected
    partial.unlink()
    partial.write_bytes(stopped[:20])  # nothing was kept yet
    _, asked = run(*words)
    assert asked == ids
    assert out.read_bytes() == expected


def is_refused(ask: Ask, *words: str) -> bool:
    """Whether a run is refused in one line that names the file of the other one."""
    with pytest.raises(InputError) as error:
        ask(*words)
    (line,) = error.value.lines
    return "found.csv.partial" in line


def check_that_others_are_refused(
    ask: Ask,
    words: list[str],
    file: Path,
    rows: list[list[str]],
    stopped: bytes,
) -> None:
    """Run with what others have begun, with other posts, on damage, and beside another run."""
    partial = file.parent / "found.csv.partial"
    for change in (
        ["--k", "2"],
        ["--date", "2019"],
        ["--no_translate"],
    ):
        partial.write_bytes(stopped)
        assert is_refused(ask, *words, *change)
        assert partial.read_bytes() == stopped
    one_more = [*rows, ["one more", "p7"]]
    write(file, one_more)
    assert is_refused(ask, *words)
    assert partial.read_bytes() == stopped
    write(file, rows)
    for damaged in damage(stopped):
        partial.write_bytes(damaged)
        assert is_refused(ask, *words)
        assert partial.read_bytes() == damaged
    partial.write_bytes(stopped)
    with partial.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert is_refused(ask, *words)
        assert partial.read_bytes() == stopped


def test_a_post_that_fails_is_a_row_and_counted(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = "https://bsky.app/x"
    rows = [
        ["text"],
        ["claim a"],
        [link],
        ["poison"],
        ["claim b"],
    ]
    file = write(tmp_path / "posts.csv", rows)
    out = tmp_path / "found.csv"
    find = Finder.find

    def failing(self: Finder, posts: Sequence[Post], *args: Any) -> list[Answer]:
        if any(post.text == "poison" for post in posts):
            raise ValueError("of no use")
        return find(self, posts, *args)

    monkeypatch.setattr(Finder, "find", failing)
    words = [
        "--input",
        str(file),
        "--k",
        "1",
        "--out",
        str(out),
    ]
    assert "4 posts: 2 answered, 2 left out" in ask(*words)
    with out.open(encoding="utf-8-sig", newline="") as table:
        found = list(csv.DictReader(table))
    left_out = [bool(row["left_out"]) for row in found]
    assert left_out == [False, True, True, False]
    verdicts = [row["verdict"] for row in found]
    assert verdicts == ["not judged", "", "", "not judged"]
    # If the file has only such posts there is no answer to write.
    for text in ("poison", link):
        write(file, [["text"], [text]])
        before = out.read_bytes()
        with pytest.raises((ValueError, UserError)):
            ask(*words)
        assert out.read_bytes() == before


HOSTILE = [
    "=1+1",
    "\t@SUM(A1)",
    "-2+3+cmd|' /C calc'!A0",
    "quiet;=WEBSERVICE(1)",
    "two\n=cmd|' /C calc'!A0",
    "a,+HYPERLINK(1)",
]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_cell_is_a_formula_at_any_separator(separator: str) -> None:
    texts = {str(number): text for number, text in enumerate(HOSTILE)}
    record = PostRecord(None, texts)
    outcome = Outcome("=1+1", HOSTILE[3], HOSTILE[2])
    columns = list(record.columns)
    for written in (",", ";"):
        lines = csv_lines(columns, [(record, outcome)], written)
        text = "\n".join(lines)
        rows = list(csv.reader(io.StringIO(text), delimiter=written))
        assert rows[1][3].startswith("quiet")
        for cells in csv.reader(io.StringIO(text), delimiter=separator):
            for cell in cells:
                shown = cell.lstrip()
                assert not shown.startswith(("=", "+", "-", "@"))


def test_what_is_no_formula_is_kept_as_it_was() -> None:
    texts = [
        "-5",
        "+3,7 %",
        "-12.5%",
        "a - b; - c",
        "list:\n- one\n- two",
        "hi,@who",
        "mail@x.org",
    ]
    kept = [text for text in texts if safe_cell(text) == text]
    expected = [text for text in texts if text != "+3,7 %"]
    assert kept == expected


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "found.txt"], "out: "),
        (["--out", "found.csv", "--json"], "out: "),
        (["--out", "posts.csv"], "posts.csv: "),
        (["--out", "posts.csv/found.csv"], "posts.csv: "),
    ],
)
def test_an_output_that_cannot_be_is_one_line(
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "posts.csv", [["text"], ["a"]])
    with refused(UserError, reason) as error:
        ask("--input", "posts.csv", *words)
    assert len(error.value.lines) == 1
    with refused(UserError, "out: "):
        ask(POST, "--out", "found.csv")
    files = [path.name for path in tmp_path.iterdir()]
    assert files == ["posts.csv"]
