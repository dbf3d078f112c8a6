"""Write records in the formats of databases and reference managers, independently of our readers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from openpyxl import Workbook

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
LANGUAGES = {"en": "English", "de": "German", "fr": "French", "es": "Spanish"}


@dataclass(frozen=True)
class Drawn:
    """Record with all possible fields; `date` is a year and perhaps a month and a day."""

    title: str
    abstract: str
    people: tuple[tuple[str, str], ...]
    venue: str
    date: tuple[int, ...]
    doi: str
    pmid: str
    lang: str
    url: str
    is_retracted: bool

    @property
    def iso(self) -> str:
        year, *rest = self.date
        return "-".join([f"{year:04}", *(f"{part:02}" for part in rest)])

    @property
    def families(self) -> list[str]:
        return [f"{family}, {given}" for family, given in self.people]

    @property
    def names(self) -> list[str]:
        return [f"{given} {family}" for family, given in self.people]

    @property
    def language(self) -> str:
        return LANGUAGES[self.lang]

    @property
    def month_and_day(self) -> str:
        """Write "MAR 15", "MAR" or ""."""
        parts = [MONTHS[month - 1].upper() for month in self.date[1:2]]
        return " ".join([*parts, *(str(day) for day in self.date[2:3])])


Writer = Callable[[Sequence[Drawn]], bytes]


@dataclass(frozen=True)
class Export:
    """Format: the name of a file, its writer, and its missing fields."""

    name: str
    write: Writer
    lacks: frozenset[str] = frozenset()
    # Number of parts of a date: 1 is only the year.
    date_parts: int = 3


def lines_of(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def tagged(template: str, tag: str, entries: Sequence[str]) -> list[str]:
    return [template.format(tag, entry) for entry in entries if entry]


def ris(records: Sequence[Drawn]) -> bytes:
    lines: list[str] = []
    for record in records:
        lines += ["TY  - JOUR", f"TI  - {record.title}", f"AB  - {record.abstract}"]
        lines += tagged("{}  - {}", "AU", record.families)
        lines += tagged("{}  - {}", "T2", [record.venue])
        lines += [f"DA  - {record.iso.replace('-', '/')}", f"PY  - {record.date[0]}"]
        lines += tagged("{}  - {}", "DO", [record.doi])
        lines += [f"UR  - {record.url}", f"LA  - {record.language}"]
        lines += ["M3  - Retracted Article"] if record.is_retracted else []
        lines += ["ER  - ", ""]
    return lines_of(*lines)


def folded(tag: str, text: str, indent: int) -> list[str]:
    """Break a text after some words, as databases do."""
    words = text.split()
    first, second = " ".join(words[:3]), " ".join(words[3:])
    lines = [f"{tag}{first}"]
    return lines + [" " * indent + second] if second else lines


def nbib(records: Sequence[Drawn]) -> bytes:
    lines: list[str] = []
    for record in records:
        month_and_day = record.month_and_day.title()
        lines += ["", f"PMID- {record.pmid}", "OWN - NLM"]
        lines += folded("TI  - ", record.title, 6)
        lines += folded("AB  - ", record.abstract, 6)
        for name in record.families:
            lines += [f"FAU - {name}", f"AU  - {name.split(',')[0]} X"]
        lines += [f"DP  - {record.date[0]} {month_and_day}".rstrip(), f"JT  - {record.venue}"]
        lines += tagged("{} - {} [doi]", "LID", [record.doi])
        lines += [f"LA  - {record.language[:3].lower()}", "PT  - Journal Article"]
        lines += ["PT  - Retracted Publication"] if record.is_retracted else []
    return lines_of(*lines)


def web_of_science(records: Sequence[Drawn]) -> bytes:
    lines = ["FN Clarivate Analytics Web of Science", "VR 1.0"]
    for number, record in enumerate(records):
        families = [family for family, _ in record.people]
        lines += ["PT J"]
        for tag, names in (("AU", families), ("AF", record.families)):
            lines += [
                f"{tag if position == 0 else '  '} {name}" for position, name in enumerate(names)
            ]
        lines += folded("TI ", record.title, 3)
        lines += folded("AB ", record.abstract, 3)
        lines += [f"SO {record.venue}", f"LA {record.language}"]
        lines += ["DT Article; Retracted Publication" if record.is_retracted else "DT Article"]
        lines += tagged("{} {}", "PD", [record.month_and_day])
        lines += [f"PY {record.date[0]}"]
        lines += tagged("{} {}", "DI", [record.doi])
        lines += [f"UT WOS:{number:015}", "ER", ""]
    return b"\xef\xbb\xbf" + lines_of(*lines, "EF")


def enw(records: Sequence[Drawn]) -> bytes:
    lines: list[str] = []
    for record in records:
        lines += ["%0 Journal Article", f"%T {record.title}", f"%X {record.abstract}"]
        lines += tagged("{} {}", "%A", record.families)
        lines += [f"%J {record.venue}", f"%D {record.date[0]}"]
        lines += tagged("{} {}", "%8", [record.month_and_day.title()])
        lines += tagged("{} {}", "%R", [record.doi])
        lines += [f"%U {record.url}", f"%G {record.language}"]
        lines += ["%9 Retracted Article"] if record.is_retracted else []
        lines += ["", ""]
    return lines_of(*lines)


def refworks(records: Sequence[Drawn]) -> bytes:
    lines: list[str] = []
    for record in records:
        kind = "Retracted Article" if record.is_retracted else "Journal Article"
        lines += [f"RT {kind}", "SR Electronic(1)", f"ID {record.pmid}"]
        lines += tagged("{} {}", "A1", [name.replace(", ", ",") for name in record.families])
        lines += folded("T1 ", record.title, 0)
        lines += [f"JF {record.venue}", f"YR {record.date[0]}"]
        lines += tagged("{} {}", "FD", [record.month_and_day.title()])
        lines += ["VO 12", "IS 3", "SP 45", "OP 50", "K1 UK schools"]
        lines += folded("AB ", record.abstract, 0)
        lines += tagged("{} {}", "DO", [record.doi])
        lines += [f"UL {record.url}", f"LA {record.language}", "RD 2 Jan 2025", ""]
    return "\r\n".join(lines).encode()


def element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>" if text else ""


def style(name: str, text: str) -> str:
    """Write a text of EndNote in two pieces with different styles."""
    first, _, second = text.partition(" ")
    pieces = [first + " ", second] if second else [first]
    inner = "".join(f'<style face="normal" size="100%">{escape(piece)}</style>' for piece in pieces)
    return f"<{name}>{inner}</{name}>" if text else ""


def endnote_xml(records: Sequence[Drawn]) -> bytes:
    parts: list[str] = []
    for number, record in enumerate(records, start=1):
        kind = "Retracted Article" if record.is_retracted else "Journal Article"
        authors = "".join(style("author", name) for name in record.families)
        day = style("date", record.month_and_day.title())
        parts += [
            "<record>",
            '<source-app name="EndNote" version="21.0">EndNote</source-app>',
            f'<rec-number>{number}</rec-number><ref-type name="{kind}">17</ref-type>',
            f"<contributors><authors>{authors}</authors></contributors>",
            f"<titles>{style('title', record.title)}{style('secondary-title', record.venue)}</titles>",
            f"<dates>{style('year', str(record.date[0]))}<pub-dates>{day}</pub-dates></dates>",
            style("abstract", record.abstract),
            style("electronic-resource-num", record.doi),
            style("language", record.language),
            f"<urls><related-urls>{style('url', record.url)}</related-urls></urls></record>",
        ]
    inner = "".join(parts)
    return f'<?xml version="1.0" encoding="UTF-8" ?><xml><records>{inner}</records></xml>'.encode()


def pubmed_xml(records: Sequence[Drawn]) -> bytes:
    parts: list[str] = []
    for record in records:
        authors = ""
        for family, given in record.people:
            names = element("LastName", family) + element("ForeName", given)
            authors += f"<Author>{names}</Author>"
        date = "".join(map(element, ("Year", "Month", "Day"), map(str, record.date)))
        kind = "Retracted Publication" if record.is_retracted else "Journal Article"
        doi = f'<ELocationID EIdType="doi">{record.doi}</ELocationID>' if record.doi else ""
        parts += [
            "<PubmedArticle><MedlineCitation>",
            f"{element('PMID', record.pmid)}<Article><Journal>{element('Title', record.venue)}",
            f"<JournalIssue><PubDate>{date}</PubDate></JournalIssue></Journal>",
            f"{element('ArticleTitle', record.title)}{doi}",
            f"<Abstract>{element('AbstractText', record.abstract)}</Abstract>",
            f"<AuthorList>{authors}</AuthorList>{element('Language', record.language[:3].lower())}",
            f"<PublicationTypeList>{element('PublicationType', kind)}</PublicationTypeList>",
            "</Article></MedlineCitation></PubmedArticle>",
        ]
    return f"<PubmedArticleSet>{''.join(parts)}</PubmedArticleSet>".encode()


def europe_pmc_xml(records: Sequence[Drawn]) -> bytes:
    parts: list[str] = []
    for record in records:
        authors = ""
        for family, given in record.people:
            names = element("fullName", f"{family} {given[0]}") + element("firstName", given)
            authors += f"<author>{names}{element('lastName', family)}</author>"
        kind = "Retracted Publication" if record.is_retracted else "research-article"
        parts += [
            f"<result>{element('id', record.pmid)}{element('source', 'MED')}",
            element("pmid", record.pmid) + element("doi", record.doi),
            element("title", record.title),
            f"<authorList>{authors}</authorList>",
            f"<journalInfo><journal>{element('title', record.venue)}</journal></journalInfo>",
            element("abstractText", record.abstract) + element("language", record.lang),
            f"<pubTypeList>{element('pubType', kind)}</pubTypeList>",
            f"{element('firstPublicationDate', record.iso)}</result>",
        ]
    inner = "".join(parts)
    return f"<responseWrapper><resultList>{inner}</resultList></responseWrapper>".encode()


Row = dict[str, str]


def table(rows: Sequence[Row], delimiter: str = ",", before: str = "") -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return (before + buffer.getvalue()).encode("utf-8-sig")


def by_rows(row: Callable[[Drawn], Row], delimiter: str = ",", before: str = "") -> Writer:
    return lambda records: table([row(record) for record in records], delimiter, before)


def zotero_row(record: Drawn) -> Row:
    return {
        "Key": f"K{record.pmid}",
        "Item Type": "journalArticle",
        "Publication Year": str(record.date[0]),
        "Author": "; ".join(record.families),
        "Title": record.title,
        "Publication Title": record.venue,
        "ISSN": "1234-5678",
        "DOI": record.doi,
        "Url": record.url,
        "Abstract Note": record.abstract,
        "Date": record.iso,
        "Date Added": "2024-01-02 03:04:05",
        "Language": record.lang,
        "Notes": "<p>A note</p>",
    }


def scopus_row(record: Drawn) -> Row:
    numbered = [f"{name} ({number})" for number, name in enumerate(record.families, start=57)]
    return {
        "Authors": "; ".join(f"{family} {given[0]}." for family, given in record.people),
        "Author full names": "; ".join(numbered),
        "Author(s) ID": "57; 58",
        "Title": record.title,
        "Year": str(record.date[0]),
        "Source title": record.venue,
        "DOI": record.doi,
        "Link": record.url,
        "Abstract": record.abstract or "[No abstract available]",
        "Language of Original Document": record.language,
        "Document Type": "Retracted" if record.is_retracted else "Article",
        "Source": "Scopus",
        "EID": f"2-s2.0-{record.pmid}",
    }


def wos_row(record: Drawn) -> Row:
    return {
        "PT": "J",
        "AU": "; ".join(f"{family}, {given[0]}" for family, given in record.people),
        "AF": "; ".join(record.families),
        "TI": record.title,
        "SO": record.venue,
        "LA": record.language,
        "DT": "Article; Retracted Publication" if record.is_retracted else "Article",
        "ID": "KEYWORD; OTHER KEYWORD",
        "AB": record.abstract,
        "PD": record.month_and_day,
        "PY": str(record.date[0]),
        "DI": record.doi,
        "UT": f"WOS:{record.pmid:0>15}",
    }


def wos_tab(records: Sequence[Drawn]) -> bytes:
    """Write Web of Science's table: nothing is quoted, and each row ends with a tab."""
    rows = [wos_row(record) for record in records]
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) + "\t" for row in rows)]
    return "\r\n".join(lines).encode("utf-16")


