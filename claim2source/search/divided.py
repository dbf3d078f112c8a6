"""Search an index's papers by their vectors, which a large index divides into partitions.

The vectors of a small index are kept in memory: LanceDB would read them for each search.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from claim2source.core.errors import UserError
from claim2source.search.lance import Hits, expression, filtered, numbers
from claim2source.search.probes import (
    GROUP_SIZE,
    QUERIES,
    TARGET,
    best_scores,
    chosen_probes,
    sampled_queries,
)
from claim2source.search.rows import EVERYWHERE, Where, read_vectors
from claim2source.search.table import PaperTable, row_numbers

# Most bytes of vectors in each process's memory: 50,000 papers of 670 numbers.
_MOST_BYTES = 2**27
# Vectors per partition for learning its centre.
CENTRE_SAMPLE = 64
# Vectors are partitioned again once the index has grown by this factor.
REDIVIDE = 2.0
# Papers from which on partitions hold codes of 4 bits for every 2 numbers (product quantisation),
# a sixteenth of the size; of the best by these so many times as are wanted are compared in full.
# At a million papers 400 of 1,000 partitions have a recall@100 of 0.97 on sampled queries, as 360
# of full vectors have, and both take 56 ms; 8-bit numbers take 150 ms, and single bits (RQ) have
# 0.95, of as many again as are compared here. More papers' full vectors do not fit into memory.
QUANTISED = 2_000_000
REFINED = 20
_NUMBERS_PER_CODE = 2
_CODE_BITS = 4


@dataclass(frozen=True, eq=False)
class VectorsInMemory:
    """Vectors of a table's version in float32, [rows, d], in the order of row numbers.

    They are absent, and `is_small` is false, if the table is too large. The object is immutable,
    so threads may share it.
    """

    version: int = -1
    is_small: bool = False
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    vectors: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def updated(self, table: Any, below: int) -> VectorsInMemory:
        """Read a new version of a table, if it has fewer than `below` papers."""
        version = table.version
        if version == self.version:
            return self
        papers = table.count_rows()
        kind = table.schema.field("vector").type
        width = kind.list_size
        if papers >= below or 4 * papers * width > _MOST_BYTES:
            return VectorsInMemory(version)

        query = table.search().select(["vector"])
        query = query.with_row_id(True).limit(None)
        read = query.to_arrow()
        rows = read["_rowid"].to_numpy()
        stored = read_vectors(read["vector"])
        vectors = stored.astype(np.float32, copy=False)
        is_lower = rows[1:] < rows[:-1]
        if is_lower.any():
            order = np.argsort(rows)
            rows = rows[order]
            vectors = vectors[order]
        return VectorsInMemory(version, True, rows, vectors)

    def best(
        self,
        vector: np.ndarray,
        k: int,
        allowed: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the best `k` of the `allowed` rows by inner product; ties by row number."""
        rows = self.rows
        vectors = self.vectors
        if allowed is not None:
            is_allowed = np.isin(rows, allowed, assume_unique=True)
            positions = np.flatnonzero(is_allowed)
            rows = rows[positions]
            vectors = vectors[positions]
        if not len(rows):
            no_scores = np.empty(0, np.float32)
            return rows, no_scores

        # Not by `@`, whose threads take longer than the work.
        scores = np.einsum("nd,d->n", vectors, vector.astype(np.float32))
        lowest = -np.inf
        if k < len(rows):
            lowest = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= lowest)
        candidate_rows = rows[candidates]
        candidate_scores = scores[candidates]
        order = np.lexsort((candidate_rows, -candidate_scores))
        top = candidates[order][:k]
        return rows[top], scores[top]


