"""Find authorities' evidence for rumours and give verdicts (Axolotl, CheckThat! 2024 Task 5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from claim2source.core.config import Between, Settings, require
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.report import StageReport, SystemCost
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.datasets.rumor_outputs import MOST
from claim2source.datasets.rumors import REFUTES, SUPPORTS, UNVERIFIABLE, Label, Rumor, Rumors
from claim2source.io.store import Store
from claim2source.llm.config import LLMConfig
from claim2source.llm.versions import Heat, Rewrites, require_versions
from claim2source.retrieve.bm25 import NO_TERM
from claim2source.retrieve.fielded import FieldedConfig, FieldedIndex, ranked
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.facts import First, Relevance
from claim2source.stages.max_sim import Cosine
from claim2source.stages.nli import NLI
from claim2source.stages.pairs import Pair
from claim2source.stages.stance import HIGHEST, LLMStance, ScoredStance, Stance

RerankBy = Literal["none", "cosine", "cross_encoder", "llm"]
StanceBy = Literal["none", "cosine", "llm", "nli"]
Weights = Literal["raw", "positive", "min_max", "equal"]
FIRST_STAGE, RERANK, STANCE = "BM25", "re-rank", "stance"
# Those of the stages where none is named.
_MODELS = {"cosine": Cosine.model, "cross_encoder": CrossEncoder.model, "nli": NLI.model}
NO_STANCE = "no stance for any evidence"
NO_WEIGHT = "weights of stances that sum to 0"


@dataclass(frozen=True)
class RerankConfig(Settings):
    """Say how the first tweets are ranked anew.

    Args:
        by: `none`; `cosine` of embeddings; a `cross_encoder`; `llm`, which adds a score from 0
            to 5 to BM25's.
        model: the encoder or cross-encoder; none: the stage's own default.
        rewrites: versions of a tweet that a language model scores in its place; 0: the tweet.
        temperature: of rewriting.
        first: BM25's part beside a language model's score: `as_is`, without bound, as published,
            or `min_max`, both being 0 to 1.
    """

    by: RerankBy = "none"
    model: str | None = None
    rewrites: Rewrites = 0
    temperature: Heat = 0.7
    first: First = "as_is"

    def check(self) -> None:
        require_versions("rerank.", self.rewrites, self.temperature)


@dataclass(frozen=True)
class StanceConfig(Settings):
    """Say how the stance of evidence towards a rumour is judged, -2 to 2.

    Args:
        by: `none`, and then there are no verdicts; `cosine` of embeddings, as published, which
            cannot deny; `llm`; `nli`, a cross-encoder for natural language inference.
        model: the encoder or cross-encoder; none: the stage's own default.
        rewrites: versions of rumour and tweet that a language model judges; 0: as posted.
        summaries: versions are summaries.
        temperature: of rewriting.
    """

    by: StanceBy = "none"
    model: str | None = None
    rewrites: Rewrites = 0
    summaries: bool = False
    temperature: Heat = 0.7

    def check(self) -> None:
        require_versions("stance.", self.rewrites, self.temperature)


@dataclass(frozen=True)
class VerdictConfig(Settings):
    """Say how the stances of a rumour's evidence become a verdict.

    The mean of stances, weighted by the scores of the ranking, is SUPPORTS from `threshold` on,
    REFUTES from minus `threshold` down, else NOT ENOUGH INFO (systems of the paper, section 3.5).

    Args:
        threshold: above 0, at most 2.
        weights: scores as they are, negative ones too (`raw`, as published). Our repairs, since a
            score below 0 turns its stance round: below 0 counts as 0 (`positive`), scaled over a
            rumour's evidence to 0 to 1 (`min_max`), or all `equal`.
        drop_unverifiable: hand in no evidence where the verdict is NOT ENOUGH INFO.
    """

    threshold: Annotated[float, Between(0, HIGHEST, above=True)] = 0.4
    weights: Weights = "raw"
    drop_unverifiable: bool = False


@dataclass(frozen=True, kw_only=True)
class RumorSystem(Settings):
    """Describe a system that finds evidence for rumours and judges it.

    Args:
        name: of the system, in reports.
        bm25: the first stage.
        index: `own`, one index for each rumour's timeline with its own idf and lengths, as the
            task has it; `shared`, one of all timelines, each rumour ranking its own tweets.
        depth: tweets that the first stage keeps.
        keep: tweets that are evidence in the end.
        rerank: how the first tweets are ranked anew.
        stance: how evidence is judged.
        verdict: how the stances become a verdict.
        llm: the language model of both.
    """

    name: str = "BM25"
    bm25: FieldedConfig = field(default_factory=FieldedConfig)
    index: Literal["own", "shared"] = "own"
    depth: Annotated[int, Between(1, 1000)] = 10
    keep: Annotated[int, Between(1, MOST)] = MOST
    rerank: RerankConfig = field(default_factory=RerankConfig)
    stance: StanceConfig = field(default_factory=StanceConfig)
    verdict: VerdictConfig = field(default_factory=VerdictConfig)
    llm: LLMConfig = field(default_factory=LLMConfig)

    def check(self) -> None:
        named = self.name.isprintable() and bool(self.name.strip())
        require(named, "name", self.name, "some text, in one line")
        require(self.keep <= self.depth, "keep", self.keep, "at most depth")
        # Settings that a stage refuses are found before anything runs.
        reranker(self)
        stance(self)

    @property
    def model(self) -> str:
        """Name what the system is made of, as published tables know it.

        Settings that are not the published ones are named too.
        """
        own = _changed(self, RumorSystem, "index", "depth", "keep")
        analysed = (spec.name for spec in fields(FieldedConfig))
        parts = ["fielded-bm25", *_changed(self.bm25, FieldedConfig, *analysed), *own]
        described: tuple[tuple[str, RerankConfig | StanceConfig], ...] = (
            ("rerank", self.rerank),
            ("stance", self.stance),
        )
        for kind, one in described:
            if one.by != "none":
                named = self.llm.model if one.by == "llm" else one.model or _MODELS[one.by]
                kinds = {True: "summaries", False: "rewrites"}[getattr(one, "summaries", False)]
                rewritten = f"-{one.rewrites}-{kinds}" if one.rewrites else ""
                parts.append(f"{kind}-{one.by}-{Path(named).name}{rewritten}")
        if self.rerank.by == "llm":
            parts += _changed(self.rerank, RerankConfig, "first")
        if self.stance.by != "none":
            parts.append(f"threshold-{self.verdict.threshold:g}")
            parts += _changed(self.verdict, VerdictConfig, "weights", "drop_unverifiable")
        return "+".join(parts)


def _changed(config: object, published: type, *names: str) -> list[str]:
    """Name settings with their values where these are not the defaults, the published ones."""
    values = {name: getattr(config, name) for name in names}
    return [f"{name}-{x}" for name, x in values.items() if x != getattr(published, name)]


def reranker(system: RumorSystem) -> Relevance | Cosine | CrossEncoder | None:
    """Make the stage that ranks anew; None where there is none."""
    config, depth = system.rerank, system.depth
    model = config.model or _MODELS.get(config.by, "")
    if config.by == "llm":
        return Relevance(
            llm=system.llm,
            depth=depth,
            rewrites=config.rewrites,
            temperature=config.temperature,
            first=config.first,
        )
    if config.by == "cosine":
        return Cosine(depth=depth, claims="original", sources="title_abstract", model=model)
    if config.by == "cross_encoder":
        return CrossEncoder(depth=depth, claims="original", sources="title_abstract", model=model)
    return None


def stance(
    system: RumorSystem, store: Store | None = None, device: str | None = None
) -> Stance | None:
    """Make what judges stances; None where there is none."""
    config = system.stance
    model = config.model or _MODELS.get(config.by, "")
    if config.by == "llm":
        judge = LLMStance(
            llm=system.llm,
            rewrites=config.rewrites,
            summaries=config.summaries,
            temperature=config.temperature,
        )
        return judge.with_runtime(store, device)
    if config.by == "cosine":
        return ScoredStance(Cosine(model=model).with_runtime(store, device))
    if config.by == "nli":
        return ScoredStance(NLI(model=model).with_runtime(store, device))
    return None


@dataclass(frozen=True, eq=False)
class RumorResult:
    """Hold the evidence of rumours and what was made of it.

    `run` ranks at most five tweets a rumour, by sources' ids; `means` are the weighted mean
    stances, None where there is none; `stances` are by rumour and source; `judged` tells whether
    the system gives verdicts at all.
    """

    run: Run
    stages: tuple[StageReport, ...]
    stances: Mapping[str, Mapping[str, float]]
    means: Mapping[str, float | None]
    judged: bool

    def verdicts(self, threshold: float | Mapping[str, float]) -> dict[str, Label | None]:
        """Give the verdict of every rumour, by one threshold or one for each."""
        of = threshold if isinstance(threshold, Mapping) else dict.fromkeys(self.means, threshold)
        return {
            rumor: verdict_of(mean, of[rumor]) if self.judged else None
            for rumor, mean in self.means.items()
        }

    @property
    def cost(self) -> Cost:
        """Add the costs of the stages, over the same rumours."""
        total = Cost()
        for stage in self.stages:
            cost = stage.cost
            total = total.over_same(
                Cost(cost.seconds, cost.claims, cost.peak_memory_bytes, cost.tokens, cost.reused)
            )
        return total


def verdict_of(mean: float | None, threshold: float) -> Label:
    """Give a verdict by the weighted mean of stances."""
    if mean is None or -threshold < mean < threshold:
        return UNVERIFIABLE
    return SUPPORTS if mean > 0 else REFUTES


def mean_stance(
    stances: Sequence[float], scores: Sequence[float], weights: Weights
) -> float | None:
    """Average stances by the scores of their tweets; None where the weights sum to 0.

    NaN stances are left out. With `raw` weights below 0 the mean may lie outside -2 to 2.
    """
    own, given = np.array(stances, np.float64), np.array(scores, np.float64)
    own, given = own[~np.isnan(own)], given[~np.isnan(own)]
    if weights == "equal":
        given = np.ones_like(given)
    elif weights == "min_max" and len(given):
        low, high = given.min(), given.max()
        given = (given - low) / (high - low) if high > low else np.ones_like(given)
    elif weights == "positive":
        given = np.maximum(given, 0.0)
    total = given.sum()
    return float(own @ given / total) if total else None


def run_rumors(
    system: RumorSystem,
    rumors: Rumors,
    store: Store | None = None,
    device: str | None = None,
    *,
    bm25_of: Mapping[str, FieldedConfig] | None = None,
    progress: bool = False,
) -> RumorResult:
    """Run a system on all rumours; `bm25_of` has a first stage of its own for each.

    Raises `UserError` where a model or a server cannot be used.
    """
    dataset = rumors.dataset
    stages: list[StageReport] = []
    found = first_stage(system, rumors, bm25_of or {})
    stages.append(_stage(FIRST_STAGE, found.cost, found.failures))
    run = found.run
    if (ranker := reranker(system)) is not None:
        again = ranker.with_runtime(store, device, progress).apply(
            dataset.claims, dataset.sources, run
        )
        stages.append(_stage(RERANK, again.cost, again.failures))
        run = again.run
    run = run.top(system.keep)
    means: dict[str, float | None] = dict.fromkeys(claim.id for claim in dataset.claims)
    stances: dict[str, dict[str, float]] = {claim: {} for claim in means}
    judge = stance(system, store, device)
    if judge is not None:
        texts = {source.id: source.abstract for source in dataset.sources}
        rows = [
            (claim.id, source, Pair(claim.text, texts[source]))
            for claim in dataset.claims
            for source in run.sources(claim.id)
        ]
        reset_peak_memory()
        judged = judge.stances([pair for *_, pair in rows])
        failures = [
            Failure(rows[place][0], why) for place, whys in judged.why.items() for why in whys
        ]
        for (claim, source, _), value in zip(rows, judged.values.tolist(), strict=True):
            stances[claim][source] = value
        for claim, own in stances.items():
            scores = list(run.scored(claim).values())
            means[claim] = mean_stance(list(own.values()), scores, system.verdict.weights)
            if own and means[claim] is None:
                unknown = np.isnan(list(own.values())).all()
                failures.append(Failure(claim, NO_STANCE if unknown else NO_WEIGHT))
        stages.append(_stage(STANCE, replace(judged.cost, items=len(means)), failures))
    return RumorResult(run, tuple(stages), stances, means, judge is not None)


def first_stage(
    system: RumorSystem, rumors: Rumors, bm25_of: Mapping[str, FieldedConfig]
) -> Result:
    """Rank every rumour's tweets by BM25 of their two fields."""
    started = time.perf_counter()
    reset_peak_memory()
    search = searcher(system, rumors)
    lists = {rumor.id: search(rumor, bm25_of.get(rumor.id, system.bm25)) for rumor in rumors.rumors}
    failures = tuple(Failure(rumor, NO_TERM) for rumor, found in lists.items() if not found)
    cost = Cost(time.perf_counter() - started, len(lists), peak_memory(gpu=False))
    return Result(Run.from_lists(lists), failures=failures, cost=cost)


