"""Judge whether posts support or deny a rumour, and give a verdict (Axolotl, 2024, section 3.5).

A stance, -2 to 2, is judged by a language model or by the cosine of two embeddings, which measures
similarity and can never deny a rumour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np

from claim2source.core.config import Between, require
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Run, Thinking
from claim2source.data.rumors import MAX_TWEETS, REFUTES, SUPPORTS, UNVERIFIABLE, Label
from claim2source.llm.work import Request, count_thinking
from claim2source.stages.facts import means, score_reply, score_schema
from claim2source.stages.llm_stage import RewritingStage, Task, answers_cost
from claim2source.stages.max_sim import Cosine
from claim2source.stages.pairs import Pair, Ranking, min_max
from claim2source.text.prompts import read_prompt

HIGHEST = 2
Weights = Literal["raw", "min_max"]
MEAN = "stance"  # in a result's details
NO_STANCE = "no stance for any evidence"
NO_WEIGHT = "weights of stances that sum to 0"


@dataclass(frozen=True, eq=False)
class Stances:
    """Stance of each pair's second text towards its first, [pairs] float64, -2 to 2.

    A pair that could not be judged has NaN. `reason` has the failures by the pair's position, also
    partial ones of judged pairs.
    """

    values: np.ndarray
    reason: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cost: Cost = Cost()
    thinking: tuple[Thinking, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stance(RewritingStage):
    """Judge a claim by the stances of its first sources.

    The mean of stances, weighted by the ranking's scores, gives SUPPORTS from `threshold` up,
    REFUTES from minus `threshold` down, else NOT ENOUGH INFO. The result has the first `depth`
    sources; a claim's note is its verdict, its detail `stance` the mean.

    Args:
        by: `cosine` of embeddings, which cannot deny; `llm`, the mean over its versions of both
            texts.
        model: the encoder; none: the default of the stage `cosine`.
        depth: number of sources that are evidence.
        threshold: above 0, at most 2; `fit` chooses it on other claims with verdicts.
        weights: unchanged scores, including negative ones, which invert their stance (`raw`, as
            published); or scores scaled to 0..1 over a claim's evidence (`min_max`, ours).
        drop_unverifiable: return no evidence if the verdict is NOT ENOUGH INFO.
        summaries: whether versions are summaries.
        summary_prompt: a prompt's name or YAML file with the variable post.
        prompt: a prompt's name or YAML file with the variables rumor and tweet.
    """

    by: Literal["cosine", "llm"] = "llm"
    model: str | None = None
    depth: Annotated[int, Between(1, MAX_TWEETS)] = MAX_TWEETS
    threshold: Annotated[float, Between(0, HIGHEST, above=True)] = 0.4
    weights: Weights = "raw"
    drop_unverifiable: bool = False
    summaries: bool = False
    summary_prompt: str = "rumor_summary"
    prompt: str = "rumor_stance"

    def check(self) -> None:
        if self.by == "llm":
            super().check()
            require(self.model is None, "model", self.model, "none by llm: `llm.model` names it")
        fits = self.rewrites > 0 or not self.summaries
        require(fits, "summaries", self.summaries, "false without rewrites: it says how to rewrite")

    @cached_property
    def scorer(self) -> Cosine | None:
        """Return the scorer of pairs; None if a language model judges them."""
        if self.by == "llm":
            return None
        runtime = self.runtime
        if self.model is None:
            scorer = Cosine()
        else:
            scorer = Cosine(model=self.model)
        return scorer.with_runtime(runtime.store, runtime.device, runtime.progress)

    @property
    def identity(self) -> Mapping[str, object] | None:
        if self.scorer is None:
            return super().identity
        return self.scorer.identity

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Judge every claim by its first `depth` sources; the verdict is its note."""
        run = run.top(self.depth)
        texts = {source.id: source.abstract for source in sources}
        pairs: list[Pair] = []
        claim_of_pair: list[str] = []
        for claim in claims:
            for source in run.sources(claim.id):
                pairs.append(Pair(claim.text, texts[source]))
                claim_of_pair.append(claim.id)
        judged = self.stances(pairs)
        failures: list[Failure] = []
        for row, reasons in judged.reason.items():
            for reason in reasons:
                failures.append(Failure(claim_of_pair[row], reason))

        values = judged.values.tolist()
        start = 0
        notes: dict[str, str] = {}
        details: dict[str, dict[str, float]] = {}
        for claim in claims:
            scores = list(run.scored(claim.id).values())
            end = start + len(scores)
            own = values[start:end]
            start = end
            mean = mean_stance(own, scores, self.weights)
            if mean is not None:
                details[claim.id] = {MEAN: mean}
            elif own:
                if np.isnan(own).all():
                    reason = NO_STANCE
                else:
                    reason = NO_WEIGHT
                failures.append(Failure(claim.id, reason))
            notes[claim.id] = to_verdict(mean, self.threshold)

        if self.drop_unverifiable:
            run = _without_evidence(run, notes)
        return Result(
            run,
            notes,
            tuple(failures),
            judged.cost,
            details=details,
            thinking=judged.thinking,
        )

    def stances(self, pairs: Sequence[Pair]) -> Stances:
        """Judge the stances of pairs' sources towards their claims."""
        if self.scorer is None:
            return self._ask_llm(pairs)
        distinct: dict[Pair, int] = {}
        rows = [distinct.setdefault(pair, len(distinct)) for pair in pairs]
        scored = self.scorer.pair_scores(list(distinct))
        reasons: dict[int, list[str]] = {}
        for position, row in enumerate(rows):
            if row in scored.reason:
                reasons[position] = [scored.reason[row]]
        cost = Cost(tokens=scored.tokens, reused=scored.reused)
        return Stances(scored.scores[rows].astype(np.float64), reasons, cost)

    def _ask_llm(self, pairs: Sequence[Pair]) -> Stances:
        """Judge stances by the language model.

        The j-th version of one text is paired with the j-th of the other; if one has fewer good
        versions, they are repeated.
        """
        texts: list[str] = []
        for pair in pairs:
            texts += pair
        if self.summaries:
            versions = self.versions(texts, self.summary_prompt, "summaries")
        else:
            versions = self.versions(texts)
        answered = list(versions.answers)
        prompt = read_prompt(self.prompt)
        schema = score_schema(-HIGHEST, HIGHEST)
        tasks: list[Task[list[float]]] = []
        answers: list[list[float]] = [[] for _ in pairs]
        reasons: list[list[str]] = [[] for _ in pairs]
        for row, pair in enumerate(pairs):
            rumors = versions.of[pair.claim]
            tweets = versions.of[pair.source]
            for text in dict.fromkeys(pair):
                reasons[row] += versions.failures.get(text, ())
            for number in range(max(len(rumors), len(tweets))):
                values = {
                    "rumor": rumors[number % len(rumors)],
                    "tweet": tweets[number % len(tweets)],
                }
                request = Request.of(prompt, f"pair {row + 1}", values, schema=schema)
                tasks.append(Task(answers[row], reasons[row], request))
        for scores, answer in self.run_tasks(tasks, answered, "stances"):
            scores.append(score_reply(answer))
        failed = {row: own for row, own in enumerate(reasons) if own}
        return Stances(means(answers), failed, answers_cost(answered), count_thinking(answered))


def _without_evidence(run: Run, verdicts: Mapping[str, str]) -> Run:
    """Remove the sources of claims that cannot be verified."""
    lists: dict[str, Ranking] = {}
    for claim in run.claim_ids:
        lists[claim] = []
        if verdicts.get(claim) != UNVERIFIABLE:
            lists[claim] = list(run.scored(claim).items())
    return Run.from_lists(lists, pool=run.pool)


def to_verdict(mean: float | None, threshold: float) -> Label:
    if mean is None or -threshold < mean < threshold:
        return UNVERIFIABLE
    return SUPPORTS if mean > 0 else REFUTES


def mean_stance(
    stances: Sequence[float],
    scores: Sequence[float],
    weights: Weights,
) -> float | None:
    """Average stances by the scores of their tweets; None if the weights sum to 0.

    NaN stances are left out. With negative `raw` weights the mean may be outside -2 to 2.
    """
    all_stances = np.array(stances, np.float64)
    is_known = ~np.isnan(all_stances)
    own = all_stances[is_known]
    shares = np.array(scores, np.float64)[is_known]
    if weights == "min_max" and len(shares):
        shares = min_max(shares)
    total = shares.sum()
    if not total:
        return None
    return float(own @ shares / total)
