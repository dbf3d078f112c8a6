"""A finder ranks near siblings by the details of a post, in an index of any age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.finder import Answer, Finder
from claim2source.models import ModelConfig
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine, open_index
from claim2source.search.growing import grow, open_for_writing
from claim2source.systems.read import read_staged
from claim2source.text import Rendering

RATES = [1.2, 1.9, 3.7, 5.2, 2.4, 1.6]
POST = "Masken in Schulen: Ausbrüche 3,7-mal seltener"


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An index of near siblings, which differ in one number."""
    folder = tmp_path_factory.mktemp("siblings") / "idx"
    model = ModelConfig(
        name=str(tiny_folder),
        pooling="mean",
        max_length=32,
    )
    rendering = Rendering("original", "title_abstract")
    dense = Dense(model, rendering=rendering, device="cpu")
    papers: list[Paper] = []
    for number, rate in enumerate(RATES):
        abstract = f"Masks cut outbreaks in schools. The rate ratio was {rate}."
        source = Source(f"p{number}", "Masks", abstract)
        papers.append(Paper(source))
    writer = open_for_writing(folder, dense)
    grow(writer, papers, dense)
    writer.close()
    return open_index(folder)


def found(answer: Answer) -> list[str]:
    """Return the ids of an answer's papers."""
    return [match.paper.source.id for match in answer.matches]


def test_the_sibling_with_the_post_s_number_comes_first(engine: Engine) -> None:
    finder = Finder(engine)
    post = Post("0", POST, "de")
    (answer,) = finder.find([post], 1)
    assert found(answer) == ["p2"]
    first = answer.matches[0]
    assert first.score == first.parts["fused"]
    assert answer.of is not None
    assert answer.of.settings["details"] == 30


def test_an_index_of_before_is_read_as_it_is(engine: Engine) -> None:
    old = open_index(engine.location)
    # Older ones keep no vectors of sentences.
    old.manifest = replace(old.manifest, sentences=0)
    finder = Finder(old, sentences=False)
    post = Post("0", POST, "de")
    (answer,) = finder.find([post], 1)
    assert found(answer) == ["p2"]


def test_only_posts_with_details_read_more_papers_than_they_list(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = engine.fetch_with_sentences
    read: list[int] = []

    def counted(ids: Sequence[str]) -> tuple[dict[str, Paper], dict[str, np.ndarray]]:
        read.append(len(ids))
        return fetch(ids)

    monkeypatch.setattr(engine, "fetch_with_sentences", counted)
    for text in (POST, "Masken in Schulen"):
        post = Post("0", text, "de")
        Finder(engine).find([post], 1)
    assert read == [len(RATES), 1]


def test_without_details_the_ranking_is_the_index_s_own(engine: Engine) -> None:
    german = Post("0", "Masken in Schulen", "de")
    english = Post("1", "the rate of outbreaks", "en")
    posts = [german, english]
    claims = [post.claim(post.lang) for post in posts]
    fused = engine.find(claims).fused
    for answer in Finder(engine).find(posts, 6):
        scores = {match.paper.source.id: match.score for match in answer.matches}
        assert scores == fused.scored(answer.post.id)


def test_a_pipeline_says_itself_whether_details_count(engine: Engine, tmp_path: Path) -> None:
    retrieve = "retrieve: {hybrid: [{bm25: {}}, {dense: checkpoint}]}\nstages: [{rerank: details"
    firsts = {}
    for depth in (1, 30):
        file = tmp_path / f"{depth}.yaml"
        file.write_text(f"{retrieve}, depth: {depth}}}]\n")
        pipeline = read_staged(file)
        finder = Finder(engine, pipeline)
        post = Post("0", POST, "de")
        (answer,) = finder.find([post], 3)
        first = answer.matches[0]
        firsts[depth] = first.paper.source.id
        assert "rerank details" in first.parts

    claim = Post("0", POST).claim("de")
    fused = engine.find([claim]).fused
    index_first = fused.sources("0", 1)
    assert firsts == {1: index_first[0], 30: "p2"}
