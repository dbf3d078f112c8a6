"""Records of the APIs of OpenAlex and Crossref, and unknown keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Source
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from tests import refusals
from tests.data.reading import read, refused
from tests.data.test_beir import make

WORK: dict[str, Any] = {
    "id": "https://openalex.org/W1",
    "title": None,
    "display_name": 'Masks &amp; <mml:math xmlns:mml="http://x"><mml:mi>CO</mml:mi></mml:math> p &lt; 1',
    "primary_location": None,
    "locations": [{"source": None}, {"source": {"display_name": "Food &amp; <i>X</i>"}}],
    "authorships": [
        {"author": {"display_name": "Ada Lovelace"}, "raw_author_name": "A. L."},
        {"author": None, "raw_author_name": "Jane Doe"},
        {"author": None},
    ],
    "publication_year": 2021,
    "abstract_inverted_index": None,
    "abstract": "Already <jats:italic>plain</jats:italic>.",
}
OPENALEX = Paper(
    Source(
        "W1", "Masks & CO p < 1", "Already plain.", ("Ada Lovelace", "Jane Doe"), "Food & X", "2021"
    ),
    url="https://openalex.org/W1",
)
ITEM: dict[str, Any] = {
    "DOI": "10.1000/ABC",
    "title": ["Masks"],
    "subtitle": ["A <i>trial</i>"],
    "abstract": "<jats:title>Abstract</jats:title><jats:p>One.</jats:p><jats:p>Two.</jats:p>",
    "author": [{"given": "Jane", "family": "Doe"}, {"name": "The Group"}],
    "container-title": ["The Lancet"],
    "issued": {"date-parts": [[2020, 5]]},
    "URL": "https://doi.org/10.1000/abc",
    "language": "en",
}
CROSSREF = Paper(
    Source(
        "10.1000/abc",
        "Masks: A trial",
        "One. Two.",
        ("Jane Doe", "The Group"),
        "The Lancet",
        "2020-05",
    ),
    "10.1000/abc",
    "https://doi.org/10.1000/abc",
    "en",
)
PAGE = {"meta": {"count": 2}, "results": [WORK], "group_by": []}
ANSWER = {"status": "ok", "message": {"total-results": 1, "items": [ITEM]}}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "paper"),
    [
        (WORK, OPENALEX),
        ([WORK], OPENALEX),
        (PAGE, OPENALEX),
        (ITEM, CROSSREF),
        (ANSWER, CROSSREF),
        ({"items": [ITEM]}, CROSSREF),
    ],
)
def test_what_an_api_prints(
    tmp_path: Path, value: object, paper: Paper, indent: int | None
) -> None:
    papers, notes = read(tmp_path / "a.json", json.dumps(value, indent=indent))
    assert papers == [paper]
    assert f"markup was removed: {3 if paper is OPENALEX else 2} (" in notes


def test_pages_one_a_line_and_a_list_of_records(tmp_path: Path) -> None:
    second = {**PAGE, "results": [{**WORK, "id": "https://openalex.org/W2"}]}
    papers, _ = read(tmp_path / "a.jsonl", f"{json.dumps(PAGE)}\n{json.dumps(second)}\n")
    assert [paper.source.id for paper in papers] == ["W1", "W2"]
    text = '[\n{"_id": "1", "title": "T"},\n{"_id": "2", "title": "U"}\n]'
    assert len(read(tmp_path / "b.json", text)[0]) == 2
    assert read(tmp_path / "c.json", '{"meta": {}, "results": []}')[0] == []


def test_items_of_reference_managers(tmp_path: Path) -> None:
    item = {**ITEM, "DOI": None, "id": "x1", "title": "Masks", "container-title": "N"}
    paper = read(tmp_path / "a.json", json.dumps([item], indent=2))[0][0]
    assert (paper.source.id, paper.source.venue, paper.doi) == ("x1", "N", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"data": [{"paperId": "x", "year": 2020}, {}]}', "work 2: title: "),
        ('{\n "_id": "1",\n "title": }', "a.json:3: "),
        ('{"_id": "1", "title":\n{"_id": "2", "title": "x"}\n', "a.json:1: "),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, reason: str) -> None:
    refused(tmp_path / "a.json", text, reason)


UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"_id": "1", "title": "T", "abstract": "x"}, "abstract: ", "text missing"),
    ({"_id": "1", "title": "T", "text": "x", "doi": "10.1000/x"}, "doi: ", "metadata missing"),
]


@pytest.mark.parametrize(("record", "key", "missing"), UNKNOWN)
def test_an_unknown_key_beside_a_missing_one_is_refused(
    tmp_path: Path, record: dict[str, Any], key: str, missing: str
) -> None:
    refused(tmp_path / "a.jsonl", json.dumps(record), key, missing)
    folder = make(tmp_path / "set", [record], [{"_id": "q1", "text": "x"}], {"dev": ["q1\t1\t1"]})
    with refusals.refused(InputError, key, missing):
        load(folder, "dev")


def test_a_language_of_a_claim_outside_its_metadata_is_refused_or_counted(tmp_path: Path) -> None:
    """Otherwise a German claim would be treated as English."""
    claim = {"_id": "q1", "text": "x", "lang": "de"}
    folder = make(tmp_path, [{"_id": "1", "title": "T"}], [claim], {"dev": ["q1\t1\t1"]})
    with refusals.refused(InputError, "lang: ", "metadata missing"):
        load(folder, "dev")
    assert "ignored: 1 (first: queries.jsonl:1)" in load(folder, "dev", lenient=True).notes[0]
