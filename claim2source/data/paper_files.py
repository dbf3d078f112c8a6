"""Read papers of any file, one after another: JSON, XML, tables and references."""

from __future__ import annotations

import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from claim2source.core.config import require
from claim2source.core.errors import InputError, Problems
from claim2source.core.files import file_error
from claim2source.data.beir import CORPUS, OF_SOURCES, dataset_folder, text_length
from claim2source.data.dates import first_day
from claim2source.data.identity import ImportedPapers
from claim2source.data.jsonl import Row
from claim2source.data.lenient import is_lenient
from claim2source.data.paper_json import read_json, row_to_paper
from claim2source.data.paper_xml import read_xml
from claim2source.data.papers import Paper, clean
from claim2source.data.references import read_bibtex, read_tagged
from claim2source.data.text_files import open_bytes, open_spreadsheet, tsv_rows

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal[
    "beir", "openalex", "crossref", "pubmed", "jats", "ris", "nbib", "bibtex", "csv", "parquet"
]
READ = "JSON, JSON lines, PubMed's XML, JATS, RIS, NBIB, BibTeX, CSV, TSV and Parquet"
_FORMATS: dict[str, Format] = {
    ".jsonl": "beir",
    ".json": "beir",
    ".ndjson": "beir",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".xml": "pubmed",
    ".nxml": "pubmed",
    ".ris": "ris",
    ".nbib": "nbib",
    ".bib": "bibtex",
    ".bibtex": "bibtex",
}
# How files of other kinds begin, and texts of ours whatever their names say.
_OTHER_FORMATS: dict[bytes, str] = {
    rb"PK\x03\x04": "a zip archive, as Excel's and Word's files are",
    rb"\xd0\xcf\x11\xe0": "an old Excel or Word file",
    rb"%PDF": "PDF",
    rb"\{\\rtf": "RTF",
    rb"(BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf)": "compressed, and not by gzip",
    rb"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    rb"SQLite format 3": "an SQLite database",
    rb"(ARROW1|\xff\xff\xff\xff)": "Arrow: save Parquet",
    rb"%\d ": "EndNote's own form: export RIS or BibTeX",
    rb"(FN|PT) \w": "Web of Science's own form: export RIS or BibTeX",
    rb"(?i:<!doctype\s+html|<html)": "a web page",
}
_ZIPPED = {
    ".xlsx": "an Excel workbook: save it as CSV",
    ".ods": "a spreadsheet: save it as CSV",
    ".docx": "a Word file",
    ".odt": "a text document",
}
_OURS: dict[bytes, Format] = {
    rb"TY  -": "ris",
    rb"PMID *- ": "nbib",
    rb"PAR1": "parquet",
    rb"@\w+\s*[{(]": "bibtex",
    rb"<": "pubmed",
    rb"[{\[]": "beir",
}

FIELDS = ("id", "title", "abstract", *OF_SOURCES)
# The field of a record of corpus.jsonl that a field of a table becomes.
_FIELD_OF = {"id": "_id", "title": "title", "abstract": "text"}
# What pandas and R write for a value that is absent.
_EMPTY = frozenset(
    "nan NaN -nan -NaN None NaT NA <NA> N/A n/a #N/A #NA null NULL Null undefined".split()
)
# What Arrow writes for a day that is in none of Python's years.
_NO_YEAR = "<value out of range"
# Rows of a Parquet file that are read at a time.
_BATCH = 1024

Cells = tuple[int, Mapping[str, object]]
TableReader = Callable[[Path, Mapping[str, str], Problems], Iterator[Cells]]


@dataclass(frozen=True)
class Merge:
    """Record that was merged into a paper of another id or record, and by what it was known."""

    file: str
    id: str
    title: str
    kept: str
    by: str


class _Places(Problems):
    """Count the records that have problems, which may have several each."""

    def __init__(self) -> None:
        super().__init__()
        self.spoilt: set[tuple[int | None, str]] = set()

    def add(
        self, file: str | Path, line: int | None, field: str | None, reason: str, kind: str = ""
    ) -> None:
        super().add(file, line, field, reason, kind)
        name = "" if field is None or line is not None else field.partition(":")[0]
        self.spoilt.add((line, name))


