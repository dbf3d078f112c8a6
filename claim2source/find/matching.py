"""Match the words of a post with the words of a paper: by their terms, and by names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from claim2source.core.records import Claim
from claim2source.datasets.papers import Paper
from claim2source.engines.names import name_terms, names_of, plain_words
from claim2source.retrieve import BM25Config
from claim2source.retrieve.analyser import Analyser

# With accents that stand apart from their letters.
WORD = re.compile(r"[\w\u0300-\u036f]+(?:[-'’.][\w\u0300-\u036f]+)*")
# Words of the post, and of the paper.
Words = tuple[tuple[str, ...], tuple[str, ...]]


class MatchingWords:
    """Know the terms of the words of some papers; each word is analysed once."""

    def __init__(self, bm25: BM25Config, papers: Sequence[Paper]) -> None:
        self._analyser = Analyser(bm25)
        texts = {
            paper.source.id: f"{paper.source.title}\n{paper.source.abstract}" for paper in papers
        }
        self._words = {key: list(dict.fromkeys(WORD.findall(text))) for key, text in texts.items()}
        distinct = list({word for words in self._words.values() for word in words})
        self._terms = dict(zip(distinct, self._analyser.texts(distinct), strict=True))
        self._papers = {paper.source.id: paper for paper in papers}
        self._claims: dict[Claim, tuple[list[str], set[str], list[set[str]], set[str]]] = {}

    def of(self, claim: Claim, paper: str) -> Words:
        """List the words of a claim, and of a paper, that match, each once in text order."""
        if claim not in self._claims:
            self._claims[claim] = self._analyse(claim)
        words, sought, own, possible = self._claims[claim]
        theirs = [word for word in self._words[paper] if sought & {*self._terms[word]}]
        terms_of_paper = {term for word in theirs for term in self._terms[word]}
        source = self._papers[paper].source
        names = possible & {*names_of(source)}
        named = [word for text in (*source.authors, source.venue) for word in WORD.findall(text)]
        theirs += [word for word in named if _holds(word, names) and word not in theirs]
        mine = [
            word
            for word, terms in zip(words, own, strict=True)
            if terms & terms_of_paper or _holds(word, names)
        ]
        return _distinct_words(mine), _distinct_words(theirs)

    def _analyse(self, claim: Claim) -> tuple[list[str], set[str], list[set[str]], set[str]]:
        texts = [claim.text, claim.translation or ""]
        words = list(dict.fromkeys(word for text in texts for word in WORD.findall(text)))
        sought = set(self._analyser.claim(claim))
        own = [sought & {*terms} for terms in self._analyser.texts(words)]
        return words, sought, own, {*name_terms(claim.text)}


def _holds(word: str, names: set[str]) -> bool:
    return bool(names) and not names.isdisjoint(plain_words(word))


def _distinct_words(words: list[str]) -> tuple[str, ...]:
    """Drop words that differ from an earlier one in capitals alone."""
    first: dict[str, str] = {}
    for word in words:
        first.setdefault(word.casefold(), word)
    return tuple(first.values())
