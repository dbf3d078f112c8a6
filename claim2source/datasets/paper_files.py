"""Read papers of any file, one after another: BEIR, OpenAlex, PubMed, CSV and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from claim2source.core.config import require
from claim2source.core.errors import InputError, Problems
from claim2source.core.files import why_not_file
from claim2source.datasets.beir import CORPUS, folder_of, source_of
from claim2source.datasets.lenient import is_lenient
from claim2source.datasets.openalex import is_work, read_work
from claim2source.datasets.papers import Paper, plain_doi
from claim2source.datasets.pubmed import read_pubmed
from claim2source.io.jsonl import JsonLines, Row
from claim2source.io.text_files import text_lines, tsv_rows

Format = Literal["beir", "openalex", "pubmed", "csv", "parquet"]
FIELDS = ("id", "title", "abstract", "authors", "venue", "date", "doi", "url", "lang")
# The field of a record of corpus.jsonl that a field of a table becomes.
_PLACE = {"id": "_id", "title": "title", "abstract": "text"}
_SUFFIXES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".xml")
# Rows of a Parquet file that are read at a time.
_BATCH = 1024


@dataclass
class PaperFiles:
    """Read the papers of files, as often as needed; `left_out` counts those without any text.

    With `lenient` what cannot be read is left out and counted in `problems`; else the first such
    record raises `InputError`.
    """

    files: Sequence[Path]
    columns: Mapping[str, str] = field(default_factory=dict)
    format: Format | None = None
    lenient: bool = False
    left_out: int = 0
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def of(
        cls,
        source: str,
        columns: Mapping[str, str] | None = None,
        format: Format | None = None,
        lenient: bool = False,
    ) -> PaperFiles:
        """Find the files of a source: a file, a folder of files, or a data set by its name.

        Raises `UserError` where there are none, or a column belongs to no field.
        """
        for name in columns or {}:
            require(name in FIELDS, "columns", name, f"FIELD=COLUMN, of {', '.join(FIELDS)}")
        path = Path(source)
        if not path.exists() or (path / CORPUS).is_file():
            if path.suffix or len(path.parts) > 1:
                folder = path
            else:
                folder = folder_of(source)
            if (folder / CORPUS).is_file():
                lenient = is_lenient(folder, lenient)
                return cls([folder / CORPUS], columns or {}, format or "beir", lenient)
        if not path.is_dir():
            if why := why_not_file(path):
                raise InputError.at(path, why=why)
            return cls([path], columns or {}, format, lenient)
        files = sorted(file for file in path.rglob("*") if _suffix(file) in _SUFFIXES)
        if not files:
            raise InputError.at(path, why=f"holds no files named {', '.join(_SUFFIXES)} (.gz)")
        return cls(files, columns or {}, format, lenient)

    def __iter__(self) -> Iterator[Paper]:
        """Yield papers. Raises `InputError` at the first problem, unless `lenient`."""
        self.left_out, self.problems = 0, Problems()
        for path in self.files:
            for paper in self._read(path):
                if not self.lenient:
                    self.problems.raise_if_any()
                if paper is None:
                    self.left_out += 1
                else:
                    yield paper
            if not self.lenient:
                self.problems.raise_if_any()

    def _read(self, path: Path) -> Iterator[Paper | None]:
        kind = self.format or _format_of(path)
        if kind == "pubmed":
            return read_pubmed(path, self.problems)
        if kind == "csv":
            return self._rows_of(path, self._csv(path))
        if kind == "parquet":
            return self._rows_of(path, self._parquet(path))
        return self._lines(path, kind)

    def _lines(self, path: Path, kind: Format) -> Iterator[Paper | None]:
        for row in JsonLines(path, self.problems).records():
            if kind == "openalex" or self.format is None and is_work(row.record):
                yield read_work(row)
            else:
                yield paper_of_row(row)

    def _csv(self, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
        delimiter = "\t" if _suffix(path) == ".tsv" else ","
        first = next((text for _, text in text_lines(path, self.problems) if text), "")
        header = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), [])]
        columns = self._columns(path, header)
        names = list(columns.values())
        for line, cells in tsv_rows(path, names, self.problems, delimiter=delimiter):
            yield line, dict(zip(columns, cells, strict=True))

    def _parquet(self, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
        from pyarrow import ArrowException, parquet

        number = 0
        try:
            with parquet.ParquetFile(path) as file:
                columns = self._columns(path, file.schema_arrow.names)
                wanted = list(dict.fromkeys(columns.values()))
                for batch in file.iter_batches(_BATCH, columns=wanted):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, {name: row[column] for name, column in columns.items()}
        except (ArrowException, OSError) as error:
            why = " ".join(str(error).split())
            self.problems.add(path, number or None, None, f"not Parquet that can be read: {why}")

    def _columns(self, path: Path, header: Sequence[str]) -> dict[str, str]:
        """Map fields to columns: as given, else those of the same name."""
        found = {name: name for name in FIELDS if name in header}
        if "abstract" not in header and "text" in header:
            found["abstract"] = "text"
        found |= self.columns
        for name, column in found.items():
            if column not in header:
                why = f"no column {column!r}; there are: {', '.join(header)}"
                raise InputError.at(path, field=name, why=why)
        if "id" not in found or not {"title", "abstract"} & set(found):
            why = f"name the columns of id and of title or abstract; there are: {', '.join(header)}"
            raise InputError.at(path, field="columns", why=why)
        return found

    def _rows_of(
        self, path: Path, rows: Iterator[tuple[int, Mapping[str, object]]]
    ) -> Iterator[Paper | None]:
        for line, cells in rows:
            yield paper_of_row(_row(path, line, cells, self.problems, self.columns))


def _row(
    path: Path,
    line: int,
    cells: Mapping[str, object],
    problems: Problems,
    columns: Mapping[str, str],
) -> Row:
    """Write the cells of a table's row as a record of corpus.jsonl is written."""
    named = {_PLACE.get(name, f"metadata.{name}"): columns.get(name, name) for name in FIELDS}

    def complain(field: str, why: str, kind: str = "", /) -> None:
        problems.add(path, line, named.get(field, field), why, kind)

    record: dict[str, object] = {}
    metadata: dict[str, object] = {}
    for name, value in cells.items():
        if value is None:
            continue
        if name not in ("id", "authors") and not isinstance(value, str):
            value = str(value)  # a date, or a number
        (record if name in _PLACE else metadata)[_PLACE.get(name, name)] = value
    return Row({**record, "metadata": metadata}, line, complain)


def paper_of_row(row: Row) -> Paper | None:
    """Read a paper of corpus.jsonl; None for one that cannot be read, which is reported."""
    key = row.as_id("_id", row.record.get("_id"))
    if key is None:
        return None
    row.key = key
    source = source_of(row)
    if not f"{source.title}{source.abstract}".strip():
        return None  # that it is empty was reported
    doi, lang = plain_doi(row.text("metadata.doi")), row.text("metadata.lang")
    return Paper(source, doi, row.text("metadata.url"), lang.partition("-")[0].lower())


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _format_of(path: Path) -> Format:
    kinds: dict[str, Format] = {
        ".csv": "csv",
        ".tsv": "csv",
        ".parquet": "parquet",
        ".xml": "pubmed",
    }
    return kinds.get(_suffix(path), "beir")
