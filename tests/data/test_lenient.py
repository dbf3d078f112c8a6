"""Data sets with the defects of BEIR: refused by default, or loaded leniently with counts."""

from __future__ import annotations

import importlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.data.loading import load
from claim2source.evaluation.evaluate import evaluate
from claim2source.search.bm25 import BM25
from tests.data.test_beir import make
from tests.refusals import refused
from tests.training.small import arguments as training_arguments
from tests.training.small import save_small_model

CORPUS: list[Any] = [
    {"_id": "d1", "title": "Masks", "text": "Masks stop droplets."},
    {"_id": 2, "title": "", "text": "Coffee and sleep.", "metadata": {"url": "u", "year": 1}},
    {"_id": "d3", "title": "", "text": " ", "metadata": {}},
    {"_id": "d4", "title": "Zinc", "text": "Zinc shortens colds.", "extra": [1]},
    {"_id": "d1", "title": "Other masks", "text": "Another text."},
    {"_id": "d5", "title": None, "text": "Yoga.", "metadata": "a text"},
]
QUERIES: list[Any] = [
    {"_id": "q1", "text": "do masks stop droplets"},
    {"_id": "q2", "text": "coffee", "metadata": {"d1": [{"label": "SUPPORT"}], "lang": ["en"]}},
    {"_id": "q3", "text": "zinc and colds", "metadata": {"lang": "English text"}},
    {"_id": "q4", "text": " "},
    {"_id": "q3", "text": "zinc again"},
    {"_id": "q5", "text": "yoga", "metadata": {"candidates": ["d5", "d5", "d3"]}},
]
QRELS = [
    "q1\td1\t1",
    "q1\td4\t0",
    "q1\td1\t1",
    "q2\t2\t0",
    "q2\t2\t2.0",
    "q2\td4\t1",
    "q2\td4\t0",
    "q2\tgone\t-1",
    "q3\td4\t0.9",
    "q3\td3\t1",
    "q3\tgone\t1",
    "q4\td1\t1",
    "q9\td1\t1",
    "q5\td5\t1",
]


def dirty(folder: Path, **qrels: list[str]) -> Path:
    return make(folder, CORPUS, QUERIES, qrels or {"test": QRELS})


def test_every_trait_is_loaded_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = dirty(tmp_path / "set")
    with caplog.at_level(logging.WARNING):
        data = load(folder, "test", lenient=True)
    assert [(s.id, s.title, s.abstract) for s in data.sources] == [
        ("d1", "Masks", "Masks stop droplets."),
        ("2", "", "Coffee and sleep."),
        ("d4", "Zinc", "Zinc shortens colds."),
        ("d5", "", "Yoga."),
    ]
    claims = [(c.id, c.text, c.lang, c.golds, c.candidates) for c in data.claims]
    assert claims == [
        ("q1", "do masks stop droplets", "en", ("d1",), None),
        ("q2", "coffee", "en", ("2", "d4"), None),
        # Missing golds cannot be trained on, but stay in the judgements and are never found.
        ("q3", "zinc and colds", "en", (), None),
        ("q5", "yoga", "en", ("d5",), ("d5",)),
    ]
    assert data.qrels.grades == {
        "q1": {"d1": 1, "d4": 0},
        "q2": {"2": 2, "d4": 1, "gone": -1},
        "q3": {"d4": 0, "d3": 1, "gone": 1},
        "q5": {"d5": 1},
    }
    counts = re.findall(r": (\d+) \(first: (\w)\w+\.\w+:(\d+)\)", data.notes[0])
    assert " ".join(map("".join, counts)) == "5q2 1q4 1q5 1t4 1t6 2t6 1t10 1c3 1c5 2t11 2t13"
    assert [record.getMessage() for record in caplog.records] == [*data.notes]
    assert data.in_languages(["en"]).notes == data.notes
    # Missing golds are never found: one of one, one of two, none of two, one of one.
    report = evaluate(
        BM25().index(data.sources).search(data.claims), data, ["recall@10"], repeats=0
    )
    assert report.macro["recall@10"] == (1 + 1 / 2 + 0 + 1) / 4


def test_the_strict_error_names_the_flag(tmp_path: Path) -> None:
    folder = dirty(tmp_path / "set")
    with refused(InputError, folder, "--lenient", "lenient: true"):
        load(folder, "test")
    # Other problems are refused by lenient loading too.
    make(folder, [*CORPUS, "{", {"_id": "d9", "title": 4, "text": "x"}], QUERIES, {"test": QRELS})
    with pytest.raises(InputError) as error:
        load(folder, "test", lenient=True)
    first, second = error.value.problems
    assert "JSON" in first.reason and second.field == "title"


def test_a_data_set_can_ask_for_it_in_its_own_folder(tmp_path: Path) -> None:
    folder = dirty(tmp_path / "set")
    lenient = load(folder, "test", lenient=True)
    (folder / "dataset.yaml").write_text("lenient: true\n")
    assert load(folder, "test") == lenient
    for text, *facts in [
        ("lenent: true", "dataset.yaml:1: lenent: ", "lenient?"),
        ("lenient: [", "dataset.yaml:", "YAML"),
    ]:
        (folder / "dataset.yaml").write_text(text)
        with refused(UserError, *facts):
            load(folder, "test", lenient=True)
    for text in ("", "lenient: false\n", "# nothing\n"):
        (folder / "dataset.yaml").write_text(text)
        assert load(folder, "test", lenient=True) == lenient
        with pytest.raises(InputError):
            load(folder, "test")


