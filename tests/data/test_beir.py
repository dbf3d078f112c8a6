"""The native layout: every BEIR set loads, bad input is named, and nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Source
from claim2source.data.beir import read_beir, write_beir
from claim2source.data.folders import DEMO
from claim2source.data.loading import load
from tests.refusals import refused

CORPUS = [
    {
        "_id": "p1",
        "title": "Masks",
        "text": "Droplets.",
        "metadata": {"authors": ["Jane Doe", "Ng"], "venue": "J", "date": "2020-04-01"},
    },
    {"_id": "p2", "title": "", "text": "Only a text."},
    {"_id": "p3", "title": "Only a title", "text": "", "metadata": {}},
    {
        "_id": "p4",
        "title": "Old",
        "text": "x",
        "metadata": {"authors": "Doe, J.; ;Ng, A. ", "date": 1999, "url": "u", "venue": None},
    },
]
QUERIES = [
    {"_id": "q1", "text": "masks work", "metadata": {"lang": "en"}},
    {"_id": "q3", "text": "Masken", "metadata": {"lang": "de", "translation": "masks"}},
    {"_id": "q2", "text": "no metadata"},
    {"_id": "q4", "text": "of train", "metadata": {}},
]
QRELS = ["q2\tp2\t1", "q1\tp3\t3", "q1\tp2\t0", "q1\tp1\t1", "q3\tp1\t2"]
HEADER = "query-id\tcorpus-id\tscore"


def make(
    folder: Path,
    corpus: list[Any] = CORPUS,
    queries: list[Any] = QUERIES,
    qrels: dict[str, list[str]] | None = None,
) -> Path:
    """Write a BEIR folder; a record that is a text is written unchanged."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, records in (("corpus", corpus), ("queries", queries)):
        lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
        (folder / f"{name}.jsonl").write_text("".join(f"{r}\n" for r in lines), "utf-8")
    for split, rows in ({"dev": QRELS, "train": ["q4\tp4\t1"]} if qrels is None else qrels).items():
        text = "".join(f"{row}\n" for row in [HEADER, *rows])
        (folder / "qrels" / f"{split}.tsv").write_text(text, "utf-8")
    return folder


def problems(folder: Path, split: str = "dev") -> list[str]:
    """The lines of a refusal, without the folder's name and the last hint."""
    with pytest.raises(InputError) as error:
        load(folder, split)
    lines = [line.replace(f"{folder}/", "") for line in str(error.value).splitlines()]
    return lines[:-1] if lines[-1].startswith(f"{folder}: ") and "--lenient" in lines[-1] else lines


def test_loads_a_split(tmp_path: Path) -> None:
    dataset = load(make(tmp_path / "set"), "dev")
    assert dataset.claims == (
        Claim("q1", "masks work", golds=("p3", "p1")),
        Claim("q3", "Masken", "de", "masks", golds=("p1",)),
        Claim("q2", "no metadata", golds=("p2",)),
    )
    assert dataset.sources == (
        Source("p1", "Masks", "Droplets.", ("Jane Doe", "Ng"), "J", "2020-04-01"),
        Source("p2", "", "Only a text."),
        Source("p3", "Only a title"),
        Source("p4", "Old", "x", ("J. Doe", "A. Ng"), "", "1999"),
    )
    assert dataset.qrels.grades == {
        "q2": {"p2": 1},
        "q1": {"p3": 3, "p2": 0, "p1": 1},
        "q3": {"p1": 2},
    }
    assert (dataset.split, dataset.name) == ("dev", "set")
    assert [claim.id for claim in load(tmp_path / "set", "train").claims] == ["q4"]
    assert load(str(tmp_path / "set"), "dev") == dataset == read_beir(tmp_path / "set", "dev")


