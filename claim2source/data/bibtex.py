"""Read BibTeX from reference managers and databases."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.errors import Problems
from claim2source.data.latex import LatexReader
from claim2source.data.papers import Paper
from claim2source.data.references import missing_library, read_reference
from claim2source.data.text_files import any_lines, id_error

if TYPE_CHECKING:
    from bibtexparser.model import Block, Entry

_BIBTEX = {
    "title": ("title",),
    "abstract": ("abstract",),
    "authors": ("author", "editor"),
    "venue": ("journal", "journaltitle", "booktitle", "publisher", "school", "institution"),
    "date": ("date", "year"),
    "doi": ("doi", "url"),
    "url": ("url", "howpublished"),
    "lang": ("langid", "language"),
    "id": (),
}
_NAMES = ("author", "editor")
_ADDRESSES = ("doi", "url", "howpublished")
_READ = frozenset(
    "title subtitle abstract author editor journal journaltitle booktitle publisher school "
    "institution date year month day doi url howpublished langid language".split()
)
# Fields that a part inherits from its book or periodical.
_INHERITED = (
    "booktitle journal journaltitle publisher school institution langid language "
    "date year month day"
).split()
_DATES = ("date", "year", "month", "day")
_PERIODICALS = ("periodical", "mvperiodical", "journal")
_BOOKS = ("book", "mvbook", "collection", "mvcollection")
_PARTS = ("inbook", "suppbook", "bookinbook")
# A longer chain of links between entries is a cycle.
_MOST_LINKS = 8
_MONTHS = frozenset("jan feb mar apr may jun jul aug sep oct nov dec".split())
# Signs that split a value at its top level.
_PARTING = re.compile(r'(?<!\\)[{}"#]')
_BRACE = re.compile(r"(?<!\\)[{}]")
_NAME = re.compile(r"[^\W\d][^\s{}]*")
_AND = re.compile(r"(?<!\\)[{}]|(?<=\s)and(?=\s)", re.IGNORECASE)
# The parser expects a type of letters and its bracket on the same line.
_START = re.compile(r"^([ \t]*)@([ \t]*)([\w.+:/-]+)(\s*)([{(])", re.MULTILINE)
_OTHER_BLOCKS = ("comment", "preamble", "string")
# Up to this share of a file's entries may be broken; they are skipped and counted.
_BROKEN_SHARE = 0.1
_BROKEN = "entries of broken BibTeX, left out"

_Raw = dict[str, list[str]]


def read_bibtex(path: Path, problems: Problems) -> Iterator[Paper | None]:
    """Yield the entries of a BibTeX file; None for an entry without title and abstract.

    The file is read into memory. Broken entries are skipped and counted; if there are many, each
    is a problem.
    """
    library = _parse(path, problems)
    if library.is_empty:
        problems.add(path, None, None, "contains no BibTeX entries")
        return
    entries = len(library.entries) + len(library.broken)
    is_mostly_good = len(library.broken) <= _BROKEN_SHARE * entries
    for line, reason in library.broken:
        if is_mostly_good:
            problems.count(_BROKEN, path, line)
            yield None
        else:
            problems.add(path, line, None, f"broken BibTeX: {reason}")
    try:
        reader = _EntryReader(path, problems, library)
    except ImportError as error:
        raise missing_library(error) from None
    for entry in library.entries:
        yield reader.paper(entry)


@dataclass
class _BibEntry:
    """Entry with its unparsed fields, by lower-case name."""

    line: int
    type: str
    key: str
    fields: _Raw


@dataclass
class _Library:
    """Entries of a file in order; `broken` has the lines and reasons of the other ones."""

    entries: list[_BibEntry] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    is_empty: bool = False


def _parse(path: Path, problems: Problems) -> _Library:
    try:
        import bibtexparser
    except ImportError as error:
        raise missing_library(error) from None
    logging.getLogger("bibtexparser").setLevel(logging.CRITICAL)  # failures are reported below
    lines = [line for _, line in any_lines(path, problems)]
    text = "".join(lines).replace("\r\n", "\n").replace("\r", "\n")
    text = _START.sub(_plain_start, text)
    # Without its middlewares the library does not change values.
    blocks = bibtexparser.parse_string(text, parse_stack=()).blocks
    library = _Library()
    strings = _Strings(path, problems)
    seen: set[int] = set()
    for block in blocks:
        _add_block(block, library, strings)
        seen.add(block.start_line or 0)
    # Entries that the library skipped silently.
    line = position = 0
    for start in _START.finditer(text):
        line += text.count("\n", position, start.start())
        position = start.start()
        if line not in seen and start[3].lower() not in _OTHER_BLOCKS:
            library.broken.append((line + 1, "the parser skipped this entry"))
    library.is_empty = not (library.entries or library.broken)
    return library


def _plain_start(start: re.Match[str]) -> str:
    kind = re.sub(r"\W", "_", start[3])
    breaks = "\n" * start[4].count("\n")
    return f"{start[1]}@{kind}{start[5]}{breaks}"


def _add_block(block: Block, library: _Library, strings: _Strings) -> None:
    from bibtexparser.model import (
        DuplicateBlockKeyBlock,
        DuplicateFieldKeyBlock,
        Entry,
        ParsingFailedBlock,
        String,
    )

    line = (block.start_line or 0) + 1
    # For a repeated key or field the library returns an error that contains the entry.
    whole: Block | None = block
    while isinstance(whole, DuplicateBlockKeyBlock | DuplicateFieldKeyBlock):
        whole = whole.ignore_error_block
    if isinstance(whole, String):
        strings.define(whole.key, whole.value)
    elif isinstance(whole, Entry):
        library.entries.append(_entry(whole, line, strings))
    elif isinstance(block, ParsingFailedBlock):
        start = _START.match(block.raw or "")
        if start is None or start[3].lower() not in ("comment", "preamble"):
            reason = " ".join(str(block.error or "").split())
            library.broken.append((line, reason or "is a brace or quote not closed?"))


def _entry(entry: Entry, line: int, strings: _Strings) -> _BibEntry:
    fields: _Raw = {}
    for item in entry.fields:
        name = item.key.lower()
        if name in _READ or name in ("crossref", "xdata"):
            value = strings.value(str(item.value), line)
            if value.strip(" {}\t\n"):
                fields.setdefault(name, []).append(value)
    return _BibEntry(line, entry.entry_type.lower(), entry.key, fields)


class _Strings:
    """Names that @string defines, and values that are composed of them."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path, self.problems = path, problems
        self._values: dict[str, str] = {}

    def define(self, name: str, value: str) -> None:
        self._values[name.lower()] = self.value(value, None)

    def value(self, written: str, line: int | None) -> str:
        """Join the parts of a value: `"in " # schools # {, 2}`."""
        parts: list[str] = []
        for part in _value_parts(written):
            if _is_enclosed(part):
                parts.append(part[1:-1])
                continue
            text = self._values.get(part.lower())
            if text is None and _NAME.fullmatch(part) and part.lower() not in _MONTHS:
                kind = "names that no @string of BibTeX defines, unchanged"
                self.problems.count(kind, self.path, line)
            parts.append(part if text is None else text)
        return "".join(parts)