class VectorTable(PaperTable):
    """Table of papers that can also be searched by vectors."""

    # So many papers have codes in their partitions.
    quantised_from = QUANTISED
    _in_memory: VectorsInMemory

    def dense(
        self,
        vector: np.ndarray,
        k: int,
        where: Where = EVERYWHERE,
        exact: bool = False,
    ) -> Hits:
        """Find the best `k` papers by inner product with a vector [d].

        All papers that pass a filter are compared if that is faster, or with `exact`.
        """
        if self.manifest.encoded_first:
            raise UserError(f"{self.location}: the index stores no vectors")
        if k < 1 or where.ids == ():
            return []
        probes = 0
        if not exact:
            probes = self._probes(where)
        if probes:
            return self._nearest(vector, k, where, probes)

        with self._with_named_errors():
            held = self._in_memory.updated(self._table, self.exact_below)
            self._in_memory = held
            if held.is_small:
                allowed = None
                if where != EVERYWHERE:
                    allowed = row_numbers(self._table, where)
                rows, scores = held.best(vector, k, allowed)
                return self._hits(rows, scores)
        return self._nearest(vector, k, where, probes)

    def _probes(self, where: Where) -> int:
        """Return how many partitions to search with a filter; 0: compare all its papers."""
        manifest = self.manifest
        if manifest.partitions < 2 or not manifest.probes:
            return 0
        condition = expression(where)
        if condition is None:
            return manifest.probes

        with self._with_named_errors():
            statement = condition.to_sql()
            remaining = self._table.count_rows(statement)
        if remaining < self.exact_below:
            return 0
        # The best k of a tenth of the papers are as far away as the best 10 k of all.
        papers = manifest.papers
        probes = round(manifest.probes * papers / remaining)
        if probes * papers >= remaining * manifest.partitions:
            return 0
        return probes

    def _nearest(
        self,
        vector: np.ndarray,
        k: int,
        where: Where,
        probes: int,
    ) -> Hits:
        """Search `probes` partitions, and more if they have fewer than k papers; 0: all."""
        with self._with_named_errors():
            sought = vector.astype(np.float32)
            query = self._table.search(sought, vector_column_name="vector")
            query = query.distance_type("dot").limit(k)
            query = query.select(["_distance"]).with_row_id(True)
            query = filtered(query, where)
            if probes:
                query = query.nprobes(probes)
                if self.manifest.refined:
                    query = query.refine_factor(self.manifest.refined)
            else:
                query = query.bypass_vector_index()
            rows = query.to_arrow()
        partitions = self.manifest.partitions
        has_too_few = len(rows) < k
        if probes and has_too_few and probes < partitions:
            more = min(2 * probes, partitions)
            return self._nearest(vector, k, where, more)
        # LanceDB's distance is 1 - the inner product.
        scores = 1 - numbers(rows, "_distance")
        row_ids = rows["_rowid"].to_numpy()
        return self._hits(row_ids, scores)

    def _probed(
        self,
        queries: np.ndarray,
        k: int,
        probes: int,
        step: int,
    ) -> list[np.ndarray]:
        """Search with every `step`-th vector [n, d] in one batch; return each one's best scores."""
        queries = queries[::step]
        with self._with_named_errors():
            query = self._table.search(queries, vector_column_name="vector")
            query = query.distance_type("dot").limit(k)
            query = query.select(["id", "_distance"])
            query = query.nprobes(probes)
            if self.manifest.refined:
                query = query.refine_factor(self.manifest.refined)
            table = query.to_arrow()
        rows = table["query_index"].to_numpy()
        scores = 1 - numbers(table, "_distance")
        return [scores[rows == row] for row in range(len(queries))]

    def vectors(self, where: Where = EVERYWHERE) -> Iterator[np.ndarray]:
        """Yield the vectors of all papers, or of those of a filter, [papers, d] each time."""
        query = self._table.search().select(["vector"])
        query = filtered(query, where).limit(None)
        with self._with_named_errors():
            for batch in query.to_batches(8_192):
                yield read_vectors(batch["vector"])

    def _build_partitions(
        self,
        papers: int,
        names: dict[str, str],
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        partitions = self.manifest.partitions
        trained = self.manifest.trained
        if papers < self.exact_below or self.manifest.encoded_first:
            divided = self._index_names().get("vector")
            if divided is not None:
                self._table.drop_index(divided)
            return {
                "partitions": 0,
                "probes": 0,
                "recall": 1.0,
                "trained": 0,
                "refined": 0,
            }

        # A single partition comes from versions before small indexes were kept in memory.
        if "vector" not in names or partitions < 2 or papers > REDIVIDE * trained:
            partitions = round(papers**0.5)
            trained = papers
            is_quantised = papers >= self.quantised_from and self._has_codes
            refined = REFINED if is_quantised else 0
            # Until probes are chosen readers compare all vectors: how they are divided changes.
            self.note(partitions=0, probes=0, trained=0, refined=refined)
            self._divide(partitions, is_quantised)

        probes, recall = self._choose_probes(papers, partitions, say)
        return {
            "partitions": partitions,
            "probes": probes,
            "recall": recall,
            "trained": trained,
        }

    def _choose_probes(
        self,
        papers: int,
        partitions: int,
        say: Callable[[str], None],
    ) -> tuple[int, float]:
        """Choose how many partitions to search, and measure their recall on sampled queries."""
        sample = self._draw(papers, GROUP_SIZE * QUERIES, ["vector"])
        drawn = read_vectors(sample["vector"])
        queries = sampled_queries(drawn)
        best = best_scores(queries, self.vectors())
        depth = best.shape[1]
        has_codes = self.manifest.refined > 0
        search = partial(self._probed, queries, depth)
        probes, recall = chosen_probes(best, partitions, search, has_codes)
        wanted = str(TARGET)
        if has_codes:
            wanted = f"{TARGET} of that with all partitions"
        say(
            f"{probes} of {partitions} partitions of vectors are searched: recall@{depth} "
            f"{recall:.4f} on {len(queries)} sampled queries (at least {wanted})"
        )
        return probes, recall

    @property
    def _has_codes(self) -> bool:
        """Whether codes of vectors of this width fill whole bytes."""
        dimensions = self.manifest.stored_dimensions
        codes, rest = divmod(dimensions, _NUMBERS_PER_CODE)
        bits = codes * _CODE_BITS
        return not rest and not bits % 8

    def _divide(self, partitions: int, is_quantised: bool) -> None:
        """Divide the vectors, which are then stored in full or as codes."""
        from lancedb.index import IvfFlat, IvfPq

        config: Any = IvfFlat(
            distance_type="dot",
            num_partitions=partitions,
            max_iterations=20,
            sample_rate=CENTRE_SAMPLE,
        )
        if is_quantised:
            codes = self.manifest.stored_dimensions // _NUMBERS_PER_CODE
            config = IvfPq(
                distance_type="dot",
                num_partitions=partitions,
                max_iterations=20,
                sample_rate=CENTRE_SAMPLE,
                num_sub_vectors=codes,
                num_bits=_CODE_BITS,
            )
        self._table.create_index("vector", config=config)

    @abstractmethod
    def note(self, **values: Any) -> None:
        """Write values into the manifest."""
