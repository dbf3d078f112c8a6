"""Find the papers that posts may mean in an index: ranked, with reasons, or not here."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.config import require
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
    index_stages,
    read_abstention,
)
from claim2source.models import ENGLISH
from claim2source.search.bm25 import Analyser, BM25Config
from claim2source.search.engine import Engine
from claim2source.search.growing import batches
from claim2source.search.names import name_terms, paper_names, plain_words
from claim2source.search.rows import SPLIT, Where, finding_sentences
from claim2source.search.table import NEW, SearchResults
from claim2source.text.clean import keep_numbers, split_sentences
from claim2source.text.language import CODES, language_name, likeliest

if TYPE_CHECKING:
    from claim2source.find.pipeline import PipelineStages
    from claim2source.systems.system import System

log = logging.getLogger(__name__)

Verdict = Literal["found", "uncertain", "not here", ""]
# Posts that are searched and go through the stages at a time.
MAX_BATCH = 64
# What `on_part` is called with beside the names of stages.
SEARCH, SENTENCES = "search", "sentences"
# Characters by which a language is detected, sentences of a post that are compared.
_SAMPLE, _SENTENCES = 5_000, 20
# Growth of an index after which its abstention is stale.
GROWN = 2
_VERIFY = "verify"
# With accents that stand apart from their letters.
WORD = re.compile(r"[\w\u0300-\u036f]+(?:[-'’.][\w\u0300-\u036f]+)*")
# Words whose terms are held.
_MOST_WORDS = 200_000
# Words of the post, and of the paper.
Words = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Match:
    """Paper that a post may mean.

    `score` is the last stage's, `parts` are the scores of every stage that ranks it. `sentence` is
    the finding of its abstract that is nearest to the post, `post_sentence` the post's sentence
    that is nearest to that one, "" if it has only one. `words` are words of the post, and those
    of the paper that they match: of title, abstract, authors or venue.
    """

    rank: int
    paper: Paper
    score: float
    parts: Mapping[str, float]
    sentence: str
    post_sentence: str = ""
    words: Words = ((), ())


@dataclass(frozen=True)
class IndexState:
    """Identify the state of an index that answered, and the settings: a search can be repeated."""

    version: int
    model: str
    settings: Mapping[str, object]


@dataclass(frozen=True)
class Answer:
    """Papers for a post, and the verdict whether its own is among them.

    `present` is the probability that its paper is in the index, None if nothing was fitted
    to tell. `verdict` says "found", "uncertain" or "not here" by it, "" if nothing was fitted;
    `abstained` is "not here". `measured` counts the held-out answers of that verdict, and
    `warnings` say why this one deserves less trust. `reasoning` is a verifier's.
    """

    post: Post
    lang: str
    matches: tuple[Match, ...]
    abstained: bool = False
    present: float | None = None
    reasoning: str = ""
    verdict: Verdict = ""
    of: IndexState | None = None
    measured: Tenth | None = None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return one_line(
            self,
            post=self.post.id,
            lang=self.lang,
            papers=tuple(match.paper.source.id for match in self.matches),
            verdict=self.verdict,
        )


class Finder:
    """Find papers in an index, warm: the model is loaded once.

    `pipeline` is the system whose stages follow the index, which stands for its first stage.
    `threshold` replaces that of the model of abstention. `on_part` is called with the name of each
    part of the work when it begins. Raises `UserError` if the pipeline's first stage is not the
    index's.
    """

    def __init__(
        self,
        engine: Engine,
        pipeline: System | None = None,
        *,
        threshold: float | None = None,
        store: Store | None = None,
        device: str | None = None,
        progress: bool = False,
        sentences: bool = True,
    ) -> None:
        self.engine, self.sentences, self.threshold = engine, sentences, threshold
        self.on_part: Callable[[str], None] = lambda part: None
        self._abstain: tuple[object, AbstainModel | None] | None = None
        self._matching = MatchingWords(engine.manifest.bm25)
        self._pipeline: PipelineStages | None = None
        if pipeline is not None:
            # Its imports take longer than an answer without it.
            from claim2source.find.pipeline import PipelineStages

            self._pipeline = PipelineStages(engine, pipeline, store, device, progress)
        judges = self.abstain is not None
        allowed = "none: no abstention is fitted to this index; index --claims DATASET does that"
        require(threshold is None or judges, "threshold", threshold, allowed)
        unbuilt = engine.stats().unbuilt
        if unbuilt or engine.manifest.stale or (engine.version == NEW and not engine.at):
            log.warning(
                "%s: a run that writes it has not ended, %d papers are not built in: until then "
                "answers differ",
                *(engine.location, unbuilt),
            )

    def __repr__(self) -> str:
        return one_line(self, index=str(self.engine.location), stages=tuple(self.stage_names))

    @property
    def stage_names(self) -> list[str]:
        return [] if self._pipeline is None else self._pipeline.names

    @property
    def abstain(self) -> AbstainModel | None:
        """Read the model of abstention that was fitted to the index, as it is now."""
        fitted = self.engine.manifest.abstain
        if fitted is None:
            return None
        if self._abstain is None or self._abstain[0] is not fitted:
            self._abstain = fitted, read_abstention(self.engine)
        return self._abstain[1]

    def find(self, posts: Sequence[Post], k: int = 10, where: Where | None = None) -> list[Answer]:
        """Find `k` papers for every post, in order.

        A post with a date is only compared with papers published until then.
        """
        return list(self.find_each(iter(posts), k, where))

    def find_each(
        self, posts: Iterator[Post], k: int = 10, where: Where | None = None
    ) -> Iterator[Answer]:
        """Find papers for a few posts at a time: there may be more than fit into memory."""
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
        claims = [post.claim(self._detect_language(post)) for post in posts]
        depth = max(DEEPEST, 0 if self._pipeline is None else self._pipeline.depth)
        sentences = {claim.id: _several_sentences(claim) for claim in claims if self.sentences}
        texts = [text for lines in sentences.values() for text in lines]
        results = self.engine.find(claims, max(k, depth), where, texts)
        runs = [part.run for part in (results.lexical, results.dense, results.fused)]
        of_ids, limit = (runs[2:], k) if self._pipeline is None else (runs, None)
        ids = [key for run in of_ids for claim in claims for key in run.sources(claim.id, limit)]
        papers, vectors = self.engine.fetch_with_sentences(list(dict.fromkeys(ids)))
        by_stage = [(LEXICAL, results.lexical), (DENSE, results.dense), (FUSED, results.fused)]
        if self._pipeline is not None:
            by_stage = self._pipeline.apply(claims, results, papers, self.on_part)
        present = self._presence(claims, results)
        # Another process may have removed a paper meanwhile.
        listed = {
            claim.id: [key for key in by_stage[-1][1].run.sources(claim.id, k) if key in papers]
            for claim in claims
        }
        self.on_part(SENTENCES)
        nearest = self._nearest(claims, results, listed, sentences, papers, vectors)
        verdicts, measured = self._verdicts(present)
        if self._matching.bm25 != self.engine.manifest.bm25:
            self._matching = MatchingWords(self.engine.manifest.bm25)
        of = IndexState(
            self.engine.version, self.engine.manifest.model_hash, self._answer_settings(where)
        )
        answers = []
        for post, claim in zip(posts, claims, strict=True):
            own = [(name, result.run.scored(claim.id)) for name, result in by_stage]
            last = own[-1][1]
            words = self._matching.of(claim, [papers[source] for source in listed[claim.id]])
            matches = tuple(
                Match(
                    rank,
                    papers[source],
                    last[source],
                    {name: scored[source] for name, scored in own if source in scored},
                    *nearest.get((claim.id, source), ("", "")),
                    words[rank - 1],
                )
                for rank, source in enumerate(listed[claim.id], 1)
            )
            answers.append(
                Answer(
                    post,
                    claim.lang,
                    matches,
                    verdicts.get(claim.id) == "not here",
                    present.get(claim.id),
                    _verifier_notes(by_stage, claim),
                    verdicts.get(claim.id, ""),
                    of,
                    measured.get(verdicts.get(claim.id, "")),
                    tuple(self._warnings(claim)),
                )
            )
        return answers

    def _presence(self, claims: Sequence[Claim], results: SearchResults) -> dict[str, float]:
        if self.abstain is None:
            return {}
        ids = [claim.id for claim in claims]
        shares = self.abstain.shares(ids, index_stages(results))
        return dict(zip(ids, shares.tolist(), strict=True))

    def _verdicts(
        self, present: Mapping[str, float]
    ) -> tuple[dict[str, Verdict], dict[str, Tenth]]:
        """Judge answers by the fitted or given thresholds; count the held-out ones of a verdict."""
        fitted = self.abstain
        if fitted is None:
            return {}, {}
        floor, sure = fitted.threshold, fitted.sure
        if self.threshold is not None:
            floor, sure = self.threshold, max(sure, self.threshold)

        def verdict(share: float) -> Verdict:
            if share < floor:
                return "not here"
            return "found" if share >= sure else "uncertain"

        edges = {"not here": (0.0, floor), "uncertain": (floor, sure), "found": (sure, 1.1)}
        by_verdict = {name: fitted.measured(*edge) for name, edge in edges.items()}
        measured = {name: tenth for name, tenth in by_verdict.items() if tenth.answers}
        return {claim: verdict(share) for claim, share in present.items()}, measured

    def _detect_language(self, post: Post) -> str:
        if (language := primary_language(post.lang)) in CODES:
            return language
        return likeliest(post.text[:_SAMPLE], candidate_languages(self.engine))

    def _warnings(self, claim: Claim) -> Iterator[str]:
        manifest, fitted = self.engine.manifest, self.abstain
        name = "" if manifest.model is None else manifest.model.name
        if claim.lang != "en" and not claim.translation and name in ENGLISH:
            yield (
                f"The index's model reads English, and this post is in "
                f"{language_name(claim.lang)}: index with a multilingual model"
            )
        if fitted is not None and fitted.papers and manifest.papers > GROWN * fitted.papers:
            yield (
                f"The index has grown from {fitted.papers} to {manifest.papers} papers since "
                "its abstention was fitted: fit it again (index --claims)"
            )

    def _answer_settings(self, where: Where) -> dict[str, object]:
        filters = {name: value for name, value in asdict(where).items() if value is not None}
        return {
            **filters,
            **({"stages": self.stage_names} if self.stage_names else {}),
            **({} if self.threshold is None else {"threshold": self.threshold}),
            "fusion": {"alpha": self.engine.fusion.alpha, "scale": self.engine.fusion.scale},
        }

    def _nearest(
        self,
        claims: Sequence[Claim],
        results: SearchResults,
        listed: Mapping[str, Sequence[str]],
        sentences: Mapping[str, Sequence[str]],
        papers: Mapping[str, Paper],
        sentence_vectors: Mapping[str, np.ndarray],
    ) -> dict[tuple[str, str], tuple[str, str]]:
        """Find each paper's finding that is nearest to the claim, and the claim's sentence to it.

        Both by the index's model, of findings that hold the claim's numbers if some do; keys
        are claim and paper.
        """
        if not self.sentences:
            return {}
        ids = dict.fromkeys(key for paper_ids in listed.values() for key in paper_ids)
        findings = self._findings({key: papers[key] for key in ids}, sentence_vectors)
        nearest = {}
        for claim in claims:
            own = np.array([results.texts[text] for text in sentences[claim.id]])
            for key in listed[claim.id]:
                texts, vectors = findings[key]
                if texts:
                    positions = keep_numbers(claim.text, texts, range(len(texts)))
                    scores = vectors[positions] @ results.vectors[claim.id]
                    best = positions[int(np.argmax(scores))]
                    row = int(np.argmax(own @ vectors[best])) if len(own) else None
                    sentence = "" if row is None else sentences[claim.id][row]
                    nearest[claim.id, key] = texts[best], sentence
        return nearest

    def _findings(
        self, papers: Mapping[str, Paper], sentence_vectors: Mapping[str, np.ndarray]
    ) -> dict[str, tuple[list[str], np.ndarray]]:
        """List papers' findings with their vectors [findings, d]; encode those not stored."""
        if self.engine.manifest.sentences != SPLIT:
            sentence_vectors = {}
        findings: dict[str, tuple[list[str], np.ndarray]] = {}
        missing: dict[str, list[str]] = {}
        for key, paper in papers.items():
            texts, vectors = finding_sentences(paper), sentence_vectors.get(key)
            if vectors is not None and len(vectors) == len(texts):
                findings[key] = texts, vectors.astype(np.float32)
            elif texts:
                missing[key] = texts
            else:
                findings[key] = [], np.empty((0, 0))
        if distinct := list(dict.fromkeys(text for texts in missing.values() for text in texts)):
            encoded, _ = self.engine.encoder.encode(distinct, "source", store=None, progress=None)
            row = {text: i for i, text in enumerate(distinct)}
            for key, texts in missing.items():
                findings[key] = texts, encoded[[row[text] for text in texts]]
        return findings


