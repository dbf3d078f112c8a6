"""Clean DOIs in the forms that registries, reference managers, web pages and people write."""

from __future__ import annotations

import html
import re
import unicodedata
from urllib.parse import unquote

# Most DOIs are clean: they consist of these characters.
_CLEAN = re.compile(r"10\.[0-9]{4,9}/[a-z0-9](?:[a-z0-9._/-]*[a-z0-9])?")
_START = r"10\.[0-9]{4,9}(?:\.[0-9]+)*/"
_FIRST = re.compile(rf"(?<![0-9.]){_START}(?=[^\s/])", re.IGNORECASE)
# Another DOI begins after white space, a separator, or an address.
_NEXT = re.compile(
    r"(?:[\s,;|]+|(?=https?:/)|(?<![a-z])doi:)(?:(?:https?:/+[^\s/]+/|doi:?|info:doi/|and|&)\s*)*"
    rf"(?={_START})",
    re.IGNORECASE,
)
# The end of a SICI, from which publishers made DOIs until 2005: <422::AID-JBM9>3.0.CO;2-#.
_SICI = re.compile(
    r"[^\s<>\[\]]*[<\[][^\s<>\[\]]*[>\]][0-9]\.[0-9]\.[a-z]{2};2(?:-[0-9a-z#])?", re.IGNORECASE
)
_END = re.compile(r"[\s<\"“”„«»?#\\^`{}|]|&(?=[\w.-]+=)|;(?=\w+=)")
_ESCAPED = re.compile(r"\\([_%#&<>$])")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}")
_BRACKETS = {")": "(", "]": "[", "}": "{", ">": "<"}
_PUNCTUATION = ".,;:!?'’‘*/&([{<>…·"
_HYPHENS = dict.fromkeys(map(ord, "‐‑‒–−"), "-")
# What follows a DOI in publishers' addresses.
_PAGE = re.compile(
    r"(?:/(?:full|abs|abstract|pdf|epdf|pdfdirect|html|fulltext|full-text|meta|xml|summary|"
    r"references|citations|figures)(?:/html|/pdf)?|\.(?:full\.)?(?:pdf|html?)(?:\+html)?|"
    r"\.full(?:-text)?|\.abstract|\.short)$",
    re.IGNORECASE,
)
# Versions and full texts of a preprint get the preprint's DOI.
_PREPRINT = re.compile(r"(10\.(?:1101|64898)/[0-9.]+)v[0-9]+(?:[./].*)?$", re.IGNORECASE)
_HOST = re.compile(r"https?://([^\s/]+)/\S*$", re.IGNORECASE)
_LONGEST = 4096


def plain_doi(text: str) -> str:
    """Return the first DOI in a text, clean and in lower case; "" if there is none."""
    if _CLEAN.fullmatch(text):
        return text
    return next(iter(plain_dois(text)), "")


def plain_dois(text: str) -> list[str]:
    """List the distinct DOIs in a text, clean and in lower case."""
    if not text or "10" not in unicodedata.normalize("NFKC", text):
        return []
    decoded = _decoded(text[:_LONGEST])
    found: dict[str, None] = {}
    while first := _FIRST.search(decoded):
        before, rest = decoded[: first.start()], decoded[first.start() :]
        doi, end = _cut(rest)
        host = _HOST.search(before)
        if host is not None and "doi" not in host[1].lower():
            doi = _without_page(doi)
        if cleaned := _stable(doi):
            found[cleaned] = None
        decoded = rest[max(end, first.end() - first.start()) :]
    return list(found)


def _stable(doi: str) -> str:
    """Clean a DOI until it no longer changes."""
    while True:
        preprint = _PREPRINT.match(doi)
        decoded = _decoded(doi if preprint is None else preprint[1])
        first = _FIRST.search(decoded)
        if first is None:
            return ""
        cleaned = _stripped(_cut(decoded[first.start() :])[0]).lower()
        if cleaned == doi:
            return doi
        doi = cleaned


def _decoded(text: str) -> str:
    """Decode entities, percent codes and LaTeX escapes; remove invisible characters."""
    while True:
        decoded = html.unescape(text)
        if _PERCENT.search(decoded):
            decoded = unquote(decoded, errors="ignore")
        decoded = unicodedata.normalize("NFKC", decoded).translate(_HYPHENS)
        decoded = _ESCAPED.sub(r"\1", decoded)
        kept = [sign for sign in decoded if sign.isspace() or unicodedata.category(sign)[0] != "C"]
        decoded = "".join(kept)
        if decoded == text:
            return text
        text = decoded


def _cut(text: str) -> tuple[str, int]:
    """Return the DOI at the beginning of a text, and the position where the search continues."""
    following = _NEXT.search(text, 1)
    if following is not None:
        text = text[: following.start()]
    sici = _SICI.match(text)
    if sici is not None:
        return sici[0], sici.end()
    end = _END.search(text)
    length = len(text) if end is None else end.start()
    opened: list[str] = []
    for place, sign in enumerate(text[:length]):
        if sign in _BRACKETS.values():
            opened.append(sign)
        elif sign in _BRACKETS:
            if not opened or opened[-1] != _BRACKETS[sign]:
                return text[:place], place
            opened.pop()
    return text[:length], length


def _stripped(doi: str) -> str:
    """Remove punctuation from the end."""
    return doi if _SICI.fullmatch(doi) else doi.rstrip(_PUNCTUATION)


def _without_page(doi: str) -> str:
    while True:
        shorter = _PAGE.sub("", doi.rstrip("/"))
        if shorter == doi:
            return doi
        doi = shorter