@dataclass
class PaperFiles:
    """Read the papers of files, as often as needed.

    With `check` all are read before the first is given: a mistake on the last line is found, and
    the records of one paper are merged. Without, and of pipes, a record with more text follows
    shorter ones of its paper. With `lenient` what cannot be read is left out and counted in
    `problems`; else the first such record raises `InputError`. `without` are ids to leave out.

    Of `records` that are read, `len()` are papers, `merged` are further records of these, and
    `left_out` have no text, cannot be read or are to be deleted. `on_merge` is called with each
    merged one.
    """

    files: Sequence[Path]
    columns: Mapping[str, str] = field(default_factory=dict)
    format: Format | None = None
    lenient: bool = False
    without: Collection[str] = ()
    unread_files: Sequence[Path] = ()
    check: bool = True
    left_out: int = 0
    problems: Problems = field(default_factory=Problems)
    on_merge: Callable[[Merge], None] | None = None
    _empty: int = 0
    _papers: ImportedPapers | None = None
    _reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        source: str,
        columns: Mapping[str, str] | None = None,
        format: Format | None = None,
        lenient: bool = False,
    ) -> PaperFiles:
        """Find the files of a source: a file, a folder of files, or a data set by its name.

        Raises `UserError` if there are none, or a column belongs to no field.
        """
        for name in columns or {}:
            require(name in FIELDS, "columns", name, f"FIELD=COLUMN, of {', '.join(FIELDS)}")
        renamed = columns or {}
        path = Path(source)
        folder = _dataset_folder(source)
        if folder is not None:
            lenient = is_lenient(folder, lenient)
            return cls([folder / CORPUS], renamed, format or "beir", lenient)
        if not path.is_dir():
            if reason := file_error(path):
                raise InputError(path, reason=reason)
            return cls([path], renamed, format, lenient)
        files: list[Path] = []
        ignored: list[Path] = []
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.name[0] != ".":
                (files if _is_ours(file) else ignored).append(file)
        if not files:
            raise InputError(path, reason=f"holds no files of papers: {READ} (.gz)")
        return cls(files, renamed, format, lenient, unread_files=ignored)

    def __len__(self) -> int:
        """Count the papers that were read."""
        return 0 if self._papers is None else len(self._papers)

    @property
    def records(self) -> int:
        """Count the records of the files: papers, merged ones and those that are left out."""
        return len(self) + self.merged + self.left_out

    @property
    def merged(self) -> int:
        """Count the records that are of papers of other records."""
        return 0 if self._papers is None else self._papers.records - len(self)

    def __iter__(self) -> Iterator[Paper]:
        """Yield papers. Raises `InputError` at the first problem, unless `lenient`."""
        for paper, _ in self.identified():
            yield paper

    def identified(self) -> Iterator[tuple[Paper, bool]]:
        """Yield papers, and whether the id of each is kept as the data set gives it."""
        if not self.check or not all(path.is_file() for path in self.files):
            yield from self._scan()
            return
        if self._papers is None:
            for _ in self._scan():
                pass
        assert self._papers is not None
        self._papers.start_merging()
        for number, (path, paper, keeps_id) in enumerate(self._records()):
            reason = self._reasons.get(number) or self._papers.joined.get(number, "")
            if reason and self.on_merge is not None:
                source = paper.source
                kept = self._papers.kept_id(number)
                self.on_merge(Merge(str(path), source.id, source.title, kept, reason))
            whole = self._papers.merge(number, paper)
            if whole is not None:
                yield whole, keeps_id

    def scan(self) -> Iterator[Paper]:
        """Read the files once; records of a paper that has more text may follow another."""
        for paper, _ in self._scan():
            yield paper

    def _scan(self) -> Iterator[tuple[Paper, bool]]:
        self._papers = papers = ImportedPapers(all(map(self._keeps_ids, self.files)))
        self._reasons = {}
        lengths: list[int] = []
        for number, (_, paper, keeps_id) in enumerate(self._records()):
            placed = papers.place(paper, keeps_id)
            length = text_length(paper.source)
            if placed.reason:
                self._reasons[number] = placed.reason
            if placed.number == len(lengths):
                lengths.append(-1)
            if length > lengths[placed.number]:
                lengths[placed.number] = length
                yield replace(paper, source=replace(paper.source, id=placed.id)), keeps_id

    def _records(self) -> Iterator[tuple[Path, Paper, bool]]:
        """Yield the papers of all records, and whether their ids are kept; count the others."""
        self.left_out = self._empty = 0
        self.problems = places = _Places()
        for path in self.unread_files:
            places.count("files of other kinds", path)
        for path in self.files:
            keeps_id = self._keeps_ids(path)
            for paper in self._read_file(path):
                if not self.lenient:
                    places.raise_if_any()
                self._empty += paper is None
                self.left_out += max(len(places.spoilt), paper is None)
                places.spoilt.clear()
                if paper is not None and self._is_wanted(paper, path):
                    yield path, paper, keeps_id
            if not self.lenient:
                places.raise_if_any()
            self.left_out += len(places.spoilt)
            places.spoilt.clear()

    def _is_wanted(self, paper: Paper, path: Path) -> bool:
        source = paper.source
        if source.id in self.without:
            self.problems.count("papers that are to be deleted", path)
            self.left_out += 1
            return False
        if source.date and not first_day(source.date):
            self.problems.count("dates that are not read", path, repr(source.date[:40]))
        return True

    def _keeps_ids(self, path: Path) -> bool:
        """Whether a file's ids are those of a data set, or of a column that the user named."""
        kind = self.format
        if kind is None:
            kind, _ = detect_format(path)
        if kind in ("csv", "parquet"):
            return "id" in self.columns
        begin = _begin(path)
        return kind == "beir" and (begin is None or b'"_id"' in begin)

    def omissions(self) -> str:
        """Sum up omissions and changes in one line; "" if there were none."""
        parts = [self.problems.summary()]
        if self._empty:
            reason = "papers without title and abstract, or without an id"
            parts.insert(0, f"{reason}: {self._empty}")
        if total := len(self.problems):
            parts.append(f"what cannot be read: {total}, such as {self.problems.first}")
        return "; ".join(part for part in parts if part)

    def summary(self) -> str:
        """Count what became of the records in one line."""
        counts = f"{len(self)} papers, {self.merged} merged into these, {self.left_out} left out"
        return f"{self.records} records: {counts}"

    def _read_file(self, path: Path) -> Iterator[Paper | None]:
        kind = self.format
        if kind is None:
            kind, reason = detect_format(path)
            if reason:
                self.problems.add(path, None, None, reason)
                return iter(())
        if kind in ("pubmed", "jats"):
            return read_xml(path, self.problems)
        if kind in ("csv", "parquet"):
            return self._read_table(path, _parquet if kind == "parquet" else _csv)
        if kind == "ris" or kind == "nbib":
            return read_tagged(path, self.problems, kind)
        if kind == "bibtex":
            return read_bibtex(path, self.problems)
        return read_json(path, self.problems, self.format)

    def _read_table(self, path: Path, read: TableReader) -> Iterator[Paper | None]:
        for line, cells in read(path, self.columns, self.problems):
            yield row_to_paper(_row(path, line, cells, self.columns, self.problems))


