"""Near-duplicates of a gold: the same paper under another id is no negative."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from claim2source.core.records import Source

_WORDS = re.compile(r"\w+").findall


def title_words(title: str) -> frozenset[str]:
    """Words of a title; case, punctuation, order and the writing of characters do not count."""
    return frozenset(_WORDS(unicodedata.normalize("NFKC", title).casefold()))


def title_similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Share of the words of two titles that both have (Jaccard); 0 where one has none."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if shared else 0.0


class _Texts:
    """The distinct words of texts, as numbers: a tenth of what sets of words take."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = {}
        self.words = [
            np.array([numbers.setdefault(w, len(numbers)) for w in title_words(text)], np.int32)
            for text in texts
        ]
        self.vocabulary = len(numbers)

    def marked(self, position: int) -> np.ndarray:
        """True [vocabulary] for the words of a text."""
        marked = np.zeros(self.vocabulary, bool)
        marked[self.words[position]] = True
        return marked

    def similarity(self, position: int, marked: np.ndarray, size: int) -> float:
        """As `title_similarity`, of a text and one of `size` words that are marked."""
        words = self.words[position]
        shared = int(np.count_nonzero(marked[words]))
        return shared / (len(words) + size - shared) if shared else 0.0


class NearDuplicates:
    """Tells which sources are nearly a gold again, by title, by abstract or by vector.

    `max_title`, `max_text` and `max_vector` are the highest similarities that are let pass;
    None: any.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        vectors: np.ndarray,
        max_title: float | None,
        max_text: float | None,
        max_vector: float | None,
    ) -> None:
        self._max_title, self._max_text, self._max_vector = max_title, max_text, max_vector
        self._titles = [] if max_title is None else [title_words(s.title) for s in sources]
        self._texts = _Texts(() if max_text is None else (s.abstract for s in sources))
        self._vectors = vectors
        if max_vector is not None:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            self._vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)

    def of(self, golds: Iterable[int]) -> GoldDuplicates:
        """The near-duplicates of any of these golds, by their positions."""
        listed = list(golds)
        titles = {self._titles[gold] for gold in listed} if self._titles else set()
        return GoldDuplicates(self, [title for title in titles if title], listed)


class GoldDuplicates:
    """Near-duplicates of one claim's golds; asked for one source after the other."""

    def __init__(
        self, twins: NearDuplicates, titles: list[frozenset[str]], golds: list[int]
    ) -> None:
        self._twins, self._titles, self._golds = twins, titles, golds
        texts = twins._texts
        # Marked once a claim, whatever the number of sources that are asked for.
        self._marked = [
            (texts.marked(gold), len(texts.words[gold])) for gold in golds if texts.vocabulary
        ]

    def __bool__(self) -> bool:
        """Whether there is anything to compare with: without it no source is a near-duplicate."""
        vectors = self._twins._max_vector is not None and bool(self._golds)
        return bool(self._titles or self._marked or vectors)

    def __contains__(self, position: int) -> bool:
        return self._by_title(position) or self._by_text(position) or self._by_vector(position)

    def _by_title(self, position: int) -> bool:
        most = self._twins._max_title
        if most is None:
            return False
        title = self._twins._titles[position]
        return any(title_similarity(title, gold) > most for gold in self._titles)

    def _by_text(self, position: int) -> bool:
        most = self._twins._max_text
        if most is None:
            return False
        texts = self._twins._texts
        return any(texts.similarity(position, *marked) > most for marked in self._marked)

    def _by_vector(self, position: int) -> bool:
        most, vectors = self._twins._max_vector, self._twins._vectors
        if most is None or not self._golds:
            return False
        return float((vectors[self._golds] @ vectors[position]).max()) > most