def pubmed_row(record: Drawn) -> Row:
    initials = [f"{family} {given[0]}" for family, given in record.people]
    return {
        "PMID": record.pmid,
        "Title": record.title,
        "Authors": ", ".join(initials) + "." * bool(initials),
        "Citation": f"{record.venue}. {record.date[0]};1:2-3. doi: {record.doi}.",
        "First Author": initials[0] if initials else "",
        "Journal/Book": record.venue,
        "Publication Year": str(record.date[0]),
        "Create Date": "2024/05/06",
        "PMCID": "",
        "NIHMS ID": "",
        "DOI": record.doi,
    }


def openalex_row(record: Drawn) -> Row:
    return {
        "id": f"https://openalex.org/W{record.pmid}",
        "abstract": record.abstract,
        "authorships.author.display_name": "|".join(record.names),
        "cited_by_count": "5",
        "display_name": record.title,
        "doi": f"https://doi.org/{record.doi}" if record.doi else "",
        "is_retracted": str(record.is_retracted),
        "language": record.lang,
        "primary_location.landing_page_url": record.url,
        "primary_location.source.display_name": record.venue,
        "publication_date": record.iso,
        "publication_year": str(record.date[0]),
    }


def ieee_row(record: Drawn) -> Row:
    return {
        "Document Title": record.title,
        "Authors": "; ".join(record.names),
        "Author Affiliations": "NA; NA",
        "Publication Title": record.venue,
        "Date Added To Xplore": "7 May 2024",
        "Publication Year": str(record.date[0]),
        "Abstract": record.abstract,
        "DOI": record.doi,
        "PDF Link": record.url,
        "Publisher": "IEEE",
        "Document Identifier": "IEEE Conferences",
    }


