"""Write papers as Arrow tables, and read them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.core.records import Source
from claim2source.datasets.papers import Paper, first_day
from claim2source.engines.rows import Rows, venue_key

if TYPE_CHECKING:
    import pyarrow

PAPER = ("id", "title", "abstract", "authors", "venue", "date", "doi", "url", "lang")
# Vectors of a paper's sentences, one after the other, as bytes.
SENTENCES = "sentences"
_HALF = np.dtype("<f2")


def columns_of(sentences: bool) -> list[str]:
    """Name what `rows_of` needs."""
    return [*PAPER, "stamp", "terms", "vector"] + [SENTENCES] * sentences


def schema_of(dimensions: int, sentences: bool = False) -> pyarrow.Schema:
    """Name the columns of papers, with vectors of this length, also of their sentences."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = dict.fromkeys((*PAPER, "stamp", "venue_key", "terms"))
    kinds = {name: pa.string() for name in kinds} | {
        "authors": pa.list_(pa.string()),
        "day": pa.int32(),
        "length": pa.int32(),
        "vector": pa.list_(pa.float16(), dimensions),
    }
    kinds |= {SENTENCES: pa.binary()} if sentences else {}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


def table_of(rows: Rows, schema: pyarrow.Schema) -> pyarrow.Table:
    """Write papers as a table. Raises ValueError where vectors do not fit the schema."""
    import pyarrow as pa

    papers = rows.papers
    columns: dict[str, Any] = {
        name: [getattr(paper.source, name) for paper in papers]
        for name in ("id", "title", "abstract", "authors", "venue", "date")
    }
    columns |= {name: [getattr(paper, name) for paper in papers] for name in ("doi", "url", "lang")}
    columns |= {
        "stamp": list(rows.stamps),
        "venue_key": [venue_key(paper.source.venue) for paper in papers],
        "terms": list(rows.terms),
        "day": [first_day(paper.source.date) for paper in papers],
        "length": [len(terms.split()) for terms in rows.terms],
    }
    dimensions = schema.field("vector").type.list_size
    if rows.vectors.dtype != np.float16 or rows.vectors.shape[1:] != (dimensions,):
        what = f"{rows.vectors.dtype} {list(rows.vectors.shape)}"
        raise ValueError(f"vectors are {what}, not float16 [papers, {dimensions}]")
    flat = pa.array(np.ascontiguousarray(rows.vectors).ravel())
    columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, dimensions)
    if SENTENCES in schema.names:
        if rows.sentences is None or any(one.shape[1:] != (dimensions,) for one in rows.sentences):
            raise ValueError("the index keeps vectors of sentences, float16 [sentences, d]")
        columns[SENTENCES] = [one.astype(_HALF).tobytes() for one in rows.sentences]
    return pa.table([columns[field.name] for field in schema], schema=schema)


def vectors_of(column: Any) -> np.ndarray:
    """Read a column of vectors, [rows, d] float16."""
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    flat = np.asarray(column.flatten())
    return flat.reshape(len(column), -1)


def rows_of(batch: pyarrow.RecordBatch) -> Rows:
    """Read papers of `columns_of`."""
    listed = batch.select([*PAPER, "stamp", "terms"]).to_pylist()
    vectors, sentences = vectors_of(batch["vector"]), None
    if SENTENCES in batch.schema.names:
        sentences = [half_of(one, vectors.shape[1]) for one in batch[SENTENCES].to_pylist()]
    return Rows(
        [paper_of(row) for row in listed],
        [row["terms"] for row in listed],
        vectors,
        [row["stamp"] for row in listed],
        sentences,
    )


def half_of(stored: bytes, dimensions: int) -> np.ndarray:
    """Read the vectors of a paper's sentences, [sentences, d] float16."""
    return np.frombuffer(stored, _HALF).reshape(-1, dimensions)


def paper_of(row: Mapping[str, Any]) -> Paper:
    """Read a paper."""
    source = Source(
        **{name: row[name] for name in ("id", "title", "abstract", "venue", "date")},
        authors=tuple(row["authors"]),
    )
    return Paper(source, row["doi"], row["url"], row["lang"])
