"""Re-rank by a language model's judgements of each source: facts, entities, relevance.

`attribution` (companion paper): the share of the post's atomic facts that a source supports, fused
with the score of the stage before. `entities` (2026 companion paper): how many of the post's
entities a source has. `relevance` (Axolotl, 2024, section 3.4): a score from 0 to 5, added to the
score of the stage before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import numpy as np

from claim2source.core.config import Between, Share, require
from claim2source.core.records import Claim, Source, nfkc
from claim2source.core.run import Failure, Result, Run
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import (
    TEXTS,
    Answer,
    Request,
    count_thinking,
    object_schema,
)
from claim2source.stages.llm_stage import (
    MOST_VERSIONS,
    LLMStage,
    RewritingStage,
    Task,
    answers_cost,
)
from claim2source.stages.pairs import DEEPEST, Ranking, first_scores, ranked_by
from claim2source.text.prompts import Prompt, read_prompt
from claim2source.text.views import ClaimForm, SourceForm, render_claim, render_source

Fusion = Literal["q", "n", "q+n", "q*n", "q*(1+n)", "a*q+(1-a)*n"]
# Fusions of q, n and a: the companion paper's six.
FUSIONS: Mapping[Fusion, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "q": lambda q, n, a: q,
    "n": lambda q, n, a: n,
    "q+n": lambda q, n, a: q + n,
    "q*n": lambda q, n, a: q * n,
    "q*(1+n)": lambda q, n, a: q * (1 + n),
    "a*q+(1-a)*n": lambda q, n, a: a * q + (1 - a) * n,
}
# A small model may write a list without end.
_MOST_FACTS = 40
_MOST_ENTITIES = 20
_FACTS = object_schema(facts={**TEXTS, "maxItems": _MOST_FACTS})
# The papers' temperature of the extraction; its versions would else be the same.
_TEMPERATURE = 0.1
MOST_RELEVANT = 5


@dataclass
class ListScores:
    """Claim, its first sources as texts, and their scores."""

    claim: Claim
    before: Mapping[str, float]
    texts: list[str]
    scores: np.ndarray
    note: str = ""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LLMScores(LLMStage, ABC):
    """Rank the first sources of every claim by a language model's answers.

    Args:
        depth: number of first sources to judge; the others keep their order below.
        sources: form of the sources: `metadata` with authors and venue, `title_abstract` without,
            or another of `rendering.sources`.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 10
    sources: SourceForm = "metadata"

    @abstractmethod
    def fill(
        self,
        lists: Sequence[ListScores],
        answered: list[Answer],
    ) -> None:
        """Set the scores [sources] of every list; a source with NaN keeps its rank.

        All answers of the language model are added to `answered`.
        """

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Re-rank the first `depth` sources of every claim; failed claims keep their order."""
        by_id = {source.id: source for source in sources}
        lists: list[ListScores] = []
        for claim in claims:
            ids = run.sources(claim.id, self.depth)
            texts = [render_source(by_id[source], self.sources) for source in ids]
            unscored = np.full(len(ids), np.nan)
            before = run.scored(claim.id)
            lists.append(ListScores(claim, before, texts, unscored))

        answered: list[Answer] = []
        with_sources = [entry for entry in lists if entry.texts]
        self.fill(with_sources, answered)

        ranked: dict[str, Ranking] = {}
        notes: dict[str, str] = {}
        failures: list[Failure] = []
        for entry in lists:
            claim_id = entry.claim.id
            ranked[claim_id] = ranked_by(entry.before, entry.scores)
            if entry.note:
                notes[claim_id] = entry.note
            for reason in entry.failures:
                failures.append(Failure(claim_id, reason))
        return Result(
            Run.from_lists(ranked, pool=run.pool),
            notes,
            tuple(failures),
            answers_cost(answered),
            thinking=count_thinking(answered),
        )


@dataclass(frozen=True, kw_only=True)
class VersionedScores(LLMScores):
    """Request several versions of each answer; rank sources by their mean.

    Args:
        versions: number of versions; `evaluate` scores each, with mean and SD.
        version: rank only by this version, from 1.
    """

    versions: Annotated[int, Between(1, MOST_VERSIONS)] = 1
    version: int | None = None

    def check(self) -> None:
        super().check()
        is_valid = self.version is None or 1 <= self.version <= self.versions
        allowed = f"1 to versions ({self.versions}), or null"
        require(is_valid, "version", self.version, allowed)

    @property
    def samples(self) -> range:
        """Return the numbers of the versions to request, from 0."""
        if self.version is None:
            return range(self.versions)
        return range(self.version - 1, self.version)

    def each_version(self) -> Iterator[Self]:
        """Yield a stage for each version alone; nothing if there is only one."""
        if self.versions == 1:
            return
        for version in range(1, self.versions + 1):
            yield replace(self, version=version)


@dataclass(frozen=True, kw_only=True)
class Attribution(VersionedScores):
    """Re-rank by the share of the post's atomic facts that a source supports.

    Args:
        extractor: the language model that extracts facts from posts; none: `llm`, which also
            judges, at temperature 0.1.
        claims: the claim form that facts are extracted from.
        fusion: fusion of q, the sigmoid of the previous stage's raw logit (a yes/no re-ranker's
            P(yes)), and the support rate n: `q`, `n`, `q+n`, `q*n`, `q*(1+n)` or `a*q+(1-a)*n`.
        alpha: the weight a of the last fusion.
        facts_prompt: a prompt's name or YAML file with the variable post.
        support_prompt: a prompt's name or YAML file with the variables count, facts and paper.
    """

    extractor: LLMConfig | None = None
    claims: ClaimForm = "translated"
    fusion: Fusion = "a*q+(1-a)*n"
    alpha: Share = 0.7
    facts_prompt: str = "facts"
    support_prompt: str = "support"

    def check(self) -> None:
        super().check()
        llm = self.extracting
        is_named = bool(llm.model.strip())
        require(is_named, "extractor.model", llm.model, "its name at the server")
        differ = self.versions == 1 or llm.temperature > 0
        require(differ, "versions", self.versions, "1: at temperature 0 all versions are the same")

    @property
    def extracting(self) -> LLMConfig:
        if self.extractor:
            return self.extractor
        return replace(self.llm, temperature=_TEMPERATURE)

    def fill(
        self,
        lists: Sequence[ListScores],
        answered: list[Answer],
    ) -> None:
        """Check every fact of every version against every source; fuse the support rates."""
        facts = self._split_posts(lists, answered)
        rates = _empty_records(lists)
        tasks = self._support_tasks(lists, facts, rates)
        for record, answer in self.run_tasks(tasks, answered, "facts and papers"):
            data = answer.data or {}
            labels = data["labels"]
            assert isinstance(labels, list)
            supported = [int(label) for label in labels]
            rate = np.mean(supported)
            record.append(float(rate))

        fuse = FUSIONS[self.fusion]
        for entry, own, versions in zip(lists, rates, facts, strict=True):
            n = means(own)
            logits = first_scores(entry.before, len(n))
            q = sigmoid(logits)
            fused = fuse(q, n, self.alpha)
            # A source that could not be judged keeps its rank, whatever the fusion.
            entry.scores = np.where(np.isnan(n), np.nan, fused)
            entry.note = "no facts"
            if versions:
                statements = " | ".join(versions[0])
                entry.note = f"facts: {statements}"

    def _support_tasks(
        self,
        lists: Sequence[ListScores],
        facts: Sequence[Sequence[Sequence[str]]],
        rates: Sequence[Sequence[list[float]]],
    ) -> list[Task[list[float]]]:
        """Yield the requests that check each version's facts against each source."""
        prompt = read_prompt(self.support_prompt)
        tasks: list[Task[list[float]]] = []
        for entry, versions, own in zip(lists, facts, rates, strict=True):
            for statements in versions:
                count = len(statements)
                schema = _labels_schema(count)
                for paper, record in zip(entry.texts, own, strict=True):
                    values = {
                        "count": str(count),
                        "facts": numbered(statements),
                        "paper": paper,
                    }
                    request = Request.of(
                        prompt,
                        entry.claim.id,
                        values,
                        schema=schema,
                    )
                    task = Task(record, entry.failures, request)
                    tasks.append(task)
        return tasks

    def _split_posts(
        self,
        lists: Sequence[ListScores],
        answered: list[Answer],
    ) -> list[list[list[str]]]:
        """Extract the facts of every post, once per version; the post itself if there are none."""
        prompt = read_prompt(self.facts_prompt)
        tasks: list[Task[tuple[int, str]]] = []
        for number, entry in enumerate(lists):
            post = render_claim(entry.claim, self.claims)
            for sample in self.samples:
                request = Request.of(
                    prompt,
                    entry.claim.id,
                    {"post": post},
                    schema=_FACTS,
                    sample=sample,
                )
                task = Task((number, post), entry.failures, request)
                tasks.append(task)

        statements: list[list[list[str]]] = [[] for _ in lists]
        answers = self.run_tasks(tasks, answered, "facts", config=self.extracting)
        for (number, post), answer in answers:
            data = answer.data or {}
            texts = data["facts"]
            assert isinstance(texts, list)
            distinct: dict[str, None] = {}
            for text in texts:
                words = str(text).split()
                flat = " ".join(words)
                distinct[flat] = None
            distinct.pop("", None)
            facts = list(distinct) or [post]
            statements[number].append(facts)
        return statements


