"""Share what all stages need that ask a language model: its config, and the stored answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from claim2source.core.config import Settings, require
from claim2source.io.store import Store
from claim2source.llm.answers import ANSWERS, AnswerStore
from claim2source.llm.client import LLM
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import Answer, Check, Request


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

    def answers(
        self, requests: Sequence[Request], check: Check | None = None, what: str = "requests"
    ) -> list[Answer]:
        """Answer all requests, in their order; each has an answer or a failure."""
        with self.asking() as llm:
            return llm.answer(requests, check, what)

    @contextmanager
    def asking(self, config: LLMConfig | None = None) -> Iterator[LLM]:
        """Open the answers, for several calls of `answer` in one budget, of `llm` or another."""
        path: Path | None = self.__dict__.get("_answers")
        with AnswerStore(path) as store:
            yield LLM(config or self.llm, store)
