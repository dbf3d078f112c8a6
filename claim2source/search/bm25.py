"""Rank sources by BM25: our analysis (stop words, stemmer, title weight) or the papers' own."""

from __future__ import annotations

import copy
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from claim2source.core.arguments import require_kind, whole_number
from claim2source.core.config import Between, Settings, Share
from claim2source.core.machine import peak_memory, reset_peak_memory
from claim2source.core.progress import track
from claim2source.core.provenance import version
from claim2source.core.records import Claim, Dataset, Source, nfkc
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.core.stage import Claims, as_claims, as_sources
from claim2source.core.terminal import one_line
from claim2source.data.known_posts import KnownPosts, hash_posts, numbers_by_key, post_keys
from claim2source.data.store import Store
from claim2source.search.cache import read_or_search, request_key, sources_hash
from claim2source.search.terms import Analysis, Counts, Postings, Terms, import_bm25s
from claim2source.search.topk import SourceIds, take_top_rows
from claim2source.text import ClaimForm, SourceForm, clean_authors
from claim2source.text.clean import (
    SPACY_MODEL,
    STOP_WORDS,
    clean_post,
    has_unseen,
    lemma_texts,
    normalise_arabic,
    pipeline_identity,
    without_unseen,
)
from claim2source.text.views import ClaimPart, claim_parts, render_claim

if TYPE_CHECKING:
    from claim2source.search.choose import Grid

log = logging.getLogger(__name__)

# bm25s and Stemmer are imported on use: training on mined negatives needs neither.
Language = Literal["en", "de", "fr", "ar"]
_STEMMERS = {
    "en": "english",
    "de": "german",
    "fr": "french",
    "ar": "arabic",
}
_STOP_WORDS = {
    "en": "STOPWORDS_EN",
    "de": "STOPWORDS_GERMAN",
    "fr": "STOPWORDS_FRENCH",
}
_OWN_STOP_WORDS = {"ar": STOP_WORDS}
# Normalises spellings of a word before texts are split into words.
SPELLERS = {"ar": normalise_arabic}
# Version of each analysis; increased if the same settings and texts give another run.
FORMATS = {
    "terms": 4,
    "whitespace": 3,
    "spaces": 3,
    "lemmas": 3,
}
BM25_GRID: Grid = (
    ("title_weight", (1, 2, 3)),
    ("k1", (1.2, 0.9, 1.5, 2.0, 0.6)),
    ("b", (0.75, 0.5, 0.9, 0.3)),
)
NO_TERM = "no term in common with any source"
# Scores in memory at a time (8 MiB), so that they stay in the processor's cache.
_CELLS = 2**21


