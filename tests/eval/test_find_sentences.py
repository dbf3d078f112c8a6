"""`eval/find.py` quotes a paper's nearest sentence, and encodes no more than that needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.find.finder import Finder
from claim2source.find.findings import vectors_by_finding
from claim2source.models.prepacked import PrepackedEncoder
from claim2source.search.engine import open_index
from claim2source.search.rows import SPLIT, finding_sentences, split
from tests.eval.papers import POST


def test_the_sentence_is_the_nearest_to_the_post(ask: Callable[..., str], index: str) -> None:
    sentences = ["A vaccine works.", "Masks cut outbreaks.", "The query passage: a b."]
    encoder = open_index(index).encoder
    for post in ("vaccine works", "query passage : a b", POST):
        claim, _ = encoder.encode([post], "claim", store=None, progress=None)
        vectors, _ = encoder.encode(sentences, "source", store=None, progress=None)
        best = sentences[int(np.argmax(vectors @ claim[0]))]
        record = json.loads(ask(post, "--json"))
        assert {paper["sentence"] for paper in record if paper["id"].startswith("p")} == {best}


def batches_of(encoder: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the texts of each call of `encode`."""
    encode, batches = encoder.encode, list[list[str]]()

    def watched(texts: list[str], *rest: object, **options: object) -> object:
        batches.append([*texts])
        return encode(texts, *rest, **options)

    monkeypatch.setattr(encoder, "encode", watched)
    return batches


def test_sentences_that_an_index_keeps_are_not_encoded_again(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_index(index)
    batches = batches_of(engine.encoder, monkeypatch)

    def sentences() -> dict[str, str]:
        batches.clear()
        engine._on_demand = None  # forget what was encoded before
        (answer,) = Finder(engine).find([Post("0", POST)], 20)
        return {match.paper.source.id: match.sentence for match in answer.matches}

    expected = sentences()
    assert batches == [[POST]] and len(set(expected.values())) > 1
    for version in (0, SPLIT + 1):
        engine.manifest = replace(engine.manifest, sentences=version)
        assert sentences() == expected and sum(map(len, batches)) > 3


def test_vectors_of_other_sentences_are_not_taken_for_those_of_findings(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_index(index)
    paper = Paper(
        Source("p1", "", "Methods. A vaccine works. Masks cut outbreaks. So? Query: a b.")
    )
    assert len(split(paper)) == 5 > len(finding_sentences(paper)) == 2
    encoder = engine.encoder
    batches = batches_of(encoder, monkeypatch)

    def answer(texts: list[str]) -> tuple[list[str], list[str]]:
        vectors = encoder.encode(texts, "source", store=None, progress=None)[0]
        read = lambda ids: (dict.fromkeys(ids, paper), dict.fromkeys(ids, vectors))  # noqa: E731
        monkeypatch.setattr(engine, "fetch_with_sentences", read)
        batches.clear()
        engine._on_demand = None
        (answer,) = Finder(engine).find([Post("0", POST)], 3)
        return [match.sentence for match in answer.matches], sum(batches, [])

    expected = answer(finding_sentences(paper))
    assert expected[1] == [POST]
    # Of another version of the paper, or of its findings.
    for texts in (split(paper), split(paper)[:3]):
        assert answer(texts) == (expected[0], [POST, *finding_sentences(paper)])


def test_a_finding_is_quoted_and_the_sentence_of_the_post_that_it_answers(index: str) -> None:
    engine = open_index(index)
    abstract = "Background. Masks may cut outbreaks. We asked 12 schools. Vaccines. Conclusion."
    papers = {f"p{i}": Paper(Source(f"p{i}", "", abstract if i == 1 else "")) for i in range(13)}
    engine.fetch_with_sentences = lambda ids: (papers, {})  # type: ignore[method-assign]
    posts = ("Masks may cut outbreaks", "Masks may cut outbreaks. Good morning. Vaccines work!")
    for post in posts:
        (answer,) = Finder(engine).find([Post("0", post)], 13)
        (match,) = [match for match in answer.matches if match.paper.source.id == "p1"]
        # The paper's premise is nearer, but is not a finding.
        assert match.sentence == "We asked 12 schools."
        line = ["Masks may cut outbreaks.", "Good morning.", "Vaccines work!"]
        vectors, _ = engine.encoder.encode(
            [*line, match.sentence], "claim", store=None, progress=None
        )
        nearest = line[int(np.argmax(vectors[:3] @ vectors[3]))]
        assert match.post_sentence == ("" if post == posts[0] else nearest)


def test_a_copyright_line_is_not_a_finding_of_an_older_index(index: str) -> None:
    engine = open_index(index)
    abstract = "We asked 12 schools. Masks cut outbreaks there. Copyright © 2020 Elsevier B.V."
    paper = Paper(Source("p1", "", f"{abstract} All rights reserved by schools. Gel does not."))
    noticed = replace(paper, source=replace(paper.source, abstract=abstract))
    for stored in (noticed, paper):
        papers = {
            f"p{i}": replace(stored, source=replace(stored.source, id=f"p{i}")) for i in range(13)
        }
        vectors = engine.encoder.encode(
            finding_sentences(stored), "source", store=None, progress=None
        )[0]
        read = (papers, dict.fromkeys(papers, vectors))
        engine.fetch_with_sentences = lambda ids, read=read: read  # type: ignore[misc]
        (answer,) = Finder(engine).find([Post("0", "Copyright 2020 Elsevier B.V. rights")], 13)
        for match in answer.matches:
            assert match.sentence and "Elsevier" not in match.sentence
            assert "Elsevier" in match.paper.source.abstract


def test_a_post_and_its_sentences_are_one_batch_without_transformers(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # with a GPU transformers runs
    engine = open_index(index)
    assert isinstance(engine.encoder, PrepackedEncoder)
    batches = batches_of(engine.encoder, monkeypatch)
    Finder(engine).find([Post("0", f"{POST}. Good morning.")], 3)
    assert batches == [[f"{POST}. Good morning.", f"{POST}.", "Good morning."]]


def test_a_paper_that_is_nothing_but_a_notice_is_not_quoted(index: str) -> None:
    notice = "© 2020 Elsevier B.V. All rights reserved."
    mixed = f"Masks cut outbreaks. {notice}"
    papers = {
        "notice": Paper(Source("notice", "", notice)),
        "mixed": Paper(Source("mixed", "", mixed)),
    }
    findings = vectors_by_finding(open_index(index), papers, {})
    assert findings["notice"][0] == [] and findings["mixed"][0] == ["Masks cut outbreaks."]
