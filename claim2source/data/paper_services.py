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

EUROPE_PMC = "https://europepmc.org/article/"
ARXIV = "https://arxiv.org/abs/"
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

    def paper(
        self,
        ids: Iterable[str],
        **texts: str | list[str] | tuple[str, ...],
    ) -> Paper | None:
        """Make the paper from its texts; its id is the DOI or the first of `ids`."""
        made = PaperTexts(key="", **texts)  # type: ignore[arg-type]
        if not f"{made.title}{made.abstract}".strip():
            return None
        location = self.row.location
        keys = filter(None, (plain_doi(made.doi), *ids))
        key = choose_key(
            self.path,
            location,
            self.problems,
            keys,
            made,
        )
        with_key = replace(made, key=key)
        return make_paper(self.path, location, self.problems, with_key)


def read_zotero(record: Record) -> Paper | None:
    """Read an item in Zotero's JSON, as its API, Better BibTeX and translators write it."""
    item_type = record.plain("itemType").lower()
    if item_type in ATTACHED:
        record.problems.count(NOTES, record.path, record.row.location)
        return None
    creators = as_list(record.value("creators"))
    by_role: dict[str, list[str]] = {}
    for creator in creators:
        role = plain_text(creator, "creatorType")
        name = person_name(creator)
        by_role.setdefault(role, []).append(name)
    everyone = list(chain.from_iterable(by_role.values()))
    by_role.setdefault("", everyone)
    authors = by_role.get("author") or by_role.get("editor") or by_role[""]
    extra = _zotero_extra(record.text("extra"))
    ids = [
        extra.get("pmid", ""),
        record.plain("key"),
        record.plain("itemKey"),
    ]
    return record.paper(
        ids,
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
        key = name.strip().lower()
        fields.setdefault(key, value.strip())
    return fields


def _pubmed_address(pmid: str) -> str:
    """Return the address of a paper at PubMed; "" if it has no id there."""
    return f"{PUBMED}{pmid}/" if pmid else ""


def read_semantic_scholar(record: Record) -> Paper | None:
    """Read a paper from Semantic Scholar's API and data sets, or from S2ORC."""
    external_ids = _external_ids(record)
    pubmed_text = record.text("pubmed_id", "pmid") or external_ids.get("pubmed", "")
    pmid = pubmed_id(pubmed_text)
    title, authors = _title_and_authors(record)
    texts = _annotated_texts(record)
    url = first_address([record.text("url", "s2_url")])
    ids = [
        pmid,
        record.plain("paperId"),
        record.plain("corpusId"),
        record.plain("corpusid"),
        record.plain("paper_id"),
        record.plain("cord_uid"),
    ]
    return record.paper(
        ids,
        title=title or texts.get("title", ""),
        abstract=_joined_abstract(record) or texts.get("abstract", ""),
        authors=[person_name(author) for author in authors],
        venue=_semantic_scholar_venue(record),
        date=record.text("publicationDate", "publicationdate", "year"),
        doi=record.text("doi", "DOI") or external_ids.get("doi", ""),
        url=url or _pubmed_address(pmid),
        lang=record.text("language", "lang"),
        retracted=_state(texts_in(record.value("publicationTypes"))),
    )


def _external_ids(record: Record) -> dict[str, str]:
    """Read a paper's ids in other services, by the service's name in lower case."""
    ids: dict[str, str] = {}
    for name in ("externalIds", "externalids", "external_ids"):
        found = record.value(name)
        if isinstance(found, Mapping):
            for key in found:
                service = str(key).lower()
                ids[service] = plain_text(found, key)
    return ids


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
    texts = [plain_text(paragraph, "text") for paragraph in paragraphs]
    return " ".join(filter(None, texts))


def _semantic_scholar_venue(record: Record) -> str:
    journal = record.plain("journal", "name")
    if isinstance(record.value("journal"), str):
        journal = record.text("journal")
    venue = record.text("venue") or journal
    return venue or record.plain("publicationVenue", "name")


def _annotated_texts(record: Record) -> dict[str, str]:
    """Extract title and abstract from the text of S2ORC by their annotations."""
    contents = as_list(record.value("content"))
    content = contents[0] if contents else None
    text = plain_text(content, "text")
    found: dict[str, str] = {}
    for name in ("title", "abstract"):
        places = nested(content, "annotations", name)
        if isinstance(places, str):
            places = parse_json(
                places,
                record.path,
                record.problems,
                record.row.line,
            )
        parts: list[str] = []
        for place in as_list(places):
            start = str(nested(place, "start"))
            end = str(nested(place, "end"))
            digits = start + end
            if is_digits(digits) and start and end and len(digits) < 20:
                parts.append(text[int(start) : int(end)])
        found[name] = " ".join(parts)
    return found


def read_europe_pmc(record: Record) -> Paper | None:
    """Read a result of Europe PMC in its core or lite form."""
    listed_authors = as_list(record.value("authorList", "author"))
    authors = [person_name(author) for author in listed_authors]
    if not any(authors):
        joined_authors = record.text("authorString").rstrip(". ")
        authors = list(author_names(joined_authors))
    journal = record.value("journalInfo")
    venue = plain_text(journal, "journal", "title") or record.text("journalTitle")
    source = record.plain("source")
    key = record.plain("id")
    pmid = record.plain("pmid")
    if not pmid and source == "MED":
        pmid = key
    dates = [
        record.text("firstPublicationDate"),
        record.text("electronicPublicationDate"),
        plain_text(journal, "printPublicationDate"),
        plain_text(journal, "dateOfPublication"),
        record.text("pubYear"),
    ]
    return record.paper(
        [pmid, record.plain("pmcid"), key],
        title=record.text("title"),
        abstract=record.text("abstractText"),
        authors=authors,
        venue=venue or record.plain("bookOrReportDetails", "publisher"),
        date=next(filter(None, dates), ""),
        doi=record.text("doi"),
        url=_pubmed_address(pmid) or _europe_pmc_address(record),
        lang=record.text("language"),
        retracted=_europe_pmc_state(record),
    )


def _europe_pmc_address(record: Record) -> str:
    """Return a paper's address at Europe PMC, or else the first one of its full text."""
    source = record.plain("source")
    key = record.plain("id")
    if source and key:
        return f"{EUROPE_PMC}{source}/{key}"
    addresses = as_list(record.value("fullTextUrlList", "fullTextUrl"))
    return first_address(map(_address, addresses))


def _address(value: object) -> str:
    return plain_text(value, "url")


def _europe_pmc_state(record: Record) -> str:
    types = texts_in(record.value("pubTypeList", "pubType"))
    if not types:
        types = [record.text("pubType")]
    states = [_state(types)]
    comments = record.value("commentCorrectionList", "commentCorrection")
    for comment in as_list(comments):
        kind = plain_text(comment, "type").lower()
        if kind.endswith((" in", "for")):
            notice = kind.removesuffix(" in")
            reference = plain_text(comment, "reference")
            states.append(notice_state(notice, reference))
    return worst(states)


def _state(types: Iterable[str]) -> str:
    """Return a paper's state by its types: whether it was retracted."""
    for kind in types:
        found = re.search(r"\b(retracted|withdrawn)\b", kind, re.IGNORECASE)
        if found:
            return notice_state(kind)
    return ""


def read_lens(record: Record) -> Paper | None:
    """Read a work from Lens."""
    ids: dict[str, str] = {}
    for entry in as_list(record.value("external_ids")):
        kind = plain_text(entry, "type").lower()
        ids.setdefault(kind, plain_text(entry, "value"))
    pmid = ids.get("pmid", "")
    source_urls = as_list(record.value("source_urls"))
    addresses = [plain_text(entry, "url") for entry in source_urls]
    authors = as_list(record.value("authors"))
    updates = as_list(record.value("retraction_updates"))
    is_retracted = bool(updates) or record.value("is_retracted") is True
    languages = record.value("languages")
    return record.paper(
        [pmid, record.plain("lens_id")],
        title=record.text("title"),
        abstract=record.text("abstract"),
        authors=[person_name(author) for author in authors],
        venue=record.plain("source", "title") or record.plain("source", "publisher"),
        date=record.text("date_published", "year_published")[:10],
        doi=ids.get("doi", ""),
        url=first_address(addresses) or _pubmed_address(pmid),
        lang=" ".join(texts_in(languages)) or record.text("language"),
        retracted=RETRACTED if is_retracted else "",
    )


def read_biorxiv(record: Record) -> Paper | None:
    """Read a preprint from the API of bioRxiv and medRxiv, `details` or `pubs`."""
    server = record.text("server", "preprint_platform")
    written_doi = record.text("doi", "biorxiv_doi", "preprint_doi")
    doi = plain_doi(written_doi)
    site = server.lower()
    has_site = site in ("biorxiv", "medrxiv")
    return record.paper(
        [],
        title=record.text("title", "preprint_title"),
        abstract=record.text("abstract", "preprint_abstract"),
        authors=author_names(record.text("authors", "preprint_authors")),
        venue=server,
        date=record.text("date", "preprint_date"),
        doi=doi,
        url=f"https://www.{site}.org/content/{doi}" if has_site else "",
        lang=record.text("language"),
        retracted=_state([record.text("type")]),
    )


def read_arxiv(record: Record) -> Paper | None:
    """Read a paper from arXiv's metadata."""
    names: list[str] = []
    for entry in as_list(record.value("authors_parsed")):
        parts = [part for part in as_list(entry) if isinstance(part, str)]
        family, *given = parts or [""]
        in_order = (*given[:1], family, *given[1:2])
        names.append(" ".join(filter(None, in_order)))
    authors = [name for name in names if name]
    versions = as_list(record.value("versions"))
    date = ""
    if versions:
        created = plain_text(versions[0], "created")
        date = _mail_day(created)
    key = record.plain("id")
    withdrawn = _WITHDRAWN.search(record.text("comments"))
    return record.paper(
        [key],
        title=record.text("title"),
        abstract=record.text("abstract"),
        authors=authors or list(author_names(record.text("authors"))),
        venue=record.text("journal-ref") or "arXiv",
        date=date or record.text("update_date"),
        doi=record.text("doi"),
        url=f"{ARXIV}{key}" if key else "",
        retracted=notice_state("withdrawn") if withdrawn else "",
    )


def _mail_day(text: str) -> str:
    """Return the day of a time such as "Mon, 2 Apr 2007 19:18:42 GMT"."""
    parsed = parsedate(text)
    if not parsed:
        return text
    return f"{parsed[0]:04}-{parsed[1]:02}-{parsed[2]:02}"


def read_datacite(record: Record) -> Paper | None:
    """Read a DOI record from DataCite."""
    found = record.value("attributes")
    attributes = found if isinstance(found, Mapping) else record.row.record
    listed_titles = as_list(attributes.get("titles"))
    titles = [plain_text(title, "title") for title in listed_titles]
    if len(titles) > 1:
        note = "additional titles, skipped"
        record.problems.count(note, record.path, record.row.location)

    descriptions = as_list(attributes.get("descriptions"))
    abstracts: dict[str, str] = {}
    for description in descriptions:
        kind = plain_text(description, "descriptionType")
        text = plain_text(description, "description")
        abstracts.setdefault(kind, text)

    creators = as_list(attributes.get("creators"))
    names = [person_name(creator) for creator in creators]
    venue = (
        plain_text(attributes, "container", "title")
        or plain_text(attributes, "publisher")
        or plain_text(attributes, "publisher", "name")
    )
    return record.paper(
        [record.plain("id")],
        title=next(filter(None, titles), ""),
        abstract=abstracts.get("Abstract", ""),
        authors=in_reading_order(names),
        venue=venue,
        date=_datacite_date(attributes),
        doi=plain_text(attributes, "doi") or record.plain("id"),
        url=first_address([plain_text(attributes, "url")]),
        lang=plain_text(attributes, "language"),
    )


def _datacite_date(attributes: Mapping[str, object]) -> str:
    """Choose the date of publication from a record's year and its dates by type."""
    dates: dict[str, str] = {}
    for entry in as_list(attributes.get("dates")):
        kind = plain_text(entry, "dateType")
        date = plain_text(entry, "date")
        dates.setdefault(kind, date)
    named = [dates.get(name, "") for name in ("Issued", "Available", "Created")]
    year = plain_text(attributes, "publicationYear")
    exact = most_exact([year, *named])
    return exact or next(filter(None, named), "")
