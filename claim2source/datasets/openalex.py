"""Read works of OpenAlex: JSON lines, whose abstracts are stored as positions of words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from claim2source.core.records import Source
from claim2source.datasets.papers import Paper, plain_doi
from claim2source.io.jsonl import Row

ADDRESS = "https://openalex.org/"
# Of titles and abstracts, such as <i>Escherichia coli</i>.
_MARKUP = re.compile(r"</?(?:i|b|em|strong|sub|sup|scp|u|p|jats:[a-z]+)\s*>", re.IGNORECASE)


def is_work(record: Mapping[str, object]) -> bool:
    """Tell whether a record is a work of OpenAlex."""
    return str(record.get("id", "")).startswith(ADDRESS) or "abstract_inverted_index" in record


def read_work(row: Row) -> Paper | None:
    """Read a work; None for one without title and abstract. What is wrong is reported."""
    record = row.record
    key = row.as_id("id", record.get("id"))
    if key is None:
        return None
    given = record.get("title") or record.get("display_name") or ""
    title = _plain(row.as_text("title", given))
    abstract = _plain(_abstract(row, record.get("abstract_inverted_index")))
    if not (title or abstract):
        return None
    authors = []
    for authorship in _list(record.get("authorships")):
        name = _of(authorship, "author", "display_name")
        if isinstance(name, str) and name.strip():
            authors.append(row.as_text("authorships", name))
    venue = _of(record, "primary_location", "source", "display_name")
    source = Source(
        key.removeprefix(ADDRESS),
        title,
        abstract,
        tuple(authors),
        row.as_text("primary_location", venue or ""),
        row.as_text("publication_date", record.get("publication_date") or ""),
    )
    doi = plain_doi(row.as_text("doi", record.get("doi") or ""))
    lang = row.as_text("language", record.get("language") or "")
    url = key if key.startswith("https://") else ADDRESS + key
    return Paper(source, doi, url, lang.partition("-")[0].lower())


def _abstract(row: Row, index: object) -> str:
    """Put the words of an inverted abstract in order."""
    if index is None:
        return ""
    field = "abstract_inverted_index"
    if not isinstance(index, dict):
        row.complain(field, "is not an object")
        return ""
    placed = [
        (place, word)
        for word, places in index.items()
        for place in _list(places)
        if type(place) is int and place >= 0
    ]
    return row.as_text(field, " ".join(word for _, word in sorted(placed)))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _of(value: object, *keys: str) -> object:
    """Follow keys into objects; None where one is absent."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub("", text).split())
