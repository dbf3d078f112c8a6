"""The sources nearest to each claim: dense and BM25 lists fused, a block of claims at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.records import Claim, Source
from claim2source.retrieve import BM25Config, BM25Index
from claim2source.retrieve.stage import candidate_positions, floor_of_best, tie_order, top_of

# Similarities held at a time (64 MiB): memory does not grow with the number of claims.
CELLS = 2**24


@dataclass(frozen=True)
class Window:
    """The fused list of each of a block of claims, best first.

    `positions` in the sources, -1 where a list has ended, `scores` float32, `in_dense` and
    `in_sparse`, [claims, depth] each; `similarities` [claims, sources], all dense scores.
    """

    positions: np.ndarray
    scores: np.ndarray
    in_dense: np.ndarray
    in_sparse: np.ndarray
    similarities: np.ndarray


@dataclass(frozen=True)
class _Lists:
    """One side's lists: positions (-1: none) and scores, [claims, depth] each, in any order."""

    positions: np.ndarray
    scores: np.ndarray


class Candidates:
    """All sources, searched both ways; as `retrieve.fuse` does it, without its runs."""

    def __init__(
        self,
        sources: Sequence[Source],
        vectors: np.ndarray,
        alpha: float,
        depth: int,
        bm25: BM25Config,
    ) -> None:
        self.ids = [source.id for source in sources]
        self.position = {source: i for i, source in enumerate(self.ids)}
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self._alpha, self._depth = alpha, min(depth, len(self.ids))
        # One place more: lists that have ended sort behind all others.
        self._order = np.append(tie_order(self.ids), len(self.ids))
        self._sparse = BM25Index(sources, bm25) if alpha > 0 else None

    def windows(
        self, claims: Sequence[Claim], vectors: np.ndarray
    ) -> Iterator[tuple[Sequence[Claim], Window]]:
        """Blocks of claims, in order, with what was found; `vectors` [claims, dimensions]."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        block = max(1, CELLS // max(len(self.ids), 1))
        for start in range(0, len(claims), block):
            part = claims[start : start + block]
            yield part, self._window(part, vectors[start : start + block] @ self.vectors.T)

    def _window(self, claims: Sequence[Claim], similarities: np.ndarray) -> Window:
        dense = self._dense(claims, similarities)
        sparse = None
        if self._sparse is not None:
            sparse = _Lists(*self._sparse.top(claims, self._depth))
        positions, scores, in_dense, in_sparse = self._fused(dense, sparse)
        order = np.lexsort((self._order[positions], -scores), axis=1)[:, : self._depth]
        positions, scores, in_dense, in_sparse = (
            np.take_along_axis(c, order, 1) for c in (positions, scores, in_dense, in_sparse)
        )
        positions = np.where(np.isneginf(scores), -1, positions)
        return Window(positions, scores, in_dense, in_sparse, similarities)

    def _dense(self, claims: Sequence[Claim], similarities: np.ndarray) -> _Lists:
        positions = np.full((len(claims), self._depth), -1, dtype=np.int64)
        scores = np.zeros((len(claims), self._depth), dtype=np.float32)
        for row, claim in enumerate(claims):
            if not self._depth:
                continue
            if claim.candidates is None:
                near = similarities[row]
                found = np.flatnonzero(near >= floor_of_best(near, self._depth))
            else:
                found = candidate_positions(claim, self.position)
            positions[row], scores[row] = top_of(
                similarities[row, found], found, self._depth, self._order
            )
        return _Lists(positions, scores)

    def _fused(
        self, dense: _Lists, sparse: _Lists | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Union of the lists: positions, fused scores (-inf: no entry), and who found it."""
        ended = len(self.ids)
        if sparse is None:
            found = dense.positions >= 0
            scores = np.where(found, dense.scores, -np.inf)
            return np.where(found, dense.positions, ended), scores, found, np.zeros_like(found)
        positions = np.concatenate([dense.positions, sparse.positions], axis=1)
        from_dense = np.arange(positions.shape[1]) < dense.positions.shape[1]
        raw = self._alpha == 1
        by_dense = np.pad(_normalised(dense), ((0, 0), (0, sparse.positions.shape[1])))
        by_sparse = np.pad(
            sparse.scores if raw else _normalised(sparse),
            ((0, 0), (dense.positions.shape[1], 0)),
        )  # fmt: skip
        order = np.argsort(positions, axis=1, kind="stable")
        positions = np.take_along_axis(positions, order, 1)
        by_dense = np.take_along_axis(by_dense, order, 1)
        by_sparse = np.take_along_axis(by_sparse, order, 1)
        found = positions >= 0
        in_dense = from_dense[order] & found
        in_sparse = ~from_dense[order] & found
        # A source found both ways stands twice in a row, dense first: the second is merged.
        twice = np.zeros_like(found)
        twice[:, 1:] = found[:, 1:] & (positions[:, 1:] == positions[:, :-1])
        first = np.roll(twice, -1, axis=1)
        by_sparse[first] = by_sparse[twice]
        in_sparse[first] = True
        if raw:
            found, fused = in_sparse, by_sparse
        else:
            fused = self._alpha * by_sparse + (1.0 - self._alpha) * by_dense
        scores = np.where(found & ~twice, fused, -np.inf).astype(np.float32)
        return np.where(found, positions, ended), scores, in_dense, in_sparse


def _normalised(lists: _Lists) -> np.ndarray:
    """Scores scaled to 0 to 1 within each list, float64; one of equal scores becomes 1."""
    found, scores = lists.positions >= 0, lists.scores.astype(np.float64)
    low = np.where(found, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    high = np.where(found, scores, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
    differs = high > low
    spread = np.where(differs, high - low, 1)
    return np.where(found, np.where(differs, (scores - np.where(differs, low, 0)) / spread, 1.0), 0)
