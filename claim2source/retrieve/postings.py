"""Weigh and sum BM25's postings in whole arrays, for many claims at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from claim2source.retrieve.terms import Terms
from claim2source.retrieve.topk import floors_of_best

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# A term in more than this share of the documents is kept as a full row: adding a row is
# several times faster than adding as many postings one by one.
_COMMON = 1 / 16
# rank_bm25's floor for terms in more than half of the documents, as a share of the mean idf.
_EPSILON = 0.25
# The smallest number above 0.
_LEAST = np.nextafter(np.float32(0), np.float32(1))


@dataclass(frozen=True, eq=False)
class Counts:
    """Term frequencies by term: what BM25 needs of the sources before k1 and b are chosen.

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
        counted = _csr(ones, texts.ids, texts.bounds, (len(texts), terms)).tocsc()
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

    def idf(self, okapi: bool) -> np.ndarray:
        """Inverse document frequency of each term, by rank_bm25's formula or by Lucene's."""
        held, documents = self.in_documents, len(self.lengths)
        if not okapi:
            return np.log1p((documents - held + 0.5) / (held + 0.5))
        idf = np.log(documents - held + 0.5) - np.log(held + 0.5)
        idf[idf < 0] = _EPSILON * idf.mean()
        return idf

    def weights(self, k1: float, b: float, okapi: bool) -> np.ndarray:
        """What each posting adds to a score, [postings] float32."""
        norm = k1 * (1 - b + b * self.lengths / self.lengths.mean())
        frequency = self.frequencies.astype(np.float64)
        data = frequency / (norm[self.documents] + frequency)
        if okapi:
            data *= k1 + 1
        data *= np.repeat(self.idf(okapi), self.in_documents)
        return data.astype(np.float32)


class Postings:
    """Score sources by the weights of their terms, as rank_bm25 (`okapi`) or Lucene does.

    `weights` are the counts' own, if they are known.
    """

    def __init__(
        self, counts: Counts, k1: float, b: float, okapi: bool, weights: np.ndarray | None = None
    ) -> None:
        self.counts = counts
        self.weights = counts.weights(k1, b, okapi) if weights is None else weights
        held, documents = counts.in_documents, len(counts.lengths)
        self._lifts = counts.idf(okapi) > 0
        common = np.flatnonzero(held > documents * _COMMON)
        self._row_of = np.full(len(held), -1, dtype=np.int32)
        self._row_of[common] = np.arange(len(common))
        self._rows = np.zeros((len(common), documents), dtype=np.float32)
        for row, term in enumerate(common):
            postings = slice(counts.indptr[term], counts.indptr[term + 1])
            self._rows[row, counts.documents[postings]] = self.weights[postings]
        shape = (len(held), documents)
        self._postings = _csr(self.weights, counts.documents, counts.indptr, shape)

    def scores_of(self, claims: Terms) -> np.ndarray:
        """Scores of all documents for every claim, [claims, documents] float32.

        A repeated term counts each time.
        """
        rare = claims.where(self._row_of[claims.ids] < 0)
        # The postings of a claim's terms one after another are a row of repeated columns.
        found = self._postings[rare.ids]
        shape = len(claims), len(self.counts.lengths)
        held = _csr(found.data, found.indices, found.indptr[rare.bounds], shape)
        scores: np.ndarray = held.toarray()
        if len(self._rows):
            scores += _asked(claims.numbered(self._row_of), len(self._rows)) @ self._rows
        return scores

    def matching(self, claims: Terms, scores: np.ndarray, k: int) -> np.ndarray:
        """Mark the documents that hold one of a claim's terms, bool [claims, documents].

        Documents that cannot be among the best `k` by `scores` may be left out.
        """
        if 0 < k < scores.shape[1]:
            least = np.maximum(floors_of_best(scores, k), _LEAST)
            found: np.ndarray = scores >= least[:, None]
        else:
            found = scores > 0
        # A term in half of the documents may weigh nothing, or less.
        for row in np.unique(claims.owners[~self._lifts[claims.ids]]):
            for term in claims.ids[claims.bounds[row] : claims.bounds[row + 1]]:
                held = slice(self.counts.indptr[term], self.counts.indptr[term + 1])
                found[row, self.counts.documents[held]] = True
        return found


def _asked(claims: Terms, terms: int) -> csr_array:
    """How often each claim asks for each term, [claims, terms]."""
    ones = np.ones(len(claims.ids), dtype=np.float32)
    return _csr(ones, claims.ids, claims.bounds, (len(claims), terms))


def _csr(
    data: np.ndarray, indices: np.ndarray, pointers: np.ndarray, shape: tuple[int, int]
) -> csr_array:
    # Here, since training on mined negatives needs no SciPy.
    from scipy.sparse import csr_array

    # SciPy copies all indices to the wider of the two types: pointers stay int32 where they fit.
    if pointers[-1] < 2**31:
        pointers = pointers.astype(np.int32)
    return csr_array((data, indices, pointers), shape=shape)
