"""Read JSON records of other services: Zotero, Europe PMC, Semantic Scholar, .."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate
from itertools import chain
from pathlib import Path

from claim2source.core.arguments import is_digits
from claim2source.core.errors import Problems
from claim2source.data.authors import author_names, in_reading_order, person_name
from claim2source.data.json_fields import (
    as_list,
    first_text,
    most_exact,
    nested,
    plain_text,
    texts_in,
)
from claim2source.data.jsonl import Row, parse_json
from claim2source.data.paper_keys import (
    ATTACHED,
    NOTES,
    PUBMED,
    choose_key,
    first_address,
    pubmed_id,
)
from claim2source.data.papers import (
    RETRACTED,
    Paper,
    PaperTexts,
    make_paper,
    notice_state,
    plain_doi,
    worst,
)

EUROPE_PMC, ARXIV = "https://europepmc.org/article/", "https://arxiv.org/abs/"
# Comments with which authors withdraw a paper from arXiv.
_WITHDRAWN = re.compile(r"\b(?:has|have) been withdrawn|\bwithdrawn by\b", re.IGNORECASE)
# Fields of Zotero with the name of a paper's journal, book or conference.
_ZOTERO_VENUES = (
    "publicationTitle",
    "proceedingsTitle",
    "bookTitle",
    "conferenceName",
    "repository",
    "websiteTitle",
    "blogTitle",
    "encyclopediaTitle",
    "university",
    "institution",
    "publisher",
)


@dataclass(frozen=True)
class Record:
    """Record of a file from which a paper is made."""

    row: Row
    path: Path
    problems: Problems

    def text(self, *fields: str) -> str:
        return first_text(self.row, *fields)

    def value(self, *keys: str) -> object:
        return nested(self.row.record, *keys)

    def plain(self, *keys: str) -> str:
        return plain_text(self.row.record, *keys)

    def paper(self, ids: Iterable[str], **texts: str | list[str] | tuple[str, ...]) -> Paper | None:
        """Make the paper from its texts; its id is the DOI or the first of `ids`."""
        made = PaperTexts(key="", **texts)  # type: ignore[arg-type]
        if not f"{made.title}{made.abstract}".strip():
            return None
        keys = filter(None, (plain_doi(made.doi), *ids))
        key = choose_key(self.path, self.row.location, self.problems, keys, made)
        return make_paper(self.path, self.row.location, self.problems, replace(made, key=key))


def read_zotero(record: Record) -> Paper | None:
    """Read an item in Zotero's JSON, as its API, Better BibTeX and translators write it."""
    if record.plain("itemType").lower() in ATTACHED:
        record.problems.count(NOTES, record.path, record.row.location)
        return None
    creators = as_list(record.value("creators"))
    by_role: dict[str, list[str]] = {}
    for creator in creators:
        by_role.setdefault(plain_text(creator, "creatorType"), []).append(person_name(creator))
    by_role.setdefault("", list(chain.from_iterable(by_role.values())))
    authors = by_role.get("author") or by_role.get("editor") or by_role[""]
    extra = _zotero_extra(record.text("extra"))
    return record.paper(
        [extra.get("pmid", ""), record.plain("key"), record.plain("itemKey")],
        title=record.text("title", "subject", "caseName", "nameOfAct"),
        abstract=record.text("abstractNote"),
        authors=authors,
        venue=record.text(*_ZOTERO_VENUES),
        date=record.text("date"),
        doi=plain_doi(record.text("DOI")) or extra.get("doi", ""),
        url=first_address([record.text("url")]),
        lang=record.text("language"),
    )


def _zotero_extra(text: str) -> dict[str, str]:
    """Read lines such as "DOI: .." and "PMID: .." in Zotero's field "extra"."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def read_semantic_scholar(record: Record) -> Paper | None:
    """Read a paper from Semantic Scholar's API and data sets, or from S2ORC."""
    ids: dict[str, str] = {}
    for name in ("externalIds", "externalids", "external_ids"):
        found = record.value(name)
        if isinstance(found, Mapping):
            ids |= {str(key).lower(): plain_text(found, key) for key in found}
    pmid = pubmed_id(record.text("pubmed_id", "pmid") or ids.get("pubmed", ""))
    title, authors = _title_and_authors(record)
    texts = _annotated_texts(record)
    url = first_address([record.text("url", "s2_url")])
    return record.paper(
        [pmid, *_plain_ids(record, "paperId", "corpusId", "corpusid", "paper_id", "cord_uid")],
        title=title or texts.get("title", ""),
        abstract=_joined_abstract(record) or texts.get("abstract", ""),
        authors=[person_name(author) for author in authors],
        venue=_semantic_scholar_venue(record),
        date=record.text("publicationDate", "publicationdate", "year"),
        doi=record.text("doi", "DOI") or ids.get("doi", ""),
        url=url or (f"{PUBMED}{pmid}/" if pmid else ""),
        lang=record.text("language", "lang"),
        retracted=_state(texts_in(record.value("publicationTypes"))),
    )


