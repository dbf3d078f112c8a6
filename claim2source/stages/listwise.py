"""Order the first sources by a language model, window by window from the bottom up.

RankGPT (Sun et al., 2023): the model orders the last `window` sources, then those `stride` higher
up, and so on to the top, so that a good source can rise from the bottom of the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, require
from claim2source.llm.stage import LLMCost
from claim2source.llm.work import Answer, Request, object_schema
from claim2source.stages.llm_scores import ListScores, LLMScores, numbered, post_values
from claim2source.stages.pairs import DEEPEST
from claim2source.text.prompts import Prompt, read_prompt

_SCHEMA = object_schema(order={"type": "array", "items": {"type": "integer"}})


@dataclass(frozen=True, kw_only=True)
class Listwise(LLMScores):
    """Re-rank by an order that a language model gives, in a sliding window.

    Args:
        window: sources that the model sees at once.
        stride: how far the window moves up each time, at most `window`.
        words: words of a source that are shown.
        prompt: a prompt's name or YAML file with the variables count, post, translation, papers.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 100
    window: Annotated[int, Between(2, DEEPEST)] = 20
    stride: int = 10
    words: Annotated[int, Between(1, 10**6)] = 300
    prompt: str = "listwise"

    def check(self) -> None:
        super().check()
        good = 1 <= self.stride <= self.window
        require(good, "stride", self.stride, f"1 to window ({self.window})")

    @property
    def prompts(self) -> tuple[str, ...]:
        """Name the prompt."""
        return (self.prompt,)

    def fill(self, lists: Sequence[ListScores], cost: LLMCost) -> None:
        """Order the windows of all lists, the lowest ones of all first."""
        prompt = read_prompt(self.prompt)
        orders = [list(range(len(entry.texts))) for entry in lists]
        plans = [list(windows(len(entry.texts), self.window, self.stride)) for entry in lists]
        with self.asking() as llm:
            for turn in range(max(map(len, plans), default=0)):
                due = [number for number, plan in enumerate(plans) if turn < len(plan)]
                requests = [
                    self._request(prompt, lists[number], orders[number], plans[number][turn])
                    for number in due
                ]
                sizes = {lists[number].claim.id: plans[number][turn] for number in due}
                answers = llm.answer(requests, partial(_why_not, sizes), f"windows {turn + 1}")
                cost.count(answers)
                for number, answer in zip(due, answers, strict=True):
                    if answer.failure is not None:
                        lists[number].failures.append(answer.failure)
                        continue
                    start, end = plans[number][turn]
                    rows = orders[number][start:end]
                    orders[number][start:end] = [rows[i] for i in named_first(answer, end - start)]
        for entry, order, plan in zip(lists, orders, plans, strict=True):
            entry.note = f"{len(plan) - len(entry.failures)} of {len(plan)} windows ordered"
            if len(entry.failures) < len(plan):
                entry.scores = np.empty(len(order))
                entry.scores[order] = np.arange(len(order), 0, -1)

    def _request(
        self, prompt: Prompt, entry: ListScores, order: Sequence[int], window: tuple[int, int]
    ) -> Request:
        passages = [
            " ".join(entry.texts[row].split()[: self.words]) for row in order[slice(*window)]
        ]
        values = {
            "count": str(len(passages)),
            "papers": numbered(passages),
            **post_values(entry.claim),
        }
        return Request.of(prompt, entry.claim.id, values, schema=_SCHEMA)


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield starts and ends of windows over `count` places, from the bottom to the very top.

    RankGPT's own code leaves the first places out where the strides do not end there.
    """
    end = count
    while end > 0 and count > 1:
        start = max(0, end - window)
        yield start, end
        if start == 0:
            return
        end = max(end - stride, min(window, count))


def named_first(answer: Answer, count: int) -> list[int]:
    """List places from 0: those that an answer names, once each, then the others in order."""
    order = [number - 1 for number in _order(answer) if 1 <= number <= count]
    return list(dict.fromkeys([*order, *range(count)]))


def _order(answer: Answer) -> list[int]:
    order = (answer.data or {}).get("order")
    # A schema's integer may be written 3.0.
    return [int(number) for number in order] if isinstance(order, list) else []


def _why_not(sizes: Mapping[str, tuple[int, int]], request: Request, answer: Answer) -> str | None:
    start, end = sizes[request.id]
    is_answer = any(1 <= number <= end - start for number in _order(answer))
    return None if is_answer else "names no paper of the list"
