"""Read articles from XML, one after another: PubMed, JATS, EndNote and Europe PMC."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, iterparse

from claim2source.core.arguments import is_digits
from claim2source.core.errors import Problems
from claim2source.core.files import file_error
from claim2source.data.doi import plain_doi, plain_dois
from claim2source.data.paper_keys import choose_key
from claim2source.data.papers import (
    NO_TITLE,
    Paper,
    PaperTexts,
    iso_language,
    make_paper,
)
from claim2source.data.reference_xml import read_endnote, read_europe_pmc
from claim2source.data.retractions import RETRACTED, notice_about, notice_state, worst
from claim2source.data.text_files import open_bytes

ADDRESS, PMC = "https://pubmed.ncbi.nlm.nih.gov/", "https://pmc.ncbi.nlm.nih.gov/articles/"
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_ROOTS = ("PubmedArticleSet", "PubmedBookArticleSet", "pmc-articleset", "xml", "records")
_READ = "PubMed's XML, JATS, and XML of EndNote and Europe PMC"
# Other kinds of XML, by their root.
_FOREIGN = {
    "html": "a web page",
    "esummaryresult": "PubMed's summaries, without abstracts: download XML",
    "medlinecitationset": "an old format of PubMed: download it again",
}
# Article types in JATS for an article's own state; others are notices about other articles.
_OWN_STATES = ("retracted", "withdrawn", "partially-retracted")
_PUBMED_ID = re.compile(r"\b(?:PMC)?[1-9][0-9]{3,8}\b")
# Elements that begin a line; repeated formulas and figures, which are not text.
_BLOCKS = frozenset("p sec title list list-item break disp-formula def-item AbstractText".split())
_REPEATED_TAGS = frozenset(
    "tex-math annotation annotation-xml fig fig-group caption graphic table-wrap".split()
)
# Types of abstracts that are pictures or advertise the paper.
_NO_ABSTRACTS = frozenset("graphical graphic teaser web-summary toc video highlights".split())


class _Record:
    """Article in a file; counts its skipped parts."""

    def __init__(self, element: Element, path: Path, number: int, problems: Problems) -> None:
        self.element, self.path, self.problems = element, path, problems
        self.name = f"{element.tag} {number}"

    def paper(self, authors: list[str], *, key: str, title: str, **texts: str) -> Paper | None:
        record = PaperTexts(key=key, title=title, authors=authors, **texts)
        return make_paper(self.path, self.name, self.problems, record)

    def found(self, texts: PaperTexts, ids: list[str]) -> Paper | None:
        """Make the paper from its texts; its id is the DOI, another id, or made from the title."""
        if not f"{texts.title}{texts.abstract}".strip():
            return None
        keys = filter(None, (plain_doi(texts.doi), *ids))
        key = choose_key(self.path, self.name, self.problems, keys, texts)
        return make_paper(self.path, self.name, self.problems, replace(texts, key=key))

    def leave_out(self, reason: str) -> None:
        self.problems.count(f"{reason}, skipped", self.path, self.name)

    def title(self, element: Element | None, vernacular: Element | None) -> str:
        """Return the title, or the one in the paper's own language if there is none."""
        title, own = _text(element), _text(vernacular)
        if title.strip(" .[]").lower() in NO_TITLE:
            return own
        if own:
            self.leave_out("titles in the paper's own language next to an English one")
        return title

    def abstract(self, elements: list[Element], translations: list[Element]) -> str:
        """Join the parts of the abstract, or else use another one; English is preferred."""

        def is_foreign(element: Element) -> bool:
            return iso_language(element.get("Language") or element.get(_LANG) or "en") != "en"

        versions = [*elements, *sorted(translations, key=is_foreign)]
        texts: list[str] = []
        for element in versions:
            if _is_picture(element):
                self.leave_out("graphical abstracts and teasers")
            elif text := _abstract(element):
                texts.append(text)
        for _ in texts[1:]:
            self.leave_out("additional abstracts")
        return texts[0] if texts else ""

    def doi(self, ids: list[Element]) -> str:
        """Return the first DOI that is not marked as wrong."""
        wrong = [plain_doi(_text(key)) for key in ids if key.get("ValidYN") == "N"]
        for _ in wrong:
            self.leave_out("DOIs that are marked as wrong")
        # The list of the article's ids does not mark them.
        dois = (plain_doi(_text(key)) for key in ids)
        return next((doi for doi in dois if doi and doi not in wrong), "")


