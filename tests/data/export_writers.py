"""Write records in the formats of databases and reference managers, independently of our readers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import yaml
from openpyxl import Workbook

TEMPLATES = yaml.safe_load(Path(__file__).with_name("export_templates.yaml").read_text("utf-8"))
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


class Joined(list[str]):
    """A list that `{names:; }` joins with "; "."""

    def __format__(self, separator: str) -> str:
        return separator.join(self)


class Flag:
    """A flag that `{retracted:yes/no}` writes as "yes" or "no"."""

    def __init__(self, is_set: bool) -> None:
        self.is_set = is_set

    def __format__(self, texts: str) -> str:
        yes, no = texts.split("/")
        return yes if self.is_set else no


def fields(record: Drawn) -> dict[str, Any]:
    """Map the names that templates use to a record's texts, lists and numbers."""
    shorts = [f"{family} {given[0]}" for family, given in record.people]
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(record.abstract.split()):
        positions.setdefault(word, []).append(position)
    year, month, day = (*record.date, 1, 1)[:3]
    creators = [{"name": "An editor", "creatorType": "editor"}] if record.people else []
    for family, given in reversed(record.people):
        creators.insert(0, {"firstName": given, "lastName": family, "creatorType": "author"})
    doi_url = f"https://doi.org/{record.doi}" if record.doi else ""
    return {
        **vars(record),
        "iso": record.iso,
        "slashed": record.iso.replace("-", "/"),
        "titled": record.month_and_day.title(),
        "published": f"{year} {record.month_and_day.title()}".rstrip(),
        "bare": Joined(family for family, _ in record.people),
        "year": year,
        "month": MONTHS[month - 1],
        "day": day,
        "date_texts": [str(part) for part in record.date],
        "month_and_day": record.month_and_day,
        "language": record.language,
        "code": record.language[:3].lower(),
        "families": Joined(record.families),
        "names": Joined(record.names),
        "dotted": Joined(f"{short}." for short in shorts),
        "initials": Joined(f"{family}, {given[0]}" for family, given in record.people),
        "numbered": Joined(f"{name} ({n})" for n, name in enumerate(record.families, start=57)),
        "all_short": ", ".join(shorts) + "." * bool(shorts),
        "first_short": "".join(shorts[:1]),
        "folded_title": record.title.replace(" ", "\n  ", 1),
        "abstract_or_note": record.abstract or "[No abstract available]",
        "positions": positions,
        "creators": creators,
        "doi_url": doi_url,
        "doi_url_or_none": doi_url or None,
        "doi_or_none": record.doi or None,
        "doi_or_key": record.doi or f"x{record.pmid}",
        "retracted": Flag(record.is_retracted),
        "retraction_updates": [{"update_nature": "Retraction"}] * record.is_retracted,
    }


def filled(template: Any, values: dict[str, Any]) -> Any:
    """Fill the placeholders of a template; the file of templates explains them."""
    if isinstance(template, dict) and "each person" in template:
        return [
            filled(template["each person"], values | {"family": family, "given": given})
            for family, given in values["people"]
        ]
    if isinstance(template, dict):
        return {key: filled(part, values) for key, part in template.items()}
    if isinstance(template, list):
        return [filled(part, values) for part in template]
    if not isinstance(template, str):
        return template
    return values[template[1:]] if template[:1] == "$" else template.format(**values)


def written(name: str, record: Drawn) -> Any:
    return filled(TEMPLATES[name], fields(record))


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


def folded(tag: str, text: str, indent: int) -> list[str]:
    """Break a text after some words, as databases do."""
    words = text.split()
    first, second = " ".join(words[:3]), " ".join(words[3:])
    lines = [f"{tag}{first}"]
    return lines + [" " * indent + second] if second else lines


def tagged_lines(name: str, records: Sequence[Drawn]) -> list[str]:
    """Fill the lines of a format's template for every record."""
    lines: list[str] = []
    for number, record in enumerate(records):
        values = {**fields(record), "number": number}
        for part in TEMPLATES[f"{name} lines"]:
            key = next(iter(part)) if isinstance(part, dict) else ""
            kind, _, what = key.partition(" ")
            if kind == "each":
                lines += filled(part, values)
            elif kind == "fold":
                lines += folded(*filled(part[key], values), int(what))
            elif kind != "with" or values[what]:
                lines.append(filled(part[key] if key else part, values))
    return lines


def by_lines(name: str, before: str = "", after: str = "", end: str = "\n") -> Writer:
    """Write a template's lines for every record, between other texts."""
    return lambda records: (before + end.join(tagged_lines(name, records)) + after).encode()


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


