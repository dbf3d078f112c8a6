"""Score candidates by single similarities of claim and source: the views of a learned fusion."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from claim2source.core.config import Settings, require, require_one_of
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source, nfkc
from claim2source.data.dates import first_day
from claim2source.data.known_posts import KnownPosts, other_posts, post_keys
from claim2source.data.store import Store
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.models.config import ModelChanges
from claim2source.search.bm25 import BM25, SPELLERS, BM25Index, get_stop_words, make_stemmer
from claim2source.search.dense import encoder_keys, of_model, unit_vectors
from claim2source.search.terms import import_bm25s
from claim2source.stages.known_posts import NearPosts
from claim2source.stages.pairs import Runtime
from claim2source.text import ClaimForm, Rendering, SourceForm
from claim2source.text.clean import split_sentences
from claim2source.text.views import claim_parts

Kind = Literal["bm25", "cosine", "best_sentence", "posts", "year"]
PartOfSource = Literal["all", "title", "abstract", "metadata"]
TermKind = Literal["words", "bigrams", "characters"]
# Letters of a character n-gram: McNamee and Mayfield (2004) found 4 best in European languages.
_GRAM = 4
# Known posts are dealt to folds: a claim that is one is scored without the posts of its fold.
_FOLDS = 10


@dataclass(frozen=True, kw_only=True)
class ViewConfig(Settings):
    """Describe one similarity of claims and sources.

    Args:
        score: `bm25`; `cosine` of an encoder's vectors; `best_sentence`, the claim's best cosine
            with the title or a sentence of the abstract; `posts`, the claim's nearness to the
            source's nearest known post, 0 if it has none; `year`, the source's own.
        part: part of a source: `all` (title and abstract), `title`, `abstract`, or, for bm25 of
            words, `metadata` (venue and authors).
        terms: terms of bm25: `words`, `bigrams` (two consecutive words, without stop words), or
            `characters` (character 4-grams of words).
        bm25: BM25's settings; with `metadata` the part `all` includes venue and authors, with
            `posts` the source's known posts.
        model: the encoder; none: the program's encoder. Keys without a name change the settings of
            that one.
        claims: claim form; a checkpoint has its own. English claims are the same in each.
        sources: form of the sources for an encoder; a checkpoint has its own.
        posts: the known posts of score `posts`; none: those of the program's data set.
    """

    score: Kind = "bm25"
    part: PartOfSource = "all"
    terms: TermKind = "words"
    bm25: BM25 = field(default_factory=BM25)
    model: ModelChanges | ModelConfig | None = None
    claims: ClaimForm = "bilingual"
    sources: SourceForm = "title_abstract"
    posts: KnownPosts | None = None

    def check(self) -> None:
        has_terms = self.score == "bm25" or self.terms == "words"
        require(has_terms, "terms", self.terms, "words but with score bm25")
        parts: tuple[str, ...] = ("all",)
        if self.score in ("bm25", "cosine"):
            parts = get_args(PartOfSource)
        if self.encodes or self.terms != "words":
            parts = tuple(part for part in parts if part != "metadata")
        require_one_of("part", self.part, parts)
        analysis = self.bm25.analysis
        is_whole = (self.score, self.terms, self.part) == ("bm25", "words", "all")
        allowed = "none, unless score is bm25, terms is words and part is all"
        require(is_whole or self.bm25.posts is None, "bm25.posts", self.bm25.posts, allowed)
        allowed = "terms: the others have other scores"
        require(analysis == "terms", "bm25.analysis", analysis, allowed)
        has_encoder = self.model is None or self.encodes
        require(has_encoder, "model", self.model, f"none with score {self.score}")
        has_posts = self.posts is None or self.score == "posts"
        require(has_posts, "posts", self.posts, f"none with score {self.score}")

    @property
    def encodes(self) -> bool:
        return self.score in ("cosine", "best_sentence", "posts")

    def encoder_over(self, default: ModelConfig) -> ModelConfig:
        """Return the encoder; settings without a name are applied to `default`."""
        if isinstance(self.model, ModelChanges):
            return self.model.over(default)
        return self.model or default

    @property
    def is_similarity(self) -> bool:
        """Whether a higher score favours a source, so that its weight must not be negative."""
        return self.score != "year"


class TextVectors(NamedTuple):
    """Vectors of texts by text."""

    rows: Mapping[str, int]
    vectors: np.ndarray

    def get(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of some texts, [texts, dimensions]."""
        rows = [self.rows[text] for text in texts]
        vectors: np.ndarray = self.vectors[rows]
        return vectors


