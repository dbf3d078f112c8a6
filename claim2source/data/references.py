"""Read tagged exports: RIS, NBIB, Web of Science, EndNote and RefWorks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

from claim2source.core.errors import Problems, UserError
from claim2source.data.authors import in_reading_order
from claim2source.data.dates import first_day, last_day
from claim2source.data.doi import plain_doi, plain_dois
from claim2source.data.paper_keys import PUBMED, choose_key, first_address, is_placeholder
from claim2source.data.papers import (
    NO_TITLE,
    Paper,
    PaperTexts,
    iso_language,
    make_paper,
)
from claim2source.data.retractions import notice_about, notice_state, worst
from claim2source.data.text_files import any_lines

Kind = Literal["ris", "nbib", "wos", "endnote", "refworks"]
# Field -> tags; the first tag that is present is used.
_RIS = {
    "title": ("TI", "T1", "CT"),
    "book": ("BT",),
    "abstract": ("AB", "N2"),
    "authors": ("AU", "A1", "A2", "ED"),
    "venue": ("JF", "JO", "T2", "JA", "J2", "BT", "C3", "T3", "PB"),
    "date": ("DA", "Y1", "PY", "YR"),
    "doi": ("DO", "DI"),
    "notes": ("M3", "N1"),
    "url": ("UR", "L2", "LK", "L1"),
    "lang": ("LA",),
    "id": ("ID", "AN"),
    "pmid": ("PM",),
    "types": ("M3", "TY"),
}
_NBIB = {
    "title": ("TI", "BTI", "TT"),
    "abstract": ("AB", "OAB"),
    "authors": ("FAU", "AU", "FED", "ED"),
    "groups": ("CN",),
    "venue": ("JT", "TA"),
    "date": ("DEP", "DP"),
    "doi": ("LID", "AID"),
    "url": ("LID", "AID"),
    "lang": ("LA",),
    "id": ("PMID", "OID"),
    "pmid": ("PMID",),
    "types": ("PT",),
    "notices": ("RIN", "PRIN", "ECI", "EIN", "CRI", "RRI", "ROF", "PROF", "ECF", "EFR"),
}
_WOS = {
    "title": ("TI",),
    "abstract": ("AB",),
    "authors": ("AF", "AU", "BF", "BA", "BE"),
    "groups": ("CA", "GP"),
    "venue": ("SO", "SE", "J9", "PU"),
    "date": ("PD", "PY", "EA", "EY"),
    "doi": ("DI",),  # not D2, which is the DOI of a chapter's book
    "url": (),
    "lang": ("LA",),
    "id": ("PM", "UT"),
    "pmid": ("PM",),
    "types": ("DT",),
}
_REFWORKS = {
    "title": ("T1", "OT"),
    "book": ("T2",),
    "abstract": ("AB",),
    "authors": ("A1", "A2", "A3"),
    "venue": ("JF", "T2", "JO", "T3", "PB"),
    "date": ("FD", "YR"),
    "doi": ("DO",),
    "notes": ("NO",),
    "url": ("UL", "LK"),
    "lang": ("LA",),
    "id": ("ID", "AN"),
    "pmid": ("PMID",),
    "types": ("RT",),
}
# NBIB: tags of notices about an article, and tags of an article that is itself a notice.
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
_ENDNOTE = {
    "title": ("%T",),
    "abstract": ("%X",),
    "authors": ("%A", "%E", "%Y"),
    "venue": ("%J", "%B", "%S", "%I"),
    "date": ("%8", "%D"),
    "doi": ("%R",),
    "url": ("%U", "%>"),
    "lang": ("%G",),
    "id": ("%M", "%F", "%L"),
    "pmid": (),
    "types": ("%9",),
}
_FIELDS: dict[Kind, Mapping[str, Sequence[str]]] = {
    "ris": _RIS,
    "nbib": _NBIB,
    "wos": _WOS,
    "endnote": _ENDNOTE,
    "refworks": _REFWORKS,
}
# Beginning of a record, for messages.
_STARTS: dict[Kind, str] = {
    "ris": "TY",
    "nbib": "PMID",
    "wos": "PT",
    "endnote": "%0",
    "refworks": "RT",
}
# A line of one of these tags ends a reference.
_ENDS: dict[Kind, tuple[str, ...]] = {
    "ris": ("ER", "EF"),
    "nbib": (),
    "wos": ("ER", "EF"),
    "endnote": (),
    "refworks": ("ER",),
}
# A line's tag and its text. If "TY" is followed by one space, so are all tags of the file.
_RIS_LINE = re.compile(r"([A-Z][A-Z0-9])  - ?(.*)")
_LOOSE_RIS_LINE = re.compile(r"([A-Z][A-Z0-9]) {1,2}- ?(.*)")
_LINES: dict[Kind, re.Pattern[str]] = {
    "ris": _RIS_LINE,
    "nbib": re.compile(r"(?=.{4}-(?: |$))([A-Z]{2,4}) *-(?: (.*)|$)"),
    "wos": re.compile(r"([A-Z][A-Z0-9])(?: (.*)|$)"),
    "endnote": re.compile(r"(%[0-9A-Z!-/:-@\[-`{-~])(?: (.*)|$)"),
    # A list of tags, since a line of text may begin with "UK " or "WE ".
    "refworks": re.compile(
        r"(RT|SR|ID|A[1-6]|T[1-3]|J[FO]|YR|FD|VO|IS|[SO]P|K1|AB|NO|ED|P[BP]|S[NTFL]|A[VDN]|LA|CL"
        r"|OT|LK|UL|LL|DO|CN|D[BS]|IP|RD|U[1-9]|U1[0-5]|CR|W[TVP]|OL|C[1-8]|PMID|PMCID|ER)"
        r"(?: (.*)|$)"
    ),
}
# Tags of Web of Science whose lines without a tag are new entries; others are continued.
_LISTS = frozenset(("AF", "AU", "BF", "BA", "BE", "CA", "GP"))
_CALLED_BACK = re.compile(r"\b(?:retracted|withdrawn)\b", re.IGNORECASE)
# Web of Science writes an author's address after the name.
_EMAIL = re.compile(r"\s*[(\[<]?\s*[^\s()\[\]<>,;]+@[^\s()\[\]<>,;]+\s*[)\]>]?")
_SAME_AUTHORS = ("AU", "A1")
_PMID = re.compile(r"[0-9]{1,9}")
_END = "ER"
# A DOI in a note is the paper's own only if it is labelled as a DOI.
_DOI_NOTE = re.compile(r"\s*(?:doi\b|https?://(?:dx\.)?doi\.org/)", re.IGNORECASE)
# Difference between `last_day` and `first_day` of a year.
_YEAR_SPAN = 1100
Values = Mapping[str, Sequence[str]]
Fields = Mapping[str, Sequence[str]]
Lines = list[tuple[str, str]]
# A tag, and the lines of its text.
_Tagged = tuple[str, list[str]]


def read_tagged(path: Path, problems: Problems, kind: Kind) -> Iterator[Paper | None]:
    """Yield the references of a tagged file; None for one without title and abstract.

    Formats: RIS, NBIB of PubMed and ERIC, Web of Science's own, EndNote's "%T" and RefWorks.
    """
    try:
        from rispy import RisParser, WokParser
    except ImportError as error:
        raise missing_library(error) from None

    class TaggedParser(RisParser):
        START_TAG = _STARTS[kind]

        def parse_line(self, line: str) -> tuple[str | None, str]:
            tag, _, text = line.partition("\t")
            return tag, text

    class TaggedWokParser(TaggedParser, WokParser):
        pass

    fields = _FIELDS[kind]
    tags = {_STARTS[kind], *chain.from_iterable(fields.values())}
    parser_class = TaggedWokParser if kind == "wos" else TaggedParser
    parser = parser_class(
        mapping={tag: tag for tag in tags},
        list_tags=list(tags),
        delimiter_tags_mapping={},
        ignore=[],
        skip_unknown_tags=True,
    )
    number = 0
    for line, record in _records(path, problems, kind):
        number += 1
        lines = [f"{tag}\t{text}" for tag, text in record]
        # Some records begin with another tag, and a file's last record may have no end.
        parsed = parser.parse_lines(iter([f"{_STARTS[kind]}\t", *lines, f"{_END}\t"]))
        if len(parsed) == 1:
            yield read_reference(path, line, problems, fields, parsed[0])
        else:
            problems.add(path, line, None, "is an unreadable reference")
            yield None
    if not number:
        reason = f"contains no references that begin with {_STARTS[kind]}"
        problems.add(path, None, None, reason)


def _records(path: Path, problems: Problems, kind: Kind) -> Iterator[tuple[int, Lines]]:
    """Yield each reference's first line, and its tags with their texts."""
    first = 0
    record: list[_Tagged] = []
    for number, tag, text, after_blank in _tagged_lines(path, problems, kind):
        is_first = _begins(kind, tag, record, after_blank)
        if first and (is_first or tag in _ENDS[kind]):
            yield first, _joined(record)
            first, record = 0, []
        if is_first:
            first = number
        if first and tag:
            record.append((tag, [text]))
        elif first:
            _go_on(record, text, kind)
    if first:
        yield first, _joined(record)


