"""Read exports of reference managers and PubMed: RIS, NBIB and BibTeX."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from claim2source.core.errors import Problems, UserError
from claim2source.data.authors import in_reading_order
from claim2source.data.dates import first_day
from claim2source.data.doi import plain_doi, plain_dois
from claim2source.data.papers import (
    NO_TITLE,
    Paper,
    PaperTexts,
    make_paper,
)
from claim2source.data.retractions import RETRACTED, notice_about, notice_state, worst
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
    "notices": ("RIN", "PRIN", "ECI", "EIN", "CRI", "RRI", "ROF", "PROF", "ECF", "EFR"),
}
# NBIB: what a notice of an article says of it, and what an article says as a notice of another.
_NOTICES_IN = {
    "RIN": "retraction",
    "PRIN": "partial retraction",
    "RRI": "retracted and republished",
    "ECI": "concern",
    "EIN": "erratum",
    "CRI": "corrected and republished",
}
_NOTICES_OF = {
    "ROF": "retraction",
    "PROF": "partial retraction",
    "ECF": "concern",
    "EFR": "erratum",
}
_NOTICE_PMID = re.compile(r"\bPMID: *([0-9]+)")
_BIBTEX = {
    "title": ("title",),
    "abstract": ("abstract",),
    "authors": ("author", "editor"),
    "venue": ("journal", "journaltitle", "booktitle", "publisher", "school", "institution"),
    "date": ("date", "year"),
    "doi": ("doi", "url"),
    "url": ("url", "howpublished"),
    "lang": ("langid", "language"),
    "id": (),
}
_NBIB_LINE = re.compile(r"(?=.{4}- )([A-Z]{2,4}) *- (.*)", re.DOTALL)
# LaTeX: marks, formulas, and signs that people write without a backslash.
_LATEX = re.compile(r"[\\{}$~]|--|``|''")
_MATH = re.compile(r"(?<!\\)\$(?=\S)(?!\d[^$]*\$\d)([^$]*)(?<=[^\s\\])\$")  # but not "$5 or $10"
_UNESCAPED = re.compile(r"(?<!\\)([$%&#])")

Values = Mapping[str, Sequence[str]]


def read_tagged(
    path: Path, problems: Problems, kind: Literal["ris", "nbib"]
) -> Iterator[Paper | None]:
    """Yield the references of RIS or of PubMed's NBIB; None for one without title and abstract."""
    try:
        from rispy import RisParser
    except ImportError as error:
        raise _missing_library(error) from None

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
            yield _reference(path, line, problems, fields, values)
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


def _reference(
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
            retracted=_nbib_notices(values),
        ),
    )


def _nbib_notices(values: Values) -> str:
    """Read the notices of an article, and the articles that it is itself a notice of."""
    states: list[str] = []
    if "Retracted Publication" in values.get("PT", ()):
        states.append(RETRACTED)
    for tag, kind in _NOTICES_IN.items():
        for text in values.get(tag, ()):
            source = _NOTICE_PMID.split(text)[0].strip(" .")
            states.append(notice_state(kind, source))
    for tag, kind in _NOTICES_OF.items():
        for text in values.get(tag, ()):
            states.append(notice_about(kind, [*plain_dois(text), *_NOTICE_PMID.findall(text)]))
    return worst(states)


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


def read_bibtex(path: Path, problems: Problems) -> Iterator[Paper | None]:
    """Yield the entries of BibTeX, which is read whole; None for one without title and abstract."""
    try:
        import bibtexparser
        from bibtexparser.middlewares.names import (
            parse_single_name_into_parts,
            split_multiple_persons_names,
        )
        from bibtexparser.model import DuplicateBlockKeyBlock, Entry, ParsingFailedBlock
        from pylatexenc.latex2text import LatexNodes2Text
    except ImportError as error:
        raise _missing_library(error) from None
    for name in ("bibtexparser", "pylatexenc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what fails is reported below
    decode = LatexNodes2Text(math_mode="text").latex_to_text

    def field_text(latex: str) -> str:
        if not _LATEX.search(latex):
            return latex
        without_math = _MATH.sub(lambda math: "{" + re.sub("[_^]", "", math[1]) + "}", latex)
        try:
            return str(decode(_UNESCAPED.sub(r"\\\1", without_math)))
        except (ValueError, RecursionError, IndexError):
            problems.count("texts whose LaTeX cannot be read, as they are", path)
            return latex

    def list_names(latex: str) -> list[str]:
        names: list[str] = []
        for text in split_multiple_persons_names(latex):
            if text != "others":
                name = parse_single_name_into_parts(text, strict=False)
                names.append(field_text(name.merge_first_name_first))
        return names

    def entry_values(entry: Entry) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        for field in entry.fields:
            name, latex = field.key.lower(), str(field.value)
            if name in ("author", "editor"):
                values[name] = list_names(latex)
            else:
                values[name] = [field_text(latex)]
        if "year" in values and "month" in values:
            date = values["year"] + values["month"] + values.get("day", [])
            values["year"] = ["-".join(date)]
        return values

    lines = [line for _, line in any_lines(path, problems)]
    library = bibtexparser.parse_string("".join(lines).replace("\r\n", "\n").replace("\r", "\n"))
    for block in library.blocks:
        line = (block.start_line or 0) + 1
        # Of entries with one key the caller takes the one with more text.
        twin = block.ignore_error_block if isinstance(block, DuplicateBlockKeyBlock) else None
        entry = twin or block
        if isinstance(entry, Entry):
            values = entry_values(entry)
            yield _reference(path, line, problems, _BIBTEX, values, entry.key)
        elif isinstance(block, ParsingFailedBlock):
            reason = " ".join(str(block.error or "").split()) or "is a brace or quote not closed?"
            problems.add(path, line, None, f"broken BibTeX: {reason}")
    if not (library.entries or library.failed_blocks):
        problems.add(path, None, None, "holds no BibTeX entries")


def _missing_library(error: ImportError) -> UserError:
    return UserError(
        f"references are read by {error.name}, which is not installed; "
        "pip install 'claim2source[index]'"
    )