def read_xml(path: Path, problems: Problems) -> Iterator[Paper | None]:
    """Yield the articles of a file; None for one without an id, or without title and abstract."""
    if reason := file_error(path):
        problems.add(path, None, None, reason)
        return
    try:
        with open_bytes(path) as file:
            yield from _articles(file, path, problems)
    except ParseError as error:
        problems.add(path, error.position[0], None, f"broken XML: {error}")
    except (OSError, EOFError, zlib.error) as error:
        problems.add(path, None, None, f"cannot be read: {error}")
    except (ValueError, LookupError) as error:  # an encoding that the parser does not know
        problems.add(path, None, None, f"unreadable XML, save it as UTF-8: {error}")


def _articles(
    file: BufferedReader | GzipFile, path: Path, problems: Problems
) -> Iterator[Paper | None]:
    number = depth = 0
    root: Element | None = None
    for event, element in iterparse(file, ("start", "end")):
        element.tag = element.tag.rpartition("}")[2]
        if root is None:
            root = element
            if kind := _FOREIGN.get(root.tag.lower()):
                problems.add(path, None, None, f"is {kind}; supported formats: {_READ}")
                return
        if event == "start":
            depth += 1
            continue
        depth -= 1
        read = _READERS.get(element.tag)
        if read is not None:
            number += 1
            yield read(_Record(element, path, number, problems))
            element.clear()
        elif element.tag == "DeleteCitation":
            problems.count("PubMed's lists of deleted articles, skipped", path)
        # Elements are freed after use, since a file may be larger than memory.
        if depth == 1 and root.tag not in _READERS:
            root.clear()
    if root is not None and not number and root.tag not in _ROOTS:
        reason = f"contains no articles: its root is <{root.tag}>; supported formats: {_READ}"
        problems.add(path, None, None, reason)


def _article(record: _Record) -> Paper | None:
    element = record.element
    citation = element.find("MedlineCitation")
    article = None if citation is None else citation.find("Article")
    if citation is None or article is None:
        record.problems.add(record.path, None, record.name, "has no PMID or no Article")
        return None
    ids = element.findall("PubmedData/ArticleIdList/ArticleId[@IdType='doi']")
    return _pubmed(
        record,
        _text(citation.find("PMID")),
        article.findall("AuthorList/Author"),
        title=record.title(article.find("ArticleTitle"), article.find("VernacularTitle")),
        abstract=record.abstract(article.findall("Abstract"), citation.findall("OtherAbstract")),
        venue=_text(article.find("Journal/Title")),
        date=_pubmed_date(article, "ArticleDate", "Journal/JournalIssue/PubDate"),
        doi=record.doi(ids + article.findall("ELocationID[@EIdType='doi']")),
        lang=_text(article.find("Language")),
        retracted=_notices(citation),
    )


def _notices(citation: Element) -> str:
    """Read PubMed's notices about an article, and the articles that it is itself a notice about."""
    states: list[str] = []
    for element in citation.findall("CommentsCorrectionsList/CommentsCorrections"):
        kind, source = element.get("RefType", ""), _text(element.find("RefSource"))
        if kind.endswith("In"):
            states.append(notice_state(kind.removesuffix("In"), source.rstrip(".")))
        elif kind.endswith(("Of", "For")):
            keys = [*plain_dois(source), _text(element.find("PMID"))]
            states.append(notice_about(kind, keys))
    for element in citation.findall("Article/PublicationTypeList/PublicationType"):
        if _text(element).lower().startswith("retracted pub"):
            states.append(RETRACTED)
    return worst(states)