def springer_row(record: Drawn) -> Row:
    return {
        "Item Title": record.title,
        "Publication Title": record.venue,
        "Book Series Title": "",
        "Journal Volume": "1",
        "Item DOI": record.doi,
        "Authors": "".join(record.names),
        "Publication Year": str(record.date[0]),
        "URL": record.url,
        "Content Type": "Article",
    }


def eric_row(record: Drawn) -> Row:
    return {
        "id": f"EJ{record.pmid}",
        "title": record.title,
        "author": "; ".join(record.families),
        "source": record.venue,
        "publicationdateyear": str(record.date[0]),
        "description": record.abstract,
        "publisher": "A publisher",
        "language": record.language,
        "url": record.url,
    }


def europe_pmc_row(record: Drawn) -> Row:
    return {
        "SOURCE": "MED",
        "EXTERNAL_ID": record.pmid,
        "TITLE": record.title,
        "AUTHORS": "; ".join(record.families),
        "JOURNAL_TITLE": record.venue,
        "FIRST_PUBLICATION_DATE": record.iso,
        "ABSTRACT": record.abstract,
        "PMID": record.pmid,
        "DOI": record.doi,
    }


def dimensions_row(record: Drawn) -> Row:
    return {
        "Rank": "1",
        "Publication ID": f"pub.{record.pmid}",
        "DOI": record.doi,
        "PMID": record.pmid,
        "Title": record.title,
        "Abstract": record.abstract,
        "Source title": record.venue,
        "Publication date": record.iso,
        "PubYear": str(record.date[0]),
        "Authors": "; ".join(record.families),
        "Dimensions URL": record.url,
    }


