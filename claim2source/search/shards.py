"""Search several indexes as one, with word counts over all of them.

The first papers of each index are scored by these counts, until no other paper can be among the
best. So the ranking is that of one index of all papers with the same weight of names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePath
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.errors import UserError
from claim2source.core.files import content_hash
from claim2source.core.run import Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.core.terminal import one_line
from claim2source.data.identity import filled
from claim2source.data.papers import Paper
from claim2source.search.copies import FIELDS, Copies, Record, paper_key, split_key
from claim2source.search.dense import TextEncoder, of_model
from claim2source.search.engine import Engine, open_index
from claim2source.search.lance import Hits
from claim2source.search.manifest import IndexManifest
from claim2source.search.rows import EVERYWHERE, SPLIT, Rows, Where
from claim2source.search.summed import ColumnCounts, WordWeights, add_counts
from claim2source.search.table import (
    NEW,
    PaperTable,
    SearchResults,
    Stats,
    WeighedWords,
    weighed_words,
)

log = logging.getLogger(__name__)

# Seconds after which an index that could not be read is tried again.
RETRY = 10.0
# Papers of each index to score first, per requested paper; then so many times more.
_MORE = 4
# Records of papers that are cached.
_MOST_RECORDS = 100_000
# Rounding of LanceDB's scores.
_SLACK = 1 + 1e-5
# Fields of a manifest that may differ between indexes.
_MEASURED = (
    "encoders model analyser papers partitions probes recall refined trained stale abstain "
    "sentences names translator table"
).split()
Value = TypeVar("Value")


class ShardError(UserError):
    """Raised if one of several indexes cannot be read."""

    def __init__(self, shard: Shard, reason: str) -> None:
        self.shard = shard
        super().__init__(reason)


class Shard:
    """One of several indexes, with the word counts of its version.

    `engine` is None while it cannot be read; `reason` has the error.
    """

    def __init__(self, number: int, name: str, location: str) -> None:
        self.number = number
        self.name = name
        self.location = location
        self.engine: Engine | None = None
        self.reason = ""
        self.tried = 0.0
        self._version = -1
        self._totals: dict[str, tuple[int, int]] = {}
        self._having: dict[tuple[str, str], int] = {}
        self._records: dict[str, Record] = {}

    def __repr__(self) -> str:
        return one_line(self, name=self.name, reason=self.reason)

    @property
    def opened(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def lose(self, reason: str) -> None:
        """Record that the index cannot be read."""
        self.engine = None
        self.reason = reason
        self.tried = time.monotonic()
        log.warning("not searched: %s", reason)

    def refresh(self) -> None:
        """Read the changes of other processes; these invalidate the counts."""
        self.opened.refresh()
        if self.opened.version != self._version:
            self._version = self.opened.version
            self._totals = {}
            self._having = {}
            self._records = {}

    def counts(self, parts: Sequence[WeighedWords]) -> dict[str, ColumnCounts]:
        """Count words by column of terms."""
        having: dict[str, dict[str, int]] = {}
        for column, words, _ in parts:
            own = having.setdefault(column, {})
            for word in words:
                own[word] = self._count(column, word)
        counts: dict[str, ColumnCounts] = {}
        for column, own in having.items():
            if column not in self._totals:
                self._totals[column] = self.opened.count_words(column)
            counts[column] = ColumnCounts(*self._totals[column], own)
        return counts

    def _count(self, column: str, word: str) -> int:
        key = (column, word)
        if key not in self._having:
            self._having[key] = self.opened.count_papers(column, word)
        return self._having[key]

    def records(self, ids: Sequence[str]) -> dict[str, Record]:
        """Read the identities of papers."""
        held = self._records
        if len(held) > _MOST_RECORDS:
            # Another thread may still read the old ones.
            held = self._records = {}
        missing = [paper for paper in ids if paper not in held]
        rows = self.opened.read_fields(missing, FIELDS)
        for paper, row in rows.items():
            held[paper] = Record.read(row)
        return {paper: held[paper] for paper in ids if paper in held}

    def key(self, paper: str) -> str:
        return paper_key(self.number, paper)

    def own(self, where: Where) -> Where | None:
        """Restrict a filter to this index's papers, by their ids; None if it has none of them."""
        if where.ids is None:
            return where
        ids = []
        for key in where.ids:
            number, paper = split_key(key)
            if number in (-1, self.number):
                ids.append(paper)
        if not ids:
            return None
        return replace(where, ids=tuple(ids))


