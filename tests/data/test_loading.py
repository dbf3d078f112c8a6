"""Tables of papers, posts and pairs load as the files of a BEIR folder do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset as HFDataset
from datasets import DatasetDict

import claim2source as c2s
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.beir import write_beir

PAPERS = pd.DataFrame(
    {
        "_id": ["p1", "p2", "p3"],
        "title": ["Masks", "Tea", None],
        "text": ["Masks work.", float("nan"), "Coffee."],
        "authors": [["A. One", "B. Two"], None, []],
        "date": [pd.Timestamp("2021-03-04"), pd.NaT, pd.NaT],
    }
)
POSTS = pd.DataFrame(
    {
        "_id": [7, 8, 9],
        "text": ["masks!", "Tee hilft", "nobody judged this"],
        "lang": ["en", "de", None],
        "translation": [None, "tea helps", None],
        "candidates": [None, ["p2", "p3"], None],
    }
)
PAIRS = pd.DataFrame({"query-id": [7, 8, 8], "corpus-id": ["p1", "p2", "p3"], "score": [1, 2, 0]})
EXPECTED = Dataset(
    (
        Claim("7", "masks!", golds=("p1",)),
        Claim("8", "Tee hilft", "de", "tea helps", ("p2",), ("p2", "p3")),
    ),
    (
        Source("p1", "Masks", "Masks work.", ("A. One", "B. Two"), date="2021-03-04"),
        Source("p2", "Tea"),
        Source("p3", "", "Coffee."),
    ),
    Qrels({"7": {"p1": 1}, "8": {"p2": 2, "p3": 0}}),
    "test",
    "tables",
)


def nested(frame: pd.DataFrame, keys: list[str]) -> HFDataset:
    """A Hugging Face data set with these columns in `metadata`, as BEIR's files have them."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    for row in rows:
        row["metadata"] = {key: row.pop(key) for key in keys}
    return HFDataset.from_list(rows)


def test_frames_and_data_sets_are_what_the_same_files_are(tmp_path: Path) -> None:
    assert c2s.load(papers=PAPERS, posts=POSTS, pairs=PAIRS) == EXPECTED
    of_hub = c2s.load(
        papers=nested(PAPERS.astype({"date": str}).replace("NaT", None), ["authors", "date"]),
        posts=nested(POSTS, ["lang", "translation", "candidates"]).with_format("numpy"),
        pairs=HFDataset.from_pandas(PAIRS).with_format("torch"),
    )
    assert of_hub == EXPECTED and of_hub.fingerprint == EXPECTED.fingerprint
    write_beir([EXPECTED], tmp_path / "data")
    assert replace(c2s.load(tmp_path / "data", "test"), name="tables") == EXPECTED


@pytest.mark.parametrize(
    ("papers", "posts", "pairs"),
    [
        ({"_id": "id", "text": "abstract"}, {"_id": "qid", "text": "query"}, {}),
        ({"_id": "docno"}, {"_id": "query_id"}, {"query-id": "qid", "corpus-id": "docno"}),
        ({}, {}, {"query-id": "query_id", "corpus-id": "doc_id", "score": "relevance"}),
        ({}, {}, {"query-id": "claim", "corpus-id": "source", "score": "label"}),
    ],
)
def test_the_fields_usual_columns_are_read(
    papers: dict[str, str], posts: dict[str, str], pairs: dict[str, str]
) -> None:
    """Also an id that is the index, grades that a frame made floats, and other columns beside."""
    pairs_frame = PAIRS.astype({"score": float}).rename(columns=pairs).assign(note="x")
    frame = PAPERS.rename(columns=papers).assign(url="u")
    renamed = POSTS.rename(columns=posts).set_index(posts.get("_id", "_id"))
    assert c2s.load(papers=frame, posts=renamed, pairs=pairs_frame) == EXPECTED


def test_without_pairs_no_post_has_a_gold_and_without_a_grade_all_are_golds() -> None:
    blind = c2s.load(papers=PAPERS, posts=POSTS, split="blind", languages=["en"])
    assert [claim.id for claim in blind.claims] == ["7", "9"] and not blind.golds
    parts = POSTS.assign(split=["dev", "blind", None])
    assert [c.id for c in c2s.load(papers=PAPERS, posts=parts, split="dev").claims] == ["7", "9"]
    ungraded = c2s.load(papers=PAPERS, posts=POSTS, pairs=PAIRS.drop(columns="score"))
    assert ungraded.claims[1].golds == ("p2", "p3")


