"""BM25 by bm25s: ours (stop words, stemmer, title weight) and the papers' whitespace variant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import bm25s
import numpy as np
import Stemmer
from bm25s import stopwords

from claim2source.config import require
from claim2source.cost import peak_memory
from claim2source.records import Claim, Source
from claim2source.retrieve.stage import candidate_pool, candidate_positions, top_of
from claim2source.run import Cost, Failure, Result, Run
from claim2source.text import ClaimForm, clean_authors, render_claim
from claim2source.text.claims import text_languages

Language = Literal["en", "de", "fr"]
_STEMMERS = {"en": "english", "de": "german", "fr": "french"}
_STOP_WORDS = {
    "en": stopwords.STOPWORDS_EN,
    "de": stopwords.STOPWORDS_GERMAN,
    "fr": stopwords.STOPWORDS_FRENCH,
}
# rank_bm25's floor for terms in more than half of the documents, as a share of the mean idf.
_EPSILON = 0.25
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
    """

    analysis: Literal["terms", "whitespace"] = "terms"
    k1: float = 1.2
    b: float = 0.75
    title_weight: int = 1
    metadata: bool = False
    language: Language = "en"
    claims: ClaimForm = "original"

    def __post_init__(self) -> None:
        require(self.k1 >= 0, "bm25.k1", self.k1, "0 or more")
        require(0 <= self.b <= 1, "bm25.b", self.b, "0 to 1")
        require(self.title_weight >= 1, "bm25.title_weight", self.title_weight, "1 or more")


class BM25Index:
    """An index over sources, searched by claims."""

    def __init__(self, sources: Sequence[Source], config: BM25Config | None = None) -> None:
        self.config = config or BM25Config()
        self.source_ids = [source.id for source in sources]
        self._position_of = {source: i for i, source in enumerate(self.source_ids)}
        texts = [self._source_text(source) for source in sources]
        tokens = self._tokens(texts, (self.config.language,))
        self._empty = not any(tokens)
        if self._empty:
            return
        self._bm25 = bm25s.BM25(k1=self.config.k1, b=self.config.b, method="lucene")
        self._bm25.index(tokens, show_progress=False)
        if self.config.analysis == "whitespace":
            self._score_as_okapi(tokens)

    def _source_text(self, source: Source) -> str:
        parts = [source.title] * self.config.title_weight + [source.abstract]
        if self.config.metadata:
            parts += [source.venue, " ".join(clean_authors(source.authors))]
        return " ".join(part for part in parts if part)

    def _tokens(self, texts: Sequence[str], languages: tuple[str, ...]) -> list[list[str]]:
        if self.config.analysis == "whitespace":
            return [text.split() for text in texts]
        known = [language for language in languages if language in _STEMMERS]
        stop = {word for language in known for word in _STOP_WORDS[language]}
        return bm25s.tokenize(
            list(texts),
            stopwords=sorted(stop),
            stemmer=Stemmer.Stemmer(_STEMMERS[self.config.language]),
            return_ids=False,
            show_progress=False,
        )

    def _score_as_okapi(self, tokens: list[list[str]]) -> None:
        """Rescale lucene's scores to BM25Okapi's: the two differ by a factor a term."""
        documents = len(tokens)
        frequency = np.zeros(len(self._bm25.vocab_dict))
        for document in tokens:
            for term in set(document):
                frequency[self._bm25.vocab_dict[term]] += 1
        found = np.maximum(frequency, 0.5)  # bm25s adds an empty term that is in no document
        okapi = np.log(documents - found + 0.5) - np.log(found + 0.5)
        okapi[okapi < 0] = _EPSILON * okapi[frequency > 0].mean()
        lucene = np.log1p((documents - found + 0.5) / (found + 0.5))
        factor = (okapi / lucene * (self.config.k1 + 1)).astype(np.float32)
        terms = np.repeat(np.arange(len(factor)), np.diff(self._bm25.scores["indptr"])[: len(factor)])
        self._bm25.scores["data"] *= factor[terms]

    def search(self, claims: Sequence[Claim], k: int) -> Run:
        """Top `k` of every claim; sources without a term in common are not returned."""
        ids = [claim.id for claim in claims]
        positions = np.full((len(claims), k), -1, dtype=np.int64)
        scores = np.zeros((len(claims), k), dtype=np.float32)
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, claim in enumerate(claims):
            groups.setdefault(text_languages(claim, self.config.claims), []).append(row)
        for languages, rows in groups.items():
            texts = [render_claim(claims[row], self.config.claims) for row in rows]
            tokens = self._tokens(texts, (*languages, self.config.language))
            self._search_group(claims, rows, tokens, positions, scores)
        found = np.where(scores > 0, positions, -1)
        return Run.from_topk(ids, self.source_ids, found, scores, pool=candidate_pool(claims))

    def _search_group(
        self,
        claims: Sequence[Claim],
        rows: list[int],
        tokens: list[list[str]],
        positions: np.ndarray,
        scores: np.ndarray,
    ) -> None:
        known = [
            [] if self._empty else [t for t in text if t in self._bm25.vocab_dict]
            for text in tokens
        ]
        k = positions.shape[1]
        free: list[int] = []
        for row, terms in enumerate(known):
            if not terms:
                continue
            claim = claims[rows[row]]
            if claim.candidates is None:
                free.append(row)
                continue
            allowed = candidate_positions(claim, self._position_of)
            of_all = self._bm25.get_scores(terms)
            positions[rows[row]], scores[rows[row]] = top_of(of_all[allowed], allowed, k)
        if free:
            depth = min(k, len(self.source_ids))
            found, values = self._bm25.retrieve(
                [known[row] for row in free], k=depth, show_progress=False
            )
            target = np.array([rows[row] for row in free])
            positions[target, :depth] = found
            scores[target, :depth] = values


@dataclass(frozen=True)
class BM25Retriever:
    """BM25 as a stage."""

    config: BM25Config = BM25Config()

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Index the sources and search them."""
        started = time.perf_counter()
        run = BM25Index(sources, self.config).search(claims, k)
        failures = [Failure(c.id, NO_TERM) for c in claims if not run.sources(c.id, 1)]
        cost = Cost(time.perf_counter() - started, len(claims), peak_memory())
        return Result(run, failures=tuple(failures), cost=cost)
