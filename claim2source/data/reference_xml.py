"""Read XML from EndNote's libraries and Europe PMC's answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    if element is None:
        return ""
    text = "".join(element.itertext())
    words = text.split()
    return " ".join(words)


def _texts(element: Element, path: str) -> list[str]:
    """List the texts of all elements at a path that are not empty."""
    texts: list[str] = []
    for part in element.findall(path):
        text = text_in(part)
        if text:
            texts.append(text)
    return texts


def _first(element: Element, *paths: str) -> str:
    for path in paths:
        for text in _texts(element, path):
            return text
    return ""


def read_endnote(record: Element) -> tuple[PaperTexts, list[str]]:
    """Read a record of EndNote: its texts, and ids besides the DOI."""
    authors = _texts(record, "contributors/authors/author")
    authors = authors or _texts(record, "contributors/secondary-authors/author")
    addresses: list[str] = []
    for urls in _url_kinds(record):
        addresses.extend(urls)
    resource_numbers = _texts(record, "electronic-resource-num")
    dois = map(plain_doi, [*resource_numbers, *addresses])
    accession = _first(record, "accession-num")
    database = _first(record, "remote-database-name").lower()
    pmid = pubmed_id(accession) if "pubmed" in database else ""
    page = f"{PUBMED}{pmid}/" if pmid else ""
    day = _first(record, "dates/pub-dates/date")
    year = _first(record, "dates/year")
    texts = PaperTexts(
        key="",
        title=_first(record, "titles/title", "titles/short-title"),
        abstract=_first(record, "abstract"),
        authors=in_reading_order(authors),
        venue=_first(record, *_VENUES),
        date=dated(day, year),
        doi=next(filter(None, dois), ""),
        url=first_address(addresses) or page,
        lang=_first(record, "language"),
        retracted=_endnote_state(record),
    )
    label = _first(record, "label")
    return texts, [pmid, accession, label]


def _endnote_state(record: Element) -> str:
    """Return the state of a paper by the names of its types."""
    states: list[str] = []
    for kind in (record.find("ref-type"), record.find("work-type")):
        if kind is None:
            continue
        name = kind.get("name") or text_in(kind)
        if "retracted" in name.lower():
            states.append(notice_state(name))
    return worst(states)


def _url_kinds(record: Element) -> Iterator[list[str]]:
    for kind in ("related-urls", "web-urls", "text-urls", "pdf-urls"):
        yield _texts(record, f"urls/{kind}/url")
    yield _texts(record, "urls/url")


def read_europe_pmc(result: Element) -> tuple[PaperTexts, list[str]]:
    """Read a result of Europe PMC: its texts, and ids besides the DOI."""
    source = _first(result, "source")
    key = _first(result, "id")
    medline_key = key if source == "MED" else ""
    pmid = _first(result, "pmid") or medline_key
    url = f"{EUROPE_PMC}{source}/{key}" if source and key else ""
    texts = PaperTexts(
        key="",
        title=_first(result, "title"),
        abstract=_first(result, "abstractText"),
        authors=_europe_pmc_authors(result),
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
        retracted=_europe_pmc_state(result),
    )
    pmcid = _first(result, "pmcid")
    return texts, [pmid, pmcid, key]


def _europe_pmc_authors(result: Element) -> Sequence[str]:
    """List the authors of a result: one by one, or else from the text with all of them."""
    names: list[str] = []
    for author in result.findall("authorList/author"):
        first_name = _first(author, "firstName")
        last_name = _first(author, "lastName")
        if first_name and last_name:
            name = f"{first_name} {last_name}"
        else:
            name = _first(author, "fullName", "collectiveName")
        names.append(name)
    if names:
        return names
    listed = _first(result, "authorString").rstrip(". ")
    return author_names(listed)


def _europe_pmc_state(result: Element) -> str:
    """Return the state of a result by its types and by the notices about it."""
    states: list[str] = []
    for kind in _texts(result, "pubTypeList/pubType"):
        if kind.lower().startswith(("retracted", "withdrawn")):
            states.append(notice_state(kind))
    for comment in result.findall("commentCorrectionList/commentCorrection"):
        kind = _first(comment, "type")
        if kind.lower().endswith((" in", " for")):
            reference = _first(comment, "reference")
            states.append(notice_state(kind, reference))
    return worst(states)