@dataclass(frozen=True)
class BM25(Settings):
    """Rank sources by the terms they share with a claim.

    With a `store`, runs are stored: the same claims and sources are not searched again. The store
    is not a setting and does not affect equality.

    Example:
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> index = c2s.BM25(k1=1.5, title_weight=2).index(dev.sources)
        >>> len(index.search(dev.claims, k=10).sources(dev.claims[0].id))
        10

    Args:
        analysis: `terms` (NFKC, lower case, without stop words, stemmed); `whitespace`, the papers'
            variant: only str.split; `spaces`, the organisers' own: split(" "), which does not split
            at line breaks and makes a second space a term; or `lemmas`, the news paper's
            released one: spaCy's lemmas, lower case, without stop words and other characters than
            letters and digits. The last three have rank_bm25's BM25Okapi scores; set k1 to 1.5 and
            b to 0.75 for its defaults.
        k1: saturation of term frequency, 0 or more.
        b: share of length normalisation, 0 to 1.
        title_weight: how often the title's terms are counted.
        abstracts: index abstracts, or bodies of articles; false: only titles.
        metadata: also index authors and venue.
        language: language of the sources. Its stemmer is used for sources and claims, because only
            stems of the same stemmer match. Stop words are those of a claim's language, or of the
            language of each part of a bilingual claim; the sources' are always removed. With `ar`,
            spellings are normalised first (`text/clean.py`).
        claims: claim form.
        stop_words: remove stop words; only for `terms`.
        stemmer: compare stems instead of words; only for `terms`.
        clean: remove links, handles, emojis and hash signs from claims; hashtags keep their word.
        pipeline: spaCy pipeline for `lemmas` in the sources' language: a package or a folder.
        posts: posts whose sources are known; each is indexed as text of its sources, in the form of
            the claims, unless it equals a claim that is ranked. For claims that mostly refer to
            sources with known posts.
    """

    analysis: Literal["terms", "whitespace", "spaces", "lemmas"] = "terms"
    k1: Annotated[float, Between(0, 1000)] = 1.2
    b: Share = 0.75
    title_weight: Annotated[int, Between(1, 100)] = 1
    abstracts: bool = True
    metadata: bool = False
    language: Language = "en"
    claims: ClaimForm = "original"
    stop_words: bool = True
    stemmer: bool = True
    clean: bool = False
    pipeline: str = SPACY_MODEL
    posts: KnownPosts | None = None
    store: InitVar[Any] = field(default=None, kw_only=True)

    def __post_init__(self, store: Store | None) -> None:
        require_kind(store, (Store, type(None)), "store", "a Store, or None")
        # `replace` needs it as an attribute.
        vars(self)["store"] = store
        super().__post_init__()

    @property
    def format(self) -> int:
        """Return the version of the analysis, which determines the terms."""
        return FORMATS[self.analysis]

    @property
    def known_posts(self) -> Sequence[Claim]:
        """Load the known posts. Raises `UserError` if there are none in the data set."""
        return self.posts.posts if self.posts is not None else ()

    @property
    def sources(self) -> SourceForm:
        if self.metadata:
            return "metadata"
        return "title_abstract" if self.abstracts else "title"

    def fit(
        self,
        val: Dataset,
        grid: Grid = BM25_GRID,
        rule: Rule = "one_se",
    ) -> tuple[BM25, Choice]:
        """Choose k1, b and title weight of each analysis of a grid, then one of the analyses.

        Texts are analysed once for each analysis and title weight.
        """
        # The code for choosing is not imported to search.
        from claim2source.search.choose import (
            DEPTH,
            by_analysis,
            choose_from_grid,
            grid_settings,
            settle,
            weigh,
        )

        weighing = weigh(val)
        settings = grid_settings(self, grid)
        claims = [claim for claim in val.claims if claim.golds]
        candidates: dict[BM25, np.ndarray] = {}
        analyses = by_analysis(settings, "k1", "b")
        for analysis, cells in track(analyses, "BM25's analyses", len(analyses)):
            index = BM25Index(val.sources, analysis).without_posts(claims)
            terms = index.terms(claims)
            for cell in cells:
                run = index.reweighted(cell.k1, cell.b).rank(claims, DEPTH, terms)
                candidates[cell] = weighing.of(run)

        parts: list[tuple[BM25, Choice]] = []
        for _, cells in by_analysis(settings, "k1", "b", "title_weight"):
            tried = {cell: candidates[cell] for cell in cells}
            chosen = choose_from_grid("bm25", tried, grid, weighing, rule)
            parts.append(chosen)
        if len(parts) == 1:
            return parts[0]
        return settle(parts, candidates, weighing)

    def index(self, sources: Sequence[Source]) -> BM25Index:
        """Return the index of these sources; its first search analyses their texts."""
        posts = self.known_posts
        golds = {gold for post in posts for gold in post.golds}
        if posts and golds.isdisjoint(source.id for source in sources):
            log.warning("bm25.posts: no known post refers to a source that is indexed")
        return BM25Index(sources, self, vars(self)["store"])


@dataclass(frozen=True, eq=False)
class _Analysed:
    ids: SourceIds
    analysis: Analysis
    postings: Postings | None


