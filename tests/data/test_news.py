"""The released files of the news paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.data.loading import load
from claim2source.data.news import names_one
from claim2source.data.prepare import PrepareConfig, prepare

TRAIN = [
    "Dow drops 1,200 points to new low, CNN says\t7",
    '"He said ""no"" to masks"\tb',
    "RT @x: hello\t7",
    "two\ttabs\t7",
    "",
    '"quoted" is how it begins (wsj)\t7',
]
TITLES = ["7\tDow drops 1,200 points to new low", 'b\tMasks: "no"', "c\tUnread"]


def lines(folder: Path, name: str, rows: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(row + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    lines(tmp_path / "raw", "train.tsv", TRAIN)
    lines(tmp_path / "raw", "test.tsv", ["Dow falls\t7"])
    lines(tmp_path / "raw", "newsid_title.tsv", TITLES)
    return tmp_path / "raw"


def test_posts_and_titles_are_read_as_they_are(raw: Path, tmp_path: Path) -> None:
    splits, notes = prepare(PrepareConfig("news", tmp_path / "out", raw))
    train = load(tmp_path / "out", "train")
    assert [split.split for split in splits] == ["train", "test"] and "no dev.tsv" in notes
    golds = {f"train-{number}": ("b",) if number == 2 else ("7",) for number in (1, 2, 3, 4, 6)}
    assert {claim.id: claim.golds for claim in train.claims} == golds
    texts = [claim.text for claim in train.claims]
    assert texts[1] == 'He said "no" to masks' and texts[3] == "two\ttabs"
    assert texts[4] == '"quoted" is how it begins (wsj)'
    assert [(s.id, s.title) for s in train.sources][1:] == [("b", 'Masks: "no"'), ("c", "Unread")]


def test_bodies_dates_and_distractors(raw: Path, tmp_path: Path) -> None:
    article = {"_id": "b", "title": "Other", "text": "Body.", "metadata": {"date": "2020-04-01"}}
    rss = [
        {"_id": "r1", "title": "A QUARANTINE begins"},
        {"_id": "r2", "title": "Coronado wins", "text": "coronary, unpandemic"},
        {"_id": "r3", "title": "x", "text": "since covid-19 came"},
    ]
    # A date is enough.
    dated = {"_id": 7, "text": "", "metadata": {"date": "2020-03-09"}}
    lines(raw, "news.jsonl", [json.dumps(article), json.dumps(dated)])
    lines(raw, "rss.jsonl", [json.dumps(row) for row in rss])
    splits, notes = prepare(PrepareConfig("news", tmp_path / "out", raw))
    source_of = {source.id: source for source in load(tmp_path / "out", "test").sources}
    assert list(source_of) == ["7", "b", "c", "r1", "r3"]
    assert (source_of["b"].title, source_of["b"].abstract) == ('Masks: "no"', "Body.")
    assert (source_of["7"].title, source_of["7"].date) == (TITLES[0][2:], "2020-03-09")
    assert source_of["b"].date == "2020-04-01" and "1 of 3 articles have a body" in notes
    assert "2 of 3 articles of rss.jsonl have one of the six keywords" in notes


def test_keywords_are_whole_words() -> None:
    words = ("the guardian", "cnn")
    assert names_one("read in The  Guardian.", words) and names_one("(CNN)", words)
    assert names_one("www.cnn.com/x", words) and not names_one("cnnbc theguardian", words)


def test_bad_input_is_named_and_nothing_is_written(raw: Path, tmp_path: Path) -> None:
    contents = {path: path.read_bytes() for path in raw.iterdir()}
    for name, row, problem in [
        ("train.tsv", "no tab", "train.tsv:1: "),
        ("train.tsv", "post\t99", "train.tsv:1: news id: '99' "),
        ("newsid_title.tsv", "7\tagain", "newsid_title.tsv:4: id: '7' "),
        ("news.jsonl", '{"_id": "z", "title": "t"}', "news.jsonl:1: _id: 'z' "),
        ("rss.jsonl", '{"_id": "7", "title": "covid"}', "rss.jsonl:1: _id: '7' "),
    ]:
        lines(raw, name, [*(TITLES if name == "newsid_title.tsv" else []), row])
        with pytest.raises(InputError) as error:
            prepare(PrepareConfig("news", tmp_path / "out", raw))
        assert problem in str(error.value) and not (tmp_path / "out").exists()
        for path in raw.iterdir():
            path.write_bytes(contents[path]) if path in contents else path.unlink()