class Scorer:
    """Score the candidates of claims in one pool by several views.

    `runtime` has the device and the store of vectors. Only the last view's encoder is kept in
    memory; `several` keeps all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        runtime: Runtime | None = None,
        *,
        several: bool = False,
    ) -> None:
        self._sources = {source.id: source for source in sources}
        self.runtime = runtime or Runtime()
        self._several = several
        self._encoders: dict[ModelConfig, Resolved] = {}
        self._lexical: dict[tuple[ViewConfig, int | None], BM25Index] = {}
        self._known: dict[ViewConfig, NearPosts] = {}

    def for_sources(self, sources: Sequence[Source]) -> Scorer:
        """Make a scorer of another pool that shares the encoders and the known posts."""
        scorer = Scorer(sources, self.runtime, several=self._several)
        scorer._encoders = self._encoders
        scorer._known = self._known
        return scorer

    def resolved(self, view: ViewConfig) -> Resolved:
        model = view.encoder_over(ModelConfig())
        if model not in self._encoders:
            if not self._several:
                self._encoders.clear()  # before loading the next one: memory may not hold two
            self._encoders[model] = resolve(model, self.runtime.device)
        return self._encoders[model]

    def key(self, view: ViewConfig) -> str:
        """Hash all that an encoder's scores depend on except libraries; "" without an encoder.

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
        hidden: Sequence[Claim] = (),
    ) -> list[np.ndarray]:
        """Score each claim's `candidates`, given by id; return an array for each list.

        BM25 is divided by the weight of a term in a single source, which grows with the pool. The
        score is NaN if a source lacks the part or, for the year, the date. `fresh` encodes claims
        even if their vectors are in the store, to measure the cost of a new claim. A claim is not a
        known post of itself, and `hidden` claims are known posts of none. In BM25 with known posts,
        a claim that is one of them is scored by an index without its fold, a tenth of the posts.
        """
        if view.score == "year":
            return [self._years(ids) for ids in candidates]
        if view.score == "bm25":
            values = self._bm25(view, claims, candidates, hidden)
        elif view.score == "posts":
            return self._nearness(view, claims, candidates, fresh, hidden)
        else:
            values = self._cosines(view, claims, candidates, fresh)
        if view.part == "all":
            return values
        known: list[np.ndarray] = []
        for ids, value in zip(candidates, values, strict=True):
            lacks = [_lacks(self._sources[source], view.part) for source in ids]
            known.append(np.where(lacks, np.nan, value))
        return known

    def _years(self, ids: Sequence[str]) -> np.ndarray:
        years = [decimal_year(self._sources[source].date) for source in ids]
        return np.array(years, np.float64)

    def _bm25(
        self,
        view: ViewConfig,
        claims: Sequence[Claim],
        candidates: Sequence[Sequence[str]],
        hidden: Sequence[Claim],
    ) -> list[np.ndarray]:
        rarest = math.log1p((len(self._sources) - 0.5) / 1.5)
        scores: list[np.ndarray] = [np.empty(0)] * len(claims)
        for fold, numbers in _by_known_fold(view, claims, hidden).items():
            index = self._lexical_index(view, fold, hidden)
            queries: list[Claim] = []
            for number in numbers:
                query = claims[number]
                if view.terms != "words":
                    query = _as_grams(query, view)
                queries.append(replace(query, candidates=tuple(candidates[number])))
            deepest = max((len(candidates[number]) for number in numbers), default=0)
            run = index.rank(queries, deepest)

            for number, query in zip(numbers, queries, strict=True):
                ranked = run.scored(query.id)
                own = [ranked.get(source, 0.0) for source in candidates[number]]
                scores[number] = np.array(own) / rarest
        return scores

    def _lexical_index(
        self,
        view: ViewConfig,
        fold: int | None,
        hidden: Sequence[Claim],
    ) -> BM25Index:
        """Return the pool's index of a view's terms, without the known posts of a fold.

        It is built on first use, and kept unless known posts are hidden.
        """
        key = (view, fold)
        is_kept = view.bm25.posts is None or not hidden
        if is_kept and key in self._lexical:
            return self._lexical[key]
        config = replace(view.bm25, claims=view.claims, metadata=_has_metadata(view))
        pool = [_only(source, view.part) for source in self._sources.values()]
        if view.terms != "words":
            pool = _gram_sources(pool, view)
            config = replace(
                config,
                metadata=False,
                stop_words=False,
                stemmer=False,
                claims="original",
            )
        posts = config.known_posts
        visible = other_posts(posts, hidden) if posts else []
        outside = [post for number, post in enumerate(visible) if number % _FOLDS != fold]
        index = BM25Index(pool, config, posts=outside)
        if is_kept:
            self._lexical[key] = index
        return index

    def _cosines(
        self,
        view: ViewConfig,
        claims: Sequence[Claim],
        candidates: Sequence[Sequence[str]],
        fresh: bool,
    ) -> list[np.ndarray]:
        """Return the highest cosine of each claim with the texts of each of its sources."""
        resolved = self.resolved(view)
        rendering = resolved.rendering or Rendering(view.claims, view.sources)
        texts = self._source_texts(view, candidates, rendering)
        source_texts: list[str] = []
        for own_texts in texts.values():
            source_texts += own_texts
        claim_texts = rendering.claim_texts(claims)
        store = self.runtime.store
        source_vectors = self._encoded(resolved, source_texts, "source", store)
        claim_vectors = self._encoded(resolved, claim_texts, "claim", None if fresh else store)

        highest: list[np.ndarray] = []
        for text, ids in zip(claim_texts, candidates, strict=True):
            if not ids:
                highest.append(np.empty(0))
                continue
            own_texts = []
            starts: list[int] = []
            for source in ids:
                starts.append(len(own_texts))
                own_texts += texts[source]
            cosines = source_vectors.get(own_texts) @ claim_vectors.get([text])[0]
            best = np.maximum.reduceat(cosines, starts)
            highest.append(best.astype(np.float64))
        return highest

    def _nearness(
        self,
        view: ViewConfig,
        claims: Sequence[Claim],
        candidates: Sequence[Sequence[str]],
        fresh: bool,
        hidden: Sequence[Claim],
    ) -> list[np.ndarray]:
        """Return each claim's nearness to the known posts of each of its sources."""
        resolved = self.resolved(view)
        rendering = resolved.rendering or Rendering(view.claims, view.sources)
        known = self._near_posts(view, rendering, hidden)
        texts = rendering.claim_texts(claims)
        vectors = self._encoded(resolved, texts, "claim", None if fresh else self.runtime.store)
        nearness: list[np.ndarray] = []
        for claim, text, ids in zip(claims, texts, candidates, strict=True):
            own = known.rows_equal_to(claim)
            values = known.nearness(vectors.get([text])[0], ids, own)
            nearness.append(values.astype(np.float64))
        return nearness

    def _near_posts(
        self,
        view: ViewConfig,
        rendering: Rendering,
        hidden: Sequence[Claim],
    ) -> NearPosts:
        """Return the known posts but the hidden ones; without these they are kept in memory."""
        if not hidden and view in self._known:
            return self._known[view]
        assert view.posts is not None
        posts = other_posts(view.posts.posts, hidden)
        texts = rendering.claim_texts(posts)
        vectors = self._encoded(self.resolved(view), texts, "claim", self.runtime.store)
        known = NearPosts.measured(posts, vectors.get(texts))
        if not hidden:
            self._known[view] = known
        return known

    def _source_texts(
        self,
        view: ViewConfig,
        candidates: Sequence[Sequence[str]],
        rendering: Rendering,
    ) -> dict[str, list[str]]:
        """Return the candidates' texts that a view compares: one each, or their sentences."""
        distinct: dict[str, Source] = {}
        for ids in candidates:
            for source in ids:
                if source not in distinct:
                    distinct[source] = _only(self._sources[source], view.part)
        parts = list(distinct.values())
        if view.score == "best_sentence":
            return {part.id: _sentences(part) for part in parts}
        texts: dict[str, list[str]] = {}
        for part, text in zip(parts, rendering.source_texts(parts), strict=True):
            texts[part.id] = [text]
        return texts

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
        if distinct:
            vectors = unit_vectors(vectors)
        return TextVectors(rows, vectors)