def _tagged_lines(
    path: Path, problems: Problems, kind: Kind
) -> Iterator[tuple[int, str, str, bool]]:
    """Yield the number, tag and text of each line, and whether it follows a blank one.

    The tag of a line without one is "".
    """
    pattern = _LINES[kind]
    after_blank = True
    for number, raw in any_lines(path, problems):
        line = raw.rstrip()
        if not line:
            after_blank = True
            continue
        if kind == "ris" and line.startswith("TY"):
            pattern = _LOOSE_RIS_LINE if line.startswith("TY -") else _RIS_LINE
        match = pattern.match(line)
        tag, text = (match[1], match[2] or "") if match else ("", line)
        yield number, tag, text.strip(), after_blank
        after_blank = False


def _joined(record: Sequence[_Tagged]) -> Lines:
    return [(tag, " ".join(parts).strip()) for tag, parts in record]


def _begins(kind: Kind, tag: str, record: Sequence[_Tagged], after_blank: bool) -> bool:
    """Whether a tag begins a new reference."""
    if kind == "nbib":
        return _begins_nbib(tag, record, after_blank)
    if kind == "endnote":
        return _begins_endnote(tag, record, after_blank)
    return tag == _STARTS[kind]


def _begins_nbib(tag: str, record: Sequence[_Tagged], after_blank: bool) -> bool:
    is_new = not record or after_blank
    if tag == "OWN":
        return is_new  # ERIC's references have no PMID
    return tag == "PMID" and (is_new or "PMID" in {name for name, _ in record})


