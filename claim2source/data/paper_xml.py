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

ADDRESS = "https://pubmed.ncbi.nlm.nih.gov/"
PMC = "https://pmc.ncbi.nlm.nih.gov/articles/"
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

    def __init__(
        self,
        element: Element,
        path: Path,
        number: int,
        problems: Problems,
    ) -> None:
        self.element = element
        self.path = path
        self.problems = problems
        self.name = f"{element.tag} {number}"

    def paper(
        self,
        authors: list[str],
        *,
        key: str,
        title: str,
        **texts: str,
    ) -> Paper | None:
        record = PaperTexts(key=key, title=title, authors=authors, **texts)
        return make_paper(self.path, self.name, self.problems, record)

    def found(self, texts: PaperTexts, ids: list[str]) -> Paper | None:
        """Make the paper from its texts; its id is the DOI, another id, or made from the title."""
        if not f"{texts.title}{texts.abstract}".strip():
            return None
        keys = filter(None, (plain_doi(texts.doi), *ids))
        key = choose_key(
            self.path,
            self.name,
            self.problems,
            keys,
            texts,
        )
        with_key = replace(texts, key=key)
        return make_paper(self.path, self.name, self.problems, with_key)

    def leave_out(self, reason: str) -> None:
        self.problems.count(f"{reason}, skipped", self.path, self.name)

    def title(self, element: Element | None, vernacular: Element | None) -> str:
        """Return the title, or the one in the paper's own language if there is none."""
        title = _text(element)
        own = _text(vernacular)
        bare_title = title.strip(" .[]").lower()
        if bare_title in NO_TITLE:
            return own
        if own:
            self.leave_out("titles in the paper's own language next to an English one")
        return title

    def abstract(self, elements: list[Element], translations: list[Element]) -> str:
        """Join the parts of the abstract, or else use another one; English is preferred."""

        def is_foreign(element: Element) -> bool:
            language = element.get("Language") or element.get(_LANG) or "en"
            return iso_language(language) != "en"

        english_first = sorted(translations, key=is_foreign)
        texts: list[str] = []
        for element in [*elements, *english_first]:
            if _is_picture(element):
                self.leave_out("graphical abstracts and teasers")
                continue
            text = _abstract(element)
            if text:
                texts.append(text)
        for _ in texts[1:]:
            self.leave_out("additional abstracts")
        return texts[0] if texts else ""

    def doi(self, ids: list[Element]) -> str:
        """Return the first DOI that is not marked as wrong."""
        wrong: list[str] = []
        for key in ids:
            if key.get("ValidYN") == "N":
                wrong.append(plain_doi(_text(key)))
                self.leave_out("DOIs that are marked as wrong")
        # The list of the article's ids does not mark them.
        for key in ids:
            doi = plain_doi(_text(key))
            if doi and doi not in wrong:
                return doi
        return ""


def read_xml(path: Path, problems: Problems) -> Iterator[Paper | None]:
    """Yield the articles of a file; None for one without an id, or without title and abstract."""
    missing = file_error(path)
    if missing:
        problems.add(path, None, None, missing)
        return
    try:
        with open_bytes(path) as file:
            yield from _articles(file, path, problems)
    except ParseError as error:
        line, _ = error.position
        problems.add(path, line, None, f"broken XML: {error}")
    except (OSError, EOFError, zlib.error) as error:
        problems.add(path, None, None, f"cannot be read: {error}")
    except (ValueError, LookupError) as error:  # an encoding that the parser does not know
        problems.add(path, None, None, f"unreadable XML, save it as UTF-8: {error}")


def _articles(
    file: BufferedReader | GzipFile,
    path: Path,
    problems: Problems,
) -> Iterator[Paper | None]:
    number = 0
    depth = 0
    root: Element | None = None
    for event, element in iterparse(file, ("start", "end")):
        element.tag = element.tag.rpartition("}")[2]
        if root is None:
            root = element
            foreign = _FOREIGN.get(root.tag.lower())
            if foreign:
                reason = f"is {foreign}; supported formats: {_READ}"
                problems.add(path, None, None, reason)
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
    ids = [
        *element.findall("PubmedData/ArticleIdList/ArticleId[@IdType='doi']"),
        *article.findall("ELocationID[@EIdType='doi']"),
    ]
    vernacular = article.find("VernacularTitle")
    abstracts = article.findall("Abstract")
    other_abstracts = citation.findall("OtherAbstract")
    return _pubmed(
        record,
        _text_at(citation, "PMID"),
        article.findall("AuthorList/Author"),
        title=record.title(article.find("ArticleTitle"), vernacular),
        abstract=record.abstract(abstracts, other_abstracts),
        venue=_text_at(article, "Journal/Title"),
        date=_pubmed_date(article, "ArticleDate", "Journal/JournalIssue/PubDate"),
        doi=record.doi(ids),
        lang=_text_at(article, "Language"),
        retracted=_notices(citation),
    )


