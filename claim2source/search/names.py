"""Search for authors and venues that a post names: terms of names, and their weight."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from claim2source.core.records import Claim, Source, nfkc
from claim2source.data.papers import Paper
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.text.clean import without_unseen

_WORD = re.compile(r"[^\W\d_]{2,}(?:['’][^\W\d_]+)?")
_OWNER = re.compile(r"['’]s?$")
# Words of venues and handles that are not names.
_EMPTY = frozenset(
    "the of and in for on to an at by de la le les des du et und der die das für dr prof phd md mr "
    "journal international annals archives proceedings transactions reports letters review reviews "
    "revue zeitschrift press university institute van von del el di da rt via new study".split()
)
# Weights to try, papers to try them on, words of a title in such a post.
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
PAPERS = 60
_WORDS = 4
# A weight may reduce the mean reciprocal rank of posts without names by so much.
_COST = 0.002


def plain_words(text: str) -> list[str]:
    """List a text's words in small letters, without accents and without "'s"."""
    parts = unicodedata.normalize("NFKD", without_unseen(nfkc(text)))
    letters = "".join(sign for sign in parts if not unicodedata.combining(sign))
    words = []
    for word in _WORD.findall(letters):
        owner = _OWNER.sub("", word)
        words.append(owner.casefold())
    return words


def _distinct_names(words: Iterable[str]) -> list[str]:
    """List the distinct words that may be names, in order."""
    names: dict[str, None] = {}
    for word in words:
        if len(word) > 2 and word not in _EMPTY:
            names[word] = None
    return list(names)


def paper_names(source: Source) -> list[str]:
    """List the distinct terms of a paper's authors and venue; their frequency is meaningless."""
    words: list[str] = []
    texts = (*source.authors, source.venue)
    for text in texts:
        words += plain_words(text)
    return _distinct_names(words)


def name_terms(post: str) -> list[str]:
    """List the possible names in a post: capitalised words or words after @; all in lower case."""
    text = re.sub(r"https?://\S+", " ", post)
    in_lower_case = text == text.lower()
    if not in_lower_case:
        text = re.sub(r"(?<=[a-zà-ÿ])(?=[A-Z])", " ", text)  # @AdaLovelace
    words = re.findall(r"[@#]?[^\s,;:!?()\"“”]+", text)
    names: list[str] = []
    for word in words:
        first_signs = word[:2]
        has_capital = any(sign.isupper() for sign in first_signs)
        if in_lower_case or has_capital or word[0] in "@#":
            names += plain_words(word)
    return _distinct_names(names)


def names_weight(
    papers: Sequence[Paper],
    bm25: BM25,
    search: Callable[[Sequence[str], Sequence[str], Sequence[float]], Sequence[Sequence[str]]],
) -> float:
    """Choose the weight of names, on posts that are made from some of the index's own papers.

    From each paper two posts are made: words of its title with an author and the venue, and only
    such words. Of the weights that barely harm the latter, the best one for the former is chosen.
    `search` lists ids by terms and names, for each of several weights. The result is 0 if papers
    have no names.
    """
    sample: list[Paper] = []
    for paper in papers:
        if paper.source.authors and paper.source.title:
            sample.append(paper)
    if len(sample) < 5:
        return 0.0
    rng = np.random.default_rng(0)
    analyser = Analyser(bm25)

    def reciprocal_ranks(paper: Paper, text: str) -> list[float]:
        """Return a paper's reciprocal rank for a post with each of the weights; 0 if not found."""
        claim = Claim("0", text, bm25.language)
        terms = analyser.claim(claim)
        names = name_terms(text)
        ranks: list[float] = []
        for ids in search(terms, names, WEIGHTS):
            if paper.source.id in ids:
                place = ids.index(paper.source.id)
                ranks.append(1 / (1 + place))
            else:
                ranks.append(0.0)
        return ranks

    shape = (len(WEIGHTS), len(sample))
    with_names = np.zeros(shape)
    without_names = np.zeros(shape)
    for column, paper in enumerate(sample):
        words = _drawn_words(paper, rng)
        first_author = paper.source.authors[0]
        author = first_author.split()[-1]
        named = f"{author}'s {paper.source.venue} study: {words}"
        with_names[:, column] = reciprocal_ranks(paper, named)
        # The first word of a sentence is also capitalised, and may look like a name.
        titled = words.title()
        without_names[:, column] = reciprocal_ranks(paper, titled)

    means = without_names.mean(axis=1)
    lowest = without_names[0].mean() - _COST
    allowed: list[int] = np.flatnonzero(means >= lowest).tolist()

    def quality(row: int) -> tuple[float, int]:
        """Return the mean reciprocal rank of posts with names; ties prefer the smaller weight."""
        mean = float(with_names[row].mean())
        return round(mean, 6), -row

    best = max(allowed, key=quality)
    return WEIGHTS[best]


def _drawn_words(paper: Paper, rng: np.random.Generator) -> str:
    all_words = plain_words(paper.source.title)
    words = [word for word in all_words if len(word) > 3]
    if not words:
        words = ["study"]
    count = min(_WORDS, len(words))
    drawn = rng.choice(len(words), count, False)
    positions: list[int] = sorted(drawn.tolist())
    return " ".join(words[position] for position in positions)
