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


def answer(name: str, scored: dict[int, float], doi: str = "", retracted: str = "") -> Answer:
    ranked = sorted(scored, key=lambda key: -scored[key])
    matches = []
    for rank, key in enumerate(ranked, 1):
        source = Source(str(key), f"title of paper number {key}", "")
        paper = Paper(source, doi=doi and f"{doi}{key}", retracted=retracted)
        state = IndexState(1, name, {}, name)
        matches.append(Match(rank, paper, 1 / rank, {LEXICAL: scored[key]}, "", of=state))
    return Answer(Post("0", "post"), "en", tuple(matches), verdict="found", present=0.9)


def test_other_models_are_fused_by_rank_and_nothing_judges_them() -> None:
    first, second = answer("a", {1: 7.0, 2: 5.0}), answer("b", {3: 9.0, 4: 8.0})
    fused = fuse_answers([first, replace(second, warnings=("w",))], 3)
    assert [(match.rank, match.paper.source.id) for match in fused.matches] == [
        (1, "3"),
        (2, "1"),
        (3, "4"),
    ]
    assert (fused.verdict, fused.present, fused.abstained) == (NOT_JUDGED, None, None)
    assert fused.warnings == ("w",)


def test_a_paper_in_two_indexes_is_shown_once_but_an_id_of_two_papers_twice() -> None:
    first = answer("a", {1: 0.5}, doi="10.1000/a")
    (match,) = fuse_answers([first, answer("b", {1: 0.5}, "10.1000/a", "retracted")], 5).matches
    assert match.paper.retracted and match.of == first.matches[0].of
    other = fuse_answers([first, answer("b", {1: 0.5}, doi="10.1000/b")], 5)
    assert len(other.matches) == 2
    assert as_bibtex([other]).count("@article") == 2


