"""Dates and languages as registries write them."""

from __future__ import annotations

import pytest

from claim2source.data.papers import (
    first_day,
    iso_language,
    last_day,
    plain_doi,
)


@pytest.mark.parametrize(
    ("date", "first", "last"),
    [
        ("2020-02", 20200201, 20200229),
        ("2021-02-30", 20210201, 20210228),
        ("2020-05-12T10:00:00Z", 20200512, 20200512),
        ("12020", 0, 0),
        ("", 0, 0),
        ("12 May 2020", 20200512, 20200512),
        ("Tue, 12 May 2020 10:00:00 GMT", 20200512, 20200512),
        ("12. März 2020", 20200312, 20200312),
        # Either of two days, but for a point between them or a number that is no month.
        ("05/12/2020", 20200512, 20201205),
        ("05.12.2020", 20201205, 20201205),
        ("25/12/2020", 20201225, 20201225),
        ("2019/10//undefined", 20191001, 20191031),
        ("2020, May 12", 20200512, 20200512),
        ("1589241600", 0, 0),
    ],
)
def test_what_a_date_may_mean(date: str, first: int, last: int) -> None:
    assert (first_day(date), last_day(date)) == (first, last)


@pytest.mark.parametrize(
    ("text", "code"),
    [("eng", "en"), ("en-US", "en"), ("English", "en"), ("deu", "de"), ("", ""), ("qqq", "")],
)
def test_languages(text: str, code: str) -> None:
    assert iso_language(text) == code


def test_a_doi_is_found_in_its_address() -> None:
    assert plain_doi("https://doi.org/10.1000/ABC.5") == "10.1000/abc.5"
    assert plain_doi("see arXiv") == ""
