"""Find near-duplicates of a gold: the same paper under another id is no negative."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from claim2source.core.records import Source

# Rare words that two texts must share before all of theirs are compared.
SHARED_RAREST = 4
_WORDS = re.compile(r"\w+").findall


def distinct_words(text: str) -> frozenset[str]:
    """Split a text into words; case, punctuation, order and Unicode form do not count."""
    return frozenset(_WORDS(unicodedata.normalize("NFKC", text).casefold()))


def jaccard(words: frozenset[str], other_words: frozenset[str]) -> float:
    """Compute the share of two texts' words that both have; 0 where one has none."""
    shared = len(words & other_words)
    return shared / (len(words) + len(other_words) - shared) if shared else 0.0


def same_papers(
    sources: Sequence[Source], max_title: float | None, max_text: float | None
) -> list[tuple[str, str]]:
    """List pairs of ids whose titles or abstracts are more alike than the limits (None: none).

    Of sources that are all alike, each is paired with one other at least: joined, the pairs give
    the papers.
    """
    pairs = []
    for texts, threshold in (
        ([source.title for source in sources], max_title),
        ([source.abstract for source in sources], max_text),
    ):
        if threshold is not None:
            matches = _similar_pairs([distinct_words(text) for text in texts], threshold)
            pairs += [(sources[first].id, sources[second].id) for first, second in matches]
    return pairs


def _similar_pairs(texts: Sequence[frozenset[str]], threshold: float) -> list[tuple[int, int]]:
    """List pairs of texts, by position, with `jaccard` above `threshold`; equal texts once."""
    pairs: list[tuple[int, int]] = []
    first: dict[frozenset[str], int] = {}
    for position, words in enumerate(texts):
        earlier = first.setdefault(words, position)
        if earlier != position and words and threshold < 1:
            pairs.append((earlier, position))
    count = Counter(word for words in first for word in words)
    holders: dict[str, list[int]] = {}
    overlap: dict[int, int] = {}
    for words, position in first.items():
        # Texts so alike share that many words at least, hence this many of their rarest.
        shared = int(threshold * len(words) - 1e-9) + 1
        overlap[position] = min(SHARED_RAREST, shared)
        rarest = sorted(words, key=lambda word: (count[word], word))
        shared_by: Counter[int] = Counter()
        for word in rarest[: len(words) - shared + overlap[position]]:
            listed = holders.setdefault(word, [])
            shared_by.update(listed)
            listed.append(position)
        pairs += [
            (earlier_text, position)
            for earlier_text, times in shared_by.items()
            if times >= min(overlap[position], overlap[earlier_text])
            and jaccard(words, texts[earlier_text]) > threshold
        ]
    return pairs


class _Abstracts:
    """Hold the distinct words of texts as numbers: a tenth of the memory of sets of words."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = {}
        self.words = [
            np.array([numbers.setdefault(w, len(numbers)) for w in distinct_words(text)], np.int32)
            for text in texts
        ]
        self.vocabulary = len(numbers)

    def marked(self, position: int) -> np.ndarray:
        """Mark the words of a text, bool [vocabulary]."""
        marked = np.zeros(self.vocabulary, bool)
        marked[self.words[position]] = True
        return marked

    def similarity(self, position: int, marked: np.ndarray, size: int) -> float:
        """Compute the `jaccard` of a text and one of `size` words that are marked."""
        words = self.words[position]
        shared = int(np.count_nonzero(marked[words]))
        return shared / (len(words) + size - shared) if shared else 0.0


class NearDuplicates:
    """Compare sources with golds by title or by abstract.

    `max_title` and `max_text` are the highest similarities of sources that are no near-duplicates;
    None: any similarity.
    """

    def __init__(
        self, sources: Sequence[Source], max_title: float | None, max_text: float | None
    ) -> None:
        self.max_title, self.max_text, self._sources = max_title, max_text, sources
        # Of the few sources that are compared.
        self._titles: dict[int, frozenset[str]] = {}
        self.abstracts = _Abstracts(() if max_text is None else (s.abstract for s in sources))

    def title(self, position: int) -> frozenset[str]:
        """Split a source's title into its distinct words."""
        if position not in self._titles:
            self._titles[position] = distinct_words(self._sources[position].title)
        return self._titles[position]

    def of(self, golds: Iterable[int]) -> GoldDuplicates:
        """Prepare the near-duplicates of any of these golds, given by position."""
        return GoldDuplicates(self, list(golds))


class GoldDuplicates:
    """Check lazily which sources, by position, are near-duplicates of one claim's golds."""

    def __init__(self, pool: NearDuplicates, golds: list[int]) -> None:
        self._pool = pool
        titles = {pool.title(gold) for gold in golds} if pool.max_title is not None else set()
        self._titles = [title for title in titles if title]
        # Marked once a claim, however many sources are checked.
        abstracts = pool.abstracts
        self._marked = [
            (abstracts.marked(gold), len(abstracts.words[gold]))
            for gold in golds
            if abstracts.vocabulary
        ]

    def __bool__(self) -> bool:
        """Tell whether a source can be a near-duplicate: a gold has words to compare."""
        return bool(self._titles or self._marked)

    def __contains__(self, position: int) -> bool:
        return self._by_title(position) or self._by_text(position)

    def _by_title(self, position: int) -> bool:
        limit, title = self._pool.max_title, self._pool.title
        return limit is not None and any(
            jaccard(title(position), gold) > limit for gold in self._titles
        )

    def _by_text(self, position: int) -> bool:
        limit, abstracts = self._pool.max_text, self._pool.abstracts
        return limit is not None and any(
            abstracts.similarity(position, *marked) > limit for marked in self._marked
        )
