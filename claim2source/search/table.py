"""Read the papers of an index: by terms, by vectors, by ids, one after another.

The vectors of a small index are held in memory: LanceDB would read them for each search. The best
sums of words and names are found without ranking by the sum.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.core.errors import InputError
from claim2source.core.records import Claim
from claim2source.core.run import Cost, Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.core.terminal import one_line
from claim2source.data.papers import NOTICE, Paper, add_notice
from claim2source.search.files import IndexFiles
from claim2source.search.lance import (
    ADVICE,
    Hits,
    expression,
    filtered,
    id_filter,
    named_errors,
    numbers,
)
from claim2source.search.manifest import K1, IndexManifest
from claim2source.search.rows import (
    EVERYWHERE,
    PAPER,
    SENTENCES,
    Rows,
    Where,
    paper_columns,
    read_half_vectors,
    read_rows,
    read_vectors,
    to_paper,
)
from claim2source.search.topk import candidate_pool

if TYPE_CHECKING:
    import pyarrow

# Version of a table into which no paper was written.
NEW = 1
# Ids of rows that are held.
_MOST_IDS = 200_000
# Papers after which a writer holds the hashes of all ids, so that it need not look them up: 65 MB
# for a million.
_MANY = 16_384
# Bytes of vectors that each process holds at most: 50,000 papers of 670 numbers.
_MOST_BYTES = 2**27
# Rows and their scores, best first: of all rows the best so many, or those of some rows.
Ranked = tuple[np.ndarray, np.ndarray]
Ranking = Callable[[int, np.ndarray | None], Ranked]
# Rows of each ranking that are read at first, for each one that is wanted; then so many times more.
_FIRST, _MORE = 8, 4
Search = Callable[[Sequence[Claim], Where, int], Mapping[str, Hits]]


@dataclass(frozen=True, eq=False)
class SearchResults:
    """Results for claims by terms, by vectors and fused; and the claims' vectors.

    `texts` are the vectors of further texts that were encoded with the claims. `alphas` are the
    weights of terms for claims in another language than the papers', without a translation, where
    nobody chose one.
    """

    lexical: Result
    dense: Result
    fused: Result
    vectors: Mapping[str, np.ndarray]
    texts: Mapping[str, np.ndarray] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return one_line(self, claims=len(self.fused.run.claim_ids), rows=len(self.fused.run))


class SearchPart:
    """Rank papers of an index by one of its two searches, as an `Index` does."""

    def __init__(self, search: Search, where: Where) -> None:
        self._search, self._where = search, where

    def search(self, claims: Claims, k: int = 100) -> Result:
        started, posts = time.perf_counter(), as_claims(claims)
        deeper = k + max((len(claim.excluded) for claim in posts), default=0)
        results = self._search(posts, self._where, deeper)
        lists = {
            claim.id: [hit for hit in results[claim.id] if hit[0] not in claim.excluded][:k]
            for claim in posts
        }
        run = Run.from_lists(lists, pool=candidate_pool(posts))
        return Result(run, cost=Cost(time.perf_counter() - started, len(posts)))


@dataclass(frozen=True, eq=False)
class VectorsInMemory:
    """Vectors of a table's version in float32, [rows, d], in the order of row numbers.

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
        rows, vectors = read["_rowid"].to_numpy(), read_vectors(read["vector"])
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


@dataclass(frozen=True)
class Stats:
    """Count an index's papers, those written since the last build, and its bytes on disk."""

    papers: int
    unbuilt: int
    size: int


