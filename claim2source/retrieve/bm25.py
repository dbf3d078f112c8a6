"""BM25 by bm25s: ours (stop words, stemmer, title weight) and the papers' whitespace variant."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from claim2source.core.config import require
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.io.store import Store
from claim2source.retrieve.cache import load_result, request_key, store_result
from claim2source.retrieve.terms import Analysis, Terms
from claim2source.retrieve.topk import candidate_pool, candidate_positions, tie_order, top_of_rows
from claim2source.text import ClaimForm, clean_authors, render_claim
from claim2source.text.claims import text_languages

if TYPE_CHECKING:
    from claim2source.retrieve.postings import ArrayBM25

# bm25s and Stemmer are imported where they are used: training on mined negatives needs neither.
Language = Literal["en", "de", "fr"]
_STEMMERS = {"en": "english", "de": "german", "fr": "french"}
_STOP_WORDS = {"en": "STOPWORDS_EN", "de": "STOPWORDS_GERMAN", "fr": "STOPWORDS_FRENCH"}
# Counted up when the same settings and texts would give another run.
_FORMAT = 2
# As bm25s splits: words of two characters or more.
NO_TERM = "no term in common with any source"
# Scores held at a time (8 MiB): they stay in the processor's cache.
_CELLS = 2**21


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
        self._analysis = _analysis(self.config)
        terms = self._analysis.sources(texts)
        self._bm25: ArrayBM25 | None = None
        if len(terms.ids):
            from claim2source.retrieve.postings import ArrayBM25

            okapi = self.config.analysis == "whitespace"
            self._bm25 = ArrayBM25(self.config.k1, self.config.b, okapi)
            corpus = SimpleNamespace(ids=terms, vocab=self._analysis.vocabulary)
            self._bm25.index(corpus, create_empty_token=False, show_progress=False)

    def reweighted(self, k1: float, b: float) -> BM25Index:
        """The same index under another k1 and b, without analysing the sources again."""
        other = copy.copy(self)
        other.config = replace(self.config, k1=k1, b=b)
        other._bm25 = self._bm25.reweighted(k1, b) if self._bm25 else None
        return other

    def terms(self, claims: Sequence[Claim]) -> Terms:
        """Ids of the index's terms in every claim, in text order, repeated ones repeated."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, claim in enumerate(claims):
            groups.setdefault(text_languages(claim, self.config.claims), []).append(row)
        found = [np.empty(0, np.int32)] * len(claims)
        for languages, rows in groups.items():
            texts = [render_claim(claims[row], self.config.claims) for row in rows]
            terms = self._analysis.claims(texts, _stop_words(self.config, languages))
            for row, ids in zip(rows, terms.split(), strict=True):
                found[row] = ids
        return Terms.joined(found)

    def search(self, claims: Sequence[Claim], k: int, terms: Terms | None = None) -> Run:
        """Top `k` of every claim; sources without a term in common are not returned.

        Of sources with equal scores the first by id, descending, are kept. `terms` are the
        claims' `terms` where they are known already.
        """
        positions, scores = self.top(claims, k, terms)
        ids = [claim.id for claim in claims]
        return Run.from_topk(ids, self.source_ids, positions, scores, pool=candidate_pool(claims))

    def top(
        self, claims: Sequence[Claim], k: int, terms: Terms | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same as positions (-1: none) and scores, [claims, at most k] each."""
        depth = min(k, len(self.source_ids))
        positions = np.full((len(claims), depth), -1, dtype=np.int64)
        scores = np.zeros((len(claims), depth), dtype=np.float32)
        if self._bm25 is None or not depth:
            return positions, scores
        terms = self.terms(claims) if terms is None else terms
        block = max(1, _CELLS // len(self.source_ids))
        for start in range(0, len(claims), block):
            rows = slice(start, start + block)
            part = claims[rows]
            asked = terms.part(start, start + len(part))
            positions[rows], scores[rows] = self._top(self._bm25, part, asked, depth)
        return positions, scores

    def _top(
        self, bm25: ArrayBM25, claims: Sequence[Claim], terms: Terms, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = bm25.scores_of(terms)
        bound = [row for row, claim in enumerate(claims) if claim.candidates is not None]
        found = bm25.matching(terms, scores, depth)
        if bound:
            # The best of the pool may not be among a claim's candidates.
            every = terms.split()
            lists = Terms.joined([every[row] for row in bound])
            found[bound] = bm25.matching(lists, scores[bound], scores.shape[1])
        for row in bound:
            allowed = np.zeros(scores.shape[1], dtype=bool)
            allowed[candidate_positions(claims[row], self._position_of)] = True
            found[row] &= allowed
        return top_of_rows(scores, found, depth, self._order)


def _analysis(config: BM25Config) -> Analysis:
    if config.analysis == "whitespace":
        return Analysis(True, (), None)
    import Stemmer

    stemmer = None
    if config.stemmer:
        # It is asked for every word once: a cache would only be filled and purged.
        stemmer = Stemmer.Stemmer(_STEMMERS[config.language], 0)
    return Analysis(False, _stop_words(config, (config.language,)), stemmer)


def _stop_words(config: BM25Config, languages: tuple[str, ...]) -> set[str]:
    """Those of the languages that have a list."""
    if config.analysis == "whitespace" or not config.stop_words:
        return set()
    from bm25s import stopwords

    known = [_STOP_WORDS[language] for language in languages if language in _STOP_WORDS]
    return {word for name in known for word in getattr(stopwords, name)}


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
        if (stored := load_result(self.store, key)) is not None:
            return stored
        run = BM25Index(sources, self.config).search(claims, k)
        failures = [Failure(c.id, NO_TERM) for c in claims if not run.sources(c.id, 1)]
        cost = Cost(time.perf_counter() - started, len(claims), peak_memory(gpu=False))
        return store_result(self.store, key, Result(run, failures=tuple(failures), cost=cost))

    def _key(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> dict[str, Any]:
        """All that the run depends on."""
        form = self.config.claims
        # Stop words go by the languages of a claim's text.
        claim_texts = [[render_claim(c, form), *text_languages(c, form)] for c in claims]
        source_texts = [_source_text(source, self.config) for source in sources]
        return {
            "stage": "bm25",
            "bm25": [_FORMAT, asdict(self.config)],
            "versions": {name: version(name) for name in ("bm25s", "PyStemmer")},
            **request_key(claims, claim_texts, sources, source_texts, k),
        }
