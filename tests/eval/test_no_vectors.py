"""`index --no_vectors`, and what the other programs make of such an index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from claim2source.eval.find import main as find
from claim2source.eval.index import main as index

from claim2source.core.errors import ConfigError, InputError
from claim2source.data.posts import Post
from claim2source.find.finder import Finder
from claim2source.search.engine import open_index
from tests.search.test_damage import trim
from tests.serve.servers import serving

POST = "claim a 3"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = ""
    for number in range(30):
        day = f"2020-0{1 + number % 9}"
        rows += f"{number},claim {'abc'[number % 3]} {number},The vaccine works well here.,{day}\n"
    path = tmp_path_factory.mktemp("papers") / "papers.csv"
    path.write_text(f"id,title,abstract,date\n{rows}")
    return path


@pytest.fixture(scope="module")
def model(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tests may move away."""
    return Path(shutil.copytree(tiny_folder, tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def made(papers: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bare") / "index"
    words = [str(papers), "--no_vectors", "--out", str(out), "--model", str(model)]
    index([*words, "--model.pooling", "mean", "--model.max_length", "32"])
    return out


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def ask(*words: str) -> str:
        capsys.readouterr()
        find(list(words))
        return capsys.readouterr().out

    return ask


def test_it_answers_and_judges_nothing_that_was_not_measured(
    made: Path, ask: Callable[..., str]
) -> None:
    rows = json.loads(ask(POST, "--index", str(made), "--json"))
    assert "3" in {row["id"] for row in rows}
    first = rows[0]
    assert first["sentence"] and set(first["parts"]) >= {"lexical", "dense"}
    assert first["index"]["settings"]["encoded_first"] > 0
    assert first["verdict"] == "not judged"
    assert (first["abstained"], first["present"], first["score"]) == (None, None, None)


def test_growing_deleting_and_retracting_keep_its_kind(
    copy: Path, papers: Path, tmp_path: Path, ask: Callable[..., str]
) -> None:
    more, gone, watch = tmp_path / "more.csv", tmp_path / "gone.txt", tmp_path / "watch.csv"
    more.write_text("id,title,abstract\n77,zebra stripes,Zebras have stripes.\n")
    index([str(more), "--out", str(copy)])
    index([str(papers), "--out", str(copy), "--no_vectors"])  # nothing is new
    gone.write_text("3\n")
    watch.write_text(
        "RetractionDate,RetractionDOI,OriginalPaperDOI,OriginalPaperPubMedID,RetractionNature\n"
        "5/12/2020,,,77,Retraction\n"
    )
    index(["--out", str(copy), "--delete", str(gone), "--retractions", str(watch)])
    engine = open_index(copy)
    assert engine.manifest.encoded_first and engine.manifest.papers == 30
    assert engine.stats().unbuilt == 0
    (first, *_) = json.loads(ask("zebra stripes", "--index", str(copy), "--json"))
    assert first["id"] == "77" and first["retracted"]
    assert "3" not in {row["id"] for row in json.loads(ask(POST, "--index", str(copy), "--json"))}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["SOURCE", "--shard", "1/2"], "shard"),
        (["SOURCE", "--launcher", "ray"], "launcher"),
        (["--re_encode", "MODEL"], "vectors"),
        (["--undo"], "vectors"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    words: list[str], key: str, papers: Path, model: Path, copy: Path
) -> None:
    names = {"SOURCE": str(papers), "MODEL": str(model)}
    given = [names.get(word, word) for word in words]
    with pytest.raises(ConfigError) as error:
        index([*given, "--no_vectors", "--out", str(copy)])
    assert len(error.value.lines) == 1 and f"{key}: " in error.value.lines[0]


def test_an_index_of_vectors_stays_one(papers: Path, model: Path, tmp_path: Path) -> None:
    words = [str(papers), "--out", str(tmp_path / "full"), "--model", str(model)]
    words += ["--model.pooling", "mean", "--model.max_length", "32"]
    index([*words, "--no_sentences"])
    with pytest.raises(ConfigError) as error:
        index([*words, "--no_vectors"])
    assert len(error.value.lines) == 1 and "vectors: " in error.value.lines[0]
    assert not open_index(tmp_path / "full").manifest.encoded_first


def test_a_damaged_part_is_one_line(copy: Path) -> None:
    largest = max((copy / "papers.lance" / "data").iterdir(), key=lambda path: path.stat().st_size)
    trim(largest)
    with pytest.raises(InputError) as error:
        find([POST, "--index", str(copy)])
    assert len(error.value.lines) == 1 and str(copy) in error.value.lines[0]


def test_without_its_model_words_alone_rank_and_all_say_so(
    copy: Path, model: Path, ask: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    post = "claim a"  # without a number, which would rank too
    by_words = open_index(copy).find([Post("0", post).claim("en")]).lexical.run.sources("0", 10)
    away = model.rename(model.parent / "away")
    try:
        rows = json.loads(ask(post, "--index", str(copy), "--json"))
        assert [row["id"] for row in rows] == list(by_words)
        assert rows[0]["index"]["settings"]["encoded_first"] == 0
        assert all("dense" not in row["parts"] and row["present"] is None for row in rows)
        assert "1 posts" in caplog.text and str(model) in caplog.text
        with serving(Finder(open_index(copy))) as host:
            answer = httpx.post(f"{host}/api/v1/find", json={"post": post}).json()
            health = httpx.get(f"{host}/health").json()
        assert [paper["id"] for paper in answer["papers"]] == list(by_words)
        assert answer["verdict"] == "not judged" and health["unencoded"] == 1
    finally:
        away.rename(model)