def test_a_plain_name_is_looked_for_where_data_sets_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `configs/finetune/ct25_minilm.yaml`; a folder in the current one has precedence."""
    folder, data_home = tmp_path / "here", tmp_path / "kept"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(data_home))
    assert load("demo", "dev") == read_beir(DEMO, "dev")
    with refused(InputError, "demo", data_home):
        load("./demo", "dev")
    demo = load("demo", "train")
    write_beir([demo], data_home / "set25")
    assert load("set25", "train").fingerprint == demo.fingerprint
    write_beir([demo.in_languages(["en"])], folder / "set25")
    assert load("set25", "train").languages == ("en",)
    # Without the variable no folder is guessed.
    monkeypatch.delenv("CLAIM2SOURCE_DATA")
    monkeypatch.chdir(tmp_path)
    with refused(InputError, "set25", "CLAIM2SOURCE_DATA"):
        load("set25", "train")


def test_languages(tmp_path: Path) -> None:
    folder = make(tmp_path)
    german = load(folder, "dev", ["de"])
    assert [claim.id for claim in german.claims] == ["q3"]
    assert german.qrels.claim_ids == ("q3",)
    assert len(german.sources) == 4
    assert load(folder, "dev", ["de", "en"]) == load(folder, "dev")
    for languages in (["fr"], ["de", "fr"], "fr"):
        with refused(ConfigError, "languages", "'fr'", "en, de"):
            load(folder, "dev", languages)
    with pytest.raises(ConfigError):
        load(folder, "dev", [])
    for meta in ({}, {"lang": None}, {"lang": ""}, {"lang": " EN "}):
        queries = [*QUERIES[:3], {"_id": "q4", "text": "x", "metadata": meta}]
        assert load(make(tmp_path, queries=queries), "train").claims[0].lang == "en"


def test_candidates(tmp_path: Path) -> None:
    query = {"_id": "q4", "text": "x", "metadata": {"candidates": ["p4", "p1"]}}
    folder = make(tmp_path, queries=[*QUERIES[:3], query])
    assert load(folder, "train").claims[0].candidates == ("p4", "p1")
    assert load(folder, "dev").claims[0].candidates is None
    for bad, fact in [(["p4", "p4"], "twice"), (["p4", "zz"], "'zz'"), ([["p4"]], "a list")]:
        query["metadata"] = {"candidates": bad}
        folder = make(tmp_path, queries=[*QUERIES[:3], query])
        (line,) = problems(folder, "train")
        assert line.startswith("queries.jsonl:4: metadata.candidates: ") and fact in line
    # A candidate that is not in the corpus matters only for the split being loaded.
    query["metadata"] = {"candidates": ["zz"]}
    assert len(load(make(tmp_path, queries=[*QUERIES[:3], query]), "dev").claims) == 3


def test_format_variants(tmp_path: Path) -> None:
    corpus = [{"_id": '<"Heroes">', "title": "a\u2028b\u0085c", "text": ""}]
    folder = make(tmp_path, corpus, [QUERIES[0]], {"dev": ['q1\t"<""Heroes"">"\t1']})
    raw = json.dumps(corpus[0], ensure_ascii=False)
    (folder / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + raw.encode() + b"\r\n\r\n \n")
    queries = (folder / "queries.jsonl").read_bytes()
    (folder / "queries.jsonl").write_bytes(b"\xef\xbb\xbf\n" + queries.rstrip(b"\n"))
    qrels = (folder / "qrels" / "dev.tsv").read_bytes()
    (folder / "qrels" / "dev.tsv").write_bytes(
        b"\xef\xbb\xbf" + qrels.replace(b"\n", b"\r\n\r\n").rstrip()
    )
    dataset = load(folder, "dev")
    assert dataset.sources == (Source('<"Heroes">', "a\u2028b\u0085c"),)
    assert dataset.claims == (Claim("q1", "masks work", golds=('<"Heroes">',)),)


# A record, the field of its problem, and a fact of the reason.
BAD_CORPUS: list[tuple[Any, str, str]] = [
    ({"title": "t"}, "_id: ", "title"),
    *(
        ({"_id": f"a{space}b", "title": "t"}, "_id: ", "white space")
        for space in "\t\n \u00a0\u2028"
    ),
    ({"_id": "a\x00", "title": "t"}, "_id: ", "NUL"),
    ({"_id": 1.5, "title": "t"}, "_id: ", "a number"),
    ({"_id": "p2", "title": "t"}, "_id: 'p2' ", "line 2"),
    ({"_id": "p9"}, "title: ", "text"),
    ('{"_id": "p9", "title": "t", "text": "\\ud800"}', "text: ", "surrogate"),
    (
        {"_id": "p9", "title": "t", "metadata": {"authors": ["a", 3]}},
        "metadata.authors: ",
        "number",
    ),
    ('{"_id": "p9", ', "", "JSON"),
    ('{"_id": "p9", "text": "a", "text": "b"}', "text: ", "JSON"),
    ("[" * 100_000, "", "JSON"),
    ('{"_id": ' + "1" * 5000 + "}", "", "JSON"),
]


BAD_QUERIES: list[tuple[Any, str, str]] = [
    ({"_id": "q3", "text": "x"}, "_id: 'q3' ", "line 2"),
    ({"_id": "q9", "text": " \n"}, "text: ", "empty"),
    (
        {"_id": "q9", "text": "x", "metadata": {"lang": "not one"}},
        "metadata.lang: 'not one' ",
        "en",
    ),
]


BAD_QRELS = [
    ("q1\tp4\t1.0", "score: '1.0' ", "integer"),
    ("q1\tp4\t١", "score: '١' ", "integer"),
    ("q1\t0\tp4\t1", "4 columns", "3"),
    ('q1\t"p4\t1', "broken row", "quote"),
    ("q9\tp4\t1", "query-id: 'q9' ", "queries.jsonl"),
    ("q1\tp9\t1", "corpus-id: ", "'p9' is not in corpus.jsonl"),
    ("q1\tp1\t1", "corpus-id: 'q1' ", "'p1' on line 5"),
]


def require_problem(folder: Path, begin: str, fact: str) -> None:
    (line,) = problems(folder)
    assert line.startswith(begin) and fact in line, line


def test_bad_records_are_one_line_each_with_their_place(tmp_path: Path) -> None:
    for record, begin, fact in BAD_CORPUS:
        folder = make(tmp_path, [*CORPUS[:2], "", record, *CORPUS[2:]])
        require_problem(folder, f"corpus.jsonl:4: {begin}", fact)
    for record, begin, fact in BAD_QUERIES:
        folder = make(tmp_path, queries=[*QUERIES, record])
        require_problem(folder, f"queries.jsonl:5: {begin}", fact)
    for row, begin, fact in BAD_QRELS:
        folder = make(tmp_path, qrels={"dev": [*QRELS, "", row], "train": ["q4\tp4\t1"]})
        require_problem(folder, f"qrels/dev.tsv:8: {begin}", fact)
        # Other splits are not affected.
        assert len(load(folder, "train").claims) == 1


def test_bad_headers_and_empty_files(tmp_path: Path) -> None:
    folder = make(tmp_path)
    must = "qrels/dev.tsv:1: the header must be query-id <tab> corpus-id <tab> score"
    empty = "qrels/dev.tsv: empty split: no judgements"
    for content, message in [
        ("q1\tp1\t1\nq1\tp1\tx\n", must),
        ("corpus-id\tquery-id\tscore\nq1\tp1\tx\n", must),
        ("", empty),
        (f"{HEADER}\r\n\n \n", empty),
    ]:
        (folder / "qrels" / "dev.tsv").write_text(content)
        assert problems(folder) == [message]
    require_problem(make(tmp_path, corpus=[], qrels={"dev": ["q1\tp1\t0"]}), "corpus.jsonl: ", "")


def test_integer_ids_become_text_and_grades_below_one_are_no_golds(tmp_path: Path) -> None:
    corpus = [{"_id": 7, "title": "t", "text": "x"}]
    queries = [{"_id": 1, "text": "x", "metadata": {"candidates": [7]}}]
    dataset = load(make(tmp_path, corpus, queries, {"dev": ["1\t7\t1"]}), "dev")
    assert dataset.claims == (Claim("1", "x", golds=("7",), candidates=("7",)),)
    assert dataset.sources[0].id == "7"
    # A source without a positive grade may be missing.
    folder = make(tmp_path, qrels={"dev": ["q1\tp1\t-1", "q1\tgone\t0", "q2\tp1\t1"]})
    claims = {claim.id: claim.golds for claim in load(folder, "dev").claims}
    assert claims == {"q1": (), "q2": ("p1",)}


def test_wrong_encoding_names_the_right_line(tmp_path: Path) -> None:
    folder = make(tmp_path)
    good = json.dumps({"_id": "p8", "title": "a\u2028b\u0085c\u000bd"}, ensure_ascii=False)
    with open(folder / "corpus.jsonl", "ab") as file:
        file.write(f"{good}\r\n\r\n".encode() + '{"_id": "p9", "title": "für"}\n'.encode("latin-1"))
    assert problems(folder) == ["corpus.jsonl:7: is not UTF-8: byte 0xfc at byte 26"]
    make(folder)
    with open(folder / "qrels" / "dev.tsv", "ab") as file:
        file.write(b"q1\tp\xff\t1\n")
    assert problems(folder) == ["qrels/dev.tsv:7: is not UTF-8: byte 0xff at byte 5"]
    make(folder)
    (folder / "corpus.jsonl").write_bytes("{}\n".encode("utf-16"))
    assert "corpus.jsonl:1: is UTF-16, not UTF-8" in problems(folder)


def test_missing_things(tmp_path: Path) -> None:
    with refused(InputError, tmp_path / "none"):
        load(tmp_path / "none", "dev")
    (tmp_path / "bare").mkdir()
    assert problems(tmp_path / "bare")[1:] == ["queries.jsonl: no such file"]
    folder = make(tmp_path / "set", qrels={"dev": QRELS, "train": [], "zz": [], "aa": []})
    for split in ("test", "", "../qrels/dev"):
        with refused(InputError, f"{folder}: split: ", repr(split), "train, dev, aa, zz"):
            load(folder, split)


def test_split_without_judgements(tmp_path: Path) -> None:
    queries = [
        *QUERIES,
        {"_id": "test-1", "text": "by id"},
        {"_id": "x", "text": "by metadata", "metadata": {"split": "test"}},
        {"_id": "test-2", "text": "of another", "metadata": {"split": "other"}},
        {"_id": "testing", "text": "no"},
    ]
    folder = make(tmp_path, queries=queries)
    dataset = load(folder, "test")
    assert [claim.id for claim in dataset.claims] == ["test-1", "x"]
    assert all(claim.golds == () for claim in dataset.claims)
    assert len(dataset.qrels) == 0
    assert [claim.id for claim in load(folder, "other").claims] == ["test-2"]
    with refused(InputError, "split: ", "'none'", "train, dev, test, other"):
        load(folder, "none")
    # With a qrels file only metadata.split is used.
    make(folder, queries=queries, qrels={"test": ["q1\tp1\t1"]})
    assert [claim.id for claim in load(folder, "test").claims] == ["q1", "x"]
