"""Dates and languages as registries write them."""

from __future__ import annotations

import pytest

from claim2source.core.records import Source
from claim2source.data.papers import (
    Paper,
    iso_language,
    tidy,
    web_address,
    without_emails,
)


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
    # An index of 1.0 may contain text after it.
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
