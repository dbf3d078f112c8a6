"""Order the first sources by the share of the post's facts that they support (companion paper).

A language model takes the post apart into atomic facts and judges for each of the first sources
which of them it supports; the support rate n is fused with the score q of the stage before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from claim2source.core.config import Share, require
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import Answer, Request
from claim2source.stages.llm_scores import Asked, Listed, VersionedStage, mean_known, numbered
from claim2source.text.prompts import read_prompt
from claim2source.text.views import ClaimForm, render_claim

Fusion = Literal["q", "n", "q+n", "q*n", "q*(1+n)", "a*q+(1-a)*n"]
First = Literal["sigmoid", "as_is", "min_max"]
# Of q, n and a: the companion paper's six.
FUSIONS: Mapping[Fusion, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "q": lambda q, n, a: q,
    "n": lambda q, n, a: n,
    "q+n": lambda q, n, a: q + n,
    "q*n": lambda q, n, a: q * n,
    "q*(1+n)": lambda q, n, a: q * (1 + n),
    "a*q+(1-a)*n": lambda q, n, a: a * q + (1 - a) * n,
}
_FACTS = {
    "type": "object",
    "properties": {"facts": {"type": "array", "items": {"type": "string"}}},
    "required": ["facts"],
    "additionalProperties": False,
}
# The papers' temperature of the extraction; its versions would else be the same.
_TEMPERATURE = 0.1


@dataclass(frozen=True, kw_only=True)
class Attribution(VersionedStage):
    """Re-rank by the share of the post's atomic facts that a source supports.

    Args:
        extractor: the language model that takes posts apart; none: `llm`, which judges, at
            temperature 0.1.
        claims: the claim form that is taken apart.
        fusion: how the score q of the stage before and the support rate n are fused: `q`, `n`,
            `q+n`, `q*n`, `q*(1+n)` or `a*q+(1-a)*n`.
        alpha: the last one's a.
        first: what q is of the scores before: `sigmoid` of raw logits (a yes/no re-ranker's
            P(yes)), `as_is`, or `min_max` over the sources that are judged.
        facts_prompt: a prompt's name or YAML file with the variable post.
        support_prompt: the same with count, facts and paper.
    """

    extractor: LLMConfig | None = None
    claims: ClaimForm = "translated"
    fusion: Fusion = "a*q+(1-a)*n"
    alpha: Share = 0.7
    first: First = "sigmoid"
    facts_prompt: str = "facts"
    support_prompt: str = "support"

    def check(self) -> None:
        super().check()
        asked = self.extracting
        require(bool(asked.model.strip()), "extractor.model", asked.model, "its name at the server")
        good = self.versions == 1 or asked.temperature > 0
        require(good, "versions", self.versions, "1: at temperature 0 all versions are the same")

    @property
    def extracting(self) -> LLMConfig:
        """Return the language model that takes posts apart."""
        return self.extractor or replace(self.llm, temperature=_TEMPERATURE)

    @property
    def prompts(self) -> tuple[str, ...]:
        """Name both prompts."""
        return self.facts_prompt, self.support_prompt

    def fill(self, lists: Sequence[Listed], asked: Asked) -> None:
        """Judge every fact of every version by every source, and fuse what is supported."""
        facts = self._facts(lists, asked)
        prompt = read_prompt(self.support_prompt)
        requests: list[Request] = []
        places: list[tuple[Listed, np.ndarray, int]] = []
        rates: list[list[np.ndarray]] = []
        made = f"{prompt.name} {prompt.version}"
        for one, versions in zip(lists, facts, strict=True):
            rates.append([np.full(len(one.texts), np.nan)])
            for found in versions:
                rates[-1].append(np.full(len(one.texts), np.nan))
                for row, paper in enumerate(one.texts):
                    values = {"count": str(len(found)), "facts": numbered(found), "paper": paper}
                    schema = _labels(len(found))
                    requests.append(
                        Request(one.claim.id, prompt.messages(values), made, schema=schema)
                    )
                    places.append((one, rates[-1][-1], row))
        answers = asked.count(self.answers(requests, None, "facts and papers"))
        for (one, rate, row), answer in zip(places, answers, strict=True):
            labels = (answer.data or {}).get("labels")
            if answer.failure is not None or not isinstance(labels, list):
                one.failures.append(answer.failure or "no labels")
            else:
                rate[row] = float(np.mean([int(label) for label in labels]))
        for one, found_rates, versions in zip(lists, rates, facts, strict=True):
            n = mean_known(found_rates)
            q = first_scores(list(one.before.values())[: len(n)], self.first)
            one.scores = FUSIONS[self.fusion](q, n, self.alpha)
            # What could not be judged keeps its rank, by whatever fusion.
            one.scores = np.where(np.isnan(n), np.nan, one.scores)
            one.note = f"facts: {' | '.join(versions[0])}" if versions else "no facts"

    def _facts(self, lists: Sequence[Listed], asked: Asked) -> list[list[list[str]]]:
        """Take every post apart, once a version; a reply without facts leaves the post itself."""
        prompt = read_prompt(self.facts_prompt)
        made = f"{prompt.name} {prompt.version}"
        posts = [render_claim(one.claim, self.claims) for one in lists]
        requests = [
            Request(
                *(one.claim.id, prompt.messages({"post": post}), made), schema=_FACTS, sample=sample
            )
            for one, post in zip(lists, posts, strict=True)
            for sample in self.samples
        ]
        with self.asking(self.extracting) as llm:
            answers = asked.count(llm.answer(requests, None, "facts"))
        found: list[list[list[str]]] = [[] for _ in lists]
        for place, answer in enumerate(answers):
            number = place // len(self.samples)
            if answer.failure is not None:
                lists[number].failures.append(answer.failure)
                continue
            facts = _facts_of(answer)
            found[number].append(facts or [posts[number]])
        return found


def first_scores(scores: Sequence[float], kind: First) -> np.ndarray:
    """Make q of the scores of the stage before."""
    q = np.array(scores, dtype=np.float64)
    if kind == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-np.clip(q, -700, 700))))
    if kind == "min_max" and len(q):
        low, high = q.min(), q.max()
        return (q - low) / (high - low) if high > low else np.ones_like(q)
    return q


def _labels(count: int) -> dict[str, object]:
    label = {"type": "integer", "enum": [0, 1]}
    labels = {"type": "array", "items": label, "minItems": count, "maxItems": count}
    return {
        "type": "object",
        "properties": {"labels": labels},
        "required": ["labels"],
        "additionalProperties": False,
    }


def _facts_of(answer: Answer) -> list[str]:
    """Read distinct facts that say something."""
    found = (answer.data or {}).get("facts")
    texts = [" ".join(str(text).split()) for text in found] if isinstance(found, list) else []
    return list(dict.fromkeys(text for text in texts if text))
