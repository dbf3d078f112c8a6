"""Rank tweets by BM25 over two fields, text and hashtags (Axolotl, 2024, section 3.3).

Each field's query has its own scores. The hashtags' scores are boosted, and both are summed
unchanged, as by a Lucene BooleanQuery of two queries.
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
from claim2source.core.progress import track
from claim2source.core.records import Claim, Dataset, Source, nfkc
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.core.stage import Claims, as_claims, as_sources
from claim2source.metrics.metrics import evaluate
from claim2source.search.bm25 import BM25, NO_TERM, SPELLERS, BM25Index, Language
from claim2source.search.choose import (
    DEPTH,
    Grid,
    by_analysis,
    choose_from_grid,
    grid_settings,
    weigh,
)
from claim2source.text.clean import tweet_fields

MAP = "map"
FIELDED_GRID: Grid = (
    ("hashtag_words", (True, False)),
    ("stop_words", (True, False)),
    ("stemmer", (True, False)),
    ("shortest", (2, 3, 4)),
    ("k1", (1.2, 0.6, 0.9, 1.5, 2.0)),
    ("b", (0.75, 0.3, 0.5, 1.0)),
    ("boost", (1.1, 0.0, 0.5, 1.0, 1.5, 2.0)),
)


@dataclass(frozen=True)
class Fielded(Settings):
    """Rank tweets by BM25 over two fields, text and hashtags.

    Args:
        k1: saturation of term frequency, 0 or more; k1 and b apply to both fields.
        b: share of length normalisation, 0 to 1.
        boost: weight of the hashtags' query; the text's is 1.
        hashtag_words: also keep the words of hashtags in the text.
        stop_words: remove stop words.
        stemmer: compare stems instead of words.
        shortest: minimal length of a word in the text, in characters.

    Example:
        >>> import claim2source as c2s
        >>> tweets = [c2s.Source("a", "", "Masks work #covid"), c2s.Source("b", "", "Rats dig")]
        >>> c2s.Fielded().index(tweets).search("Do masks work?", k=1).sources("0")
        ['a']
    """

    k1: Annotated[float, Between(0, 1000)] = 1.2
    b: Share = 0.75
    boost: Annotated[float, Between(0, 1000)] = 1.1
    hashtag_words: bool = True
    stop_words: bool = True
    stemmer: bool = True
    shortest: Annotated[int, Between(2, 20)] = 2

    def fit(
        self,
        val: Dataset,
        grid: Grid = FIELDED_GRID,
        rule: Rule = "one_se",
        scored: dict[str, np.ndarray] | None = None,
    ) -> tuple[Fielded, Choice]:
        """Choose settings from the lists of a grid, by average precision.

        Every claim is ranked among its own candidates, independently of other claims: `scored`
        caches its values for all settings, for choices on other subsets of the claims.
        """
        weighing = weigh(val, metric=MAP)
        settings = grid_settings(self, grid)
        if scored is None:
            scored = {}
        claims: list[Claim] = []
        for claim in val.claims:
            is_weighed = claim.id in weighing.claim_ids
            if is_weighed and claim.id not in scored:
                claims.append(claim)
        if claims:
            scored |= _fielded_scores(claims, val, settings)
        rows = [scored[claim_id] for claim_id in weighing.claim_ids]
        values = np.stack(rows, axis=1)
        candidates = dict(zip(settings, values, strict=True))
        return choose_from_grid("fielded BM25", candidates, grid, weighing, rule)

    def index(self, sources: Sequence[Source]) -> FieldedIndex:
        """Return the index of these tweets; a search indexes each claim's candidates."""
        return FieldedIndex(sources, self)

    def to_bm25_config(self, language: Language) -> BM25:
        return BM25(
            k1=self.k1,
            b=self.b,
            language=language,
            stop_words=self.stop_words,
            stemmer=self.stemmer,
        )


class FieldedIndex:
    """Search tweets by their text and their hashtags; a source's tweet is its abstract.

    A claim with `candidates` is ranked in an index of only these, with their own document
    frequencies and mean lengths.
    """

    def __init__(self, sources: Sequence[Source], config: Fielded | None = None) -> None:
        self.config = config or Fielded()
        tweets = as_sources(sources)
        self.sources: Mapping[str, Source] = {source.id: source for source in tweets}

    def timeline(self, claim: Claim) -> Timeline:
        """Index a claim's candidates."""
        ids = self.sources if claim.candidates is None else claim.candidates
        language = cast(Language, claim.lang)
        own = [self.sources[source] for source in ids if source in self.sources]
        return Timeline(own, self.config, language)

    def search(self, claims: Claims, k: int = 100) -> Result:
        started = time.perf_counter()
        claims = as_claims(claims)
        k = whole_number(k, "k")
        reset_peak_memory()
        lists = {claim.id: self.timeline(claim).search(claim, k) for claim in claims}
        failures: list[Failure] = []
        for claim_id, ranked_sources in lists.items():
            if not ranked_sources:
                failure = Failure(claim_id, NO_TERM)
                failures.append(failure)
        seconds = time.perf_counter() - started
        memory = peak_memory(gpu=False)
        cost = Cost(seconds, len(lists), memory)
        run = Run.from_lists(lists)
        return Result(run, failures=tuple(failures), cost=cost)


