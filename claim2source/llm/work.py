"""Define requests to language models and their answers, which are checked or have a failure."""

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
from claim2source.text.prompts import Message, Parts, Prompt, Reminder

Schema = Mapping[str, object]
STRING: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": STRING}
# Failures of the server or of requests that were not sent; they are not stored.
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


def parts_schema(parts: Parts) -> dict[str, object]:
    """Describe an object of a text's parts."""
    texts: dict[str, Schema] = {}
    for name, (least, most) in parts.items():
        texts[name] = {"type": "string", "minLength": least, "maxLength": most}
    return object_schema(**texts)


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
    """Token of a reply, with the log-probabilities of the most likely tokens at its position."""

    text: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Request:
    """Request for a text, a JSON object (`schema`) or one of several words (`choices`).

    `id` names the record in messages; `version` is the prompt's. `sample` tells several versions
    of one text apart. `own_words` are the prompt's, without values; "": the system's message.
    `reminder` is moved below the data when a bad reply is requested once more.
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
    reminder: Reminder | None = None

    @classmethod
    def of(cls, prompt: Prompt, id: str, values: Mapping[str, str], **options: Any) -> Self:
        """Make a request from a prompt and its values; `options` are the other fields."""
        options.setdefault("own_words", prompt.own_words)
        options.setdefault("reminder", prompt.reminder(values))
        return cls(id, prompt.messages(values), f"{prompt.name} {prompt.version}", **options)

    @property
    def parts(self) -> Parts:
        """Return the parts that a further request for a text asks for."""
        return {} if self.reminder is None else self.reminder.parts

    def form(self, retry: bool) -> Schema | None:
        """Return the schema of the first reply or, in a `retry`, of a further one."""
        if self.schema is None and retry and self.parts:
            return parts_schema(self.parts)
        return self.schema


@dataclass(frozen=True)
class Answer:
    """Answer to a request; `failure` is the reason why it is bad, None if it is good.

    `text` is the cleaned reply (for `choices` the choice), `data` the JSON object, `raw` the
    unchanged reply. `stored`: whether it comes from the store. `reasoned`: whether the raw text
    has reasoning. `thinking` has the request's settings, and whether the reply has reasoning in
    the text or elsewhere.
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
        """Whether the server has answered, well or not, so that the next run need not retry."""
        return self.failure is None or not is_unanswered(self.failure)


# Return the failure of an answer; None if it is good.
Check = Callable[[Request, Answer], str | None]


@dataclass(frozen=True)
class Plan:
    """Counts of a run's requests before any is sent.

    `requests` are to be sent, `stored` have an answer, `repeated` equal another request. Prompt
    tokens are estimated from the length of the texts; reply tokens are the allowed maximum.
    """

    requests: int
    stored: int
    repeated: int
    prompt_tokens: int
    most_completion_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.requests} requests to send, {self.stored} stored, {self.repeated} repeated; "
            f"about {self.prompt_tokens} prompt tokens, "
            f"at most {self.most_completion_tokens} reply tokens"
        )


def require_answers(answers: Sequence[Answer], noun: str = "requests") -> None:
    """Raise `UserError` if a request was not sent or has no reply; the next run resumes there.

    A program calls it at the end, after writing all answers. Replies that failed their checks do
    not count, because the next run would not request them.
    """
    unanswered = [answer for answer in answers if not answer.is_asked]
    if unanswered:
        raise UserError(
            f"{len(unanswered)} of {len(answers)} {noun} have no answer ({reasons(unanswered)}); "
            "answers are stored: run the same command to continue"
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
    """Whether a failure is a request that was not sent or had no reply."""
    return failure.startswith((NOT_ASKED, NO_REPLY))


def count_thinking(answers: Sequence[Answer]) -> tuple[Thinking, ...]:
    """Count the answers by model and thinking settings, and those that reasoned."""
    return merged_thinking(answer.thinking for answer in answers if answer.thinking is not None)


def answer_key(request: Request, config: LLMConfig) -> str:
    """Hash all that an answer depends on: model, messages, sampling, schema, prompt version."""
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
    """Estimate the tokens of a prompt: four bytes each, plus some for the template."""
    size = sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)
    return size // 4 + 8 * len(request.messages)
