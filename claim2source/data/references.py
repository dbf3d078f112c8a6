"""Read exports of reference managers and PubMed: RIS and NBIB."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from claim2source.core.errors import Problems, UserError
from claim2source.data.authors import in_reading_order
from claim2source.data.papers import (
    NO_TITLE,
    RETRACTED,
    Paper,
    PaperTexts,
    first_day,
    make_paper,
    plain_doi,
)
from claim2source.data.text_files import any_lines, id_error

PUBMED = "https://pubmed.ncbi.nlm.nih.gov/"
# Tag -> field; of a field's tags the first present one counts.
_RIS = {
    "title": ("TI", "T1", "CT", "BT"),
    "abstract": ("AB", "N2"),
    "authors": ("AU", "A1"),
    "venue": ("JF", "JO", "T2", "JA", "J2", "PB"),
    "date": ("DA", "Y1", "PY", "YR"),
    "doi": ("DO", "DI"),
    "url": ("UR", "L2"),
    "lang": ("LA",),
    "id": ("ID", "AN"),
}
_NBIB = {
    "title": ("TI", "BTI", "TT"),
    "abstract": ("AB", "OAB"),
    "authors": ("FAU", "AU", "CN"),
    "venue": ("JT", "TA"),
    "date": ("DEP", "DP"),
    "doi": ("LID", "AID"),
    "url": (),
    "lang": ("LA",),
    "id": ("PMID",),
    "types": ("PT",),
}
_NBIB_LINE = re.compile(r"(?=.{4}- )([A-Z]{2,4}) *- (.*)", re.DOTALL)
Values = Mapping[str, Sequence[str]]


def read_tagged(
    path: Path, problems: Problems, kind: Literal["ris", "nbib"]
) -> Iterator[Paper | None]:
    """Yield the references of RIS or of PubMed's NBIB; None for one without title and abstract."""
    try:
        from rispy import RisParser
    except ImportError as error:
        raise missing_library(error) from None

    class NbibParser(RisParser):
        START_TAG = "PMID"

        def parse_line(self, line: str) -> tuple[str | None, str]:
            match = _NBIB_LINE.match(line)
            return (match[1], match[2].strip()) if match else (None, line.strip())

    parser_class: type[RisParser] = NbibParser
    fields, start = _NBIB, "PMID"
    if kind == "ris":
        parser_class = RisParser
        fields, start = _RIS, "TY"
    tags = [start, "ER", *chain.from_iterable(fields.values())]
    parser = parser_class(
        mapping={tag: tag for tag in tags},
        list_tags=tags,
        delimiter_tags_mapping={},
        skip_unknown_tags=True,
    )
    number = 0
    for line, record in _records(path, problems, f"{start:4}-"):
        number += 1
        # The last one of a file that was cut off has no end.
        for parsed in parser.parse_lines(iter([*record, "ER  - "])):
            values: dict[str, Sequence[str]] = {}
            for tag, texts in parsed.items():
                values[tag] = [texts] if isinstance(texts, str) else texts
            yield read_reference(path, line, problems, fields, values)
    if not number:
        problems.add(path, None, None, f"holds no references that begin with {start}")


def _records(path: Path, problems: Problems, start: str) -> Iterator[tuple[int, list[str]]]:
    first = 0
    lines: list[str] = []
    for number, line in any_lines(path, problems):
        begins = line.startswith(start)
        if first and (begins or line.startswith("ER  -")):
            yield first, lines
            first, lines = 0, []
        if begins:
            first = number
        if first:
            lines.append(line)
    if first:
        yield first, lines


def read_reference(
    path: Path,
    line: int,
    problems: Problems,
    fields: Mapping[str, Sequence[str]],
    values: Values,
    key: str = "",
) -> Paper | None:
    joined: dict[str, str] = {}
    for tag, entries in values.items():
        text = " ".join(entries)
        if text.strip():
            joined[tag] = text
    texts: dict[str, list[str]] = {}
    for field, tags in fields.items():
        texts[field] = [joined[tag] for tag in tags if tag in joined]
    titles = [entry for entry in texts["title"] if entry.strip(" .[]").lower() not in NO_TITLE]
    for field, found in (("title", titles), ("abstract", texts["abstract"])):
        if len(set(found)) > 1:
            problems.count(f"{field}s beside another one, left out", path, line)
    title = _first(titles)
    abstract = _first(texts["abstract"])
    date = _date(texts["date"])
    doi = _first(filter(None, map(plain_doi, texts["doi"] + texts["url"])))
    key = key or _reference_id(texts["id"], doi, prefers_doi="DO" in fields["doi"])
    if not key and (title or abstract):
        text = title or abstract
        key = hashlib.sha256(f"{text.lower()} {date[:4]}".encode()).hexdigest()[:16]
        problems.count("references without an id, which is made of the title", path, line)
    url = f"{PUBMED}{key}/"
    if fields is not _NBIB:
        url = _first(filter(_is_web_address, texts["url"]))
    return make_paper(
        path,
        line,
        problems,
        PaperTexts(
            key=key,
            title=title,
            abstract=abstract,
            authors=_author_names(values, fields["authors"]),
            venue=_first(texts["venue"]),
            date=date,
            doi=doi,
            url=url,
            lang=_first(texts["lang"]),
            retracted=RETRACTED if "Retracted Publication" in values.get("PT", ()) else "",
        ),
    )


def _first(texts: Iterable[str]) -> str:
    return next(iter(texts), "")


def _is_web_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _date(dates: Sequence[str]) -> str:
    """Choose the first date that can be read, or else the first."""
    ordered = sorted(dates, key=lambda entry: first_day(entry) == 0)
    return _first(ordered).partition("//")[0].rstrip("/")  # Zotero's 2019/10//undefined


def _reference_id(ids: Sequence[str], doi: str, prefers_doi: bool) -> str:
    """Choose the id of a reference: one of its own, or its DOI; "" if none can be an id."""
    if prefers_doi and doi:
        return doi
    return _first(entry for entry in (*ids, doi) if not id_error(entry))


def _author_names(values: Values, tags: Sequence[str]) -> tuple[str, ...]:
    """Read the authors of the first tag that has any, and then the groups among them."""
    names: list[str] = []
    for tag in tags:
        if values.get(tag):
            names += values[tag]
            break
    people = set(names)
    if "CN" in tags:
        names += [group for group in values.get("CN", ()) if group not in people]
    return in_reading_order(names)


def missing_library(error: ImportError) -> UserError:
    return UserError(
        f"references are read by {error.name}, which is not installed; "
        "pip install 'claim2source[index]'"
    )