def _book(record: _Record) -> Paper | None:
    book = record.element.find("BookDocument")
    if book is None:
        record.problems.add(record.path, None, record.name, "has no BookDocument")
        return None
    chapter, book_title = book.find("ArticleTitle"), book.find("Book/BookTitle")
    title = record.title(chapter, book.find("VernacularTitle"))
    authors = book.findall("AuthorList[@Type='authors']/Author")
    return _pubmed(
        record,
        _text(book.find("PMID")),
        authors or book.findall("AuthorList/Author") or book.findall("Book/AuthorList/Author"),
        title=title or _text(book_title),
        abstract=record.abstract(book.findall("Abstract"), book.findall("OtherAbstract")),
        venue=_text(book_title) if title else _text(book.find("Book/Publisher/PublisherName")),
        date=_pubmed_date(book, "ContributionDate", "Book/PubDate"),
        doi=record.doi(
            book.findall("ArticleIdList/ArticleId[@IdType='doi']")
            + book.findall("Book/ELocationID[@EIdType='doi']")
        ),
        lang=_text(book.find("Language")),
    )


def _pubmed(record: _Record, key: str, authors: list[Element], **texts: str) -> Paper | None:
    if not key:
        record.problems.add(record.path, None, record.name, "has no PMID or no Article")
        return None
    names = [_pubmed_name(author) for author in authors]
    return record.paper(names, key=key, url=f"{ADDRESS}{key}/", **texts)


def _pubmed_name(author: Element) -> str:
    parts = (_text(author.find("ForeName")), _text(author.find("LastName")))
    return " ".join(filter(None, parts)) or _text(author.find("CollectiveName"))


def _pubmed_date(element: Element, *paths: str) -> str:
    """Return the date at the first path with a year, such as electronic publication."""
    for path in paths:
        date = element.find(path)
        if date is not None and (year := _text(date.find("Year"))):
            month_and_day = (_text(date.find(name)) for name in ("Month", "Day"))
            return "-".join(filter(None, (year, *month_and_day)))
    return _text(element.find(f"{paths[-1]}/MedlineDate"))


def _jats(record: _Record) -> Paper | None:
    article = record.element
    meta = article.find("front/article-meta")
    if meta is None:
        record.problems.add(record.path, None, record.name, "has no front/article-meta")
        return None
    ids: dict[str, str] = {}
    for element in reversed(meta.findall("article-id")):  # the first of each type is used
        ids[element.get("pub-id-type", "")] = _text(element)
    pmc = ids.get("pmcid") or ids.get("pmc", "")
    if is_digits(pmc):
        pmc = f"PMC{pmc}"
    doi = plain_doi(ids.get("doi", ""))
    key = ids.get("pmid") or pmc or doi or next(filter(None, ids.values()), "")
    url = f"{PMC}{pmc}/" if pmc else ""
    if "pmid" in ids:
        url = f"{ADDRESS}{ids['pmid']}/"
    typed = meta.findall("abstract[@abstract-type]") + meta.findall("trans-abstract")
    abstracts = [element for element in meta.findall("abstract") if element not in typed]
    names: list[str] = []
    for contrib in meta.findall("contrib-group/contrib"):
        if contrib.get("contrib-type", "author") == "author":
            names.append(_jats_name(contrib))
    return record.paper(
        names,
        key=key,
        title=_jats_title(record, meta.find("title-group")),
        abstract=record.abstract(abstracts, typed),
        venue=_text(article.find("front/journal-meta//journal-title")),
        date=_jats_date(meta.findall("pub-date")),
        doi=doi,
        url=url,
        lang=article.get(_LANG, ""),
        retracted=_jats_notices(article, article.get("article-type", "").lower()),
    )


def _jats_notices(front: Element, article_type: str) -> str:
    """Read the notices about an article in JATS, or the articles that it is a notice about."""
    states: list[str] = []
    if article_type.startswith(_OWN_STATES):
        states.append(notice_state(article_type))
    is_notice = not states and notice_state(article_type) != ""
    for element in [*front.iter("related-article"), *front.iter("related-object")]:
        kind = (element.get("related-article-type") or element.get("object-type") or "").lower()
        keys = _related_keys(element)
        if not notice_state(kind):
            continue
        if is_notice or kind.endswith(("-article", "-of-concern")):
            is_exact = notice_state(kind) != "corrected" and "partial" not in article_type
            states.append(notice_about(kind if is_exact else article_type or kind, keys))
        else:
            dois = [key for key in keys if key.startswith("10.")]
            states.append(notice_state(kind, *dois[:1]))
    return worst(states)


