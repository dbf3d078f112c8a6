"""Have a language model choose a letter: one token gives a probability for every paper and none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Annotated

import numpy as np

from claim2source.core.config import Between
from claim2source.llm import Answer, Request
from claim2source.stages.verifier import Verifier, Vote
from claim2source.text.prompts import Message

# A server gives the log-probabilities of this many tokens at most: the papers' and that of none.
MOST_TOKENS = 20
NO_LOGPROBS = "no log-probabilities of the letters"


@dataclass(frozen=True, kw_only=True)
class Letters(Verifier):
    """Move the likeliest paper to the first rank, where it is likelier than none of them.

    The papers are named A, B, ..; the letter after the last one means none. Several votes add up
    their probabilities.

    Args:
        reorder: order all papers that were shown by their probabilities, not the first rank only.
    """

    depth: Annotated[int, Between(1, MOST_TOKENS - 1)] = 10
    prompt: str = "verify_letters"
    reorder: bool = False

    @property
    def ranks_all(self) -> bool:
        """Tell whether all papers are ordered."""
        return self.reorder

    def labels(self, count: int) -> list[str]:
        """Name papers A, B, .."""
        return [*ascii_uppercase[:count]]

    def names(self, count: int) -> dict[str, str]:
        """Add the letters to the prompt's values."""
        none = ascii_uppercase[count]
        return super().names(count) | {"letters": ", ".join(self.labels(count)), "none": none}

    def request(self, id: str, messages: tuple[Message, ...], count: int) -> Request:
        """Ask for one letter, with the log-probabilities of all."""
        made = f"{self._prompt.name} {self._prompt.version}"
        choices = tuple(self.labels(count + 1))
        return Request(id, messages, made, choices=choices, logprobs=MOST_TOKENS, max_tokens=1)

    def vote(self, answer: Answer, count: int) -> Vote | str:
        """Read the probabilities of the last token that is a letter: thoughts go before."""
        place = {letter: i for i, letter in enumerate(self.labels(count + 1))}
        token = next((t for t in reversed(answer.logprobs) if t.text.strip() in place), None)
        if token is None:
            return NO_LOGPROBS
        weights = np.zeros(count + 1)
        for text, logprob in {token.text: token.logprob, **token.top}.items():
            if text.strip() in place:
                weights[place[text.strip()]] += math.exp(min(logprob, 0.0))
        total = weights.sum()
        return Vote(weights / total) if total > 0 else NO_LOGPROBS
