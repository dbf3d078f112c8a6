"""Papers with DOI, address, language, and later notices such as retractions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from claim2source.core.errors import Problems
from claim2source.core.languages import primary_language
from claim2source.core.records import Source
from claim2source.data.dates import first_day as first_day
from claim2source.data.dates import iso_date, stored_date
from claim2source.data.dates import last_day as last_day
from claim2source.data.doi import plain_doi
from claim2source.data.markup import clean, without_markup
from claim2source.data.retractions import NOTICE as NOTICE
from claim2source.data.retractions import RETRACTED, WITHDRAWN, own_state, with_title_state
from claim2source.data.retractions import Notices as Notices
from claim2source.data.retractions import add_notice as add_notice
from claim2source.data.retractions import cell_state as cell_state
from claim2source.data.retractions import notice_state as notice_state
from claim2source.data.retractions import read_notices as read_notices
from claim2source.data.retractions import worst as worst
from claim2source.data.text_files import id_error, text_error

# Languages whose English names begin with their three-letter code; and Japanese.
_NAMED = frozenset(
    "eng ger deu fre fra spa ita por chi rus pol dut kor tur cze dan nor swe fin hun ara "
    "ukr".split()
)
_JAPANESE = "jap"
# PubMed's placeholders, in brackets, for a missing title.
NO_TITLE = ("", "not available", "in process citation")
# Other links, such as javascript:, are dangerous. Several addresses in a field are separated by
# white space, or by signs with which no address begins.
_WEB = re.compile(r"https?://[^\s\x00-\x1f<>\"{}|\\^`]+", re.IGNORECASE)
_NEXT_WEB = re.compile(r"[,;|]+(?=https?://)", re.IGNORECASE)
_PUNCTUATION = ".,;:!'"
# Characters of a DOI with another meaning in an address become percent codes.
_SAFE = "/:;()._-~!$*',+=@"
_EMAIL = re.compile(
    r"(?:[(\[<{]\s*)?"
    r"(?:(?:\be-?mail(?: address(?:es)?)?|\bmailto|\belectronic address)\s*[:=]?\s*)*"
    r"[A-Za-z0-9._%+'-]{1,64}(?:@|\uff20|\s?[(\[]at[)\]]\s?)(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"
    r"(?:\s*[)\]>}])?",
    re.IGNORECASE,
)
_BEFORE_STOP = re.compile(r" (?=[.,;:)])")


@dataclass(frozen=True, slots=True)
class Paper:
    """Source with its DOI (without "https://doi.org/"), its address, and its language (ISO 639-1).

    `retracted` is its state by later notices: "retracted", "corrected" or "expression of concern",
    perhaps with the day and the notice's DOI; "" if nothing is known.
    """

    source: Source
    doi: str = ""
    url: str = ""
    lang: str = ""
    retracted: str = ""

    @property
    def link(self) -> str:
        """Address of the DOI, or the paper's own web address, or ""."""
        if self.doi:
            return f"https://doi.org/{quote(plain_doi(self.doi) or self.doi, safe=_SAFE)}"
        return web_address(self.url)

    @property
    def is_retracted(self) -> bool:
        """Whether it was retracted or withdrawn (not only corrected), and is not such a notice."""
        return own_state(self.retracted).partition(",")[0] in (RETRACTED, WITHDRAWN)

    @property
    def date(self) -> str:
        """Day, month or year of publication in ISO form; "" if it is not known."""
        return iso_date(self.source.date)


@dataclass(frozen=True, slots=True)
class PaperTexts:
    """Original texts of a paper's record, with markup and white space."""

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
    """Make a paper from the texts of a record; `location` is its line or name.

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
    abstract = " ".join(without_emails(plain(texts.abstract)).split())
    venue = plain(texts.venue)
    if not (title or abstract):
        return None
    authors = tuple(without_markup(name) for name in texts.authors)
    source = Source(texts.key, title, abstract, authors, venue, texts.date)
    lang = iso_language(texts.lang)
    return tidy(Paper(source, texts.doi, texts.url, lang, texts.retracted))


def tidy(paper: Paper) -> Paper:
    """Clean a paper's DOI, address, date and authors, and detect its state in the title.

    E-mail addresses are removed, because they identify authors, not papers.
    """
    source = paper.source
    authors = [" ".join(without_emails(name).split()).strip(" ,;") for name in source.authors]
    return replace(
        paper,
        source=replace(
            source,
            authors=tuple(filter(None, authors)),
            venue=without_emails(source.venue).strip(),
            date=stored_date(source.date),
        ),
        doi=plain_doi(paper.doi),
        url=web_address(paper.url) or without_emails(paper.url).strip(),
        retracted=with_title_state(source.title, paper.retracted),
    )


def web_address(text: str) -> str:
    """Return the first web address in a field that may have several; "" if there is none."""
    match = _WEB.search(text)
    if match is None:
        return ""
    address = _NEXT_WEB.split(match[0])[0].rstrip(_PUNCTUATION)
    while address.endswith(")") and address.count(")") > address.count("("):
        address = address[:-1].rstrip(_PUNCTUATION)
    return address


def without_emails(text: str) -> str:
    """Remove e-mail addresses, with brackets around them and "E-mail:" before them."""
    if "@" not in text and "\uff20" not in text and "[at]" not in text and "(at)" not in text:
        return text
    without = _EMAIL.sub("", text)
    if without == text:
        return text
    return _BEFORE_STOP.sub("", " ".join(without.split()))


def _text_problem(texts: PaperTexts) -> tuple[str, str]:
    """Return the first text that cannot be stored and the reason; two empty texts if all can."""
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


def iso_language(text: str) -> str:
    """Return the ISO 639-1 code of a language: "en-US", "eng" and "English" are "en"."""
    code = re.split(r"[-_;, ]", text.strip().lower())[0]
    if len(code) > 3 and code[:3] in _NAMED:
        code = code[:3]
    if code.startswith(_JAPANESE):
        code = "ja"
    language = primary_language(code)
    return language if len(language) == 2 else ""
