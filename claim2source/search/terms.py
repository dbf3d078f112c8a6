"""Analyse texts into term ids, as bm25s does; weigh and sum the postings of terms."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, compress, count, islice, repeat
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.search.topk import top_k_floors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# bm25s's tokens, and word boundaries.
_TOKENS = re.compile(r"\b\w\w+\b|\n").findall
_NONE = np.empty(0, dtype=np.int32)
# Texts to split at a time: the words of all texts would need several times their memory.
_SPLIT = 2**14
# A term in more than this share of the documents is stored as a full row: adding a row is several
# times faster than adding as many postings one by one.
_COMMON = 1 / 16
# rank_bm25's floor for terms in more than half of the documents, as a share of the mean idf.
_EPSILON = 0.25
# The smallest number above 0.
_SMALLEST = np.nextafter(np.float32(0), np.float32(1))


def import_bm25s() -> ModuleType:
    """Import bm25s with JAX hidden, which is not needed.

    On import bm25s computes with JAX, which then takes three quarters of a GPU's memory, or fails
    if a training uses it.
    """
    if "bm25s" in sys.modules or "jax" in sys.modules:
        return import_module("bm25s")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        return import_module("bm25s")
    finally:
        del sys.modules["jax"]


@dataclass(frozen=True, eq=False)
class Terms:
    """Term ids of texts, in text order, with repeats.

    Text i has `ids[bounds[i] : bounds[i + 1]]`; `ids` int32, `bounds` int64 [texts + 1].
    """

    ids: np.ndarray
    bounds: np.ndarray

    @classmethod
    def joined(cls, texts: Sequence[np.ndarray]) -> Terms:
        ids = np.concatenate([_NONE, *texts])
        lengths = [len(text) for text in texts]
        return cls(ids, _bounds(lengths))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def owners(self) -> np.ndarray:
        """Return the number of every id's text, [ids]."""
        numbers = np.arange(len(self))
        lengths = np.diff(self.bounds)
        return np.repeat(numbers, lengths)

    def part(self, start: int, end: int) -> Terms:
        bounds = self.bounds[start : end + 1]
        first = bounds[0]
        last = bounds[-1]
        ids = self.ids[first:last]
        return Terms(ids, bounds - first)

    def split(self) -> list[np.ndarray]:
        starts = self.bounds[:-1]
        ends = self.bounds[1:]
        parts = []
        for start, end in zip(starts, ends, strict=True):
            parts.append(self.ids[start:end])
        return parts

    def select(self, mask: np.ndarray) -> Terms:
        """Keep the ids where `mask` (bool [ids]) is true."""
        kept = np.cumsum(mask)
        before = np.concatenate([[0], kept])
        ids = self.ids[mask]
        return Terms(ids, before[self.bounds])

    def numbered(self, number_of: np.ndarray) -> Terms:
        """Replace id i by number_of[i]; drop ids numbered below 0."""
        numbers = number_of.astype(np.int32)
        ids = numbers[self.ids]
        terms = Terms(ids, self.bounds)
        return terms.select(ids >= 0)


