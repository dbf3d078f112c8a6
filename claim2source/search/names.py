"""Look for authors and venues that a post names: terms of names, and how much they weigh."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from claim2source.core.records import Claim, Source, nfkc
from claim2source.data.papers import Paper
from claim2source.search.bm25 import Analyser, BM25Config

_WORD = re.compile(r"[^\W\d_]{2,}(?:['’][^\W\d_]+)?")
_OWNER = re.compile(r"['’]s?$")
# Of venues and handles: words that name nothing.
_EMPTY = frozenset(
    "the of and in for on to an at by de la le les des du et und der die das für dr prof phd md mr "
    "journal international annals archives proceedings transactions reports letters review reviews "
    "revue zeitschrift press university institute van von del el di da rt via new study".split()
)
# Weights that are tried, papers that they are tried on, words of a title in such a post.
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
PAPERS, _WORDS = 60, 4
# A weight may cost posts without names so much of their mean reciprocal rank.
_COST = 0.002


def plain_words(text: str) -> list[str]:
    """List a text's words in small letters, without accents and without "'s"."""
    parts = unicodedata.normalize("NFKD", nfkc(text))
    letters = "".join(sign for sign in parts if not unicodedata.combining(sign))
    return [_OWNER.sub("", word).casefold() for word in _WORD.findall(letters)]


def paper_names(source: Source) -> list[str]:
    """List the terms of a paper's authors and venue, each once: how often says nothing."""
    words = [word for text in (*source.authors, source.venue) for word in plain_words(text)]
    return list(dict.fromkeys(word for word in words if len(word) > 2 and word not in _EMPTY))


def name_terms(post: str) -> list[str]:
    """List the possible names in a post: words with a capital or after @; in lower case, all."""
    text = re.sub(r"https?://\S+", " ", post)
    small = text == text.lower()
    spaced = re.sub(r"(?<=[a-zà-ÿ])(?=[A-Z])", " ", text)  # @AdaLovelace
    names = [
        word
        for match in re.finditer(r"[@#]?[^\s,;:!?()\"“”]+", text if small else spaced)
        for word in plain_words(match[0])
        if small or match[0][0] in "@#" or any(sign.isupper() for sign in match[0][:2])
    ]
    return list(dict.fromkeys(word for word in names if len(word) > 2 and word not in _EMPTY))


def names_weight(
    papers: Sequence[Paper],
    bm25: BM25Config,
    search: Callable[[Sequence[str], Sequence[str], float], Sequence[str]],
) -> float:
    """Choose how much names weigh, on posts that are made of some of the index's own papers.

    Each paper gives one post of words of its title with an author and the venue, and one of such
    words alone; the weight that finds the former best is taken of those that cost the latter next
    to nothing. `search` lists ids by terms, names and their weight. 0 if papers have no names.
    """
    sample = [paper for paper in papers if paper.source.authors and paper.source.title]
    if len(sample) < 5:
        return 0.0
    rng, analyser = np.random.default_rng(0), Analyser(bm25)
    with_names, without_names = np.zeros((2, len(WEIGHTS), len(sample)))
    for column, paper in enumerate(sample):
        words = _drawn_words(paper, rng)
        author = paper.source.authors[0].split()[-1]
        # What starts a sentence has a capital too, and may be anybody's name.
        for ranks, text in (
            (with_names, f"{author}'s {paper.source.venue} study: {words}"),
            (without_names, words.title()),
        ):
            terms = analyser.claim(Claim("0", text, bm25.language))
            for row, weight in enumerate(WEIGHTS):
                ids = search(terms, name_terms(text), weight)
                if paper.source.id in ids:
                    ranks[row, column] = 1 / (1 + ids.index(paper.source.id))
    good = np.flatnonzero(without_names.mean(axis=1) >= without_names[0].mean() - _COST).tolist()
    return WEIGHTS[max(good, key=lambda row: (round(float(with_names[row].mean()), 6), -row))]


def _drawn_words(paper: Paper, rng: np.random.Generator) -> str:
    words = [word for word in plain_words(paper.source.title) if len(word) > 3] or ["study"]
    positions: list[int] = sorted(rng.choice(len(words), min(_WORDS, len(words)), False).tolist())
    return " ".join(words[i] for i in positions)
