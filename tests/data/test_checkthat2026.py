"""The files of CheckThat! 2026 Task 1, or its hub set, become the native layout. All invented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig
from claim2source.data.prepare import main as prepare_main
from claim2source.data.prepare import prepare as prepare_task
from claim2source.data.submissions import lab_ids, lab_source_ids, write_submission
from claim2source.data.trec import read_run
from tests import refusals

COLLECTION: list[dict[str, Any]] = [
    {
        "pubkey": 11,
        "title": "Otters and tea",
        "abstract": "We gave otters\ntea.",
        "venue": "J Invented Zool",
        "authors": "Doe, Jane; Roe, Richard",
    },
    {
        "pubkey": "p22",
        "title": "Schlaf bei Robben",
        "abstract": None,
        "venue": None,
        "authors": ["Ng, A.", "Jane Doe", ""],
    },
    {
        "pub_key": 33,
        "title": "",
        "abstract": "Only an abstract.",
        "venue": "",
        "authors": "Jane Doe, Richard Roe",
    },
    {"pubkey": 44, "title": "Le thé", "abstract": "x"},
]
CLAIMS: dict[str, list[dict[str, Any]]] = {
    "en_train": [
        {"index": 0, "text": "otters love tea", "pubkey": 11},
        {"index": 7, "text": "seals nap", "pub_key": "p22"},
    ],
    "de_train": [{"index": 0, "text": "Otter mögen Tee", "pubkey": 11}],
    "fr_train": [{"index": "x-1", "text": "le thé, bon", "pubkey": 44, "pub_key": "44"}],
    "en_dev": [{"index": 0, "text": "abstract only", "pubkey": 33}],
    "de_dev": [{"index": 0, "text": "Robben dösen", "pubkey": "p22"}],
    "fr_dev": [{"index": 0, "text": "phoques", "pubkey": "p22"}],
    "en_test": [{"index": 0, "text": "who knows"}, {"index": "en-1", "text": "and this"}],
    "de_test": [{"index": 0, "text": "wer weiß", "pubkey": None}],
    "fr_test": [{"index": 0, "text": "qui sait", "pub_key": ""}],
}
SOURCES = (
    Source(
        "11",
        "Otters and tea",
        "We gave otters\ntea.",
        ("Jane Doe", "Richard Roe"),
        "J Invented Zool",
    ),
    Source("p22", "Schlaf bei Robben", "", ("Ng, A.", "Jane Doe")),
    Source("33", "", "Only an abstract.", ("Jane Doe", "Richard Roe")),
    Source("44", "Le thé", "x"),
)


def prepare(
    source: Path, target: Path, file: Path | None = None
) -> tuple[list[Dataset], list[str]]:
    return prepare_task(PrepareConfig("checkthat2026", target, source, translations=file))


def prepare_hub(name: str, target: Path) -> list[str]:
    return prepare_task(PrepareConfig("checkthat2026", target, hub=name))[1]


def task(folder: Path, collection: Any = COLLECTION, **changed: Any) -> Path:
    """A folder as the task ships it; `changed` replaces or (None) drops a file of claims."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entries in {**CLAIMS, **changed, "collection_data": collection}.items():
        path = folder / f"{name}.json"
        if isinstance(entries, bytes):
            path.write_bytes(entries)
        elif entries is not None:
            path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return folder


