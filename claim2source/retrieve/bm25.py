"""BM25 by bm25s: ours (stop words, stemmer, title weight) and the papers' whitespace variant."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from claim2source.config import require
from claim2source.cost import peak_memory, reset_peak_memory
from claim2source.records import Claim, Source
from claim2source.retrieve.kept import asked_key, kept_result, stored_result
from claim2source.retrieve.stage import candidate_pool, candidate_positions, tie_order, top_of
from claim2source.run import Cost, Failure, Result, Run
from claim2source.store import Store
from claim2source.text import ClaimForm, clean_authors, render_claim
from claim2source.text.claims import text_languages

if TYPE_CHECKING:
    from claim2source.retrieve.postings import ArrayBM25

# bm25s and Stemmer are imported where they are used: training on mined negatives needs neither.
Language = Literal["en", "de", "fr"]
_STEMMERS = {"en": "english", "de": "german", "fr": "french"}
_STOP_WORDS = {"en": "STOPWORDS_EN", "de": "STOPWORDS_GERMAN", "fr": "STOPWORDS_FRENCH"}
# Counted up when the same settings and texts would give another run.
_FORMAT = 1
# As bm25s splits: words of two characters or more.
NO_TERM = "no term in common with any source"


@dataclass(frozen=True)
class BM25Config:
    """BM25's settings.

    Args:
        analysis: `terms` (lower case, stop words out, stemmed) or `whitespace`, the papers'
            and the organisers' variant: str.split, nothing else, rank_bm25's BM25Okapi
            scores; set k1 to 1.5 and b to 0.75 for its defaults.
        k1: saturation of term frequency, 0 or more.
        b: share of length normalisation, 0 to 1.
        title_weight: how often the title's terms are counted.
        metadata: index authors and venue too.
        language: language of the sources; its stemmer is used on both sides, since stems
            match only if one stemmer made them. Stop words are of the text's own languages.
        claims: claim representation.
        stop_words: leave stop words out; `terms` only.
        stemmer: compare stems instead of words; `terms` only.
    """

    analysis: Literal["terms", "whitespace"] = "terms"
    k1: float = 1.2
    b: float = 0.75
    title_weight: int = 1
    metadata: bool = False
    language: Language = "en"
    claims: ClaimForm = "original"
    stop_words: bool = True
    stemmer: bool = True

    def __post_init__(self) -> None:
        require(self.k1 >= 0, "bm25.k1", self.k1, "0 or more")
        require(0 <= self.b <= 1, "bm25.b", self.b, "0 to 1")
        require(self.title_weight >= 1, "bm25.title_weight", self.title_weight, "1 or more")


class BM25Index:
    """An index over sources, searched by claims. Raises ValueError on a source id that repeats."""

    def __init__(self, sources: Sequence[Source], config: BM25Config | None = None) -> None:
        self.config = config or BM25Config()
        self.source_ids = [source.id for source in sources]
        if len(set(self.source_ids)) != len(self.source_ids):
            raise ValueError("a source id repeats")
        self._position_of = {source: i for i, source in enumerate(self.source_ids)}
        self._order = tie_order(self.source_ids)
        texts = [_source_text(source, self.config) for source in sources]
        ids, self._vocabulary = self._tokens(texts, (self.config.language,))
        self._bm25: ArrayBM25 | None = None
        if any(ids):
            from claim2source.retrieve.postings import ArrayBM25

            okapi = self.config.analysis == "whitespace"
            self._bm25 = ArrayBM25(self.config.k1, self.config.b, okapi)
            self._bm25.index((ids, self._vocabulary), create_empty_token=False, show_progress=False)

    def reweighted(self, k1: float, b: float) -> BM25Index:
        """The same index under another k1 and b, without analysing the sources again."""
        other = copy.copy(self)
        other.config = replace(self.config, k1=k1, b=b)
        other._bm25 = self._bm25.reweighted(k1, b) if self._bm25 else None
        return other

    def _tokens(
        self, texts: Sequence[str], languages: tuple[str, ...]
    ) -> tuple[list[list[int]], dict[str, int]]:
        """Term ids of every text, and the id of every term, from 0."""
        if self.config.analysis == "whitespace":
            number: defaultdict[str, int] = defaultdict()
            number.default_factory = number.__len__
            return [[number[term] for term in text.split()] for text in texts], dict(number)
        import bm25s
        import Stemmer
        from bm25s import stopwords

        known = [language for language in languages if language in _STEMMERS]
        stop = {word for language in known for word in getattr(stopwords, _STOP_WORDS[language])}
        if not self.config.stop_words:
            stop = set()
        stemmer = Stemmer.Stemmer(_STEMMERS[self.config.language]) if self.config.stemmer else None
        tokenized = bm25s.tokenize(
            list(texts),
            stopwords=sorted(stop),
            stemmer=stemmer,
            show_progress=False,
        )
        return tokenized.ids, tokenized.vocab

    def terms(self, claims: Sequence[Claim]) -> list[list[int]]:
        """Ids of the index's terms in every claim, in text order, repeated ones repeated."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, claim in enumerate(claims):
            groups.setdefault(text_languages(claim, self.config.claims), []).append(row)
        found: list[list[int]] = [[] for _ in claims]
        for languages, rows in groups.items():
            texts = [render_claim(claims[row], self.config.claims) for row in rows]
            ids, vocabulary = self._tokens(texts, (*languages, self.config.language))
            indexed = {
                n: self._vocabulary[t] for t, n in vocabulary.items() if t in self._vocabulary
            }
            for row, numbers in zip(rows, ids, strict=True):
                found[row] = [indexed[n] for n in numbers if n in indexed]
        return found

    def search(self, claims: Sequence[Claim], k: int, terms: list[list[int]] | None = None) -> Run:
        """Top `k` of every claim; sources without a term in common are not returned.

        Of sources with equal scores the first by id, descending, are kept. `terms` are the
        claims' `terms` where they are known already.
        """
        positions, scores = self.top(claims, k, terms)
        ids = [claim.id for claim in claims]
        return Run.from_topk(ids, self.source_ids, positions, scores, pool=candidate_pool(claims))

    def top(
        self, claims: Sequence[Claim], k: int, terms: list[list[int]] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same as positions (-1: none) and scores, [claims, at most k] each."""
        depth = min(k, len(self.source_ids))
        positions = np.full((len(claims), depth), -1, dtype=np.int64)
        scores = np.zeros((len(claims), depth), dtype=np.float32)
        for row, numbers in enumerate(self.terms(claims) if terms is None else terms):
            if numbers and self._bm25 is not None:
                positions[row], scores[row] = self._top(self._bm25, claims[row], numbers, depth)
        return positions, scores

    def _top(
        self, bm25: ArrayBM25, claim: Claim, terms: list[int], depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = bm25.get_scores_from_ids(terms)
        if claim.candidates is None:
            found = bm25.matches(terms, scores, depth)
        else:
            allowed = candidate_positions(claim, self._position_of)
            found = np.intersect1d(bm25.matches(terms, scores, len(scores)), allowed)
        return top_of(scores[found], found, depth, self._order)


def _source_text(source: Source, config: BM25Config) -> str:
    """The text that is indexed."""
    parts = [source.title] * config.title_weight + [source.abstract]
    if config.metadata:
        parts += [source.venue, " ".join(clean_authors(source.authors))]
    return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class BM25Retriever:
    """BM25 as a stage.

    With a `store` the run is kept: the same claims and sources are not searched again, and the
    cost is what it was then. The result's `about` says whether it was `stored`.
    """

    config: BM25Config = BM25Config()
    store: Store | None = None

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Index the sources and search them, or read what that gave before."""
        started = time.perf_counter()
        reset_peak_memory()
        key = self._key(claims, sources, k) if self.store is not None else None
        if (stored := stored_result(self.store, key)) is not None:
            return stored
        run = BM25Index(sources, self.config).search(claims, k)
        failures = [Failure(c.id, NO_TERM) for c in claims if not run.sources(c.id, 1)]
        cost = Cost(time.perf_counter() - started, len(claims), peak_memory(gpu=False))
        return kept_result(self.store, key, Result(run, failures=tuple(failures), cost=cost))

    def _key(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> dict[str, Any]:
        """All that the run depends on."""
        form = self.config.claims
        # Stop words go by the languages of a claim's text.
        claim_texts = [[render_claim(c, form), *text_languages(c, form)] for c in claims]
        source_texts = [_source_text(source, self.config) for source in sources]
        return {
            "stage": "bm25", "bm25": [_FORMAT, asdict(self.config)],
            "versions": {name: version(name) for name in ("bm25s", "PyStemmer")},
            **asked_key(claims, claim_texts, sources, source_texts, k),
        }  # fmt: skip
