"""Source representations and authors without affiliation debris."""

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Source
from claim2source.text import Rendering, clean_authors, render_source

FULL = Source("p", "Vaccines work", "We show it.", ("Jane Doe", "Li Wei"), "The Journal")


def test_title_and_abstract_are_two_sentences():
    assert render_source(FULL, "title_abstract") == "Vaccines work. We show it."
    assert render_source(FULL, "title") == "Vaccines work"


@pytest.mark.parametrize("end", [".", "?", "!"])
def test_a_title_that_ends_a_sentence_gets_no_second_full_stop(end):
    source = Source("p", f"Vaccines work{end}", "We show it.")
    assert render_source(source, "title_abstract") == f"Vaccines work{end} We show it."


@pytest.mark.parametrize(
    ("title", "abstract", "text"), [(" T ", "", "T"), ("", " A\n", "A"), ("", "", "")]
)
def test_an_absent_title_or_abstract_leaves_no_full_stop(title, abstract, text):
    assert render_source(Source("p", title, abstract), "title_abstract") == text


def test_the_default_puts_metadata_before_the_abstract():
    expected = (
        "Title: Vaccines work\nVenue: The Journal\nAuthors: Jane Doe, Li Wei\nAbstract: We show it."
    )
    assert render_source(FULL) == render_source(FULL, "metadata") == expected
    assert Rendering().source_texts([FULL]) == [expected]


def test_the_papers_order_is_one_setting_away():
    assert render_source(FULL, "metadata_paper_order") == (
        "Title: Vaccines work\nAbstract: We show it.\nAuthors: Jane Doe, Li Wei\nVenue: The Journal"
    )


@pytest.mark.parametrize("form", ["metadata", "metadata_paper_order"])
def test_an_empty_field_leaves_no_label(form):
    source = Source("p", "T", " ", ("Tongji Hospital", " "), " \n")
    assert render_source(source, form) == "Title: T"


def test_the_released_forms_are_one_line_and_keep_what_is_empty():
    many = Source("p", "T.", "A", tuple("abcdefga") + ("Li Wei, Wuhan", "& Tongji Hospital"), "V")
    # The first three, and of the last three those who are not among them; debris stays.
    authors = "a, b, c, Li Wei, & Tongji Hospital"
    assert render_source(many, "released") == f"T. A Venue: V Authors: {authors}"
    assert render_source(many, "released_unlabelled") == f"T. A V {authors}"
    six = Source("p", "T", "", ("a", "b", "a", "d", "e", "a"))
    assert render_source(six, "released") == "T  Venue:  Authors: a, b, a, d, e, a"
    assert render_source(Source("p", "T", "A"), "released_unlabelled") == "T A"


def test_an_unknown_form_is_refused_with_what_is_allowed():
    allowed = "title_abstract, metadata, metadata_paper_order"
    with pytest.raises(ConfigError, match=f"sources: 'titles' .*{allowed}"):
        render_source(FULL, "titles")
    with pytest.raises(ConfigError, match=f"rendering.sources: 'titles' .*{allowed}"):
        Rendering(sources="titles")


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("Jane Doe", "Jane Doe"),
        ("  Jane \t Doe ", "Jane Doe"),
        ("Jane Doe, University of X", "Jane Doe"),
        ("Jane Doe, Department of Y, Z", "Jane Doe"),
        ("van der Berg, J.", "J. van der Berg"),
        ("Li Wei1,2", "Li Wei"),
        ("Li Wei 1 *", "Li Wei"),
        ("1 Li Wei†", "Li Wei"),
        ("Li Wei¹²", "Li Wei"),
        ("O'Neil-Núñez Å.", "O'Neil-Núñez Å."),
        ("Mary Clinton", "Mary Clinton"),  # "clin" is no clinic
        ("Vincent Incze", "Vincent Incze"),  # "Inc" is a word of its own
        ("& Tongji Hospital", None),
        ("& Wuhan", None),  # what is left of an affiliation, by its ampersand
        ("Tongji Hospital", None),
        ("UNIVERSITÄT Leipzig", None),
        ("1 Department of Medicine", None),
        ("Center for Disease Control", None),
        ("Institute Pasteur", None),
        ("a@b.org", None),
        (", Leipzig", None),
        ("12*", None),
        ("", None),
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
        ("ABCDEF", "ABCDEF"),
        ("ABCDEFG", "ABCEFG"),
        ("ABCDEFGHIJ", "ABCHIJ"),
        ("ABA", "AB"),
        ("AABCDEF", "ABCDEF"),  # six people: a repeated name displaces nobody
        ("ABCDEFGA", "ABCEFG"),
    ],
)
def test_first_and_last_three_once_each_in_order(given, kept):
    assert clean_authors(names(given)) == names(kept)


def test_debris_takes_no_place_among_the_first_and_last():
    given = ["Tongji Hospital", *names("ABCDEFG"), "a@b.org"]
    assert clean_authors(given) == names("ABCEFG")


def test_keep_says_how_many_on_each_side():
    assert clean_authors(names("ABCD"), keep=1) == names("AD")