def _bounds(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    counts = np.array(lengths, dtype=np.int64)
    ends = np.cumsum(counts)
    return np.concatenate([[0], ends])


class Analysis:
    """Analyse texts into the ids of the sources' terms.

    With `whole_words` terms are the words between white space. With `at_spaces` they are the parts
    of `split(" ")`: line breaks do not separate words, and there is an empty term between two
    spaces. Otherwise they are those of `bm25s.tokenize`, without stop words, and stemmed if there
    is a `stemmer` (PyStemmer's). A `speller` normalises spellings before texts are split into
    words. A token never spans white space, so every distinct word is analysed once: ten thousand
    abstracts mostly repeat their words.
    """

    def __init__(
        self,
        whole_words: bool,
        stop_words: Iterable[str],
        stemmer: Any | None,
        speller: Callable[[str], str] | None = None,
        *,
        at_spaces: bool = False,
    ) -> None:
        self._whole_words = whole_words
        self._stop_words = set(stop_words)
        self._stemmer = stemmer
        self._speller = speller
        self._at_spaces = at_spaces
        self.vocabulary: dict[str, int] = {}

    def sources(self, texts: Iterable[str]) -> Terms:
        """Analyse all sources; the `vocabulary` of their terms also numbers claims' terms."""
        split, of_word = self._number_source_terms(texts)
        return _expanded(split, of_word)

    def counted_sources(self, texts: Iterable[str]) -> Counts | None:
        """Analyse all sources as `sources` does, and count their terms; None without any term."""
        split, of_word = self._number_source_terms(texts)
        terms = len(self.vocabulary)
        if not terms:
            return None
        return Counts.of(split, of_word, terms)

    def _number_source_terms(self, texts: Iterable[str]) -> tuple[Terms, Terms]:
        """Number each text's words, and each word's terms."""
        tokens, split, of_word = self._number_tokens(texts)
        is_term, stems = self._stems(tokens, self._stop_words)
        self.vocabulary = {}
        token_terms = np.full(len(tokens), -1, np.int32)
        token_terms[is_term] = _numbers(stems, self.vocabulary)
        word_terms = of_word.numbered(token_terms)
        return split, word_terms

    def claims(
        self,
        texts: Iterable[str],
        stop_words: Iterable[str],
    ) -> Terms:
        """Analyse claims into terms that the sources also have.

        `stop_words` and the sources' own stop words are removed.
        """
        tokens, split, of_word = self._number_tokens(texts)
        left_out = self._stop_words.union(stop_words)
        is_term, stems = self._stems(tokens, left_out)
        numbers = map(self.vocabulary.get, stems, repeat(-1))
        token_terms = np.full(len(tokens), -1, np.int32)
        token_terms[is_term] = np.fromiter(numbers, np.int32, len(stems))
        word_terms = of_word.numbered(token_terms)
        return _expanded(split, word_terms)

    def _stems(
        self,
        tokens: list[str],
        left_out: set[str],
    ) -> tuple[np.ndarray, list[str]]:
        """Return a mask of the tokens to keep, bool [tokens], and their stems."""
        is_left_out = map(left_out.__contains__, tokens)
        is_term = ~np.fromiter(is_left_out, bool, len(tokens))
        terms = list(compress(tokens, is_term))
        if self._stemmer:
            return is_term, self._stemmer.stemWords(terms)
        return is_term, terms

    def _number_tokens(self, texts: Iterable[str]) -> tuple[list[str], Terms, Terms]:
        """List the distinct tokens; number each text's words, and each word's tokens."""
        if self._at_spaces:
            return _tokens_at_spaces(texts)
        if self._speller is not None:
            texts = map(self._speller, texts)
        lower = not self._whole_words
        words, split = _words(texts, lower)
        if self._whole_words:
            parts = list(map(str.split, words))
            tokens, of_word = _numbered_parts(parts)
        else:
            tokens, of_word = _tokens(words)
        return tokens, split, of_word


def _numbered_parts(parts: Sequence[list[str]]) -> tuple[list[str], Terms]:
    """List the distinct words of texts that are split into words; number each text's words."""
    number_of: dict[str, int] = {}
    ids = _numbers(list(chain.from_iterable(parts)), number_of)
    lengths = list(map(len, parts))
    bounds = _bounds(lengths)
    return list(number_of), Terms(ids, bounds)


def _tokens(words: Sequence[str]) -> tuple[list[str], Terms]:
    """List the distinct tokens of distinct words; number each word's tokens."""
    # Most words are one token; a pattern splits the others.
    is_alphanumeric = map(str.isalnum, words)
    single = np.fromiter(is_alphanumeric, bool, len(words))
    letters = map(len, words)
    single &= np.fromiter(letters, np.int64, len(words)) > 1
    singles = list(compress(words, single))
    others = [*compress(words, ~single), ""]
    pieces: list[str] = _TOKENS("\n".join(others))
    equal_breaks = map("\n".__eq__, pieces)
    is_end = np.fromiter(equal_breaks, bool, len(pieces))
    ends = np.flatnonzero(is_end)
    lengths = single.astype(np.int64)
    distances = np.diff(ends, prepend=-1)
    lengths[~single] = distances - 1

    # The tokens of single words come first in the vocabulary, whose order has no meaning.
    number_of = dict(zip(singles, count(), strict=False))
    total = lengths.sum()
    ids = np.empty(total, np.int32)
    of_single = np.repeat(single, lengths)
    ids[of_single] = np.arange(len(singles))
    other_tokens = [token for token in pieces if token != "\n"]
    ids[~of_single] = _numbers(other_tokens, number_of)
    bounds = _bounds(lengths)
    return list(number_of), Terms(ids, bounds)


def _tokens_at_spaces(texts: Iterable[str]) -> tuple[list[str], Terms, Terms]:
    """Split texts at single spaces; every word is one token."""
    parts = [text.split(" ") for text in texts]
    tokens, split = _numbered_parts(parts)
    ids = np.arange(len(tokens), dtype=np.int32)
    bounds = np.arange(len(tokens) + 1)
    of_word = Terms(ids, bounds)
    return tokens, split, of_word


def _numbers(
    words: list[str],
    number_of: dict[str, int],
) -> np.ndarray:
    """Look up the numbers of words, int32; new ones get the next numbers."""
    numbers = (number_of.setdefault(word, len(number_of)) for word in words)
    return np.fromiter(numbers, np.int32, len(words))


def _expanded(split: Terms, of_word: Terms) -> Terms:
    # Imported here, because training on mined negatives needs neither this nor Arrow.
    from scipy.sparse import csr_array

    highest = int(of_word.ids.max(initial=0))
    shape = (len(of_word), highest + 1)
    units = np.ones(len(of_word.ids), dtype=np.int8)
    content = (units, of_word.ids, of_word.bounds)
    terms_of_words = csr_array(content, shape=shape)
    expanded = terms_of_words[split.ids]
    pointers = expanded.indptr.astype(np.int64)
    bounds = pointers[split.bounds]
    return Terms(expanded.indices, bounds)


def _words(
    texts: Iterable[str],
    lower: bool,
) -> tuple[list[str], Terms]:
    """Split texts at ASCII white space: the distinct words, and each text's words by number.

    Words may be empty, and may contain white space of other scripts, but not at their ends.
    """
    # Arrow numbers millions of words several times faster than Python.
    import pyarrow

    number_of: dict[str, int] = {}
    blocks = [Terms.joined([])]
    remaining = iter(texts)
    while part := list(islice(remaining, _SPLIT)):
        array = _text_array(part)
        _, buffer, letters = array.buffers()
        bound_count = len(part) + 1
        bounds = np.frombuffer(buffer, np.int64, bound_count)
        end = bounds[-1]
        content = np.frombuffer(letters or b"", np.uint8, end)
        starts = _starts(content, bounds)

        # A word extends to the next one's start, so that no text is copied.
        offsets = pyarrow.py_buffer(starts)
        split = pyarrow.LargeStringArray.from_buffers(
            len(starts) - 1,
            offsets,
            letters,
        )
        words = split.dictionary_encode()
        distinct = map(str.strip, words.dictionary.to_pylist())
        if lower:
            distinct = map(str.lower, distinct)
        numbers = _numbers(list(distinct), number_of)
        indices = np.asarray(words.indices)
        ids = numbers[indices]
        word_bounds = np.searchsorted(starts, bounds)
        blocks.append(Terms(ids, word_bounds))

    ids = np.concatenate([terms.ids for terms in blocks])
    lengths = np.concatenate([np.diff(terms.bounds) for terms in blocks])
    joined = Terms(ids, _bounds(lengths))
    return list(number_of), joined


def _text_array(texts: list[str]) -> Any:
    """Convert texts to an Arrow array."""
    import pyarrow

    kind = pyarrow.large_string()
    try:
        return pyarrow.array(texts, kind)
    except UnicodeEncodeError:
        # An unpaired surrogate, which loaders refuse, is not a letter.
        encoded: list[str] = []
        for text in texts:
            content = text.encode("utf-8", "replace")
            encoded.append(content.decode("utf-8"))
        return pyarrow.array(encoded, kind)


def _starts(
    letters: np.ndarray,
    bounds: np.ndarray,
) -> np.ndarray:
    """Find the starts of words in the UTF-8 (uint8) of texts, followed by the end of all.

    `bounds` [texts + 1] are those of the texts: a word starts there even without white space.
    """
    # In ASCII, str.split splits at 9 to 13 and 28 to 32.
    blank = letters - np.uint8(9) < 5
    blank |= letters - np.uint8(28) < 5
    starts = np.append(False, blank)
    starts[bounds] = True
    starts[:-1] &= ~blank
    return np.flatnonzero(starts)


@dataclass(frozen=True, eq=False)
class Counts:
    """Term frequencies by term: all that BM25 needs of the sources, independent of k1 and b.

    `indptr` [terms + 1] int64 into `documents` and `frequencies` [postings], documents
    ascending within a term; `lengths` [documents] in terms.
    """

    indptr: np.ndarray
    documents: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(
        cls,
        texts: Terms,
        of_word: Terms,
        terms: int,
    ) -> Counts:
        """Count the terms of every document, by the numbers of its words and of their terms."""
        of_text = _occurrences(texts, len(of_word), np.int32)
        by_word = _occurrences(of_word, terms, np.int32)
        # The product sums repeats, without a list of every document's terms.
        counts = (of_text @ by_word).tocsc()
        word_lengths = np.diff(of_word.bounds)
        return cls(
            indptr=counts.indptr.astype(np.int64),
            documents=counts.indices.astype(np.int32),
            frequencies=counts.data,
            lengths=of_text @ word_lengths,
        )

    @property
    def in_documents(self) -> np.ndarray:
        """Count the documents with each term, [terms]."""
        return np.diff(self.indptr)

    def idf(self, okapi: bool) -> np.ndarray:
        """Compute each term's inverse document frequency, by rank_bm25's formula or by Lucene's."""
        documents = len(self.lengths)
        in_documents = self.in_documents
        having = in_documents + 0.5
        lacking = documents - in_documents + 0.5
        if not okapi:
            odds = lacking / having
            return np.log1p(odds)
        idf = np.log(lacking)
        idf -= np.log(having)
        floor = _EPSILON * idf.mean()
        idf[idf < 0] = floor
        return idf

    def weights(
        self,
        k1: float,
        b: float,
        okapi: bool,
    ) -> np.ndarray:
        """Compute each posting's contribution to a score, [postings] float32."""
        mean_length = self.lengths.mean()
        by_length = b * self.lengths / mean_length
        norm = k1 * (1 - b + by_length)
        data = self.frequencies.astype(np.float64)
        divisors = norm[self.documents]
        divisors += data
        data /= divisors
        if okapi:
            data *= k1 + 1
        idf = self.idf(okapi)
        data *= np.repeat(idf, self.in_documents)
        return data.astype(np.float32)


class Postings:
    """Score sources by the weights of their terms, as rank_bm25 (`okapi`) or Lucene does."""

    def __init__(
        self,
        counts: Counts,
        k1: float,
        b: float,
        okapi: bool,
    ) -> None:
        self.counts = counts
        self.weights = counts.weights(k1, b, okapi)
        frequencies = counts.in_documents
        documents = len(counts.lengths)
        idf = counts.idf(okapi)
        self._lifts = idf > 0

        common = np.flatnonzero(frequencies > documents * _COMMON)
        self._row_of = np.full(len(frequencies), -1, dtype=np.int32)
        self._row_of[common] = np.arange(len(common))
        rows_shape = (len(common), documents)
        self._rows = np.zeros(rows_shape, dtype=np.float32)
        for row, term in enumerate(common):
            start = counts.indptr[term]
            end = counts.indptr[term + 1]
            having_term = counts.documents[start:end]
            self._rows[row, having_term] = self.weights[start:end]

        self._postings = _csr(
            self.weights,
            counts.documents,
            counts.indptr,
            (len(frequencies), documents),
        )

    def score_documents(self, claims: Terms) -> np.ndarray:
        """Score all documents for every claim, [claims, documents] float32.

        A repeated term counts each time.
        """
        is_rare = self._row_of[claims.ids] < 0
        rare = claims.select(is_rare)
        # The concatenated postings of a claim's terms are a row with repeated columns.
        entries = self._postings[rare.ids]
        documents = len(self.counts.lengths)
        matrix = _csr(
            entries.data,
            entries.indices,
            entries.indptr[rare.bounds],
            (len(claims), documents),
        )
        scores: np.ndarray = matrix.toarray()
        if len(self._rows):
            common = claims.numbered(self._row_of)
            rows = len(self._rows)
            times = _occurrences(common, rows, np.float32)
            scores += times @ self._rows
        return scores

    def matching(
        self,
        claims: Terms,
        scores: np.ndarray,
        k: int,
    ) -> np.ndarray:
        """Return a mask of documents with a term of the claim, bool [claims, documents].

        Documents that cannot be among the best `k` by `scores` may be omitted.
        """
        if 0 < k < scores.shape[1]:
            kth_scores = top_k_floors(scores, k)
            floors = np.maximum(kth_scores, _SMALLEST)
            is_match: np.ndarray = scores >= floors[:, None]
        else:
            is_match = scores > 0

        # A term in half of the documents may have a weight of 0 or less.
        counts = self.counts
        is_weightless = ~self._lifts[claims.ids]
        owners = claims.owners[is_weightless]
        for row in np.unique(owners):
            first = claims.bounds[row]
            last = claims.bounds[row + 1]
            for term in claims.ids[first:last]:
                start = counts.indptr[term]
                end = counts.indptr[term + 1]
                having_term = counts.documents[start:end]
                is_match[row, having_term] = True
        return is_match


def _occurrences(
    texts: Terms,
    terms: int,
    kind: type[np.number[Any]],
) -> csr_array:
    """Count each text's terms, [texts, terms]: an entry of 1 for each occurrence."""
    units = np.ones(len(texts.ids), dtype=kind)
    shape = (len(texts), terms)
    return _csr(units, texts.ids, texts.bounds, shape)


def _csr(
    data: np.ndarray,
    indices: np.ndarray,
    pointers: np.ndarray,
    shape: tuple[int, int],
) -> csr_array:
    # Imported here, because training on mined negatives does not need SciPy.
    from scipy.sparse import csr_array

    # SciPy copies all indices to the wider of the two types: pointers stay int32 where they fit.
    last = pointers[-1]
    if last < 2**31:
        pointers = pointers.astype(np.int32)
    content = (data, indices, pointers)
    return csr_array(content, shape=shape)
