"""Paper with its DOI, address and language, and what was published about it since."""

from __future__ import annotations

import calendar
import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.arguments import is_digits
from claim2source.core.errors import InputError, Problems
from claim2source.core.languages import primary_language
from claim2source.core.records import Source
from claim2source.data.markup import clean, without_markup
from claim2source.data.text_files import any_lines, id_error, text_error

# Months by their first letters, in English and, where they differ, German, French and Spanish.
_MONTHS = {
    **{name: number for number, name in enumerate("jan feb mar apr may jun".split(), start=1)},
    **{name: number for number, name in enumerate("jul aug sep oct nov dec".split(), start=7)},
    **{"ene": 1, "fév": 2, "mär": 3, "mrz": 3, "avr": 4, "abr": 4, "mai": 5, "juin": 6},
    **{"juil": 7, "aoû": 8, "ago": 8, "okt": 10, "déc": 12, "dez": 12, "dic": 12},
}
# 2020-05-12, 2020/5, 20200512, 2020 May 12, 2020年5月12日, and what follows a time's T.
_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?!\d(?:\D|$))"
    r"(?:(?:, |[-/. 年])?(?P<month>[0-9]{1,2}|[^\W\d_]{3,10})"
    r"(?:[-/. 月]?(?P<day>[0-9]{1,2}))?)?(?!\d)"
)
_NUMBERS = re.compile(r"(?<!\d)([0-9]{1,2})([-/. ])([0-9]{1,2})\2([0-9]{4})(?!\d)")  # 05/12/2020
_YEAR = re.compile(r"(?<!\d)[12][0-9]{3}(?!\d)")
_WORD = re.compile(r"[^\W\d_]{3,}")
_DAY_BEFORE = re.compile(r"(?<!\d)([0-9]{1,2})(?:st|nd|rd|th|er)?[-.,/ ]*(?:(?:of|de) +)?$")
_DAY_AFTER = re.compile(r"[-.,/ ]*([0-9]{1,2})(?!\d)")
_DOI = re.compile(r"10\.[0-9]{4,9}/\S+")
# Languages whose English names begin with their code of three letters; and Japanese.
_NAMED = frozenset(
    "eng ger deu fre fra spa ita por chi rus pol dut kor tur cze dan nor swe fin hun ara "
    "ukr".split()
)
_JAPANESE = "jap"
# What PubMed writes in brackets for a title that is absent.
NO_TITLE = ("", "not available", "in process citation")
RETRACTED, WITHDRAWN = "retracted", "withdrawn"
# What may be known of a paper since it was published, the gravest first, and what registries call
# a notice of it: the first that fits counts, and others say nothing of the paper.
_STATES = {
    RETRACTED: re.compile("retract", re.IGNORECASE),
    WITHDRAWN: re.compile("withdraw|removal|removed", re.IGNORECASE),
    "expression of concern": re.compile("concern", re.IGNORECASE),
    "corrected": re.compile("correct|corrigend|errat", re.IGNORECASE),
}
_NO = frozenset(("", "0", "0.0", "false", "no", "n", "none", "nan", "null", "na", "n/a", "-"))
_YES = frozenset(("1", "1.0", "true", "yes", "y", "x"))
# Between the state and the DOI that a notice, which is itself a paper, is about.
NOTICE = " notice of "
# Columns of Retraction Watch's file.
_WATCH = ("RetractionNature", "OriginalPaperDOI", "OriginalPaperPubMedID")
_REINSTATED = "reinstatement"
# A link to anything else, such as javascript:, may do anything.
_WEB = re.compile(r"https?://[^\s\x00-\x1f]+\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Paper:
    """Source, its DOI without "https://doi.org/", its address, and its language (ISO 639-1).

    `retracted` says what was published about it since: "retracted", "corrected" or "expression of
    concern", perhaps with the day and the notice's DOI; "" if nothing is known.
    """

    source: Source
    doi: str = ""
    url: str = ""
    lang: str = ""
    retracted: str = ""

    @property
    def link(self) -> str:
        """Return the DOI's address, or the paper's own if that is of the web, or ""."""
        if self.doi:
            return f"https://doi.org/{self.doi}"
        return self.url if _WEB.match(self.url) else ""

    @property
    def is_retracted(self) -> bool:
        """Whether it was withdrawn, not only corrected, and is not the notice of that."""
        return self.retracted.partition(",")[0] in (RETRACTED, WITHDRAWN)


@dataclass(frozen=True, slots=True)
class PaperTexts:
    """Texts of a paper as a record has them: with markup and white space."""

    key: str
    title: str
    abstract: str = ""
    authors: Sequence[str] = ()
    venue: str = ""
    date: str = ""
    doi: str = ""
    url: str = ""
    lang: str = ""
    retracted: str = ""


def make_paper(
    path: Path, location: int | str, problems: Problems, texts: PaperTexts
) -> Paper | None:
    """Make a paper of the texts of a record; `location` is its line or name.

    None if there is no id, which is reported, or no text.
    """
    if not f"{texts.title}{texts.abstract}".strip():
        return None
    field, reason = _text_problem(texts)
    if isinstance(location, int):
        line, name = location, field
    else:
        line, name = None, f"{location}: {field}"
    if reason:
        problems.add(path, line, name, reason)
        return None

    def plain(text: str) -> str:
        return " ".join(clean(text, path, location, problems).split())

    title = plain(texts.title)
    abstract = plain(texts.abstract)
    venue = plain(texts.venue)
    if not (title or abstract):
        return None
    authors = [without_markup(name) for name in texts.authors if name.strip()]
    names = tuple(" ".join(author.split()) for author in authors)
    source = Source(texts.key, title, abstract, names, venue, " ".join(texts.date.split()))
    doi, lang = plain_doi(texts.doi), iso_language(texts.lang)
    return Paper(source, doi, texts.url.strip(), lang, texts.retracted)


def _text_problem(texts: PaperTexts) -> tuple[str, str]:
    """Find the first text that cannot be stored, and the reason; two empty texts if all can."""
    fields = {
        "title": texts.title,
        "abstract": texts.abstract,
        "authors": " ".join(texts.authors),
        "venue": texts.venue,
    }
    if reason := id_error(texts.key):
        return "id", reason
    for name, text in fields.items():
        if reason := text_error(text):
            return name, reason
    return "", ""


def plain_doi(text: str) -> str:
    """Return the DOI in a text, in small letters; "" if there is none."""
    match = _DOI.search(text)
    return match[0].lower() if match else ""


def iso_language(text: str) -> str:
    """Return the ISO 639-1 code of a language: "en-US", "eng" and "English" are "en"."""
    code = re.split(r"[-_;, ]", text.strip().lower())[0]
    if len(code) > 3 and code[:3] in _NAMED:
        code = code[:3]
    if code.startswith(_JAPANESE):
        code = "ja"
    language = primary_language(code)
    return language if len(language) == 2 else ""


def first_day(date: str) -> int:
    """Number the first day that a date may mean: "2020-05" is 20200501; 0: unknown."""
    return min((_day(*meaning, last=False) for meaning in _meanings(date)), default=0)


def last_day(date: str) -> int:
    """Number the last day that a date may mean: "2020-02" is 20200229; 0: unknown."""
    return max((_day(*meaning, last=True) for meaning in _meanings(date)), default=0)


def _meanings(date: str) -> list[tuple[int, int, int]]:
    """List the possible readings of a date: year, month and day, 0 if unknown.

    "05/12/2020" is two days, but "05.12.2020" is one in December.
    """
    date = date.strip()[:100]
    match = _DATE.match(date)
    if match and int(match["year"]):
        month = _month(match["month"])  # "2020 Spring" is some day of that year
        day = int(match["day"] or 0) if month else 0
        return [(int(match["year"]), month, day)]
    if numbers := _NUMBERS.search(date):
        return _orders(numbers)
    match = _YEAR.search(date)
    if not match:
        return []
    return [(int(match[0]), *_month_and_day(date))]


def _orders(numbers: re.Match[str]) -> list[tuple[int, int, int]]:
    """List the readings of "05/12/2020": day before month, and after it unless dots part them."""
    first, second, year = int(numbers[1]), int(numbers[3]), int(numbers[4])
    readings: list[tuple[int, int, int]] = []
    for month, day in ((second, first), (first, second)):
        if 1 <= month <= 12 and 1 <= day <= 31:
            readings.append((year, month, day))
    if numbers[2] == ".":
        return readings[:1]
    return readings or [(year, 0, 0)]


def _month_and_day(date: str) -> tuple[int, int]:
    """Read the name of a month in a date, and a day next to it; 0 for what is unknown."""
    for word in _WORD.finditer(date):
        month = _month(word[0])
        if month:
            day = _DAY_BEFORE.search(date[: word.start()]) or _DAY_AFTER.match(date, word.end())
            return month, int(day[1]) if day else 0
    return 0, 0


def _day(year: int, month: int, day: int, last: bool) -> int:
    if year == 0:
        return 0
    if not month:
        month, day = 12 if last else 1, 0
    days = calendar.monthrange(year, month)[1]
    if not 1 <= day <= days:
        day = days if last else 1
    return year * 10_000 + month * 100 + day


def _month(text: str | None) -> int:
    if not text:
        return 0
    if is_digits(text):
        return int(text) if int(text) <= 12 else 0
    word = text.lower()
    return _MONTHS.get(word[:4]) or _MONTHS.get(word[:3], 0)


def notice_state(kind: str, *details: str) -> str:
    """Write a notice's kind as ours, with its day or DOI; "" for one that says nothing bad."""
    for state, sign in _STATES.items():
        if sign.search(kind):
            return ", ".join(filter(None, (state, *details)))
    return ""


def worst(states: Iterable[str]) -> str:
    """Choose the gravest of several states; "" if there is none."""

    def grade(state: str) -> list[bool]:
        return [not state.startswith(name) for name in _STATES]

    return min(filter(None, states), key=grade, default="")


def add_notice(notices: dict[str, str], retracted: str, doi: str) -> None:
    """Add, by the DOI of the paper that it is about, what a notice with a DOI of its own says."""
    state, notice, of_doi = retracted.partition(NOTICE)
    if notice:
        notices[of_doi] = worst((notices.get(of_doi, ""), f"{state}, {doi}"))


def cell_state(text: str) -> str:
    """Read a cell `retracted`: yes or no, a day, or the notice."""
    line = " ".join(text.split())
    if line.lower() in _NO:
        return ""
    if line.lower() in _YES:
        return RETRACTED
    if line.partition(",")[0] in _STATES:
        return line
    return notice_state(line, line) or f"{RETRACTED}, {line}"


@dataclass(frozen=True)
class Notices:
    """States by DOI and by PubMed's id; "" if a paper was reinstated."""

    by_doi: Mapping[str, str]
    by_pmid: Mapping[str, str]

    def of(self, id: str, doi: str) -> str | None:
        """Return the state of a paper; None if it is not given."""
        notice = self.by_doi.get(doi) if doi else None
        notice = self.by_doi.get(id.lower()) if notice is None else notice
        return self.by_pmid.get(id) if notice is None else notice


def read_notices(path: Path) -> Notices:
    """Read a CSV file of Retraction Watch: the gravest notice since a reinstatement counts.

    Raises `InputError` if it lacks its columns.
    """
    dois: dict[str, str] = {}
    pmids: dict[str, str] = {}
    for row in _watch_rows(path):
        kind = row["RetractionNature"] or ""
        day = _iso_day(row.get("RetractionDate") or "")
        state = notice_state(kind, day, plain_doi(row.get("RetractionDOI") or ""))
        if not state and kind.strip().lower() != _REINSTATED:
            continue
        doi = plain_doi(row["OriginalPaperDOI"] or "")
        if doi:
            dois[doi] = state and worst((state, dois.get(doi, "")))
        pmid = (row["OriginalPaperPubMedID"] or "").strip()
        if pmid.strip("0"):
            pmids[pmid] = state and worst((state, pmids.get(pmid, "")))
    return Notices(dois, pmids)


def _watch_rows(path: Path) -> list[dict[str, str | None]]:
    """Read the rows of a file of Retraction Watch by date. Raises `InputError`."""
    problems = Problems()
    lines = (line for _, line in any_lines(path, problems))
    csv.field_size_limit(2**31 - 1)
    try:
        rows = csv.DictReader(lines)
        header = [name.strip() for name in rows.fieldnames or ()]
        problems.raise_if_any()
        for name in _WATCH:
            if name not in header:
                columns = ", ".join(header[:8]) or "none"
                reason = f"no such column; a file of Retraction Watch has it; there are: {columns}"
                raise InputError(path, field=name, reason=reason)
        rows.fieldnames = header
        ordered = sorted(rows, key=lambda row: _day_number(row.get("RetractionDate") or ""))
    except csv.Error as error:
        raise InputError(path, reason=f"is not a CSV file: {error}") from None
    problems.raise_if_any()
    return ordered


def _day_number(date: str) -> int:
    """Number a day as Retraction Watch writes it, month first: "5/12/2020 0:00" is in May."""
    match = re.match(r"\s*([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})", date)
    if match:
        month, day, year = (int(part) for part in match.groups())
        return year * 10_000 + month * 100 + day
    return first_day(date)


def _iso_day(date: str) -> str:
    number = _day_number(date)
    if not number:
        return ""
    year, month, day = number // 10_000, number // 100 % 100, number % 100
    return f"{year:04}-{month:02}-{day:02}"
