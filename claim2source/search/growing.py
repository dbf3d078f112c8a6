"""Add papers to an index: encode the new and the changed ones, and keep the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from claim2source.core.errors import InputError, UserError
from claim2source.core.progress import Progress
from claim2source.core.records import Source
from claim2source.data.identity import filled
from claim2source.data.papers import Paper
from claim2source.data.retractions import add_notice, noticed_state, worst
from claim2source.data.store import Store
from claim2source.models import ModelConfig
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense, Model, TextEncoder
from claim2source.search.engine import Engine, open_index
from claim2source.search.files import IndexFiles
from claim2source.search.lance import connection, named_errors
from claim2source.search.manifest import IndexManifest, is_engine
from claim2source.search.rows import (
    SPLIT,
    Rows,
    finding_sentences,
    half,
    no_vectors,
    paper_stamp,
)
from claim2source.text import Rendering

if TYPE_CHECKING:
    from claim2source.models import Encoder

DEFAULT = ModelConfig().name
# Name of tables of papers, which a model's hash may follow.
TABLE = "papers"
# Manifests of an index that is being made next to another one, and of the one that it replaced.
NEXT, PREVIOUS = "next.json", "previous.json"
Item = TypeVar("Item")
# Papers that are encoded and written at a time; a killed process has to repeat these.
BATCH = 4096


@dataclass(frozen=True)
class Growth:
    """Counts of the papers that were read: new, changed, unchanged; and of all in the index."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    papers: int = 0

    def __str__(self) -> str:
        counts = f"{self.added} added, {self.changed} changed, {self.unchanged} unchanged"
        return f"{counts}; {self.papers} papers in the index"


class PaperEncoder:
    """Encode papers for an index: in float16, and with `sentences` also their findings.

    Vectors are read from the store. Missing ones are computed, in bfloat16 if that is faster on
    the processor, and stored.
    """

    def __init__(
        self, encoder: TextEncoder, rendering: Rendering, store: Store | None, sentences: bool
    ) -> None:
        self.encoder, self.rendering, self.store = encoder, rendering, store
        self.sentences = sentences

    @cached_property
    def _source_encoder(self) -> Encoder | None:
        from claim2source.models import Encoder

        encoder = self.encoder
        return encoder.source_encoder or encoder if isinstance(encoder, Encoder) else None

    @cached_property
    def _fast_encoder(self) -> Encoder | None:
        exact = self._source_encoder
        fast = None if exact is None else exact.in_bfloat16()
        return None if fast is exact else fast

    def encode(
        self, papers: Sequence[Paper], bar: Progress
    ) -> tuple[np.ndarray, list[np.ndarray] | None, int]:
        """Encode papers [n, d] and the findings of each [findings, d]; count new texts of papers.

        Texts are new if they were not in the store. The progress bar counts papers.
        """
        findings: list[list[str]] = []
        if self.sentences:
            findings = [finding_sentences(paper) for paper in papers]
        texts = self.rendering.source_texts([paper.source for paper in papers])
        sentences = list(chain.from_iterable(findings))

        # The share of the papers' own texts in the progress, by their length.
        length = sum(map(len, texts))
        total_length = length + sum(map(len, sentences))
        share = round(len(papers) * length / max(1, total_length))
        vectors, reused = self._vectors(texts, bar, share)
        new = len(set(texts)) - reused
        if not self.sentences:
            return vectors, None, new

        flat, _ = self._vectors(sentences, bar, len(papers) - share)
        if not findings:
            return vectors, [], new
        ends = np.cumsum([len(part) for part in findings])
        return vectors, np.split(flat, ends[:-1]), new

    def _vectors(self, texts: Sequence[str], bar: Progress, share: int) -> tuple[np.ndarray, int]:
        """Return vectors [texts, d] float16, and how many distinct texts were in the store."""
        parts = self._divided(texts)
        encoded: list[np.ndarray] = []
        order: list[int] = []
        reused = 0
        with bar.part(share, len(set(texts))) as progress:
            for encoder, rows in parts:
                part = [texts[i] for i in rows]
                vectors, cost = encoder.encode(part, "source", store=self.store, progress=progress)
                encoded.append(vectors)
                order += rows
                reused += cost.reused
        return half(np.concatenate(encoded)[np.argsort(order)]), reused

    def _divided(self, texts: Sequence[str]) -> list[tuple[TextEncoder, list[int]]]:
        """Divide texts among the encoders: those in the store, and those for the faster one."""
        everything: list[tuple[TextEncoder, list[int]]] = [(self.encoder, [*range(len(texts))])]
        exact = self._source_encoder
        if not texts or exact is None:
            return everything
        # Another machine, or an evaluation, may have stored some in float32. If all are stored, no
        # model is loaded.
        missing = exact.missing(texts, "source", self.store)
        if not missing:
            return everything
        fast = self._fast_encoder
        if fast is None:
            return everything
        stored_rows = sorted({*range(len(texts))}.difference(missing))
        parts: list[tuple[TextEncoder, list[int]]] = [(exact, stored_rows), (fast, missing)]
        return [(encoder, rows) for encoder, rows in parts if rows]