def test_a_clean_set_is_the_same_either_way(tmp_path: Path) -> None:
    for data in (load("demo", "dev"), load(make(tmp_path / "set"), "dev")):
        folder = "demo" if data.name == "demo" else tmp_path / "set"
        lenient = load(folder, "dev", lenient=True)
        assert lenient == data and lenient.fingerprint == data.fingerprint
        assert lenient.notes == data.notes == ()


def test_the_fingerprint_is_of_what_was_loaded(tmp_path: Path) -> None:
    corpus = [CORPUS[0], {**CORPUS[1], "metadata": {}}, CORPUS[3], {"_id": "d5", "text": "Yoga."}]
    queries = [*({"_id": q["_id"], "text": q["text"]} for q in (*QUERIES[:2], QUERIES[2]))]
    judged = [row for row in QRELS if row[:2] in ("q1", "q2") or row == "q3\td4\t0.9"]
    lenient = load(make(tmp_path / "a", CORPUS, QUERIES, {"test": judged}), "test", lenient=True)
    grades = ["q1\td1\t1", "q1\td4\t0", "q2\t2\t2", "q2\td4\t1", "q2\tgone\t-1", "q3\td4\t0"]
    clean = load(make(tmp_path / "b", corpus, queries, {"test": grades}), "test")
    assert lenient.notes and lenient.fingerprint == clean.fingerprint


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (None, ["q1\td1\t1", "q1\td4\t0"]),
        ("corpus-id\tscore\tquery-id", ["d1\t1\tq1", "d4\t0\tq1"]),
        ("query-id\titer\tcorpus-id\tscore", ["q1\t0\td1\t1", "q1\t0\td4\t0"]),
        ("\ufeffquery-id\tcorpus-id\tscore\r", ["q1\td1\t1.0\r", "q1\td4\t0.0\r"]),
    ],
)
def test_other_headers_and_none(tmp_path: Path, header: str | None, rows: list[str]) -> None:
    folder = dirty(tmp_path / "set")
    wrong = rows[-1].replace("d4", "d5").replace("0", "x")
    text = "\n".join([*([header] if header else []), *rows, wrong])
    (folder / "qrels" / "test.tsv").write_text(text, "utf-8")
    with refused(InputError, f"test.tsv:{text.count(chr(10)) + 1}: score: 'x"):
        load(folder, "test", lenient=True)
    (folder / "qrels" / "test.tsv").write_text(text.rpartition("\n")[0], "utf-8")
    assert load(folder, "test", lenient=True).qrels.grades == {"q1": {"d1": 1, "d4": 0}}


@pytest.mark.slow
def test_programs_load_leniently_when_asked(tmp_path: Path) -> None:
    """A set like those of BEIR, with judgements of missing claims and sources, and an empty source."""
    corpus = [{"_id": f"{i}", "title": f"Study {i}", "text": f"Of {i}."} for i in range(30)]
    queries = [{"_id": f"t{i}", "text": f"what of {i}"} for i in range(30)]
    train = [f"t{i}\t{i}\t1.0" for i in range(30)] + ["t3\tgone\t1", "gone\t1\t1", "t3\t39\t1"]
    corpus.append({"_id": "39", "title": "", "text": ""})
    queries.append({"_id": "q", "text": "what of 1"})
    judged = {"test": ["q\t1\t2", "q\tgone\t1"], "train": train}
    folder = make(tmp_path / "set", corpus, queries, judged)
    model = save_small_model(tmp_path / "model")
    run, out, systems = tmp_path / "run", tmp_path / "out", tmp_path / "systems.yaml"
    systems.write_text("BM25: {retrieve: {bm25: {k1: 1.2}}}\n")
    data = [f"--dataset={folder}", "--split=test"]
    extra = ["--repeats=50"]
    training = training_arguments(
        model,
        folder,
        run,
        data__report_split="test",
        optimisation__epochs=1,
        rendering__claims="original",
    )
    commands: list[tuple[str, list[str]]] = [
        ("train.finetune", training),
        ("eval.evaluate", [f"--checkpoint={run}", *data, *extra, f"--out={out}/c"]),
        ("eval.evaluate", [f"--systems={systems}", *data, *extra, f"--out={out}/b"]),
    ]  # fmt: skip
    for program, words in commands:
        main = importlib.import_module(f"claim2source.{program}").main
        with refused(UserError, "--lenient"):
            main(words)
        main([*words, "--data.lenient" if program == "train.finetune" else "--lenient"])
    # After training and resuming, the manifest records it.
    manifest = json.loads((run / "checkpoints" / "epoch-1" / "manifest.json").read_text("utf-8"))
    assert manifest["config"]["data"]["lenient"] is True
    report = json.loads((run / "report.json").read_text("utf-8"))
    assert any("loaded leniently" in note for note in report["notes"])
