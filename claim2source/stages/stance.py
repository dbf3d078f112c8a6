"""Judge whether a post supports or denies a rumour, -2 to 2 (Axolotl, 2024, section 3.5).

Three ways: the cosine of two embeddings, as the paper has it, which says how alike two texts are
and never denies anything; a language model; and, ours, a cross-encoder for natural language
inference (`nli.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from claim2source.core.config import require
from claim2source.core.memory import peak_memory
from claim2source.core.run import Cost
from claim2source.llm.stage import LLMCost, Task
from claim2source.llm.versions import RewritingStage
from claim2source.llm.work import Request
from claim2source.stages.facts import score_of, score_schema
from claim2source.stages.pairs import Pair, Reranker
from claim2source.text.prompts import read_prompt

HIGHEST = 2


@dataclass(frozen=True, eq=False)
class Stances:
    """Hold the stance of each pair's second text towards its first, [pairs] float64, -2 to 2.

    A pair that could not be judged has NaN; `why` says why, and of others what was left out.
    """

    values: np.ndarray
    why: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cost: Cost = Cost()


class Stance(Protocol):
    """Judge the stance of posts towards rumours."""

    def stances(self, pairs: Sequence[Pair]) -> Stances:
        """Judge pairs of a rumour and a post."""
        ...


@dataclass(frozen=True)
class ScoredStance:
    """Take the scores of pairs for stances: cosines, or an inference model's."""

    scorer: Reranker

    def stances(self, pairs: Sequence[Pair]) -> Stances:
        """Judge pairs of a rumour and a post."""
        started = time.perf_counter()
        distinct = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        found = self.scorer.pair_scores(list(distinct))
        rows = [distinct[pair] for pair in pairs]
        why = {place: [found.why[row]] for place, row in enumerate(rows) if row in found.why}
        cost = Cost(
            time.perf_counter() - started, len(pairs), peak_memory(), found.tokens, found.reused
        )
        return Stances(found.scores[rows].astype(np.float64), why, cost)


@dataclass(frozen=True, kw_only=True)
class LLMStance(RewritingStage):
    """Have a language model judge stances; the mean over k versions of both texts is taken.

    Args:
        summaries: versions are summaries.
        summary_prompt: a prompt's name or YAML file with the variable post.
        prompt: the same with rumor and tweet.
    """

    summaries: bool = False
    summary_prompt: str = "rumor_summary"
    prompt: str = "rumor_stance"

    def check(self) -> None:
        super().check()
        good = self.rewrites > 0 or not self.summaries
        require(good, "summaries", self.summaries, "false without rewrites: it says how to rewrite")

    def stances(self, pairs: Sequence[Pair]) -> Stances:
        """Judge pairs of a rumour and a post.

        The j-th version of one goes with the j-th of the other; where one has fewer good versions,
        they are used again.
        """
        started, spent = time.perf_counter(), LLMCost()
        texts = [text for pair in pairs for text in pair]
        if self.summaries:
            versions = self.versions(texts, self.summary_prompt, "summaries")
        else:
            versions = self.versions(texts)
        spent.count(versions.answers)
        prompt, schema = read_prompt(self.prompt), score_schema(-HIGHEST, HIGHEST)
        tasks: list[Task[list[float]]] = []
        found: list[list[float]] = [[] for _ in pairs]
        why: dict[int, list[str]] = {place: [] for place in range(len(pairs))}
        for place, pair in enumerate(pairs):
            rumors, tweets = versions.of[pair.claim], versions.of[pair.source]
            for text in dict.fromkeys(pair):
                why[place] += versions.failures.get(text, ())
            for number in range(max(len(rumors), len(tweets))):
                values = {
                    "rumor": rumors[number % len(rumors)],
                    "tweet": tweets[number % len(tweets)],
                }
                request = Request.of(prompt, f"pair {place + 1}", values, schema=schema)
                tasks.append(Task(found[place], why[place], request))
        for scores, answer in self.good(tasks, spent, "stances"):
            scores.append(score_of(answer))
        means = np.array([np.mean(scores) if scores else np.nan for scores in found])
        cost = Cost(
            time.perf_counter() - started, len(pairs), peak_memory(), spent.tokens, spent.stored
        )
        return Stances(means, {place: reasons for place, reasons in why.items() if reasons}, cost)
