"""Read papers from any file, one after another: JSON, XML, tables and references."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from claim2source.core.config import require
from claim2source.core.errors import InputError, Problems
from claim2source.core.files import file_error
from claim2source.data.beir import CORPUS, text_length
from claim2source.data.bibtex import read_bibtex
from claim2source.data.boilerplate import cut_boilerplate
from claim2source.data.dates import first_day
from claim2source.data.folders import dataset_folder
from claim2source.data.headings import FIELDS
from claim2source.data.identity import ImportedPapers
from claim2source.data.lenient import is_lenient
from claim2source.data.paper_formats import (
    BY_NAME,
    READ,
    Format,
    detect_format,
    file_begin,
    plain_suffix,
)
from claim2source.data.paper_keys import NOTES
from claim2source.data.paper_records import read_json
from claim2source.data.paper_tables import read_table
from claim2source.data.paper_xml import read_xml
from claim2source.data.papers import Paper
from claim2source.data.references import read_tagged


@dataclass(frozen=True)
class Merge:
    """Record that was merged into another record's paper, with the evidence for that."""

    file: str
    id: str
    title: str
    kept: str
    by: str


class _Places(Problems):
    """Count the records with problems, each of which may have several."""

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

    With `check`, all files are read before the first paper is returned, so that a mistake on the
    last line is found, and the records of one paper are merged. Without it, and from pipes, a
    record with more text follows shorter records of its paper. With `lenient`, unreadable records
    are skipped and counted in `problems`; otherwise the first one raises `InputError`. `without`
    are ids to skip. Texts of a benchmark's collection are unchanged; others lose copyright lines.

    Of all `records`, `len()` are papers, `merged` are further records of these, and `left_out` have
    no text, are unreadable or should be deleted. `on_merge` is called with each merged record.
    """

    files: Sequence[Path]
    columns: Mapping[str, str] = field(default_factory=dict)
    format: Format | None = None
    lenient: bool = False
    without: Collection[str] = ()
    unread_files: Sequence[Path] = ()
    check: bool = True
    is_collection: bool = False
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
        """Find the files of a source: a file, a folder of files, or the name of a data set.

        Raises `UserError` if there are none, or if a column is for an unknown field.
        """
        for name in columns or {}:
            require(name in FIELDS, "columns", name, f"FIELD=COLUMN, of {', '.join(FIELDS)}")
        renamed = columns or {}
        path = Path(source)
        folder = _dataset_folder(source)
        if folder is not None:
            lenient = is_lenient(folder, lenient)
            corpus = [folder / CORPUS]
            return cls(corpus, renamed, format or "beir", lenient, is_collection=True)
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
            raise InputError(path, reason=f"contains no files of papers: {READ} (.gz)")
        return cls(files, renamed, format, lenient, unread_files=ignored)

    def __len__(self) -> int:
        """Return the number of papers so far."""
        return 0 if self._papers is None else len(self._papers)

    @property
    def records(self) -> int:
        """Number of records: papers, merged records and skipped ones."""
        return len(self) + self.merged + self.left_out

    @property
    def merged(self) -> int:
        """Number of records that were merged into papers of other records."""
        return 0 if self._papers is None else self._papers.records - len(self)

    def __iter__(self) -> Iterator[Paper]:
        """Yield papers. Raises `InputError` at the first problem, unless `lenient`."""
        for paper, _ in self.identified():
            yield paper

    def identified(self) -> Iterator[tuple[Paper, bool]]:
        """Yield papers, and whether each keeps its id because a data set defines it."""
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
        """Read the files once; a record with more text may follow another one of its paper."""
        for paper, _ in self._scan():
            yield paper

    @property
    def without_text(self) -> int:
        """Number of records without text, except notes and attachments."""
        return self._empty - self.problems.counts.get(NOTES, 0)

    def _check_left_out(self, total: int) -> None:
        """Raise if more than a tenth of the records have no text, and more than one."""
        notes = self.problems.counts.get(NOTES, 0)
        count = self.without_text
        total -= notes
        if count > 1 and count * 10 > total:
            reason = (
                f"{count} of {total} records have neither title nor abstract, more than a tenth; "
                "pass --lenient to skip them"
            )
            path = self.files[0] if len(self.files) == 1 else self.files[0].parent
            raise InputError(path, reason=reason)

    def _without_boilerplate(self, paper: Paper, path: Path) -> Paper:
        cut = cut_boilerplate(paper)
        if cut is not paper:
            kind = "abstracts with copyright lines and other notices, which were removed"
            self.problems.count(kind, path, cut.source.id)
        return cut

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
        """Yield the papers of all records, and whether they keep their ids; count other records."""
        self.left_out = self._empty = 0
        self.problems = places = _Places()
        for path in self.unread_files:
            places.count("files of other kinds", path)
        total = 0
        for path in self.files:
            keeps_id = self._keeps_ids(path)
            for paper in self._read_file(path):
                total += 1
                if not self.lenient:
                    places.raise_if_any()
                if paper is None and not places.spoilt:
                    self._empty += 1
                self.left_out += max(len(places.spoilt), paper is None)
                places.spoilt.clear()
                if paper is None or not self._is_wanted(paper, path):
                    continue
                if not self.is_collection:
                    paper = self._without_boilerplate(paper, path)
                yield path, paper, keeps_id
            if not self.lenient:
                places.raise_if_any()
            self.left_out += len(places.spoilt)
            places.spoilt.clear()
        if not self.lenient:
            self._check_left_out(total)

    def _is_wanted(self, paper: Paper, path: Path) -> bool:
        source = paper.source
        if source.id in self.without:
            self.problems.count("papers to be deleted", path)
            self.left_out += 1
            return False
        if source.date and not first_day(source.date):
            self.problems.count("unreadable dates", path, repr(source.date[:40]))
        return True

    def _keeps_ids(self, path: Path) -> bool:
        """Whether a file's ids come from a data set, or from a column that the user named."""
        kind = self.format
        if kind is None:
            kind, _ = detect_format(path)
        if kind in ("csv", "xlsx", "parquet"):
            return "id" in self.columns
        begin = file_begin(path)
        return kind == "beir" and (begin is None or b'"_id"' in begin)

    def omissions(self) -> str:
        """Summarise omissions and changes in one line; "" if there were none."""
        parts = [self.problems.summary()]
        if self.without_text:
            reason = "papers without title and abstract, or without an id"
            parts.insert(0, f"{reason}: {self.without_text}")
        if total := len(self.problems):
            parts.append(f"unreadable records: {total}, such as {self.problems.first}")
        return "; ".join(part for part in parts if part)

    def summary(self) -> str:
        """Summarise the results of all records in one line."""
        counts = f"{len(self)} papers, {self.merged} merged into these, {self.left_out} left out"
        return f"{self.records} records: {counts}"

    def _read_file(self, path: Path) -> Iterator[Paper | None]:
        kind = self.format
        if kind is None:
            kind, reason = detect_format(path)
            if reason:
                self.problems.add(path, None, None, reason)
                return iter(())
        if kind == "pubmed" or kind == "jats":
            return read_xml(path, self.problems)
        if kind == "csv" or kind == "xlsx" or kind == "parquet":
            return read_table(path, kind, self.columns, self.problems)
        if kind == "bibtex":
            return read_bibtex(path, self.problems)
        if kind == "beir" or kind == "openalex" or kind == "crossref":
            return read_json(path, self.problems, self.format)
        return read_tagged(path, self.problems, kind)


def _dataset_folder(source: str) -> Path | None:
    """Find a data set by name or folder; None if the source is another file or folder.

    Raises `InputError` if nothing has that name.
    """
    path = Path(source)
    if path.exists() and not (path / CORPUS).is_file():
        return None
    folder = path if path.suffix else dataset_folder(source)
    return folder if (folder / CORPUS).is_file() else None


def _is_ours(path: Path) -> bool:
    if plain_suffix(path) in BY_NAME:
        return True
    if plain_suffix(path) not in (".txt", ".xls") and path.suffix != ".gz":
        return False
    return not detect_format(path)[1]