def grow(
    engine: Engine,
    papers: Iterable[Paper],
    dense: Dense,
    *,
    total: int | None = None,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
    batch: int = BATCH,
) -> Growth:
    """Write papers to an index and build it.

    Of papers with one id the last is used, completed by fields of earlier ones. Unchanged papers
    of the index are kept, so a stopped run resumes. Vectors are read from the store of `dense`, or
    computed and stored. Raises `UserError` if another model made the index, or if another process
    writes it.
    """
    engine.lock()
    engine.use(dense.encoder)
    manifest = engine.manifest
    manifest.check_analyser(manifest.bm25, engine.location)
    if manifest.sentences not in (0, SPLIT):
        reason = "another version of this program split its abstracts into sentences; index again"
        raise UserError(f"{engine.location}: {reason}")
    analyser = Analyser(manifest.bm25)
    encoder = PaperEncoder(dense.encoder, manifest.rendering, dense.store, manifest.sentences > 0)
    added = changed = unchanged = 0
    notices: dict[str, str] = {}
    indexed_notices = engine.notices()
    with Progress("papers" if progress else None, total) as bar:
        for part in batches(papers, batch):
            latest: dict[str, Paper] = {}
            for paper in part:
                before = latest.get(paper.source.id)
                latest[paper.source.id] = paper if before is None else filled(paper, before)
            for paper in latest.values():
                add_notice(notices, paper.retracted, paper.doi)
            stamps_before = engine.stamps(list(latest))
            latest = _with_known_notices(engine, latest, stamps_before, indexed_notices)
            new: list[Paper] = []
            stamps: list[str] = []
            for key, paper in _filled_from(engine, latest, stamps_before).items():
                stamp = paper_stamp(paper)
                if stamps_before.get(key) != stamp:
                    new.append(paper)
                    stamps.append(stamp)
            replaced = sum(paper.source.id in stamps_before for paper in new)
            if new:
                vectors, sentences = no_vectors(len(new)), None
                if manifest.encoded_first:
                    bar.update(len(new))
                else:
                    vectors, sentences, _ = encoder.encode(new, bar)
                words = analyser.sources([paper.source for paper in new])
                terms = [" ".join(listed) for listed in words]
                engine.upsert(Rows(new, terms, vectors, stamps, sentences), replaced > 0)
            added += len(new) - replaced
            changed += replaced
            unchanged += len(part) - len(new)
            bar.update(len(part) - len(new))
    if notices:
        engine.retract(lambda key, doi, state: worst((state, noticed_state(notices, key, doi))))
    engine.build(say)
    return Growth(added, changed, unchanged, engine.stats().papers)


