"""bm25s's index, built and summed by whole arrays instead of document by document."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import bm25s
import numpy as np

from claim2source.retrieve.stage import floor_of_best

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
    def of(cls, token_ids: Sequence[Sequence[int]], terms: int) -> Counts:
        """Count the term ids (below `terms`) of every document."""
        lengths = np.fromiter(map(len, token_ids), dtype=np.int64, count=len(token_ids))
        owner = np.repeat(np.arange(len(token_ids)), lengths)
        flat = chain.from_iterable(token_ids)
        keys = np.fromiter(flat, dtype=np.int64, count=int(lengths.sum()))
        keys *= max(len(token_ids), 1)
        keys += owner
        pairs, frequencies = np.unique(keys, return_counts=True)
        term, document = np.divmod(pairs, max(len(token_ids), 1))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(term, minlength=terms))])
        return cls(
            indptr.astype(np.int64), document.astype(np.int32), frequencies.astype(np.int32),
            lengths,
        )  # fmt: skip

    @property
    def in_documents(self) -> np.ndarray:
        """Number of documents that hold each term, [terms]."""
        return np.diff(self.indptr)


class ArrayBM25(bm25s.BM25):
    """A `bm25s.BM25` that overrides how the index is built and how a claim is scored.

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
        corpus_token_ids: list[list[int]],
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
        self._row_of = {int(term): row for row, term in enumerate(common)}
        self._rows = np.zeros((len(common), documents), dtype=np.float32)
        for row, term in enumerate(common):
            postings = slice(counts.indptr[term], counts.indptr[term + 1])
            self._rows[row, counts.documents[postings]] = weights[postings]
        return {
            "data": weights, "indices": counts.documents, "indptr": counts.indptr,
            "num_docs": documents,
        }  # fmt: skip

    def get_scores_from_ids(
        self, query_tokens_ids: Sequence[int], weight_mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Scores of all documents, [documents] float32; a repeated term counts each time."""
        data, indices, indptr = (self.scores[name] for name in ("data", "indices", "indptr"))
        scores = np.zeros(self.scores["num_docs"], dtype=np.float32)
        for term in query_tokens_ids:
            row = self._row_of.get(term)
            if row is not None:
                scores += self._rows[row]
            else:
                start, end = indptr[term], indptr[term + 1]
                np.add.at(scores, indices[start:end], data[start:end])
        return scores if weight_mask is None else scores * weight_mask

    def matches(self, term_ids: Sequence[int], scores: np.ndarray, k: int) -> np.ndarray:
        """Positions of the documents with one of these terms, ascending, given their scores.

        Those that cannot be among the best `k` may be left out.
        """
        if self._lifts[list(term_ids)].all():
            if 0 < k < len(scores):
                least = floor_of_best(scores, k)
                if least > 0:
                    return np.flatnonzero(scores >= least)
            return np.flatnonzero(scores > 0)
        # A term in half of the documents may weigh nothing, or less.
        held = np.zeros(len(scores), dtype=bool)
        for term in term_ids:
            held[self.counts.documents[slice(*self.counts.indptr[term : term + 2])]] = True
        return np.flatnonzero(held)