@dataclass(frozen=True)
class WordQuery:
    """Words of a post to search for in several indexes, and the filter of papers.

    `weights` score papers by the counts of all indexes, `own` by those of each index, by number.
    """

    terms: Sequence[str]
    names: Sequence[str]
    names_weight: float
    where: Where
    weights: WordWeights
    own: Mapping[int, WordWeights]

    def best(self, shard: Shard, depth: int, scores: dict[str, float]) -> float:
        """Score the first `depth` papers of an index that have no score yet.

        Return the maximal score of its other papers.
        """
        where = shard.own(self.where)
        if where is None:
            return 0.0
        engine = shard.opened
        hits = engine.lexical(self.terms, depth, where, self.names, self.names_weight)
        new = [paper for paper, _ in hits if shard.key(paper) not in scores]
        columns = list(self.weights.weights)
        rows = engine.read_fields(new, columns)
        for paper, row in rows.items():
            scores[shard.key(paper)] = self.weights.score(row)
        if len(hits) < depth:
            return 0.0
        _, last = hits[-1]
        own = self.own[shard.number]
        return self.weights.highest(own, last * _SLACK)


class Shards(Engine):
    """Search several indexes of one model and analysis as one; they are only read.

    Ids of papers are keys, which `home` resolves. A paper in several indexes is ranked once, with
    its records merged. An index that cannot be read is left out and retried later; its name is in
    `lost`. Raises `UserError` if none is left. `others` are opened indexes whose scores are not
    comparable with these.
    """

    def __init__(self, shards: Sequence[Shard], others: Sequence[Shards] = ()) -> None:
        self.shards = tuple(sorted(shards, key=lambda shard: shard.number))
        self.others: tuple[Shards, ...] = tuple(others)
        self.names = tuple(shard.name for shard in self.shards)
        self.location = ", ".join(shard.location for shard in self.shards)
        self.at = None
        self._lock = None
        self._copies = Copies()
        self._placing = Lock()
        self._pool = ThreadPoolExecutor(len(self.shards))
        self._kind = ""
        self._summed: tuple[IndexManifest, ...] = ()
        for shard in self._live():
            self._kind = self._kind or comparable_kind(shard.opened.manifest)
        self.refresh()

    def __repr__(self) -> str:
        papers = self.manifest.papers
        return one_line(self, indexes=self.names, papers=papers, lost=self.lost)

    def _live(self) -> list[Shard]:
        return [shard for shard in self.shards if shard.engine is not None]

    def refresh(self) -> None:
        """Read the changes of other processes; retry indexes that could not be read."""
        for shard in self.shards:
            try:
                self._renew(shard)
            except UserError as error:
                shard.lose(str(error))
        live = self._live()
        self.lost = tuple(shard.name for shard in self.shards if shard.engine is None)
        if not live:
            raise UserError("; ".join(shard.reason for shard in self.shards))
        manifests = tuple(shard.opened.manifest for shard in live)
        if manifests != self._summed:
            self._summed = manifests
            self.manifest = summed_manifest(manifests)

    def _renew(self, shard: Shard) -> None:
        """Refresh an index, or from time to time retry one that could not be read."""
        if shard.engine is None:
            if time.monotonic() - shard.tried < RETRY:
                return
            shard.tried = time.monotonic()
            try:
                shard.engine = open_index(shard.location)
            except UserError as error:
                shard.reason = str(error)
                return
            log.warning("searched again: %s", shard.location)
        shard.refresh()
        kind = comparable_kind(shard.opened.manifest)
        if kind != self._kind:
            reason = "is no longer of the same kind as the others: restart"
            raise UserError(f"{shard.location}: {reason}")

    def _each(self, shards: Sequence[Shard], ask: Callable[[Shard], Value]) -> list[Value]:
        """Query indexes in parallel. Raises `ShardError`."""

        def asked(shard: Shard) -> Value:
            try:
                return ask(shard)
            except UserError as error:
                raise ShardError(shard, str(error)) from None

        return list(self._pool.map(asked, shards))

    def find(
        self, claims: Claims, k: int = 100, where: Where = EVERYWHERE, texts: Sequence[str] = ()
    ) -> SearchResults:
        """Rank papers like one index of all; an index that fails is left out."""
        posts = as_claims(claims)
        k = whole_number(k, "k")
        self.refresh()
        renewed: set[int] = set()
        while True:
            self._copies = Copies()
            try:
                return self._find(posts, k, where, texts)
            except ShardError as error:
                shard = error.shard
                if shard.number in renewed or not shard.opened._renewed():
                    shard.lose(str(error))
                renewed.add(shard.number)
                self.refresh()

    def lexical(
        self,
        terms: Sequence[str],
        k: int,
        where: Where = EVERYWHERE,
        names: Sequence[str] = (),
        weight: float | None = None,
    ) -> Hits:
        """Find the best `k` papers with one of the terms, by BM25 with counts over all indexes."""
        if weight is None:
            weight = self.manifest.names
        if k < 1 or not weighed_words(terms, names, weight):
            return []
        query = self._word_query(terms, names, weight, where)
        scores: dict[str, float] = {}
        searched = self._live()
        depth = k
        while True:
            ask = partial(_best_by_words, query=query, depth=depth, scores=scores)
            highest = self._each(searched, ask)
            hits = sorted(scores.items(), key=_by_score)
            listed = self._distinct(hits, k)
            floor = 0.0
            if len(listed) == k:
                _, floor = listed[-1]
            unfinished: list[Shard] = []
            for shard, score in zip(searched, highest, strict=True):
                if score > floor:
                    unfinished.append(shard)
            if not unfinished:
                return listed
            searched = unfinished
            depth *= _MORE

    def _word_query(
        self, terms: Sequence[str], names: Sequence[str], weight: float, where: Where
    ) -> WordQuery:
        parts = weighed_words(terms, names, weight)
        live = self._live()
        counts = self._each(live, lambda shard: shard.counts(parts))
        own: dict[int, WordWeights] = {}
        for shard, shard_counts in zip(live, counts, strict=True):
            own[shard.number] = WordWeights(parts, shard_counts)
        summed: dict[str, ColumnCounts] = {}
        columns = {part.column for part in parts}
        for column in columns:
            column_counts = [shard_counts[column] for shard_counts in counts]
            summed[column] = add_counts(column_counts)
        weights = WordWeights(parts, summed)
        return WordQuery(terms, names, weight, where, weights, own)

    def dense(
        self, vector: np.ndarray, k: int, where: Where = EVERYWHERE, exact: bool = False
    ) -> Hits:
        """Find the best `k` papers by inner product with a vector [d]."""

        def best(shard: Shard) -> Hits:
            own = shard.own(where)
            if own is None:
                return []
            hits = shard.opened.dense(vector, k, own, exact)
            return [(shard.key(paper), score) for paper, score in hits]

        if k < 1:
            return []
        live = self._live()
        hits: Hits = []
        for own in self._each(live, best):
            hits += own
        ordered = sorted(hits, key=_by_score)
        return self._distinct(ordered, k)

    def _distinct(self, hits: Hits, k: int) -> Hits:
        """Return the first `k` distinct papers."""
        listed: dict[int, tuple[str, float]] = {}
        step = max(1, k)
        for start in range(0, len(hits), step):
            part = hits[start : start + k]
            keys = [key for key, _ in part]
            records = self._records(keys)
            with self._placing:
                for key, score in part:
                    if key not in records:
                        continue
                    number = self._copies.place(key, records[key])
                    listed.setdefault(number, (key, score))
            if len(listed) >= k:
                break
        return list(listed.values())[:k]

    def _by_shard(self, keys: Sequence[str]) -> list[tuple[Shard, list[str]]]:
        """Group keys by their indexes, if these can be read."""
        by_number: dict[int, list[str]] = {}
        for key in keys:
            number, paper = split_key(key)
            ids = by_number.setdefault(number, [])
            ids.append(paper)
        groups: list[tuple[Shard, list[str]]] = []
        for shard in self._live():
            if shard.number in by_number:
                groups.append((shard, by_number[shard.number]))
        return groups

    def _records(self, keys: Sequence[str]) -> dict[str, Record]:
        records: dict[str, Record] = {}
        for shard, ids in self._by_shard(keys):
            try:
                own = shard.records(ids)
            except UserError as error:
                raise ShardError(shard, str(error)) from None
            records |= {shard.key(paper): record for paper, record in own.items()}
        return records

    def _joined(self, first: Result, second: Result) -> tuple[Result, Result]:
        """Replace each paper's key by that of its copy in the first index that lists one."""
        return self._renamed(first), self._renamed(second)

    def _renamed(self, result: Result) -> Result:
        run = result.run
        lists: dict[str, Hits] = {}
        for claim in run.claim_ids:
            hits: Hits = []
            for key, score in run.scored(claim).items():
                first_copy = self._copies.all(key)[0]
                hits.append((first_copy, score))
            lists[claim] = hits
        renamed = Run.from_lists(lists, pool=run.pool)
        return replace(result, run=renamed)

    def home(self, key: str) -> tuple[str, PaperTable, str]:
        number, paper = split_key(key)
        (shard,) = (own for own in self.shards if own.number == number)
        table = shard.engine or self
        return shard.name, table, paper

    def indexes(self) -> dict[str, Engine]:
        """Map names to the indexes that can be read, including `others`."""
        named = {shard.name: shard.opened for shard in self._live()}
        for group in self.others:
            named |= group.indexes()
        return named

    def fetch(self, ids: Sequence[str]) -> dict[str, Paper]:
        papers, _ = self.fetch_with_sentences(ids)
        return papers

    def fetch_with_sentences(
        self, ids: Sequence[str]
    ) -> tuple[dict[str, Paper], dict[str, np.ndarray]]:
        """Read papers by key, merged with their copies, and their sentences' stored vectors."""
        wanted: list[str] = []
        for key in ids:
            wanted += self._copies.all(key)
        papers: dict[str, Paper] = {}
        vectors: dict[str, np.ndarray] = {}
        for shard, own_ids in self._by_shard(wanted):
            try:
                own, sentences = shard.opened.fetch_with_sentences(own_ids)
            except UserError as error:
                shard.lose(str(error))
                self.lost = tuple(s.name for s in self.shards if s.engine is None)
                continue
            for paper_id, paper in own.items():
                key = shard.key(paper_id)
                source = replace(paper.source, id=key)
                papers[key] = replace(paper, source=source)
            if shard.opened.manifest.sentences == SPLIT:
                for paper_id, rows in sentences.items():
                    vectors[shard.key(paper_id)] = rows
        found: dict[str, Paper] = {}
        for key in ids:
            if key not in papers:
                continue
            merged = papers[key]
            for copy in self._copies.all(key):
                other = papers.get(copy, merged)
                merged = filled(merged, other)
            found[key] = merged
        return found, vectors

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        stamps: dict[str, str] = {}
        for shard, own_ids in self._by_shard(ids):
            own = shard.opened.stamps(own_ids)
            stamps |= {shard.key(paper): stamp for paper, stamp in own.items()}
        return stamps

    def retracted(self, ids: Sequence[str]) -> dict[str, str]:
        papers = self.fetch(ids)
        return {key: paper.retracted for key, paper in papers.items() if paper.retracted}

    def rows(self, size: int = 2048) -> Iterator[Rows]:
        """Yield all stored papers, including copies, with keys as ids."""
        for shard in self._live():
            for rows in shard.opened.rows(size):
                papers: list[Paper] = []
                for paper in rows.papers:
                    key = shard.key(paper.source.id)
                    source = replace(paper.source, id=key)
                    keyed = replace(paper, source=source)
                    papers.append(keyed)
                yield replace(rows, papers=papers)

    def stats(self) -> Stats:
        self.refresh()
        own = [shard.opened.stats() for shard in self._live()]
        return Stats(
            sum(stats.papers for stats in own),
            sum(stats.unbuilt for stats in own),
            sum(stats.size for stats in own),
        )

    @property
    def version(self) -> int:
        """Return `NEW` if no index has a paper; each index has its own versions."""
        return max((shard.opened.version for shard in self._live()), default=NEW)

    def use(self, encoder: TextEncoder) -> None:
        for shard in self._live():
            shard.opened.manifest.check_encoder(encoder, shard.location)
        self._encoder = encoder

    def lock(self) -> None:
        """Raise `UserError`, because several indexes are read-only."""
        raise UserError(f"{self.location}: several indexes are read-only")

    def close(self) -> None:
        """Release the indexes' resources; safe to call twice."""
        super().close()
        for shard in self._live():
            shard.opened.close()


