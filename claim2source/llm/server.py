"""Speak with a server through the `openai` package: one request, one reply or the reason of none.

Nothing is asked again here. The key is taken out of whatever comes back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from claim2source.core.errors import UserError
from claim2source.core.terminal import printable_line, shortened
from claim2source.llm.api_key import state_of
from claim2source.llm.config import LLMConfig
from claim2source.llm.retry import PASSING, retry_after
from claim2source.llm.work import Request, Token, Usage, prompt_tokens

if TYPE_CHECKING:
    from openai import APIStatusError

# A greedy reply that failed would come again: the second try is sampled, and with another seed.
SECOND_TEMPERATURE, SECOND_SEED = 0.3, 1_000_003
NO_LIST = (404, 405, 501)
_SHORTEST_KEY = 4


class Unusable(UserError):
    """Report a server, key or model with which no request can succeed."""


class Again(Exception):
    """Say why there was no reply, and after how many seconds the server wants to be asked again."""

    def __init__(self, why: str, after: float | None = None) -> None:
        self.why, self.after = why, after
        super().__init__(why)


class Refused(Exception):
    """Say with what status and words a server refused a request for good."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why
        super().__init__(why)


@dataclass(frozen=True)
class Reply:
    """Hold what the server replied."""

    text: str
    finish: str | None
    usage: Usage
    logprobs: tuple[Token, ...] = ()


class Server:
    """Ask one server; open while the `async with` lasts."""

    def __init__(self, config: LLMConfig) -> None:
        from openai import AsyncOpenAI

        # At their lower levels they log the headers of replies, which may repeat the key.
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.config, self._key = config, config.key
        self._client = AsyncOpenAI(
            base_url=config.base_url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=config.timeout,
        )
        self._create = self._client.chat.completions.with_raw_response.create

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def models(self) -> list[str] | None:
        """List the names of the server's models; None where it has no such list."""
        try:
            found = await self._sent(self._client.models.with_raw_response.list())
            return [str(model["id"]) for model in found["data"]]
        except (KeyError, TypeError):
            return None
        except Refused as error:
            if error.status in NO_LIST:
                return None
            raise self._unusable(error) from None

    async def ask(self, request: Request, *, strict: bool = True, again: bool = False) -> Reply:
        """Ask once. Raises `Again`, `Refused`, or `Unusable` where no request can succeed.

        `strict` has the server keep to schema or choices. `again` says that an earlier reply
        failed.
        """
        try:
            found = await self._sent(self._create(**self._body(request, strict, again)))
        except Refused as error:
            if error.status in (401, 403, 404):
                raise self._unusable(error) from None
            raise
        try:
            return self._reply(request, found)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise Again("a reply that is no chat completion") from None

    async def _sent(self, call: Any) -> Any:
        """Await a call of the SDK, all of it within the time-out; parse its JSON."""
        import openai

        try:
            # The SDK's own limit starts anew with every piece of a reply.
            async with asyncio.timeout(self.config.timeout):
                response = (await call).http_response
        except (TimeoutError, openai.APITimeoutError):
            raise Again("time-out") from None
        except openai.APIConnectionError:
            raise Again("broken connection") from None
        except openai.APIStatusError as error:
            raise self._of_status(error) from None
        except openai.OpenAIError:
            raise Again("a reply that is no chat completion") from None
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            raise Again("a reply that is no chat completion") from None

    def _of_status(self, error: APIStatusError) -> Again | Refused:
        status = error.status_code
        if status >= 500 or status in PASSING:
            return Again(f"status {status}", retry_after(error.response.headers))
        body = error.body
        said = body.get("message") if isinstance(body, dict) else None
        text = said if isinstance(said, str) else error.message
        return Refused(status, shortened(printable_line(self._hidden(text)), 300))

    def _unusable(self, error: Refused) -> Unusable:
        config = self.config
        if error.status in (401, 403):
            key = state_of(config.key_env, config.url)
            return Unusable(
                f"config: llm.key_env: the key in {config.key_env} {key} by {config.base_url} "
                f"(status {error.status}): {error.why}"
            )
        return Unusable(
            f"config: llm.model: {config.base_url} refused {config.model!r} "
            f"(status {error.status}): {error.why}"
        )

    def _body(self, request: Request, strict: bool, again: bool) -> dict[str, Any]:
        """Write the request as vLLM 0.32 takes it."""
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
        extra: dict[str, Any] = {}
        if config.thinking is not None:
            extra["chat_template_kwargs"] = {"enable_thinking": config.thinking}
        if strict and request.choices:
            extra["structured_outputs"] = {"choice": list(request.choices)}
        elif strict and request.schema is not None:
            schema = {"name": "reply", "schema": dict(request.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body | ({"extra_body": extra} if extra else {})

    def _reply(self, request: Request, found: Any) -> Reply:
        choice = found["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise TypeError("content is no text")
        text = self._hidden(text.encode("utf-8", "replace").decode("utf-8"))
        used = found.get("usage") or {}
        # Not every server counts.
        prompt = used.get("prompt_tokens") or prompt_tokens(request)
        completion = used.get("completion_tokens") or len(text) // 4 + 1
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        tokens = tuple(
            Token(
                str(token["token"]),
                float(token["logprob"]),
                {str(t["token"]): float(t["logprob"]) for t in token.get("top_logprobs") or ()},
            )
            for token in logprobs
        )
        return Reply(text, choice.get("finish_reason"), Usage(int(prompt), int(completion)), tokens)

    def _hidden(self, text: str) -> str:
        """Take the key out of a text: a server may repeat what it was sent."""
        if len(self._key) < _SHORTEST_KEY:
            return text
        return text.replace(self._key, f"<{self.config.key_env}>")
