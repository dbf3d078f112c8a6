"""Read papers of JSON: corpus.jsonl, and answers of the APIs of OpenAlex and Crossref."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.core.languages import primary_language
from claim2source.data.authors import person_name
from claim2source.data.beir import read_source
from claim2source.data.dates import iso_date
from claim2source.data.doi import plain_doi
from claim2source.data.jsonl import Row, json_records, parse_row
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
# What holds the works of an answer: OpenAlex's pages, Crossref's, its dumps and its single works.
_LISTS = ("results", "items", "message", "data")
# Keys of a work of Crossref, or of CSL JSON, which reference managers write.
_CROSSREF = ("DOI", "container-title", "issued")
# Keys by which records of other services are known.
_FOREIGN = {
    "paperId": "Semantic Scholar",
    "corpusid": "Semantic Scholar",
    "resultList": "Europe PMC",
    "esearchresult": "PubMed's search, without articles",
    "attributes": "DataCite",
    "itemType": "Zotero",
}


def read_json(path: Path, problems: Problems, kind: str | None) -> Iterator[Paper | None]:
    """Yield the papers of a file; None for a record that is reported or counted instead.

    `kind` says what the records are; by default each is read as what it is.
    """
    for row in json_records(path, problems):
        for work in _works(row, path, problems):
            if kind == "openalex" or kind is None and _is_openalex(work.record):
                yield _openalex(work, path, problems)
            elif kind == "crossref" or kind is None and _is_crossref(work.record):
                yield _crossref(work, path, problems)
            elif name := next((_FOREIGN[key] for key in _FOREIGN if key in work.record), ""):
                work.complain("", f"is a record of {name}, which is not read: export RIS or BibTeX")
                yield None
            else:
                yield row_to_paper(work)


def _works(row: Row, path: Path, problems: Problems) -> Iterator[Row]:
    value: object = row.record
    while isinstance(value, Mapping) and not {"_id", "id", "DOI", "title"} & set(value):
        inner = [value[key] for key in _LISTS if isinstance(value.get(key), dict | list)]
        if not inner:
            break
        value = inner[0]
    if value is row.record:
        yield row
        return
    for number, work in enumerate(value if isinstance(value, list) else [value], start=1):
        if (parsed := parse_row(work, path, problems, number, f"work {number}")) is not None:
            yield parsed


def row_to_paper(row: Row) -> Paper | None:
    """Read a paper of corpus.jsonl; None for one that cannot be read, which is reported."""
    key = row.as_id("_id", row.record.get("_id"))
    if key is None:
        return None
    row.key = key
    source = read_source(row)
    if not f"{source.title}{source.abstract}".strip():
        return None  # that it is empty was reported
    doi, lang = plain_doi(row.text("metadata.doi")), row.text("metadata.lang")
    code = iso_language(lang) or primary_language(lang)
    retracted = row.meta.get("retracted")
    if isinstance(retracted, bool | int) or retracted is None:
        retracted = str(int(bool(retracted)))
    state = cell_state(row.as_text("metadata.retracted", retracted))
    return tidy(Paper(source, doi, row.text("metadata.url"), code, state))


def _is_openalex(record: Mapping[str, object]) -> bool:
    return str(record.get("id", "")).startswith(ADDRESS) or "abstract_inverted_index" in record


def _is_crossref(record: Mapping[str, object]) -> bool:
    return "_id" not in record and any(key in record for key in _CROSSREF)


def _openalex(row: Row, path: Path, problems: Problems) -> Paper | None:
    record = row.record
    key = row.as_id("id", record.get("id"))
    if key is None:
        return None
    if not key.removeprefix(ADDRESS).upper().startswith("W"):
        row.complain("id", f"{key!r} is not a work of OpenAlex")
        return None
    abstract = _in_order(row, record.get("abstract_inverted_index"))
    authors: list[str] = []
    for authorship in _list(record.get("authorships")):
        name = _nested(authorship, "author", "display_name")
        name = name or _nested(authorship, "raw_author_name")
        if isinstance(name, str) and name.strip():
            authors.append(row.as_text("authorships", name))
    locations = [record.get("primary_location"), *_list(record.get("locations"))]
    names = (_nested(location, "source", "display_name") for location in locations)
    texts = PaperTexts(
        key=key.removeprefix(ADDRESS),
        title=_first_text(row, "title", "display_name"),
        abstract=abstract or _first_text(row, "abstract"),  # pyalex has it in order
        authors=authors,
        venue=row.as_text("primary_location", next(filter(None, names), "")),
        date=_first_text(row, "publication_date", "publication_year"),
        doi=_first_text(row, "doi"),
        url=key if key.startswith("https://") else ADDRESS + key,
        lang=_first_text(row, "language"),
        retracted=RETRACTED if record.get("is_retracted") is True else "",
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
    return row.as_text(field, " ".join(word for _, word in sorted(words)))


def _crossref(row: Row, path: Path, problems: Problems) -> Paper | None:
    doi = _first_text(row, "DOI", "doi")
    key = plain_doi(doi) or doi.strip().lower() or row.as_id("id", row.record.get("id"))
    if key is None:
        return None
    titles = [_first_text(row, "title"), _first_text(row, "subtitle")]
    dates = (row.record.get(name) for name in ("issued", "published", "posted", "created"))
    texts = PaperTexts(
        key=key,
        title=": ".join(filter(None, titles)),
        abstract=_first_text(row, "abstract"),
        authors=[person_name(author) for author in _list(row.record.get("author"))],
        venue=_first_text(row, "container-title") or _nested_text(row, "institution"),
        date=next(filter(None, map(_date_text, dates)), ""),
        doi=key,
        url=_first_text(row, "URL"),
        lang=_first_text(row, "language"),
        retracted=_updates(row.record),
    )
    return make_paper(path, row.location, problems, texts)


def _updates(record: Mapping[str, object]) -> str:
    """Read every notice of a work of Crossref, and every work that it is itself a notice of."""
    own_doi = plain_doi(_plain_text(record, "DOI"))
    states: list[str] = []
    for update in _list(record.get("updated-by")):
        states.append(_update_state(update))
    for update in _list(record.get("update-to")):
        doi = plain_doi(_plain_text(update, "DOI"))
        if doi == own_doi:  # withdrawn in its own place
            states.append(_update_state(update))
        else:
            states.append(notice_about(_update_kind(update), [doi]))
    return worst(states)


def _update_kind(update: object) -> str:
    kind = _plain_text(update, "type").replace("_", " ")
    return kind if notice_state(kind) else f"{kind} {_plain_text(update, 'label')}"


def _update_state(update: object) -> str:
    updated = _nested(update, "updated")
    day = iso_date(_date_text(updated) or _plain_text(updated, "date-time"))
    return notice_state(_update_kind(update), day, plain_doi(_plain_text(update, "DOI")))


def _plain_text(value: object, key: str) -> str:
    text = _nested(value, key)
    return text if isinstance(text, str) else ""


def _date_text(value: object) -> str:
    """Write {"date-parts": [[2020, 5, 12]]}, or the text that stands for it."""
    dates = _list(_nested(value, "date-parts"))
    parts = _list(dates[0]) if dates else []
    if parts and all(parts):
        year, *rest = map(str, parts)
        return "-".join([year, *(part.zfill(2) for part in rest)])
    text = _nested(value, "raw") or _nested(value, "literal")
    return text if isinstance(text, str) else ""


def _nested_text(row: Row, field: str) -> str:
    listed = _list(row.record.get(field))
    if not listed:
        return ""
    return row.as_text(field, _nested(listed[0], "name") or "")


def _first_text(row: Row, *fields: str) -> str:
    for field in fields:
        value = row.record.get(field)
        if isinstance(value, list):
            value = next(filter(None, value), None)
        if value not in (None, "", 0):
            return str(value) if type(value) is int else row.as_text(field, value)
    return ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _nested(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