def _related_keys(element: Element) -> list[str]:
    """Return the DOI, else the PubMed or PMC id, of a related article."""
    texts = [value for name, value in element.attrib.items() if name.rpartition("}")[2] == "href"]
    texts += map(_text, element.iter("pub-id"))
    keys = plain_dois(" ".join([*texts, _text(element)]))[:1]
    return keys or _PUBMED_ID.findall(" ".join(texts))[:1]


def _jats_title(record: _Record, group: Element | None) -> str:
    if group is None:
        return ""
    title = group.find("article-title")
    if title is not None:
        for note in title.findall("xref") + title.findall("fn"):
            note.text = None  # a footnote mark
    main_title = record.title(title, group.find("trans-title-group/trans-title"))
    titles = [main_title, _text(group.find("subtitle"))]
    return ": ".join(filter(None, titles))


def _jats_name(contrib: Element) -> str:
    name = contrib.find(".//name")
    if name is None:
        return _text(contrib.find(".//string-name")) or _text(contrib.find("collab"))
    parts = (_text(name.find("given-names")), _text(name.find("surname")))
    return " ".join(filter(None, (*parts, _text(name.find("suffix")))))


def _jats_date(dates: list[Element]) -> str:
    listed: list[tuple[bool, int, str]] = []
    for date in dates:
        parts = [_text(date.find(name)) for name in ("year", "month", "day")]
        if not parts[0]:
            parts = [date.get("iso-8601-date", "")]
        digits = [part.zfill(2) for part in parts if part]
        if digits:
            electronic = "epub" in (date.get("pub-type"), date.get("publication-format"))
            preferred = electronic or date.get("date-type") == "pub"
            listed.append((preferred, len(digits), "-".join(digits)))
    if not listed:
        return ""
    return max(listed, key=lambda entry: entry[:2])[2]


def _abstract(element: Element) -> str:
    """Join the parts of an abstract, with their headings: "METHODS: We ran."."""
    for section in [*element.findall("sec"), *element.findall("AbstractText")]:
        if _is_picture(section):
            element.remove(section)
    parts = element.findall("AbstractText")
    if parts:
        return " ".join(filter(None, map(_labelled_text, parts)))
    for heading in element.findall("title"):
        if _text(heading).strip(" .:").lower() == "abstract":
            element.remove(heading)
    for heading in element.iter("title"):
        text = _text(heading)
        heading[:] = []
        heading.text = f"{text}: " if text and text[-1] not in ".:?!" else text
    return _text(element)


def _is_picture(element: Element) -> bool:
    kind = element.get("abstract-type") or element.get("Type") or ""
    heading = _text(element.find("title")) or element.get("Label", "")
    is_picture = heading.lower().strip(" .:") in ("graphical abstract", "visual abstract")
    return is_picture or kind.lower() in _NO_ABSTRACTS


def _labelled_text(part: Element) -> str:
    label, text = part.get("Label"), _text(part)
    return f"{label}: {text}" if label and text else text


def _text(element: Element | None) -> str:
    if element is None:
        return ""
    for part in list(element.iter())[1:]:
        if part.tag in _REPEATED_TAGS:
            tail = part.tail
            part.clear()
            part.tail = tail
        elif part.tag in _BLOCKS:
            part.text, part.tail = f" {part.text or ''}", f" {part.tail or ''}"
    return " ".join("".join(element.itertext()).split())


def _endnote(record: _Record) -> Paper | None:
    return record.found(*read_endnote(record.element))


def _europe_pmc(record: _Record) -> Paper | None:
    return record.found(*read_europe_pmc(record.element))


_READERS = {
    "PubmedArticle": _article,
    "PubmedBookArticle": _book,
    "article": _jats,
    "record": _endnote,
    "result": _europe_pmc,
}
