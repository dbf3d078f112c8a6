"""Remove the markup of titles and abstracts: tags and entities."""

from __future__ import annotations

import html
import re
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.data.latex import without_documents

# Tags in the titles and abstracts of registries: <i>, <jats:p>, <mml:mi mathvariant="normal">.
_TAG = re.compile(
    r"<(?P<end>/?)(?P<space>[A-Za-z][\w.-]*:)?(?P<name>[A-Za-z][\w.-]*)"
    r"(?P<more>(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*)\s*(?P<empty>/?)>"
)
_INLINE = frozenset(
    "i b u s em strong sub sup inf scp sc small big tt code span font a abbr cite q it bo del ins "
    "mark strike italic bold underline overline monospace roman sans-serif ext-link xref uri fn "
    "inline inline-formula inline-graphic named-content styled-content alternatives "
    "math mi mo mn ms mrow msub msup msubsup mfrac msqrt mroot mtext mover munder munderover "
    "mspace mstyle mfenced mtable mtr mtd mpadded mmultiscripts none mprescripts semantics "
    "cross-ref inter-ref hsp".split()
)
_BLOCKS = frozenset(
    "p br hr div sec section abstract-sec simple-para para title section-title list list-item ul "
    "ol li dl dt dd h1 h2 h3 h4 h5 h6 disp-formula disp-quote blockquote pre center break table "
    "tbody thead tr td th article abstract trans-abstract html body".split()
)
_SPACE = r"(?:[A-Za-z][\w.-]*:)?"
_TITLES = rf"{_SPACE}(?:title|section-title|h[1-6])"
# Repetitions of formulas in LaTeX, and elements that do not belong to an abstract.
_UNREAD = re.compile(
    rf"<(?P<tag>{_SPACE}(?:tex-math|annotation|annotation-xml|fig|fig-group|figure|caption|"
    r"table-wrap|object-id|alt-text|script|style))\b[^<>]*(?<!/)>"
    r"(?:(?!<(?P=tag)\b).)*?</(?P=tag)\s*>",
    re.DOTALL,
)
# Headings that carry no information.
_HEADING = re.compile(
    rf"<(?P<tag>{_TITLES})\b[^<>]*>\s*(?:abstract|zusammenfassung|résumé|resumen)?\s*[.:]?\s*"
    r"</(?P=tag)\s*>",
    re.IGNORECASE,
)
# The text of a graphical abstract, from its heading to the next one.
_GRAPHICAL = re.compile(
    rf"<(?P<tag>{_TITLES})\b[^<>]*>\s*(?:graphical|visual|video) abstract\s*[.:]?\s*</(?P=tag)\s*>"
    rf"(?:(?!<{_TITLES}\b).)*",
    re.IGNORECASE | re.DOTALL,
)
_TITLE_END = re.compile(rf"</{_TITLES}\s*>", re.IGNORECASE)
# Marks the end of a heading.
_MARK = "\ue001"
_MARKS = re.compile(rf"(?P<before>[:.?!]*)\s*{_MARK}[\s:{_MARK}]*")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# An entity that was escaped more than once.
_ESCAPED = re.compile(r"&(?:amp;)+(?=(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31});)")


def clean(text: str, path: Path, location: int | str, problems: Problems) -> str:
    """Remove the markup of a text; count texts with markup."""
    without = without_markup(text)
    if without == text:
        return text
    problems.count("texts whose markup was removed", path, location)
    return " ".join(without.split())


def without_markup(text: str) -> str:
    """Remove tags, then decode entities; "p &lt; 0.05" and "a < b" are not tags.

    A heading gets a colon. A tag has a known name, a namespace, attributes or a partner; an escaped
    tag has a namespace or a partner.
    """
    if "<" in text:
        text = _without_tags(text, escaped=False)
    if "&" in text:
        plain = _ENTITY.sub(lambda match: html.unescape(match[0]), _ESCAPED.sub("&", text))
        is_escaped = "<" in plain and plain.count("<") > text.count("<")
        text = _without_tags(plain, escaped=True) if is_escaped else plain
    if "\\documentclass" in text:
        text = without_documents(text)
    return text


def _without_tags(text: str, escaped: bool) -> str:
    for pattern in (_GRAPHICAL, _HEADING, _UNREAD):
        text = pattern.sub(" ", text)
    text = _TITLE_END.sub(lambda match: f"{match[0]}{_MARK}", text)
    opened: set[str] = set()
    closed: set[str] = set()
    for tag in _TAG.finditer(text):
        (closed if tag["end"] else opened).add(tag["name"].lower())
    paired = opened & closed

    def replaced(tag: re.Match[str]) -> str:
        name = tag["name"].lower()
        if not (name in paired or _is_tag(tag, name, escaped)):
            return tag[0]
        return " " if name in _BLOCKS else ""

    text = _TAG.sub(replaced, text)
    if _MARK in text:
        # A heading without text before and after it is the text.
        text = _MARKS.sub(_heading_end, text).strip().removeprefix(":").removesuffix(":")
    return text


def _is_tag(tag: re.Match[str], name: str, escaped: bool) -> bool:
    """Whether an apparent tag without a partner is a tag: "n<i>m" has none."""
    if tag["space"] or name == "br":
        return True
    if escaped:
        return False
    if tag["more"] or tag["empty"] or name in _BLOCKS:
        return True
    return len(name) > 1 and name in _INLINE


def _heading_end(mark: re.Match[str]) -> str:
    is_sentence = "?" in mark["before"] or "!" in mark["before"]
    return f"{mark['before']} " if is_sentence else ": "