ABOUT = '"About the data: Exported on Sep 30, 2026. Criteria: ""masks"" in title and abstract."\r\n'


def lens_row(record: Drawn) -> Row:
    return {
        "Lens ID": f"000-{record.pmid}",
        "Title": record.title,
        "Date Published": record.iso,
        "Publication Year": str(record.date[0]),
        "Source Title": record.venue,
        "Author/s": "; ".join(record.names),
        "Abstract": record.abstract,
        "Source URLs": f"{record.url}; https://example.org/other",
        "External URL": "",
        "PMID": record.pmid,
        "DOI": record.doi,
    }


def workbook(records: Sequence[Drawn]) -> bytes:
    """Write a workbook with a title above its table, numbers as numbers, and a second sheet."""
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["Papers of our group"])
    rows = [scopus_row(record) for record in records]
    sheet.append(list(rows[0]))
    for row in rows:
        sheet.append([int(value) if key == "Year" else value for key, value in row.items()])
    book.create_sheet("Notes").append(["Title", "Abstract"])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


Json = dict[str, object]


def json_list(item: Callable[[Drawn], Json], wrap: Callable[[list[Json]], object] = list) -> Writer:
    def write(records: Sequence[Drawn]) -> bytes:
        return json.dumps(wrap([item(record) for record in records]), indent=1).encode()

    return write


