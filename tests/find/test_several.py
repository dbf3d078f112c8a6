"""Several indexes that answer as one: order, one record a paper, lost indexes, marks, formats."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from claim2source.eval.find import main

from claim2source.core.errors import UserError
from claim2source.core.records import Source
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.abstention import LEXICAL
from claim2source.find.answers import as_bibtex
from claim2source.find.finder import NOT_JUDGED, Answer, Finder, IndexState, Match
from claim2source.find.marks import MarksFile, marked_dataset
from claim2source.find.several import fuse_answers
from claim2source.search.engine import open_index
from claim2source.search.growing import grow, open_for_writing
from claim2source.search.shards import open_indexes
from tests.eval import conftest
from tests.eval.papers import PAPERS, POST
from tests.eval.test_translator import DING, ENGLISH, GERMAN

index = conftest.index


def answer(
    name: str,
    scored: dict[int, float],
    doi: str = "",
    retracted: str = "",
) -> Answer:
    ranked = sorted(scored, key=lambda key: -scored[key])
    matches: list[Match] = []
    for rank, key in enumerate(ranked, 1):
        title = f"title of paper number {key}"
        source = Source(str(key), title, "")
        paper = Paper(source, doi=doi and f"{doi}{key}", retracted=retracted)
        state = IndexState(1, name, {}, name)
        parts = {LEXICAL: scored[key]}
        match = Match(
            rank,
            paper,
            1 / rank,
            parts,
            "",
            of=state,
        )
        matches.append(match)
    return Answer(
        Post("0", "post"),
        "en",
        tuple(matches),
        verdict="found",
        present=0.9,
    )


def test_other_models_are_fused_by_rank_and_nothing_judges_them() -> None:
    first = answer("a", {1: 7.0, 2: 5.0})
    second = answer("b", {3: 9.0, 4: 8.0})
    warned = replace(second, warnings=("w",))
    fused = fuse_answers([first, warned], 3)
    ranked = [(match.rank, match.paper.source.id) for match in fused.matches]
    assert ranked == [
        (1, "3"),
        (2, "1"),
        (3, "4"),
    ]
    assert fused.verdict == NOT_JUDGED
    assert fused.present is None
    assert fused.abstained is None
    assert fused.warnings == ("w",)


def test_a_paper_in_two_indexes_is_shown_once_but_an_id_of_two_papers_twice() -> None:
    first = answer("a", {1: 0.5}, doi="10.1000/a")
    same = answer("b", {1: 0.5}, "10.1000/a", "retracted")
    (match,) = fuse_answers([first, same], 5).matches
    assert match.paper.retracted
    assert match.of == first.matches[0].of

    another = answer("b", {1: 0.5}, doi="10.1000/b")
    other = fuse_answers([first, another], 5)
    assert len(other.matches) == 2
    entries = as_bibtex([other])
    assert entries.count("@article") == 2


@pytest.fixture(scope="module")
def shards(index: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The papers of the index in two; the second one has a copy of one of the first."""
    manifest = open_index(index).manifest
    root = tmp_path_factory.mktemp("several")
    folders: list[str] = []
    halves = (
        PAPERS[::2],
        [*PAPERS[1::2], PAPERS[2]],
    )
    for number, papers in enumerate(halves):
        assert manifest.model is not None
        from claim2source.search.dense import Dense

        dense = Dense(manifest.model, rendering=manifest.rendering, device="cpu")
        dense.encoder.in_bfloat16 = lambda dense=dense: dense.encoder  # type: ignore[attr-defined]
        folder = root / f"shard{number}"
        engine = open_for_writing(folder, dense)
        grow(engine, papers, dense)
        names = open_index(index).manifest.names
        engine.note(names=names)
        engine.close()
        folders.append(str(folder))
    return folders


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    def run(*words: str) -> str:
        store = str(tmp_path / "store")
        settings = ["--device", "cpu", "--store", store]
        main([POST, *words, *settings])
        return capsys.readouterr().out

    return run


def options(locations: list[str]) -> list[str]:
    return [f"--index={location}" for location in locations]


@pytest.mark.slow
def test_shards_answer_as_the_whole_index(
    ask: Callable[..., str],
    index: str,
    shards: list[str],
) -> None:
    of_whole = ask("--json", "--k", "13", "--index", index)
    whole = json.loads(of_whole)
    of_shards = ask("--json", "--k", "13", *options(shards))
    papers = json.loads(of_shards)
    ids = [paper["id"] for paper in papers]
    whole_ids = [paper["id"] for paper in whole]
    assert ids == whole_ids
    for paper, expected in zip(papers, whole, strict=True):
        shard = paper["index"].pop("name")
        assert shard in ("shard0", "shard1")
        assert paper["parts"] == pytest.approx(expected["parts"], abs=0.02)
        for name in ("sentence", "post_sentence", "words", "verdict", "retracted"):
            assert paper[name] == expected[name], name

    text = ask("--csv", "--k", "13", *options(shards))
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    row_ids = [row["id"].lstrip("'") for row in rows]
    assert row_ids == ids
    names = {row["index"] for row in rows}
    assert names == {"shard0", "shard1"}
    assert "name" not in whole[0]["index"]


