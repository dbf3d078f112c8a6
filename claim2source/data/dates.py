"""Parse dates in any form, and write them in ISO 8601 with the precision that is known."""

from __future__ import annotations

import calendar
import re

from claim2source.core.arguments import is_digits

# Months by their first letters, in English and, where they differ, German, French and Spanish.
_MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
    "ene": 1,
    "fév": 2,
    "mär": 3,
    "mrz": 3,
    "avr": 4,
    "abr": 4,
    "mai": 5,
    "juin": 6,
    "juil": 7,
    "aoû": 8,
    "ago": 8,
    "okt": 10,
    "déc": 12,
    "dez": 12,
    "dic": 12,
}
# 2020-05-12, 2020/5, 20200512, 2020 May 12, 2020年5月12日, perhaps followed by a time.
_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?!\d(?:\D|$))"
    r"(?:(?:, |[-/. 年])?(?P<month>[0-9]{1,2}|[^\W\d_]{3,10})"
    r"(?:[-/. 月]?(?P<day>[0-9]{1,2}))?)?(?!\d)"
)
_NUMBERS = re.compile(r"(?<!\d)([0-9]{1,2})([-/. ])([0-9]{1,2})\2([0-9]{4})(?!\d)")  # 05/12/2020
_MONTH_YEAR = re.compile(r"(?<![0-9/.-])([0-9]{1,2})[-/. ]([0-9]{4})(?![0-9])")  # 05/2020
_YEAR = re.compile(r"(?<!\d)[12][0-9]{3}(?!\d)")
_WORD = re.compile(r"[^\W\d_]{3,}")
_DAY_BEFORE = re.compile(r"(?<!\d)([0-9]{1,2})(?:st|nd|rd|th|er)?[-.,/ ]*(?:(?:of|de) +)?$")
_DAY_AFTER = re.compile(r"[-.,/ ]*([0-9]{1,2})(?!\d)")


def first_day(date: str) -> int:
    """Return the first possible day of a date as a number: "2020-05" is 20200501; 0: unknown."""
    days = [_day(*meaning, last=False) for meaning in _meanings(date)]
    return min(days, default=0)


def last_day(date: str) -> int:
    """Return the last possible day of a date as a number: "2020-02" is 20200229; 0: unknown."""
    days = [_day(*meaning, last=True) for meaning in _meanings(date)]
    return max(days, default=0)


def iso_date(date: str) -> str:
    """Write a date as 2020, 2020-03 or 2020-03-05, as precisely as it is known; "" if unknown.

    An issue for several months gets the first month, a season its year, and so does "03/05/2020",
    which may be either of two days.
    """
    written = [_written(*meaning) for meaning in _meanings(date)]
    if not written:
        return ""
    first = written[0]
    if all(other == first for other in written):
        return first
    return first[:4]


def _written(year: int, month: int, day: int) -> str:
    if not month:
        return f"{year:04}"
    days = calendar.monthrange(year, month)[1]
    if not 1 <= day <= days:
        return f"{year:04}-{month:02}"
    return f"{year:04}-{month:02}-{day:02}"


def stored_date(date: str) -> str:
    """Write a date in ISO form, unless it is ambiguous or cannot be parsed: then unchanged."""
    written = {_written(*meaning) for meaning in _meanings(date)}
    if len(written) == 1:
        return written.pop()
    return " ".join(date.split())


def _meanings(date: str) -> list[tuple[int, int, int]]:
    """List the possible meanings of a date as year, month and day, 0 if unknown.

    "05/12/2020" has two, but "05.12.2020" is in December.
    """
    date = date.strip()[:100]
    match = _DATE.match(date)
    if match and int(match["year"]):
        year = int(match["year"])
        month = _month(match["month"])  # none in "2020 Spring"
        day = int(match["day"] or 0) if month else 0
        return [(year, month, day)]

    numbers = _NUMBERS.search(date)
    if numbers:
        return _orders(numbers)
    numbers = _MONTH_YEAR.match(date)
    if numbers is not None:
        month = int(numbers[1])
        year = int(numbers[2])
        if 1 <= month <= 12:
            return [(year, month, 0)]

    match = _YEAR.search(date)
    if not match:
        return []
    year = int(match[0])
    month, day = _month_and_day(date)
    return [(year, month, day)]


def _orders(numbers: re.Match[str]) -> list[tuple[int, int, int]]:
    """List the meanings of "05/12/2020": day first or, unless there are dots, month first."""
    first = int(numbers[1])
    second = int(numbers[3])
    year = int(numbers[4])
    readings: list[tuple[int, int, int]] = []
    for month, day in ((second, first), (first, second)):
        is_date = 1 <= month <= 12 and 1 <= day <= 31
        if is_date:
            readings.append((year, month, day))
    if numbers[2] == ".":
        return readings[:1]
    return readings or [(year, 0, 0)]


def _month_and_day(date: str) -> tuple[int, int]:
    """Find the name of a month in a date, and the day next to it; 0 if unknown."""
    for word in _WORD.finditer(date):
        month = _month(word[0])
        if not month:
            continue
        before = date[: word.start()]
        found = _DAY_BEFORE.search(before) or _DAY_AFTER.match(date, word.end())
        day = int(found[1]) if found else 0
        return month, day
    return 0, 0


def _day(year: int, month: int, day: int, last: bool) -> int:
    if year == 0:
        return 0
    if not month:
        month = 12 if last else 1
        day = 0
    days = calendar.monthrange(year, month)[1]
    if not 1 <= day <= days:
        day = days if last else 1
    return year * 10_000 + month * 100 + day


def _month(text: str | None) -> int:
    if not text:
        return 0
    if is_digits(text):
        number = int(text)
        return number if number <= 12 else 0
    word = text.lower()
    return _MONTHS.get(word[:4]) or _MONTHS.get(word[:3], 0)
