"""Define an index's row of a paper (fields, terms, vectors, sentences), and filters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.core.config import Settings, require
from claim2source.core.languages import is_language_tag
from claim2source.core.records import Source, nfkc
from claim2source.data.dates import first_day, last_day
from claim2source.data.identity import Identity
from claim2source.data.papers import Paper
from claim2source.search.names import paper_names
from claim2source.text.clean import findings, split_sentences

if TYPE_CHECKING:
    import pyarrow

# Length of the hash of a paper's fields: enough to distinguish versions of a paper.
_STAMP = 32
_PAPER = [field.name for field in fields(Paper)]
_SOURCE = [field.name for field in fields(Source)]
_TEXTS = ("id", "title", "abstract", "authors", "venue", "date")
_ABOUT = ("doi", "url", "lang", "retracted")
PAPER = [*_TEXTS, *_ABOUT]
# Vectors of a paper's findings, one after the other, as bytes; once of all its sentences.
SENTENCES = "sentences"
# Hashes of a paper's identities; an older index has none.
KEYS = "keys"
_HALF = np.dtype("<f2")
# Version of the split into findings: vectors of another version belong to other sentences.
SPLIT = 1
# Most sentences of an abstract to compare with a post.
MAX_SENTENCES = 40


@dataclass(frozen=True)
class Where(Settings):
    """Restrict a search to some papers; the default is all papers.

    Args:
        until: published on this day or before, such as 2021-05-01; a year or month means its
            last day. Papers whose date is not known stay in.
        language: language of the paper, such as de.
        venue: name of the venue, in any case.
        ids: only these papers.
    """

    until: str | None = None
    language: str | None = None
    venue: str | None = None
    ids: tuple[str, ...] | None = None

    def check(self) -> None:
        is_valid = self.until is None or last_day(self.until) > 0
        require(is_valid, "date", self.until, "a date such as 2021-05-01")
        is_valid = self.language is None or is_language_tag(self.language)
        require(is_valid, "language", self.language, "a language code such as en")

    @property
    def last_day(self) -> int | None:
        """Return the last day as a number, such as 20210501."""
        if self.until is None:
            return None
        return last_day(self.until)

    def within(self, ids: Sequence[str] | None) -> Where:
        """Restrict the filter further to these papers."""
        if ids is None:
            return self
        if self.ids is None:
            return replace(self, ids=tuple(ids))
        allowed = set(self.ids)
        remaining = tuple(key for key in ids if key in allowed)
        return replace(self, ids=remaining)


EVERYWHERE = Where()


@dataclass(frozen=True, eq=False)
class Rows:
    """Papers in an engine's format: terms between spaces, vectors [papers, d] float16.

    In an index without vectors, d is 0. `sentences` are the vectors of each paper's findings,
    [findings, d] float16; None if the index does not store them.
    """

    papers: Sequence[Paper]
    terms: Sequence[str]
    vectors: np.ndarray
    stamps: Sequence[str]
    sentences: Sequence[np.ndarray] | None = None

    def __post_init__(self) -> None:
        ids = [paper.source.id for paper in self.papers]
        counts = {
            len(ids),
            len(self.terms),
            len(self.vectors),
            len(self.stamps),
        }
        if self.sentences is not None:
            counts.add(len(self.sentences))
        if len(counts) > 1:
            raise ValueError("papers, terms, vectors, stamps and sentences differ in length")
        if len(set(ids)) < len(ids):
            raise ValueError("a paper's id repeats")

    def __len__(self) -> int:
        return len(self.papers)

    def only(self, positions: Sequence[int]) -> Rows:
        sentences: list[np.ndarray] | None = None
        if self.sentences is not None:
            sentences = [self.sentences[i] for i in positions]
        chosen = list(positions)
        return Rows(
            papers=[self.papers[i] for i in positions],
            terms=[self.terms[i] for i in positions],
            vectors=self.vectors[chosen],
            stamps=[self.stamps[i] for i in positions],
            sentences=sentences,
        )


def paper_stamp(paper: Paper) -> str:
    """Hash a paper's stored fields, to detect another version."""
    # `asdict` would copy everything first.
    values = {name: getattr(paper, name) for name in _PAPER}
    if not paper.retracted:
        del values["retracted"]
    source = paper.source
    values["source"] = {name: getattr(source, name) for name in _SOURCE}
    text = json.dumps(values, ensure_ascii=True, sort_keys=True)
    digest = sha256(text.encode())
    return digest.hexdigest()[:_STAMP]