def test_a_lost_index_is_named_and_the_others_answer(
    ask: Callable[..., str],
    shards: list[str],
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    locations = [shards[0], str(gone)]
    text = ask(*options(locations))
    assert "gone" in text
    assert "shard0" in text
    both_gone = [str(gone), f"{gone}2"]
    with pytest.raises(UserError):
        ask(*options(both_gone))


def test_an_index_that_is_damaged_while_it_is_searched_is_left_out(
    shards: list[str], tmp_path: Path
) -> None:
    copy = shutil.copytree(shards[1], tmp_path / "copy")
    opened = open_indexes([shards[0], str(copy)])
    finder = Finder(opened)
    (before,) = finder.find([Post("0", POST)], 20)
    assert before.lost == ()
    assert len(before.matches) == len(PAPERS)

    data = copy / "papers.lance" / "data"
    for file in data.iterdir():
        os.truncate(file, 10)
    another = Post("0", f"{POST} Zola")
    (left,) = finder.find([another], 20)
    assert left.indexes == ("shard0", "copy")
    assert left.lost == ("copy",)
    names = {match.of.name for match in left.matches if match.of}
    assert names == {"shard0"}
    assert len(left.matches) == len(PAPERS[::2])


@pytest.mark.parametrize("words", [["--at", "3"], ["--index", "{0}"]])
def test_what_does_not_fit_several_indexes_is_refused(
    ask: Callable[..., str],
    shards: list[str],
    words: list[str],
) -> None:
    more = [word.format(*shards) for word in words]
    with pytest.raises(UserError):
        ask(*options(shards), *more)


def test_a_mark_goes_to_each_index_or_to_one_file_of_all(
    ask: Callable[..., str],
    shards: list[str],
    tmp_path: Path,
) -> None:
    files = [MarksFile.beside(location) for location in shards]

    def marked() -> list[str | None]:
        """Return the papers that are marked in the files of the indexes."""
        papers: list[str | None] = []
        for file in files:
            for mark in file.read().marks:
                papers.append(mark.paper)
        return papers

    ask("--mark", "p1", *options(shards))
    assert marked() == [None, "p1"]
    ask("--mark", "none", *options(shards))
    assert marked() == [None, None]

    one = tmp_path / "one.jsonl"
    ask("--mark", "p1", "--marks", str(one), *options(shards))
    marks = MarksFile(one).read()
    placed = [(mark.paper, mark.index) for mark in marks.marks]
    assert placed == [("p1", "shard1")]
    found: list[int] = []
    for location in shards:
        opened = open_index(location)
        dataset = marked_dataset(opened, marks)[0]
        found.append(len(dataset.claims))
    assert found == [0, 1]

    ask("--mark", "p2", *options(shards))
    last = [file.read().marks[-1].paper for file in files]
    assert last == ["p2", "p2"]
    with pytest.raises(UserError):
        ask("--mark", "nowhere", *options(shards))


def test_posts_of_a_file_are_answered_by_all(
    ask: Callable[..., str],
    shards: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    posts = tmp_path / "posts.jsonl"
    records = [{"id": str(i), "text": POST} for i in range(3)]
    posts.write_text("".join(json.dumps(record) + "\n" for record in records))
    asked = ["--input", str(posts), "--json"]
    main([*asked, *options(shards), "--device", "cpu"])
    printed = capsys.readouterr().out.splitlines()
    lines = [json.loads(line) for line in printed]
    assert len(lines) == 3
    for line in lines:
        names = {paper["index"]["name"] for paper in line["papers"]}
        assert names == {"shard0", "shard1"}


@pytest.mark.slow
def test_indexes_of_other_models_are_asked_each_by_its_own(
    ask: Callable[..., str],
    shards: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from claim2source.search.dense import Dense

    manifest = open_index(shards[0]).manifest
    assert manifest.model is not None
    shorter = replace(manifest.model, max_length=16)
    dense = Dense(shorter, rendering=manifest.rendering, device="cpu")
    other = tmp_path / "other"
    engine = open_for_writing(other, dense)
    grow(engine, PAPERS, dense)
    engine.close()

    locations = [*shards, str(other)]
    text = ask("--json", "--k", "20", *options(locations))
    papers = json.loads(text)
    ids = [paper["id"] for paper in papers]
    assert len(set(ids)) == len(ids)
    assert len(ids) == len(PAPERS)
    first_names = {paper["index"]["name"] for paper in papers[:2]}
    assert first_names >= {"other"}
    verdicts = {paper["verdict"] for paper in papers}
    assert verdicts == {NOT_JUDGED}
    opened = open_indexes(locations)
    assert len(opened.others) == 1
    with pytest.raises(UserError):
        ask("--threshold", "0.5", *options(locations))

    words = tmp_path / "de-en"
    words.write_text(DING, encoding="utf-8")
    translator = f"--translator.words=de={words}"
    asked = [GERMAN, "--lang=de", translator, "--json"]
    main([*asked, *options(locations)])
    translated = json.loads(capsys.readouterr().out)
    first = translated[0]
    assert first["searched"] == ENGLISH
    assert first["untranslated"] is False
    # An id of two papers is ambiguous.
    third = tmp_path / "third"
    engine = open_for_writing(third, dense)
    unlike = Paper(Source("p1", "Quite another paper of ours"), "10.1000/z")
    grow(engine, [unlike], dense)
    engine.close()
    two = [shards[1], str(third)]
    with pytest.raises(UserError):
        ask("--mark", "p1", *options(two))
