"""Read papers from JSON: corpus.jsonl, works of OpenAlex and Crossref, and CSL JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from claim2source.core.arguments import is_digits
from claim2source.core.errors import Problems
from claim2source.core.languages import primary_language
from claim2source.data.authors import person_name
from claim2source.data.beir import read_source
from claim2source.data.dates import iso_date
from claim2source.data.doi import plain_doi
from claim2source.data.json_fields import as_list as _list
from claim2source.data.json_fields import date_text as _date_text
from claim2source.data.json_fields import first_text, most_exact
from claim2source.data.json_fields import nested as _nested
from claim2source.data.json_fields import plain_text as _plain_text
from claim2source.data.jsonl import Row
from claim2source.data.paper_keys import PUBMED, choose_key, first_address
from claim2source.data.papers import (
    Paper,
    PaperTexts,
    iso_language,
    make_paper,
    tidy,
)
from claim2source.data.retractions import (
    RETRACTED,
    cell_state,
    notice_about,
    notice_state,
    worst,
)

ADDRESS = "https://openalex.org/"


def row_to_paper(row: Row) -> Paper | None:
    """Read a paper from corpus.jsonl; None if it cannot be read, which is reported."""
    key = row.as_id("_id", row.record.get("_id"))
    if key is None:
        return None
    row.key = key
    if _is_empty(row.record):
        return None
    source = read_source(row)
    if not f"{source.title}{source.abstract}".strip():
        return None

    doi = plain_doi(row.text("metadata.doi"))
    lang = row.text("metadata.lang")
    code = iso_language(lang) or primary_language(lang)
    retracted = row.meta.get("retracted")
    if isinstance(retracted, bool | int) or retracted is None:
        retracted = str(int(bool(retracted)))
    retracted_text = row.as_text("metadata.retracted", retracted)
    state = cell_state(retracted_text)
    paper = Paper(
        source,
        doi,
        row.text("metadata.url"),
        code,
        state,
    )
    return tidy(paper)


def _is_empty(record: Mapping[str, object]) -> bool:
    """Whether a record has neither title nor text, and no other key that may contain them."""
    texts = [record.get("title"), record.get("text")]
    if any(text is not None and str(text).strip() for text in texts):
        return False
    known_keys = {"_id", "title", "text", "metadata"}
    return set(record) <= known_keys


def read_openalex(row: Row, path: Path, problems: Problems) -> Paper | None:
    record = row.record
    key = row.as_id("id", record.get("id"))
    if key is None:
        return None
    short_key = key.removeprefix(ADDRESS)
    if not short_key.upper().startswith("W"):
        row.complain("id", f"{key!r} is not a work of OpenAlex")
        return None

    abstract = _in_order(row, record.get("abstract_inverted_index"))
    authors: list[str] = []
    for authorship in _list(record.get("authorships")):
        name = _nested(authorship, "author", "display_name")
        name = name or _nested(authorship, "raw_author_name")
        if isinstance(name, str) and name.strip():
            authors.append(row.as_text("authorships", name))
    other_locations = _list(record.get("locations"))
    locations = [record.get("primary_location"), *other_locations]
    names = (_nested(location, "source", "display_name") for location in locations)
    has_address = key.startswith("https://")
    is_retracted = record.get("is_retracted") is True
    texts = PaperTexts(
        key=short_key,
        title=first_text(row, "title", "display_name"),
        abstract=abstract or first_text(row, "abstract"),  # pyalex has the plain text
        authors=authors,
        venue=row.as_text("primary_location", next(filter(None, names), "")),
        date=first_text(row, "publication_date", "publication_year"),
        doi=first_text(row, "doi"),
        url=key if has_address else ADDRESS + key,
        lang=first_text(row, "language"),
        retracted=RETRACTED if is_retracted else "",
    )
    return make_paper(path, row.location, problems, texts)


def _in_order(row: Row, index: object) -> str:
    if index is None:
        return ""
    field = "abstract_inverted_index"
    if not isinstance(index, dict):
        row.complain(field, "is not an object")
        return ""
    words: list[tuple[int, str]] = []
    for word, positions in index.items():
        for position in _list(positions):
            if type(position) is int and position >= 0:
                words.append((position, word))
    text = " ".join(word for _, word in sorted(words))
    return row.as_text(field, text)


def read_crossref(row: Row, path: Path, problems: Problems) -> Paper | None:
    written_doi = first_text(row, "DOI", "doi") or _csl_id(row)
    doi = plain_doi(written_doi)
    titles = [
        _chosen(row, "title", path, problems),
        _joined(row, "subtitle"),
    ]
    date_fields = (
        "issued",
        "published",
        "published-online",
        "published-print",
        "posted",
    )
    dates = [_date_text(row.record.get(field)) for field in date_fields]
    created = _date_text(row.record.get("created"))
    authors = _list(row.record.get("author")) or _list(row.record.get("editor"))
    journal = _chosen(row, "container-title", path, problems)
    venue = journal or _nested_text(row, "institution")
    texts = PaperTexts(
        key="",
        title=": ".join(filter(None, titles)),
        abstract=_chosen(row, "abstract", path, problems),
        authors=[person_name(author) for author in authors],
        venue=venue,
        date=most_exact(dates) or created,
        doi=doi,
        url=_address(row),
        lang=first_text(row, "language"),
        retracted=_updates(row.record),
    )
    lower_doi = first_text(row, "DOI").strip().lower()
    ids = (doi, lower_doi, _csl_id(row))
    key = choose_key(
        path,
        row.location,
        problems,
        ids,
        texts,
    )
    with_key = replace(texts, key=key)
    return make_paper(path, row.location, problems, with_key)


def _csl_id(row: Row) -> str:
    """Read the id in CSL JSON; Zotero's begins with the address of its library."""
    key = _plain_text(row.record, "id") or _plain_text(row.record, "citation-key")
    return key.rpartition("/items/")[2]