def _best_by_words(shard: Shard, query: WordQuery, depth: int, scores: dict[str, float]) -> float:
    return query.best(shard, depth, scores)


def _by_score(hit: tuple[str, float]) -> float:
    return -hit[1]


def comparable_kind(manifest: IndexManifest) -> str:
    """Hash the properties that indexes with comparable scores share."""
    settings: dict[str, Any] = asdict(manifest)
    for name in _MEASURED:
        del settings[name]
    encoders = of_model(manifest.encoders)
    analysis = manifest.analyser["analysis"]
    return content_hash([settings, encoders, analysis])


def summed_manifest(manifests: Sequence[IndexManifest]) -> IndexManifest:
    """Merge the manifests of several indexes.

    Abstention is kept if all have the same. The weight of names is the mean over papers.
    """
    first = manifests[0]
    papers = sum(manifest.papers for manifest in manifests)
    weights = [manifest.papers / papers if papers else 1 / len(manifests) for manifest in manifests]
    names = sum(weight * own.names for weight, own in zip(weights, manifests, strict=True))
    same_abstain = all(manifest.abstain == first.abstain for manifest in manifests)
    translators = [own.translator for own in manifests if own.translator is not None]
    return replace(
        first,
        papers=papers,
        abstain=first.abstain if same_abstain else None,
        stale=any(manifest.stale for manifest in manifests),
        sentences=max(manifest.sentences for manifest in manifests),
        names=round(names, 9),
        translator=translators[0] if translators else None,
    )


