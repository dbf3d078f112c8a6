"""Read BibTeX, as reference managers and databases export it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.data.papers import Paper
from claim2source.data.references import missing_library, read_reference
from claim2source.data.text_files import any_lines

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
# LaTeX: marks, formulas, and signs that people write without a backslash.
_LATEX = re.compile(r"[\\{}$~]|--|``|''")
_MATH = re.compile(r"(?<!\\)\$(?=\S)(?!\d[^$]*\$\d)([^$]*)(?<=[^\s\\])\$")  # but not "$5 or $10"
_UNESCAPED = re.compile(r"(?<!\\)([$%&#])")


def read_bibtex(path: Path, problems: Problems) -> Iterator[Paper | None]:
    """Yield the entries of BibTeX, which is read whole; None for one without title and abstract."""
    try:
        import bibtexparser
        from bibtexparser.middlewares.names import (
            parse_single_name_into_parts,
            split_multiple_persons_names,
        )
        from bibtexparser.model import DuplicateBlockKeyBlock, Entry, ParsingFailedBlock
        from pylatexenc.latex2text import LatexNodes2Text
    except ImportError as error:
        raise missing_library(error) from None
    for name in ("bibtexparser", "pylatexenc"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what fails is reported below
    decode = LatexNodes2Text(math_mode="text").latex_to_text

    def field_text(latex: str) -> str:
        if not _LATEX.search(latex):
            return latex
        without_math = _MATH.sub(lambda math: "{" + re.sub("[_^]", "", math[1]) + "}", latex)
        try:
            return str(decode(_UNESCAPED.sub(r"\\\1", without_math)))
        except (ValueError, RecursionError, IndexError):
            problems.count("texts whose LaTeX cannot be read, as they are", path)
            return latex

    def list_names(latex: str) -> list[str]:
        names: list[str] = []
        for text in split_multiple_persons_names(latex):
            if text != "others":
                name = parse_single_name_into_parts(text, strict=False)
                names.append(field_text(name.merge_first_name_first))
        return names

    def entry_values(entry: Entry) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        for field in entry.fields:
            name, latex = field.key.lower(), str(field.value)
            if name in ("author", "editor"):
                values[name] = list_names(latex)
            else:
                values[name] = [field_text(latex)]
        if "year" in values and "month" in values:
            date = values["year"] + values["month"] + values.get("day", [])
            values["year"] = ["-".join(date)]
        return values

    lines = [line for _, line in any_lines(path, problems)]
    library = bibtexparser.parse_string("".join(lines).replace("\r\n", "\n").replace("\r", "\n"))
    for block in library.blocks:
        line = (block.start_line or 0) + 1
        # Of entries with one key the caller takes the one with more text.
        twin = block.ignore_error_block if isinstance(block, DuplicateBlockKeyBlock) else None
        entry = twin or block
        if isinstance(entry, Entry):
            values = entry_values(entry)
            yield read_reference(path, line, problems, _BIBTEX, values, entry.key)
        elif isinstance(block, ParsingFailedBlock):
            reason = " ".join(str(block.error or "").split()) or "is a brace or quote not closed?"
            problems.add(path, line, None, f"broken BibTeX: {reason}")
    if not (library.entries or library.failed_blocks):
        problems.add(path, None, None, "holds no BibTeX entries")
