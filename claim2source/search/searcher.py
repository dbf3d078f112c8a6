"""Search an index by terms and by vectors at once, and fuse the two.

An index without stored vectors encodes the first papers by terms at search time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Failure, Result, Run
from claim2source.data.papers import Paper
from claim2source.data.store import Store
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import NO_TERM
from claim2source.search.dense import TextEncoder
from claim2source.search.divided import VectorTable
from claim2source.search.fuse import FusionConfig, fuse, score_missing
from claim2source.search.lance import Hits
from claim2source.search.names import name_terms
from claim2source.search.on_demand import (
    PaperVectors,
    UnencodedError,
    encoding,
    rank_first,
    unranked,
)
from claim2source.search.rows import Where
from claim2source.search.table import SearchPart, SearchResults

# Weight of terms for claims in another language than the papers', without a translation: few of
# their words match. Chosen on the demo's train posts (docs/log.md).
UNTRANSLATED_ALPHA = 0.4


class Searcher(VectorTable):
    """Rank the papers of a table for claims."""

    fusion: FusionConfig = FusionConfig()
    # Caches the vectors of papers that are encoded for a post.
    store: Store | None = None
    _on_demand: PaperVectors | None = None

    @property
    @abstractmethod
    def encoder(self) -> TextEncoder:
        """Return the encoder of claims."""

    def store_encoded(self) -> None:
        """Write vectors of papers that were encoded for a post to the store, if there is one."""
        if self._on_demand is not None:
            self._on_demand.flush()

    def _find(
        self, posts: Sequence[Claim], k: int, where: Where, texts: Sequence[str]
    ) -> SearchResults:
        depth = max(self.fusion.depth, k)
        vectors: dict[str, np.ndarray] = {}
        of_texts: dict[str, np.ndarray] = dict.fromkeys(texts, np.empty(0))
        by_vectors = partial(self._search_by_vectors, vectors, of_texts)
        lexical = SearchPart(self._by_terms, where)
        dense = SearchPart(by_vectors, where)
        # The term search runs while the claims are encoded; neither holds the GIL for long.
        with ThreadPoolExecutor(1) as pool:
            by_terms = pool.submit(lexical.search, posts, depth)
            reason = ""
            if self.manifest.encoded_first:
                reason = self._try_to_encode(vectors, of_texts, posts)
                first = by_terms.result()
                second, reason = self._rank_first(posts, first.run, vectors, reason)
            else:
                second = dense.search(posts, depth)
                first = by_terms.result()
        first, second = self._joined(first, second)
        failures = []
        for claim in posts:
            if not first.sources(claim.id, 1):
                failures.append(Failure(claim.id, NO_TERM))
        first = replace(first, failures=tuple(failures))
        scored = None
        if self.fusion.missing == "scored" and not reason:
            scored = (
                score_missing(lexical, posts, first.run, second.run),
                # If papers are encoded now, all papers of the term search are ranked.
                score_missing(dense, posts, second.run, first.run),
            )
        language = self.manifest.bm25.language
        untranslated = [c.id for c in posts if c.lang != language and not c.translation]
        alphas = dict.fromkeys(untranslated, UNTRANSLATED_ALPHA)
        own = alphas if self.fusion == FusionConfig() else None
        fused = fuse(first, second, self.fusion, k=k, scored=scored, alphas=own)
        if reason:
            vectors = {}
        return SearchResults(first, second, fused, vectors, of_texts, alphas, reason)

    def _by_terms(self, claims: Sequence[Claim], where: Where, k: int) -> Mapping[str, Hits]:
        self.manifest.check_analyser(self.manifest.bm25, self.location)
        analyser = Analyser(self.manifest.post_terms)
        hits: dict[str, Hits] = {}
        for claim in claims:
            terms, names = analyser.claim(claim), name_terms(claim.text)
            hits[claim.id] = self.lexical(terms, k, where.within(claim.candidates), names)
        return hits

    def _search_by_vectors(
        self,
        vectors: dict[str, np.ndarray],
        of_texts: dict[str, np.ndarray],
        claims: Sequence[Claim],
        where: Where,
        k: int,
    ) -> Mapping[str, Hits]:
        """Search by the claims' vectors, which are first encoded together with further texts."""
        if not vectors:
            self._encode_claims(vectors, of_texts, claims)
        hits: dict[str, Hits] = {}
        for claim in claims:
            hits[claim.id] = self.dense(vectors[claim.id], k, where.within(claim.candidates))
        return hits

    def _encode_claims(
        self,
        vectors: dict[str, np.ndarray],
        of_texts: dict[str, np.ndarray],
        claims: Sequence[Claim],
    ) -> None:
        texts = [*self.manifest.post_rendering.claim_texts(claims), *of_texts]
        encoded, _ = self.encoder.encode(texts, "claim", store=None, progress=None)
        ids = [claim.id for claim in claims]
        vectors.update(zip(ids, encoded[: len(ids)], strict=True))
        of_texts.update(zip(of_texts, encoded[len(ids) :], strict=True))

    def encode_papers(self, texts: Sequence[str]) -> np.ndarray:
        """Encode texts of papers, [texts, d]; earlier vectors are cached by text."""
        encoder = self.encoder
        if self._on_demand is None or self._on_demand.encoder is not encoder:
            self._on_demand = PaperVectors(encoder, self.store)
        return self._on_demand.encode(texts)

    def _try_to_encode(
        self,
        vectors: dict[str, np.ndarray],
        of_texts: dict[str, np.ndarray],
        claims: Sequence[Claim],
    ) -> str:
        """Encode claims; return the reason of a failure, or ""."""
        try:
            with encoding():
                self._encode_claims(vectors, of_texts, claims)
        except UnencodedError as error:
            return str(error)
        return ""

    def _rank_first(
        self,
        claims: Sequence[Claim],
        listed: Run,
        vectors: Mapping[str, np.ndarray],
        reason: str = "",
    ) -> tuple[Result, str]:
        """Re-rank the first papers of the term search by their vectors, which are computed now.

        If claims or papers cannot be encoded, nothing is ranked, and the reason is returned.
        """
        if reason:
            return unranked(claims, reason), reason
        count = self.manifest.encoded_first
        if self.fusion.missing == "scored":
            count = len(listed)
        ids: dict[str, None] = {}
        for claim in claims:
            ids.update(dict.fromkeys(listed.sources(claim.id, count)))

        def encode(papers: Sequence[Paper]) -> np.ndarray:
            sources = [paper.source for paper in papers]
            return self.encode_papers(self.manifest.rendering.source_texts(sources))

        papers = self.fetch(list(ids))
        try:
            return rank_first(claims, listed, count, papers, vectors, encode), ""
        except UnencodedError as error:
            return unranked(claims, str(error)), str(error)