def by_rows(name: str, delimiter: str = ",", before: str = "") -> Writer:
    def write(records: Sequence[Drawn]) -> bytes:
        return table([written(f"{name} row", record) for record in records], delimiter, before)

    return write


def wos_tab(records: Sequence[Drawn]) -> bytes:
    """Write Web of Science's table: nothing is quoted, and each row ends with a tab."""
    rows = [written("wos row", record) for record in records]
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) + "\t" for row in rows)]
    return "\r\n".join(lines).encode("utf-16")


ABOUT = '"About the data: Exported on Sep 30, 2026. Criteria: ""masks"" in title and abstract."\r\n'


def workbook(records: Sequence[Drawn]) -> bytes:
    """Write a workbook with a title above its table, numbers as numbers, and a second sheet."""
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["Papers of our group"])
    rows = [written("scopus row", record) for record in records]
    sheet.append(list(rows[0]))
    for row in rows:
        sheet.append([int(value) if key == "Year" else value for key, value in row.items()])
    book.create_sheet("Notes").append(["Title", "Abstract"])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def json_list(name: str, *keys: str) -> Writer:
    """Write a list of records, in objects with these keys, the outermost first."""

    def write(records: Sequence[Drawn]) -> bytes:
        value: object = [written(name, record) for record in records]
        for key in reversed(keys):
            value = {key: value}
        return json.dumps(value, indent=1).encode()

    return write


def json_lines(name: str) -> Writer:
    return lambda records: lines_of(*(json.dumps(written(name, record)) for record in records))


def lacking(*fields: str) -> frozenset[str]:
    return frozenset(fields)


HEAD = "\ufeffFN Clarivate Analytics Web of Science\nVR 1.0\n"
WEB_OF_SCIENCE = by_lines("wos", HEAD, "\nEF")
EXPORTS = (
    Export("library.ris", by_lines("ris")),
    Export("savedrecs.ris.txt", by_lines("ris")),
    Export("pubmed-masks-set.txt", by_lines("nbib"), lacking("url")),
    Export("savedrecs.txt", WEB_OF_SCIENCE, lacking("url")),
    Export("savedrecs.ciw", WEB_OF_SCIENCE, lacking("url")),
    Export("library.enw", by_lines("enw")),
    Export("refworks.txt", by_lines("refworks", end="\r\n")),
    Export("library.xml", endnote_xml),
    Export("pubmed.xml", pubmed_xml, lacking("url")),
    Export("europe_pmc.xml", europe_pmc_xml, lacking("url")),
    Export("zotero.csv", by_rows("zotero"), lacking("retracted")),
    Export("zotero.txt", by_rows("zotero", ";"), lacking("retracted")),
    Export("scopus.csv", by_rows("scopus"), date_parts=1),
    Export("scopus.xlsx", workbook, date_parts=1),
    Export("savedrecs.tab.txt", wos_tab, lacking("url")),
    Export("pubmed.csv", by_rows("pubmed"), lacking("abstract", "lang", "url", "retracted"), 1),
    Export("works.csv", by_rows("openalex")),
    Export("export2024.csv", by_rows("ieee"), lacking("lang", "retracted"), 1),
    Export("SearchResults.csv", by_rows("springer"), lacking("abstract", "lang", "retracted"), 1),
    Export("eric.csv", by_rows("eric"), lacking("doi", "retracted"), 1),
    Export("europe_pmc.csv", by_rows("europe_pmc"), lacking("lang", "url", "retracted")),
    Export("dimensions.csv", by_rows("dimensions", before=ABOUT), lacking("lang", "retracted")),
    Export("lens.csv", by_rows("lens"), lacking("lang", "retracted")),
    Export("zotero.json", json_list("zotero"), lacking("retracted")),
    Export("better.json", json_list("zotero", "items"), lacking("retracted")),
    Export("csl.json", json_list("csl"), lacking("retracted")),
    Export("crossref.json", json_list("crossref", "message", "items")),
    Export("openalex.json", json_list("openalex", "results"), lacking("url")),
    Export("openalex.jsonl", json_lines("openalex"), lacking("url")),
    Export("s2.json", json_list("semantic scholar", "data"), lacking("lang", "retracted")),
    Export("s2orc.jsonl", json_lines("s2orc"), lacking("lang", "retracted"), 1),
    Export("epmc.json", json_list("europe_pmc", "resultList", "result"), lacking("url")),
    Export("lens.json", json_list("lens", "data")),
    Export("lens.jsonl", json_lines("lens")),
    Export("biorxiv.json", json_list("biorxiv", "collection"), lacking("lang", "url")),
    Export("arxiv.jsonl", json_lines("arxiv"), lacking("lang", "url", "retracted", "day")),
    Export("datacite.json", json_list("datacite", "data"), lacking("retracted")),
)