def _title_and_authors(record: Record) -> tuple[str, list[object]]:
    """Read title and authors, which are below `metadata` in CORD-19's full texts."""
    title = record.text("title")
    authors = as_list(record.value("authors"))
    for metadata in as_list(record.value("metadata"))[:1]:
        title = title or plain_text(metadata, "title")
        authors = authors or as_list(nested(metadata, "authors"))
    return title, authors


def _joined_abstract(record: Record) -> str:
    """Read an abstract, which is a text or a list of paragraphs."""
    paragraphs = as_list(record.value("abstract"))
    if not paragraphs:
        return record.text("abstract")
    return " ".join(filter(None, (plain_text(part, "text") for part in paragraphs)))


def _semantic_scholar_venue(record: Record) -> str:
    journal = record.plain("journal", "name")
    if isinstance(record.value("journal"), str):
        journal = record.text("journal")
    return record.text("venue") or journal or record.plain("publicationVenue", "name")


def _plain_ids(record: Record, *names: str) -> list[str]:
    return [record.plain(name) for name in names]


def _annotated_texts(record: Record) -> dict[str, str]:
    """Extract title and abstract from the text of S2ORC by their annotations."""
    content = as_list(record.value("content"))
    text = plain_text(content[0], "text") if content else ""
    found: dict[str, str] = {}
    for name in ("title", "abstract"):
        places = nested(content[0], "annotations", name) if content else None
        if isinstance(places, str):
            places = parse_json(places, record.path, record.problems, record.row.line)
        parts: list[str] = []
        for place in as_list(places):
            start, end = str(nested(place, "start")), str(nested(place, "end"))
            if is_digits(start + end) and start and end and len(start + end) < 20:
                parts.append(text[int(start) : int(end)])
        found[name] = " ".join(parts)
    return found


def read_europe_pmc(record: Record) -> Paper | None:
    """Read a result of Europe PMC in its core or lite form."""
    authors = [person_name(author) for author in as_list(record.value("authorList", "author"))]
    if not any(authors):
        authors = list(author_names(record.text("authorString").rstrip(". ")))
    journal = record.value("journalInfo")
    venue = plain_text(journal, "journal", "title") or record.text("journalTitle")
    source, key = record.plain("source"), record.plain("id")
    pmid = record.plain("pmid") or (key if source == "MED" else "")
    dates = [
        record.text("firstPublicationDate"),
        record.text("electronicPublicationDate"),
        plain_text(journal, "printPublicationDate"),
        plain_text(journal, "dateOfPublication"),
        record.text("pubYear"),
    ]
    url = f"{EUROPE_PMC}{source}/{key}" if source and key else ""
    addresses = as_list(record.value("fullTextUrlList", "fullTextUrl"))
    return record.paper(
        [pmid, record.plain("pmcid"), key],
        title=record.text("title"),
        abstract=record.text("abstractText"),
        authors=authors,
        venue=venue or record.plain("bookOrReportDetails", "publisher"),
        date=next(filter(None, dates), ""),
        doi=record.text("doi"),
        url=f"{PUBMED}{pmid}/" if pmid else url or first_address(map(_address, addresses)),
        lang=record.text("language"),
        retracted=_europe_pmc_state(record),
    )


def _address(value: object) -> str:
    return plain_text(value, "url")


def _europe_pmc_state(record: Record) -> str:
    types = texts_in(record.value("pubTypeList", "pubType")) or [record.text("pubType")]
    states = [_state(types)]
    comments = record.value("commentCorrectionList", "commentCorrection")
    for comment in as_list(comments):
        kind = plain_text(comment, "type").lower()
        if kind.endswith((" in", "for")):
            states.append(notice_state(kind.removesuffix(" in"), plain_text(comment, "reference")))
    return worst(states)


def _state(types: Iterable[str]) -> str:
    """Return a paper's state by its types: whether it was retracted."""
    for kind in types:
        if re.search(r"\b(retracted|withdrawn)\b", kind, re.IGNORECASE):
            return notice_state(kind)
    return ""


