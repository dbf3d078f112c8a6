"""Read UTF-8 text and TSV files line by line, and collect problems with file, line and field."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from io import BufferedReader, StringIO, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import file_error

if TYPE_CHECKING:
    import _csv


def text_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str | None]]:
    """Yield the numbered lines of a UTF-8 file, with their line ends, without a BOM.

    A file named .gz is decompressed. A line that is not UTF-8 is added to `problems` and yielded
    as None.
    """
    if reason := file_error(path):
        problems.add(path, None, None, reason)
        return
    with _adding_failures(path, problems), open_bytes(path) as file:
        for number, raw in enumerate(file, start=1):
            if number == 1 and (kind := _other_kind(raw)):
                problems.add(path, 1, None, f"is {kind}, not UTF-8")
                yield number, None
                return
            raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            yield number, _decoded(raw, "utf-8", path, number, problems)


def any_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of another program's text, without a byte order mark.

    It may be UTF-8, UTF-16 with a byte order mark, or Windows-1252 (which is counted), and its
    lines may end in CR. An unreadable line is added to `problems` and yielded as a blank one.
    """
    if reason := file_error(path):
        problems.add(path, None, None, reason)
        return
    encoding = ""
    with _adding_failures(path, problems), open_bytes(path) as file:
        if _other_kind(file.peek(2)[:2]) == "UTF-16":
            yield from enumerate(TextIOWrapper(file, "utf-16", newline=""), start=1)
            return
        # Latin-1 has a character for each byte.
        for number, line in enumerate(TextIOWrapper(file, "latin-1", newline=""), start=1):
            raw = line.encode("latin-1")
            raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if not encoding and not raw.isascii():
                encoding = "utf-8"
                if _decoded(raw, encoding, path, number, Problems()) is None:
                    encoding = "cp1252"
                    problems.count("files that are not UTF-8, decoded as Windows-1252", path)
            text = _decoded(raw, encoding or "ascii", path, number, problems)
            yield number, "\n" if text is None else text


@contextlib.contextmanager
def _adding_failures(path: Path, problems: Problems) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        problems.add(path, None, None, f"is broken UTF-16: {error.reason}")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problems.add(path, None, None, f"cannot be read: {reason}")


def _decoded(raw: bytes, encoding: str, path: Path, line: int, problems: Problems) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1}"
        problems.add(path, line, None, reason)
        return None


def open_bytes(path: Path) -> BufferedReader | gzip.GzipFile:
    """Open a file to read its bytes; a file named .gz or .dz is decompressed."""
    return gzip.open(path) if path.suffix in (".gz", ".dz") else open(path, "rb")


def _other_kind(begin: bytes) -> str | None:
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    return "compressed (gzip)" if begin.startswith(b"\x1f\x8b") else None


def read_lines(path: Path) -> list[str]:
    """Read all lines of a UTF-8 file. Raises `InputError`, also if all are blank."""
    lines = _plain_lines(path)
    if lines is None:
        problems = Problems()
        lines = [text or "" for _, text in text_lines(path, problems)]
        for number, line in enumerate(lines, start=1):
            if "\0" in line:
                problems.add(path, number, None, "holds a NUL character")
        problems.raise_if_any()
    if not any(line.strip() for line in lines):
        raise InputError(path, reason="is empty")
    return lines


def _plain_lines(path: Path) -> list[str] | None:
    """Read the lines of a UTF-8 file at once; None if something about it must be reported."""
    if file_error(path) or not path.is_file():
        return None
    try:
        with open_bytes(path) as file:
            text = file.read().decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None
    if "\0" in text:
        return None
    return list(StringIO(text.removeprefix("\ufeff"), newline="\n"))


def first_cells(lines: Iterable[str]) -> list[str]:
    """Split the first line that is not blank at tabs."""
    first = next(line for line in lines if line.strip())
    return [cell.strip().strip('"') for cell in first.split("\t")]