def _begins_endnote(tag: str, record: Sequence[_Tagged], after_blank: bool) -> bool:
    start = _STARTS["endnote"]
    if not record or not tag:
        return bool(tag)
    if tag != start and not after_blank:
        return False
    # A reference may have two types, and those of an old program have none.
    tags = {name for name, _ in record}
    return tag == start and tags != {start} or after_blank and start not in tags


def _go_on(record: list[_Tagged], text: str, kind: Kind) -> None:
    """Append a line without a tag to the last entry, or as a new entry of a list."""
    tag, parts = record[-1]
    if kind == "wos" and tag in _LISTS:
        record.append((tag, [text]))
    else:
        parts.append(text)


def read_reference(
    path: Path,
    line: int,
    problems: Problems,
    fields: Fields,
    values: Values,
    key: str = "",
) -> Paper | None:
    titles: list[str] = []
    for text in _texts(values, fields["title"]):
        if text.strip(" .[]").lower() not in NO_TITLE:
            titles.append(text)
    abstracts = _texts(values, fields["abstract"])
    for field, found in (("title", titles), ("abstract", abstracts)):
        if len(set(found)) > 1:
            problems.count(f"additional {field}s, skipped", path, line)
    title = _first([*titles, *_texts(values, fields.get("book", ()))])
    venues = [entry for entry in _entries(values, fields["venue"]) if entry != title]
    pmid = _first(filter(_PMID.fullmatch, _entries(values, fields.get("pmid", ()))))
    made = PaperTexts(
        key=key,
        title=title,
        abstract=_first(abstracts),
        authors=_author_names(values, fields),
        venue=_first(venues),
        date=_date(_entries(values, fields["date"])),
        doi=_doi(values, fields),
        url=_address(values, fields, pmid),
        lang=_language(_entries(values, fields["lang"])),
        retracted=_state(values, _entries(values, fields.get("types", ()))),
    )
    if not key and (title or made.abstract):
        ids = _entries(values, fields["id"])
        ids = [*ids, made.doi] if fields is _NBIB else [made.doi, pmid, *ids]
        key = choose_key(path, line, problems, ids, made)
    return make_paper(path, line, problems, replace(made, key=key))