@pytest.fixture(scope="module")
def shards(index: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The papers of the index in two; the second one has a copy of one of the first."""
    manifest = open_index(index).manifest
    root = tmp_path_factory.mktemp("several")
    folders = []
    for number, papers in enumerate((PAPERS[::2], [*PAPERS[1::2], PAPERS[2]])):
        assert manifest.model is not None
        from claim2source.search.dense import Dense

        dense = Dense(manifest.model, rendering=manifest.rendering, device="cpu")
        dense.encoder.in_bfloat16 = lambda dense=dense: dense.encoder  # type: ignore[attr-defined]
        engine = open_for_writing(root / f"shard{number}", dense)
        grow(engine, papers, dense)
        engine.note(names=open_index(index).manifest.names)
        engine.close()
        folders.append(str(root / f"shard{number}"))
    return folders


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    def run(*words: str) -> str:
        main([POST, *words, "--device", "cpu", "--store", str(tmp_path / "store")])
        return capsys.readouterr().out

    return run


def options(locations: list[str]) -> list[str]:
    return [f"--index={location}" for location in locations]


def test_shards_answer_as_the_whole_index(
    ask: Callable[..., str], index: str, shards: list[str]
) -> None:
    whole = json.loads(ask("--json", "--k", "13", "--index", index))
    papers = json.loads(ask("--json", "--k", "13", *options(shards)))
    assert [paper["id"] for paper in papers] == [paper["id"] for paper in whole]
    for paper, expected in zip(papers, whole, strict=True):
        assert paper["index"].pop("name") in ("shard0", "shard1")
        assert paper["parts"] == pytest.approx(expected["parts"], abs=0.02)
        for name in ("sentence", "post_sentence", "words", "verdict", "retracted"):
            assert paper[name] == expected[name], name
    rows = list(csv.DictReader(io.StringIO(ask("--csv", "--k", "13", *options(shards)))))
    assert [row["id"].lstrip("'") for row in rows] == [paper["id"] for paper in papers]
    assert {row["index"] for row in rows} == {"shard0", "shard1"}
    assert "name" not in whole[0]["index"]


def test_a_lost_index_is_named_and_the_others_answer(
    ask: Callable[..., str], shards: list[str], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    text = ask(*options([shards[0], str(gone)]))
    assert "gone" in text and "shard0" in text
    with pytest.raises(UserError):
        ask(*options([str(gone), f"{gone}2"]))


def test_an_index_that_is_damaged_while_it_is_searched_is_left_out(
    shards: list[str], tmp_path: Path
) -> None:
    copy = shutil.copytree(shards[1], tmp_path / "copy")
    finder = Finder(open_indexes([shards[0], str(copy)]))
    (before,) = finder.find([Post("0", POST)], 20)
    assert before.lost == () and len(before.matches) == len(PAPERS)
    for file in (copy / "papers.lance" / "data").iterdir():
        os.truncate(file, 10)
    (left,) = finder.find([Post("0", f"{POST} Zola")], 20)
    assert (left.indexes, left.lost) == (("shard0", "copy"), ("copy",))
    assert {match.of.name for match in left.matches if match.of} == {"shard0"}
    assert len(left.matches) == len(PAPERS[::2])


@pytest.mark.parametrize("words", [["--at", "3"], ["--index", "{0}"]])
def test_what_does_not_fit_several_indexes_is_refused(
    ask: Callable[..., str], shards: list[str], words: list[str]
) -> None:
    with pytest.raises(UserError):
        ask(*options(shards), *(word.format(*shards) for word in words))


def test_a_mark_goes_to_each_index_or_to_one_file_of_all(
    ask: Callable[..., str], shards: list[str], tmp_path: Path
) -> None:
    files = [MarksFile.beside(location) for location in shards]
    ask("--mark", "p1", *options(shards))
    assert [mark.paper for file in files for mark in file.read().marks] == [None, "p1"]
    ask("--mark", "none", *options(shards))
    assert [mark.paper for file in files for mark in file.read().marks] == [None, None]
    one = tmp_path / "one.jsonl"
    ask("--mark", "p1", "--marks", str(one), *options(shards))
    marks = MarksFile(one).read()
    assert [(mark.paper, mark.index) for mark in marks.marks] == [("p1", "shard1")]
    found = [len(marked_dataset(open_index(location), marks)[0].claims) for location in shards]
    assert found == [0, 1]
    ask("--mark", "p2", *options(shards))
    assert [file.read().marks[-1].paper for file in files] == ["p2", "p2"]
    with pytest.raises(UserError):
        ask("--mark", "nowhere", *options(shards))


def test_posts_of_a_file_are_answered_by_all(
    ask: Callable[..., str], shards: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    posts = tmp_path / "posts.jsonl"
    posts.write_text("".join(json.dumps({"id": str(i), "text": POST}) + "\n" for i in range(3)))
    main(["--input", str(posts), "--json", *options(shards), "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert {paper["index"]["name"] for paper in line["papers"]} == {"shard0", "shard1"}


def test_indexes_of_other_models_are_asked_each_by_its_own(
    ask: Callable[..., str], shards: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from claim2source.search.dense import Dense

    manifest = open_index(shards[0]).manifest
    assert manifest.model is not None
    shorter = replace(manifest.model, max_length=16)
    dense = Dense(shorter, rendering=manifest.rendering, device="cpu")
    engine = open_for_writing(tmp_path / "other", dense)
    grow(engine, PAPERS, dense)
    engine.close()
    locations = [*shards, str(tmp_path / "other")]
    papers = json.loads(ask("--json", "--k", "20", *options(locations)))
    ids = [paper["id"] for paper in papers]
    assert len(set(ids)) == len(ids) == len(PAPERS)
    assert {paper["index"]["name"] for paper in papers[:2]} >= {"other"}
    assert {paper["verdict"] for paper in papers} == {NOT_JUDGED}
    assert len(open_indexes(locations).others) == 1
    with pytest.raises(UserError):
        ask("--threshold", "0.5", *options(locations))
    words = tmp_path / "de-en"
    words.write_text(DING, encoding="utf-8")
    main([GERMAN, "--lang=de", f"--translator.words=de={words}", "--json", *options(locations)])
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["searched"], first["untranslated"]) == (ENGLISH, False)
    # An id of two papers is ambiguous.
    engine = open_for_writing(tmp_path / "third", dense)
    grow(engine, [Paper(Source("p1", "Quite another paper of ours"), "10.1000/z")], dense)
    engine.close()
    with pytest.raises(UserError):
        ask("--mark", "p1", *options([shards[1], str(tmp_path / "third")]))
