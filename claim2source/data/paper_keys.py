"""Choose the id of a paper: its DOI, an id of its source, or one made from its title."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.data.papers import PaperTexts
from claim2source.data.text_files import id_error

PUBMED = "https://pubmed.ncbi.nlm.nih.gov/"
# Types of notes, files and annotations that a reference manager keeps along with papers.
ATTACHED = frozenset(("note", "attachment", "annotation"))
NOTES = "notes and attachments of a reference manager, skipped"
_MADE = "references without an id, which get one from their title"
_PMID = re.compile(r"\b([0-9]{1,9})(?:\.0)?/?\s*$")
# White space, "|" or ";" separates several addresses in one text.
_ADDRESS = re.compile(r"https?://(?:(?![;,]+\s*https?://)[^\s|])+")
# Placeholders of databases for a missing text.
_PLACEHOLDERS = frozenset(
    (
        "no abstract available",
        "no abstract",
        "abstract not available",
        "no author name available",
        "no authors listed",
        "anonymous",
        "no title available",
    )
)


def choose_key(
    path: Path, location: int | str, problems: Problems, ids: Iterable[str], texts: PaperTexts
) -> str:
    """Return the first valid id, or else make one from the title and the year."""
    for entry in ids:
        if not id_error(entry):
            return entry
    text = texts.title or texts.abstract
    if not text.strip():
        return ""
    problems.count(_MADE, path, location)
    return hashlib.sha256(f"{text.lower()} {texts.date[:4]}".encode()).hexdigest()[:16]


def pubmed_id(text: str) -> str:
    """Get the PubMed id from a number or an address; "" if there is none."""
    match = _PMID.search(text)
    return match[1].lstrip("0") if match else ""


def is_placeholder(text: str) -> bool:
    """Whether this text is a database's placeholder for a missing one."""
    return text.strip(" .[]()").lower() in _PLACEHOLDERS


def first_address(texts: Iterable[str]) -> str:
    """Return the first web address in several texts; "" if there is none."""
    for text in texts:
        match = _ADDRESS.search(text)
        if match:
            return match[0].rstrip(";,")
    return ""


def dated(date: str, year: str) -> str:
    """Add the year to a date without one: "MAR 15" of 2020 is "2020 MAR 15"."""
    if not year or re.search(r"[0-9]{4}", date):
        return date or year
    return f"{year} {date}".strip()
