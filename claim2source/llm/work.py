"""Describe LLM work: a request becomes an answer that was checked, or a failure with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from claim2source.core.errors import UserError
from claim2source.core.files import content_hash
from claim2source.core.run import Thinking, merged_thinking
from claim2source.llm.config import LLMConfig
from claim2source.llm.thinking import key_part
from claim2source.text.prompts import Message, Prompt

Schema = Mapping[str, object]
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
# Answers that failed at the server or were never asked; they are not stored.
NOT_ASKED = "not asked"
NO_REPLY = "no reply"


def object_schema(**properties: Schema) -> dict[str, object]:
    """Describe a JSON object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Usage:
    """Count the tokens of one reply."""

    prompt: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.completion + other.completion)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.prompt - other.prompt, self.completion - other.completion)


@dataclass(frozen=True)
class Token:
    """One token of a reply, with the log-probabilities of the tokens likeliest there."""

    text: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Request:
    """Describe a request of a text, a JSON object (`schema`) or one of some words (`choices`).

    `id` names the record in messages; `version` is the prompt's. `sample` tells several versions
    of one text apart. `own_words` are the prompt's, without values; "": the system's message.
    `reminder` stands below the data when a bad reply is requested once more.
    `logprobs` asks for the likeliest tokens at each place (vLLM: 20 at most),
    `max_tokens` replaces the config's.
    """

    id: str
    messages: tuple[Message, ...]
    version: str = ""
    schema: Schema | None = None
    choices: tuple[str, ...] = ()
    logprobs: int = 0
    max_tokens: int | None = None
    sample: int = 0
    own_words: str = ""
    reminder: str = ""

    @classmethod
    def of(cls, prompt: Prompt, id: str, values: Mapping[str, str], **options: Any) -> Self:
        """Fill in a prompt; `options` are the other fields."""
        options.setdefault("own_words", prompt.own_words)
        options.setdefault("reminder", prompt.reminder(values))
        return cls(id, prompt.messages(values), f"{prompt.name} {prompt.version}", **options)


@dataclass(frozen=True)
class Answer:
    """Answer to a request; `failure` says what is wrong with it, None if it is good.

    `text` is the cleaned reply (of `choices`: the choice), `data` the JSON object, `raw` the
    reply as it came. `stored` says that nothing was asked for it now. `reasoned` says
    that the raw text has reasoning, `thinking` what the request said about it, and whether the
    reply has some, there or elsewhere.
    """

    id: str
    text: str = ""
    data: dict[str, object] | None = None
    failure: str | None = None
    raw: str = ""
    usage: Usage = Usage()
    stored: bool = False
    logprobs: tuple[Token, ...] = ()
    reasoned: bool = False
    thinking: Thinking | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the server has answered, well or not: the next run need not ask again."""
        return self.failure is None or not is_unanswered(self.failure)


# Returns the failure of an answer; None if it is good.
Check = Callable[[Request, Answer], str | None]


@dataclass(frozen=True)
class Plan:
    """Count a run's requests before it sends any.

    `requests` are to be made, `stored` are answered, `repeated` ask what another one does.
    Tokens are estimated from the length of the texts; of replies they are the most allowed.
    """

    requests: int
    stored: int
    repeated: int
    prompt_tokens: int
    most_completion_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.requests} requests to make, {self.stored} stored, {self.repeated} repeated; "
            f"about {self.prompt_tokens} tokens of prompts, "
            f"at most {self.most_completion_tokens} of replies"
        )


def require_answers(answers: Sequence[Answer], noun: str = "requests") -> None:
    """Raise `UserError` if a request was not asked or got no reply: a next run goes on there.

    A program calls it last, when what was answered is written. Replies that failed their checks
    do not count: a next run would not request them.
    """
    unanswered = [answer for answer in answers if not answer.is_asked]
    if unanswered:
        raise UserError(
            f"{len(unanswered)} of {len(answers)} {noun} have no answer ({reasons(unanswered)}); "
            "answers are kept: the same command continues from there"
        )


def reasons(answers: Sequence[Answer]) -> str:
    """Count the reasons of failed answers, the most frequent first: `12 not JSON, 3 empty`."""
    counts = Counter(answer.failure for answer in answers if answer.failure is not None)
    others = counts.total()
    parts: list[str] = []
    for reason, count in counts.most_common(5):
        parts.append(f"{count} {reason}")
        others -= count
    if others:
        parts.append(f"{others} others")
    return ", ".join(parts)


def is_unanswered(failure: str) -> bool:
    """Whether a failure is that of a server that was not asked or gave no reply."""
    return failure.startswith((NOT_ASKED, NO_REPLY))


def count_thinking(answers: Sequence[Answer]) -> tuple[Thinking, ...]:
    """Count the answers by model and what was sent about thinking, and those that reasoned."""
    return merged_thinking(answer.thinking for answer in answers if answer.thinking is not None)


def answer_key(request: Request, config: LLMConfig) -> str:
    """Hash everything that makes an answer: model, messages, sampling, schema, prompt version."""
    return content_hash(
        {
            "model": config.model,
            "messages": [list(message) for message in request.messages],
            "version": request.version,
            "schema": request.schema,
            "choices": request.choices,
            "logprobs": request.logprobs,
            "sample": request.sample,
            "max_tokens": request.max_tokens or config.max_tokens,
            "temperature": float(config.temperature),
            "top_p": float(config.top_p),
            "seed": config.seed,
            "thinking": key_part(config),
        }
    )


def prompt_tokens(request: Request) -> int:
    """Estimate the tokens of a prompt: four bytes each, and some for the template."""
    size = sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)
    return size // 4 + 8 * len(request.messages)