def test_lists_of_dicts_and_texts_are_tables_and_columns_may_be_called_otherwise() -> None:
    rows = [
        frame.astype(object).where(frame.notna(), None).to_dict("records")
        for frame in (PAPERS.astype({"date": str}).replace("NaT", None), POSTS, PAIRS)
    ]
    assert c2s.Dataset.from_frames(*rows) == EXPECTED
    # A key that some rows lack, and columns of other names in any of the tables.
    short = [{key: cell for key, cell in row.items() if cell is not None} for row in rows[1]]
    tweets = [
        {("tweet" if key == "text" else key): cell for key, cell in row.items()} for row in short
    ]
    papers = PAPERS.rename(columns={"text": "summary"})
    columns = {"tweet": "text", "summary": "abstract", "grade": "score"}
    pairs = PAIRS.rename(columns={"score": "grade"})
    assert c2s.Dataset.from_frames(papers, tweets, pairs, columns=columns) == EXPECTED
    texts = c2s.load(
        papers=["Masks work.", "Tea."],
        posts=["masks!"],
        pairs=[{"qid": "post-1", "docid": "paper-2"}],
    )
    assert texts.sources[1] == Source("paper-2", "", "Tea.")
    assert texts.claims == (Claim("post-1", "masks!", golds=("paper-2",)),)


def changed(frame: pd.DataFrame, column: str, row: int, value: object) -> pd.DataFrame:
    cells = frame[column].astype(object).tolist()
    cells[row] = value
    return frame.assign(**{column: cells})


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no id": (lambda: {"papers": PAPERS.drop(columns="_id")}, r"papers: has no column _id or .*"),
    "no text": (
        lambda: {"posts": POSTS.rename(columns={"text": "tweet"})},
        r"posts: tweet: not read, and text missing; .*",
    ),
    "a gold": (
        lambda: {"pairs": changed(PAIRS, "corpus-id", 0, "p9").rename(columns={"query-id": "qid"})},
        "pairs:1: corpus-id: gold 'p9' is not in papers",
    ),
    "a pair twice": (
        lambda: {"pairs": pd.concat([PAIRS, PAIRS[:1]])},
        "pairs:4: corpus-id: '7' is already judged for 'p1' on line 1",
    ),
    "no posts": (lambda: {"posts": POSTS[:0], "pairs": None}, "posts: holds no claims"),
    "a list": (lambda: {"papers": [1]}, "papers: is a list of int; wanted: a pandas frame, .*"),
    "two kinds": (lambda: {"papers": [{}, "x"]}, "papers: is a list of dict and str; wanted: .*"),
    "nothing": (lambda: {"papers": []}, "papers: is an empty list; wanted: a pandas frame, .*"),
    "a text": (lambda: {"papers": "p.csv"}, "papers: is a str; wanted: a pandas frame, .*"),
    "a renamed column": (
        lambda: {"columns": {"twet": "text"}},
        r"config: columns: 'twet' is not allowed; did you mean text\? allowed: a column of a table; there are: .*",
    ),
    "a column twice": (
        lambda: {"papers": pd.concat([PAPERS, PAPERS[["title"]]], axis=1)},
        "papers: has the column title twice",
    ),
    "several splits": (
        lambda: {"papers": DatasetDict({"train": HFDataset.from_dict({"_id": ["p1"]})})},
        "papers: holds several splits: give one of train",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_refused_with_row_and_field(name: str) -> None:
    make_tables, message = WRONG[name]
    tables: dict[str, Any] = {"papers": PAPERS, "posts": POSTS, "pairs": PAIRS, **make_tables()}
    with pytest.raises((InputError, ConfigError), match=rf"^{message}$"):
        c2s.load(**tables)


def test_lenient_tables_are_read_as_lenient_files_are() -> None:
    posts = changed(POSTS, "text", 0, "")
    data = c2s.load(papers=PAPERS, posts=posts, pairs=PAIRS, lenient=True)
    assert [claim.id for claim in data.claims] == ["8"]
    (note,) = data.notes
    assert "claims without text, left out: 1 (first: posts:1)" in note


def test_a_folder_and_tables_are_one_or_the_other() -> None:
    for arguments, key in (
        ({"folder": "demo"}, "split"),
        ({"folder": "demo", "split": "dev", "pairs": PAIRS}, "folder"),
        ({"folder": PAPERS, "split": POSTS}, "folder"),
        ({}, "load"),
    ):
        with pytest.raises(ConfigError, match=f"^config: {key}: "):
            c2s.load(**arguments)  # type: ignore[call-overload]