def _dataset_folder(source: str) -> Path | None:
    """Locate the data set of a name or a folder; None if it is another file or folder.

    Raises `InputError` if there is nothing of that name.
    """
    path = Path(source)
    if path.exists() and not (path / CORPUS).is_file():
        return None
    folder = path if path.suffix else dataset_folder(source)
    return folder if (folder / CORPUS).is_file() else None


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _is_ours(path: Path) -> bool:
    if _suffix(path) in _FORMATS:
        return True
    if _suffix(path) != ".txt" and path.suffix != ".gz":
        return False
    return not detect_format(path)[1]


def detect_format(path: Path) -> tuple[Format, str]:
    """Tell a file's format by how it begins, else by its name; and why it is not read, or ""."""
    by_name = _FORMATS.get(_suffix(path))
    begin = _begin(path)
    if begin is None:
        return by_name or "beir", ""
    for mark, reason in _OTHER_FORMATS.items():
        if re.match(mark, begin):
            return by_name or "beir", f"is {_ZIPPED.get(_suffix(path), reason)}; read are {READ}"
    by_content = next((kind for mark, kind in _OURS.items() if re.match(mark, begin)), None)
    if by_name is None:
        if by_content is None:
            return "beir", f"is of no kind that is read; read are {READ}"
        return by_content, ""
    if by_content is None:
        if by_name == "beir" and begin:
            return "beir", f"is not JSON, as its name says; read are {READ}"
        return by_name, ""
    return (by_content if _overrules(by_content, by_name) else by_name), ""


