"""Recognise the columns of paper tables by the headings that databases and people use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import InputError, Problems, did_you_mean
from claim2source.data.beir import OF_SOURCES
from claim2source.data.text_files import heading_key

FIELDS = ("id", "title", "abstract", *OF_SOURCES)
# Headings of a field, reduced to lower-case letters and digits; the first filled cell of a row is
# used. Scopus, Web of Science, Zotero, PubMed, OpenAlex, IEEE, Springer, ERIC, Europe PMC,
# Dimensions, Lens, Embase, CORD-19 and Semantic Scholar.
_HEADINGS = {
    "id": "id",
    "title": """title articletitle documenttitle itemtitle papertitle preprinttitle ti t1
        displayname primarytitle originaltitle titel titre titulo título titolo""",
    "abstract": """abstract text abstracttext abstractnote papersabstract paperabstract
        preprintabstract ab n2 originalabstract summary zusammenfassung résumé resume resumen
        description""",
    "authors": """authorfullnames af authors author authornames authorshipsauthordisplayname
        authorsfullnames authorsnames authornamesfull authorslist authorlist authorstring
        authorshipsrawauthorname preprintauthors bookauthorfullnames bookauthors bf ba au a1
        firstauthors creators creator autoren auteurs autores editors editor bookeditors be""",
    "groups": "groupauthors bookgroupauthors ca gp",
    "venue": """venue sourcetitle publicationtitle publicationname journal journalname
        journaltitle journalbook journalorbook so primarylocationsourcedisplayname
        hostvenuedisplayname containertitle booktitle anthologytitle conferencename
        conferencetitle proceedingstitle meetingname bookseriestitle seriestitle
        preprintplatform server t2 jf jo zeitschrift revue revista source publisher""",
    "date": """date publicationdate datepublished publisheddate dateofpublication publishtime
        firstpublicationdate coverdate preprintdate pubdate onlinedate published
        publicationdateonline publicationdateprint issuedate pd datum fecha""",
    "year": """publicationyear year pubyear py yearpublished publicationdateyear
        yearofpublication yr jahr année annee año""",
    "early": "earlyaccessdate ea",
    "doi": "doi itemdoi di doilink doiurl idsdoi externalidsdoi preprintdoi articledoi",
    "url": """url link urls externalurl sourceurls primarylocationlandingpageurl landingpageurl
        doilink dimensionsurl fulltexturl fulltextlink embaselink openurllink pdflink ur website""",
    "lang": """lang language languages languageoforiginaldocument articlelanguage la sprache langue
        idioma""",
    "retracted": "retracted isretracted retractionstatus retraction retractednote",
    "type": """documenttype publicationtype publicationtypes itemtype dt pt typeofreference type
        pubtype""",
    "pmid": "pmid pubmedid idspmid medlinepmid pubmed pm medlineid",
    "key": """key citationkey citekey bibtexkey eid ut utuniquewosid uniquewosid uniqueid lensid
        publicationid paperid corpusid openalexid arxivid corduid accessionnumber ericnumber
        ericid embaseaccessionid pui externalid pmcid recordid refid referenceid articleid an""",
}
# Ambiguous between databases: used only if the field has no better column.
_WEAK = frozenset(("source", "description", "publisher", "text"))
# Headings that have this meaning only together with others of their source.
_WOS = frozenset("pt au af ti so la dt ab di pd py ut pm ca gp ba bf be ea d2".split())
_ANYWHERE = frozenset("ti ab au".split())


@dataclass(frozen=True)
class Columns:
    """Columns of a table by field, in order of preference, and all of its headings."""

    fields: Mapping[str, tuple[str, ...]]
    header: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """List the columns that are used, each once."""
        names: dict[str, None] = {}
        for columns in self.fields.values():
            names |= dict.fromkeys(columns)
        return list(names)

    def label(self, field: str) -> str:
        """Return the name of a field's first column, or of the field if it has none."""
        columns = self.fields.get(field)
        return columns[0] if columns else field

    def has(self, *keys: str) -> bool:
        """Whether the table has all of these headings."""
        return set(keys) <= {heading_key(name) for name in self.header}


KNOWN = frozenset(name for names in _HEADINGS.values() for name in names.split())


def match_columns(header: Sequence[str], renamed: Mapping[str, str]) -> Columns:
    """Match the headings of a table with fields; `renamed` maps fields to the user's columns."""
    taken = set(renamed.values())
    by_key: dict[str, list[str]] = {}
    for name in dict.fromkeys(header):
        if name and name not in taken:
            by_key.setdefault(heading_key(name), []).append(name)
    is_wos = len(_WOS & set(by_key)) >= 6
    fields: dict[str, tuple[str, ...]] = {}
    for field in _HEADINGS:
        found = (renamed[field],) if field in renamed else _found_columns(field, by_key, is_wos)
        if found:
            fields[field] = found
    return Columns(fields, tuple(header))


def _found_columns(
    field: str, by_key: Mapping[str, Sequence[str]], is_wos: bool
) -> tuple[str, ...]:
    """List the columns of a field by their headings, the best one first."""
    found: list[str] = []
    for key in _HEADINGS[field].split():
        is_meant = is_wos or key not in _WOS or key in _ANYWHERE
        # In Web of Science, "ID" are keywords, and "PT" is the type of the publication.
        if is_wos and (field, key) in (("id", "id"), ("type", "pt")):
            is_meant = False
        if key in _WEAK and found:
            is_meant = False
        if is_meant:
            found += by_key.get(key, ())
    return tuple(found)


def table_columns(
    path: Path, header: Sequence[str], renamed: Mapping[str, str], problems: Problems
) -> Columns:
    """Match the columns of a file. Raises `InputError` if one is missing or ambiguous."""
    if not any(header):
        raise InputError(path, reason="is empty: the first line must name the columns")
    header_text = ", ".join(header)
    for name, column in renamed.items():
        if column not in header:
            near = did_you_mean(column, header)
            reason = f"no column {column!r}; {near}there are: {header_text}"
            raise InputError(path, field=name, reason=reason)
    columns = match_columns(header, renamed)
    for column in columns.names:
        if header.count(column) > 1:
            reason = f"{header.count(column)} columns have this name; there are: {header_text}"
            raise InputError(path, field=column, reason=reason)
    if not {"title", "abstract"} & set(columns.fields):
        reason = f"no such column: pass --columns title=COLUMN; there are: {header_text}"
        raise InputError(path, field="title", reason=reason)
    read = set(columns.names)
    if unread := [column for column in header if column and column not in read]:
        listed = ", ".join(unread[:8]) + ", .." * (len(unread) > 8)
        problems.count(f"tables with unused columns ({listed})", path)
    return columns
