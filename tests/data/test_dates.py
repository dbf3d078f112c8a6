"""Dates in the formats of people and registries, and in ours."""

from __future__ import annotations

import pytest

from claim2source.data.dates import first_day, iso_date, last_day, stored_date


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
        # Two possible days, unless there are dots or a number is not a month.
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
    ("date", "iso"),
    [
        ("2020", "2020"),
        ("2020-3", "2020-03"),
        ("2020-03-05T10:00:00Z", "2020-03-05"),
        ("20200305", "2020-03-05"),
        ("2020 Mar 5", "2020-03-05"),
        ("March 5th, 2020", "2020-03-05"),
        ("5. März 2020", "2020-03-05"),
        ("05.03.2020", "2020-03-05"),
        ("03/2020", "2020-03"),
        ("3 2020", "2020-03"),
        ("2020 Mar-Apr", "2020-03"),
        ("1998 Dec-1999 Jan", "1998-12"),
        ("Spring 2020", "2020"),
        ("2020 Winter", "2020"),
        ("2019-2020", "2019"),
        ("c2020", "2020"),
        # Two possible days; the same day either way; a number that is not a month.
        ("03/05/2020", "2020"),
        ("05/05/2020", "2020-05-05"),
        ("03/25/2020", "2020-03-25"),
        # Days and months that do not exist.
        ("2020-02-30", "2020-02"),
        ("2020-00-00", "2020"),
        ("2020-13-01", "2020"),
        ("in press", ""),
        ("", ""),
    ],
)
def test_dates_are_written_as_exactly_as_they_are_known(date: str, iso: str) -> None:
    assert iso_date(date) == iso
    assert iso_date(iso) == iso
    stored = stored_date(date)
    assert iso_date(stored) == iso
    assert (first_day(stored), last_day(stored)) == (first_day(date), last_day(date))
