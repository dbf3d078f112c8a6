"""Files of training pairs become data sets: all pairs are read, and a positive is in one split."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from claim2source.eval.evaluate import main as evaluate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.data.folders import dataset_folder
from claim2source.data.loading import load
from claim2source.data.pair_files import read_pairs
from claim2source.text.translate import require_translatable
from tests.refusals import refused

QUICK = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = [
    ("anchor", "positive", "negative"),
    ("query", "document", "negative_1"),
    ("question", "answer", "hard_negative"),
    ("sentence1", "sentence2", "neg"),
]
WORD = st.text("abcdefgäöß,;\"' ", min_size=1, max_size=8).map(str.strip).filter(bool)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)
    return path


def by_text(parts: list[Dataset]) -> dict[str, dict[str, int]]:
    """Grades of all splits by the texts of claim and source."""
    texts = {source.id: source.abstract for source in parts[0].sources}
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for claim in part.claims:
            judged = part.qrels.grades[claim.id]
            found[claim.text] = {texts[source]: grade for source, grade in judged.items()}
    return found


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("names", NAMES)
@QUICK
@given(data=st.data())
def test_every_pair_comes_back(
    names: tuple[str, str, str], ending: str, data: st.DataObject, tmp_path: Path
) -> None:
    count = data.draw(st.integers(4, 14))
    numbers = st.integers(0, 5)
    rows: list[dict[str, Any]] = []
    expected: dict[str, dict[str, int]] = defaultdict(dict)
    for number in range(count):
        anchor = f"{data.draw(WORD)} {number % 9}"
        # At least two positives without a common anchor.
        positive = f"paper {number % 2 if number < 2 else data.draw(numbers)}"
        negative = data.draw(st.sampled_from(["", "other a", "other b"]))
        rows.append(dict(zip(names, (anchor, positive, negative), strict=True)))
        expected[anchor][positive] = 1
        if negative:
            expected[anchor].setdefault(negative, 0)
    path = write(tmp_path / f"pairs.{ending}", rows)
    try:
        parts = read_pairs(path)
    except UserError as error:
        # Anchors may link all positives.
        assert "two or more positives" in str(error)
        return
    assert by_text(parts) == expected
    assert [part.split for part in parts] == ["train", "dev"]
    assert parts[0].golds.isdisjoint(parts[1].golds) and parts[1].claims
    texts = {text for row in rows for text in (row[names[1]], row[names[2]]) if text}
    assert sorted(source.abstract for source in parts[0].sources) == sorted(texts)
    # The same result, whatever the order of rows.
    again = read_pairs(write(tmp_path / f"again.{ending}", rows[::-1]))
    dev = {claim.text for claim in parts[1].claims}
    assert {claim.text for claim in again[1].claims} == dev


ROWS = [
    {"anchor": f"post {i} about topic{i // 2}", "positive": f"paper on topic{i // 2}"}
    for i in range(40)
]


def test_a_file_is_a_data_set_of_every_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("pairs.csv"), ROWS)
    train, dev = load("pairs.csv", "train"), load("pairs.csv", "dev")
    assert len(train.claims) + len(dev.claims) == 40 and len(train.sources) == 20
    assert len(dev.claims) == 4 and train.golds.isdisjoint(dev.golds)
    folder = dataset_folder("pairs.csv")
    assert dataset_folder(str(tmp_path / "pairs.csv")) == folder
    evaluate(["--dataset", "pairs.csv", "--split", "dev", "--out", "out", "--only", "BM25"])
    report = Report.read(Path("out"))
    assert "BM25" in capsys.readouterr().out and report.split == "dev"
    # Other contents make another data set.
    write(Path("pairs.csv"), ROWS[:20])
    assert dataset_folder("pairs.csv") != folder and len(load("pairs.csv", "dev").claims) == 2


def test_translations_are_not_written_into_the_store(tmp_path: Path) -> None:
    pairs = str(write(tmp_path / "pairs.csv", ROWS))
    with refused(ConfigError) as error:
        require_translatable(pairs, None, None)
    assert error.value.key == "out"
    assert require_translatable(pairs, tmp_path / "out", None) == dataset_folder(pairs)


def test_languages_labels_lists_and_splits(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"query": "a", "pos": ["x", "y"], "neg": ["z", None], "lang": "DE", "split": "train"},
        {"query": "b", "pos": "x", "neg": [], "lang": None, "split": "test"},
    ]
    train, test = read_pairs(write(tmp_path / "p.jsonl", rows))
    assert (train.claims[0].lang, test.claims[0].lang) == ("de", "en")
    assert by_text([train, test]) == {"a": {"x": 1, "y": 1, "z": 0}, "b": {"x": 1}}
    labelled = [
        {"sentence1": "a", "sentence2": "x", "label": 1},
        {"sentence1": "a", "sentence2": "y", "label": 0},
        {"sentence1": "b", "sentence2": "y", "label": 0.9},
    ]
    parts = read_pairs(write(tmp_path / "q.csv", labelled))
    assert by_text(parts) == {"a": {"x": 1, "y": 0}, "b": {"y": 1}}


def test_an_anchor_that_is_a_source_too_is_not_ranked_for_itself(tmp_path: Path) -> None:
    """As in data sets of duplicate questions."""
    rows = [{"anchor": a, "positive": b} for a, b in ("ab", "bc", "de", "ef")]
    parts = read_pairs(write(tmp_path / "pairs.csv", rows))
    ids = {source.abstract: source.id for source in parts[0].sources}
    claims = {claim.text: claim for part in parts for claim in part.claims}
    assert claims["b"].id == ids["b"] and claims["b"].golds == (ids["c"],)


def test_rows_without_a_pair_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS, {"anchor": "", "positive": "x"}, {"anchor": "x", "positive": " "}]
    parts = read_pairs(write(tmp_path / "pairs.csv", rows))
    assert sum(len(part.claims) for part in parts) == 40 and "2 rows" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.csv", "anchor,text\na,b\n", "p.csv: positive: "),
        ("p.csv", "a,positive\na,b\n", "p.csv: anchor: "),
        ("p.csv", "", "p.csv: anchor: "),
        ("p.csv", "anchor,positive\na\n", "p.csv:2: 1 columns"),
        ("p.csv", "anchor,positive,label\na,b,2\n", "p.csv:2: label: '2' "),
        ("p.csv", "anchor,positive,split\na,b,../x\n", "p.csv:2: split: '../x' "),
        ("p.jsonl", '{"anchor": "a"}\n', "p.jsonl:1: positive: "),
        ("p.jsonl", '{"anchor": 7, "positive": "b"}\n', "p.jsonl:1: anchor: "),
        ("p.jsonl", "anchor\n", "p.jsonl:1: "),
        ("p.parquet", "no", "p.parquet: "),
        ("p.csv", "anchor,positive\na,b\nc,b\n", "p.csv: "),
        ("p.csv", "anchor,positive\n,b\n", "p.csv: "),
    ],
)
def test_what_is_wrong_is_named(name: str, content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError) as error:
        load(path, "train")
    assert reason in str(error.value) and len(error.value.lines) == 1