def json_lines(item: Callable[[Drawn], Json]) -> Writer:
    return lambda records: lines_of(*(json.dumps(item(record)) for record in records))


def zotero_item(record: Drawn) -> Json:
    creators: list[Json] = []
    for family, given in record.people:
        creators.append({"firstName": given, "lastName": family, "creatorType": "author"})
    creators.append({"name": "An editor", "creatorType": "editor"})
    data = {
        "key": f"K{record.pmid}",
        "version": 1,
        "itemType": "journalArticle",
        "title": record.title,
        "creators": creators if record.people else [],
        "abstractNote": record.abstract,
        "publicationTitle": record.venue,
        "date": record.iso,
        "language": record.lang,
        "DOI": record.doi,
        "url": record.url,
    }
    return {"key": data["key"], "version": 1, "library": {"type": "user"}, "data": data}


def csl_item(record: Drawn) -> Json:
    return {
        "id": f"http://zotero.org/users/1/items/K{record.pmid}",
        "type": "article-journal",
        "title": record.title,
        "abstract": record.abstract,
        "container-title": record.venue,
        "author": [{"family": family, "given": given} for family, given in record.people],
        "issued": {"date-parts": [[str(part) for part in record.date]]},
        "language": record.lang,
        "DOI": record.doi,
        "URL": record.url,
    }


def crossref_item(record: Drawn) -> Json:
    """Write a work whose date of issue is only a year."""
    return {
        **csl_item(record),
        "id": None,
        "title": [record.title],
        "container-title": [record.venue],
        "issued": {"date-parts": [[record.date[0]]]},
        "published-online": {"date-parts": [list(record.date)]},
        "created": {"date-parts": [[2024, 5, 6]]},
        "updated-by": [
            {"type": "correction", "DOI": "10.5555/c"},
            {"type": "retraction" if record.is_retracted else "correction", "DOI": "10.5555/n"},
        ],
    }


def openalex_work(record: Drawn) -> Json:
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(record.abstract.split()):
        positions.setdefault(word, []).append(position)
    return {
        "id": f"https://openalex.org/W{record.pmid}",
        "title": record.title,
        "abstract_inverted_index": positions,
        "authorships": [{"author": {"display_name": name}} for name in record.names],
        "primary_location": {"source": {"display_name": record.venue}},
        "publication_date": record.iso,
        "doi": f"https://doi.org/{record.doi}" if record.doi else None,
        "language": record.lang,
        "is_retracted": record.is_retracted,
    }


