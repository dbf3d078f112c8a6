"""Match the words of posts and papers, by their terms and by names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from claim2source.core.records import Claim
from claim2source.data.papers import Paper
from claim2source.search.bm25 import BM25, Analyser
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
        self.bm25, self._analyser = bm25, Analyser(bm25)
        self._terms: dict[str, list[str]] = {}

    def match(self, claim: Claim, papers: Sequence[Paper]) -> list[Words]:
        """List the matching words of a claim and of each paper, without repeats, in text order."""
        own = _words_in(claim.text, claim.translation or "")
        words_by_paper = [_words_in(p.source.title, p.source.abstract) for p in papers]
        terms = self._matched_terms([own, *words_by_paper])
        sought = set(self._analyser.claim(claim))
        possible_names = set(name_terms(claim.text))
        matches: list[Words] = []
        for paper, words in zip(papers, words_by_paper, strict=True):
            names = possible_names.intersection(paper_names(paper.source))
            theirs = [word for word in words if not sought.isdisjoint(terms[word])]
            shared: set[str] = set()
            for word in theirs:
                shared.update(terms[word])
            shared &= sought
            mine = []
            for word in own:
                if not shared.isdisjoint(terms[word]) or _holds(word, names):
                    mine.append(word)
            for word in _words_in(*paper.source.authors, paper.source.venue):
                if _holds(word, names):
                    theirs.append(word)
            matches.append((_distinct_words(mine), _distinct_words(theirs)))
        return matches

    def _matched_terms(self, texts: Iterable[Iterable[str]]) -> Mapping[str, list[str]]:
        if len(self._terms) > _MOST_WORDS:
            self._terms.clear()
        new = list({word for words in texts for word in words} - self._terms.keys())
        self._terms.update(zip(new, self._analyser.texts(new), strict=True))
        return self._terms


def _words_in(*texts: str) -> list[str]:
    """List the distinct words of some texts in text order."""
    words: dict[str, None] = {}
    for text in texts:
        words.update(dict.fromkeys(WORD.findall(text)))
    return list(words)


def _holds(word: str, names: set[str]) -> bool:
    return bool(names) and not names.isdisjoint(plain_words(word))


def _distinct_words(words: Iterable[str]) -> tuple[str, ...]:
    """Remove words that differ from an earlier one only in case or invisible characters."""
    first: dict[str, str] = {}
    for word in words:
        first.setdefault(without_unseen(word).casefold(), word)
    return tuple(first.values())
