"""Read articles of PubMed's XML, one after another."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, iterparse

from claim2source.core.errors import Problems
from claim2source.core.files import why_not_file
from claim2source.core.records import Source
from claim2source.datasets.papers import Paper, plain_doi
from claim2source.io.text_files import open_bytes, why_not_id, why_not_text

ARTICLE, ADDRESS = "PubmedArticle", "https://pubmed.ncbi.nlm.nih.gov/"
# ISO 639-2, as PubMed has it, to 639-1.
_LANGUAGES = {
    "eng": "en",
    "ger": "de",
    "fre": "fr",
    "spa": "es",
    "ita": "it",
    "por": "pt",
    "chi": "zh",
    "jpn": "ja",
    "rus": "ru",
    "pol": "pl",
    "dut": "nl",
    "kor": "ko",
    "tur": "tr",
    "cze": "cs",
    "dan": "da",
    "nor": "no",
    "swe": "sv",
    "fin": "fi",
    "hun": "hu",
    "ara": "ar",
    "ukr": "uk",
}


def read_pubmed(path: Path, problems: Problems) -> Iterator[Paper | None]:
    """Yield the articles of a file; None for one without title and abstract."""
    if why := why_not_file(path):
        problems.add(path, None, None, why)
        return
    number = 0
    try:
        with open_bytes(path) as file:
            root: Element | None = None
            for event, element in iterparse(file, ("start", "end")):
                if root is None:
                    root = element
                if event == "end" and element.tag == ARTICLE:
                    number += 1
                    yield _article(element, path, number, problems)
                    # What was read goes: a file may be larger than memory.
                    root.clear()
    except ParseError as error:
        problems.add(path, error.position[0], None, f"broken XML: {error}")
    except (OSError, EOFError, zlib.error) as error:
        problems.add(path, None, None, f"cannot be read: {error}")


def _article(element: Element, path: Path, number: int, problems: Problems) -> Paper | None:
    citation = element.find("MedlineCitation")
    article = None if citation is None else citation.find("Article")
    key = _text(None if citation is None else citation.find("PMID"))
    if article is None or why_not_id(key):
        problems.add(path, None, f"{ARTICLE} {number}", "has no PMID or no Article")
        return None
    abstract = " ".join(
        f"{label}: {text}" if (label := part.get("Label")) else text
        for part in article.findall("Abstract/AbstractText")
        if (text := _text(part))
    )
    title = _text(article.find("ArticleTitle"))
    source = Source(
        key,
        title,
        abstract,
        tuple(filter(None, map(_name, article.findall("AuthorList/Author")))),
        _text(article.find("Journal/Title")),
        _date(article),
    )
    for text in (title, abstract):
        if why := why_not_text(text):
            problems.add(path, None, f"{ARTICLE} {number}", why)
            return None
    ids = element.findall("PubmedData/ArticleIdList/ArticleId[@IdType='doi']")
    ids += article.findall("ELocationID[@EIdType='doi']")
    doi = next(filter(None, (plain_doi(_text(one)) for one in ids)), "")
    lang = _LANGUAGES.get(_text(article.find("Language")), "")
    return Paper(source, doi, f"{ADDRESS}{key}/", lang) if title or abstract else None


def _text(element: Element | None) -> str:
    """Join the text of an element and of what is in it, such as <i>E. coli</i>."""
    return "" if element is None else " ".join("".join(element.itertext()).split())


def _name(author: Element) -> str:
    parts = (_text(author.find("ForeName")), _text(author.find("LastName")))
    return " ".join(filter(None, parts)) or _text(author.find("CollectiveName"))


def _date(article: Element) -> str:
    """Read the day of electronic publication, else the issue's."""
    for place in ("ArticleDate", "Journal/JournalIssue/PubDate"):
        date = article.find(place)
        if date is not None and (year := _text(date.find("Year"))):
            rest = (_text(date.find(name)) for name in ("Month", "Day"))
            return "-".join(filter(None, (year, *rest)))
    return _text(article.find("Journal/JournalIssue/PubDate/MedlineDate"))
