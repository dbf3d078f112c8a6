"""Read papers of any file, one after another: JSON, XML, tables and references."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from claim2source.core.config import require
from claim2source.core.errors import InputError, Problems
from claim2source.core.files import file_error
from claim2source.data.beir import CORPUS, dataset_folder, text_length
from claim2source.data.bibtex import read_bibtex
from claim2source.data.boilerplate import cut_boilerplate
from claim2source.data.headings import FIELDS
from claim2source.data.lenient import is_lenient
from claim2source.data.paper_formats import BY_NAME, READ, Format, detect_format, plain_suffix
from claim2source.data.paper_keys import NOTES
from claim2source.data.paper_records import read_json
from claim2source.data.paper_tables import read_table
from claim2source.data.paper_xml import read_xml
from claim2source.data.papers import Paper, first_day
from claim2source.data.references import read_tagged


@dataclass
class PaperFiles:
    """Read the papers of files, as often as needed; `left_out` counts those without any text.

    With `check` all are read before the first is given: a mistake on the last line is found, and
    of records with one id only the one with the most text is given. Without, and of pipes, such a
    record follows shorter ones. With `lenient` what cannot be read is left out and counted in
    `problems`; else the first such record raises `InputError`. `without` are ids to leave out.
    The texts of a benchmark's collection are kept as they are; others lose their copyright lines.
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
    _longest: dict[int, int] = field(default_factory=dict)

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
            raise InputError(path, reason=f"holds no files of papers: {READ} (.gz)")
        return cls(files, renamed, format, lenient, unread_files=ignored)

    def __len__(self) -> int:
        """Count the papers that were read, each id once."""
        return len(self._longest)

    def __iter__(self) -> Iterator[Paper]:
        """Yield papers. Raises `InputError` at the first problem, unless `lenient`."""
        if self.check and not self._longest and all(path.is_file() for path in self.files):
            for _ in self.scan():
                pass
        return self.scan()

    def scan(self) -> Iterator[Paper]:
        """Read the files once; of papers with one id one with more text may follow another."""
        self.left_out, self.problems = 0, Problems()
        for path in self.unread_files:
            self.problems.count("files of other kinds", path)
        number = 0
        for path in self.files:
            for paper in self._read_file(path):
                if paper is not None and not self.is_collection:
                    paper = self._without_boilerplate(paper, path)
                number += 1
                if not self.lenient:
                    self.problems.raise_if_any()
                if paper is None:
                    self.left_out += 1
                elif self._counts(paper, number, path):
                    yield paper
            if not self.lenient:
                self.problems.raise_if_any()
        if not self.lenient:
            self._check_left_out(number)

    @property
    def without_text(self) -> int:
        """Count what was left out and is not a note or an attachment by its type."""
        return self.left_out - self.problems.counts.get(NOTES, 0)

    def _check_left_out(self, total: int) -> None:
        """Refuse papers of which more than a tenth have no text: one alone refuses nothing."""
        count = self.without_text
        total -= self.left_out - count
        if count > 1 and count * 10 > total:
            reason = (
                f"{count} of {total} records have neither title nor abstract, more than a tenth; "
                "pass --lenient to leave them out"
            )
            path = self.files[0] if len(self.files) == 1 else self.files[0].parent
            raise InputError(path, reason=reason)

    def _without_boilerplate(self, paper: Paper, path: Path) -> Paper:
        cut = cut_boilerplate(paper)
        if cut is not paper:
            kind = "abstracts with copyright lines and other notices, removed"
            self.problems.count(kind, path, cut.source.id)
        return cut

    def _counts(self, paper: Paper, number: int, path: Path) -> bool:
        source = paper.source
        if source.id in self.without:
            self.problems.count("papers that are to be deleted", path)
            return False
        # More text first, then the earlier record.
        rank = (text_length(source) << 40) - number
        before = self._longest.setdefault(hash(source.id), rank)
        if rank != before:
            self.problems.count("repeated ids, of which the one with more text is read", path)
        if rank < before:
            return False
        self._longest[hash(source.id)] = rank
        if source.date and not first_day(source.date):
            self.problems.count("dates that are not read", path, repr(source.date[:40]))
        return True

    def omissions(self) -> str:
        """Sum up omissions and changes in one line; "" if there were none."""
        parts = [self.problems.summary()]
        if self.without_text:
            reason = "papers without title and abstract, or without an id"
            parts.insert(0, f"{reason}: {self.without_text}")
        if total := len(self.problems):
            parts.append(f"what cannot be read: {total}, such as {self.problems.first}")
        return "; ".join(part for part in parts if part)

    def _read_file(self, path: Path) -> Iterator[Paper | None]:
        kind = self.format
        if kind is None:
            kind, reason = detect_format(path)
            if reason:
                self.problems.add(path, None, None, reason)
                return iter(())
        if kind in ("pubmed", "jats"):
            return read_xml(path, self.problems)
        if kind == "csv" or kind == "xlsx" or kind == "parquet":
            return read_table(path, kind, self.columns, self.problems)
        if kind == "bibtex":
            return read_bibtex(path, self.problems)
        if kind == "beir" or kind == "openalex" or kind == "crossref":
            return read_json(path, self.problems, self.format)
        return read_tagged(path, self.problems, kind)


def _dataset_folder(source: str) -> Path | None:
    """Locate the data set of a name or a folder; None if it is another file or folder.

    Raises `InputError` if there is nothing of that name.
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