def hub(folder: Path, collection: Any = COLLECTION, drop: tuple[str, ...] = ()) -> Path:
    """A folder with the layout of a hub set: configurations and splits in README.md."""
    layout = (
        {"collection": {"train": collection}}
        | {
            lang: {split: CLAIMS[f"{lang}_{split}"] for split in ("train", "dev")}
            for lang in ("en", "de", "fr")
        }
        | {"test": {lang: CLAIMS[f"{lang}_test"] for lang in ("en", "de", "fr")}}
    )
    lines = ["---", "configs:"]
    for config, splits in layout.items():
        if config in drop:
            continue
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, entries in splits.items():
            path = folder / config / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            # A configuration has the same columns, with the same types, in all of its splits.
            columns = {k for part in splits.values() for e in part for k in e if e[k]}
            rows = [
                {k: None if e.get(k) is None else str(e[k]) for k in columns | {"index"}}
                for e in entries
            ]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            lines += [f"  - split: {split}", f"    path: {config}/{split}.jsonl"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")
    return folder


def refused(source: Path, target: Path, file: Path | None = None) -> list[str]:
    """The lines of a refusal; checks that nothing was written."""
    with pytest.raises(UserError) as error:
        prepare(source, target, file)
    assert not target.exists()
    assert not [path for path in target.parent.iterdir() if path.name.startswith(".")]
    return str(error.value).replace(f"{source}/", "").splitlines()


def loaded(folder: Path) -> dict[str, tuple[Claim, ...]]:
    return {split: load(folder, split).claims for split in ("train", "dev", "test")}


def test_the_files_become_a_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    parts, notes = prepare(task(tmp_path / "in"), folder)
    assert notes == []
    assert [part.split for part in parts] == ["train", "dev", "test"]
    splits = loaded(folder)
    assert [part.claims for part in parts] == list(splits.values())
    assert load(folder, "dev").sources == SOURCES
    assert splits["train"] == (
        Claim("train-en-0", "otters love tea", "en", golds=("11",)),
        Claim("train-en-7", "seals nap", "en", golds=("p22",)),
        Claim("train-de-0", "Otter mögen Tee", "de", golds=("11",)),
        Claim("train-fr-x-1", "le thé, bon", "fr", golds=("44",)),
    )
    assert {c.id: (c.lang, c.golds) for c in splits["dev"]} == {
        "dev-en-0": ("en", ("33",)),
        "dev-de-0": ("de", ("p22",)),
        "dev-fr-0": ("fr", ("p22",)),
    }
    assert [c.id for c in splits["test"]] == ["test-en-0", "test-en-en-1", "test-de-0", "test-fr-0"]
    assert not any(c.golds for c in splits["test"]) and len(load(folder, "test").qrels) == 0


def test_whether_an_id_was_a_number_is_noted_and_kept(tmp_path: Path) -> None:
    digits = {"pubkey": "007", "title": "Digits are no number"}
    text = {"pubkey": "7", "title": "A text"}
    prepare(task(tmp_path / "in", collection=[*COLLECTION, digits, text]), tmp_path / "out")
    data = load(tmp_path / "out", "test")
    assert data.numeric_ids == {"11", "33", "44"}
    # No computation on the papers depends on it.
    assert data.fingerprint == replace(data, numeric_ids=None).fingerprint
    for part in (data.in_languages(["de"]), data.with_claims(data.claims[:1])):
        assert part.numeric_ids == data.numeric_ids
    write_beir(data, tmp_path / "again")
    assert load(tmp_path / "again", "test").numeric_ids == data.numeric_ids
    assert lab_source_ids(data) == {
        "11": 11,
        "p22": "p22",
        "33": 33,
        "44": 44,
        "007": "007",
        "7": "7",
    }


def test_a_gold_of_another_type_than_its_paper_is_noted(tmp_path: Path) -> None:
    text = [{"index": 0, "text": "abstract only", "pubkey": "33"}]
    source = task(tmp_path / "in", en_dev=text)
    (note,) = prepare(source, tmp_path / "out")[1]
    assert note.startswith(f"{source / 'en_dev.json'}: 1 golds, such as '33'")
    assert load(tmp_path / "out", "dev").claims[0].golds == ("33",)


@pytest.mark.parametrize("wrong", [True, 11.0, 1e3])
def test_an_id_that_is_neither_an_integer_nor_a_text_is_refused(
    tmp_path: Path, wrong: object
) -> None:
    paper = {"pubkey": wrong, "title": "t"}
    source = task(tmp_path / "in", collection=[*COLLECTION, paper])
    (line,) = refused(source, tmp_path / "out")
    assert line.startswith("collection_data.json: entry 5: pubkey: ")


@pytest.mark.parametrize("wrong", ["yes", 1, True])
def test_a_wrong_note_of_an_id_is_refused(tmp_path: Path, wrong: object) -> None:
    prepare(task(tmp_path / "in"), tmp_path / "out")
    corpus = tmp_path / "out" / "corpus.jsonl"
    lines = corpus.read_text("utf-8").splitlines()
    paper = json.loads(lines[1])  # p22
    paper["metadata"]["numeric_id"] = wrong
    corpus.write_text("\n".join([lines[0], json.dumps(paper), *lines[2:]]), "utf-8")
    with pytest.raises(InputError) as error:
        load(tmp_path / "out", "test")
    (problem,) = error.value.problems
    assert (problem.line, problem.field) == (2, "metadata.numeric_id")


def test_a_number_in_a_corpus_or_table_is_noted(tmp_path: Path) -> None:
    papers = [{"id": 11, "title": "t"}, {"id": "22", "title": "u"}]
    data = Dataset.from_frames(papers, [{"id": 1, "text": "post"}])
    assert data.numeric_ids == {"11"}
    texts = Dataset.from_frames(papers[1:], [{"id": 1, "text": "post"}])
    assert texts.numeric_ids is None


def test_what_is_absent_is_said(tmp_path: Path) -> None:
    source = task(tmp_path / "in", fr_test=None, de_train=None)
    notes = prepare(source, tmp_path / "out")[1]
    assert [note.split(": ")[0] for note in notes] == [
        f"{source}/de_train.json",
        f"{source}/fr_test.json",
    ]
    # One file of claims is enough, but not none.
    none = dict.fromkeys(CLAIMS)
    path = task(tmp_path / "one", **{**none, "de_test": CLAIMS["de_test"]})
    parts, notes = prepare(path, tmp_path / "of one")
    assert [part.split for part in parts] == ["test"] and len(notes) == 8
    (error,) = refused(task(tmp_path / "none", **none), tmp_path / "x")
    assert "no claims" in error


def test_the_final_test_is_read_and_what_is_not_read_is_named(tmp_path: Path) -> None:
    final = {f"final_{lang}_test": CLAIMS[f"{lang}_test"] for lang in ("en", "de", "fr")}
    absent = dict.fromkeys(("en_test", "de_test", "fr_test"))
    source = task(tmp_path / "in", **absent, **final, final_it_test=[], en_val=[])
    for name in (".hidden", "Read me.txt"):
        (source / name).write_text("mine")
    parts, (note,) = prepare(source, tmp_path / "out")
    assert [part.split for part in parts] == ["train", "dev", "test"]
    assert loaded(tmp_path / "out") == loaded_of_usual_names(tmp_path)
    for name in ("Read me.txt", "en_val.json", "final_it_test.json"):
        assert name in note
    assert note.startswith(str(source)) and ".hidden" not in note and "final_en" not in note
    # Two files of one test are read if they are equal.
    task(source, en_test=CLAIMS["en_test"])
    prepare(source, tmp_path / "equal")
    task(source, en_test=CLAIMS["en_test"][:1])
    (line,) = refused(source, tmp_path / "x")
    assert line.startswith("final_en_test.json: ") and "en_test.json" in line


def loaded_of_usual_names(folder: Path) -> dict[str, tuple[Claim, ...]]:
    prepare(task(folder / "usual"), folder / "usual-out")
    return loaded(folder / "usual-out")


def test_a_named_split_must_have_a_file(tmp_path: Path) -> None:
    source = task(tmp_path / "in", en_test=None, de_test=None, fr_test=None)
    words = ["checkthat2026", f"--input={source}", f"--output={tmp_path / 'out'}", "--splits"]
    with pytest.raises(ConfigError) as error:
        prepare_main([*words, "dev", "test"])
    assert (error.value.key, error.value.value) == ("splits", "test")
    assert not (tmp_path / "out").exists()
    prepare_main([*words, "dev"])
    assert {path.name for path in (tmp_path / "out" / "qrels").iterdir()} == {"dev.tsv"}
    assert all(c.id.startswith("dev-") for c in load(tmp_path / "out", "dev").claims)
    with pytest.raises(UserError):
        load(tmp_path / "out", "train")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_submission_has_the_tasks_own_index(tmp_path: Path, split: str) -> None:
    prepare(task(tmp_path / "in"), tmp_path / "out")
    data = load(tmp_path / "out", split)
    run = Run.from_lists({claim.id: [("11", 1.0), ("44", 0.5)] for claim in data.claims})
    files = lab_ids(data, 2026)
    assert set(files) == {f"predictions_{lang}.tsv" for lang in ("en", "de", "fr")}
    for lang in ("en", "de", "fr"):
        path = tmp_path / f"predictions_{lang}.tsv"
        write_submission(run, path, 2026, ids=files[path.name])
        indices = [str(entry["index"]) for entry in CLAIMS[f"{lang}_{split}"]]
        assert list(read_run(path).run.claim_ids) == indices
        assert read_run(path).run.sources(indices[0]) == ["11", "44"]
    for claim_id, index in (
        ("dev-de-7", "7"),
        ("dev-de-dev-de-7", "dev-de-7"),
        ("dev-7", "7"),
        ("dev-en-7", "en-7"),
        ("7", "7"),
    ):
        german = Dataset((Claim(claim_id, "text", "de"),), (), Qrels({}), "dev")
        assert lab_ids(german, 2026) == {"predictions_de.tsv": {claim_id: index}}


BAD_CLAIMS = [
    ({"index": 0, "text": "t"}, "entry 2: pubkey: ", ""),
    ({"index": 0, "text": "t", "pubkey": 99}, "entry 2: pubkey: ", "'99'"),
    ({"index": 0, "text": "t", "pubkey": 11, "pub_key": 44}, "entry 2: pub_key: '44' ", "'11'"),
    ({"index": 5, "text": "t", "pubkey": 11}, "entry 2: index: '5' ", "entry 1"),
]


def test_bad_claims_and_papers_are_named_with_file_entry_and_field(tmp_path: Path) -> None:
    good = {"index": 5, "text": "fine", "pubkey": 11}
    for entry, place, fact in BAD_CLAIMS:
        (line,) = refused(task(tmp_path / "in", de_dev=[good, entry]), tmp_path / "out")
        assert line.startswith(f"de_dev.json: {place}") and fact in line
    for paper, place, fact in BAD_PAPERS:
        source = task(tmp_path / "in", collection=[*COLLECTION, paper])
        (line,) = refused(source, tmp_path / "out")
        assert line.startswith(f"collection_data.json: {place}") and fact in line
    for content, place, fact in [
        (b'[\n{"index": 1,\n]', "de_dev.json:3: ", "JSON"),
        (b'["\xff"]', "de_dev.json:1: ", "byte 0xff at byte 3"),
    ]:
        (line,) = refused(task(tmp_path / "in", de_dev=content), tmp_path / "out")
        assert line.startswith(place) and fact in line


BAD_PAPERS = [
    ({"title": "t"}, "entry 5: pubkey: ", ""),
    ({"pubkey": "11", "title": "t"}, "entry 5: pubkey: '11' ", "entry 1"),
]


def translations(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_translations_by_index_language_and_split(tmp_path: Path) -> None:
    file = translations(
        tmp_path / "t.jsonl",
        {"index": 0, "lang": "de", "split": "train", "translation": "otters like tea"},
        {"index": 0, "lang": "DE", "split": "dev", "translation": "seals doze"},
        {"index": "0", "lang": "fr", "split": "dev", "translation": "seals"},
        {"index": 0, "lang": "de", "split": "test", "translation": "who knows"},
    )
    _, notes = prepare(task(tmp_path / "in"), tmp_path / "out", file)
    assert notes == [
        "train: 1 of 2 de and fr claims not translated",
        "test: 1 of 2 de and fr claims not translated",
    ]
    found = {c.id: c.translation for part in loaded(tmp_path / "out").values() for c in part}
    assert {claim: text for claim, text in found.items() if text} == {
        "train-de-0": "otters like tea",
        "dev-de-0": "seals doze",
        "dev-fr-0": "seals",
        "test-de-0": "who knows",
    }


@pytest.mark.parametrize(
    ("row", "field", "facts"),
    [
        ({"index": 9}, "index", ["'train-de-9'"]),
        ({}, "index", ["'train-de-0'", "line 1"]),
        ({"index": None}, "index", []),
        ({"lang": " "}, "lang", []),
        ({"split": None}, "split", []),
    ],
)
def test_a_translation_that_fits_no_claim_is_refused(
    tmp_path: Path, row: Any, field: str, facts: list[str]
) -> None:
    first = {"index": 0, "lang": "de", "split": "train", "translation": "a"}
    file = translations(tmp_path / "t.jsonl", first, {**first, **row})
    (line,) = refused(task(tmp_path / "in"), tmp_path / "out", file)
    assert line.startswith(f"{file}:2: {field}: ")
    assert all(fact in line for fact in facts), line


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("offline")
def test_a_hub_set_becomes_the_same_data_set(tmp_path: Path) -> None:
    collection = [dict(paper) for paper in COLLECTION]
    # A column has one type, so the list of authors is a string here.
    collection[1]["authors"] = "Ng, A."
    name = str(hub(tmp_path / "set", collection))
    notes = prepare_hub(name, tmp_path / "hub")
    prepare(task(tmp_path / "in", collection=collection), tmp_path / "files")
    assert notes == []
    for path in ("queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv"):
        assert (tmp_path / "hub" / path).read_bytes() == (tmp_path / "files" / path).read_bytes()
    hub_data, files = (load(tmp_path / name, "dev") for name in ("hub", "files"))
    assert hub_data.sources == files.sources
    # This set's ids are texts, because one of them is.
    assert hub_data.numeric_ids == frozenset() and files.numeric_ids == {"11", "33", "44"}


@pytest.mark.usefixtures("offline")
def test_parts_and_problems_of_a_hub_set_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = [{**paper, "authors": ""} for paper in COLLECTION]
    name = str(hub(tmp_path / "set", collection, drop=("test", "fr")))
    notes = prepare_hub(name, tmp_path / "out")
    assert len(notes) == 5 and any(note.startswith(f"{name}/test/de: ") for note in notes)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for wrong, *facts in [
        (hub(tmp_path / "a", collection, drop=("collection",)), "'collection'"),
        (hub(tmp_path / "b", collection, drop=("en", "de", "fr", "test")), tmp_path / "b"),
        (
            hub(tmp_path / "c", collection[:3]),
            f"{tmp_path / 'c'}/fr/train: entry 1: pubkey: ",
            "'44'",
        ),
        # The name is the user's own; the library's message is not repeated with the secret.
        ("nobody/hf_secret", "nobody/hf_secret: ", "HF_TOKEN"),
    ]:
        with refusals.refused(UserError, *facts) as error:
            prepare_hub(str(wrong), tmp_path / "x")
        assert "\n" not in str(error.value)
        assert "hf_secret" not in str(error.value).removeprefix("nobody/hf_secret")
    assert not (tmp_path / "x").exists()


def test_a_folder_with_other_files_is_refused_before_the_hub_is_asked(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt"):
        prepare_hub("a/b", tmp_path)