def semantic_scholar_paper(record: Drawn) -> Json:
    return {
        "paperId": f"p{record.pmid}",
        "externalIds": {"DOI": record.doi, "CorpusId": 7},
        "url": record.url,
        "title": record.title,
        "abstract": record.abstract,
        "venue": record.venue,
        "year": record.date[0],
        "publicationDate": record.iso,
        "authors": [{"authorId": "1", "name": name} for name in record.names],
    }


def s2orc_paper(record: Drawn) -> Json:
    authors: list[Json] = []
    for family, given in record.people:
        authors.append({"first": given, "middle": [], "last": family, "suffix": ""})
    return {
        "paper_id": f"p{record.pmid}",
        "title": record.title,
        "authors": authors,
        "abstract": record.abstract,
        "year": record.date[0],
        "venue": None,
        "journal": record.venue,
        "doi": record.doi,
        "pubmed_id": None,
        "s2_url": record.url,
    }


def europe_pmc_result(record: Drawn) -> Json:
    authors: list[Json] = []
    for family, given in record.people:
        names = {"fullName": f"{family} {given[0]}", "firstName": given, "lastName": family}
        authors.append(dict(names))
    kinds = ["Retracted Publication"] if record.is_retracted else ["Journal Article"]
    return {
        "id": record.pmid,
        "source": "MED",
        "pmid": record.pmid,
        "doi": record.doi,
        "title": record.title,
        "authorString": "; ".join(record.families),
        "authorList": {"author": authors},
        "journalInfo": {"journal": {"title": record.venue}, "yearOfPublication": 1999},
        "pubYear": str(record.date[0]),
        "abstractText": record.abstract,
        "language": record.language[:3].lower(),
        "pubTypeList": {"pubType": kinds},
        "firstPublicationDate": record.iso,
    }


def lens_work(record: Drawn) -> Json:
    names = [{"first_name": given, "last_name": family} for family, given in record.people]
    return {
        "lens_id": f"000-{record.pmid}",
        "title": record.title,
        "abstract": record.abstract,
        "authors": names,
        "source": {"title": record.venue, "type": "Journal"},
        "date_published": record.iso,
        "year_published": record.date[0],
        "external_ids": [
            {"type": "doi", "value": record.doi},
            {"type": "pmid", "value": record.pmid},
        ],
        "source_urls": [{"type": "html", "url": record.url}],
        "languages": [record.lang],
        "retraction_updates": [{"update_nature": "Retraction"}] if record.is_retracted else [],
    }


def biorxiv_preprint(record: Drawn) -> Json:
    return {
        "doi": record.doi,
        "title": record.title,
        "authors": "; ".join(record.families),
        "author_corresponding": "Somebody",
        "date": record.iso,
        "version": "1",
        "type": "WITHDRAWN" if record.is_retracted else "new results",
        "category": "biology",
        "jatsxml": "https://example.org/a.xml",
        "abstract": record.abstract,
        "published": "NA",
        "server": record.venue,
    }


def arxiv_paper(record: Drawn) -> Json:
    year, month, day = (*record.date, 1, 1)[:3]
    return {
        "id": f"{record.pmid}.001",
        "submitter": "Somebody",
        "authors": " and ".join(record.names),
        "title": record.title.replace(" ", "\n  ", 1),
        "comments": "12 pages",
        "journal-ref": record.venue,
        "doi": record.doi or None,
        "categories": "cs.IR",
        "abstract": f"  {record.abstract}\n",
        "versions": [
            {"version": "v1", "created": f"Mon, {day} {MONTHS[month - 1]} {year} 19:18:42 GMT"}
        ],
        "update_date": "2024-05-06",
        "authors_parsed": [[family, given, ""] for family, given in record.people],
    }