def _filled_from(
    engine: Engine, papers: Mapping[str, Paper], stamps: Mapping[str, str]
) -> dict[str, Paper]:
    """Fill empty fields of changed papers from their records in the index."""
    changed = [
        key for key, paper in papers.items() if stamps.get(key) not in (None, paper_stamp(paper))
    ]
    stored = engine.fetch(changed) if changed else {}
    whole = dict(papers)
    for key, before in stored.items():
        whole[key] = filled(papers[key], before)
    return whole


def _with_known_notices(
    engine: Engine,
    papers: Mapping[str, Paper],
    indexed: Collection[str],
    notices: Mapping[str, str],
) -> dict[str, Paper]:
    """Mark papers, by id, with retraction notices of the index that they lack.

    For `indexed` papers these are in their earlier version, for new ones in the `notices`.
    """
    known = engine.retracted(list(papers))
    marked = {}
    for key, paper in papers.items():
        if key in indexed:
            state = known.get(key, "")
        else:
            state = noticed_state(notices, key, paper.doi)
        marked[key] = replace(paper, retracted=worst((paper.retracted, state)))
    return marked


def fill_store(
    papers: Iterable[Paper],
    encoder: PaperEncoder,
    shard: int,
    shards: int,
    *,
    progress: bool = False,
    batch: int = BATCH,
) -> int:
    """Encode one of `shards` parts of the papers into the store; return how many were encoded.

    Every process reads all papers and encodes every `shards`-th batch, so processes need no
    communication. A later run that indexes the papers finds the vectors in the store.
    """
    encoded = 0
    with Progress("papers" if progress else None, None) as bar:
        for number, part in enumerate(batches(papers, batch)):
            if number % shards == shard:
                encoded += encoder.encode(part, bar)[2]
            else:
                bar.update(len(part))
    return encoded


def grow_engine(location: str | Path, sources: Sequence[Source], model: Model = DEFAULT) -> Growth:
    """Write sources to the index at a location; a missing index is made."""
    dense = Dense(model)
    engine = open_for_writing(location, dense)
    try:
        return grow(engine, map(Paper, sources), dense)
    finally:
        engine.close()


def open_for_writing(
    location: str | Path,
    dense: Dense,
    bm25: BM25 | None = None,
    sentences: bool = True,
    vectors: bool = True,
) -> Engine:
    """Open an index for writing, or make an empty one, and lock it.

    Raises `UserError` if other settings than `bm25` made it.
    """
    if not is_engine(location):
        return Engine.create(location, IndexManifest.of(dense, bm25, sentences, vectors))
    engine = open_index(location)
    engine.lock()
    try:
        if bm25 is not None:
            engine.manifest.check_analyser(bm25, engine.location)
    except BaseException:
        engine.close()
        raise
    return engine


def re_encode(
    engine: Engine,
    dense: Dense,
    *,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
    batch: int = BATCH,
) -> Engine:
    """Encode an index's papers with another model into a second table; then swap the two.

    A stopped run resumes. The old table is kept for `undo_re_encoding` until the next such run.
    Abstention is not fitted to the new model. Raises `UserError` as `grow` does.
    """
    engine.lock()
    files, old = engine.files, engine.manifest
    manifest = IndexManifest.of(dense, old.bm25, old.sentences > 0, not old.encoded_first)
    if manifest.model_hash == old.model_hash:
        raise UserError(f"{engine.location}: the index already uses this model")
    if old.encoded_first:  # no vectors are stored
        old.write(files, PREVIOUS)
        _with_model(old, manifest).write(files)
        return open_index(files.uri)
    table = _free_table(files, manifest, old)
    new = _table_beside(files, replace(manifest, table=table))
    new.share_lock(engine)
    new.use(dense.encoder)
    total = engine.stats().papers
    with Progress("papers" if progress else None, total) as bar:
        _encode_rows(engine, new, dense, bar, batch)
    if new.stats().papers > total:  # papers were removed since the run that was stopped
        in_new: list[str] = []
        for rows in new.rows():
            in_new += [paper.source.id for paper in rows.papers]
        for part_ids in batches(in_new, batch):
            removed = set(part_ids).difference(engine.stamps(part_ids))
            new.delete(sorted(removed))
    new.build(say)
    count = new.stats().papers
    if count != total:
        raise UserError(f"{engine.location}: {count} of {total} papers were encoded; run it again")
    old.write(files, PREVIOUS)
    new.manifest.write(files)
    files.remove(NEXT)
    remove_tables(files, but=(old.table, table))
    return open_index(files.uri)


