"""bm25s's index, built and summed by whole arrays instead of document by document."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import bm25s
import numpy as np
from scipy.sparse import csr_array

from claim2source.retrieve.terms import Terms
from claim2source.retrieve.topk import floors_of_best

# A term in more than this share of the documents is kept as a full row: adding a row is
# several times faster than adding as many postings one by one.
_COMMON = 1 / 16
# rank_bm25's floor for terms in more than half of the documents, as a share of the mean idf.
_EPSILON = 0.25


@dataclass(frozen=True, eq=False)
class Counts:
    """Term frequencies by term: what BM25 needs of a corpus before k1 and b are chosen.

    `indptr` [terms + 1] int64 into `documents` and `frequencies` [postings], documents
    ascending within a term; `lengths` [documents] in terms.
    """

    indptr: np.ndarray
    documents: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, texts: Terms, terms: int) -> Counts:
        """Count the term ids (below `terms`) of every document."""
        ones = np.ones(len(texts.ids), dtype=np.int32)
        shape = (len(texts), terms)
        counted = csr_array((ones, texts.ids, _narrow(texts.bounds)), shape=shape).tocsc()
        counted.sum_duplicates()
        return cls(
            counted.indptr.astype(np.int64),
            counted.indices.astype(np.int32),
            counted.data,
            np.diff(texts.bounds),
        )

    @property
    def in_documents(self) -> np.ndarray:
        """Number of documents that hold each term, [terms]."""
        return np.diff(self.indptr)


class ArrayBM25(bm25s.BM25):
    """A `bm25s.BM25` whose index is built, and searched by many claims, in whole arrays.

    `okapi` weighs as rank_bm25's BM25Okapi does, else as Lucene; the arrays are bm25s's own.
    """

    def __init__(self, k1: float, b: float, okapi: bool) -> None:
        super().__init__(k1=k1, b=b, method="lucene")
        self.okapi = okapi

    def reweighted(self, k1: float, b: float) -> ArrayBM25:
        """The same corpus under another k1 and b; its counts are shared."""
        other = copy.copy(self)
        other.k1, other.b = k1, b
        other.scores = other._weighted()
        return other

    def build_index_from_ids(
        self,
        unique_token_ids: list[int],
        corpus_token_ids: Terms,
        show_progress: bool = True,
        leave_progress: bool = False,
    ) -> dict[str, Any]:
        """bm25s's arrays (data, indices, indptr by term), from term ids 0, 1, 2..."""
        self.counts = Counts.of(corpus_token_ids, len(unique_token_ids))
        self.nonoccurrence_array = None
        return self._weighted()

    def _weighted(self) -> dict[str, Any]:
        counts = self.counts
        documents = len(counts.lengths)
        held = counts.in_documents
        norm = self.k1 * (1 - self.b + self.b * counts.lengths / counts.lengths.mean())
        frequency = counts.frequencies.astype(np.float64)
        data = frequency / (norm[counts.documents] + frequency)
        if self.okapi:
            idf = np.log(documents - held + 0.5) - np.log(held + 0.5)
            idf[idf < 0] = _EPSILON * idf.mean()
            data *= self.k1 + 1
        else:
            idf = np.log1p((documents - held + 0.5) / (held + 0.5))
        data *= np.repeat(idf, held)
        self._lifts = idf > 0
        weights = data.astype(np.float32)
        common = np.flatnonzero(held > documents * _COMMON)
        self._row_of = np.full(len(held), -1, dtype=np.int32)
        self._row_of[common] = np.arange(len(common))
        self._rows = np.zeros((len(common), documents), dtype=np.float32)
        for row, term in enumerate(common):
            postings = slice(counts.indptr[term], counts.indptr[term + 1])
            self._rows[row, counts.documents[postings]] = weights[postings]
        shape = (len(held), documents)
        pointers = _narrow(counts.indptr)
        self._postings = csr_array((weights, counts.documents, pointers), shape=shape)
        return {
            "data": weights,
            "indices": counts.documents,
            "indptr": counts.indptr,
            "num_docs": documents,
        }

    def scores_of(self, claims: Terms) -> np.ndarray:
        """Scores of all documents for every claim, [claims, documents] float32.

        A repeated term counts each time.
        """
        rare = _asked(claims.where(self._row_of[claims.ids] < 0), len(self._row_of))
        scores: np.ndarray = (rare @ self._postings).toarray()
        if len(self._rows):
            scores += _asked(claims.numbered(self._row_of), len(self._rows)) @ self._rows
        return scores

    def matching(self, claims: Terms, scores: np.ndarray, k: int) -> np.ndarray:
        """Which documents hold one of a claim's terms, bool [claims, documents], given the scores.

        Those that cannot be among the best `k` may be left out.
        """
        found: np.ndarray = scores > 0
        if 0 < k < scores.shape[1]:
            found &= scores >= floors_of_best(scores, k)[:, None]
        # A term in half of the documents may weigh nothing, or less.
        for row in np.unique(claims.owners[~self._lifts[claims.ids]]):
            for term in claims.ids[claims.bounds[row] : claims.bounds[row + 1]]:
                held = slice(self.counts.indptr[term], self.counts.indptr[term + 1])
                found[row, self.counts.documents[held]] = True
        return found


def _asked(claims: Terms, terms: int) -> csr_array:
    """How often each claim asks for each term, [claims, terms]."""
    ones = np.ones(len(claims.ids), dtype=np.float32)
    return csr_array((ones, claims.ids, _narrow(claims.bounds)), shape=(len(claims), terms))


def _narrow(pointers: np.ndarray) -> np.ndarray:
    """As int32 where they fit: SciPy copies all indices to the wider of the two types."""
    return pointers.astype(np.int32) if pointers[-1] < 2**31 else pointers