class Timeline:
    """Both fields' indexes of some tweets. Raises ValueError on an id that repeats."""

    def __init__(
        self,
        sources: Sequence[Source],
        config: Fielded,
        language: Language = "en",
    ) -> None:
        self.config = config
        self.language = language
        self.source_ids = [source.id for source in sources]
        texts: list[Source] = []
        hashtags: list[Source] = []
        for source in sources:
            text, own_hashtags = self._fields(source.abstract)
            text_source = Source(source.id, abstract=text)
            texts.append(text_source)
            hashtag_source = Source(source.id, abstract=own_hashtags)
            hashtags.append(hashtag_source)
        bm25 = config.to_bm25_config(language)
        self.text = BM25Index(texts, bm25)
        self.hashtags = BM25Index(hashtags, bm25)

    def _fields(self, tweet: str) -> tuple[str, str]:
        # First, because regular expressions end a word or a hashtag at an accent or a vowel sign.
        speller = SPELLERS.get(self.language, str)
        spelled = speller(nfkc(tweet))
        config = self.config
        text, hashtags = tweet_fields(
            spelled,
            keep_words=config.hashtag_words,
            shortest=config.shortest,
        )
        return text, " ".join(hashtags)

    def reweighted(self, k1: float, b: float) -> Timeline:
        copied = copy.copy(self)
        copied.config = replace(self.config, k1=k1, b=b)
        copied.text = self.text.reweighted(k1, b)
        copied.hashtags = self.hashtags.reweighted(k1, b)
        return copied

    def field_scores(self, claim: Claim) -> np.ndarray:
        """Score every source by each field, [2, sources] float64; 0: no term in common."""
        totals = np.zeros((2, len(self.source_ids)))
        indexes = (self.text, self.hashtags)
        texts = self._fields(claim.text)
        for row, index, text in zip(totals, indexes, texts, strict=True):
            query = Claim(claim.id, text, claim.lang)
            all_positions, all_scores = index.top([query], len(row))
            positions = all_positions[0]
            scores = all_scores[0]
            is_found = positions >= 0
            found = positions[is_found]
            row[found] = scores[is_found]
        return totals

    def search(self, claim: Claim, k: int) -> list[tuple[str, float]]:
        """Rank the best `k` sources that share a term with the claim, with their scores."""
        scores = self.field_scores(claim)
        return ranked(self.source_ids, scores, self.config.boost, k)


def ranked(
    source_ids: Sequence[str],
    field_scores: np.ndarray,
    boost: float,
    k: int,
) -> list[tuple[str, float]]:
    """Sum the scores of both fields, [2, sources], and keep the best `k` above 0.

    Ties are broken by id, descending, as in a `Run`.
    """
    text_scores = field_scores[0]
    hashtag_scores = field_scores[1]
    sums = text_scores + boost * hashtag_scores
    scores = sums.astype(np.float32)
    scored = zip(scores.tolist(), source_ids, strict=True)
    best = sorted(scored, reverse=True)[:k]
    return [(source, score) for score, source in best if score > 0]


def _fielded_scores(
    claims: Sequence[Claim],
    data: Dataset,
    settings: Sequence[Fielded],
) -> dict[str, np.ndarray]:
    """Score all settings: average precision by claim id, [settings] each."""
    ids = [claim.id for claim in claims]
    by_setting: dict[Fielded, np.ndarray] = {}
    analyses = by_analysis(settings, "k1", "b", "boost")
    for analysis, cells in track(analyses, "BM25's analyses", len(analyses)):
        index = FieldedIndex(data.sources, analysis)
        timelines = [index.timeline(claim) for claim in claims]
        for weights, boosts in by_analysis(cells, "boost"):
            scores: list[np.ndarray] = []
            for timeline, claim in zip(timelines, claims, strict=True):
                reweighted = timeline.reweighted(weights.k1, weights.b)
                own = reweighted.field_scores(claim)
                scores.append(own)
            for setting in boosts:
                run = _boosted_run(ids, timelines, scores, setting.boost)
                evaluated = evaluate(run, data.qrels, [MAP], ids)
                by_setting[setting] = evaluated[MAP]
    columns = [by_setting[setting] for setting in settings]
    values = np.stack(columns, axis=1)
    return dict(zip(ids, values, strict=True))


def _boosted_run(
    ids: Sequence[str],
    timelines: Sequence[Timeline],
    scores: Sequence[np.ndarray],
    boost: float,
) -> Run:
    """Rank every claim's sources by both fields' scores, with a boost of the hashtags'."""
    lists: dict[str, list[tuple[str, float]]] = {}
    for claim_id, timeline, own in zip(ids, timelines, scores, strict=True):
        lists[claim_id] = ranked(timeline.source_ids, own, boost, DEPTH)
    return Run.from_lists(lists)
