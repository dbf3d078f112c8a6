"""Dates, markup and languages as registries write them."""

from __future__ import annotations

import time

import pytest

from claim2source.data.markup import without_markup
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


def test_a_doi_is_found_in_its_address() -> None:
    assert plain_doi("https://doi.org/10.1000/ABC.5") == "10.1000/abc.5"
    assert plain_doi("see arXiv") == ""