def _by_known_fold(
    view: ViewConfig,
    claims: Sequence[Claim],
    hidden: Sequence[Claim],
) -> Mapping[int | None, Sequence[int]]:
    """Group the numbers of claims by fold: that of the post with the same id or text.

    It is None for a claim that is not a known post, or whose post is hidden. One index for each
    claim would be too slow.
    """
    posts = view.bm25.known_posts
    visible = other_posts(posts, hidden) if posts else []
    fold_by_key: dict[tuple[str, str], int] = {}
    for number, post in enumerate(visible):
        for key in post_keys(post):
            fold_by_key[key] = number % _FOLDS

    numbers = defaultdict[int | None, list[int]](list)
    for number, claim in enumerate(claims):
        own = [fold_by_key[key] for key in post_keys(claim) if key in fold_by_key]
        fold = min(own, default=None)
        numbers[fold].append(number)
    return numbers


def _has_metadata(view: ViewConfig) -> bool:
    """Whether BM25 also indexes venues and authors."""
    if view.part == "all":
        return view.bm25.metadata
    return view.part == "metadata"


def _sentences(source: Source) -> list[str]:
    """List a source's title and the sentences of its abstract; an empty text if it has none."""
    sentences = split_sentences(source.abstract)
    title = source.title.strip()
    if title:
        sentences = [title, *sentences]
    return sentences or [""]


