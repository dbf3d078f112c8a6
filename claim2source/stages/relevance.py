"""Add a language model's score of relevance, 0 to 5, to the first stage's (Axolotl, 2024, 3.4).

Each of the first sources is rewritten k times, so that one wording has less weight, and the model
scores every version: r = s + mean of its scores, s being the score of the stage before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from claim2source.llm.versions import RewritingStage
from claim2source.llm.work import Request
from claim2source.stages.attribution import first_scores
from claim2source.stages.llm_scores import Asked, AskedStage, Listed
from claim2source.text.prompts import read_prompt
from claim2source.text.views import SourceForm

HIGHEST = 5
First = Literal["as_is", "min_max"]


def score_schema(low: int, high: int) -> dict[str, object]:
    """Return the JSON schema of a reply that is a number between two others."""
    score = {"type": "number", "minimum": low, "maximum": high}
    return {
        "type": "object",
        "properties": {"score": score},
        "required": ["score"],
        "additionalProperties": False,
    }


@dataclass(frozen=True, kw_only=True)
class Relevance(AskedStage, RewritingStage):
    """Re-rank by the score before and a language model's score of relevance.

    Args:
        first: what the score before is: `as_is`, without bound beside 0 to 5, or `min_max` over
            the sources that are scored, the model's score being divided by 5.
        prompt: a prompt's name or YAML file with the variables rumor and tweet.
    """

    first: First = "as_is"
    sources: SourceForm = "title_abstract"
    prompt: str = "rumor_relevance"

    @property
    def prompts(self) -> tuple[str, ...]:
        """Name the prompts that are sent."""
        return (*([self.rewrite_prompt] if self.rewrites else []), self.prompt)

    def fill(self, lists: Sequence[Listed], asked: Asked) -> None:
        """Score every version of every source; one without any good score keeps its rank."""
        versions = self.versions([text for one in lists for text in one.texts])
        asked.count(versions.answers)
        prompt = read_prompt(self.prompt)
        made, schema = f"{prompt.name} {prompt.version}", score_schema(0, HIGHEST)
        requests: list[Request] = []
        places: list[tuple[Listed, int]] = []
        for one in lists:
            for row, text in enumerate(one.texts):
                one.failures += versions.failures.get(text, ())
                for version in versions.of[text]:
                    messages = prompt.messages({"rumor": one.claim.text, "tweet": version})
                    requests.append(Request(one.claim.id, messages, made, schema=schema))
                    places.append((one, row))
        found: dict[int, list[list[float]]] = {id(one): [[] for _ in one.texts] for one in lists}
        for (one, row), answer in zip(
            places, asked.count(self.answers(requests, None, "relevance")), strict=True
        ):
            if answer.failure is not None:
                one.failures.append(answer.failure)
            elif answer.data is not None:
                found[id(one)][row].append(float(str(answer.data["score"])))
        for one in lists:
            own = np.array([np.mean(scores) if scores else np.nan for scores in found[id(one)]])
            first = first_scores(list(one.before.values())[: len(own)], self.first)
            one.scores = first + (own if self.first == "as_is" else own / HIGHEST)
            one.note = f"relevance by {prompt.name}"
