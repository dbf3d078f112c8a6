"""Speak with a server through the `openai` package, which asks again what may pass.

The key is taken out of whatever comes back.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from claim2source.core.errors import UserError
from claim2source.llm.api_key import may_use_proxy, state_of
from claim2source.llm.config import LLMConfig
from claim2source.llm.http import (
    HEADERS,
    Budget,
    Refused,
    bounded_client,
    other_shape,
    refusal,
    short_line,
)
from claim2source.llm.work import Request, Token, Usage, prompt_tokens

# A greedy reply that failed would come again: the second try is sampled, and with another seed.
SECOND_TEMPERATURE, SECOND_SEED = 0.3, 1_000_003
NO_LIST = (404, 405, 501)
_SHORTEST_KEY = 4
# No reply has more tokens; SQLite holds no number above 2**63.
_MOST_TOKENS = 2**40
_HIGHEST_LOGPROB = 0.01
_BROKEN = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
# What some models refuse to be asked; without it they are asked all the same.
OPTIONAL = {
    "max_tokens": r"max_tokens",
    "temperature": r"temperature",
    "top_p": r"top_p",
    "seed": r"seed",
    "chat_template_kwargs": r"chat_template(?:_kwargs)?|enable_thinking",
}
# Of a content's parts; others are thoughts, pictures or refusals.
_TEXTS = ("text", "output_text")
_UNWANTED = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|unavailable|n[o'’]t (?:be )?(?:support|permit"
    r"|allow|specif|accept)|cannot both be|extra (?:field|input|key)|deprecated|only the default"
    r"|only \S+ (?:is|are) (?:allowed|supported)",
    re.IGNORECASE,
)


class Unusable(UserError):
    """Report a server, key or model with which no request can succeed."""


class NoReply(Exception):
    """Say why there was no reply, however often it was asked for."""


@dataclass(frozen=True)
class Reply:
    """Hold what the server replied."""

    text: str
    finish: str | None
    usage: Usage
    logprobs: tuple[Token, ...] = ()


class Server:
    """Ask one server; open while the `async with` lasts. Errors name keys that begin with `group`.

    A request is sent again after 408, 429, 5xx, a broken connection or a time-out, as often as the
    config says, each time within its time-out.
    """

    def __init__(
        self, config: LLMConfig, budget: Budget | None = None, group: str = "llm."
    ) -> None:
        from httpx2 import Limits
        from openai import AsyncOpenAI

        # At their lower levels they log the headers of replies, which may repeat the key.
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.config, self._key, self._group = config, config.key, group
        http = bounded_client()(
            limits=Limits(max_connections=None), trust_env=may_use_proxy(config.url)
        )
        http.budget = budget or Budget()  # type: ignore[attr-defined]
        self._client = AsyncOpenAI(
            base_url=config.base_url,
            api_key=self._key or "none",
            max_retries=config.retries,
            timeout=config.timeout,
            default_headers=HEADERS,
            http_client=http,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def models(self) -> list[str] | None:
        """List the names of the server's models; None where it has no such list."""
        try:
            found, _ = await self.sent("/models")
            return [str(model["id"]) for model in found["data"]]
        except (KeyError, TypeError):
            return None
        except Refused as error:
            if error.status in NO_LIST:
                return None
            raise self.unusable(error) from None

    async def ask(
        self,
        request: Request,
        *,
        strict: bool = True,
        again: bool = False,
        without: Collection[str] = (),
    ) -> Reply:
        """Ask for a reply. Raises `NoReply`, `Refused`, or `Unusable` where none can succeed.

        `strict` has the server keep to schema or choices. `again` says that an earlier reply
        failed. `without` names those of `OPTIONAL` that the model refuses.
        """
        try:
            found, content = await self.sent(
                "/chat/completions", self._body(request, strict, again, without)
            )
        except Refused as error:
            if error.is_lasting:
                raise self.unusable(error) from None
            raise
        try:
            return self._reply(request, found)
        except _BROKEN:
            raise self._shown(other_shape(content, "no chat completion")) from None

    async def sent(
        self, path: str, body: Mapping[str, object] | None = None, *, once: bool = False
    ) -> tuple[Any, bytes]:
        """Send a request; return the reply's JSON and bytes. Raises `NoReply` or `Refused`.

        `path` follows the server's address, or is an address itself; `once`: it is not sent again.
        """
        import httpx2
        import openai

        client = self._client.with_options(max_retries=0) if once else self._client
        try:
            if body is None:
                response = await client.get(path, cast_to=httpx2.Response)
            else:
                response = await client.post(path, cast_to=httpx2.Response, body=dict(body))
        except openai.APITimeoutError:
            raise NoReply("time-out") from None
        except openai.APIConnectionError:
            raise NoReply("broken connection") from None
        except openai.APIStatusError as error:
            raise self._shown(refusal(error.status_code, error.response.content)) from None
        except Refused as error:
            raise self._shown(error) from None
        content = response.content
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise self._shown(other_shape(content, "no JSON")) from None
        if isinstance(found, dict) and found.get("error"):
            raise self._shown(refusal(200, content))
        return found, content

    def _shown(self, refused: Refused) -> Refused:
        """Make one line of a refusal's words, without the key."""
        return Refused(refused.status, short_line(self._hidden(refused.why)), refused.codes)

    def unusable(self, error: Refused) -> Unusable:
        """Say which key of the config a server does not take."""
        config, group = self.config, self._group
        if error.status in (401, 403) and not error.is_spent:
            key = state_of(config.key_env, config.url)
            return Unusable(
                f"config: {group}key_env: the key in {config.key_env} {key} by {config.base_url} "
                f"(status {error.status}): {error.why}"
            )
        if error.status < 400:
            why = error.why or f"status {error.status}"
            return Unusable(f"config: {group}url: {config.base_url}: {why}")
        return Unusable(
            f"config: {group}model: {config.base_url} refused {config.model!r} "
            f"(status {error.status}): {error.why}"
        )

    def _body(
        self, request: Request, strict: bool, again: bool, without: Collection[str]
    ) -> dict[str, Any]:
        """Write the request as vLLM 0.32 takes it, or as a model does that refuses some of it."""
        config = self.config
        temperature, seed = config.temperature, config.seed
        if again:
            temperature = max(temperature, SECOND_TEMPERATURE)
        body: dict[str, Any] = {
            "model": config.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": temperature,
            "max_tokens": request.max_tokens or config.max_tokens,
        }
        if config.top_p < 1:
            body["top_p"] = config.top_p
        if seed is not None:
            body["seed"] = (seed + request.sample + again * SECOND_SEED) % 2**31
        if request.logprobs:
            body |= {"logprobs": True, "top_logprobs": request.logprobs}
        if config.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": config.thinking}
        if strict and request.choices:
            body["structured_outputs"] = {"choice": list(request.choices)}
        elif strict and request.schema is not None:
            schema = {"name": "reply", "schema": dict(request.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if "max_tokens" in without:
            body["max_completion_tokens"] = body["max_tokens"]
        for name in without:
            body.pop(name, None)
        return body

    def _reply(self, request: Request, found: Any) -> Reply:
        """Read a reply. Raises one of `_BROKEN` where it is no chat completion."""
        choice = found["choices"][0]
        text = _text(choice["message"].get("content"))
        text = self._hidden(_letters(text))
        finish = choice.get("finish_reason")
        if not isinstance(finish, str | None):
            raise TypeError("finish_reason is no text")
        used = found.get("usage")
        used = {} if used is None else used
        # Not every server counts.
        prompt = _count(used.get("prompt_tokens")) or prompt_tokens(request)
        completion = _count(used.get("completion_tokens")) or len(text) // 4 + 1
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        tokens = tuple(
            Token(
                _letters(token["token"]),
                _logprob(token["logprob"]),
                {
                    _letters(t["token"]): _logprob(t["logprob"])
                    for t in token.get("top_logprobs") or ()
                },
            )
            for token in logprobs
        )
        finish = finish and short_line(self._hidden(finish))
        return Reply(text, finish, Usage(prompt, completion), tokens)

    def _hidden(self, text: str) -> str:
        """Take the key out of a text: a server may repeat what it was sent."""
        if len(self._key) < _SHORTEST_KEY:
            return text
        return text.replace(self._key, f"<{self.config.key_env}>")


def refused_part(error: Refused, known: Collection[str]) -> str | None:
    """Name what of `OPTIONAL` a refusal is about and is not `known` yet."""
    said = f"{error.codes} {error.why}"
    if error.status not in (400, 422) or not _UNWANTED.search(said):
        return None
    for name, pattern in OPTIONAL.items():
        if name not in known and re.search(rf"(?<!\w)(?:{pattern})(?!\w)", said):
            return name
    return None


def _text(content: object) -> str:
    """Read a message's content: a text, or parts, of which those that are text count."""
    if isinstance(content, list):
        parts = [{"text": part} if isinstance(part, str) else part for part in content]
        said = [part for part in parts if part.get("type", "text") in _TEXTS]
        # Gemini marks its thoughts so.
        return "".join(part["text"] for part in said if not part.get("thought"))
    if not isinstance(content, str | None):
        raise TypeError("content is no text")
    return content or ""


def _letters(text: object) -> str:
    """Write halves of surrogate pairs, which no file holds, as question marks."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def _logprob(value: object) -> float:
    """Read a log-probability. Raises `ValueError` or `TypeError` for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("no log-probability")
    # Rounded ones may be a little above 0.
    if not value <= _HIGHEST_LOGPROB:
        raise ValueError("no log-probability")
    return float(value)


def _count(tokens: object) -> int:
    """Read a number of tokens. Raises `ValueError` for what is none."""
    if tokens is None:
        return 0
    if isinstance(tokens, bool) or not isinstance(tokens, int | float):
        raise TypeError("no number of tokens")
    if not 0 <= tokens <= _MOST_TOKENS or tokens != int(tokens):
        raise ValueError("no number of tokens")
    return int(tokens)
