"""Dates, markup and languages as registries write them."""

from __future__ import annotations

import time

import pytest

from claim2source.core.records import Source
from claim2source.data.markup import without_markup
from claim2source.data.papers import (
    Paper,
    iso_language,
    tidy,
    web_address,
    without_emails,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Masks &amp; <i>E. coli</i>", "Masks & E. coli"),
        # Entities that stand for signs are no tags, and neither are signs themselves.
        ("p &lt; 0.05 and q &gt; 0.1", "p < 0.05 and q > 0.1"),
        ("p<0.05 and q>0.1, a < b > c, x <T> y", "p<0.05 and q>0.1, a < b > c, x <T> y"),
        ('H<sub>2</sub>O <mml:math xmlns:mml="http://x"><mml:mi>C</mml:mi></mml:math>', "H2O C"),
        ("a <jats:inline-formula>x</jats:inline-formula> <inline-formula>", "a x "),
        ("x<tex-math id='m'>\\frac{1}{2}</tex-math>", "x "),
        (
            "<jats:title>Abstract</jats:title><jats:sec><jats:title>Aim</jats:title>"
            "<jats:p>One.</jats:p><jats:p>Two.</jats:p></jats:sec>",
            "Aim: One. Two.",
        ),
    ],
)
def test_tags_are_removed_before_entities_are_read(text: str, expected: str) -> None:
    assert " ".join(without_markup(text).split()) == expected.strip()


def test_markup_of_a_hostile_text_takes_linear_time() -> None:
    begin = time.perf_counter()
    for part in ('<a b="', "<tex-math>", "<a b='c' ", "<i ", "&amp", "<title>abstract "):
        without_markup(part * 30_000)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("text", "code"),
    [("eng", "en"), ("en-US", "en"), ("English", "en"), ("deu", "de"), ("", ""), ("qqq", "")],
)
def test_languages(text: str, code: str) -> None:
    assert iso_language(text) == code


@pytest.mark.parametrize(
    ("field", "address"),
    [
        ("https://example.org/a https://example.org/b", "https://example.org/a"),
        ("https://example.org/a;https://example.org/b", "https://example.org/a"),
        ("see http://example.org/a, and more", "http://example.org/a"),
        ("ftp://example.org/x https://example.org/a_(b)", "https://example.org/a_(b)"),
        ("(https://example.org/a).", "https://example.org/a"),
        ('<a href="https://example.org/a">here</a>', "https://example.org/a"),
        ("https://example.org/a?x=1;y=2,3", "https://example.org/a?x=1;y=2,3"),
        ("javascript:alert(1)", ""),
        ("mailto:jane@example.org", ""),
    ],
)
def test_the_first_address_of_a_field_is_the_link(field: str, address: str) -> None:
    assert web_address(field) == address
    paper = tidy(Paper(Source("1", "T"), url=field))
    assert paper.link == address and "@" not in paper.url


def test_the_link_of_an_old_doi_is_an_address() -> None:
    paper = Paper(Source("1", "T"), "10.1002/(sici)1097(1998)43:4<422::aid-j9>3.0.co;2-#")
    assert paper.link == "https://doi.org/10.1002/(sici)1097(1998)43:4%3C422::aid-j9%3E3.0.co;2-%23"
    # An index of 1.0 may hold what stood behind it.
    assert Paper(Source("1", "T"), "10.5555/ab.").link == "https://doi.org/10.5555/ab"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Jane Doe <jane.doe@example.org>", "Jane Doe"),
        ("Jane Doe (E-mail: jane@mail.example.ac.uk)", "Jane Doe"),
        ("Jane Doe; email: jane+x@example.org", "Jane Doe;"),
        ("Write to jane(at)example.org. We ran.", "Write to. We ran."),
        ("12 mg @ noon, p@k, x@y", "12 mg @ noon, p@k, x@y"),
    ],
)
def test_addresses_of_e_mail_are_removed(text: str, expected: str) -> None:
    assert without_emails(text) == expected


def test_no_author_has_an_address_of_e_mail() -> None:
    authors = ("Jane Doe jane@example.org", "roe@example.org", "Richard Roe")
    assert tidy(Paper(Source("1", "T", authors=authors))).source.authors == (
        "Jane Doe",
        "Richard Roe",
    )
