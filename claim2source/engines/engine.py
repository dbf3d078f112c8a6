"""Store papers with their terms and vectors in a folder, and search them by both.

LanceDB keeps the folder: one process writes it, and any number of them search it meanwhile. Its
BM25 has k1 1.2 and b 0.75, multiplied by k1 + 1, which is divided out here; its statistics are
those of the last build: they still count papers that were removed since, and lack those that were
added. A copy of the folder is a copy of the index.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from claim2source.core.config import require
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import clean_leftovers, require_writable
from claim2source.core.lock import LOCK_FILE, FolderLock
from claim2source.core.old_names import refuse_old_address
from claim2source.core.records import Claim
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.datasets.papers import Paper
from claim2source.engines.manifest import MANIFEST, IndexManifest
from claim2source.engines.probes import MIXED, QUERIES, TARGET, chosen_probes, sampled_queries
from claim2source.engines.rows import (
    EVERYWHERE,
    PAPER,
    SENTENCES,
    Rows,
    Where,
    columns_of,
    half_of,
    paper_of,
    rows_of,
    schema_of,
    table_of,
    vectors_of,
    venue_key,
)
from claim2source.retrieve import FusionConfig, candidate_pool, fuse
from claim2source.retrieve.analyser import Analyser
from claim2source.retrieve.bm25 import NO_TERM
from claim2source.retrieve.dense import Dense, TextEncoder
from claim2source.retrieve.fuse import score_missing

if TYPE_CHECKING:
    import pyarrow
    from lancedb.expr import Expr

# (id, score), best first.
Hits = list[tuple[str, float]]
Search = Callable[[Sequence[Claim], Where, int], Mapping[str, Hits]]
TABLE = "papers"
K1, B = 1.2, 0.75
# Below so many papers every vector is compared.
EXACT = 50_000
# Vectors are divided anew once the index has grown by this factor since.
GROWN = 2.0
# Old versions stay this long: another process may be reading one.
KEPT = timedelta(hours=1)


@dataclass(frozen=True)
class Stats:
    """Count what an index holds: papers, those written since the last build, and bytes on disk."""

    papers: int
    unbuilt: int
    size: int


@dataclass(frozen=True, eq=False)
class Found:
    """Hold what was found for claims: by terms, by vectors, and fused; and the claims' vectors."""

    lexical: Result
    dense: Result
    fused: Result
    vectors: Mapping[str, np.ndarray]


