"""Source representations and authors without affiliation debris."""

import pytest

from claim2source.core.records import Source
from claim2source.text import Rendering, clean_authors, render_source

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
    # The first three, and of the last three those who are not among them; debris stays.
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
        ("Vincent Incze", "Vincent Incze"),  # "Inc" is a word of its own
        ("& Tongji Hospital", None),
        ("& Wuhan", None),  # what is left of an affiliation, by its ampersand
        ("a@b.org", None),
        (", Leipzig", None),
    ],
)
def test_debris(entry, name):
    assert clean_authors([entry]) == (() if name is None else (name,))


def names(text):
    return tuple(f"Name {letter}" for letter in text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("ABCDEFG", "ABCEFG"),
        ("AABCDEF", "ABCDEF"),  # six people: a repeated name displaces nobody
    ],
)
def test_first_and_last_three_once_each_in_order(given, kept):
    assert clean_authors(names(given)) == names(kept)


def test_debris_takes_no_place_among_the_first_and_last():
    given = ["Tongji Hospital", *names("ABCDEFG"), "a@b.org"]
    assert clean_authors(given) == names("ABCEFG")
    assert clean_authors(names("ABCD"), keep=1) == names("AD")
