"""The files of CheckThat! 2025 Task 4b become the native layout."""

from __future__ import annotations

import csv
import io
import pickle
from pathlib import Path
from typing import Any

import pandas
import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.checkthat import COLLECTION_2025 as COLLECTION
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig
from claim2source.data.prepare import prepare as prepare_task
from tests import refusals

FIXTURES = Path(__file__).parent / "fixtures"
ROWS: dict[str, list[list[Any]]] = {
    "train": [
        [1, "Masks\nwork, they\tsay", "aaa00001"],
        [2, 'He said "no" & left &amp;', "bbb00002"],
        [7, "Third\r\nline", "bbb00002"],
    ],
    "dev": [[1, "Same number, other split", "ccc00003"], [30, "水", "ddd00004"]],
    "test": [[1, "Unknown paper"], [2, "Another"]],
    "test_gold": [[1, "Unknown paper", "aaa00001"], [2, "Another", "ccc00003"]],
}


def prepare(source: Path, target: Path, overwrite: bool = False) -> list[Dataset]:
    return prepare_task(PrepareConfig("checkthat2025", target, source, overwrite=overwrite))[0]


def tsv(
    rows: list[list[Any]], header: tuple[str, ...] = ("post_id", "tweet_text", "cord_uid")
) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(header[: len(rows[0])] if rows else header)
    writer.writerows(rows)
    return text.getvalue()


def task(folder: Path, pickled: str = "pandas1_whole_p4", **changed: str | bytes | None) -> Path:
    """A folder as the task ships it; `changed` replaces or (None) drops a tweets file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COLLECTION).write_bytes((FIXTURES / f"{pickled}.pkl").read_bytes())
    contents: dict[str, Any] = {name: tsv(rows) for name, rows in ROWS.items()} | changed
    for name, text in contents.items():
        path = folder / f"subtask4b_query_tweets_{name}.tsv"
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def collection(folder: Path, **columns: list[Any]) -> Path:
    """The task's folder with another collection: four rows, with these columns replaced."""
    frame = pandas.read_pickle(FIXTURES / "pandas1_whole_p4.pkl")
    for name, values in columns.items():
        frame[name] = pandas.Series(values, dtype=object)
    task(folder)
    (folder / COLLECTION).write_bytes(pickle.dumps(frame, 4))
    return folder


def refused(source: Path, target: Path) -> list[str]:
    """The lines of a refusal; checks that nothing was written."""
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as error:
        prepare(source, target)
    assert not target.exists()
    assert not [path for path in target.parent.iterdir() if path.name.startswith(".")]
    assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    text = str(error.value).replace(f"{source}/", "").replace("subtask4b_query_tweets_", "")
    return text.splitlines()


SOURCES = (
    Source(
        "aaa00001",
        "Masks and droplets",
        "We measured\ndroplets.",
        ("Jane Doe", "Jörg Müller"),
        "J Invented Med",
        "2020-04-01",
    ),
    Source("bbb00002", "Schnelltests für Ärzte \u2028 im Vergleich", "", ("Single",), "", "2021"),
    Source("ccc00003", "", 'Only an abstract, "quoted".', (), "BMJ", ""),
    Source("ddd00004", "水 🦠", "", ("Martin King Jr.", "A. B. Ng"), "", "2020-12-24"),
)


@pytest.mark.parametrize("pickled", ["pandas1_whole_p2", "pandas3_arrow_whole_p5"])
def test_prepared_task_is_loaded(tmp_path: Path, pickled: str) -> None:
    splits = prepare(task(tmp_path / "in", pickled), tmp_path / "out")
    train, dev, test = (load(tmp_path / "out", split) for split in ("train", "dev", "test"))
    assert [part.claims for part in splits] == [train.claims, dev.claims, test.claims]
    assert train.sources == dev.sources == test.sources == SOURCES
    assert train.claims == (
        Claim("train-1", "Masks\nwork, they\tsay", golds=("aaa00001",)),
        Claim("train-2", 'He said "no" & left &amp;', golds=("bbb00002",)),
        Claim("train-7", "Third\r\nline", golds=("bbb00002",)),
    )
    assert dev.claims == (
        Claim("dev-1", "Same number, other split", golds=("ccc00003",)),
        Claim("dev-30", "水", golds=("ddd00004",)),
    )
    assert [(c.id, c.golds) for c in test.claims] == [
        ("test-1", ("aaa00001",)),
        ("test-2", ("ccc00003",)),
    ]


def test_the_test_split_without_golds_absent_and_with_golds_only(tmp_path: Path) -> None:
    prepare(task(tmp_path / "blind", test_gold=None), tmp_path / "out")
    assert {p.name for p in (tmp_path / "out" / "qrels").iterdir()} == {"dev.tsv", "train.tsv"}
    test = load(tmp_path / "out", "test")
    assert test.claims == (Claim("test-1", "Unknown paper"), Claim("test-2", "Another"))
    assert len(test.qrels) == 0
    source = task(tmp_path / "in", test=None, test_gold=None)
    absent = prepare(source, tmp_path / "out", overwrite=True)
    assert [part.split for part in absent] == ["train", "dev"]
    with refusals.refused(InputError, "split: ", "'test'", "train, dev"):
        load(tmp_path / "out", "test")
    task(source, test=None)
    prepare(source, tmp_path / "out", overwrite=True)
    assert load(tmp_path / "out", "test").claims[1].golds == ("ccc00003",)