@dataclass(frozen=True, kw_only=True)
class Entities(VersionedScores):
    """Re-rank by the number of the post's entities that a source has.

    Args:
        chunk: sources per request; none: all.
        prompt: a prompt's name or YAML file with the variables count, post, translation and
            documents.
    """

    chunk: Annotated[int, Between(1, DEEPEST)] | None = None
    prompt: str = "entities"

    def fill(
        self,
        lists: Sequence[ListScores],
        answered: list[Answer],
    ) -> None:
        """Count the entities of every source, as the mean over the versions."""
        prompt = read_prompt(self.prompt)
        counts = _empty_records(lists)
        tasks: list[Task[list[list[float]]]] = []
        for entry, own in zip(lists, counts, strict=True):
            tasks += self._entry_tasks(prompt, entry, own)

        for records, answer in self.run_tasks(tasks, answered, "entities"):
            data = answer.data or {}
            matches = matched(data, len(records))
            for record, count in zip(records, matches, strict=True):
                record.append(float(count))
        for entry, own in zip(lists, counts, strict=True):
            entry.scores = means(own)

    def _entry_tasks(
        self,
        prompt: Prompt,
        entry: ListScores,
        records: list[list[float]],
    ) -> Iterator[Task[list[list[float]]]]:
        """Yield the requests for one claim, in every version and for each chunk of its sources."""
        size = self.chunk or len(entry.texts)
        post = entry.claim.text
        english = render_claim(entry.claim, "translated")
        translation = "" if english == post else english
        for sample in self.samples:
            for start in range(0, len(entry.texts), size):
                end = start + size
                texts = entry.texts[start:end]
                values = {
                    "count": str(len(texts)),
                    "documents": numbered(texts),
                    "post": post,
                    "translation": translation,
                }
                schema = _entities_schema(len(texts))
                request = Request.of(
                    prompt,
                    entry.claim.id,
                    values,
                    schema=schema,
                    sample=sample,
                )
                own_records = records[start:end]
                yield Task(own_records, entry.failures, request)


