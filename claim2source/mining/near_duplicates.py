"""Find near-duplicates of a gold: the same paper under another id is not a negative."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from claim2source.core.records import Source

# Rare words that two texts must share before all of their words are compared.
SHARED_RAREST = 4
# Size of the two caches of words, of titles and of abstracts, in sources.
_KEPT = 2**13
# Split a text of the source at a position into its distinct words.
WordsOf = Callable[[int], frozenset[str]]
_WORDS = re.compile(r"\w+").findall


def distinct_words(text: str) -> frozenset[str]:
    """Split a text into words; ignores case, punctuation, order and Unicode form."""
    normalised = unicodedata.normalize("NFKC", text)
    words = _WORDS(normalised.casefold())
    return frozenset(words)


def jaccard(
    words: frozenset[str],
    other_words: frozenset[str],
) -> float:
    """Compute the share of two texts' words that both contain; 0 if one is empty."""
    shared = len(words & other_words)
    if not shared:
        return 0.0
    distinct = len(words) + len(other_words) - shared
    return shared / distinct


def same_papers(
    sources: Sequence[Source],
    max_title: float | None,
    max_text: float | None,
) -> list[tuple[str, str]]:
    """List pairs of ids whose titles or abstracts are more similar than the limits (None: none).

    Of several equal sources each is in at least one pair: the connected components are the papers.
    """
    matches: list[tuple[int, int]] = []
    if max_title is not None:
        titles = [distinct_words(source.title) for source in sources]
        matches += _similar_pairs(titles, max_title)
    if max_text is not None:
        abstracts = [distinct_words(source.abstract) for source in sources]
        matches += _similar_pairs(abstracts, max_text)
    pairs: list[tuple[str, str]] = []
    for first, second in matches:
        first_id = sources[first].id
        second_id = sources[second].id
        pairs.append((first_id, second_id))
    return pairs


def _similar_pairs(
    texts: Sequence[frozenset[str]],
    threshold: float,
) -> list[tuple[int, int]]:
    """List pairs of texts, by position, with `jaccard` above `threshold`; equal texts once."""
    pairs: list[tuple[int, int]] = []
    first: dict[frozenset[str], int] = {}
    for position, words in enumerate(texts):
        earlier = first.setdefault(words, position)
        is_repeated = earlier != position
        if is_repeated and words and threshold < 1:
            pairs.append((earlier, position))

    count: Counter[str] = Counter()
    for words in first:
        count.update(words)

    holders: dict[str, list[int]] = {}
    overlap: dict[int, int] = {}
    for words, position in first.items():
        # Texts this similar share at least that many words, hence this many of their rarest.
        shared = int(threshold * len(words) - 1e-9) + 1
        own_overlap = min(SHARED_RAREST, shared)
        overlap[position] = own_overlap
        rarest = sorted(words, key=lambda word: (count[word], word))
        compared = len(words) - shared + own_overlap
        shared_by: Counter[int] = Counter()
        for word in rarest[:compared]:
            listed = holders.setdefault(word, [])
            shared_by.update(listed)
            listed.append(position)
        for earlier, times in shared_by.items():
            needed = min(own_overlap, overlap[earlier])
            if times < needed:
                continue
            if jaccard(words, texts[earlier]) > threshold:
                pairs.append((earlier, position))
    return pairs


def words_to_compare(
    sources: Sequence[Source],
    max_title: float | None,
    max_text: float | None,
) -> list[tuple[float, WordsOf]]:
    """Return a lazy splitter into words for titles and for abstracts, each with its limit.

    `max_title` and `max_text` are the highest similarities of sources that are not near-duplicates;
    None: any similarity.
    """
    compared: list[tuple[float, WordsOf]] = []
    if max_title is not None:
        words_of = lru_cache(_KEPT)(lambda position: distinct_words(sources[position].title))
        compared.append((max_title, words_of))
    if max_text is not None:
        words_of = lru_cache(_KEPT)(lambda position: distinct_words(sources[position].abstract))
        compared.append((max_text, words_of))
    return compared


class GoldDuplicates:
    """Check lazily which sources, by position, are near-duplicates of one claim's golds.

    `compared` comes from `words_to_compare`, `golds` are positions.
    """

    def __init__(
        self,
        compared: Sequence[tuple[float, WordsOf]],
        golds: Collection[int],
    ) -> None:
        self._compared: list[tuple[float, WordsOf, set[frozenset[str]]]] = []
        for limit, words_of in compared:
            gold_words = {words_of(gold) for gold in golds}
            gold_words.discard(frozenset())
            self._compared.append((limit, words_of, gold_words))

    def __bool__(self) -> bool:
        """Whether a source can be a near-duplicate: a gold has words to compare."""
        return any(golds for _, _, golds in self._compared)

    def __contains__(self, position: int) -> bool:
        for limit, words_of, golds in self._compared:
            for gold in golds:
                if jaccard(words_of(position), gold) > limit:
                    return True
        return False