def _texts(values: Values, tags: Sequence[str]) -> list[str]:
    """List the text of each tag that has one, joined from its entries."""
    texts: list[str] = []
    for tag in tags:
        text = " ".join(values.get(tag, ()))
        if text.strip() and not is_placeholder(text):
            texts.append(text)
    return texts


def _doi(values: Values, fields: Fields) -> str:
    """Choose the first DOI: from its own tags, from notes with a label, or from an address."""
    notes = filter(_DOI_NOTE.match, _entries(values, fields.get("notes", ())))
    written = [*_entries(values, fields["doi"]), *notes, *_entries(values, fields["url"])]
    return _first(filter(None, map(plain_doi, written)))


def _address(values: Values, fields: Fields, pmid: str) -> str:
    """Choose the address: PubMed's own in its exports, else the first web address."""
    page = f"{PUBMED}{pmid}/" if pmid else ""
    if page and fields is _NBIB:
        return page
    return first_address(_entries(values, fields["url"])) or page


def _entries(values: Values, tags: Sequence[str]) -> list[str]:
    """List the entries of several tags that are not blank."""
    entries: list[str] = []
    for tag in tags:
        entries += [entry for entry in values.get(tag, ()) if entry.strip()]
    return entries


def _first(texts: Iterable[str]) -> str:
    return next(iter(texts), "")


def _language(entries: Sequence[str]) -> str:
    """Choose the first known language, or else the first one."""
    return _first([*filter(iso_language, entries), *entries])


def _state(values: Values, types: Sequence[str]) -> str:
    """Return the paper's state by its types and PubMed's notices."""
    states = [notice_state(kind) for kind in types if _CALLED_BACK.search(kind)]
    for tag, kind in _NOTICES_IN.items():
        for text in values.get(tag, ()):
            source = _NOTICE_PMID.split(text)[0].strip(" .")
            states.append(notice_state(kind, source))
    for tag, kind in _NOTICES_OF.items():
        for text in values.get(tag, ()):
            states.append(notice_about(kind, [*plain_dois(text), *_NOTICE_PMID.findall(text)]))
    return worst(states)


def _date(entries: Sequence[str]) -> str:
    """Choose the first date that can be parsed, or else the first one.

    A year alone is combined with a month, or replaced by a date in that year.
    """
    dates = [entry.partition("//")[0].strip(" /") for entry in entries]
    ordered = sorted(dates, key=lambda entry: first_day(entry) == 0)
    date = _first(ordered)
    if not re.fullmatch("[0-9]{4}", date):
        return date
    for other in ordered[1:]:
        longer = other if first_day(other) else f"{date} {other}"
        if longer.startswith(date) and last_day(longer) - first_day(longer) < _YEAR_SPAN:
            return longer
    return date


def _author_names(values: Values, fields: Fields) -> tuple[str, ...]:
    """Return the authors of the first tag that has any, followed by group authors."""
    names: list[str] = []
    for tag in fields["authors"]:
        names = _people(values, tag)
        if names:
            # Some programs use one tag for the first author and another one for the others.
            if tag in _SAME_AUTHORS:
                names = _united([_people(values, name) for name in values if name in _SAME_AUTHORS])
            break
    people = set(names)
    names += [name for name in _entries(values, fields.get("groups", ())) if name not in people]
    return in_reading_order(names)


def _people(values: Values, tag: str) -> list[str]:
    """List the names of a tag, without e-mail addresses."""
    names = (_EMAIL.sub("", entry).strip() for entry in values.get(tag, ()))
    return [name for name in names if name and not is_placeholder(name)]


def _united(lists: Sequence[Sequence[str]]) -> list[str]:
    """Merge lists of names: add the names of a later list that are not in an earlier one."""
    united: list[str] = []
    for names in lists:
        known = {_surname_and_initial(name) for name in united}
        united += [name for name in names if _surname_and_initial(name) not in known]
    return united


def _surname_and_initial(name: str) -> tuple[str, str]:
    surname, _, given = name.casefold().partition(",")
    return surname, given.strip()[:1]


def missing_library(error: ImportError) -> UserError:
    return UserError(
        f"such files need {error.name}, which is not installed; pip install 'claim2source[index]'"
    )
