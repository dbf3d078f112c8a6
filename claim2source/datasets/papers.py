"""Hold a paper with what a reader needs to find it: DOI, address, language."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass

from claim2source.core.records import Source

_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
# 2020-05-12, 2020/5, 20200512, 2020 May 12, and what follows a time's T.
_DATE = re.compile(
    r"(?P<year>\d{4})(?!\d(?:\D|$))"
    r"(?:[-/. ]?(?P<month>\d{1,2}|[A-Za-z]{3,9})(?:[-/. ]?(?P<day>\d{1,2}))?)?(?!\d)"
)
_DOI = re.compile(r"10\.\d{4,9}/\S+")


@dataclass(frozen=True, slots=True)
class Paper:
    """A source, its DOI without "https://doi.org/", its address, and its language (ISO 639-1)."""

    source: Source
    doi: str = ""
    url: str = ""
    lang: str = ""

    @property
    def link(self) -> str:
        """Return the DOI's address, or the paper's own."""
        return f"https://doi.org/{self.doi}" if self.doi else self.url


def plain_doi(text: str) -> str:
    """Return the DOI in a text, in small letters; "" where there is none."""
    found = _DOI.search(text)
    return found[0].lower() if found else ""


def first_day(date: str) -> int:
    """Number the first day that a date may mean: "2020-05" is 20200501; 0: unknown."""
    return _day(date, last=False)


def last_day(date: str) -> int:
    """Number the last day that a date may mean: "2020-02" is 20200229; 0: unknown."""
    return _day(date, last=True)


def _day(date: str, last: bool) -> int:
    found = _DATE.match(date.strip())
    if found is None or int(found["year"]) == 0:
        return 0
    year, month, day = int(found["year"]), _month(found["month"]), int(found["day"] or 0)
    if not month:  # "2020 Spring" is some day of that year
        month, day = 12 if last else 1, 0
    days = calendar.monthrange(year, month)[1]
    if not 1 <= day <= days:
        day = days if last else 1
    return year * 10_000 + month * 100 + day


def _month(text: str | None) -> int:
    """Number a month, 1 to 12; 0 for what is none."""
    if not text:
        return 0
    number = int(text) if text.isdigit() else _MONTHS.get(text[:3].lower(), 0)
    return number if number <= 12 else 0
