"""Hold the vectors of a small index in memory: LanceDB would read them for each search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from claim2source.engines.lance import filtered
from claim2source.engines.rows import EVERYWHERE, Where, vectors_of

# Bytes of vectors that each process holds at most: 50,000 papers of 670 numbers.
_MOST_BYTES = 2**27


@dataclass(frozen=True, eq=False)
class VectorsInMemory:
    """Hold the vectors of a table's version in float32, [rows, d], in the order of row numbers.

    A table that is too large has none: `is_small` says so. It never changes, so that threads may
    share it.
    """

    version: int = -1
    is_small: bool = False
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    vectors: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def updated(self, table: Any, below: int) -> VectorsInMemory:
        """Read a table's version that is a new one, if it has fewer than `below` papers."""
        if (version := table.version) == self.version:
            return self
        papers, width = table.count_rows(), table.schema.field("vector").type.list_size
        if papers >= below or 4 * papers * width > _MOST_BYTES:
            return VectorsInMemory(version)
        read = table.search().select(["vector"]).with_row_id(True).limit(None).to_arrow()
        rows, vectors = read["_rowid"].to_numpy(), vectors_of(read["vector"])
        vectors = vectors.astype(np.float32, copy=False)
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows)
            rows, vectors = rows[order], vectors[order]
        return VectorsInMemory(version, True, rows, vectors)

    def best(
        self, vector: np.ndarray, k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the best `k` rows by inner product, of those `allowed`; equal ones by number."""
        rows, vectors = self.rows, self.vectors
        if allowed is not None:
            positions = np.flatnonzero(np.isin(rows, allowed, assume_unique=True))
            rows, vectors = rows[positions], vectors[positions]
        if not len(rows):
            return rows, np.empty(0, np.float32)
        # Not by `@`, whose threads take longer than the work.
        scores = np.einsum("nd,d->n", vectors, vector.astype(np.float32))
        lowest = np.partition(scores, -k)[-k] if k < len(rows) else -np.inf
        top = np.flatnonzero(scores >= lowest)
        top = top[np.lexsort((rows[top], -scores[top]))][:k]
        return rows[top], scores[top]


def row_numbers(table: Any, where: Where = EVERYWHERE) -> np.ndarray:
    """List the numbers of a table's rows that a filter leaves."""
    query = filtered(table.search().select(["day"]).with_row_id(True), where)
    numbers: np.ndarray = query.limit(None).to_arrow()["_rowid"].to_numpy()
    return numbers