def _is_enclosed(part: str) -> bool:
    """Whether a part of a value is enclosed in the sign with which it begins."""
    if not part.startswith("{"):
        return len(part) > 1 and part[0] == part[-1] == '"'
    depth = 0
    for brace in _BRACE.finditer(part):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end() == len(part)
    return False


def _value_parts(written: str) -> list[str]:
    """Split a value where "#" joins its parts: outside braces and quotes."""
    parts: list[str] = []
    start = depth = 0
    quoted = False
    for sign in _PARTING.finditer(written):
        if sign[0] == "{":
            depth += 1
        elif sign[0] == "}":
            depth -= 1
        elif depth == 0 and sign[0] == '"':
            quoted = not quoted
        elif depth == 0 and not quoted:
            parts.append(written[start : sign.start()].strip())
            start = sign.end()
    parts.append(written[start:].strip())
    return parts


class _EntryReader:
    """Read the entries of a library as papers."""

    def __init__(self, path: Path, problems: Problems, library: _Library) -> None:
        from bibtexparser.middlewares.names import parse_single_name_into_parts

        self.path, self.problems = path, problems
        self._latex = LatexReader()
        self._name_parts = parse_single_name_into_parts
        self._by_key: dict[str, _BibEntry] = {}
        for entry in library.entries:
            self._by_key.setdefault(entry.key.lower(), entry)

    def paper(self, entry: _BibEntry) -> Paper | None:
        fields = self._with_inherited(entry, _MOST_LINKS)
        self._latex.unknown.clear()
        values: dict[str, list[str]] = {}
        for name, written in fields.items():
            if name in _NAMES:
                values[name] = self._people(written)
            else:
                values[name] = [self._text(name, written[0])]
                self._count_repeated(name, written, entry.line)
        if self._latex.unknown:
            kind = "texts with unknown LaTeX macros, unchanged"
            self.problems.count(kind, self.path, entry.line)
        if "title" in values and "subtitle" in values:
            values["title"] = [f"{values['title'][0]}: {values['subtitle'][0]}"]
        if "year" in values and "month" in values:
            values["year"] = ["-".join(values["year"] + values["month"] + values.get("day", []))]
        key = entry.key
        if id_error(key):
            self.problems.count("BibTeX keys that cannot be ids, replaced", self.path, entry.line)
            key = ""
        return read_reference(self.path, entry.line, self.problems, _BIBTEX, values, key)

    def _with_inherited(self, entry: _BibEntry, links: int) -> _Raw:
        """Add the fields that an entry inherits through `crossref` or `xdata`."""
        fields = dict(entry.fields)
        parents: list[_BibEntry] = []
        for name in ("crossref", "xdata"):
            for keys in fields.pop(name, ()):
                for key in re.split(r"[,\s]+", keys.strip().lower()):
                    if parent := self._by_key.get(key):
                        parents.append(parent)
                    else:
                        kind = "cross references to missing entries"
                        self.problems.count(kind, self.path, entry.line)
        if not links:
            return fields
        for parent in parents:
            inherited = self._with_inherited(parent, links - 1)
            if parent.type != "xdata":
                inherited = _passed_on(entry, parent, inherited)
            if any(name in fields for name in ("date", "year")):
                inherited = {name: inherited[name] for name in inherited if name not in _DATES}
            fields = inherited | fields
        return fields

    def _people(self, written: Sequence[str]) -> list[str]:
        people: list[str] = []
        for names in dict.fromkeys(written):
            for name in _split_names(names):
                if name.lower() != "others":
                    parts = self._name_parts(name, strict=False)
                    people.append(self._text("author", parts.merge_first_name_first))
        return people

    def _text(self, name: str, latex: str) -> str:
        try:
            return self._latex.address(latex) if name in _ADDRESSES else self._latex.text(latex)
        except ValueError:
            self.problems.count("texts whose LaTeX cannot be parsed, unchanged", self.path)
            return latex

    def _count_repeated(self, name: str, written: Sequence[str], line: int) -> None:
        if len(set(written)) > 1:
            kind = "repeated fields of BibTeX, the first one used"
            self.problems.count(kind, self.path, line)


def _passed_on(entry: _BibEntry, parent: _BibEntry, fields: _Raw) -> _Raw:
    """Choose the fields that a book or periodical passes on: not its title, authors or DOI."""
    passed = {name: fields[name] for name in _INHERITED if name in fields}
    if "title" in parent.fields:
        if parent.type in _PERIODICALS:
            passed["journaltitle"] = parent.fields["title"]
        elif "booktitle" not in parent.fields:
            passed["booktitle"] = parent.fields["title"]
    if parent.type in _BOOKS and entry.type in _PARTS and "author" in fields:
        passed["author"] = fields["author"]
    return passed


def _split_names(names: str) -> list[str]:
    """Split names at each "and" outside braces."""
    parts: list[str] = []
    start = depth = 0
    for sign in _AND.finditer(names):
        if sign[0] == "{":
            depth += 1
        elif sign[0] == "}":
            depth -= 1
        elif depth == 0:
            parts.append(names[start : sign.start()].strip())
            start = sign.end()
    parts.append(names[start:].strip())
    return [part for part in parts if part]