def half(vectors: np.ndarray) -> np.ndarray:
    """Round vectors to float16. Raises ValueError if a value is too large or not finite."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(vectors, dtype=np.float16)
    is_finite = np.isfinite(rounded)
    if not is_finite.all():
        raise ValueError("a vector does not fit into float16")
    return rounded


def venue_key(venue: str) -> str:
    """Normalise a venue's name for comparisons."""
    folded = nfkc(venue).casefold()
    words = folded.split()
    return " ".join(words)


def paper_columns(sentences: bool, vectors: bool = True) -> list[str]:
    """List the columns of a paper that `read_rows` needs."""
    columns = [*PAPER, "stamp", "terms"]
    if vectors:
        columns.append("vector")
    if sentences:
        columns.append(SENTENCES)
    return columns


def paper_schema(
    dimensions: int,
    sentences: bool = False,
) -> pyarrow.Schema:
    """Return the schema of papers, with vectors of this length, also of their sentences.

    With 0 `dimensions` there is no column of vectors.
    """
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {}
    for name in (*PAPER, "stamp", "venue_key", "terms", "names"):
        kinds[name] = pa.string()
    kinds["authors"] = pa.list_(pa.string())
    kinds["day"] = pa.int32()
    kinds[KEYS] = pa.list_(pa.int64())
    # LanceDB compares several of them at a time; 16-bit numbers only one by one on most processors.
    if dimensions:
        kinds["vector"] = pa.list_(pa.float32(), dimensions)
    if sentences:
        kinds[SENTENCES] = pa.binary()
    columns: list[Any] = []
    for name, kind in kinds.items():
        columns.append(pa.field(name, kind, nullable=False))
    return pa.schema(columns)


def papers_table(
    rows: Rows,
    schema: pyarrow.Schema,
) -> pyarrow.Table:
    """Convert papers to a table. Raises ValueError if vectors do not match the schema."""
    import pyarrow as pa

    columns = _text_columns(rows.papers)
    columns["stamp"] = list(rows.stamps)
    columns["terms"] = list(rows.terms)
    if "vector" in schema.names:
        kind = schema.field("vector").type
        columns["vector"] = _vector_column(rows.vectors, kind)
        if SENTENCES in schema.names:
            columns[SENTENCES] = _sentence_column(rows.sentences, kind.list_size)
    ordered = [columns[field.name] for field in schema]
    return pa.table(ordered, schema=schema)


def _text_columns(papers: Sequence[Paper]) -> dict[str, Any]:
    """List the papers' fields by column, and columns that are computed from them."""
    names = (*PAPER, "names", "venue_key", "day", KEYS)
    columns: dict[str, Any] = {name: [] for name in names}
    for paper in papers:
        source = paper.source
        for name in _TEXTS:
            value = getattr(source, name)
            columns[name].append(value)
        for name in _ABOUT:
            value = getattr(paper, name)
            columns[name].append(value)
        joined_names = " ".join(paper_names(source))
        columns["names"].append(joined_names)
        venue = venue_key(source.venue)
        columns["venue_key"].append(venue)
        day = first_day(source.date)
        columns["day"].append(day)
        identity = Identity.read(paper)
        columns[KEYS].append(identity.all_keys)
    return columns


def _vector_column(vectors: np.ndarray, kind: Any) -> Any:
    """Convert vectors to a column of this Arrow type. Raises ValueError for a wrong shape."""
    import pyarrow as pa

    dimensions = kind.list_size
    is_half = vectors.dtype == np.float16
    if not is_half or vectors.shape[1:] != (dimensions,):
        shape = f"{vectors.dtype} {list(vectors.shape)}"
        raise ValueError(f"vectors are {shape}, not float16 [papers, {dimensions}]")
    number_type = kind.value_type.to_pandas_dtype()
    numbers = vectors.ravel().astype(number_type)
    flat = pa.array(numbers)
    return pa.FixedSizeListArray.from_arrays(flat, dimensions)


