"""Find the sources nearest to each claim: dense and BM25 lists fused, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from claim2source.core.records import Claim, Source
from claim2source.search.bm25 import BM25, BM25Index
from claim2source.search.terms import Terms
from claim2source.search.topk import (
    SourceIds,
    sort_keys,
    take_top_rows,
    top_k_floors,
    unsorted_keys,
)

# Similarities in memory at a time (64 MiB) in large pools, however many claims there are.
CELLS = 2**24
# Claims compared at a time in other pools: with fewer the processor waits for the vectors.
BLOCK = 1024
# Similarities ranked at a time, so that they stay in the processor's cache.
PIECE = 2**21


@dataclass(frozen=True)
class Window:
    """Fused lists of a block of claims, best source first.

    `positions` in the sources (-1: the list has ended), `scores` float32, `in_dense` and
    `in_sparse`, [claims, depth] each; `similarities` [claims, sources] are all dense scores, until
    the next block. `sparse` is BM25's own list; None without BM25.
    """

    positions: np.ndarray
    scores: np.ndarray
    in_dense: np.ndarray
    in_sparse: np.ndarray
    similarities: np.ndarray
    sparse: Lists | None = None

    def lexical(
        self,
        rows: np.ndarray,
        positions: np.ndarray,
    ) -> np.ndarray:
        """Look up BM25's scores of sources of the lists, float32, NaN if it did not list one.

        `rows` [n] are the claims, `positions` [n] the sources.
        """
        scores = np.full(len(rows), np.nan, dtype=np.float32)
        if self.sparse is None or not len(rows):
            return scores
        keys, listed = self._sparse_keys
        if not len(keys):
            return scores

        sources = self.similarities.shape[1]
        wanted = rows.astype(np.int64) * sources + positions
        last = len(keys) - 1
        places = np.searchsorted(keys, wanted)
        places = np.minimum(places, last)
        is_listed = keys[places] == wanted
        listed_places = places[is_listed]
        scores[is_listed] = listed[listed_places]
        return scores

    @cached_property
    def _sparse_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a sorted number for every (claim, source) in BM25's lists, and its score."""
        sparse = self.sparse
        assert sparse is not None
        rows, columns = np.nonzero(sparse.positions >= 0)
        positions = sparse.positions[rows, columns]
        scores = sparse.scores[rows, columns]
        sources = self.similarities.shape[1]
        keys = rows * sources + positions.astype(np.int64)
        order = np.argsort(keys)
        return keys[order], scores[order]


@dataclass(frozen=True)
class Lists:
    """One retriever's lists, in any order: positions (-1: none), scores, [claims, depth]."""

    positions: np.ndarray
    scores: np.ndarray