def _notices(citation: Element) -> str:
    """Read PubMed's notices about an article, and the articles that it is itself a notice about."""
    states: list[str] = []
    for element in citation.findall("CommentsCorrectionsList/CommentsCorrections"):
        kind = element.get("RefType", "")
        source = _text_at(element, "RefSource")
        if kind.endswith("In"):
            notice = kind.removesuffix("In")
            reference = source.rstrip(".")
            states.append(notice_state(notice, reference))
        elif kind.endswith(("Of", "For")):
            pmid = _text_at(element, "PMID")
            keys = [*plain_dois(source), pmid]
            states.append(notice_about(kind, keys))
    for element in citation.findall("Article/PublicationTypeList/PublicationType"):
        publication_type = _text(element).lower()
        if publication_type.startswith("retracted pub"):
            states.append(RETRACTED)
    return worst(states)


def _book(record: _Record) -> Paper | None:
    book = record.element.find("BookDocument")
    if book is None:
        record.problems.add(record.path, None, record.name, "has no BookDocument")
        return None
    chapter = book.find("ArticleTitle")
    book_title = book.find("Book/BookTitle")
    title = record.title(chapter, book.find("VernacularTitle"))
    authors = (
        book.findall("AuthorList[@Type='authors']/Author")
        or book.findall("AuthorList/Author")
        or book.findall("Book/AuthorList/Author")
    )
    abstracts = book.findall("Abstract")
    other_abstracts = book.findall("OtherAbstract")
    ids = [
        *book.findall("ArticleIdList/ArticleId[@IdType='doi']"),
        *book.findall("Book/ELocationID[@EIdType='doi']"),
    ]
    publisher = book.find("Book/Publisher/PublisherName")
    return _pubmed(
        record,
        _text_at(book, "PMID"),
        authors,
        title=title or _text(book_title),
        abstract=record.abstract(abstracts, other_abstracts),
        venue=_text(book_title if title else publisher),
        date=_pubmed_date(book, "ContributionDate", "Book/PubDate"),
        doi=record.doi(ids),
        lang=_text_at(book, "Language"),
    )


def _pubmed(
    record: _Record,
    key: str,
    authors: list[Element],
    **texts: str,
) -> Paper | None:
    if not key:
        record.problems.add(record.path, None, record.name, "has no PMID or no Article")
        return None
    names = [_pubmed_name(author) for author in authors]
    url = f"{ADDRESS}{key}/"
    return record.paper(names, key=key, url=url, **texts)


def _pubmed_name(author: Element) -> str:
    given = _text_at(author, "ForeName")
    family = _text_at(author, "LastName")
    name = " ".join(filter(None, (given, family)))
    return name or _text_at(author, "CollectiveName")


def _pubmed_date(element: Element, *paths: str) -> str:
    """Return the date at the first path with a year, such as electronic publication."""
    for path in paths:
        date = element.find(path)
        if date is None:
            continue
        year = _text_at(date, "Year")
        if year:
            month = _text_at(date, "Month")
            day = _text_at(date, "Day")
            return "-".join(filter(None, (year, month, day)))
    return _text_at(element, f"{paths[-1]}/MedlineDate")


def _jats(record: _Record) -> Paper | None:
    article = record.element
    meta = article.find("front/article-meta")
    if meta is None:
        record.problems.add(record.path, None, record.name, "has no front/article-meta")
        return None
    ids: dict[str, str] = {}
    for element in reversed(meta.findall("article-id")):  # the first of each type is used
        kind = element.get("pub-id-type", "")
        ids[kind] = _text(element)
    pmc = ids.get("pmcid") or ids.get("pmc", "")
    if is_digits(pmc):
        pmc = f"PMC{pmc}"
    doi = plain_doi(ids.get("doi", ""))
    key = ids.get("pmid") or pmc or doi or next(filter(None, ids.values()), "")
    url = f"{PMC}{pmc}/" if pmc else ""
    if "pmid" in ids:
        url = f"{ADDRESS}{ids['pmid']}/"

    typed = [
        *meta.findall("abstract[@abstract-type]"),
        *meta.findall("trans-abstract"),
    ]
    abstracts = [element for element in meta.findall("abstract") if element not in typed]
    names: list[str] = []
    for contrib in meta.findall("contrib-group/contrib"):
        role = contrib.get("contrib-type", "author")
        if role == "author":
            names.append(_jats_name(contrib))
    article_type = article.get("article-type", "").lower()
    return record.paper(
        names,
        key=key,
        title=_jats_title(record, meta.find("title-group")),
        abstract=record.abstract(abstracts, typed),
        venue=_text_at(article, "front/journal-meta//journal-title"),
        date=_jats_date(meta.findall("pub-date")),
        doi=doi,
        url=url,
        lang=article.get(_LANG, ""),
        retracted=_jats_notices(article, article_type),
    )