def _begin(path: Path) -> bytes | None:
    """Read how a file begins; None for a pipe, which is read only once, and if it cannot be read.

    Who reads the file says why it cannot be read.
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
    """Whether how a file begins counts more than its name."""
    if by_content in ("ris", "nbib", "parquet"):
        return True
    if by_content == "bibtex":
        return by_name != "csv"
    return by_name in ("beir", "pubmed")


def _csv(path: Path, renamed: Mapping[str, str], problems: Problems) -> Iterator[Cells]:
    header, separator, lines = open_spreadsheet(
        path, problems, (*FIELDS, "text", *renamed.values())
    )
    columns = _columns(path, header, renamed, problems)
    names = list(dict.fromkeys(columns.values()))
    for number, cells in tsv_rows(path, names, problems, lines=lines, delimiter=separator):
        values = dict(zip(names, cells, strict=True))
        yield number, {field: values[column] for field, column in columns.items()}


def _parquet(path: Path, renamed: Mapping[str, str], problems: Problems) -> Iterator[Cells]:
    from pyarrow import ArrowException, Table, parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = _columns(path, file.schema_arrow.names, renamed, problems)
            for field, column in columns.items():
                if reason := _cells_error(file.schema_arrow.field(column).type, field):
                    raise InputError(path, field=column, reason=reason)
            names = list(dict.fromkeys(columns.values()))
            for batch in file.iter_batches(_BATCH, columns=names):
                table = Table.from_batches([batch])
                values = {name: _dates_as_text(table.column(name)).to_pylist() for name in names}
                for row in range(len(table)):
                    number += 1
                    yield number, {field: values[name][row] for field, name in columns.items()}
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        problems.add(path, number or None, None, f"not Parquet that can be read: {reason}")


def _cells_error(kind: pa.DataType, field: str) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    inner = kind
    if field == "authors" and any(is_list(kind) for is_list in lists):
        inner = kind.value_type
    if pa.types.is_nested(inner) or "binary" in str(inner):
        return f"is of the type {kind}, not text"
    return ""


def _dates_as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write days and times as text: those beyond Python's years have none."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Seconds of the time zone's clock, as Python writes them.
        if column.type.tz:
            import pyarrow.compute as pc

            column = pc.local_timestamp(column)
        column = column.cast(pa.timestamp("s"), safe=False)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    return column


def _columns(
    path: Path, header: Sequence[str], renamed: Mapping[str, str], problems: Problems
) -> dict[str, str]:
    if not header:
        raise InputError(path, reason="is empty: a first line of columns is wanted")
    small = {column.lower(): column for column in reversed(header)}
    small |= {column: column for column in header}
    columns = {name: small[name] for name in FIELDS if name in small}
    if "abstract" not in columns and "text" in small:
        columns["abstract"] = small["text"]
    columns |= renamed
    header_text = ", ".join(header)
    for name, column in columns.items():
        if column not in header:
            reason = f"no column {column!r}; there are: {header_text}"
            raise InputError(path, field=name, reason=reason)
        if header.count(column) > 1:
            reason = f"{header.count(column)} columns have this name; there are: {header_text}"
            raise InputError(path, field=column, reason=reason)
    if "id" not in columns or not {"title", "abstract"} & set(columns):
        reason = f"name the columns of id and of title or abstract; there are: {header_text}"
        raise InputError(path, field="columns", reason=reason)
    if unread := [column for column in header if column and column not in columns.values()]:
        listed = ", ".join(unread[:8]) + ", .." * (len(unread) > 8)
        problems.count(f"tables with columns that are not read ({listed})", path)
    return columns


def _row(
    path: Path,
    line: int,
    cells: Mapping[str, object],
    columns: Mapping[str, str],
    problems: Problems,
) -> Row:
    labels = {_FIELD_OF.get(name, f"metadata.{name}"): columns.get(name, name) for name in FIELDS}

    def complain(field: str, reason: str, kind: str = "", /) -> None:
        problems.add(path, line, labels.get(field, field), reason, kind)

    record: dict[str, object] = {"title": "", "text": ""}
    metadata: dict[str, object] = {}
    for name, cell in cells.items():
        value = _cell_value(name, cell, path, line, problems)
        if name in _FIELD_OF:
            record[_FIELD_OF[name]] = value
        else:
            metadata[name] = value
    return Row({**record, "metadata": metadata}, line, complain)


def _cell_value(name: str, cell: object, path: Path, line: int, problems: Problems) -> object:
    """Read a cell as text, of id and authors as it is; "" if it is empty."""
    if cell is None:
        return ""
    if isinstance(cell, list):
        cell = [item for item in cell if item is not None and str(item) not in _EMPTY]
    if name not in ("id", "authors"):
        cell = str(cell)  # it may be a number
    if isinstance(cell, str) and cell.strip() in _EMPTY:
        problems.count("cells such as nan or None, read as empty", path, line)
        return ""
    if name == "date" and str(cell).startswith(_NO_YEAR):
        problems.count("dates that are not read", path, str(cell))
        return ""
    if name in ("title", "abstract", "venue"):
        return clean(str(cell), path, line, problems)
    return cell