Search = Callable[[Rumor, FieldedConfig], list[tuple[str, float]]]


def searcher(system: RumorSystem, rumors: Rumors) -> Search:
    """Give the function that ranks a rumour's tweets, in an index of its own or in a shared one."""
    language = rumors.language
    if system.index == "own":

        def search(rumor: Rumor, config: FieldedConfig) -> list[tuple[str, float]]:
            index = FieldedIndex(rumors.sources(rumor), config, language)
            return index.search(rumors.claim(rumor), system.depth)

        return search

    shared: dict[FieldedConfig, FieldedIndex] = {}

    def search_shared(rumor: Rumor, config: FieldedConfig) -> list[tuple[str, float]]:
        if config not in shared:
            shared[config] = FieldedIndex(rumors.dataset.sources, config, language)
        index = shared[config]
        own = {source.id for source in rumors.sources(rumor)}
        kept = [place for place, source in enumerate(index.source_ids) if source in own]
        scores = index.field_scores(rumors.claim(rumor))[:, kept]
        return ranked(
            [index.source_ids[place] for place in kept], scores, config.boost, system.depth
        )

    return search_shared


def without_unverifiable(run: Run, verdicts: Mapping[str, Label | None]) -> Run:
    """Drop the evidence of rumours whose verdict is NOT ENOUGH INFO."""
    return Run.from_lists(
        {
            claim: [] if verdicts.get(claim) == UNVERIFIABLE else list(run.scored(claim).items())
            for claim in run.claim_ids
        }
    )


def _stage(name: str, cost: Cost, failures: Sequence[Failure]) -> StageReport:
    counts = Result(Run.from_lists({}), failures=tuple(failures)).failure_counts()
    return StageReport(name, SystemCost.of(cost), counts)
