"""Define an engine: an index that grows, whatever stores it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.datasets.papers import Paper
from claim2source.engines.manifest import IndexManifest
from claim2source.engines.rows import EVERYWHERE, Rows, Where
from claim2source.engines.snapshot import SIZE, write_snapshot
from claim2source.retrieve import FusionConfig, candidate_pool, fuse
from claim2source.retrieve.analyser import Analyser
from claim2source.retrieve.bm25 import NO_TERM
from claim2source.retrieve.dense import Dense, TextEncoder
from claim2source.retrieve.fuse import score_missing

# (id, score), best first.
Hits = list[tuple[str, float]]
Search = Callable[[Sequence[Claim], Where, int], Mapping[str, Hits]]


@dataclass(frozen=True)
class Stats:
    """Count what an index holds: papers, those written since the last build, and bytes on disk.

    `size` is None where the engine does not say.
    """

    papers: int
    unbuilt: int
    size: int | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """Hold what was found for claims: by terms, by vectors, and fused; and the claims' vectors."""

    lexical: Result
    dense: Result
    fused: Result
    vectors: Mapping[str, np.ndarray]


class Engine(ABC):
    """Store papers with their terms and vectors, and search them; it is an `Index` too.

    What is written counts once the call has returned: a process that is killed later loses none
    of it. One process writes at a time, from its first write (or `lock`) to `close`; others may
    search meanwhile.
    `where` names the engine in errors.
    """

    where: str
    manifest: IndexManifest
    device: str | None = None
    fusion: FusionConfig = FusionConfig()
    _encoder: TextEncoder | None = None

    @abstractmethod
    def lock(self) -> None:
        """Keep other writers out until `close`. Raises `UserError` where there is one."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call twice."""

    @abstractmethod
    def upsert(self, rows: Rows) -> None:
        """Add papers, and replace those whose ids are there."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> int:
        """Remove papers; return how many of them were there."""

    @abstractmethod
    def build(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Index what was written, so that scores are exact again; `say` is told what was measured.

        A search finds what was written before that too, with scores that differ a little.
        """

    @abstractmethod
    def note(self, **values: Any) -> None:
        """Change fields of the manifest, here and where the index is."""

    @abstractmethod
    def dense(self, vector: np.ndarray, k: int, where: Where = EVERYWHERE) -> Hits:
        """Find the best `k` papers by inner product with a vector [d]."""

    @abstractmethod
    def lexical(self, terms: Sequence[str], k: int, where: Where = EVERYWHERE) -> Hits:
        """Find the best `k` papers that hold one of the terms, by BM25 (`BM25Index`'s scores).

        A repeated term counts each time. How rare a term is and how long papers are on average
        is counted over the whole index, whatever `where` leaves out.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[str]) -> dict[str, Paper]:
        """Read papers by id; those that are not there are left out."""

    @abstractmethod
    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        """Read the `stamp_of` papers by id; those that are not there are left out."""

    @abstractmethod
    def sentences(self, ids: Sequence[str]) -> dict[str, tuple[str, np.ndarray]]:
        """Read the stamps of papers by id, and the vectors of their sentences, [n, d] float16.

        Those that are not there, or whose index keeps none, are left out.
        """

    @abstractmethod
    def rows(self, size: int = 2048) -> Iterator[Rows]:
        """Yield everything that is stored, `size` papers at a time."""

    @abstractmethod
    def stats(self) -> Stats:
        """Count what is stored."""

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

    def snapshot(self, folder: str | Path, progress: bool = False) -> int:
        """Write everything that is stored now to a folder; return the number of papers.

        `restore` makes an index of it, on any engine.
        """
        total = self.stats().papers
        return write_snapshot(self.manifest, self.rows(SIZE), total, Path(folder), progress)

    def save(self, folder: str | Path) -> None:
        """Write a snapshot."""
        self.snapshot(folder)


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
        raise UserError("a part of an engine is not written alone: take a snapshot of it all")
