"""Share what all stages need that ask a language model: its config, and the stored answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Self, TypeVar

from claim2source.core.config import Settings, require
from claim2source.io.store import Store
from claim2source.llm.answers import ANSWERS, AnswerStore
from claim2source.llm.client import LLM
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import Answer, Check, Request

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """Hold a request, the record that its answer is for, and the list that takes its failure."""

    record: T
    failures: list[str]
    request: Request


@dataclass
class LLMCost:
    """Count the tokens of answers, whenever they were asked for, and those that were stored."""

    tokens: int = 0
    stored: int = 0

    def count(self, answers: Sequence[Answer]) -> None:
        """Count answers."""
        self.tokens += sum(answer.usage.total for answer in answers)
        self.stored += sum(answer.stored for answer in answers)


@dataclass(frozen=True, kw_only=True)
class LLMStage(Settings):
    """Ask a language model; what it answered is asked for once.

    Args:
        llm: the language model and how it is asked.
    """

    llm: LLMConfig = field(default_factory=LLMConfig)

    def check(self) -> None:
        require(bool(self.llm.model.strip()), "llm.model", self.llm.model, "the name at the server")

    def with_runtime(self, store: Store | None, device: str | None, progress: bool = False) -> Self:
        """Return the same stage, which keeps the answers in the store's folder."""
        copy = replace(self)
        copy.__dict__["_answers"] = None if store is None else store.root / ANSWERS
        return copy

    def good(
        self,
        tasks: Sequence[Task[T]],
        cost: LLMCost,
        what: str,
        check: Check | None = None,
        config: LLMConfig | None = None,
    ) -> Iterator[tuple[T, Answer]]:
        """Ask for all tasks, of `llm` or another; yield the good answers, each with its record."""
        with self.asking(config) as llm:
            answers = llm.answer([task.request for task in tasks], check, what)
        cost.count(answers)
        for task, answer in zip(tasks, answers, strict=True):
            if answer.failure is None:
                yield task.record, answer
            else:
                task.failures.append(answer.failure)

    @contextmanager
    def asking(self, config: LLMConfig | None = None) -> Iterator[LLM]:
        """Open the answers, for several calls of `answer` in one budget, of `llm` or another."""
        path: Path | None = self.__dict__.get("_answers")
        with AnswerStore(path) as store:
            yield LLM(config or self.llm, store)
