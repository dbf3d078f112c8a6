"""Store papers with their terms and vectors in a folder or a bucket, and search them by both.

LanceDB stores them: one process writes, and any number of processes can search at the same time.
Its BM25 has k1 1.2 and b 0.75, multiplied by k1 + 1, which is divided out here. Its statistics are
those of the last build: they still count papers removed since, and lack added ones. A copy of the
files is a copy of the index.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from claim2source.core.arguments import require_path, whole_number
from claim2source.core.errors import InputError, UserError
from claim2source.core.machine import release_memory, return_large_blocks
from claim2source.core.run import Result
from claim2source.core.stage import Claims, as_claims
from claim2source.core.terminal import one_line
from claim2source.models.config import PLAIN_BERT, PREPACKED, ModelConfig
from claim2source.search.dense import Dense, TextEncoder
from claim2source.search.divided import VectorsInMemory
from claim2source.search.files import (
    IndexFiles,
    Lock,
    Seal,
    damage_reason,
    make_seal,
    open_files,
    read_seal,
    replaceable_files,
)
from claim2source.search.lance import (
    compact,
    connection,
    create_index,
    id_filter,
    lancedb_module,
    named_errors,
    newest_version,
    short,
)
from claim2source.search.manifest import MANIFEST, IndexManifest
from claim2source.search.names import PAPERS as NAME_SAMPLE
from claim2source.search.names import names_weight
from claim2source.search.retention import RETENTION, UNBUILT, choose_retention
from claim2source.search.rows import (
    EVERYWHERE,
    KEYS,
    Rows,
    Where,
    paper_schema,
    papers_table,
    with_notices,
)
from claim2source.search.searcher import Searcher
from claim2source.search.table import (
    SearchResults,
    Stats,
)

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)
# Below so many papers every vector is compared: they are not divided.
EXACT = 50_000
# New papers of an index that was never built after which its parts become one: otherwise all of
# them would lie on the disk twice in the end.
COMPACTED = 1_000_000
# Papers that are read and changed at a time.
_UPDATES = 1024
# Bytes of search indexes in memory during a build, which reads all partitions.
BUILDING_CACHE = 2**26


class Engine(Searcher):
    """Index of papers on disk, which can be searched and extended; it is also an `Index`.

    Written data are permanent once the call has returned, even if the process is killed later. One
    process writes at a time, from its first write (or `lock`) to `close`; others may search at the
    same time. `where` names the index in errors. `version` is an older state to search. Without
    it, `find`, `search`, `stats` and `refresh` see what other processes have written, and later
    reads use the same state. Only one thread may use an engine at a time. `name` is the manifest's.
    """

    device: str | None = None
    _encoder: TextEncoder | None = None
    # New papers since the last compaction.
    _unbuilt = 0

    def __init__(
        self,
        files: IndexFiles,
        manifest: IndexManifest,
        *,
        exact_below: int = EXACT,
        version: int | None = None,
        name: str = MANIFEST,
    ) -> None:
        self.files = files
        self.manifest = manifest
        self.location = files.uri
        self.exact_below = exact_below
        self.at = version
        self.name = name
        self._lock: Lock | None = None
        self._seal: Seal = {}
        self._row_numbers = {}
        self._stamp = files.stamp(name)
        self._check_files()
        self._table: Any = self._open_table()

    def __repr__(self) -> str:
        return one_line(self, location=str(self.location), papers=self.manifest.papers)

    @classmethod
    def create(cls, location: str | Path, manifest: IndexManifest, **options: Any) -> Self:
        """Make an empty index in a folder or bucket that is absent or empty, and lock it."""
        lancedb_module()
        files = open_files(location)
        lock = files.prepare()
        try:
            for name in replaceable_files(files, manifest.table):
                files.remove(name)
            engine = cls.create_table(files, manifest, **options)
        except BaseException:
            lock.release()
            raise
        engine._lock = lock
        return engine

    @classmethod
    def create_table(cls, files: IndexFiles, manifest: IndexManifest, **options: Any) -> Self:
        """Make an empty table, even over a damaged one, and then its manifest."""
        files.remove(f"{manifest.table}.files.json")
        for file_name in files.listed(f"{manifest.table}.lance"):
            files.remove(file_name)
        schema = paper_schema(manifest.stored_dimensions, manifest.sentences > 0)
        with named_errors(files.uri):
            connection(files).create_table(manifest.table, schema=schema, mode="overwrite")
        manifest.write(files, options.get("name", MANIFEST))
        return cls(files, manifest, **options)

    @classmethod
    def open(cls, location: str | Path, **options: Any) -> Self:
        """Open an index. Raises `InputError` if there is none, or its files are damaged."""
        files = open_files(location)
        return cls(files, IndexManifest.read(files, options.get("name", MANIFEST)), **options)

    @property
    def _folder(self) -> str:
        return f"{self.manifest.table}.lance"

    @property
    def _seal_file(self) -> str:
        return f"{self.manifest.table}.files.json"

    def _check_files(self) -> None:
        seal = read_seal(self.files, self._seal_file)
        if seal is None:
            self.files.listed(self._folder)  # refuses a pipe, on which LanceDB would block
        while seal is not None:
            reason = damage_reason(self.files, seal, self._folder, verified=self._seal)
            if not reason:
                self._seal = seal
                return
            # A concurrent build removes the note first, and then older files.
            before, seal = seal, read_seal(self.files, self._seal_file)
            if seal == before:
                raise self._damaged(reason)

    def _write_seal(self) -> None:
        self._seal = make_seal(self.files, self._folder, self._seal)
        self.files.write(self._seal_file, json.dumps(self._seal).encode())

    def _open_table(self) -> Any:
        manifest = self.manifest
        versions = self.files.listed(f"{self._folder}/_versions")
        if not versions:
            raise self._damaged(f"{self._folder}/_versions is missing")
        try:
            table = connection(self.files).open_table(manifest.table)
            if self.at is not None:
                table.checkout(self.at)
            schema, papers, version = table.schema, table.count_rows(), table.version
        except Exception as error:
            if self.at is not None and "ersion" in str(error):
                reason = (
                    f"no such version; versions are kept for {RETENTION.days} days, for less in a "
                    "small index with many updates"
                )
                raise UserError(f"{self.location}: {self.at}: {reason}") from None
            raise self._damaged(f"its table cannot be read: {short(error)}") from None
        described = paper_schema(manifest.stored_dimensions, manifest.sentences > 0)
        is_described = set(described.names) == {*schema.names, KEYS}
        if is_described and manifest.stored_dimensions:
            is_described = schema.field("vector").type.list_size == manifest.dimensions
        if not is_described:
            raise self._damaged("its table is not the one that its manifest describes")
        if self.at is None and version < newest_version(versions):
            raise self._damaged(f"{self._folder}/_versions has an older version's file as newest")
        if papers < manifest.papers and not manifest.stale and self.at is None:
            raise self._damaged(f"its table has {papers}")
        self._ids = {}
        self._in_memory = VectorsInMemory()
        return table

    def refresh(self) -> None:
        """Read the changes of other processes, with manifest and model if they built the index."""
        self._row_numbers.clear()
        if self._lock is not None or self.at is not None:
            return
        stamp = self.files.stamp(self.name)
        if stamp == self._stamp:
            with self._with_named_errors():
                self._table.checkout_latest()
            return
        before = self.manifest
        self.manifest = IndexManifest.read(self.files, self.name)
        try:
            self._check_files()
            self._table = self._open_table()
        except BaseException:
            self.manifest = before  # the next search tries again
            raise
        self._stamp = stamp
        if self.manifest.encoders != before.encoders:
            self._encoder = None

    def lock(self) -> None:
        """Take the writer's lock until `close`."""
        if self._lock is None:
            if self.at is not None:
                raise UserError(f"{self.location}: an older state, version {self.at}, is read-only")
            lock = self.files.lock()
            try:
                self.refresh()  # another process may have built it since it was opened
                self._renew_indexes()
            except BaseException:
                lock.release()
                raise
            self._lock = lock
        self._row_numbers.clear()
        self._lock.check()

    def close(self) -> None:
        """Release the writer's lock, and store new vectors; safe to call twice."""
        self.store_encoded()
        if self._lock is not None:
            self._lock.release()
            self._lock, self._known, self._written = None, None, 0

    def upsert(self, rows: Rows, replaces: bool | None = None) -> None:
        """Add papers, and replace those with existing ids, in one commit.

        `replaces`: whether there are existing ids, so that a large table is not read again; None:
        look them up.
        """
        if not len(rows):
            return
        self.lock()
        table = papers_table(rows, self._table.schema)
        ids = [paper.source.id for paper in rows.papers]
        if replaces is None:
            replaces = bool(self.stamps(ids))
        self._note_ids(ids)
        if replaces:
            self._mark_stale()
            self._merge(table)
        else:
            with self._with_named_errors():
                self._table.add(table)
            self._unbuilt += len(rows)
            if self._unbuilt >= COMPACTED and not self.manifest.papers:
                self._unbuilt = 0
                self.files.remove(self._seal_file)  # it names files that go now
                with return_large_blocks(), self._with_named_errors():
                    compact(self._table, UNBUILT)
                self._ids = {}
            self._write_seal()
        release_memory()

    def _merge(self, table: pyarrow.Table) -> None:
        with self._with_named_errors():
            merge = self._table.merge_insert("id")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(table)
        self._write_seal()

    def delete(self, ids: Sequence[str]) -> int:
        """Remove papers; return how many existed."""
        self.lock()
        present = list(self.stamps(ids))
        if present:
            self._mark_stale()
            with self._with_named_errors():
                self._table.delete(id_filter(present))
            self._write_seal()
        return len(present)

    def retract(self, state: Callable[[str, str, str], str | None]) -> int:
        """Update the retraction notices of all papers; return how many papers changed.

        `state` is called with each paper's id, DOI and notice and returns the new notice; None:
        unchanged, "": no notice. Nothing is encoded.
        """
        self.lock()
        changed: dict[str, str] = {}
        with self._with_named_errors():
            query = self._table.search().select(["id", "doi", "retracted"]).limit(None)
            for batch in query.to_batches(65_536):
                for row in batch.to_pylist():
                    new = state(row["id"], row["doi"], row["retracted"])
                    if new is not None and new != row["retracted"]:
                        changed[row["id"]] = new
        ids = list(changed)
        for start in range(0, len(ids), _UPDATES):
            with self._with_named_errors():
                query = self._table.search().where(id_filter(ids[start : start + _UPDATES]))
                table = query.select(self._table.schema.names).limit(None).to_arrow()
            table = with_notices(table, changed)
            self._mark_stale()
            self._merge(table)
        return len(ids)

    def share_lock(self, engine: Engine) -> None:
        """Write with the lock of another engine of the same index."""
        self._renew_indexes()
        self._lock = engine._lock

    def stats(self) -> Stats:
        """Count papers, papers outside the search indexes, and bytes."""
        self.refresh()
        with self._with_named_errors():
            papers = self._table.count_rows()
            names = self._index_names()
            unbuilt = papers
            if "terms" in names:
                unbuilt = self._table.index_stats(names["terms"]).num_unindexed_rows
        size = sum(size for size, _ in self.files.listed().values())
        return Stats(papers, unbuilt, size)

    def note(self, **values: Any) -> None:
        self.manifest = replace(self.manifest, **values)
        self.manifest.write(self.files, self.name)
        self._stamp = self.files.stamp(self.name)

    def build(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Build or extend the search indexes, compact the table, measure the recall."""
        self.lock()
        self.files.remove(self._seal_file)  # it names files that go now
        self._known, self._written = None, 0
        release_memory()  # used by writing
        with self._with_named_errors():
            self._table = connection(self.files, BUILDING_CACHE).open_table(self.manifest.table)
        has_codes = self.manifest.refined > 0
        keeps_codes = has_codes and not self._has_changed()
        if not self.manifest.trained or has_codes and not keeps_codes:
            # All vectors are compared in the meantime: LanceDB would read damaged files. And it
            # damages codes itself when it compacts (0.40: recall@50 0.99 to 0.86).
            self.note(partitions=0, probes=0, trained=0)
            with self._with_named_errors():
                names = self._index_names()
                if "vector" in names:
                    self._table.drop_index(names["vector"])
        with return_large_blocks():
            with self._with_named_errors():
                size = sum(size for size, _ in self.files.listed(self._folder).values())
                is_built = self.manifest.papers > 0
                retention = choose_retention(self._table, size, self.exact_below, is_built)
                if retention is not None and not keeps_codes:
                    compact(self._table, retention)
            release_memory()
            self._write_seal()
            with self._with_named_errors():
                values = self._build_indexes(say)
        self._write_seal()
        self.note(stale=False, **values)
        self._table = self._open_table()

    def _has_changed(self) -> bool:
        """Whether papers were added, replaced or removed since the vectors were divided."""
        if self.manifest.stale or not self.manifest.trained:
            return True
        with self._with_named_errors():
            name = self._index_names().get("vector")
            return name is None or self._table.index_stats(name).num_unindexed_rows > 0

    def _renewed(self) -> bool:
        """Whether the index is now newer than the state that could not be read."""
        if self._lock is not None or self.at is not None:
            return False
        before = self.version
        self.refresh()
        return self.version != before

    def _build_indexes(self, say: Callable[[str], None]) -> dict[str, Any]:
        papers = self._table.count_rows()
        # LanceDB ignores a search index that it cannot read; it is built again.
        names: dict[str, str] = {}
        for column, name in self._index_names().items():
            if not self._table.index_stats(name).num_unindexed_rows:
                names[column] = name
        for column in ("id", "terms", "names"):
            counts_removed = self.manifest.stale and column != "id"
            if papers and (column not in names or counts_removed):
                log.info("%s: building the search index of %s", self.location, column)
                create_index(self._table, column)
        log.info("%s: dividing the vectors", self.location)
        values = self._build_partitions(papers, names, say)
        sample = self.sample(papers, NAME_SAMPLE)
        weight = names_weight(sample, self.manifest.bm25, self.ids_by_weight)
        return {"papers": papers, "names": weight, **values}

    def _renew_indexes(self) -> None:
        """Build search indexes again unless a note records that their files are complete.

        A damaged search index may list a paper twice, or stop a build. The index of vectors is only
        rebuilt at the next build.
        """
        if self.files.stamp(self._seal_file):
            return
        with self._with_named_errors():
            names = self._index_names()
            for column in names.keys() & {"id", "terms", "names"}:
                create_index(self._table, column)
        if names:
            self.note(trained=0)
        self._write_seal()

    def _mark_stale(self) -> None:
        """Record, before papers are removed, that the statistics still count them."""
        if not self.manifest.stale:
            self.note(stale=True)

    def use(self, encoder: TextEncoder) -> None:
        """Encode claims with this encoder. Raises `UserError` if another one made the index."""
        self.manifest.check_encoder(encoder, self.location)
        self._encoder = encoder

    def load(self, model: ModelConfig) -> None:
        """Encode claims with this model. Raises `UserError` if another one made the index."""
        device = self.device
        if device is None:
            import torch

            device = None if torch.cuda.is_available() else PREPACKED
        encoder = Dense(model, device=device).encoder
        if device in PLAIN_BERT and not self.manifest.is_made_by(encoder):
            # transformers may parse its config differently.
            encoder = Dense(model, device=PLAIN_BERT[device]).encoder
        self.use(encoder)

    @property
    def encoder(self) -> TextEncoder:
        """Return the encoder of claims, which is loaded on first use."""
        if self._encoder is None:
            if self.manifest.model is None:
                reason = "was made by an encoder without a name: set its model with `use`"
                raise UserError(f"{self.location}: {reason}")
            self.load(self.manifest.model)
        assert self._encoder is not None
        return self._encoder

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` papers of every claim by terms and vectors, fused."""
        return self.find(claims, k).fused

    def find(
        self, claims: Claims, k: int = 100, where: Where = EVERYWHERE, texts: Sequence[str] = ()
    ) -> SearchResults:
        """Rank papers by terms, by vectors, and fused; each part as deep as the fusion needs.

        `texts` are encoded like claims, in the same batch. Raises `UserError` if the model or the
        analysis is not the one that made the index.
        """
        posts = as_claims(claims)
        k = whole_number(k, "k")
        self.refresh()
        try:
            return self._find(posts, k, where, texts)
        except InputError:
            if not self._renewed():
                raise
            return self._find(posts, k, where, texts)


def open_index(location: str | Path, version: int | None = None) -> Engine:
    """Open the index in a folder or bucket, or one of its older states.

    Raises `UserError` if there is none, or its files are damaged.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> from claim2source.search.growing import grow_engine
        >>> folder = tempfile.mkdtemp() + "/idx"
        >>> grow_engine(folder, c2s.load("demo", "dev").sources[:6]).papers
        6
        >>> len(c2s.open_index(folder).search("masks", k=5).sources("0"))
        5
    """
    require_path(location, "location", "a folder or a bucket's address")
    if version is not None:
        whole_number(version, "version")
    return Engine.open(location, version=version)