HEAD = "post_id\ttweet_text\tcord_uid\n"
BAD_TWEETS: list[tuple[str | bytes, list[str]]] = [
    (HEAD + '1\t"two\nlines"\taaa00001\n1\tagain\taaa00001\n', ["dev.tsv:4: post_id: '1' "]),
    (HEAD + '1\t"two\nlines"\taaa00001\n2\t \taaa00001\n', ["dev.tsv:4: tweet_text: "]),
    (HEAD + "1\ta\rb\taaa00001\n", ["dev.tsv:2: "]),
    (
        "1\tx\taaa00001\n",
        [f"dev.tsv:1: {column}: " for column in ("post_id", "tweet_text", "cord_uid")],
    ),
]


def test_bad_tweets_are_named_with_their_line(tmp_path: Path) -> None:
    for dev, places in BAD_TWEETS:
        lines = refused(task(tmp_path / "in", dev=dev), tmp_path / "out")
        for line, place in zip(lines, places, strict=True):
            assert line.startswith(place)


@pytest.mark.parametrize(
    ("columns", "messages"),
    [
        (
            {"cord_uid": ["aaa00001", "bbb00002", "ccc00003", "aaa00001"]},
            [("row 3: cord_uid: ", "'aaa00001'", "row 0"), ("", "gold 'ddd00004'")],
        ),
        (
            {"title": ["t", "t", float("nan"), "t"], "abstract": ["", None, float("nan"), ""]},
            [("row 2: title: ", "abstract")],
        ),
    ],
)
def test_bad_papers_are_named_with_their_row(
    tmp_path: Path, columns: dict[str, list[Any]], messages: list[tuple[str, ...]]
) -> None:
    lines = refused(collection(tmp_path / "in", **columns), tmp_path / "out")
    assert lines[0].startswith(f"{COLLECTION}: {messages[0][0]}")
    for line, facts in zip(lines, messages, strict=True):
        assert all(fact in line for fact in facts), line


def test_missing_column_and_empty_or_hostile_collection(tmp_path: Path) -> None:
    source = task(tmp_path / "in")
    frame = pandas.read_pickle(source / COLLECTION)
    frame.drop(columns=["authors", "title"]).to_pickle(source / COLLECTION)
    for column, line in zip(("title", "authors"), refused(source, tmp_path / "out"), strict=True):
        assert line.startswith(f"{COLLECTION}: {column}: ")
    frame.iloc[:0].to_pickle(source / COLLECTION)
    assert refused(source, tmp_path / "out")[0].startswith(f"{COLLECTION}: ")
    (source / COLLECTION).write_bytes(b"cpandas\neval\n(X\x03\x00\x00\x001+1tR.")
    (line,) = refused(source, tmp_path / "out")
    assert "'pandas.eval'" in line


def as_csv(source: Path) -> Path:
    """Replace the pickle by a CSV file that pandas writes."""
    frame = pandas.read_pickle(source / COLLECTION)
    path = source / COLLECTION.replace(".pkl", ".csv")
    frame.to_csv(path)
    (source / COLLECTION).unlink()
    return path


def test_the_collection_may_be_csv(tmp_path: Path) -> None:
    source = task(tmp_path / "in")
    prepare(source, tmp_path / "pickle")
    frame = pandas.read_pickle(source / COLLECTION)
    path = as_csv(source)
    prepare(source, tmp_path / "csv")
    for split in ("train", "dev", "test"):
        first, second = (load(tmp_path / name, split) for name in ("pickle", "csv"))
        assert (first.claims, first.sources) == (second.claims, second.sources)
    # Next to a pickle it is not read, but reported.
    frame.to_pickle(source / COLLECTION)
    path.write_text("not a table")
    config = PrepareConfig("checkthat2025", tmp_path / "both", source)
    (note,) = prepare_task(config)[1]
    assert path.name in note


def test_a_csv_collection_is_checked_by_line(tmp_path: Path) -> None:
    source = task(tmp_path / "in")
    path = as_csv(source)
    text = path.read_text("utf-8")
    for wrong, field, line in (
        (text.replace("cord_uid", "uid", 1), "cord_uid", 1),
        (text.replace("bbb00002", "aaa00001", 1), "cord_uid", 4),
        (text.replace("bbb00002", "", 1), "cord_uid", 4),
        (text.splitlines()[0] + "\n", None, None),
    ):
        path.write_text(wrong, "utf-8")
        with pytest.raises(InputError) as error:
            prepare(source, tmp_path / "out")
        problem = error.value.problems[0]
        assert (problem.file, problem.line, problem.field) == (str(path), line, field)
        assert not (tmp_path / "out").exists()


def test_the_input_is_never_replaced(tmp_path: Path) -> None:
    source = task(tmp_path / "data" / "in")
    before = sorted(path.name for path in source.iterdir())
    for target in (source, source / ".", tmp_path / "data", tmp_path):
        with refusals.refused(UserError, target, source):
            prepare(source, target)
    assert sorted(path.name for path in source.iterdir()) == before