@dataclass(frozen=True, kw_only=True)
class Relevance(LLMScores, RewritingStage):
    """Re-rank by the previous score plus a language model's relevance score.

    The score is the mean over `rewrites` versions of each source, so that the wording matters less.

    Args:
        prompt: a prompt's name or YAML file with the variables rumor and tweet.
    """

    sources: SourceForm = "title_abstract"
    prompt: str = "rumor_relevance"

    def fill(
        self,
        lists: Sequence[ListScores],
        answered: list[Answer],
    ) -> None:
        """Score every version of every source; a source without a valid score keeps its rank."""
        all_texts: list[str] = []
        for entry in lists:
            all_texts += entry.texts
        versions = self.versions(all_texts)
        answered += versions.answers

        prompt = read_prompt(self.prompt)
        schema = score_schema(0, MOST_RELEVANT)
        tasks: list[Task[list[float]]] = []
        scores = _empty_records(lists)
        for entry, own in zip(lists, scores, strict=True):
            for text, record in zip(entry.texts, own, strict=True):
                entry.failures += versions.failures.get(text, ())
                for version in versions.of[text]:
                    values = {
                        "rumor": entry.claim.text,
                        "tweet": version,
                    }
                    request = Request.of(
                        prompt,
                        entry.claim.id,
                        values,
                        schema=schema,
                    )
                    task = Task(record, entry.failures, request)
                    tasks.append(task)

        for record, answer in self.run_tasks(tasks, answered, "relevance"):
            record.append(score_reply(answer))
        for entry, own in zip(lists, scores, strict=True):
            averages = means(own)
            before = first_scores(entry.before, len(averages))
            entry.scores = before + averages
            entry.note = f"relevance by {prompt.name}"