def _several_sentences(claim: Claim) -> list[str]:
    sentences = split_sentences(claim.text)[:_SENTENCES]
    return sentences if len(sentences) > 1 else []


def _verifier_notes(by_stage: Sequence[tuple[str, Result]], claim: Claim) -> str:
    results = [result for name, result in by_stage if name.startswith(_VERIFY)]
    return "; ".join(filter(None, (result.notes.get(claim.id, "") for result in results)))


class MatchingWords:
    """Match words of posts and papers; each word is analysed once while its terms are held."""

    def __init__(self, bm25: BM25Config) -> None:
        self.bm25, self._analyser = bm25, Analyser(bm25)
        self._terms: dict[str, list[str]] = {}

    def of(self, claim: Claim, papers: Sequence[Paper]) -> list[Words]:
        """List the words of a claim and of each paper that match, each once in text order."""
        texts = [claim.text, claim.translation or ""]
        words, *of_papers = (
            list(dict.fromkeys(word for text in parts for word in WORD.findall(text)))
            for parts in (
                texts,
                *((p.source.title, p.source.abstract) for p in papers),
            )
        )
        terms = self._matched_terms([words, *of_papers])
        sought, possible = set(self._analyser.claim(claim)), {*name_terms(claim.text)}
        own = [sought & {*terms[word]} for word in words]
        matches = []
        for paper, words_of_paper in zip(papers, of_papers, strict=True):
            source = paper.source
            theirs = [word for word in words_of_paper if not sought.isdisjoint(terms[word])]
            shared = {term for word in theirs for term in terms[word]}
            names = possible & {*paper_names(source)}
            name_words = [
                word for text in (*source.authors, source.venue) for word in WORD.findall(text)
            ]
            theirs += [word for word in name_words if _holds(word, names) and word not in theirs]
            mine = [
                word
                for word, terms_of_word in zip(words, own, strict=True)
                if terms_of_word & shared or _holds(word, names)
            ]
            matches.append((_distinct_words(mine), _distinct_words(theirs)))
        return matches

    def _matched_terms(self, texts: Iterable[Iterable[str]]) -> Mapping[str, list[str]]:
        if len(self._terms) > _MOST_WORDS:
            self._terms.clear()
        new = list({word for words in texts for word in words} - self._terms.keys())
        self._terms.update(zip(new, self._analyser.texts(new), strict=True))
        return self._terms


def _holds(word: str, names: set[str]) -> bool:
    return bool(names) and not names.isdisjoint(plain_words(word))


def _distinct_words(words: list[str]) -> tuple[str, ...]:
    """Drop words that differ from an earlier one in capitals alone."""
    first: dict[str, str] = {}
    for word in words:
        first.setdefault(word.casefold(), word)
    return tuple(first.values())
