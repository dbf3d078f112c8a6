"""Read XML from EndNote's libraries and Europe PMC's answers."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from claim2source.data.authors import author_names, in_reading_order
from claim2source.data.paper_keys import PUBMED, dated, first_address, pubmed_id
from claim2source.data.papers import PaperTexts, notice_state, plain_doi, worst

EUROPE_PMC = "https://europepmc.org/article/"
# EndNote's elements for a paper's journal or book.
_VENUES = (
    "periodical/full-title",
    "titles/secondary-title",
    "periodical/abbr-1",
    "full-title",
    "titles/tertiary-title",
    "publisher",
)


def text_in(element: Element | None) -> str:
    """Return all text of an element, which EndNote divides by style."""
    return "" if element is None else " ".join("".join(element.itertext()).split())


def _texts(element: Element, path: str) -> list[str]:
    """List the texts of all elements at a path that are not empty."""
    return [text for part in element.findall(path) if (text := text_in(part))]


def _first(element: Element, *paths: str) -> str:
    for path in paths:
        for text in _texts(element, path):
            return text
    return ""


def read_endnote(record: Element) -> tuple[PaperTexts, list[str]]:
    """Read a record of EndNote: its texts, and ids besides the DOI."""
    authors = _texts(record, "contributors/authors/author")
    authors = authors or _texts(record, "contributors/secondary-authors/author")
    addresses = [text for kind in _url_kinds(record) for text in kind]
    dois = [*_texts(record, "electronic-resource-num"), *addresses]
    accession = _first(record, "accession-num")
    pmid = (
        pubmed_id(accession) if "pubmed" in _first(record, "remote-database-name").lower() else ""
    )
    kinds = [record.find("ref-type"), record.find("work-type")]
    names = [kind.get("name") or text_in(kind) for kind in kinds if kind is not None]
    texts = PaperTexts(
        key="",
        title=_first(record, "titles/title", "titles/short-title"),
        abstract=_first(record, "abstract"),
        authors=in_reading_order(authors),
        venue=_first(record, *_VENUES),
        date=dated(_first(record, "dates/pub-dates/date"), _first(record, "dates/year")),
        doi=next(filter(None, map(plain_doi, dois)), ""),
        url=first_address(addresses) or (f"{PUBMED}{pmid}/" if pmid else ""),
        lang=_first(record, "language"),
        retracted=worst(notice_state(name) for name in names if "retracted" in name.lower()),
    )
    return texts, [pmid, accession, _first(record, "label")]


def _url_kinds(record: Element) -> Iterator[list[str]]:
    for kind in ("related-urls", "web-urls", "text-urls", "pdf-urls"):
        yield _texts(record, f"urls/{kind}/url")
    yield _texts(record, "urls/url")


def read_europe_pmc(result: Element) -> tuple[PaperTexts, list[str]]:
    """Read a result of Europe PMC: its texts, and ids besides the DOI."""
    names: list[str] = []
    for author in result.findall("authorList/author"):
        parts = (_first(author, "firstName"), _first(author, "lastName"))
        names.append(
            " ".join(parts) if all(parts) else _first(author, "fullName", "collectiveName")
        )
    source, key = _first(result, "source"), _first(result, "id")
    pmid = _first(result, "pmid") or (key if source == "MED" else "")
    url = f"{EUROPE_PMC}{source}/{key}" if source and key else ""
    states: list[str] = []
    for kind in _texts(result, "pubTypeList/pubType"):
        if kind.lower().startswith(("retracted", "withdrawn")):
            states.append(notice_state(kind))
    for comment in result.findall("commentCorrectionList/commentCorrection"):
        kind = _first(comment, "type")
        if kind.lower().endswith((" in", " for")):
            states.append(notice_state(kind, _first(comment, "reference")))
    texts = PaperTexts(
        key="",
        title=_first(result, "title"),
        abstract=_first(result, "abstractText"),
        authors=names or author_names(_first(result, "authorString").rstrip(". ")),
        venue=_first(result, "journalInfo/journal/title", "journalTitle"),
        date=_first(
            result,
            "firstPublicationDate",
            "electronicPublicationDate",
            "journalInfo/printPublicationDate",
            "journalInfo/dateOfPublication",
            "pubYear",
        ),
        doi=_first(result, "doi"),
        url=f"{PUBMED}{pmid}/" if pmid else url,
        lang=_first(result, "language"),
        retracted=worst(states),
    )
    return texts, [pmid, _first(result, "pmcid"), key]
