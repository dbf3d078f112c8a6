"""Rank tweets by BM25 over two fields, text and hashtags (Axolotl, 2024, section 3.3).

The query of either field has scores of its own; the hashtags' are boosted, and both are summed as
they are, as a Lucene BooleanQuery of two queries does.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, cast

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.config import Between, Settings, Share
from claim2source.core.machine import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Source, nfkc
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.core.stage import Claims, as_claims, as_sources
from claim2source.search.bm25 import NO_TERM, SPELLERS, BM25Config, BM25Index, Language
from claim2source.text.clean import tweet_fields


@dataclass(frozen=True)
class FieldedConfig(Settings):
    """BM25's settings over the two fields of tweets.

    Args:
        k1: saturation of term frequency, 0 or more; of both fields, as b.
        b: share of length normalisation, 0 to 1.
        boost: weight of the hashtags' query; the text's is 1.
        hashtag_words: leave the words of hashtags in the text too.
        stop_words: leave stop words out.
        stemmer: compare stems instead of words.
        shortest: characters of the shortest word of the text that counts.
    """

    k1: Annotated[float, Between(0, 1000)] = 1.2
    b: Share = 0.75
    boost: Annotated[float, Between(0, 1000)] = 1.1
    hashtag_words: bool = True
    stop_words: bool = True
    stemmer: bool = True
    shortest: Annotated[int, Between(2, 20)] = 2

    def of_field(self, language: Language) -> BM25Config:
        return BM25Config(
            k1=self.k1,
            b=self.b,
            language=language,
            stop_words=self.stop_words,
            stemmer=self.stemmer,
        )


class FieldedIndex:
    """Search tweets by their text and their hashtags; a source's tweet is its abstract.

    A claim with `candidates` is ranked in an index of these alone, whose document frequencies and
    mean lengths they make up.
    """

    def __init__(self, sources: Sequence[Source], config: FieldedConfig | None = None) -> None:
        self.config = config or FieldedConfig()
        self.sources: Mapping[str, Source] = {source.id: source for source in as_sources(sources)}

    def timeline(self, claim: Claim) -> Timeline:
        """Index a claim's candidates."""
        ids = self.sources if claim.candidates is None else claim.candidates
        language = cast(Language, claim.lang)
        own = [self.sources[source] for source in ids if source in self.sources]
        return Timeline(own, self.config, language)

    def search(self, claims: Claims, k: int = 100) -> Result:
        started, claims, k = time.perf_counter(), as_claims(claims), whole_number(k, "k")
        reset_peak_memory()
        lists = {claim.id: self.timeline(claim).search(claim, k) for claim in claims}
        failures = tuple(
            Failure(claim, NO_TERM) for claim, ranked_sources in lists.items() if not ranked_sources
        )
        cost = Cost(time.perf_counter() - started, len(lists), peak_memory(gpu=False))
        return Result(Run.from_lists(lists), failures=failures, cost=cost)


class Timeline:
    """Both fields' indexes of some tweets. Raises ValueError on an id that repeats."""

    def __init__(
        self, sources: Sequence[Source], config: FieldedConfig, language: Language = "en"
    ) -> None:
        self.config, self.language = config, language
        self.source_ids = [source.id for source in sources]
        fields = [self._fields(source.abstract) for source in sources]
        self.text, self.hashtags = (
            BM25Index(
                [
                    Source(source, abstract=texts[field])
                    for source, texts in zip(self.source_ids, fields, strict=True)
                ],
                config.of_field(language),
            )
            for field in (0, 1)
        )

    def _fields(self, tweet: str) -> tuple[str, str]:
        # First: to a regular expression, an accent or a vowel sign ends a word or a hashtag.
        spelled = SPELLERS.get(self.language, str)(nfkc(tweet))
        config = self.config
        words = config.hashtag_words
        text, hashtags = tweet_fields(spelled, keep_words=words, shortest=config.shortest)
        return text, " ".join(hashtags)

    def reweighted(self, k1: float, b: float) -> Timeline:
        copied = copy.copy(self)
        copied.config = replace(self.config, k1=k1, b=b)
        copied.text, copied.hashtags = (
            field.reweighted(k1, b) for field in (self.text, self.hashtags)
        )
        return copied

    def field_scores(self, claim: Claim) -> np.ndarray:
        """Score every source by either field, [2, sources] float64; 0: no term in common."""
        totals = np.zeros((2, len(self.source_ids)))
        indexes, texts = (self.text, self.hashtags), self._fields(claim.text)
        for row, index, text in zip(totals, indexes, texts, strict=True):
            (positions,), (scores,) = index.top([Claim(claim.id, text, claim.lang)], len(row))
            row[positions[positions >= 0]] = scores[positions >= 0]
        return totals

    def search(self, claim: Claim, k: int) -> list[tuple[str, float]]:
        """Rank the best `k` sources that share a term with the claim, with their scores."""
        return ranked(self.source_ids, self.field_scores(claim), self.config.boost, k)


def ranked(
    source_ids: Sequence[str], field_scores: np.ndarray, boost: float, k: int
) -> list[tuple[str, float]]:
    """Sum the scores of both fields, [2, sources], and keep the best `k` above 0.

    Ties are kept by id, descending, as a `Run` ranks them.
    """
    scores = (field_scores[0] + boost * field_scores[1]).astype(np.float32)
    best = sorted(zip(scores.tolist(), source_ids, strict=True), reverse=True)[:k]
    return [(source, score) for score, source in best if score > 0]
