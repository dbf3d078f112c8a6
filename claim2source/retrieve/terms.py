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


def _bounds(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


class Analysis:
    """From texts to the ids of the sources' terms, by `vocabulary`; `sources` are theirs.

    `whole`: terms are what stands between white space. Else they are those of `bm25s.tokenize`,
    without stop words, and stemmed where there is a `stemmer` (PyStemmer's). A token never spans
    white space: every word is analysed once, and abstracts by the ten thousand repeat their words
    far more often than they bring new ones.
    """

    def __init__(
        self, texts: Iterable[str], whole: bool, stop_words: Iterable[str], stemmer: Any | None
    ) -> None:
        self._whole, self._stemmer = whole, stemmer
        self._words, self._tokens = _Numbers(), _Numbers()
        split = _words(texts, self._words)
        self._of_word = self._tokens_of(self._words, self._tokens)
        self._stop_words = set(stop_words)
        kept = [token for token in self._tokens.new if token not in self._stop_words]
        self._term_of = np.full(len(self._tokens), -1, dtype=np.int32)
        self.vocabulary = _Numbers()
        for token, stem in zip(kept, self._stems(kept), strict=True):
            self._term_of[self._tokens[token]] = self.vocabulary[stem]
        self.sources = self._expanded(split, self._of_word, self._term_of)

    def claims(self, texts: Iterable[str], stop_words: Iterable[str]) -> Terms:
        """The terms of other texts, without those that the sources have not.

        Their `stop_words` are left out and the sources' own.
        """
        words, tokens = _Numbers(self._words), _Numbers(self._tokens)
        split = _words(texts, words)
        new = self._tokens_of(words, tokens)
        of_word = Terms(
            np.concatenate([self._of_word.ids, new.ids]),
            np.concatenate([self._of_word.bounds, self._of_word.bounds[-1] + new.bounds[1:]]),
        )
        terms = [self.vocabulary.get(stem, -1) for stem in self._stems(tokens.new)]
        term_of = np.concatenate([self._term_of, np.array(terms, dtype=np.int32)])
        for word in {*self._stop_words, *stop_words}:
            if word in self._tokens or word in tokens:
                term_of[tokens[word]] = -1
        return self._expanded(split, of_word, term_of)

    def _stems(self, tokens: list[str]) -> list[str]:
        stems: list[str] = self._stemmer.stemWords(tokens) if self._stemmer else tokens
        return stems

    def _tokens_of(self, words: _Numbers, tokens: _Numbers) -> Terms:
        """The tokens of each word, new ones numbered."""
        if self._whole:
            return Terms.of([[tokens[word]] for word in words.new])
        import bm25s

        found, number_of = bm25s.tokenize(words.new, stopwords=[], show_progress=False)
        return Terms.of(found).numbered(np.array([tokens[t] for t in number_of], dtype=np.int32))

    @staticmethod
    def _expanded(split: Terms, of_word: Terms, term_of: np.ndarray) -> Terms:
        """The terms of texts that were split into words."""
        of_word = of_word.numbered(term_of)
        counts = np.diff(of_word.bounds)[split.ids]
        # Where the terms of each word begin, less where they are to stand: one gather for all.
        ends = np.cumsum(counts)
        shift = np.repeat(of_word.bounds[split.ids] - (ends - counts), counts)
        ids = of_word.ids[shift + np.arange(len(shift))]
        return Terms(ids, np.concatenate([[0], ends])[split.bounds])


class _Numbers(dict[str, int]):
    """Numbers strings as they come; `new` ones behind those of `before`, which stays as it is."""

    def __init__(self, before: _Numbers | None = None) -> None:
        super().__init__()
        self.new: list[str] = []
        self._before: dict[str, int] = before if before is not None else {}

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
