"""Find the papers of an index that posts may mean, ranked and with reasons."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from claim2source.core.arguments import whole_number
from claim2source.core.config import Share, flag, list_field, require
from claim2source.core.languages import primary_language
from claim2source.core.records import Claim
from claim2source.core.run import Result
from claim2source.core.terminal import one_line
from claim2source.data.dates import last_day
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.data.store import Store
from claim2source.find.abstention import (
    DEEPEST,
    DENSE,
    FUSED,
    LEXICAL,
    AbstainModel,
    Tenth,
    candidate_languages,
    read_abstention,
)
from claim2source.find.allowed import require_allowed
from claim2source.find.judging import NOT_JUDGED as NOT_JUDGED
from claim2source.find.judging import Judged, judge
from claim2source.find.judging import Verdict as Verdict
from claim2source.find.matching import MatchingWords, Words
from claim2source.find.sentences import FoundPapers, nearest_sentences, several_sentences
from claim2source.llm.config import LLMConfig
from claim2source.models import ENGLISH
from claim2source.models.config import NUMPY, ModelChanges, ModelConfig
from claim2source.models.local import ModelOptions
from claim2source.search.engine import Engine
from claim2source.search.growing import batches
from claim2source.search.rows import Where
from claim2source.search.table import NEW, PaperTable, SearchResults
from claim2source.search.translator import TranslatorConfig, Translators
from claim2source.stages.details import DEPTH as DETAILS_DEPTH
from claim2source.stages.details import rank_by_details, read_claim
from claim2source.text.language import CODES, language_name, likeliest
from claim2source.text.views import claim_parts

if TYPE_CHECKING:
    from claim2source.systems.opened import OpenedSystem
    from claim2source.systems.system import System

log = logging.getLogger(__name__)

INDEX = "CLAIM2SOURCE_INDEX"
# Posts that are searched and re-ranked at a time.
MAX_BATCH = 64
# Names that `on_part` is called with, besides the names of stages.
TRANSLATION, SEARCH, SENTENCES = "translation", "search", "sentences"
# Fewest characters for detecting a language.
_SAMPLE = 5_000
# Growth of an index after which its abstention is stale.
GROWN = 2
_VERIFY = "verify"


@dataclass(frozen=True)
class Match:
    """Paper that a post may mean.

    `score` is the last stage's, `parts` are the scores of every stage that ranks it. `sentence` is
    the finding of its abstract nearest to the post, `post_sentence` the post's sentence nearest to
    this finding, "" if the post has only one. `words` are words of the post and the matching words
    of the paper's title, abstract, authors or venue. `of` is its index, if several are searched.
    """

    rank: int
    paper: Paper
    score: float
    parts: Mapping[str, float]
    sentence: str
    post_sentence: str = ""
    words: Words = ((), ())
    of: IndexState | None = None


@dataclass(frozen=True)
class IndexState:
    """Identity of an index's state and of the settings, by which a search can be repeated.

    `name` is "" if only one index was searched.
    """

    version: int
    model: str
    settings: Mapping[str, object]
    name: str = ""


@dataclass(frozen=True)
class Answer:
    """Papers for a post, and the verdict whether its own paper is among them.

    `present` is the probability that its paper is in the index, None if it is unknown. By it,
    `verdict` is "found", "uncertain" or "not here", else "not judged"; `abstained` is whether it is
    "not here", None if it was not judged. `measured` counts the held-out answers with this verdict;
    `warnings` are reasons for less trust. `reasoning` is a verifier's. `searched` is the
    translation that was used as the query, "" if it was the post itself. `untranslated`: whether
    the translator failed. `unencoded`: whether the model of an index without vectors failed, so
    that only words ranked the papers. `unjudged` is the reason why a model of the index did not
    judge this post; `shared`: whether the model is of other collections. `indexes` are the names of
    several searched indexes, `lost` those that could not be read; then each paper has its `of`.
    """

    post: Post
    lang: str
    matches: tuple[Match, ...]
    abstained: bool | None = None
    present: float | None = None
    reasoning: str = ""
    verdict: Verdict = NOT_JUDGED
    of: IndexState | None = None
    measured: Tenth | None = None
    warnings: tuple[str, ...] = ()
    searched: str = ""
    untranslated: bool = False
    unencoded: bool = False
    unjudged: str = ""
    shared: bool = False
    indexes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return one_line(
            self,
            post=self.post.id,
            lang=self.lang,
            papers=tuple(match.paper.source.id for match in self.matches),
            verdict=self.verdict,
        )


class Finder:
    """Find papers in an index; the model is loaded only once.

    `pipeline` is the system to run: the index replaces its first stage. `threshold` overrides that
    of the model of abstention. `on_part` is called with the name of each part of the work when it
    begins. `translators` translate posts that have no translation. `unencoded` counts the posts
    for which the model of an index without vectors failed, by reason. Raises `UserError` if the
    pipeline's first stage does not match the index.
    """

    def __init__(
        self,
        engine: Engine,
        pipeline: System | None = None,
        *,
        translators: Translators | None = None,
        threshold: float | None = None,
        store: Store | None = None,
        device: str | None = None,
        progress: bool = False,
        sentences: bool = True,
    ) -> None:
        self.engine, self.sentences, self.threshold = engine, sentences, threshold
        self.translators = translators
        language = engine.manifest.bm25.language
        allowed = f"none: the index's papers are in {language_name(language)}"
        require(translators is None or language == "en", "translator", "", allowed)
        self.on_part: Callable[[str], None] = lambda part: None
        self.unencoded: Counter[str] = Counter()
        self._abstain: tuple[object, AbstainModel | None] | None = None
        self._matching = MatchingWords(engine.manifest.post_terms)
        self._system: OpenedSystem | None = None
        if pipeline is not None:
            # Its imports take longer than an answer.
            from claim2source.systems.opened import OpenedSystem
            from claim2source.systems.runtime import SystemRuntime

            runtime = SystemRuntime(store, device, progress)
            self._system = OpenedSystem(engine, pipeline, runtime)
        judges = self.abstain is not None
        allowed = "none: this index has no fitted verdict; fit one with index --claims DATASET"
        require(threshold is None or judges, "threshold", threshold, allowed)
        self._warn_of_unfinished()

    def _warn_of_unfinished(self) -> None:
        """Warn if a run of `index` was stopped, so that answers may change."""
        unbuilt = self.engine.stats().unbuilt
        is_new = self.engine.version == NEW and not self.engine.at
        if unbuilt:
            log.warning(
                "%s: an unfinished run has written %d papers that are not in its search structures "
                "yet; answers may change",
                *(self.engine.location, unbuilt),
            )
        elif self.engine.manifest.stale or is_new:
            log.warning(
                "%s: a run of `index` did not finish; run the same command again",
                self.engine.location,
            )

    def __repr__(self) -> str:
        return one_line(self, index=str(self.engine.location), stages=tuple(self.stage_names))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the indexes if there are several."""
        return self.engine.names

    @property
    def stage_names(self) -> list[str]:
        return [] if self._system is None else self._system.stage_names

    @property
    def papers(self) -> int:
        """Return the number of papers at the last search."""
        return self.engine.manifest.papers

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the names of indexes that could not be read at the last search."""
        return self.engine.lost

    def warm_up(self) -> None:
        """Load the model and the index."""
        self.engine.search("a post", k=1)

    @property
    def untranslated(self) -> int:
        """Return the number of posts so far that the translators failed for."""
        return 0 if self.translators is None else self.translators.failures.total()

    @property
    def abstain(self) -> AbstainModel | None:
        """Read the current model of abstention of the index."""
        fitted = self.engine.manifest.abstain
        if fitted is None:
            return None
        if self._abstain is None or self._abstain[0] is not fitted:
            self._abstain = fitted, read_abstention(self.engine)
        return self._abstain[1]

    def find(self, posts: Sequence[Post], k: int = 10, where: Where | None = None) -> list[Answer]:
        """Find `k` papers for every post, in order.

        A post with a date is compared only with papers that were not published later.
        """
        return list(self.find_each(iter(posts), k, where))

    def find_each(
        self, posts: Iterator[Post], k: int = 10, where: Where | None = None
    ) -> Iterator[Answer]:
        """Find papers for a few posts at a time, because all may not fit into memory."""
        k = whole_number(k, "k")
        for part in batches(posts, MAX_BATCH):
            yield from self._find_together(part, k, where or Where())

    def _find_together(self, posts: Sequence[Post], k: int, where: Where) -> list[Answer]:
        by_date: dict[str, list[Post]] = {}
        for post in posts:
            dated = bool(post.date) and last_day(post.date) > 0
            by_date.setdefault(post.date if dated and where.until is None else "", []).append(post)
        answers: dict[str, Answer] = {}
        for date, dated_posts in by_date.items():
            until = date or where.until
            narrowed = Where(until, where.language, where.venue, where.ids)
            answers |= {answer.post.id: answer for answer in self._find(dated_posts, k, narrowed)}
        return [answers[post.id] for post in posts]

    def _find(self, posts: Sequence[Post], k: int, where: Where) -> list[Answer]:
        self.on_part(SEARCH)
        claims = [post.claim(post_language(post, self.engine)) for post in posts]
        untranslated: set[str] = set()
        if self.translators is not None:
            self.on_part(TRANSLATION)
            claims, untranslated = self.translators.translate_claims(claims)
        found = self._search(claims, k, where)
        judged = judge(self.engine, self.abstain, claims, found.results, self.threshold)
        self.on_part(SENTENCES)
        nearest = nearest_sentences(self.engine, claims, found) if self.sentences else {}
        answers = []
        for post, claim in zip(posts, claims, strict=True):
            matches = self._matches(claim, found, nearest, where)
            answer = self._answer(post, claim, matches, found, judged, where)
            answers.append(replace(answer, untranslated=claim.id in untranslated))
        return answers

    def _search(self, claims: Sequence[Claim], k: int, where: Where) -> FoundPapers:
        """Search the index, load the papers, and apply the stages."""
        sentences: dict[str, list[str]] = {}
        for claim in claims:
            if self.sentences:
                sentences[claim.id] = several_sentences(claim)
        depth = DEEPEST if self._system is None else max(DEEPEST, self._system.depth)
        texts = [text for lines in sentences.values() for text in lines]
        results = self.engine.find(claims, max(k, depth), where, texts)
        if results.unencoded:
            self.unencoded[results.unencoded] += len(claims)
        papers, vectors = self.engine.fetch_with_sentences(self._ranked_ids(claims, results, k))
        if self._system is None:
            by_id = {key: paper.source for key, paper in papers.items()}
            run = rank_by_details(claims, by_id, results.fused.run)
            fused = replace(results.fused, run=run)
            stages = [(LEXICAL, results.lexical), (DENSE, results.dense), (FUSED, fused)]
        else:
            sources = [paper.source for paper in papers.values()]
            stages = self._system.apply(claims, results, sources, self.on_part)
        last = stages[-1][1].run
        listed = {}
        for claim in claims:
            # Another process may have removed a paper in the meantime.
            listed[claim.id] = [key for key in last.sources(claim.id, k) if key in papers]
        return FoundPapers(results, stages, papers, listed, sentences, vectors)

    def _ranked_ids(self, claims: Sequence[Claim], results: SearchResults, k: int) -> list[str]:
        """List the papers to load: those of the answers and those that stages or details rank."""
        ids: dict[str, None] = {}
        for claim in claims:
            if self._system is not None:
                for part in (results.lexical, results.dense, results.fused):
                    ids.update(dict.fromkeys(part.run.sources(claim.id)))
                continue
            depth = max(k, DETAILS_DEPTH) if any(read_claim(claim)) else k
            ids.update(dict.fromkeys(results.fused.run.sources(claim.id, depth)))
        return list(ids)

    def _state(
        self, where: Where, results: SearchResults, engine: PaperTable, name: str = ""
    ) -> IndexState:
        settings = self._answer_settings(where, results)
        return IndexState(engine.version, engine.manifest.model_hash, settings, name)

    def _matches(
        self,
        claim: Claim,
        found: FoundPapers,
        nearest: Mapping[tuple[str, str], tuple[str, str]],
        where: Where,
    ) -> tuple[Match, ...]:
        if self._matching.bm25 != self.engine.manifest.post_terms:
            self._matching = MatchingWords(self.engine.manifest.post_terms)
        listed = found.listed[claim.id]
        words = self._matching.match(claim, [found.papers[source] for source in listed])
        scored = {name: result.run.scored(claim.id) for name, result in found.stages}
        last = scored[found.stages[-1][0]]
        matches = []
        for rank, source in enumerate(listed, 1):
            parts = {name: scores[source] for name, scores in scored.items() if source in scores}
            sentence, post_sentence = nearest.get((claim.id, source), ("", ""))
            paper = found.papers[source]
            own_words = words[rank - 1]
            match = Match(rank, paper, last[source], parts, sentence, post_sentence, own_words)
            name, engine, own_id = self.engine.home(source)
            if name:
                paper = replace(paper, source=replace(paper.source, id=own_id))
                match = replace(
                    match, paper=paper, of=self._state(where, found.results, engine, name)
                )
            matches.append(match)
        return tuple(matches)

    def _answer(
        self,
        post: Post,
        claim: Claim,
        matches: tuple[Match, ...],
        found: FoundPapers,
        judged: Judged,
        where: Where,
    ) -> Answer:
        verdict = judged.verdicts.get(claim.id, NOT_JUDGED)
        return Answer(
            post,
            claim.lang,
            matches,
            abstained=None if verdict == NOT_JUDGED else verdict == "not here",
            present=judged.present.get(claim.id),
            reasoning=_verifier_notes(found.stages, claim),
            verdict=verdict,
            of=None if self.engine.names else self._state(where, found.results, self.engine),
            measured=judged.measured.get(verdict),
            warnings=tuple(self._warnings(claim)),
            searched=self._searched(claim),
            unencoded=bool(found.results.unencoded),
            unjudged=judged.reasons.get(claim.id, ""),
            shared=self.abstain is not None and self.abstain.shared,
            indexes=self.engine.names,
            lost=self.engine.lost,
        )

    def _searched(self, claim: Claim) -> str:
        """Return the translation that the term search uses; "" if it uses the post."""
        parts = claim_parts(claim, self.engine.manifest.post_terms.claims)
        if parts[-1].text == claim.text:
            return ""
        return parts[-1].text

    def _warnings(self, claim: Claim) -> Iterator[str]:
        manifest, fitted = self.engine.manifest, self.abstain
        name = "" if manifest.model is None else manifest.model.name
        if claim.lang != "en" and not claim.translation and name in ENGLISH:
            yield (
                f"The index's model is for English, and this post is in "
                f"{language_name(claim.lang)}: index with a multilingual model"
            )
        language = manifest.bm25.language
        if manifest.encoded_first and claim.lang != language and not claim.translation:
            yield (
                f"The index finds papers by words of {language_name(language)}, "
                f"and this post is in {language_name(claim.lang)}: translate it"
            )
        if fitted is not None and fitted.papers and manifest.papers > GROWN * fitted.papers:
            yield (
                f"The index has grown from {fitted.papers} to {manifest.papers} papers since "
                "its verdict was fitted: fit it again (index --claims)"
            )

    def _answer_settings(self, where: Where, results: SearchResults) -> dict[str, object]:
        filters = {name: value for name, value in asdict(where).items() if value is not None}
        first = self.engine.manifest.encoded_first
        return {
            **filters,
            **({"encoded_first": 0 if results.unencoded else first} if first else {}),
            **({"stages": self.stage_names} if self.stage_names else {"details": DETAILS_DEPTH}),
            **({} if self.threshold is None else {"threshold": self.threshold}),
            **({} if self.translators is None else {"translator": self.translators.name}),
            "fusion": {"alpha": self.engine.fusion.alpha, "scale": self.engine.fusion.scale},
        }


def _verifier_notes(by_stage: Sequence[tuple[str, Result]], claim: Claim) -> str:
    results = [result for name, result in by_stage if name.startswith(_VERIFY)]
    return "; ".join(filter(None, (result.notes.get(claim.id, "") for result in results)))


@dataclass(frozen=True, kw_only=True)
class FinderOptions(ModelOptions):
    """Set the index to search, and the stages that follow it.

    Args:
        pipeline: YAML file of a system whose stages follow the index, which is its first stage.
        system: name of a system in that file; none: the one that has stages.
        threshold: probability below which an answer is "not here"; none: the value fitted to the
            index.
        model: folder of the index's model, if it has moved.
        store: folder of the store of stages' results and, for an index without vectors, of
            encoded papers; none: the program's.
        device: none uses a GPU if there is one; for one post of `find` it uses NumPy if possible.
        translator: translates posts in other languages to English; none: the index's own.
        llm: the language model of stages that do not name one.
    """

    ONE_WORD: ClassVar = ("index",)

    index: list[str] = list_field(
        [],
        help="folder or bucket of the index, or of several; none: the variable CLAIM2SOURCE_INDEX",
    )
    pipeline: Path | None = None
    system: str | None = None
    threshold: Share | None = None
    model: str | None = None
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    translator: TranslatorConfig | None = None
    translate: bool = flag("translate posts if a translator is named", default=True)
    llm: LLMConfig = field(default_factory=LLMConfig)

    def check(self) -> None:
        unread = self.translate or self.translator is None
        require(unread, "translate", False, "true with --translator")
        require(bool(self.index), "index", None, f"a folder, or {INDEX}")
        require(len(set(self.index)) == len(self.index), "index", self.index, "each one once")
        good = self.system is None or self.pipeline is not None
        require(good, "system", self.system, "none without --pipeline")
        good = not self.llm.model or self.pipeline is not None
        require(good, "llm.model", self.llm.model, "none without --pipeline")

    def open_finder(
        self,
        engine: Engine,
        store: Store | None,
        *,
        progress: bool = False,
        sentences: bool = True,
        one_post: bool = False,
    ) -> Finder:
        """Make a finder of an opened index. Raises `UserError` if settings do not match the index.

        For `one_post` the model runs in NumPy if possible, because PyTorch takes longer to import.
        """
        pipeline = None
        if self.pipeline is not None:
            from claim2source.systems.read import read_staged

            pipeline = read_staged(self.pipeline, self.system, self.llm)
        engine.store = store
        engine.device = NUMPY if one_post and self.device is None else self.device
        if self.model is not None:
            # The index determines the model's settings.
            own = engine.manifest.model or ModelConfig()
            engine.load(ModelChanges(name=self.model).over(own))
        return Finder(
            engine,
            pipeline,
            translators=self.open_translators(engine, store),
            threshold=self.threshold,
            store=store,
            device=self.device,
            progress=progress and pipeline is not None,
            sentences=sentences,
        )

    def open_translators(self, engine: Engine, store: Store | None) -> Translators | None:
        """Open the configured translators, else the first ones that an index names.

        Raises `UserError` if an index's translator was not allowed on this machine.
        """
        config = self.translator
        for own in (engine, *engine.others):
            if config is None and self.translate:
                config = own.manifest.translator
                if config is not None:
                    require_allowed(config, str(own.location))
        return None if config is None else Translators.open(config, store)


def post_language(post: Post, engine: Engine) -> str:
    """Return a post's language; if unknown, it is detected among those of the index."""
    if (language := primary_language(post.lang)) in CODES:
        return language
    return likeliest(post.text[:_SAMPLE], candidate_languages(engine))


def with_index(words: Sequence[str]) -> list[str]:
    """Add the index of the environment if the arguments have none."""
    options = list(words)
    if not any(word.partition("=")[0] in ("--index", "--help", "--config") for word in words):
        options += [f"--index={os.environ[INDEX]}"] if os.environ.get(INDEX) else []
    return options