def _with_model(manifest: IndexManifest, made_by: IndexManifest) -> IndexManifest:
    """Return a manifest with the model and the abstention of another one."""
    return replace(
        manifest,
        encoders=made_by.encoders,
        model=made_by.model,
        rendering=made_by.rendering,
        dimensions=made_by.dimensions,
        abstain=made_by.abstain,
    )


def _table_beside(files: IndexFiles, manifest: IndexManifest) -> Engine:
    """Open the table that a stopped run left for this manifest, or make an empty one."""
    try:
        left = Engine(files, IndexManifest.read(files, NEXT), name=NEXT)
    except UserError:
        left = None
    if left is not None and left.manifest.table == manifest.table:
        return left
    return Engine.create_table(files, manifest, name=NEXT)


def _encode_rows(engine: Engine, new: Engine, dense: Dense, bar: Progress, batch: int) -> None:
    """Copy the papers of `engine` to `new`, with other vectors; papers in `new` are skipped."""
    made_by = new.manifest
    encoder = PaperEncoder(dense.encoder, made_by.rendering, dense.store, made_by.sentences > 0)
    for rows in engine.rows(batch):
        ids = [paper.source.id for paper in rows.papers]
        encoded = new.stamps(ids)
        missing = []
        for number, key in enumerate(ids):
            if encoded.get(key) != rows.stamps[number]:
                missing.append(number)
        bar.update(len(rows) - len(missing))
        if missing:
            part = rows.only(missing)
            vectors, sentences, _ = encoder.encode(part.papers, bar)
            new.upsert(replace(part, vectors=vectors, sentences=sentences))


def _free_table(files: IndexFiles, manifest: IndexManifest, old: IndexManifest) -> str:
    """Return a table's name for a model's vectors that no manifest in use has."""
    used = {old.table}
    if files.read(PREVIOUS) is not None:
        used.add(IndexManifest.read(files, PREVIOUS).table)
    name = f"{TABLE}-{manifest.model_hash}"
    if name in used:
        return f"{name}-2"
    return name


def remove_tables(files: IndexFiles, but: Sequence[str]) -> None:
    """Remove tables of papers that no manifest names, with the notes on their files."""
    with named_errors(files.uri):
        database = connection(files)
        for name in database.list_tables(limit=1000).tables:
            if name.partition("-")[0] == TABLE and name not in but:
                files.remove(f"{name}.files.json")
                database.drop_table(name)


def undo_re_encoding(engine: Engine) -> IndexManifest:
    """Return to the model before `re_encode`; the new vectors are kept for the next `re_encode`.

    Raises `InputError` if there was no `re_encode`.
    """
    engine.lock()
    if engine.files.read(PREVIOUS) is None:
        raise InputError(engine.location, reason="has no earlier model: there was no --re_encode")
    before = IndexManifest.read(engine.files, PREVIOUS)
    if before.table == engine.manifest.table:
        before = _with_model(engine.manifest, before)
    else:
        before = Engine.open(engine.files.uri, name=PREVIOUS).manifest  # checks its table
    engine.manifest.write(engine.files, PREVIOUS)
    before.write(engine.files)
    return before


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of at most `size` items."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