def read_lens(record: Record) -> Paper | None:
    """Read a work from Lens."""
    ids: dict[str, str] = {}
    for entry in as_list(record.value("external_ids")):
        ids.setdefault(plain_text(entry, "type").lower(), plain_text(entry, "value"))
    pmid = ids.get("pmid", "")
    addresses = [plain_text(entry, "url") for entry in as_list(record.value("source_urls"))]
    updates = as_list(record.value("retraction_updates"))
    languages = record.value("languages")
    return record.paper(
        [pmid, record.plain("lens_id")],
        title=record.text("title"),
        abstract=record.text("abstract"),
        authors=[person_name(author) for author in as_list(record.value("authors"))],
        venue=record.plain("source", "title") or record.plain("source", "publisher"),
        date=record.text("date_published", "year_published")[:10],
        doi=ids.get("doi", ""),
        url=first_address(addresses) or (f"{PUBMED}{pmid}/" if pmid else ""),
        lang=" ".join(texts_in(languages)) or record.text("language"),
        retracted=RETRACTED if updates or record.value("is_retracted") is True else "",
    )


def read_biorxiv(record: Record) -> Paper | None:
    """Read a preprint from the API of bioRxiv and medRxiv, `details` or `pubs`."""
    server = record.text("server", "preprint_platform")
    doi = plain_doi(record.text("doi", "biorxiv_doi", "preprint_doi"))
    site = server.lower() if server.lower() in ("biorxiv", "medrxiv") else ""
    return record.paper(
        [],
        title=record.text("title", "preprint_title"),
        abstract=record.text("abstract", "preprint_abstract"),
        authors=author_names(record.text("authors", "preprint_authors")),
        venue=server,
        date=record.text("date", "preprint_date"),
        doi=doi,
        url=f"https://www.{site}.org/content/{doi}" if site else "",
        lang=record.text("language"),
        retracted=_state([record.text("type")]),
    )


def read_arxiv(record: Record) -> Paper | None:
    """Read a paper from arXiv's metadata."""
    authors: list[str] = []
    for entry in as_list(record.value("authors_parsed")):
        family, *given = [part for part in as_list(entry) if isinstance(part, str)] or [""]
        authors.append(" ".join(filter(None, (*given[:1], family, *given[1:2]))))
    versions = as_list(record.value("versions"))
    date = _mail_day(plain_text(versions[0], "created")) if versions else ""
    key = record.plain("id")
    withdrawn = _WITHDRAWN.search(record.text("comments"))
    return record.paper(
        [key],
        title=record.text("title"),
        abstract=record.text("abstract"),
        authors=[*filter(None, authors)] or list(author_names(record.text("authors"))),
        venue=record.text("journal-ref") or "arXiv",
        date=date or record.text("update_date"),
        doi=record.text("doi"),
        url=f"{ARXIV}{key}" if key else "",
        retracted=notice_state("withdrawn") if withdrawn else "",
    )


def _mail_day(text: str) -> str:
    """Return the day of a time such as "Mon, 2 Apr 2007 19:18:42 GMT"."""
    parsed = parsedate(text)
    return f"{parsed[0]:04}-{parsed[1]:02}-{parsed[2]:02}" if parsed else text


def read_datacite(record: Record) -> Paper | None:
    """Read a DOI record from DataCite."""
    found = record.value("attributes")
    attributes = found if isinstance(found, Mapping) else record.row.record
    titles = [plain_text(title, "title") for title in as_list(attributes.get("titles"))]
    if len(titles) > 1:
        note = "additional titles, skipped"
        record.problems.count(note, record.path, record.row.location)
    descriptions = as_list(attributes.get("descriptions"))
    abstracts: dict[str, str] = {}
    for description in descriptions:
        kind = plain_text(description, "descriptionType")
        abstracts.setdefault(kind, plain_text(description, "description"))
    dates: dict[str, str] = {}
    for date in as_list(attributes.get("dates")):
        dates.setdefault(plain_text(date, "dateType"), plain_text(date, "date"))
    named = [dates.get(name, "") for name in ("Issued", "Available", "Created")]
    year = plain_text(attributes, "publicationYear")
    names = [person_name(creator) for creator in as_list(attributes.get("creators"))]
    publisher = plain_text(attributes, "publisher") or plain_text(attributes, "publisher", "name")
    return record.paper(
        [record.plain("id")],
        title=next(filter(None, titles), ""),
        abstract=abstracts.get("Abstract", ""),
        authors=in_reading_order(names),
        venue=plain_text(attributes, "container", "title") or publisher,
        date=most_exact([year, *named]) or next(filter(None, named), ""),
        doi=plain_text(attributes, "doi") or record.plain("id"),
        url=first_address([plain_text(attributes, "url")]),
        lang=plain_text(attributes, "language"),
    )
