"""Match the words of posts and papers, by their terms and by names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from claim2source.core.records import Claim
from claim2source.data.papers import Paper
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.names import name_terms, paper_names, plain_words
from claim2source.text.clean import INVISIBLE, SOFT_HYPHEN, without_unseen

# With combining accents, and with invisible characters within words.
_LETTERS = r"[\w\u0300-\u036f]+"
_WITHIN = rf"(?:[{INVISIBLE}]|(?<!\d){SOFT_HYPHEN}(?!\d))+"
_PART = rf"{_LETTERS}(?:{_WITHIN}{_LETTERS})*"
WORD = re.compile(rf"{_PART}(?:[-'’.]{_PART})*")
# Words whose terms are cached.
_MOST_WORDS = 200_000
# Words of the post, and of the paper.
Words = tuple[tuple[str, ...], tuple[str, ...]]


class MatchingWords:
    """Match words of posts and papers; the terms of each word are cached."""

    def __init__(self, bm25: BM25) -> None:
        self.bm25 = bm25
        self._analyser = Analyser(bm25)
        self._terms: dict[str, list[str]] = {}

    def match(
        self,
        claim: Claim,
        papers: Sequence[Paper],
    ) -> list[Words]:
        """List the matching words of a claim and of each paper, without repeats, in text order."""
        translation = claim.translation or ""
        own = _words_in(claim.text, translation)
        words_by_paper: list[list[str]] = []
        for paper in papers:
            source = paper.source
            words = _words_in(source.title, source.abstract)
            words_by_paper.append(words)

        terms = self._matched_terms([own, *words_by_paper])
        claim_terms = self._analyser.claim(claim)
        sought = set(claim_terms)
        possible_names = set(name_terms(claim.text))

        matches: list[Words] = []
        for paper, words in zip(papers, words_by_paper, strict=True):
            source = paper.source
            names = possible_names.intersection(paper_names(source))

            theirs: list[str] = []
            shared: set[str] = set()
            for word in words:
                word_terms = terms[word]
                if not sought.isdisjoint(word_terms):
                    theirs.append(word)
                    shared.update(word_terms)
            shared &= sought

            mine: list[str] = []
            for word in own:
                shares_term = not shared.isdisjoint(terms[word])
                if shares_term or _holds(word, names):
                    mine.append(word)

            byline = _words_in(*source.authors, source.venue)
            for word in byline:
                if _holds(word, names):
                    theirs.append(word)

            distinct_mine = _distinct_words(mine)
            distinct_theirs = _distinct_words(theirs)
            matches.append((distinct_mine, distinct_theirs))
        return matches

    def _matched_terms(
        self,
        texts: Iterable[Iterable[str]],
    ) -> Mapping[str, list[str]]:
        if len(self._terms) > _MOST_WORDS:
            self._terms.clear()

        wanted: set[str] = set()
        for words in texts:
            wanted.update(words)
        new = list(wanted - self._terms.keys())
        new_terms = self._analyser.texts(new)
        self._terms.update(zip(new, new_terms, strict=True))
        return self._terms


def _words_in(*texts: str) -> list[str]:
    """List the distinct words of some texts in text order."""
    words: dict[str, None] = {}
    for text in texts:
        found = WORD.findall(text)
        words.update(dict.fromkeys(found))
    return list(words)


def _holds(word: str, names: set[str]) -> bool:
    if not names:
        return False
    parts = plain_words(word)
    return not names.isdisjoint(parts)


def _distinct_words(words: Iterable[str]) -> tuple[str, ...]:
    """Remove words that differ from an earlier one only in case or invisible characters."""
    first: dict[str, str] = {}
    for word in words:
        folded = without_unseen(word).casefold()
        first.setdefault(folded, word)
    return tuple(first.values())
