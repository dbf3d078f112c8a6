"""Shared code of stages with a language model: stored answers, and versions of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from claim2source.core.config import Between, require
from claim2source.core.files import content_hash
from claim2source.core.run import Cost
from claim2source.llm.answers import ANSWERS, AnswerStore
from claim2source.llm.client import LLM
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import Answer, Check, Request
from claim2source.stages.pairs import WithRuntime
from claim2source.text.language import rewrite_error
from claim2source.text.prompts import read_prompt

T = TypeVar("T")
MOST_VERSIONS = 20
Rewrites = Annotated[int, Between(0, MOST_VERSIONS)]
Heat = Annotated[float, Between(0, 2)]  # of sampling
# A version may be this many times as long as its text, or LONGEST characters.
TIMES = 3
LONGEST = 600


@dataclass(frozen=True)
class Task(Generic[T]):
    """Request, the record of its answer, and the list to which a failure is added."""

    record: T
    failures: list[str]
    request: Request


def answers_cost(answers: Sequence[Answer]) -> Cost:
    """Count the tokens of all answers and the number of stored ones."""
    tokens = sum(answer.usage.total for answer in answers)
    return Cost(tokens=tokens, reused=sum(answer.stored for answer in answers))


@dataclass(frozen=True, kw_only=True)
class LLMStage(WithRuntime):
    """Query a language model, each request once; answers are kept in the store's folder.

    Args:
        llm: the language model and its requests.
    """

    llm: LLMConfig = field(default_factory=LLMConfig)

    def check(self) -> None:
        allowed = "the name at the server, here or by --llm FILE"
        require(bool(self.llm.model.strip()), "llm.model", self.llm.model, allowed)

    def run_tasks(
        self,
        tasks: Sequence[Task[T]],
        answered: list[Answer],
        subject: str,
        check: Check | None = None,
        config: LLMConfig | None = None,
    ) -> Iterator[tuple[T, Answer]]:
        """Run all tasks with `llm` or another model; yield the good answers with their records.

        All answers are added to `answered`.
        """
        with self.open_client(config) as llm:
            answers = llm.answer([task.request for task in tasks], check, subject)
        answered += answers
        for task, answer in zip(tasks, answers, strict=True):
            if answer.failure is None:
                yield task.record, answer
            else:
                task.failures.append(answer.failure)

    @property
    def identity(self) -> Mapping[str, object] | None:
        """Identify the prompts' words: a result depends on them and on the settings."""
        hashes: list[str] = []
        for spec in fields(self):
            if spec.name.endswith("prompt"):
                prompt = read_prompt(getattr(self, spec.name))
                words = replace(prompt, path=Path())
                hashes.append(content_hash([repr(words)]))
        return {"prompts": hashes}

    @contextmanager
    def open_client(self, config: LLMConfig | None = None) -> Iterator[LLM]:
        """Open a client of `llm` or another model; all its calls share one budget."""
        store = self.runtime.store
        path = None if store is None else store.root / ANSWERS
        with AnswerStore(path) as answers:
            yield LLM(config or self.llm, answers)


@dataclass(frozen=True)
class Versions:
    """Good versions of texts, and the failures of others, by text.

    If all versions of a text failed, the text itself is used.
    """

    of: Mapping[str, Sequence[str]]
    failures: Mapping[str, Sequence[str]]
    answers: Sequence[Answer] = ()


@dataclass(frozen=True, kw_only=True)
class RewritingStage(LLMStage):
    """Judge versions of texts instead of the texts, so that the wording matters less.

    Args:
        rewrites: number of versions of a text; 0: the text itself.
        temperature: temperature of the rewriting; judging uses that of `llm`.
        rewrite_prompt: a prompt's name or YAML file with the variable post.
    """

    rewrites: Rewrites = 0
    temperature: Heat = 0.7
    rewrite_prompt: str = "rumor_rewrite"

    def check(self) -> None:
        super().check()
        differ = self.rewrites < 2 or self.temperature > 0
        require(differ, "rewrites", self.rewrites, "1: at temperature 0 all versions are the same")

    def versions(
        self,
        texts: Sequence[str],
        prompt: str | None = None,
        subject: str = "rewrites",
    ) -> Versions:
        """Write the versions of every distinct text, by `rewrite_prompt` or another.

        The prompt has the variable post.
        """
        if not self.rewrites:
            return Versions({text: [text] for text in texts}, {})
        read = read_prompt(prompt or self.rewrite_prompt)
        labels: dict[str, str] = {}
        requests: list[Request] = []
        for number, text in enumerate(dict.fromkeys(texts), 1):
            label = f"text {number}"
            labels[label] = text
            for sample in range(self.rewrites):
                requests.append(Request.of(read, label, {"post": text}, sample=sample))

        def check(request: Request, answer: Answer) -> str | None:
            text = labels[request.id]
            longest = max(LONGEST, TIMES * len(text))
            return rewrite_error(answer.text, text, language=None, longest=longest, may_repeat=True)

        config = replace(self.llm, temperature=self.temperature)
        with self.open_client(config) as llm:
            answers = llm.answer(requests, check, subject)

        versions: dict[str, list[str]] = {}
        failures: dict[str, list[str]] = {}
        for text in labels.values():
            versions[text] = []
            failures[text] = []
        for answer in answers:
            text = labels[answer.id]
            if answer.failure is None:
                versions[text].append(answer.text)
            else:
                failures[text].append(f"{subject}: {answer.failure}")
        for text, own in versions.items():
            if not own:
                own.append(text)
        return Versions(versions, failures, answers)
