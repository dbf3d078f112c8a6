"""Have a language model choose one of the first papers, as the 2026 paper's third stage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from claim2source.llm import Answer, Request
from claim2source.stages.verifier import Verifier, Vote
from claim2source.text.prompts import Message

NO_NUMBER = "begins with no number of a paper, nor with None"
_NUMBER = re.compile(r"[\W_]*(?:paper\W*)?(?:(\d{1,4})(?![\d.,]*\d)|none\b)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Select(Verifier):
    """Move the paper that a language model chooses to the first rank; the rest keep their order.

    Args:
        reply: json is {"reasoning", "selected_paper"}; number a text that begins with the paper's
            number or with None, as the released short prompt (`verify_short`) asks.
    """

    reply: Literal["json", "number"] = "json"

    def request(self, id: str, messages: tuple[Message, ...], count: int) -> Request:
        """Ask for one paper."""
        made = f"{self._prompt.name} {self._prompt.version}"
        if self.reply == "number":
            return Request(id, messages, made)
        properties = {
            "reasoning": {"type": "string"},
            "selected_paper": {"type": "integer", "minimum": 1, "maximum": count},
        }
        schema = {
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        }
        return Request(id, messages, made, schema)

    def vote(self, answer: Answer, count: int) -> Vote | str:
        """Read the number."""
        weights = np.zeros(count + 1)
        if self.reply == "json":
            data = answer.data or {}
            # 3.0 is an integer of JSON, too.
            number, reason = int(float(str(data["selected_paper"]))), str(data["reasoning"])
        elif (found := _NUMBER.match(answer.text)) is None:
            return NO_NUMBER
        else:
            number, reason = int(found[1] or count + 1), ""
            if found[1] and not 1 <= number <= count:
                return f"chooses a paper that is not among 1 to {count}"
        weights[number - 1] = 1
        return Vote(weights, reason)
