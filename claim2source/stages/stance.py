"""Judge whether posts support or deny a rumour, and give a verdict (Axolotl, 2024, section 3.5).

A stance, -2 to 2, is judged by the cosine of two embeddings, which says how alike two texts are and
never denies anything, or by a language model.
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
from claim2source.stages.pairs import Pair, min_max
from claim2source.text.prompts import read_prompt

HIGHEST = 2
Weights = Literal["raw", "min_max"]
MEAN = "stance"  # in a result's details
NO_STANCE = "no stance for any evidence"
NO_WEIGHT = "weights of stances that sum to 0"


@dataclass(frozen=True, eq=False)
class Stances:
    """Stance of each pair's second text towards its first, [pairs] float64, -2 to 2.

    A pair that could not be judged has NaN; `why` says why, and of others what was left out.
    """

    values: np.ndarray
    reason: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cost: Cost = Cost()
    thinking: tuple[Thinking, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stance(RewritingStage):
    """Judge a claim by the stances of its first sources.

    The mean of stances, weighted by the scores of the ranking, is SUPPORTS from `threshold` on,
    REFUTES from minus `threshold` down, else NOT ENOUGH INFO. The result holds the first `depth`
    sources; a claim's note is its verdict, its detail `stance` the mean.

    Args:
        by: `cosine` of embeddings, which cannot deny; `llm`, the mean over its versions of both
            texts.
        model: the encoder; none: that stage's own default.
        depth: sources that are evidence.
        threshold: above 0, at most 2; `fit` chooses it on other claims with verdicts.
        weights: scores as they are, negative ones too, which turn their stance round (`raw`, as
            published); ours, scaled over a claim's evidence to 0 to 1 (`min_max`).
        drop_unverifiable: give no evidence if the verdict is NOT ENOUGH INFO.
        summaries: versions are summaries.
        summary_prompt: a prompt's name or YAML file with the variable post.
        prompt: the same with rumor and tweet.
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
        good = self.rewrites > 0 or not self.summaries
        require(good, "summaries", self.summaries, "false without rewrites: it says how to rewrite")

    @cached_property
    def scorer(self) -> Cosine | None:
        """Make the scorer of pairs; None if a language model judges them."""
        if self.by == "llm":
            return None
        runtime = self.runtime
        scorer = Cosine() if self.model is None else Cosine(model=self.model)
        return scorer.with_runtime(runtime.store, runtime.device, runtime.progress)

    @property
    def identity(self) -> Mapping[str, object] | None:
        return super().identity if self.scorer is None else self.scorer.identity

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        run = run.top(self.depth)
        texts = {source.id: source.abstract for source in sources}
        rows = [(c, Pair(c.text, texts[source])) for c in claims for source in run.sources(c.id)]
        judged = self.stances([pair for _, pair in rows])
        failures = [
            Failure(rows[row][0].id, reason)
            for row, whys in judged.reason.items()
            for reason in whys
        ]
        values = iter(judged.values.tolist())
        notes: dict[str, str] = {}
        details: dict[str, dict[str, float]] = {}
        for claim in claims:
            scores = list(run.scored(claim.id).values())
            own = [next(values) for _ in scores]
            mean = mean_stance(own, scores, self.weights)
            if mean is not None:
                details[claim.id] = {MEAN: mean}
            elif own:
                failures.append(Failure(claim.id, NO_STANCE if np.isnan(own).all() else NO_WEIGHT))
            notes[claim.id] = to_verdict(mean, self.threshold)
        if self.drop_unverifiable:
            lists = {
                claim: [] if notes.get(claim) == UNVERIFIABLE else [*run.scored(claim).items()]
                for claim in run.claim_ids
            }
            run = Run.from_lists(lists, pool=run.pool)
        return Result(
            run, notes, tuple(failures), judged.cost, details=details, thinking=judged.thinking
        )

    def stances(self, pairs: Sequence[Pair]) -> Stances:
        if self.scorer is None:
            return self._ask_llm(pairs)
        distinct = {pair: position for position, pair in enumerate(dict.fromkeys(pairs))}
        scored = self.scorer.pair_scores(list(distinct))
        rows = [distinct[pair] for pair in pairs]
        reason = {
            position: [scored.reason[row]]
            for position, row in enumerate(rows)
            if row in scored.reason
        }
        cost = Cost(tokens=scored.tokens, reused=scored.reused)
        return Stances(scored.scores[rows].astype(np.float64), reason, cost)

    def _ask_llm(self, pairs: Sequence[Pair]) -> Stances:
        """Ask the language model.

        The j-th version of one text goes with the j-th of the other; if one has fewer good
        versions, they are used again.
        """
        texts = [text for pair in pairs for text in pair]
        if self.summaries:
            versions = self.versions(texts, self.summary_prompt, "summaries")
        else:
            versions = self.versions(texts)
        answered = list(versions.answers)
        prompt, schema = read_prompt(self.prompt), score_schema(-HIGHEST, HIGHEST)
        tasks: list[Task[list[float]]] = []
        answers: list[list[float]] = [[] for _ in pairs]
        reason: dict[int, list[str]] = {row: [] for row in range(len(pairs))}
        for row, pair in enumerate(pairs):
            rumors, tweets = versions.of[pair.claim], versions.of[pair.source]
            for text in dict.fromkeys(pair):
                reason[row] += versions.failures.get(text, ())
            for number in range(max(len(rumors), len(tweets))):
                values = {
                    "rumor": rumors[number % len(rumors)],
                    "tweet": tweets[number % len(tweets)],
                }
                request = Request.of(prompt, f"pair {row + 1}", values, schema=schema)
                tasks.append(Task(answers[row], reason[row], request))
        for scores, answer in self.run_tasks(tasks, answered, "stances"):
            scores.append(score_reply(answer))
        failed = {row: reasons for row, reasons in reason.items() if reasons}
        return Stances(means(answers), failed, answers_cost(answered), count_thinking(answered))


def to_verdict(mean: float | None, threshold: float) -> Label:
    if mean is None or -threshold < mean < threshold:
        return UNVERIFIABLE
    return SUPPORTS if mean > 0 else REFUTES


def mean_stance(
    stances: Sequence[float], scores: Sequence[float], weights: Weights
) -> float | None:
    """Average stances by the scores of their tweets; None if the weights sum to 0.

    NaN stances are left out. With `raw` weights below 0 the mean may lie outside -2 to 2.
    """
    own, shares = np.array(stances, np.float64), np.array(scores, np.float64)
    own, shares = own[~np.isnan(own)], shares[~np.isnan(own)]
    if weights == "min_max" and len(shares):
        shares = min_max(shares)
    total = shares.sum()
    return float(own @ shares / total) if total else None
