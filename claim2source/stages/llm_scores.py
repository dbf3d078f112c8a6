"""Rank the first sources of every claim by a language model's answers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from claim2source.core.config import Between
from claim2source.core.files import content_hash
from claim2source.core.memory import peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.llm.stage import LLMCost, LLMStage
from claim2source.stages.pairs import DEEPEST, ranked_by
from claim2source.text.prompts import Prompt, read_prompt
from claim2source.text.views import SourceForm, render_claim, render_source


@dataclass
class ListScores:
    """Hold a claim, its first sources as texts, and their scores."""

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
        depth: how many of the first sources it sees; what is beyond keeps its place below them.
        sources: how sources are written: `metadata` with authors and venue, `title_abstract`
            without, or another of `rendering.sources`.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 10
    sources: SourceForm = "metadata"

    @property
    @abstractmethod
    def prompts(self) -> tuple[str, ...]:
        """Name the prompts that are sent."""

    @property
    def identity(self) -> Mapping[str, object]:
        """Describe the prompts' words: a result depends on them beside the settings."""
        read = [read_prompt(name) for name in self.prompts]
        return {"prompts": [content_hash([repr(_without_path(prompt))]) for prompt in read]}

    @abstractmethod
    def fill(self, lists: Sequence[ListScores], cost: LLMCost) -> None:
        """Set every list's scores [its sources]; NaN leaves a source its rank."""

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        """Rank the first `depth` sources of every claim anew; failed ones keep their order."""
        started = time.perf_counter()
        by_id = {source.id: source for source in sources}
        lists, spent = [], LLMCost()
        for claim in claims:
            ids = run.sources(claim.id, self.depth)
            texts = [render_source(by_id[source], self.sources) for source in ids]
            nothing = np.full(len(ids), np.nan)
            lists.append(ListScores(claim, run.scored(claim.id), texts, nothing))
        self.fill([entry for entry in lists if entry.texts], spent)
        ranked = {entry.claim.id: ranked_by(entry.before, entry.scores) for entry in lists}
        failures = [Failure(entry.claim.id, why) for entry in lists for why in entry.failures]
        notes = {entry.claim.id: entry.note for entry in lists if entry.note}
        cost = Cost(
            time.perf_counter() - started, len(claims), peak_memory(), spent.tokens, spent.reused
        )
        return Result(Run.from_lists(ranked, pool=run.pool), notes, tuple(failures), cost)


def post_values(claim: Claim) -> dict[str, str]:
    """Return a prompt's `post`, as it was written, and its `translation`, where there is one."""
    english = render_claim(claim, "translated")
    return {"post": claim.text, "translation": "" if english == claim.text else english}


def numbered(texts: Sequence[str]) -> str:
    """Number texts from 1, each on one line: none can pass for the next one's number."""
    return "\n".join(f"[{i}] {' '.join(text.split())}" for i, text in enumerate(texts, 1))


def _without_path(prompt: Prompt) -> Prompt:
    return replace(prompt, path=type(prompt.path)())