def _jats_notices(front: Element, article_type: str) -> str:
    """Read the notices about an article in JATS, or the articles that it is a notice about."""
    states: list[str] = []
    if article_type.startswith(_OWN_STATES):
        states.append(notice_state(article_type))
    is_notice = not states and notice_state(article_type) != ""
    related = [
        *front.iter("related-article"),
        *front.iter("related-object"),
    ]
    for element in related:
        written_kind = element.get("related-article-type") or element.get("object-type")
        kind = (written_kind or "").lower()
        keys = _related_keys(element)
        state = notice_state(kind)
        if not state:
            continue
        if is_notice or kind.endswith(("-article", "-of-concern")):
            is_exact = state != "corrected" and "partial" not in article_type
            own_kind = kind if is_exact else article_type or kind
            states.append(notice_about(own_kind, keys))
        else:
            dois = [key for key in keys if key.startswith("10.")]
            states.append(notice_state(kind, *dois[:1]))
    return worst(states)


def _related_keys(element: Element) -> list[str]:
    """Return the DOI, else the PubMed or PMC id, of a related article."""
    texts: list[str] = []
    for name, value in element.attrib.items():
        local_name = name.rpartition("}")[2]
        if local_name == "href":
            texts.append(value)
    texts += map(_text, element.iter("pub-id"))
    own_text = _text(element)
    dois = plain_dois(" ".join([*texts, own_text]))
    if dois:
        return dois[:1]
    numbers = _PUBMED_ID.findall(" ".join(texts))
    return numbers[:1]


def _jats_title(record: _Record, group: Element | None) -> str:
    if group is None:
        return ""
    title = group.find("article-title")
    if title is not None:
        for note in title.findall("xref") + title.findall("fn"):
            note.text = None  # a footnote mark
    translated = group.find("trans-title-group/trans-title")
    main_title = record.title(title, translated)
    subtitle = _text_at(group, "subtitle")
    return ": ".join(filter(None, (main_title, subtitle)))


def _jats_name(contrib: Element) -> str:
    name = contrib.find(".//name")
    if name is None:
        return _text_at(contrib, ".//string-name") or _text_at(contrib, "collab")
    parts = (
        _text_at(name, "given-names"),
        _text_at(name, "surname"),
        _text_at(name, "suffix"),
    )
    return " ".join(filter(None, parts))


def _jats_date(dates: list[Element]) -> str:
    listed: list[tuple[bool, int, str]] = []
    for date in dates:
        parts = [_text_at(date, name) for name in ("year", "month", "day")]
        if not parts[0]:
            parts = [date.get("iso-8601-date", "")]
        digits = [part.zfill(2) for part in parts if part]
        if not digits:
            continue
        formats = (date.get("pub-type"), date.get("publication-format"))
        is_preferred = "epub" in formats or date.get("date-type") == "pub"
        written = "-".join(digits)
        listed.append((is_preferred, len(digits), written))
    if not listed:
        return ""
    _, _, best = max(listed, key=lambda entry: entry[:2])
    return best


def _abstract(element: Element) -> str:
    """Join the parts of an abstract, with their headings: "METHODS: We ran."."""
    sections = [*element.findall("sec"), *element.findall("AbstractText")]
    for section in sections:
        if _is_picture(section):
            element.remove(section)
    parts = element.findall("AbstractText")
    if parts:
        labelled = map(_labelled_text, parts)
        return " ".join(filter(None, labelled))

    for heading in element.findall("title"):
        text = _text(heading)
        if text.strip(" .:").lower() == "abstract":
            element.remove(heading)
    for heading in element.iter("title"):
        text = _text(heading)
        heading[:] = []
        has_no_end = bool(text) and text[-1] not in ".:?!"
        heading.text = f"{text}: " if has_no_end else text
    return _text(element)


def _is_picture(element: Element) -> bool:
    kind = element.get("abstract-type") or element.get("Type") or ""
    heading = _text_at(element, "title") or element.get("Label", "")
    bare_heading = heading.lower().strip(" .:")
    is_picture = bare_heading in ("graphical abstract", "visual abstract")
    return is_picture or kind.lower() in _NO_ABSTRACTS


def _labelled_text(part: Element) -> str:
    label = part.get("Label")
    text = _text(part)
    return f"{label}: {text}" if label and text else text


def _text_at(element: Element, path: str) -> str:
    """Return the text of the first element at a path; "" if there is none."""
    return _text(element.find(path))


def _text(element: Element | None) -> str:
    if element is None:
        return ""
    parts = list(element.iter())[1:]
    for part in parts:
        if part.tag in _REPEATED_TAGS:
            tail = part.tail
            part.clear()
            part.tail = tail
        elif part.tag in _BLOCKS:
            part.text = f" {part.text or ''}"
            part.tail = f" {part.tail or ''}"
    text = "".join(element.itertext())
    return " ".join(text.split())


def _endnote(record: _Record) -> Paper | None:
    texts, ids = read_endnote(record.element)
    return record.found(texts, ids)


def _europe_pmc(record: _Record) -> Paper | None:
    texts, ids = read_europe_pmc(record.element)
    return record.found(texts, ids)


_READERS = {
    "PubmedArticle": _article,
    "PubmedBookArticle": _book,
    "article": _jats,
    "record": _endnote,
    "result": _europe_pmc,
}