class Engine:
    """Search a folder of papers, and let it grow; it is an `Index` too.

    What is written counts once the call has returned: a process that is killed later loses none
    of it. One process writes at a time, from its first write (or `lock`) to `close`; others may
    search meanwhile. `where` names the folder in errors.
    """

    device: str | None = None
    fusion: FusionConfig = FusionConfig()
    _encoder: TextEncoder | None = None

    def __init__(
        self, folder: str | Path, manifest: IndexManifest, *, exact_below: int = EXACT
    ) -> None:
        self.folder, self.manifest, self.where = Path(folder), manifest, str(folder)
        self.exact_below = exact_below
        self._lock: FolderLock | None = None
        database = _lancedb().connect(self.folder, read_consistency_interval=timedelta(0))
        try:
            # Where the process that made the index was killed there may be no table yet, or one
            # without any version: nothing was written to it.
            versions = self.folder / f"{TABLE}.lance" / "_versions"
            schema = schema_of(manifest.dimensions, manifest.sentences > 0)
            self._table: Any = (
                database.open_table(TABLE)
                if versions.is_dir() and any(versions.iterdir())
                else database.create_table(TABLE, schema=schema, mode="overwrite")
            )
        except (ValueError, RuntimeError) as error:
            why = f"its table cannot be read: {' '.join(str(error).split())}"
            raise InputError.at(folder, why=why) from None

    @classmethod
    def create(cls, folder: str | Path, manifest: IndexManifest, **options: Any) -> Self:
        """Make an empty index in a folder that is absent or empty, and lock it."""
        folder = Path(folder)
        analysis = manifest.bm25.analysis
        require(analysis == "terms", "bm25.analysis", analysis, "terms")
        require(manifest.bm25.k1 == K1, "bm25.k1", manifest.bm25.k1, f"{K1}: LanceDB has no other")
        require(manifest.bm25.b == B, "bm25.b", manifest.bm25.b, f"{B}: LanceDB has no other")
        _lancedb()
        require_writable(folder, "folder")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            clean_leftovers(folder, MANIFEST)
            if any(path.name != LOCK_FILE for path in folder.iterdir()):
                raise InputError.at(folder, why="exists and is not an index: it is not replaced")
            manifest.write(folder)
            made = cls(folder, manifest, **options)
        except BaseException:
            lock.release()
            raise
        made._lock = lock
        return made

    @classmethod
    def open(cls, folder: str | Path, **options: Any) -> Self:
        """Open an index. Raises `InputError` where there is none."""
        return cls(folder, IndexManifest.read(Path(folder)), **options)

    def lock(self) -> None:
        """Keep other writers out until `close`."""
        if self._lock is None:
            self._lock = FolderLock(self.folder)
            # Another process may have built it since it was opened.
            self.manifest = IndexManifest.read(self.folder)

    def close(self) -> None:
        """Let others write; safe to call twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def upsert(self, rows: Rows) -> None:
        """Add papers, and replace those whose ids are there, in one commit."""
        if not len(rows):
            return
        self.lock()
        table = table_of(rows, self._table.schema)
        if self.stamps([paper.source.id for paper in rows.papers]):
            self._make_stale()
            merge = self._table.merge_insert("id")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(table)
        else:
            self._table.add(table)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove papers; return how many of them were there."""
        self.lock()
        there = list(self.stamps(ids))
        if there:
            self._make_stale()
            self._table.delete(_among(there))
        return len(there)

    def note(self, **values: Any) -> None:
        """Change the manifest."""
        self.manifest = replace(self.manifest, **values)
        self.manifest.write(self.folder)

    def build(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Build or extend the indexes, merge what was written in pieces, measure the recall."""
        from lancedb.index import FTS, BTree

        self.lock()
        self._table.optimize(cleanup_older_than=KEPT)
        papers, names = self._table.count_rows(), self._index_names()
        if papers and ("id" not in names):
            self._table.create_index("id", config=BTree())
        if papers and ("terms" not in names or self.manifest.stale):
            # Texts are analysed before they come here: the engine splits them at spaces only.
            terms = FTS(
                base_tokenizer="whitespace",
                max_token_length=None,
                lower_case=False,
                stem=False,
                remove_stop_words=False,
                ascii_folding=False,
            )
            self._table.create_index("terms", config=terms)
        found = {"partitions": 0, "probes": 0, "recall": 1.0, "trained": 0}
        if papers >= self.exact_below:
            found = self._divide(papers, names, say)
        elif "vector" in names:
            self._table.drop_index(names["vector"])
        lengths = self._table.search().select(["length"]).to_batches(65_536)
        total = sum(int(np.asarray(batch["length"]).sum()) for batch in lengths)
        average = total / papers if papers else 0.0
        self.note(papers=papers, average_length=average, stale=False, **found)

    def _divide(
        self, papers: int, names: dict[str, str], say: Callable[[str], None]
    ) -> dict[str, Any]:
        """Divide the vectors into partitions, and choose how many of them are searched."""
        from lancedb.index import IvfFlat

        partitions, trained = self.manifest.partitions, self.manifest.trained
        if "vector" not in names or papers > GROWN * trained:
            partitions, trained = max(1, round(papers**0.5)), papers
            config = IvfFlat(distance_type="dot", num_partitions=partitions, max_iterations=20)
            self._table.create_index("vector", config=config)
        queries = sampled_queries(self._sampled(papers))
        chosen = chosen_probes(
            queries,
            partitions,
            exact=lambda vector, k: self._nearest(vector, k, EVERYWHERE, 0),
            probed=lambda vector, k, probes: self._nearest(vector, k, EVERYWHERE, probes),
        )
        say(
            f"{chosen.probes} of {partitions} partitions of vectors are searched: recall@"
            f"{chosen.k} {chosen.recall:.4f} on {len(queries)} sampled queries "
            f"(at least {TARGET})"
        )
        return {
            "partitions": partitions,
            "probes": chosen.probes,
            "recall": chosen.recall,
            "trained": trained,
        }

    def _sampled(self, papers: int) -> np.ndarray:
        places = np.random.default_rng(0).choice(papers, min(MIXED * QUERIES, papers), False)
        found = self._table.take_offsets(sorted(places.tolist())).select(["vector"]).to_arrow()
        return vectors_of(found["vector"])

    def _index_names(self) -> dict[str, str]:
        """Map an indexed column to the name of its index."""
        return {index.columns[0]: index.name for index in self._table.list_indices()}

    def dense(self, vector: np.ndarray, k: int, where: Where = EVERYWHERE) -> Hits:
        """Find the best `k` papers by inner product with a vector [d].

        Where few papers are left to choose from, all of them are compared.
        """
        probes = self.manifest.probes
        if probes and (chosen := _expression(where)) is not None:
            probes = 0 if self._table.count_rows(chosen.to_sql()) < self.exact_below else probes
        return self._nearest(vector, k, where, probes)

    def _nearest(self, vector: np.ndarray, k: int, where: Where, probes: int) -> Hits:
        """Search `probes` partitions, more while fewer than k papers are found; 0: everything."""
        if k < 1 or where.ids == ():
            return []
        query = self._table.search(vector.astype(np.float32), vector_column_name="vector")
        query = query.distance_type("dot").limit(k).select(["id", "_distance"])
        query = _filtered(query, where)
        found = (query.nprobes(probes) if probes else query.bypass_vector_index()).to_arrow()
        if probes and len(found) < k and probes < self.manifest.partitions:
            return self._nearest(vector, k, where, min(2 * probes, self.manifest.partitions))
        # LanceDB's distance is 1 - the inner product.
        return _hits(found, 1 - _numbers(found, "_distance"))

    def lexical(self, terms: Sequence[str], k: int, where: Where = EVERYWHERE) -> Hits:
        """Find the best `k` papers that hold one of the terms, by BM25."""
        if not terms or k < 1 or where.ids == ():
            return []
        query = self._table.search(_matching(terms)).limit(k).select(["id", "_score"])
        found = _filtered(query, where).to_arrow()
        return _hits(found, _numbers(found, "_score") / (K1 + 1))

    def fetch(self, ids: Sequence[str]) -> dict[str, Paper]:
        """Read papers by id."""
        rows = self._read(ids, PAPER)
        return {row["id"]: paper_of(row) for row in rows}

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Read the stamps of papers by id."""
        return {row["id"]: row["stamp"] for row in self._read(ids, ("id", "stamp"))}

    def _read(self, ids: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
        if not ids:
            return []
        query = self._table.search().where(_among(ids)).select(list(columns)).limit(None)
        rows: list[dict[str, Any]] = query.to_list()
        return rows

    def sentences(self, ids: Sequence[str]) -> dict[str, tuple[str, np.ndarray]]:
        """Read the stamps of papers by id, and the vectors of their sentences."""
        if not self.manifest.sentences:
            return {}
        rows, width = self._read(ids, ("id", "stamp", SENTENCES)), self.manifest.dimensions
        return {row["id"]: (row["stamp"], half_of(row[SENTENCES], width)) for row in rows}

    def rows(self, size: int = 2048) -> Iterator[Rows]:
        """Yield everything that is stored, as of now."""
        columns = columns_of(self.manifest.sentences > 0)
        query = self._table.search().select(columns).limit(None)
        yield from map(rows_of, query.to_batches(size))

    def stats(self) -> Stats:
        """Count what is stored."""
        papers, names = self._table.count_rows(), self._index_names()
        unbuilt = papers
        if "terms" in names:
            unbuilt = self._table.index_stats(names["terms"]).num_unindexed_rows
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return Stats(papers, unbuilt, sum(path.stat().st_size for path in files))

    def _make_stale(self) -> None:
        """Note, before it happens, that statistics will be of papers that are gone."""
        if not self.manifest.stale:
            self.note(stale=True)

    def use(self, encoder: TextEncoder) -> None:
        """Encode claims with this encoder. Raises `UserError` if another one made the index."""
        self.manifest.check_encoder(encoder, self.where)
        self._encoder = encoder

    @property
    def encoder(self) -> TextEncoder:
        """Return the encoder of claims, which is loaded when it is first needed."""
        if self._encoder is None:
            if self.manifest.model is None:
                why = "was made by an encoder without a name: give it its model with `use`"
                raise UserError(f"{self.where}: {why}")
            self.use(Dense(self.manifest.model, device=self.device).encoder)
        assert self._encoder is not None
        return self._encoder

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` papers of every claim by terms and vectors, fused."""
        return self.find(claims, k).fused

    def find(self, claims: Claims, k: int = 100, where: Where = EVERYWHERE) -> Found:
        """Rank papers by terms, by vectors, and fused; each part as deep as the fusion needs.

        Raises `UserError` where the model or the analysis is not the one that made the index.
        """
        asked, depth = as_claims(claims), max(self.fusion.depth, k)
        vectors: dict[str, np.ndarray] = {}
        by_vectors = partial(self._by_vectors, vectors)
        lexical, dense = _Part(self._by_terms, where), _Part(by_vectors, where)
        first, second = lexical.search(asked, depth), dense.search(asked, depth)
        failures = tuple(Failure(c.id, NO_TERM) for c in asked if not first.sources(c.id, 1))
        first = replace(first, failures=failures)
        scored = None
        if self.fusion.missing == "scored":
            scored = (
                score_missing(lexical, asked, first.run, second.run),
                score_missing(dense, asked, second.run, first.run),
            )
        fused = fuse(first, second, self.fusion, k=k, scored=scored)
        return Found(first, second, fused, vectors)

    def _by_terms(self, claims: Sequence[Claim], where: Where, k: int) -> Mapping[str, Hits]:
        self.manifest.check_analyser(self.manifest.bm25, self.where)
        analyser = Analyser(self.manifest.bm25)
        return {
            claim.id: self.lexical(analyser.claim(claim), k, where.within(claim.candidates))
            for claim in claims
        }

    def _by_vectors(
        self, known: dict[str, np.ndarray], claims: Sequence[Claim], where: Where, k: int
    ) -> Mapping[str, Hits]:
        """Search by claims' vectors; those that are not `known` are encoded, and are then."""
        new = [claim for claim in claims if claim.id not in known]
        texts = self.manifest.rendering.claim_texts(new)
        vectors, _ = self.encoder.encode(texts, "claim", store=None, progress=None)
        known.update(zip((claim.id for claim in new), vectors, strict=True))
        return {
            claim.id: self.dense(known[claim.id], k, where.within(claim.candidates))
            for claim in claims
        }


class _Part:
    """Search by terms, or by vectors, as an index does."""

    def __init__(self, search: Search, where: Where) -> None:
        self._search, self._where = search, where

    def search(self, claims: Claims, k: int = 100) -> Result:
        started, asked = time.perf_counter(), as_claims(claims)
        deeper = k + max((len(claim.excluded) for claim in asked), default=0)
        found = self._search(asked, self._where, deeper)
        lists = {
            claim.id: [hit for hit in found[claim.id] if hit[0] not in claim.excluded][:k]
            for claim in asked
        }
        run = Run.from_lists(lists, pool=candidate_pool(asked))
        return Result(run, cost=Cost(time.perf_counter() - started, len(asked)))

    def save(self, folder: str | Path) -> NoReturn:
        raise UserError("a part of an index is not written alone: copy its folder")


def folder_of(place: str | Path) -> Path:
    """Return the folder of an index. Raises `UserError` for an address."""
    refuse_old_address(str(place))
    if "://" in str(place):
        kind = str(place).partition("://")[0]  # the rest may hold a password
        raise UserError(f"{kind}://..: is no folder")
    return Path(place)


def open_engine(place: str | Path) -> Engine:
    """Open the index in a folder. Raises `UserError` where there is none.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> from claim2source.engines import grow_engine
        >>> folder = tempfile.mkdtemp() + "/idx"
        >>> grow_engine(folder, c2s.load("demo", "dev").sources[:20]).papers
        20
        >>> len(open_engine(folder).search("masks", k=5).sources("0"))
        5
    """
    return Engine.open(folder_of(place))


def is_engine(place: str | Path) -> bool:
    """Tell whether an index is there."""
    return (folder_of(place) / MANIFEST).is_file()


def _lancedb() -> Any:
    # By itself it warns that a new index is not there yet.
    os.environ.setdefault("LANCEDB_LOG", "error")
    try:
        import lancedb
    except ImportError:
        raise UserError(
            "an index is kept by LanceDB, which is not installed; pip install 'claim2source[index]'"
        ) from None
    return lancedb


def _hits(table: pyarrow.Table, scores: np.ndarray) -> Hits:
    return list(zip(table["id"].to_pylist(), scores.tolist(), strict=True))


def _numbers(table: pyarrow.Table, column: str) -> np.ndarray:
    numbers: np.ndarray = table[column].to_numpy().astype(np.float64)
    return numbers


def _among(ids: Sequence[str]) -> Expr:
    from lancedb.expr import col

    return col("id").isin(list(ids))


def _expression(where: Where) -> Expr | None:
    """Write a filter in LanceDB's expressions, which quote values; None where all are meant."""
    from lancedb.expr import col, lit

    parts = []
    if where.last_day is not None:
        parts.append(col("day") <= lit(where.last_day))  # unknown days are 0
    if where.language is not None:
        parts.append(col("lang") == lit(where.language))
    if where.venue is not None:
        parts.append(col("venue_key") == lit(venue_key(where.venue)))
    if where.ids is not None:
        parts.append(_among(where.ids))
    return reduce(lambda one, other: one & other, parts) if parts else None


def _matching(terms: Sequence[str]) -> Any:
    """Ask for any of the terms; those that stand there n times count n times."""
    from lancedb.query import BooleanQuery, MatchQuery, Occur

    by_count: dict[int, list[str]] = {}
    for term, count in Counter(terms).items():
        by_count.setdefault(count, []).append(term)
    queries = [
        MatchQuery(" ".join(those), "terms", boost=float(count))
        for count, those in by_count.items()
    ]
    if len(queries) == 1:
        return queries[0]
    return BooleanQuery([(Occur.SHOULD, query) for query in queries])


def _filtered(query: Any, where: Where) -> Any:
    chosen = _expression(where)
    return query if chosen is None else query.where(chosen, prefilter=True)
