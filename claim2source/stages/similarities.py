"""Score candidates by single similarities of claim and source: the views of a learned fusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from claim2source.core.config import Settings, require, require_one_of
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source, nfkc
from claim2source.data.papers import first_day
from claim2source.data.store import Store
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.models.config import ModelChanges
from claim2source.search.bm25 import SPELLERS, BM25Config, BM25Index, get_stop_words, make_stemmer
from claim2source.search.dense import encoder_keys, of_model, unit_vectors
from claim2source.search.terms import import_bm25s
from claim2source.stages.pairs import Runtime
from claim2source.text import ClaimForm, Rendering, SourceForm
from claim2source.text.clean import split_sentences
from claim2source.text.views import claim_parts

Kind = Literal["bm25", "cosine", "best_sentence", "year"]
PartOfSource = Literal["all", "title", "abstract", "metadata"]
TermKind = Literal["words", "bigrams", "characters"]
# Letters of a character n-gram: McNamee and Mayfield (2004) found 4 best in European languages.
_GRAM = 4


@dataclass(frozen=True, kw_only=True)
class ViewConfig(Settings):
    """Describe one similarity of claims and sources.

    Args:
        score: `bm25`; `cosine` of an encoder's vectors; `best_sentence`, the claim's best cosine
            with the title or a sentence of the abstract; `year`, the source's own.
        part: what is read of a source: `all` (title and abstract), `title`, `abstract`, or, by bm25
            of words, `metadata` (venue and authors).
        terms: of bm25: `words`, `bigrams` (two words in a row, without stop words), or
            `characters` (pieces of words of 4 letters).
        bm25: BM25's settings; with `metadata` the part `all` has venue and authors too.
        model: the encoder; none: the one that the program is given. Keys without a name change
            that one.
        claims: claim form; a checkpoint has its own. English claims are the same in each.
        sources: how sources are written for an encoder; a checkpoint has its own.
    """

    score: Kind = "bm25"
    part: PartOfSource = "all"
    terms: TermKind = "words"
    bm25: BM25Config = field(default_factory=BM25Config)
    model: ModelChanges | ModelConfig | None = None
    claims: ClaimForm = "bilingual"
    sources: SourceForm = "title_abstract"

    def check(self) -> None:
        lexical = self.score == "bm25"
        require(lexical or self.terms == "words", "terms", self.terms, "words but with score bm25")
        parts = get_args(PartOfSource) if self.score in ("bm25", "cosine") else ("all",)
        if self.encodes or self.terms != "words":
            parts = tuple(part for part in parts if part != "metadata")
        require_one_of("part", self.part, parts)
        good = self.bm25.analysis == "terms"
        require(good, "bm25.analysis", self.bm25.analysis, "terms: the others have other scores")
        good = self.model is None or self.encodes
        require(good, "model", self.model, f"none with score {self.score}")

    @property
    def encodes(self) -> bool:
        return self.score in ("cosine", "best_sentence")

    def encoder_over(self, default: ModelConfig) -> ModelConfig:
        """Return the encoder, which is `default` as far as no other is named."""
        model = self.model or default
        return model.over(default) if isinstance(model, ModelChanges) else model

    @property
    def is_similarity(self) -> bool:
        """Whether more of it speaks for a source, so that its weight is not negative."""
        return self.score != "year"


class TextVectors(NamedTuple):
    """Vectors of texts by text."""

    rows: Mapping[str, int]
    vectors: np.ndarray

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of some texts, [texts, dimensions]."""
        rows_of: np.ndarray = self.vectors[[self.rows[text] for text in texts]]
        return rows_of


