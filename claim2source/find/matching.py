"""Match the words of a post with the words of a paper: by their terms, and by names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from claim2source.core.records import Claim
from claim2source.datasets.papers import Paper
from claim2source.engines.names import name_terms, names_of, plain_words
from claim2source.retrieve import BM25Config
from claim2source.retrieve.bm25 import Analyser

# With accents that stand apart from their letters.
WORD = re.compile(r"[\w\u0300-\u036f]+(?:[-'’.][\w\u0300-\u036f]+)*")
# Words whose terms are held.
_MOST_WORDS = 200_000
# Words of the post, and of the paper.
Words = tuple[tuple[str, ...], tuple[str, ...]]


class MatchingWords:
    """Match words of posts and papers; each word is analysed once while its terms are held."""

    def __init__(self, bm25: BM25Config) -> None:
        self.bm25, self._analyser = bm25, Analyser(bm25)
        self._terms: dict[str, list[str]] = {}

    def of(self, claim: Claim, papers: Sequence[Paper]) -> list[Words]:
        """List the words of a claim and of each paper that match, each once in text order."""
        texts = [claim.text, claim.translation or ""]
        words, *of_papers = (
            list(dict.fromkeys(word for text in parts for word in WORD.findall(text)))
            for parts in (
                texts,
                *((p.source.title, p.source.abstract) for p in papers),
            )
        )
        terms = self._terms_of([words, *of_papers])
        sought, possible = set(self._analyser.claim(claim)), {*name_terms(claim.text)}
        own = [sought & {*terms[word]} for word in words]
        matches = []
        for paper, words_of_paper in zip(papers, of_papers, strict=True):
            source = paper.source
            theirs = [word for word in words_of_paper if not sought.isdisjoint(terms[word])]
            shared = {term for word in theirs for term in terms[word]}
            names = possible & {*names_of(source)}
            name_words = [
                word for text in (*source.authors, source.venue) for word in WORD.findall(text)
            ]
            theirs += [word for word in name_words if _holds(word, names) and word not in theirs]
            mine = [
                word
                for word, terms_of_word in zip(words, own, strict=True)
                if terms_of_word & shared or _holds(word, names)
            ]
            matches.append((_distinct_words(mine), _distinct_words(theirs)))
        return matches

    def _terms_of(self, texts: Iterable[Iterable[str]]) -> Mapping[str, list[str]]:
        if len(self._terms) > _MOST_WORDS:
            self._terms.clear()
        new = list({word for words in texts for word in words} - self._terms.keys())
        self._terms.update(zip(new, self._analyser.texts(new), strict=True))
        return self._terms


def _holds(word: str, names: set[str]) -> bool:
    return bool(names) and not names.isdisjoint(plain_words(word))


def _distinct_words(words: list[str]) -> tuple[str, ...]:
    """Drop words that differ from an earlier one in capitals alone."""
    first: dict[str, str] = {}
    for word in words:
        first.setdefault(word.casefold(), word)
    return tuple(first.values())
