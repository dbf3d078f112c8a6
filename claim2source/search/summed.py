"""Compute BM25 with word counts over several indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log1p

from claim2source.search.manifest import K1, B
from claim2source.search.table import WeighedWords


@dataclass(frozen=True)
class ColumnCounts:
    """Counts of a column of terms: papers with words in it, their words, papers with each word.

    `having` only has the words of a post.
    """

    papers: int
    words: int
    having: Mapping[str, int]

    @property
    def mean(self) -> float:
        """Return the mean number of words of a paper; 1 if there are none."""
        if not self.papers:
            return 1.0
        return self.words / self.papers

    def idf(self, word: str) -> float:
        """Return a word's inverse document frequency."""
        having = self.having[word]
        present = having + 0.5
        absent = self.papers - having + 0.5
        return log1p(absent / present)


def add_counts(counts: Sequence[ColumnCounts]) -> ColumnCounts:
    """Sum the counts of several indexes."""
    having: Counter[str] = Counter()
    for own in counts:
        having.update(own.having)
    papers = sum(own.papers for own in counts)
    words = sum(own.words for own in counts)
    return ColumnCounts(papers, words, having)


class WordWeights:
    """Scores of papers by the words of a post, with the counts of one or several indexes.

    `parts` are the post's words, `counts` are by column of terms.
    """

    def __init__(self, parts: Sequence[WeighedWords], counts: Mapping[str, ColumnCounts]) -> None:
        self.counts = counts
        self.weights: dict[str, dict[str, float]] = {}
        for column, words, weight in parts:
            own = self.weights.setdefault(column, {})
            for word in words:
                idf = counts[column].idf(word)
                before = own.get(word, 0.0)
                own[word] = before + weight * idf

    def score(self, texts: Mapping[str, str]) -> float:
        """Score a paper by its terms, which are by column with spaces between them."""
        total = 0.0
        for column, weights in self.weights.items():
            found = Counter(texts[column].split())
            mean = self.counts[column].mean
            length = found.total() / mean
            norm = K1 * (1 - B + B * length)
            for word, weight in weights.items():
                count = found[word]
                if count:
                    total += weight * count / (count + norm)
        return total

    def highest(self, own: WordWeights, score: float) -> float:
        """Return the maximal score of a paper with `score` by an index's `own` weights.

        Each word adds at most its weight; words with a larger weight here come first.
        """
        gains: list[tuple[float, float]] = []
        for column, weights in own.weights.items():
            mean = self.counts[column].mean
            own_counts = own.counts[column]
            longer = max(1.0, mean / own_counts.mean)
            for word, weight in weights.items():
                if own_counts.having[word]:
                    highest = longer * self.weights[column][word]
                    gain = highest / weight
                    gains.append((gain, weight))
        gains.sort(reverse=True)
        total = 0.0
        rest = score
        for gain, most in gains:
            part = min(most, rest)
            total += gain * part
            rest -= part
        return total