def index_names(locations: Sequence[str]) -> list[str]:
    """Name indexes by the last part of their locations, or by all of it if parts are not unique."""
    ends = [PurePath(location.rstrip("/")).name for location in locations]
    names: list[str] = []
    for end, location in zip(ends, locations, strict=True):
        is_unique = bool(end) and ends.count(end) == 1
        names.append(end if is_unique else location)
    return names


def open_indexes(locations: Sequence[str], version: int | None = None) -> Engine:
    """Open an index, or several as one. Raises `UserError` if none can be opened.

    Indexes whose scores are not comparable with the first one's are in `others` of the result.
    """
    if len(locations) == 1:
        return open_index(locations[0], version)
    by_kind: dict[str, list[Shard]] = {}
    lost: list[Shard] = []
    for number, name in enumerate(index_names(locations)):
        shard = Shard(number, name, locations[number])
        try:
            shard.engine = open_index(shard.location)
        except UserError as error:
            shard.lose(str(error))
            lost.append(shard)
            continue
        kind = comparable_kind(shard.engine.manifest)
        group = by_kind.setdefault(kind, [])
        group.append(shard)
    if not by_kind:
        raise UserError("; ".join(shard.reason for shard in lost))
    first, *others = by_kind.values()
    return Shards([*first, *lost], [Shards(group) for group in others])