class PaperTable:
    """Read and search the papers of a table by their terms, their vectors and their ids."""

    files: IndexFiles
    manifest: IndexManifest
    exact_below: int
    location: str
    _table: Any
    # Of papers that a search of this version listed: reading them by number spares a look-up.
    _row_numbers: dict[str, int]
    # Ids of listed rows: LanceDB never gives a row's number to another one.
    _ids: dict[int, str]
    _in_memory: VectorsInMemory
    # Of a writer that has written many; None: any may be there.
    _known: set[int] | None = None
    _written = 0

    @property
    def version(self) -> int:
        """Number the state that is searched; another one may give other answers."""
        with self._with_named_errors():
            return int(self._table.version)

    def _with_named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self.location)

    def _damaged(self, reason: str) -> InputError:
        papers = f"{self.manifest.papers} papers when it was built last"
        return InputError(self.location, reason=f"damaged ({papers}): {reason}; {ADVICE}")

    def sample(self, papers: int, count: int) -> list[Paper]:
        """Draw some of the papers, always the same ones."""
        if not papers:
            return []
        return [to_paper(row) for row in self._draw(papers, count, PAPER).to_pylist()]

    def _draw(self, papers: int, count: int, columns: list[str]) -> pyarrow.Table:
        rows = np.random.default_rng(0).choice(papers, min(count, papers), False)
        with self._with_named_errors():
            return self._table.take_offsets(sorted(rows.tolist())).select(columns).to_arrow()

    def _index_names(self) -> dict[str, str]:
        return {index.columns[0]: index.name for index in self._table.list_indices()}

    def dense(
        self, vector: np.ndarray, k: int, where: Where = EVERYWHERE, exact: bool = False
    ) -> Hits:
        """Find the best `k` papers by inner product with a vector [d].

        Of the papers that a filter leaves all are compared if that takes less, or with `exact`.
        """
        manifest = self.manifest
        probes = 0 if exact or manifest.partitions < 2 else manifest.probes
        if probes and (condition := expression(where)) is not None:
            with self._with_named_errors():
                remaining = self._table.count_rows(condition.to_sql())
            # The best k of a tenth of the papers lie as far away as the best 10 k of all.
            probes = (
                round(probes * manifest.papers / remaining) if remaining >= self.exact_below else 0
            )
            probes = 0 if probes * manifest.papers >= remaining * manifest.partitions else probes
        if k < 1 or where.ids == ():
            return []
        if not probes:
            with self._with_named_errors():
                held = self._in_memory = self._in_memory.updated(self._table, self.exact_below)
                if held.is_small:
                    allowed = None if where == EVERYWHERE else row_numbers(self._table, where)
                    return self._hits(*held.best(vector, k, allowed))
        return self._nearest(vector, k, where, probes)

    def _nearest(self, vector: np.ndarray, k: int, where: Where, probes: int) -> Hits:
        """Search `probes` partitions, and more if they hold fewer than k papers; 0: all."""
        with self._with_named_errors():
            query = self._table.search(vector.astype(np.float32), vector_column_name="vector")
            query = query.distance_type("dot").limit(k).select(["_distance"])
            query = filtered(query.with_row_id(True), where)
            rows = (query.nprobes(probes) if probes else query.bypass_vector_index()).to_arrow()
        if probes and len(rows) < k and probes < self.manifest.partitions:
            return self._nearest(vector, k, where, min(2 * probes, self.manifest.partitions))
        # LanceDB's distance is 1 - the inner product.
        return self._hits(rows["_rowid"].to_numpy(), 1 - numbers(rows, "_distance"))

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> Hits:
        """Name the papers in rows of these numbers."""
        listed: list[int] = rows.tolist()
        # Another thread may read them too.
        ids = self._ids = {} if len(self._ids) > _MOST_IDS else self._ids
        if new := [row for row in listed if row not in ids]:
            with self._with_named_errors():
                table = self._table.take_row_ids(new).select(["id"]).with_row_id().to_arrow()
            ids.update(zip(table["_rowid"].to_pylist(), table["id"].to_pylist(), strict=True))
        if not all(row in ids for row in listed):
            raise self._damaged("its search index lists a paper that is not there")
        self._row_numbers.update((ids[row], row) for row in listed)
        return [(ids[row], score) for row, score in zip(listed, scores.tolist(), strict=True)]

    def _probed(self, queries: np.ndarray, k: int, probes: int, step: int) -> list[np.ndarray]:
        """Search with every `step`-th vector [n, d] at once; return the best scores of each."""
        queries = queries[::step]
        with self._with_named_errors():
            query = self._table.search(queries, vector_column_name="vector").distance_type("dot")
            table = query.limit(k).select(["id", "_distance"]).nprobes(probes).to_arrow()
        rows, scores = table["query_index"].to_numpy(), 1 - numbers(table, "_distance")
        return [scores[rows == row] for row in range(len(queries))]

    def _vectors(self) -> Iterator[np.ndarray]:
        query = self._table.search().select(["vector"]).limit(None)
        for batch in query.to_batches(8_192):
            yield read_vectors(batch["vector"])

    def lexical(
        self,
        terms: Sequence[str],
        k: int,
        where: Where = EVERYWHERE,
        names: Sequence[str] = (),
        weight: float | None = None,
    ) -> Hits:
        """Find the best `k` papers that hold one of the terms, by BM25.

        `names` are looked for among authors and venues, and count `weight` times; None: as the
        index's papers chose.
        """
        weight = self.manifest.names if weight is None else weight
        counts = Counter(terms)
        # Words that count more than once are a ranking more: LanceDB's own sums take longer.
        parts: list[tuple[str, Sequence[str], float]] = []
        if counts:
            parts.append(("terms", list(counts), 1.0))
        for count in {*counts.values()} - {1}:
            repeated = [term for term in counts if counts[term] == count]
            parts.append(("terms", repeated, count - 1.0))
        if names and weight:
            parts.append(("names", list(dict.fromkeys(names)), weight))
        if not parts or k < 1 or where.ids == ():
            return []

        def ranking(column: str, words: Sequence[str], weight: float) -> Ranking:
            def rank(depth: int, rows: np.ndarray | None) -> Ranked:
                table = self._by_words(column, words, where, depth, rows)
                return table["_rowid"].to_numpy(), weight * numbers(table, "_score") / (K1 + 1)

            return rank

        rankings = [ranking(*part) for part in parts]
        rows, scores = best_sums(rankings, k) if len(parts) > 1 else rankings[0](k, None)
        return self._hits(rows, scores)

    def _by_words(
        self,
        column: str,
        words: Sequence[str],
        where: Where,
        k: int,
        rows: np.ndarray | None = None,
    ) -> pyarrow.Table:
        """Find the best `k` rows that hold one of the words, or score some rows."""
        from lancedb.query import MatchQuery

        with self._with_named_errors():
            query = self._table.search(MatchQuery(" ".join(words), column)).limit(k)
            query = query.select(["_score"]).with_row_id(True)
            return filtered(query, where, rows).to_arrow()

    def _ids_by(self, terms: Sequence[str], names: Sequence[str], weight: float) -> list[str]:
        return [key for key, _ in self.lexical(terms, 50, EVERYWHERE, names, weight)]

    def fetch(self, ids: Sequence[str]) -> dict[str, Paper]:
        return {row["id"]: to_paper(row) for row in self._read_rows(ids, PAPER)}

    def fetch_with_sentences(
        self, ids: Sequence[str]
    ) -> tuple[dict[str, Paper], dict[str, np.ndarray]]:
        """Read papers by id, and their sentences' stored vectors [sentences, d]."""
        has_sentences, width = self.manifest.sentences > 0, self.manifest.dimensions
        rows = self._read_rows(ids, PAPER + [SENTENCES] * has_sentences)
        vectors = (
            {row["id"]: read_half_vectors(row[SENTENCES], width) for row in rows}
            if has_sentences
            else {}
        )
        return {row["id"]: to_paper(row) for row in rows}, vectors

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        return {row["id"]: row["stamp"] for row in self._read_rows(ids, ("id", "stamp"))}

    def _read_rows(self, ids: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
        if self._known is not None:
            ids = [key for key in ids if hash(key) in self._known]
        if not ids:
            return []
        row_numbers, columns = self._row_numbers, list(columns)
        with self._with_named_errors():
            if all(key in row_numbers for key in ids):
                query = self._table.take_row_ids(sorted({row_numbers[key] for key in ids}))
                table = query.select(columns).to_arrow()
            else:
                query = self._table.search().where(id_filter(ids)).select(columns)
                table = query.limit(None).to_arrow()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def _note_ids(self, ids: Sequence[str]) -> None:
        """Note ids before they are written: a write may fail once they are there."""
        self._written += len(ids)
        if self._known is None and self._written > _MANY:
            with self._with_named_errors():
                batches = self._table.search().select(["id"]).limit(None).to_batches(65_536)
                self._known = {hash(key) for batch in batches for key in batch["id"].to_pylist()}
        if self._known is not None:
            self._known.update(map(hash, ids))

    def rows(self, size: int = 2048) -> Iterator[Rows]:
        """Yield everything that is stored, as of now."""
        columns = paper_columns(self.manifest.sentences > 0)
        with self._with_named_errors():
            query = self._table.search().select(columns).limit(None)
            yield from map(read_rows, query.to_batches(size))

    def notices(self) -> dict[str, str]:
        """Map DOIs to what indexed notices say of the papers that they are about."""
        with self._with_named_errors():
            query = self._table.search().where(f"retracted LIKE '%{NOTICE}%'")
            table = query.select(["doi", "retracted"]).limit(None).to_arrow()
        notices: dict[str, str] = {}
        for row in table.to_pylist():
            add_notice(notices, row["retracted"], row["doi"])
        return notices

    def retracted(self, ids: Sequence[str]) -> dict[str, str]:
        """Map papers with a notice of retraction or correction to that notice."""
        return {
            row["id"]: row["retracted"]
            for row in self._read_rows(ids, ("id", "retracted"))
            if row["retracted"]
        }


def row_numbers(table: Any, where: Where = EVERYWHERE) -> np.ndarray:
    """List the numbers of a table's rows that a filter leaves."""
    query = filtered(table.search().select(["day"]).with_row_id(True), where)
    numbers: np.ndarray = query.limit(None).to_arrow()["_rowid"].to_numpy()
    return numbers


def best_sums(rankings: Sequence[Ranking], k: int) -> Ranked:
    """Find the `k` rows with the best sums of scores, which are 0 or more; equal ones by row.

    A ranking gives the best rows of all, fewer if no more score above 0, and the scores of
    given rows. It is read until no row outside can have a better sum than the kth (Fagin, Lotem
    and Naor 2003).
    """
    depth = _FIRST * k
    while True:
        lists = [ranking(depth, None) for ranking in rankings]
        lasts = [scores[-1] if len(scores) >= depth else 0.0 for _, scores in lists]
        rows = np.unique(np.concatenate([rows for rows, _ in lists]))
        scores = np.full((len(lists), len(rows)), np.nan)
        for number, (listed, values) in enumerate(lists):
            scores[number, np.searchsorted(rows, listed)] = values
            if not lasts[number]:
                scores[number] = np.nan_to_num(scores[number])
        sums = np.nansum(scores, axis=0)
        floor = -np.partition(-sums, k - 1)[k - 1] if len(sums) >= k else 0.0
        if sum(lasts) <= floor or not any(lasts):
            break
        depth *= _MORE
    unknown = np.isnan(scores)
    possible = sums + np.array(lasts) @ unknown >= floor * (1 - 1e-6)
    for number, ranking in enumerate(rankings):
        if (missing := rows[possible & unknown[number]]).size:
            listed, values = ranking(len(missing), missing)
            sums[np.searchsorted(rows, listed)] += values
    best = np.lexsort((rows, -sums))[:k]
    return rows[best], sums[best]
