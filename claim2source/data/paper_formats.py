"""Detect the format of a file of papers by its beginning, whatever its name."""

from __future__ import annotations

import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile, ZipFile

from claim2source.data.headings import KNOWN
from claim2source.data.text_files import heading_key, open_bytes

# Number of lines in which the headings of a table are searched.
_FIRST_LINES = 15

Format = Literal[
    "beir",
    "openalex",
    "crossref",
    "pubmed",
    "jats",
    "ris",
    "nbib",
    "wos",
    "endnote",
    "refworks",
    "bibtex",
    "csv",
    "xlsx",
    "parquet",
]
READ = (
    "JSON, JSON lines, XML of PubMed, JATS, EndNote and Europe PMC, RIS, NBIB, tagged files of Web "
    "of Science, EndNote and RefWorks, BibTeX, CSV, TSV, Excel (.xlsx) and Parquet"
)
BY_NAME: dict[str, Format] = {
    ".jsonl": "beir",
    ".json": "beir",
    ".ndjson": "beir",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".parquet": "parquet",
    ".xml": "pubmed",
    ".nxml": "pubmed",
    ".ris": "ris",
    ".nbib": "nbib",
    ".ciw": "wos",
    ".enw": "endnote",
    ".bib": "bibtex",
    ".bibtex": "bibtex",
}
# Beginnings of files in unsupported formats.
_OTHER_FORMATS: dict[bytes, str] = {
    rb"PK\x03\x04": "a zip archive, such as a Word file",
    rb"\xd0\xcf\x11\xe0": "an old Excel or Word file: save it as .xlsx or CSV",
    rb"%PDF": "PDF",
    rb"\{\\rtf": "RTF",
    rb"(BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf)": "compressed, but not by gzip",
    rb"\x1f\x8b": "compressed by gzip: its name must end in .gz",
    rb"SQLite format 3": "an SQLite database",
    rb"(ARROW1|\xff\xff\xff\xff)": "Arrow: save Parquet",
    rb"(?i:<!doctype\s+html|<html)": "a web page",
}
_ZIPPED = {
    ".ods": "a spreadsheet: save it as CSV",
    ".docx": "a Word file",
    ".odt": "a text document",
}
# The type of a reference and a line with another tag, since any text may begin with "RT".
_REFWORKS = rb"RT +[A-Z][^\r\n]*[\r\n]+(?:SR|ID|A[1-6]|T[1-3]|J[FO]|YR|FD|VO|K1|AB|DO) +\S"
_OURS: dict[bytes, Format] = {
    rb"TY {1,2}- ?\w": "ris",
    rb"(PMID|OWN) *- ": "nbib",
    rb"(FN|PT) \w": "wos",
    rb"%[0-9A-Z@] \S": "endnote",
    _REFWORKS: "refworks",
    rb"PAR1": "parquet",
    rb"@\w+\s*[{(]": "bibtex",
    rb"<": "pubmed",
    rb"[{\[]": "beir",
}
# Lines that show the format after other lines: Ovid numbers its references, and Scopus begins with
# the date of the export.
_BELOW: dict[bytes, Format] = {
    rb"^TY  - \w": "ris",
    rb"^PMID- [0-9]": "nbib",
    rb"^@\w+\s*[{(]": "bibtex",
    b"^" + _REFWORKS: "refworks",
}


def plain_suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def detect_format(path: Path) -> tuple[Format, str]:
    """Detect a file's format by its first lines, else by its name.

    Returns the format, and the reason why the file cannot be read; "" if it can.
    """
    by_name = BY_NAME.get(plain_suffix(path))
    begin = file_begin(path)
    if begin is None:
        return by_name or "beir", ""
    if by_name == "xlsx" and begin.startswith(b"PK") or _is_workbook(path, begin):
        return "xlsx", ""
    if reason := _other_kind(path, begin):
        return by_name or "beir", f"is {reason}; supported formats: {READ}"
    by_content = _content_format(begin)
    if by_name is None:
        return _unnamed_format(begin, by_content)
    if by_content is not None:
        return (by_content if _overrules(by_content, by_name) else by_name), ""
    if by_name in ("beir", "xlsx") and begin:
        kind = "JSON" if by_name == "beir" else "an Excel workbook"
        return by_name, f"is not {kind} despite its name; supported formats: {READ}"
    return by_name, ""


def _other_kind(path: Path, begin: bytes) -> str:
    """Name an unsupported format by a file's first bytes; "" if it is not known."""
    for mark, kind in _OTHER_FORMATS.items():
        if re.match(mark, begin):
            return _ZIPPED.get(plain_suffix(path), kind)
    return ""


def _unnamed_format(begin: bytes, by_content: Format | None) -> tuple[Format, str]:
    """Choose the format of a file whose name has none, or the reason why it cannot be read."""
    if by_content is not None:
        return by_content, ""
    if _is_table(begin):
        return "csv", ""
    return "beir", f"has an unknown format; supported formats: {READ}"


def _content_format(begin: bytes) -> Format | None:
    for mark, kind in _OURS.items():
        if re.match(mark, begin):
            return kind
    for mark, kind in _BELOW.items():
        if re.search(mark, begin, re.MULTILINE):
            return kind
    return None


def _is_table(begin: bytes) -> bool:
    """Whether one of a text's first lines has the headings of a table of papers."""
    text = begin.decode("utf-8", "replace")
    for line in text.splitlines()[:_FIRST_LINES]:
        for separator in ",;\t|":
            keys = {heading_key(cell) for cell in line.split(separator)}
            if keys & {"title", "articletitle", "documenttitle", "itemtitle", "ti", "abstract"}:
                return len(keys & KNOWN) >= 2
    return False


def _is_workbook(path: Path, begin: bytes) -> bool:
    """Whether a zip archive is an Excel workbook, whatever its name."""
    if not begin.startswith(b"PK\x03\x04") or path.suffix == ".gz":
        return False
    try:
        with ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (BadZipFile, OSError, ValueError):
        return False


def file_begin(path: Path) -> bytes | None:
    """Read the beginning of a file; None for a pipe, which can be read only once, and on errors.

    The reason for an error is reported when the file is read.
    """
    if not path.is_file():
        return None
    try:
        with open_bytes(path) as file:
            begin = file.read(4096)
    except (OSError, EOFError, zlib.error):
        return None
    if begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        begin = begin.decode("utf-16", "ignore").encode()
    return begin.removeprefix(BOM_UTF8).lstrip()


def _overrules(by_content: Format, by_name: Format) -> bool:
    """Whether a file's beginning overrules its name."""
    if by_content in ("ris", "nbib", "wos", "endnote", "refworks", "parquet"):
        return True
    if by_content == "bibtex":
        return by_name != "csv"
    return by_name in ("beir", "pubmed")