class BM25Index:
    """Search sources by BM25. Raises ValueError on a source id that repeats.

    `posts` are indexed with their sources; None: those of the settings.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        config: BM25 | None = None,
        store: Store | None = None,
        posts: Sequence[Claim] | None = None,
    ) -> None:
        self.config = config or BM25()
        self._posts = self.config.known_posts if posts is None else posts
        self._without: BM25Index | None = None
        sources = as_sources(sources)
        self.source_ids = [source.id for source in sources]
        distinct_ids = set(self.source_ids)
        if len(distinct_ids) != len(self.source_ids):
            raise ValueError("a source id repeats")
        self._sources = sources
        self._store = store
        self._analysed: _Analysed | None = None
        self._sources_hash: str | None = None
        self._has_unseen = False

    def __repr__(self) -> str:
        return one_line(self, sources=len(self.source_ids), config=self.config)

    def build(self) -> Cost:
        """Analyse the sources now, not in the first search; the cost is 0 if they already are."""
        if self._analysed is not None:
            return Cost()
        started = time.perf_counter()
        self._built()
        seconds = time.perf_counter() - started
        memory = peak_memory(gpu=False)
        return Cost(seconds, len(self.source_ids), memory)

    def _built(self) -> _Analysed:
        if self._analysed is None:
            analysis = make_analysis(self.config)
            counts = analysis.counted_sources(prepared(self._texts(), self.config))
            ids = SourceIds(self.source_ids)
            postings = self._weighed(counts)
            self._analysed = _Analysed(ids, analysis, postings)
        return self._analysed

    def _texts(self) -> list[str]:
        texts = [source_text(source, self.config) for source in self._sources]
        if self._posts:
            of_source = post_texts(self._posts, self.config)
            for number, source_id in enumerate(self.source_ids):
                own = of_source.get(source_id, [])
                texts[number] = " ".join([texts[number], *own])
        return texts

    @cached_property
    def _post_numbers(self) -> Mapping[tuple[str, str], Sequence[int]]:
        return numbers_by_key(self._posts)

    def without_posts(self, claims: Sequence[Claim]) -> BM25Index:
        """Return an index without the posts that equal a claim; this one if there are none."""
        if not self._posts:
            return self
        hidden: set[int] = set()
        for claim in claims:
            for key in post_keys(claim):
                hidden.update(self._post_numbers.get(key, ()))
        if not hidden:
            return self
        others = [post for number, post in enumerate(self._posts) if number not in hidden]
        if self._without is None or self._without._posts != others:
            self._without = BM25Index(self._sources, self.config, self._store, others)
        return self._without

    def _weighed(self, counts: Counts | None) -> Postings | None:
        if counts is None:
            return None
        okapi = self.config.analysis != "terms"
        return Postings(counts, self.config.k1, self.config.b, okapi)

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` sources of every claim, or read the stored run."""
        started = time.perf_counter()
        reset_peak_memory()
        claims = as_claims(claims)
        k = whole_number(k, "k")

        def search() -> Result:
            run = self.rank(claims, k)
            failures: list[Failure] = []
            for claim in claims:
                if not run.sources(claim.id, 1):
                    failures.append(Failure(claim.id, NO_TERM))
            seconds = time.perf_counter() - started
            memory = peak_memory(gpu=False)
            cost = Cost(seconds, len(claims), memory)
            return Result(run, failures=tuple(failures), cost=cost)

        key = self._key(claims, k)
        return read_or_search(self._store, key, search)

    def _key(self, claims: Sequence[Claim], k: int) -> dict[str, Any] | None:
        if self._store is None:
            return None
        if self._sources_hash is None:
            texts = self._texts()
            self._sources_hash = sources_hash(self._sources, texts)
            self._has_unseen = any(map(has_unseen, texts))
        # Stop words depend on the language of each part.
        claim_texts: list[list[list[str]]] = []
        is_changed = self._has_unseen
        for claim in claims:
            parts = claim_parts(claim, self.config.claims)
            claim_texts.append([[part.text, part.language] for part in parts])
            if not is_changed:
                is_changed = any(has_unseen(part.text) for part in parts)
        # Older stored runs treated such characters as word boundaries.
        without: dict[str, str] = {}
        if is_changed and self.config.analysis == "terms":
            without["without"] = "unseen"
        settings = asdict(self.config)
        del settings["posts"]  # their folder's name changes nothing
        if self._posts:
            settings["posts"] = hash_posts(self._posts)
        versions = library_versions(self.config)
        request = request_key(claims, claim_texts, self._sources_hash, k)
        return {
            "stage": "bm25",
            **without,
            "bm25": [self.config.format, settings],
            "versions": versions,
            **request,
        }

    def reweighted(self, k1: float, b: float) -> BM25Index:
        """Copy the index with another k1 and b, without analysing the sources again."""
        built = self._built()
        copied = copy.copy(self)
        copied.config = replace(self.config, k1=k1, b=b)
        counts = built.postings.counts if built.postings else None
        postings = copied._weighed(counts)
        copied._analysed = replace(built, postings=postings)
        copied._without = None
        return copied

    def terms(self, claims: Sequence[Claim]) -> Terms:
        """List the ids of the index's terms in every claim, in text order, with repeats.

        Every part of a claim is analysed with the stop words of its own language.
        """
        analysis = self._built().analysis
        parts: list[ClaimPart] = []
        counts = [0]
        for claim in claims:
            own = claim_parts(claim, self.config.claims)
            parts += own
            counts.append(len(own))
        groups: dict[str, list[int]] = {}
        for number, part in enumerate(parts):
            group = groups.setdefault(part.language, [])
            group.append(number)

        ids_of_parts = [np.empty(0, np.int32)] * len(parts)
        for language, numbers in groups.items():
            texts = [parts[number].text for number in numbers]
            texts = prepared_claims(texts, self.config)
            stop_words = get_stop_words(self.config, language)
            terms = analysis.claims(texts, stop_words)
            for number, ids in zip(numbers, terms.split(), strict=True):
                ids_of_parts[number] = ids
        joined = Terms.joined(ids_of_parts)
        ends = np.cumsum(counts)
        bounds = joined.bounds[ends]
        return Terms(joined.ids, bounds)

    def rank(self, claims: Sequence[Claim], k: int, terms: Terms | None = None) -> Run:
        """Rank the best `k` sources that have a term in common with the claim.

        Ties are broken by id, descending. `terms` are the claims' `terms` if they are already
        known. Known posts that equal a claim are left out.
        """
        positions, scores = self.top(claims, k, terms)
        return self._built().ids.run(claims, positions, scores)

    def top(
        self,
        claims: Sequence[Claim],
        k: int,
        terms: Terms | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rank as `rank`, to positions (-1: none) and scores, [claims, at most k] each."""
        index = self.without_posts(claims)
        if index is not self:
            return index.top(claims, k)
        built = self._built()
        depth = min(k, len(self.source_ids))
        shape = (len(claims), depth)
        positions = np.full(shape, -1, dtype=np.int64)
        scores = np.zeros(shape, dtype=np.float32)
        if built.postings is None or not depth:
            return positions, scores
        if terms is None:
            terms = self.terms(claims)
        block = max(1, _CELLS // len(self.source_ids))
        for start in range(0, len(claims), block):
            rows = slice(start, start + block)
            part = claims[rows]
            end = start + len(part)
            terms_of_block = terms.part(start, end)
            positions[rows], scores[rows] = _top(
                built.postings,
                built.ids,
                part,
                terms_of_block,
                depth,
            )
        return positions, scores


def _top(
    postings: Postings,
    ids: SourceIds,
    claims: Sequence[Claim],
    terms: Terms,
    depth: int,
) -> tuple[np.ndarray, np.ndarray]:
    scores = postings.score_documents(terms)
    sources = scores.shape[1]
    rows_with_candidates: list[int] = []
    for row, claim in enumerate(claims):
        if claim.candidates is not None:
            rows_with_candidates.append(row)
    # As many more as may be removed afterwards.
    removed = max(len(claim.excluded) for claim in claims)
    matches = postings.matching(terms, scores, depth + removed)
    if rows_with_candidates:
        # The best of the pool may not be among a claim's candidates.
        texts = terms.split()
        lists = Terms.joined([texts[row] for row in rows_with_candidates])
        matches[rows_with_candidates] = postings.matching(
            lists,
            scores[rows_with_candidates],
            sources,
        )
    for row in rows_with_candidates:
        allowed = np.zeros(sources, dtype=bool)
        candidates = ids.candidates(claims[row])
        allowed[candidates] = True
        matches[row] &= allowed
    for row, claim in enumerate(claims):
        if claim.excluded:
            excluded = ids.excluded(claim)
            matches[row, excluded] = False
    return take_top_rows(scores, matches, depth, ids.order)


def library_versions(config: BM25) -> dict[str, str]:
    """Return the versions of the libraries that determine the terms of a text."""
    versions = {name: version(name) for name in ("bm25s", "PyStemmer")}
    if config.analysis != "lemmas":
        return versions
    return versions | pipeline_identity(config.pipeline)


def make_analysis(config: BM25, language: str | None = None) -> Analysis:
    """Make the analysis of sources, or of claims in a language, whose stop words are also removed.

    Its input must be `prepared`.
    """
    if config.analysis != "terms":
        at_spaces = config.analysis == "spaces"
        return Analysis(True, (), None, at_spaces=at_spaces)
    stop_words = get_stop_words(config, config.language)
    if language is not None:
        stop_words |= get_stop_words(config, language)
    stemmer = make_stemmer(config)
    speller = SPELLERS.get(config.language)
    return Analysis(False, stop_words, stemmer, speller)


def make_stemmer(config: BM25) -> Any | None:
    """Make PyStemmer's stemmer of the sources' language; None without stemming."""
    if not config.stemmer:
        return None
    return make_language_stemmer(config.language)


def make_language_stemmer(language: str) -> Any | None:
    """Make PyStemmer's stemmer of a language; None for others than those of `BM25.language`."""
    if language not in _STEMMERS:
        return None
    import Stemmer

    # Each word is stemmed once, so a cache would not help.
    return Stemmer.Stemmer(_STEMMERS[language], 0)


def prepared(texts: list[str], config: BM25) -> list[str]:
    """Prepare texts for their analysis: in NFKC, unchanged, or as spaCy's lemmas.

    In NFKC, soft hyphens and zero-width characters are removed.
    """
    if config.analysis == "lemmas":
        return lemma_texts(texts, config.pipeline)
    if config.analysis == "terms":
        return list(map(_normalise, texts))
    return texts


def _normalise(text: str) -> str:
    return without_unseen(nfkc(text))


def prepared_claims(texts: list[str], config: BM25) -> list[str]:
    """Prepare texts of claims, which may be cleaned first."""
    return prepared(cleaned(texts, config), config)


def cleaned(texts: list[str], config: BM25) -> list[str]:
    """Clean texts of posts, if the settings say so."""
    if not config.clean:
        return texts
    # In NFKC first: a handle or a hashtag would end at a combining accent.
    if config.analysis == "terms":
        texts = list(map(_normalise, texts))
    return list(map(clean_post, texts))


def get_stop_words(config: BM25, language: str) -> set[str]:
    """List the stop words of a language; [] if it has no list."""
    if config.analysis != "terms" or not config.stop_words:
        return set()
    if language in _OWN_STOP_WORDS:
        return set(_OWN_STOP_WORDS[language])
    if language not in _STOP_WORDS:
        return set()
    name = _STOP_WORDS[language]
    words = getattr(import_bm25s().stopwords, name)
    return set(words)


def source_text(source: Source, config: BM25) -> str:
    """Return a source's text to index."""
    parts = [source.title] * config.title_weight
    if config.abstracts:
        parts.append(source.abstract)
    if config.metadata:
        authors = clean_authors(source.authors)
        parts += [source.venue, " ".join(authors)]
    if config.analysis == "spaces":
        return " ".join(parts)  # the organisers also join an empty title
    return " ".join(part for part in parts if part)


def post_texts(posts: Sequence[Claim], config: BM25) -> Mapping[str, list[str]]:
    """Return the texts of each source's posts, in the form in which claims are searched."""
    texts = [render_claim(post, config.claims) for post in posts]
    texts = cleaned(texts, config)
    of_source = defaultdict[str, list[str]](list)
    for post, text in zip(posts, texts, strict=True):
        for gold in post.golds:
            of_source[gold].append(text)
    return of_source