def _only(source: Source, part: PartOfSource) -> Source:
    if part == "title":
        return replace(source, abstract="", venue="", authors=())
    if part == "abstract":
        return replace(source, title="", venue="", authors=())
    if part == "metadata":
        return replace(source, title="", abstract="")
    return source


def _lacks(source: Source, part: PartOfSource) -> bool:
    """Whether a source lacks a part, so that a low score would be unfair."""
    if part == "metadata":
        return not source.venue.strip() and not source.authors
    text = source.title if part == "title" else source.abstract
    return not text.strip()


def _as_grams(claim: Claim, view: ViewConfig) -> Claim:
    """Replace a claim's text by its bigrams or character n-grams, which BM25 treats as words."""
    grams: list[str] = []
    for part in claim_parts(claim, view.claims):
        grams += _grams([part.text], view, part.language)
    return replace(claim, text=" ".join(grams), lang="en", translation=None)


def _gram_sources(pool: Sequence[Source], view: ViewConfig) -> list[Source]:
    """Replace the parts of sources by n-grams, none of which spans two parts."""
    titles = _grams([source.title for source in pool], view, view.bm25.language)
    abstracts = _grams([source.abstract for source in pool], view, view.bm25.language)
    written: list[Source] = []
    for source, title, abstract in zip(pool, titles, abstracts, strict=True):
        written.append(replace(source, title=title, abstract=abstract))
    return written


def _grams(texts: Sequence[str], view: ViewConfig, language: str) -> list[str]:
    """Return texts in a language as a view's n-grams, separated by spaces."""
    config = view.bm25
    left_out = get_stop_words(config, language) | get_stop_words(config, config.language)
    speller = SPELLERS.get(config.language, str)
    has_characters = view.terms == "characters"
    split: list[list[str]] = import_bm25s().tokenize(
        [speller(nfkc(text)) for text in texts],
        stopwords=sorted(left_out),
        stemmer=None if has_characters else make_stemmer(config),
        return_ids=False,
        show_progress=False,
    )
    if has_characters:
        pieces: dict[str, str] = {}
        for words in split:
            for word in words:
                if word not in pieces:
                    pieces[word] = _character_grams(word)
        return [" ".join(map(pieces.__getitem__, words)) for words in split]
    return [_bigrams(words) for words in split]


def _character_grams(word: str) -> str:
    """Return the overlapping character n-grams of a word with marked ends."""
    marked = f"_{word}_"
    count = max(1, len(marked) - _GRAM + 1)
    pieces = [marked[start : start + _GRAM] for start in range(count)]
    return " ".join(pieces)


def _bigrams(words: Sequence[str]) -> str:
    bigrams = [f"{first}_{second}" for first, second in pairwise(words)]
    return " ".join(bigrams)


def decimal_year(date: str) -> float:
    """Return the year and fraction of a date such as 2020-03-01; NaN without a date."""
    year, rest = divmod(first_day(date), 10_000)
    if not year:
        return math.nan
    return year + (rest // 100 - 1) / 12
