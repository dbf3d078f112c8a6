"""Choose the id of a paper: its DOI, an id of its source, or one made of its title."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.data.papers import PaperTexts
from claim2source.data.text_files import id_error

PUBMED = "https://pubmed.ncbi.nlm.nih.gov/"
# Notes, files and marks that a reference manager keeps beside its papers, by their types.
ATTACHED = frozenset(("note", "attachment", "annotation"))
NOTES = "notes and attachments of a reference manager, left out"
_MADE = "references without an id, which is made of the title"
_PMID = re.compile(r"\b([0-9]{1,9})(?:\.0)?/?\s*$")
# Several addresses in one text are parted by white space, "|" or ";".
_ADDRESS = re.compile(r"https?://(?:(?![;,]+\s*https?://)[^\s|])+")
# What databases write for a text that they do not have.
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
    """Return the first id that can be one, or else make one of the title and the year."""
    for entry in ids:
        if not id_error(entry):
            return entry
    text = texts.title or texts.abstract
    if not text.strip():
        return ""
    problems.count(_MADE, path, location)
    return hashlib.sha256(f"{text.lower()} {texts.date[:4]}".encode()).hexdigest()[:16]


def pubmed_id(text: str) -> str:
    """Read PubMed's id of a number or an address; "" if there is none."""
    match = _PMID.search(text)
    return match[1].lstrip("0") if match else ""


def is_placeholder(text: str) -> bool:
    """Whether a database says by this text that it has none."""
    return text.strip(" .[]()").lower() in _PLACEHOLDERS


def first_address(texts: Iterable[str]) -> str:
    """Return the first address of the web in several texts; "" if there is none."""
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