def _empty_records(lists: Sequence[ListScores]) -> list[list[list[float]]]:
    """Make an empty list of values for each source of each list."""
    records: list[list[list[float]]] = []
    for entry in lists:
        own: list[list[float]] = [[] for _ in entry.texts]
        records.append(own)
    return records


def _labels_schema(count: int) -> dict[str, object]:
    """Return the JSON schema of a reply with 0 or 1 for each of `count` facts."""
    label = {"type": "integer", "enum": [0, 1]}
    return object_schema(
        labels={
            "type": "array",
            "items": label,
            "minItems": count,
            "maxItems": count,
        }
    )


def _entities_schema(count: int) -> dict[str, object]:
    """Return the JSON schema of a reply with the entities of a post and of `count` documents.

    A document may be there twice.
    """
    entities = {**TEXTS, "maxItems": _MOST_ENTITIES}
    document = object_schema(
        document={"type": "integer"},
        entities=entities,
    )
    documents = {
        "type": "array",
        "items": document,
        "minItems": 1,
        "maxItems": 2 * count,
    }
    return object_schema(query_entities=entities, documents=documents)


def numbered(texts: Sequence[str]) -> str:
    """Number texts from 1, each on one line, so that no text can imitate a number."""
    lines: list[str] = []
    for number, text in enumerate(texts, 1):
        flat = " ".join(text.split())
        lines.append(f"[{number}] {flat}")
    return "\n".join(lines)


def score_schema(low: int, high: int) -> dict[str, object]:
    """Return the JSON schema of a reply that is a number in a range."""
    return object_schema(
        score={
            "type": "number",
            "minimum": low,
            "maximum": high,
        }
    )


def score_reply(answer: Answer) -> float:
    data = answer.data or {}
    score = str(data["score"])
    return float(score)


def means(values: Sequence[Sequence[float]]) -> np.ndarray:
    """Average each source's values; NaN for a source without values."""
    averages = np.full(len(values), np.nan)
    for row, own in enumerate(values):
        if own:
            averages[row] = np.mean(own)
    return averages


def sigmoid(logits: Sequence[float] | np.ndarray) -> np.ndarray:
    """Turn logits into probabilities, [sources] float64."""
    values = np.array(logits, dtype=np.float64)
    bounded = np.clip(values, -700, 700)
    return np.asarray(1 / (1 + np.exp(-bounded)))


def matched(data: Mapping[str, object], count: int) -> np.ndarray:
    """Count the post's distinct entities in each of `count` sources, ignoring case.

    A source's entity counts only if the post has it.
    """
    query_entities = _text_set(data.get("query_entities"))
    shared: list[set[str]] = [set() for _ in range(count)]
    documents = data.get("documents")
    if isinstance(documents, list):
        for entry in documents:
            number = int(entry["document"])
            if 1 <= number <= count:
                entities = _text_set(entry["entities"])
                shared[number - 1] |= entities & query_entities
    counts = [len(entities) for entities in shared]
    return np.array(counts, dtype=np.float64)


def _text_set(texts: object) -> set[str]:
    if not isinstance(texts, list):
        return set()
    distinct: set[str] = set()
    for text in texts:
        folded = nfkc(str(text)).casefold()
        flat = " ".join(folded.split())
        distinct.add(flat)
    return distinct - {""}