def datacite_work(record: Drawn) -> Json:
    attributes = {
        "doi": record.doi,
        "titles": [{"title": record.title}],
        "creators": [{"name": name, "nameType": "Personal"} for name in record.families],
        "publisher": record.venue,
        "publicationYear": record.date[0],
        "dates": [{"date": record.iso, "dateType": "Issued"}],
        "descriptions": [
            {"description": "12 pages", "descriptionType": "Other"},
            {"description": record.abstract, "descriptionType": "Abstract"},
        ],
        "language": record.lang,
        "url": record.url,
    }
    return {"id": record.doi or f"x{record.pmid}", "type": "dois", "attributes": attributes}


def lacking(*fields: str) -> frozenset[str]:
    return frozenset(fields)


def wrapped(*keys: str) -> Callable[[list[Json]], object]:
    def wrap(items: list[Json]) -> object:
        value: object = items
        for key in reversed(keys):
            value = {key: value}
        return value

    return wrap


EXPORTS = (
    Export("library.ris", ris),
    Export("savedrecs.ris.txt", ris),
    Export("pubmed-masks-set.txt", nbib, lacking("url")),
    Export("savedrecs.txt", web_of_science, lacking("url")),
    Export("savedrecs.ciw", web_of_science, lacking("url")),
    Export("library.enw", enw),
    Export("refworks.txt", refworks),
    Export("library.xml", endnote_xml),
    Export("pubmed.xml", pubmed_xml, lacking("url")),
    Export("europe_pmc.xml", europe_pmc_xml, lacking("url")),
    Export("zotero.csv", by_rows(zotero_row), lacking("retracted")),
    Export("zotero.txt", by_rows(zotero_row, ";"), lacking("retracted")),
    Export("scopus.csv", by_rows(scopus_row), date_parts=1),
    Export("scopus.xlsx", workbook, date_parts=1),
    Export("savedrecs.tab.txt", wos_tab, lacking("url")),
    Export("pubmed.csv", by_rows(pubmed_row), lacking("abstract", "lang", "url", "retracted"), 1),
    Export("works.csv", by_rows(openalex_row)),
    Export("export2024.csv", by_rows(ieee_row), lacking("lang", "retracted"), 1),
    Export("SearchResults.csv", by_rows(springer_row), lacking("abstract", "lang", "retracted"), 1),
    Export("eric.csv", by_rows(eric_row), lacking("doi", "retracted"), 1),
    Export("europe_pmc.csv", by_rows(europe_pmc_row), lacking("lang", "url", "retracted")),
    Export("dimensions.csv", by_rows(dimensions_row, before=ABOUT), lacking("lang", "retracted")),
    Export("lens.csv", by_rows(lens_row), lacking("lang", "retracted")),
    Export("zotero.json", json_list(zotero_item), lacking("retracted")),
    Export("better.json", json_list(zotero_item, wrapped("items")), lacking("retracted")),
    Export("csl.json", json_list(csl_item), lacking("retracted")),
    Export("crossref.json", json_list(crossref_item, wrapped("message", "items"))),
    Export("openalex.json", json_list(openalex_work, wrapped("results")), lacking("url")),
    Export("openalex.jsonl", json_lines(openalex_work), lacking("url")),
    Export(
        "s2.json", json_list(semantic_scholar_paper, wrapped("data")), lacking("lang", "retracted")
    ),
    Export("s2orc.jsonl", json_lines(s2orc_paper), lacking("lang", "retracted"), 1),
    Export(
        "epmc.json", json_list(europe_pmc_result, wrapped("resultList", "result")), lacking("url")
    ),
    Export("lens.json", json_list(lens_work, wrapped("data"))),
    Export("lens.jsonl", json_lines(lens_work)),
    Export(
        "biorxiv.json", json_list(biorxiv_preprint, wrapped("collection")), lacking("lang", "url")
    ),
    Export("arxiv.jsonl", json_lines(arxiv_paper), lacking("lang", "url", "retracted", "day")),
    Export("datacite.json", json_list(datacite_work, wrapped("data")), lacking("retracted")),
)
