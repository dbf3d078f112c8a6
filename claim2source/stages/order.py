"""Have a language model put the first papers in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.llm import Answer, Request
from claim2source.stages.verifier import Verifier, Vote
from claim2source.text.prompts import Message

REPEATED = "names a paper twice"


@dataclass(frozen=True, kw_only=True)
class Order(Verifier):
    """Order the first papers as a language model does: {"reasoning", "ranking"}.

    Papers that it does not name follow in their order. Several votes are joined by their ranks.
    """

    prompt: str = "verify_order"

    @property
    def ranks_all(self) -> bool:
        """All papers are ordered."""
        return True

    def request(self, id: str, messages: tuple[Message, ...], count: int) -> Request:
        """Ask for the numbers of all papers, the best first."""
        number = {"type": "integer", "minimum": 1, "maximum": count}
        properties: dict[str, object] = {
            "reasoning": {"type": "string"},
            "ranking": {"type": "array", "items": number, "minItems": 1, "maxItems": count},
        }
        schema = {
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        }
        return Request(id, messages, f"{self._prompt.name} {self._prompt.version}", schema)

    def vote(self, answer: Answer, count: int) -> Vote | str:
        """Give n points to the first, n - 1 to the second, .., and 0 to those without a place."""
        data = answer.data or {}
        ranking = data["ranking"]
        assert isinstance(ranking, Sequence)
        places = [int(number) - 1 for number in ranking]
        if len(set(places)) < len(places):
            return REPEATED
        weights = np.zeros(count + 1)
        weights[places] = count - np.arange(len(places))
        return Vote(weights, str(data["reasoning"]))
