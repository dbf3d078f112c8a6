"""Claims and sources in all their forms, rewritings."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Source
from claim2source.text import ClaimForm, Rendering, clean_authors, render_claim, render_source
from claim2source.text.views import (
    claim_parts,
    missing_translations,
    read_rewrites,
    with_claim_texts,
)

GERMAN = Claim("1", "Impfung wirkt", "de", "Vaccine works")
ENGLISH = Claim("2", "Vaccine works", "en", "Vaccine works!")
FRENCH = Claim("3", "Le vaccin marche", "fr")
BLANK = Claim("4", "Le vaccin", "fr", "")


@pytest.mark.parametrize(
    ("claim", "form", "text", "languages"),
    [
        (GERMAN, "original", "Impfung wirkt", ("de",)),
        (GERMAN, "translated", "Vaccine works", ("en",)),
        (GERMAN, "bilingual", "Impfung wirkt\nVaccine works", ("de", "en")),
        (ENGLISH, "translated", "Vaccine works", ("en",)),
        (ENGLISH, "bilingual", "Vaccine works", ("en",)),
        (FRENCH, "bilingual", "Le vaccin marche", ("fr",)),
        (GERMAN, "paired", "Impfung wirkt\nVaccine works", ("de", "en")),
        (ENGLISH, "paired", "Vaccine works\nVaccine works", ("en", "en")),
        (BLANK, "paired", "Le vaccin\nLe vaccin", ("fr", "fr")),
    ],
)
def test_forms(claim, form, text, languages):
    assert render_claim(claim, form) == text
    parts = claim_parts(claim, form)
    assert tuple(part.language for part in parts) == languages
    assert "\n".join(part.text for part in parts) == text


def test_missing_translations_name_the_claims_that_a_form_needs_them_for():
    claims = [GERMAN, ENGLISH, FRENCH, BLANK, Claim("5", "x", "en")]
    assert missing_translations(claims, "original") == []
    assert missing_translations(claims, "translated") == ["3", "4"]
    assert missing_translations(tuple(claims), "bilingual") == ["3", "4"]


def test_rendering_keeps_the_order_of_claims():
    texts = Rendering(claims="bilingual").claim_texts(iter([ENGLISH, GERMAN, FRENCH]))
    assert texts == ["Vaccine works", "Impfung wirkt\nVaccine works", "Le vaccin marche"]
    assert Rendering().claims == "original" and render_claim(GERMAN) == "Impfung wirkt"


FULL = Source("p", "Vaccines work", "We show it.", ("Jane Doe", "Li Wei"), "The Journal")


@pytest.mark.parametrize(
    ("form", "source", "text"),
    [
        ("title", FULL, "Vaccines work"),
        ("title_abstract", FULL, "Vaccines work. We show it."),
        ("title_abstract", Source("p", "Do they?", "We show it."), "Do they? We show it."),
        ("title_abstract", Source("p", "", ""), ""),
        ("metadata", Source("p", "T", " ", ("Tongji Hospital", " "), " \n"), "Title: T"),
        (
            "metadata_paper_order",
            FULL,
            "Title: Vaccines work\nAbstract: We show it.\nAuthors: Jane Doe, Li Wei\n"
            "Venue: The Journal",
        ),
    ],
)
def test_forms_of_sources(form, source, text):
    assert render_source(source, form) == text


def test_the_default_puts_metadata_before_the_abstract():
    expected = (
        "Title: Vaccines work\nVenue: The Journal\nAuthors: Jane Doe, Li Wei\nAbstract: We show it."
    )
    assert render_source(FULL) == render_source(FULL, "metadata") == expected
    assert Rendering().source_texts([FULL]) == [expected]


def test_the_released_forms_are_one_line_and_keep_what_is_empty():
    many = Source("p", "T.", "A", tuple("abcdefga") + ("Li Wei, Wuhan", "& Tongji Hospital"), "V")
    # The first three, and those of the last three that are not among them; debris is kept.
    authors = "a, b, c, Li Wei, & Tongji Hospital"
    assert render_source(many, "released") == f"T. A Venue: V Authors: {authors}"
    assert render_source(many, "released_unlabelled") == f"T. A V {authors}"
    six = Source("p", "T", "", ("a", "b", "a", "d", "e", "a"))
    assert render_source(six, "released") == "T  Venue:  Authors: a, b, a, d, e, a"
    assert render_source(Source("p", "T", "A"), "released_unlabelled") == "T A"


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("Jane Doe", "Jane Doe"),
        ("Jane Doe, University of X", "Jane Doe"),
        ("van der Berg, J.", "J. van der Berg"),
        ("1 Li Wei†", "Li Wei"),
        ("O'Neil-Núñez Å.", "O'Neil-Núñez Å."),
        ("Vincent Incze", "Vincent Incze"),  # "Inc" must be a separate word
        ("& Tongji Hospital", None),
        ("& Wuhan", None),  # the rest of an affiliation, recognised by its ampersand
        ("a@b.org", None),
        (", Leipzig", None),
    ],
)
def test_debris(entry, name):
    assert clean_authors([entry]) == (() if name is None else (name,))


def names(text):
    return tuple(f"Name {letter}" for letter in text)


@pytest.mark.parametrize(
    ("authors", "expected"),
    [
        ("", ""),
        ("ABCDEFG", "ABCEFG"),
        ("AABCDEF", "ABCDEF"),  # six people: a repeated name does not replace another one
    ],
)
def test_first_and_last_three_once_each_in_order(authors, expected):
    assert clean_authors(names(authors)) == names(expected)


def test_debris_takes_no_place_among_the_first_and_last():
    authors = ["Tongji Hospital", *names("ABCDEFG"), "a@b.org"]
    assert clean_authors(authors) == names("ABCEFG")
    assert clean_authors(names("ABCD"), keep=1) == names("AD")


CLAIMS = (
    Claim("en", "wow", "en", "never shown"),
    Claim("de", "krass", "de", "wow"),
    Claim("fr", "bof", "fr"),
    Claim("no", "left alone", "en"),
)
REWRITES = {name: f"A study of {name}." for name in ("en", "de", "fr", "elsewhere")}


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("original", ["wow\nA study of en.", "krass\nA study of de.", "bof\nA study of fr."]),
        ("translated", ["wow\nA study of en.", "wow\nA study of de.", "bof\nA study of fr."]),
        ("bilingual", ["wow\nA study of en.", "krass\nwow\nA study of de.", "bof\nA study of fr."]),
    ],
)
def test_appended_once_behind_all_else(form: ClaimForm, texts: list[str]) -> None:
    claims = with_claim_texts(CLAIMS, REWRITES, form, append=True)
    assert [render_claim(claim, form) for claim in claims] == [*texts, "left alone"]
    assert claims[3] == CLAIMS[3]


def test_read_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"_id": "a", "text": " A study. "}\n\n{"_id": 2, "text": ""}\n', "utf-8")
    assert read_rewrites(path) == {"a": "A study."}
    path.write_text('{"_id": "a", "text": 5}\n{"_id": "a", "text": "x"}\n{"text": "y"}\n', "utf-8")
    with pytest.raises(InputError) as error:
        read_rewrites(path)
    assert [(p.line, p.field) for p in error.value.problems] == [
        (1, "text"),
        (2, "_id"),
        (3, "_id"),
    ]