def _sentence_column(
    sentences: Sequence[np.ndarray] | None,
    dimensions: int,
) -> list[bytes]:
    """Convert the vectors of each paper's sentences. Raises ValueError for a wrong shape."""
    reason = "the index stores vectors of sentences, float16 [sentences, d]"
    if sentences is None:
        raise ValueError(reason)
    column = []
    for vectors in sentences:
        if vectors.shape[1:] != (dimensions,):
            raise ValueError(reason)
        halves = vectors.astype(_HALF)
        column.append(halves.tobytes())
    return column


def read_vectors(column: Any) -> np.ndarray:
    """Read a column of vectors, [rows, d]: float32, float16 in indexes of before 1.0."""
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    flat = np.asarray(column.flatten())
    dimensions = column.type.list_size
    return flat.reshape(len(column), dimensions)


def no_vectors(papers: int) -> np.ndarray:
    """Make the vectors of papers in an index without vectors, [papers, 0]."""
    shape = (papers, 0)
    return np.empty(shape, np.float16)


def read_rows(batch: pyarrow.RecordBatch) -> Rows:
    """Read papers of `paper_columns`."""
    texts = batch.select([*PAPER, "stamp", "terms"])
    listed = texts.to_pylist()
    columns = batch.schema.names
    vectors = no_vectors(len(listed))
    if "vector" in columns:
        numbers = read_vectors(batch["vector"])
        vectors = numbers.astype(np.float16)
    sentences: list[np.ndarray] | None = None
    if SENTENCES in columns:
        dimensions = vectors.shape[1]
        sentences = []
        for content in batch[SENTENCES].to_pylist():
            own_vectors = read_half_vectors(content, dimensions)
            sentences.append(own_vectors)
    return Rows(
        papers=[to_paper(row) for row in listed],
        terms=[row["terms"] for row in listed],
        vectors=vectors,
        stamps=[row["stamp"] for row in listed],
        sentences=sentences,
    )


def read_half_vectors(content: bytes, dimensions: int) -> np.ndarray:
    """Read the vectors of a paper's sentences, [sentences, d] float16."""
    flat = np.frombuffer(content, _HALF)
    return flat.reshape(-1, dimensions)


def to_paper(row: Mapping[str, Any]) -> Paper:
    source = Source(
        id=row["id"],
        title=row["title"],
        abstract=row["abstract"],
        authors=tuple(row["authors"]),
        venue=row["venue"],
        date=row["date"],
    )
    return Paper(
        source,
        doi=row["doi"],
        url=row["url"],
        lang=row["lang"],
        retracted=row["retracted"],
    )


def split(paper: Paper) -> list[str]:
    """List the sentences of a paper's abstract, the first `MAX_SENTENCES` of them."""
    sentences = split_sentences(paper.source.abstract)
    return sentences[:MAX_SENTENCES]


def finding_sentences(paper: Paper) -> list[str]:
    """List the sentences of an abstract to compare with posts."""
    sentences = split(paper)
    positions = findings(sentences)
    return [sentences[i] for i in positions]


def with_notices(
    table: pyarrow.Table,
    notices: Mapping[str, str],
) -> pyarrow.Table:
    """Write retraction notices, by id, and new hashes into rows of papers."""
    ids = table["id"].to_pylist()
    states = [notices[key] for key in ids]
    listed = table.select(PAPER).to_pylist()
    stamps = []
    for row, state in zip(listed, states, strict=True):
        paper = to_paper(row)
        noticed = replace(paper, retracted=state)
        stamps.append(paper_stamp(noticed))

    new_columns = {"retracted": states, "stamp": stamps}
    for name, values in new_columns.items():
        position = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(position, field, [values])
    return table