class Candidates:
    """Search all sources by vectors and by BM25, and fuse as `search.fuse` does, without runs."""

    def __init__(
        self,
        sources: Sequence[Source],
        vectors: np.ndarray,
        alpha: float,
        depth: int,
        bm25: BM25,
    ) -> None:
        ids = [source.id for source in sources]
        count = len(sources)
        self.sources = SourceIds(ids)
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._alpha = alpha
        self._depth = min(depth, count)
        # One more position, so that the empty entries after a list's end sort last.
        self._order = np.append(self.sources.order, count)
        self._at = np.empty_like(self._order)
        self._at[self._order] = np.arange(len(self._order))
        self._sparse = None
        if alpha > 0:
            self._sparse = BM25Index(sources, bm25)
        # The column of every source in a dense list, by claim; -1: not in it.
        shape = (0, count + 1)
        self._columns = np.full(shape, -1, dtype=np.int32)

    def windows(
        self,
        claims: Sequence[Claim],
        vectors: np.ndarray,
    ) -> Iterator[tuple[Sequence[Claim], Window]]:
        """Yield blocks of claims, in order, with their lists; `vectors` [claims, dimensions]."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        sources = max(len(self.sources), 1)
        most = min(BLOCK, CELLS // sources)
        limit = max(1, most)
        most_ranked = max(1, PIECE // sources)
        piece = min(limit, most_ranked)
        # A multiple of the piece, so that no piece is small.
        block = limit - limit % piece
        terms = None
        if self._sparse is not None:
            terms = self._sparse.terms(claims)

        # Reused: the system would clear new memory for every block first.
        longest_block = min(block, len(claims))
        shape = (longest_block, len(self.sources))
        buffer = np.empty(shape, np.float32)
        for start in range(0, len(claims), block):
            part = vectors[start : start + block]
            output = buffer[: len(part)]
            similarities = np.matmul(part, self.vectors.T, out=output)
            for first in range(0, len(similarities), piece):
                near = similarities[first : first + piece]
                piece_start = start + first
                piece_end = piece_start + len(near)
                piece_claims = claims[piece_start:piece_end]
                piece_terms = None
                if terms is not None:
                    piece_terms = terms.part(piece_start, piece_end)
                yield piece_claims, self._window(piece_claims, near, piece_terms)

    def _window(
        self,
        claims: Sequence[Claim],
        similarities: np.ndarray,
        terms: Terms | None,
    ) -> Window:
        dense = self._dense(claims, similarities)
        sparse = None
        if self._sparse is not None:
            top = self._sparse.top(claims, self._depth, terms)
            sparse = Lists(*top)

        # The order of equal scores also holds the two flags.
        positions, scores, in_dense, in_sparse = self._fused(dense, sparse)
        flags = in_dense * 2 + in_sparse
        order = self._order[positions] * 4 + flags
        keys = sort_keys(scores, order)
        keys.sort(axis=1)
        best_keys = keys[:, : self._depth]
        scores, slots = unsorted_keys(best_keys)
        slots, flags = np.divmod(slots, 4)
        is_empty = np.isneginf(scores)
        positions = np.where(is_empty, -1, self._at[slots])
        return Window(
            positions=positions,
            scores=scores,
            in_dense=flags >= 2,
            in_sparse=flags % 2 == 1,
            similarities=similarities,
            sparse=sparse,
        )

    def _dense(
        self,
        claims: Sequence[Claim],
        similarities: np.ndarray,
    ) -> Lists:
        if not self._depth:
            shape = (len(claims), 0)
            no_positions = np.empty(shape, np.int64)
            no_scores = np.empty(shape, np.float32)
            return Lists(no_positions, no_scores)
        most_excluded = max(len(claim.excluded) for claim in claims)
        sources = similarities.shape[1]
        deeper = min(self._depth + most_excluded, sources)
        floors = top_k_floors(similarities, deeper)
        is_close = similarities >= floors[:, None]
        for row, claim in enumerate(claims):
            if claim.candidates is not None:
                candidates = self.sources.candidates(claim)
                is_close[row] = False
                is_close[row, candidates] = True
            if claim.excluded:
                excluded = self.sources.excluded(claim)
                is_close[row, excluded] = False
        order = self._order[:-1]
        top = take_top_rows(similarities, is_close, self._depth, order)
        return Lists(*top)

    def _fused(
        self,
        dense: Lists,
        sparse: Lists | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Unite the lists: positions, fused scores (-inf: no entry), masks of dense and sparse."""
        no_source = len(self.sources)
        is_listed = dense.positions >= 0
        if sparse is None:
            positions = np.where(is_listed, dense.positions, no_source)
            scores = np.where(is_listed, dense.scores, -np.inf)
            in_sparse = np.zeros_like(is_listed)
            return positions, scores, is_listed, in_sparse

        column = self._dense_columns(dense, sparse)
        twice = column >= 0
        single = (sparse.positions >= 0) & ~twice
        in_both = np.zeros_like(is_listed)
        by_both = np.zeros(is_listed.shape)
        is_sparse_alone = self._alpha == 1
        if is_sparse_alone:
            by_sparse = sparse.scores.astype(np.float64)
        else:
            by_sparse = _normalised(sparse)
        rows, _ = np.nonzero(twice)
        columns_of_both = column[twice]
        in_both[rows, columns_of_both] = True
        by_both[rows, columns_of_both] = by_sparse[twice]

        positions = np.concatenate([dense.positions, sparse.positions], axis=1)
        fused = np.concatenate([by_both, by_sparse], axis=1)
        none_dense = np.zeros_like(single)
        in_dense = np.concatenate([is_listed, none_dense], axis=1)
        in_sparse = np.concatenate([in_both, single], axis=1)
        if is_sparse_alone:
            is_member = in_sparse
        else:
            is_member = in_dense | in_sparse
            fused *= self._alpha
            width = is_listed.shape[1]
            dense_share = 1.0 - self._alpha
            fused[:, :width] += dense_share * _normalised(dense)
        scores = np.where(is_member, fused, -np.inf)
        scores = scores.astype(np.float32)
        positions = np.where(is_member, positions, no_source)
        return positions, scores, in_dense, in_sparse

    def _dense_columns(
        self,
        dense: Lists,
        sparse: Lists,
    ) -> np.ndarray:
        """Look up in which columns of the dense lists the sources of BM25's are; -1: in none."""
        claims = len(dense.positions)
        depth = dense.positions.shape[1]
        no_source = len(self.sources)
        if len(self._columns) < claims:
            shape = (claims, no_source + 1)
            self._columns = np.full(shape, -1, dtype=np.int32)
        columns = self._columns[:claims]
        places = np.arange(depth, dtype=np.int32)
        np.put_along_axis(columns, dense.positions, places, 1)
        columns[:, no_source] = -1
        column = np.take_along_axis(columns, sparse.positions, 1)
        # Clear only the cells that were written: filling a table of all sources takes longer.
        np.put_along_axis(columns, dense.positions, np.int32(-1), 1)
        return column


def _normalised(lists: Lists) -> np.ndarray:
    """Scale scores to 0 to 1 within each list, float64; a list of equal scores becomes 1."""
    is_listed = lists.positions >= 0
    scores = lists.scores.astype(np.float64)
    lows = np.where(is_listed, scores, np.inf)
    low = lows.min(axis=1, initial=np.inf, keepdims=True)
    highs = np.where(is_listed, scores, -np.inf)
    high = highs.max(axis=1, initial=-np.inf, keepdims=True)
    differs = high > low
    spread = np.where(differs, high - low, 1)
    start = np.where(differs, low, 0)
    shares = (scores - start) / spread
    scaled = np.where(differs, shares, 1.0)
    return np.where(is_listed, scaled, 0)