def _address(row: Row) -> str:
    url = first_text(row, "URL", "url")
    pmid = _plain_text(row.record, "PMID")
    if not url and is_digits(pmid):
        return f"{PUBMED}{pmid}/"
    return first_address([url]) or url


def _chosen(
    row: Row,
    field: str,
    path: Path,
    problems: Problems,
) -> str:
    """Return the first text of a field; count other texts, such as translations."""
    values = _list(row.record.get(field))
    distinct = set(map(str, values))
    if len(distinct) > 1:
        problems.count(f"additional {field}s, skipped", path, row.location)
    return first_text(row, field)


def _joined(row: Row, field: str) -> str:
    listed = row.record.get(field)
    if isinstance(listed, list):
        texts = [row.as_text(field, text) for text in listed if text]
        return ": ".join(texts)
    return first_text(row, field)


def _updates(record: Mapping[str, object]) -> str:
    """Read the notices about a work of Crossref, and the works that it is itself a notice about."""
    own_doi = plain_doi(_plain_text(record, "DOI"))
    states: list[str] = []
    for update in _list(record.get("updated-by")):
        state = _update_state(update)
        states.append(state)
    for update in _list(record.get("update-to")):
        doi = plain_doi(_plain_text(update, "DOI"))
        if doi == own_doi:  # the work was withdrawn under its own DOI
            state = _update_state(update)
        else:
            kind = _update_kind(update)
            state = notice_about(kind, [doi])
        states.append(state)
    return worst(states)


def _update_kind(update: object) -> str:
    kind = _plain_text(update, "type").replace("_", " ")
    if notice_state(kind):
        return kind
    label = _plain_text(update, "label")
    return f"{kind} {label}"


def _update_state(update: object) -> str:
    kind = _update_kind(update)
    updated = _nested(update, "updated")
    time = _date_text(updated) or _plain_text(updated, "date-time")
    day = iso_date(time)
    doi = plain_doi(_plain_text(update, "DOI"))
    return notice_state(kind, day, doi)


def _nested_text(row: Row, field: str) -> str:
    listed = _list(row.record.get(field))
    if not listed:
        return ""
    name = _nested(listed[0], "name") or ""
    return row.as_text(field, name)
