"""Texts as term ids: each word between white space is analysed once, by bm25s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

_NONE = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Terms:
    """Term ids of texts, in text order, repeated ones repeated.

    Those of text i are `ids[bounds[i] : bounds[i + 1]]`; `ids` int32, `bounds` int64 [texts + 1].
    """

    ids: np.ndarray
    bounds: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Terms:
        """From the ids of each text."""
        ids = np.fromiter(chain.from_iterable(texts), dtype=np.int32)
        return cls(ids, _bounds(list(map(len, texts))))

    @classmethod
    def joined(cls, texts: Sequence[np.ndarray]) -> Terms:
        """The same from an array of ids for each text."""
        return cls(np.concatenate([_NONE, *texts]), _bounds(list(map(len, texts))))

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.bounds) - 1

    @property
    def owners(self) -> np.ndarray:
        """The text of every id, [ids]."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    def part(self, start: int, end: int) -> Terms:
        """Of texts start to end - 1."""
        bounds = self.bounds[start : end + 1]
        return Terms(self.ids[bounds[0] : bounds[-1]], bounds - bounds[0])

    def split(self) -> list[np.ndarray]:
        """The ids of each text."""
        return [self.ids[a:b] for a, b in zip(self.bounds[:-1], self.bounds[1:], strict=True)]

    def where(self, kept: np.ndarray) -> Terms:
        """Without the ids that are not `kept` (bool [ids])."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return Terms(self.ids[kept], before[self.bounds])

    def numbered(self, number_of: np.ndarray) -> Terms:
        """With id i as number_of[i]; ids numbered below 0 are left out."""
        known = Terms(number_of.astype(np.int32)[self.ids], self.bounds)
        return known.where(known.ids >= 0)


def _bounds(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))])


class Analysis:
    """From texts to the ids of the sources' terms.

    `whole`: terms are what stands between white space. Else they are those of `bm25s.tokenize`,
    without stop words, and stemmed where there is a `stemmer` (PyStemmer's). A token never spans
    white space: every word is analysed once, and abstracts by the ten thousand repeat their words
    far more often than they bring new ones.
    """

    def __init__(self, whole: bool, stop_words: Iterable[str], stemmer: Any | None) -> None:
        self._whole, self._stop_words, self._stemmer = whole, set(stop_words), stemmer
        self._words: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._of_word = Terms.of([])
        self._term_of = np.empty(0, dtype=np.int32)
        self.vocabulary: dict[str, int] = {}

    def sources(self, texts: Iterable[str]) -> Terms:
        """The terms of all sources; those of claims are numbered by the `vocabulary` they give."""
        words, tokens, terms = _Numbers({}), _Numbers({}), _Numbers({})
        split = _words(texts, words)
        self._of_word = self._tokens_of(words.new, tokens)
        kept = [token for token in tokens.new if token not in self._stop_words]
        self._term_of = np.full(len(tokens), -1, dtype=np.int32)
        for token, stem in zip(kept, self._stems(kept), strict=True):
            self._term_of[tokens[token]] = terms[stem]
        # Plain ones: a question must not add to them.
        self._words, self._tokens, self.vocabulary = dict(words), dict(tokens), dict(terms)
        return _expanded(split, self._of_word.numbered(self._term_of))

    def claims(self, texts: Iterable[str], stop_words: Iterable[str]) -> Terms:
        """The terms of other texts, without those that the sources have not.

        Their `stop_words` are left out and the sources' own.
        """
        words, tokens = _Numbers(self._words), _Numbers(self._tokens)
        split = _words(texts, words)
        new = self._tokens_of(words.new, tokens)
        terms = [self.vocabulary.get(stem, -1) for stem in self._stems(tokens.new)]
        term_of = np.concatenate([self._term_of, np.array(terms, dtype=np.int32)])
        for word in {*self._stop_words, *stop_words}:
            if word in self._tokens or word in tokens:
                term_of[tokens[word]] = -1
        # Of the sources' words only those that are asked for.
        used, split_ids = np.unique(split.ids, return_inverse=True)
        ids, bounds = self._of_word.ids, self._of_word.bounds
        first, others = len(self._words), new.split()
        of_word = Terms.joined(
            [
                ids[bounds[i] : bounds[i + 1]] if i < first else others[i - first]
                for i in used.tolist()
            ]
        )
        return _expanded(Terms(split_ids, split.bounds), of_word.numbered(term_of))

    def _stems(self, tokens: list[str]) -> list[str]:
        stems: list[str] = self._stemmer.stemWords(tokens) if self._stemmer else tokens
        return stems

    def _tokens_of(self, words: list[str], tokens: _Numbers) -> Terms:
        """The tokens of each word, new ones numbered."""
        if self._whole:
            return Terms.of([[tokens[word]] for word in words])
        import bm25s

        # One text, each word followed by a token that no word has: lists by the ten thousand
        # would keep Python's garbage collector busy for longer than the words are looked at.
        mark, together = "__", " ".join(words)
        while mark in together:
            mark += "_"
        text = f" {mark} ".join([*words, ""])
        (found,), number_of = bm25s.tokenize(text, stopwords=[], show_progress=False)
        numbers = [-1 if token == mark else tokens[token] for token in number_of]
        ids = np.array(numbers, dtype=np.int32)[np.array(found, dtype=np.int32)]
        ends = np.flatnonzero(ids < 0) + 1
        return Terms(ids, np.concatenate([[0], ends])).where(ids >= 0)


def _expanded(split: Terms, of_word: Terms) -> Terms:
    """The terms of texts, from their words and the terms of each word."""
    counts = np.diff(of_word.bounds)[split.ids]
    # Where the terms of each word begin, less where they are to stand: one gather for all.
    ends = np.cumsum(counts)
    shift = np.repeat(of_word.bounds[split.ids] - (ends - counts), counts)
    ids = of_word.ids[shift + np.arange(len(shift))]
    return Terms(ids, np.concatenate([[0], ends])[split.bounds])


class _Numbers(dict[str, int]):
    """Numbers strings as they come; `new` ones behind those of `before`, which stays as it is."""

    def __init__(self, before: dict[str, int]) -> None:
        super().__init__()
        self.new: list[str] = []
        self._before = before

    def __missing__(self, key: str) -> int:
        number = self._before.get(key)
        if number is None:
            number = len(self._before) + len(self.new)
            self.new.append(key)
        self[key] = number
        return number


def _words(texts: Iterable[str], numbers: _Numbers) -> Terms:
    """The words of texts, as white space parts them; new ones are numbered."""
    number_of = numbers.__getitem__
    ids = []
    for text in texts:
        words = text.split()
        ids.append(np.fromiter(map(number_of, words), dtype=np.int32, count=len(words)))
    return Terms.joined(ids)
