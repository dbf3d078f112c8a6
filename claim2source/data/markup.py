"""Clean the markup of titles and abstracts: tags and entities."""

from __future__ import annotations

import html
import re
from pathlib import Path

from claim2source.core.errors import Problems

# What registries leave in titles and abstracts: <i>, <jats:p>, <mml:mi mathvariant="normal">.
_TAG = re.compile(
    r"</?(?:(?:jats|mml|m|xhtml|html|ns\d):)?(?P<name>[A-Za-z][\w.-]*)"
    r"(?P<more>(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'))*)\s*/?>"
)
_INLINE = frozenset(
    "i b u em strong sub sup scp sc small tt code span font a abbr cite q italic bold underline "
    "monospace roman ext-link xref inline-formula inline-graphic named-content styled-content "
    "alternatives math mi mo mn ms mrow msub msup msubsup mfrac msqrt mtext mover munder mspace "
    "mstyle mfenced mtable mtr mtd mpadded mmultiscripts none mprescripts semantics".split()
)
_BLOCKS = frozenset("p br div sec title list list-item ul ol li h1 h2 h3 disp-formula".split())
_UNREAD = re.compile(r"<(?:mml:|jats:)?(tex-math|annotation)\b[^<>]*>[^<]*</[^<>]*\1>")
_HEADING = re.compile(r"<(?:jats:)?title>\s*abstract\s*[.:]?\s*</(?:jats:)?title>", re.IGNORECASE)
_TITLE_END = re.compile(r"[:.\s]*</(?:jats:)?title\s*>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def clean(text: str, path: Path, location: int | str, problems: Problems) -> str:
    without = without_markup(text)
    if without == text:
        return text
    problems.count("texts whose markup was removed", path, location)
    return " ".join(without.split())


def without_markup(text: str) -> str:
    """Remove tags, then read entities: "p &lt; 0.05" and "a < b" stay."""
    if "<" in text:
        text = _TITLE_END.sub(": ", _UNREAD.sub(" ", _HEADING.sub(" ", text)))
        text = _TAG.sub(_replaced, text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text


def _replaced(tag: re.Match[str]) -> str:
    name = tag["name"].lower()
    if name in _BLOCKS:
        return " "
    is_markup = name in _INLINE or tag["more"] or ":" in tag[0].partition(" ")[0]
    return "" if is_markup else tag[0]