class Scorer:
    """Score the candidates of claims in one pool, by one view after the other.

    `runtime` has the device that computes vectors, and the store that keeps them. The last view's
    encoder is held; `several` holds them all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        runtime: Runtime | None = None,
        *,
        several: bool = False,
    ) -> None:
        self._sources = {source.id: source for source in sources}
        self.runtime, self._several = runtime or Runtime(), several
        self._encoders: dict[ModelConfig, Resolved] = {}
        self._lexical: dict[ViewConfig, BM25Index] = {}

    def of_pool(self, sources: Sequence[Source]) -> Scorer:
        """Return a scorer of another pool that shares the encoders."""
        scorer = Scorer(sources, self.runtime, several=self._several)
        scorer._encoders = self._encoders
        return scorer

    def resolved(self, view: ViewConfig) -> Resolved:
        model = view.encoder_over(ModelConfig())
        if model not in self._encoders:
            if not self._several:
                self._encoders.clear()  # before the next one is read: two may not fit
            self._encoders[model] = resolve(model, self.runtime.device)
        return self._encoders[model]

    def key(self, view: ViewConfig) -> str:
        """Hash all that makes an encoder's scores, without versions of libraries; "" without one.

        Raises `UserError` if the encoder cannot be loaded.
        """
        if not view.encodes:
            return ""
        return content_hash(of_model(encoder_keys(self.resolved(view).encoder)))

    def scores(
        self,
        view: ViewConfig,
        claims: Sequence[Claim],
        candidates: Sequence[Sequence[str]],
        *,
        fresh: bool = False,
    ) -> list[np.ndarray]:
        """Score for each claim the sources `candidates`, by id: an array of each list's length.

        BM25 is divided by the weight of a term that a single source has, which grows with the
        pool. The score of a part that a source lacks, and the year of one without a date, is NaN.
        `fresh` encodes claims whose vectors the store may hold: what a new claim costs.
        """
        if view.score == "year":
            dates = [[self._sources[source].date for source in ids] for ids in candidates]
            return [np.array([decimal_year(date) for date in row], np.float64) for row in dates]
        if view.score == "bm25":
            values = self._bm25(view, claims, candidates)
        else:
            texts_of = _sentences if view.score == "best_sentence" else _whole_texts
            values = self._cosines(view, claims, candidates, texts_of, fresh)
        if view.part == "all":
            return values
        missing = (
            [_lacks(self._sources[source], view.part) for source in ids] for ids in candidates
        )
        return [np.where(none, np.nan, value) for none, value in zip(missing, values, strict=True)]

    def _bm25(
        self, view: ViewConfig, claims: Sequence[Claim], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        metadata = view.part == "metadata" or (view.part == "all" and view.bm25.metadata)
        config = replace(view.bm25, claims=view.claims, metadata=metadata)
        index = self._lexical.get(view)
        if view.terms != "words":
            claims = [_as_grams(claim, view) for claim in claims]
            base = replace(config, metadata=False, stop_words=False, stemmer=False)
            config = replace(base, claims="original")
        if index is None:
            pool = [_only(source, view.part) for source in self._sources.values()]
            if view.terms != "words":
                pool = _gram_sources(pool, view)
            index = self._lexical[view] = BM25Index(pool, config)
        queries = [
            replace(claim, candidates=tuple(ids))
            for claim, ids in zip(claims, candidates, strict=True)
        ]
        run = index.rank(queries, max(map(len, candidates), default=0))
        rarest = math.log1p((len(self._sources) - 0.5) / 1.5)
        scores = []
        for claim, ids in zip(claims, candidates, strict=True):
            ranked = run.scored(claim.id)
            scores.append(np.array([ranked.get(source, 0.0) for source in ids]) / rarest)
        return scores

    def _cosines(
        self,
        view: ViewConfig,
        claims: Sequence[Claim],
        candidates: Sequence[Sequence[str]],
        texts_of: Callable[[Sequence[Source], Rendering], list[list[str]]],
        fresh: bool,
    ) -> list[np.ndarray]:
        resolved = self.resolved(view)
        rendering = resolved.rendering or Rendering(view.claims, view.sources)
        ids = list(dict.fromkeys(source for ids_of_claim in candidates for source in ids_of_claim))
        parts = [_only(self._sources[source], view.part) for source in ids]
        texts = dict(zip(ids, texts_of(parts, rendering), strict=True))
        store = self.runtime.store
        sources = self._encoded(
            resolved, [t for text in texts.values() for t in text], "source", store
        )
        claim_texts = rendering.claim_texts(claims)
        own = self._encoded(resolved, claim_texts, "claim", None if fresh else store)
        cosines = []
        for text, ids_of_claim in zip(claim_texts, candidates, strict=True):
            if not ids_of_claim:
                cosines.append(np.empty(0))
                continue
            vectors = sources.of([t for source in ids_of_claim for t in texts[source]])
            starts = np.cumsum([0, *(len(texts[source]) for source in ids_of_claim[:-1])])
            cosines.append(np.maximum.reduceat(vectors @ own.of([text])[0], starts))
        return [scores.astype(np.float64) for scores in cosines]

    def _encoded(
        self,
        resolved: Resolved,
        texts: Sequence[str],
        side: Literal["claim", "source"],
        store: Store | None,
    ) -> TextVectors:
        """Encode distinct texts as vectors of length 1."""
        distinct = list(dict.fromkeys(texts))
        progress = f"{side}s" if self.runtime.progress else None
        vectors, _ = resolved.encoder.encode(distinct, side, store=store, progress=progress)
        rows = {text: row for row, text in enumerate(distinct)}
        return TextVectors(rows, unit_vectors(vectors) if distinct else vectors)


def _whole_texts(sources: Sequence[Source], rendering: Rendering) -> list[list[str]]:
    return [[text] for text in rendering.source_texts(sources)]


def _sentences(sources: Sequence[Source], rendering: Rendering) -> list[list[str]]:
    return [
        [text for text in (source.title.strip(), *split_sentences(source.abstract)) if text] or [""]
        for source in sources
    ]


def _only(source: Source, part: PartOfSource) -> Source:
    if part == "title":
        return replace(source, abstract="", venue="", authors=())
    if part == "abstract":
        return replace(source, title="", venue="", authors=())
    return replace(source, title="", abstract="") if part == "metadata" else source


def _lacks(source: Source, part: PartOfSource) -> bool:
    """Whether a source has nothing in a part: a low score would speak against it."""
    if part == "metadata":
        return not source.venue.strip() and not source.authors
    return not (source.title if part == "title" else source.abstract).strip()


def _as_grams(claim: Claim, view: ViewConfig) -> Claim:
    """Write a claim as its bigrams or pieces of words, to be compared as words."""
    parts = claim_parts(claim, view.claims)
    text = " ".join(_grams([part.text], view, part.language)[0] for part in parts)
    return replace(claim, text=text, lang="en", translation=None)


def _gram_sources(pool: Sequence[Source], view: ViewConfig) -> list[Source]:
    """Write the parts of sources as grams, none of which spans two parts."""
    titles = _grams([source.title for source in pool], view, view.bm25.language)
    abstracts = _grams([source.abstract for source in pool], view, view.bm25.language)
    return [
        replace(source, title=title, abstract=abstract)
        for source, title, abstract in zip(pool, titles, abstracts, strict=True)
    ]


def _grams(texts: Sequence[str], view: ViewConfig, language: str) -> list[str]:
    characters = view.terms == "characters"
    stemmer = None if characters else make_stemmer(view.bm25)
    left_out = sorted(
        get_stop_words(view.bm25, language) | get_stop_words(view.bm25, view.bm25.language)
    )
    speller = SPELLERS.get(view.bm25.language, str)
    split = import_bm25s().tokenize(
        [speller(nfkc(text)) for text in texts],
        stopwords=left_out,
        stemmer=stemmer,
        return_ids=False,
        show_progress=False,
    )
    if characters:
        grams_of: dict[str, str] = {}
        for word in {word for words in split for word in words}:
            marked = f"_{word}_"
            pieces = (marked[i : i + _GRAM] for i in range(max(1, len(marked) - _GRAM + 1)))
            grams_of[word] = " ".join(pieces)
        return [" ".join(grams_of[word] for word in words) for words in split]
    return [
        " ".join(f"{word}_{next_one}" for word, next_one in zip(words, words[1:], strict=False))
        for words in split
    ]


def decimal_year(date: str) -> float:
    """Read a year, with the month as its part, from a date such as 2020-03-01; NaN without one."""
    year, rest = divmod(first_day(date), 10_000)
    return year + (rest // 100 - 1) / 12 if year else math.nan
