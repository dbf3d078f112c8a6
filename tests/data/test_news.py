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
TITLES = [
    "7\tDow drops 1,200 points to new low",
    'b\tMasks: "no"',
    "c\tUnread",
]


def lines(folder: Path, name: str, rows: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    text = "".join(row + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    lines(folder, "train.tsv", TRAIN)
    lines(folder, "test.tsv", ["Dow falls\t7"])
    lines(folder, "newsid_title.tsv", TITLES)
    return folder


def test_posts_and_titles_are_read_as_they_are(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = PrepareConfig("news", out, raw)
    splits, notes = prepare(config)
    train = load(out, "train")
    assert [split.split for split in splits] == ["train", "test"]
    assert "no dev.tsv" in notes
    golds = {claim.id: claim.golds for claim in train.claims}
    assert golds == {
        "train-1": ("7",),
        "train-2": ("b",),
        "train-3": ("7",),
        "train-4": ("7",),
        "train-6": ("7",),
    }
    texts = [claim.text for claim in train.claims]
    assert texts[1] == 'He said "no" to masks'
    assert texts[3] == "two\ttabs"
    assert texts[4] == '"quoted" is how it begins (wsj)'
    sources = [(source.id, source.title) for source in train.sources]
    assert sources[1:] == [
        ("b", 'Masks: "no"'),
        ("c", "Unread"),
    ]


def test_bodies_dates_and_distractors(raw: Path, tmp_path: Path) -> None:
    article = {
        "_id": "b",
        "title": "Other",
        "text": "Body.",
        "metadata": {"date": "2020-04-01"},
    }
    rss = [
        {"_id": "r1", "title": "A QUARANTINE begins"},
        {"_id": "r2", "title": "Coronado wins", "text": "coronary, unpandemic"},
        {"_id": "r3", "title": "x", "text": "since covid-19 came"},
    ]
    # A date is enough.
    dated = {
        "_id": 7,
        "text": "",
        "metadata": {"date": "2020-03-09"},
    }
    lines(raw, "news.jsonl", [json.dumps(article), json.dumps(dated)])
    lines(raw, "rss.jsonl", [json.dumps(row) for row in rss])
    out = tmp_path / "out"
    config = PrepareConfig("news", out, raw)
    _, notes = prepare(config)
    test = load(out, "test")
    by_id = {source.id: source for source in test.sources}
    assert list(by_id) == ["7", "b", "c", "r1", "r3"]
    with_body = by_id["b"]
    assert with_body.title == 'Masks: "no"'
    assert with_body.abstract == "Body."
    without_body = by_id["7"]
    assert without_body.title == TITLES[0][2:]
    assert without_body.date == "2020-03-09"
    assert with_body.date == "2020-04-01"
    assert "1 of 3 articles have a body" in notes
    assert "2 of 3 articles of rss.jsonl have one of the six keywords" in notes


def test_keywords_are_whole_words() -> None:
    words = ("the guardian", "cnn")
    assert names_one("read in The  Guardian.", words)
    assert names_one("(CNN)", words)
    assert names_one("www.cnn.com/x", words)
    assert not names_one("cnnbc theguardian", words)


def test_bad_input_is_named_and_nothing_is_written(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    contents = {path: path.read_bytes() for path in raw.iterdir()}
    bad = [
        ("train.tsv", "no tab", "train.tsv:1: "),
        ("train.tsv", "post\t99", "train.tsv:1: news id: '99' "),
        ("newsid_title.tsv", "7\tagain", "newsid_title.tsv:4: id: '7' "),
        ("news.jsonl", '{"_id": "z", "title": "t"}', "news.jsonl:1: _id: 'z' "),
        ("rss.jsonl", '{"_id": "7", "title": "covid"}', "rss.jsonl:1: _id: '7' "),
    ]
    for name, row, problem in bad:
        before = TITLES if name == "newsid_title.tsv" else []
        lines(raw, name, [*before, row])
        with pytest.raises(InputError) as error:
            prepare(PrepareConfig("news", out, raw))
        assert problem in str(error.value)
        assert not out.exists()
        for path in raw.iterdir():
            if path in contents:
                path.write_bytes(contents[path])
            else:
                path.unlink()