def tsv_rows(
    path: Path,
    columns: Sequence[str],
    problems: Problems,
    *,
    lines: Iterable[str] | None = None,
    only: bool = False,
    delimiter: str = "\t",
    whole: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, cells of `columns`) for every row after the header of a TSV or CSV file.

    Quoted cells may have line breaks. `lines` are the file's lines if they are already read. With
    `only` the header must be exactly `columns`; with `whole` the cells of all columns are yielded.
    An unreadable row is added to `problems` and skipped.
    """
    if lines is None:
        # A line that cannot be decoded still has a number.
        lines = (text or "\n" for _, text in text_lines(path, problems))
    csv.field_size_limit(sys.maxsize)  # a cell of `preds` may list thousands of ids
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    for number, cells in csv_rows(reader, path, problems):
        if header is None:
            header = [cell.strip() for cell in cells]
            errors = _header_errors(header, columns, only)
            for name, reason in errors:
                problems.add(path, number, name, reason)
            if errors:
                return
            positions = [header.index(name) for name in columns]
        elif len(cells) != len(header):
            problems.add(path, number, None, f"{len(cells)} columns; the header has {len(header)}")
        else:
            yield number, cells if whole else [cells[position] for position in positions]


def csv_rows(
    reader: _csv.Reader, path: Path, problems: Problems
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of every readable row that is not blank."""
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = str(error)
            if "end of data" in reason:
                reason = "a quote that is not closed"
            problems.add(path, number, None, f"broken row: {reason}")
            continue
        if any(cell.strip() for cell in cells):
            yield number, cells


def _header_errors(
    header: Sequence[str], columns: Sequence[str], only: bool
) -> list[tuple[str | None, str]]:
    """Return what is wrong with a header, by column, or for the entire header with `only`."""
    if only and header != list(columns):
        return [(None, f"the header must be {' <tab> '.join(columns)}")]
    reason = f"must be a column of the header, once; there are: {', '.join(header)}"
    return [(name, reason) for name in columns if header.count(name) != 1]


# A spreadsheet that saves such a file fills the line with separators.
_SEPARATOR = re.compile(r'"?sep=(.)"?\1*\s*', re.IGNORECASE)
# Number of first lines in which the header of a table is searched.
_FIRST_LINES = 15


def heading_key(name: str) -> str:
    """Reduce a heading to lower-case letters and digits: "Author(s) ID" is authorsid."""
    return "".join(filter(str.isalnum, name.casefold()))


def header_position(rows: Sequence[Sequence[str]], known: Collection[str]) -> int:
    """Choose the row of a table's headings: the first, unless a later one has more known ones.

    Some databases write lines about the table's origin before the header.
    """
    keys = {heading_key(name) for name in known}
    counts = [len(keys & {heading_key(cell) for cell in row}) for row in rows]
    if not counts or counts[0] >= 2 or max(counts) < 2:
        return 0
    return counts.index(max(counts))


def open_spreadsheet(
    path: Path, problems: Problems, known: Collection[str]
) -> tuple[list[str], str, Iterator[str]]:
    """Open another program's table; return its header, separator and an iterator over all lines.

    The separator is the one that yields most known columns. Lines before the header are blank.
    """
    lines = (line for _, line in any_lines(path, problems))
    before: list[str] = []
    separators = ",;\t|"
    for line in lines:
        if match := _SEPARATOR.fullmatch(line):
            separators, line = match[1], "\n"
        before.append(line)
        if len(before) >= _FIRST_LINES and any(map(str.strip, before)):
            break
    filled = [number for number, line in enumerate(before) if line.strip()]
    candidates = [_split_header(before[number], separators, known) for number in filled]
    if not candidates:
        return [], separators[0], iter(before)
    position = header_position([header for header, _ in candidates], known)
    header, separator = candidates[position]
    if position:
        problems.count("tables with lines before the header, which were skipped", path)
        before[: filled[position]] = ["\n"] * filled[position]
    return header, separator, chain(before, lines)


def _split_header(line: str, separators: str, known: Collection[str]) -> tuple[list[str], str]:
    """Split a line at the separator that yields most known columns."""
    keys = {heading_key(name) for name in known}

    def split(separator: str) -> list[str]:
        try:
            return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
        except csv.Error:
            return []

    def fit(separator: str) -> tuple[int, bool]:
        return len(keys & {heading_key(cell) for cell in split(separator)}), separator in line

    separator = max(separators, key=fit)
    return split(separator), separator


def text_error(value: str) -> str | None:
    """Return the reason why a text cannot be stored; None if it can."""
    if "\0" in value:
        return "contains a NUL character"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "contains half of a surrogate pair"
    return None


def id_error(value: str) -> str | None:
    """Return the reason why a text cannot be an id; None if it can."""
    if not value.strip():
        return "is empty"
    if value.split() != [value]:
        return "contains white space, which would split it in a ranked list; use _ instead"
    return text_error(value)
