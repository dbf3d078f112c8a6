"""Send requests to a server with the `openai` package, which retries temporary failures.

The size of replies is bounded, and the key is removed from all texts of the server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from claim2source.core.errors import UserError
from claim2source.core.terminal import printable_line, shortened
from claim2source.llm.answers import StoredReply
from claim2source.llm.config import LLMConfig, key_state, may_use_proxy
from claim2source.llm.endings import MODEL_REFUSED, cut_prompt_reason, ending
from claim2source.llm.thinking import (
    EFFORT,
    SWITCH,
    TEMPLATE,
    holds_reasoning,
    sent_text,
    thinking_parts,
)
from claim2source.llm.work import Request, Token, Usage, prompt_tokens
from claim2source.text.prompts import Message, second_messages

if TYPE_CHECKING:
    import httpx2

MOST_BYTES = 8 * 2**20  # of a reply
# Sent with every request: the size of a decompressed reply has no bound.
HEADERS = {"Accept-Encoding": "identity"}
# Status codes of busy servers; 408 is a proxy's time-out, 409 a lock's.
_PASSING = (408, 409, 425, 429)
# After these, no other request can succeed either.
_USELESS = (401, 402, 403, 404, 405, 501)
# Permanent errors: the server does not support the request.
_LASTING = (501, 505, 506, 508, 510, 511)
_SPENT = re.compile(
    r"insufficient[_ ](?:quota|balance|funds|credits?)|exceeded_current_quota|arrearage"
    r"|billing_(?:hard_limit|not_active)",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(
    r"\b(?:inputs?|prompt|request|documents?|sequence|texts?|query|batch|payload)\b[^.]{0,60}"
    r"\b(?:too large|(?:is|are|was) too long)|context (?:length|size|window)|too many input tokens",
    re.IGNORECASE,
)
_SPOILT = re.compile(r"output that does not match the expected", re.IGNORECASE)
# Characters of a server's message that are shown, and that are searched for its meaning.
_LONGEST_WORDS, _READ = 300, 2000
# A failed greedy reply would be repeated: further tries are sampled, each with another seed.
RETRY_TEMPERATURE, RETRY_SEED = 0.3, 1_000_003
NO_LIST = (404, 405, 501)
_LLAMA_CPP = "llamacpp"  # owner of its models
_SHORTEST_KEY = 4
# No reply has more tokens; SQLite cannot store numbers above 2**63.
_MOST_TOKENS = 2**40
_HIGHEST_LOGPROB = 0.01
_BROKEN = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
# Parameters that some models refuse; requests to these omit them.
OPTIONAL = {
    "max_tokens": r"max_tokens",
    "temperature": r"temperature",
    "top_p": r"top_p",
    "seed": r"seed",
    EFFORT: r"reasoning_effort|reasoning\.effort",
    TEMPLATE: r"chat_template(?:_kwargs)?|(?:enable_)?thinking(?:_mode)?|reasoning_effort",
    SWITCH: r"thinking",
}
# Types of text parts; others are thoughts, pictures or refusals.
_TEXTS = ("text", "output_text")
_UNWANTED = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|unavailable|n[o'’]t (?:be )?(?:support|permit"
    r"|allow|specif|accept)|cannot both be|extra (?:field|input|key)|deprecated|only the default"
    r"|only \S+ (?:is|are) (?:allowed|supported)",
    re.IGNORECASE,
)


class Refusal(Exception):
    """Status and message with which a server refused a request.

    `reason` may repeat the request: remove the key before showing it; `shown` does the rest.
    """

    def __init__(self, status: int, reason: str, codes: str = "") -> None:
        self.status, self.reason, self.codes = status, reason, codes
        # When to send the request again, as the server writes it.
        self.retry_after = ""
        # The content of the refused request.
        self.parts: frozenset[str] = frozenset(OPTIONAL)
        super().__init__(reason)

    @property
    def is_spent(self) -> bool:
        """Whether the account's quota is exhausted, so that waiting does not help."""
        if self.status not in (402, 403, 429):
            return False
        return self.status == 402 or bool(_SPENT.search(f"{self.codes} {self.reason[:_READ]}"))

    @property
    def is_lasting(self) -> bool:
        """Whether no other request can succeed either."""
        return self.is_spent or self.status in _USELESS or 300 <= self.status < 400

    @property
    def is_too_large(self) -> bool:
        """Whether a shorter text may be accepted; some servers use status 500 for this."""
        return self.status == 413 or bool(_TOO_LARGE.search(self.reason[:_READ]))

    @property
    def is_spoilt(self) -> bool:
        """Whether llama.cpp could not parse the model's output by the schema."""
        return self.status == 500 and bool(_SPOILT.search(self.reason[:_READ]))

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed later."""
        if self.is_spent or self.is_too_large or self.is_spoilt:
            return False
        return self.status in _PASSING or (self.status >= 500 and self.status not in _LASTING)


def refusal(status: int, content: bytes) -> Refusal:
    """Extract a refusal's message from the fields that servers use."""
    text = content.decode("utf-8", "replace")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return Refusal(status, text)
    error = values.get("error", values) if isinstance(values, dict) else values
    error = {"message": error} if isinstance(error, str) else error
    if not isinstance(error, dict):
        return Refusal(status, text)
    codes = " ".join(str(error[key]) for key in ("code", "type", "param") if error.get(key))
    words = (error.get(key) for key in ("message", "detail"))
    reason = next((word for word in words if word and isinstance(word, str)), text)
    return Refusal(status, reason, codes[:_LONGEST_WORDS])


def short_line(words: str) -> str:
    """Shorten a server's message to one line."""
    return shortened(printable_line(words), _LONGEST_WORDS)


def other_shape(content: bytes, shape: str) -> Refusal:
    """Describe a reply of an unexpected shape, and quote its beginning."""
    start = content[: 4 * _LONGEST_WORDS].decode("utf-8", "replace")
    return Refusal(200, f"a reply that is {shape}: {start}")


@cache
def bounded_client() -> type[httpx2.AsyncClient]:
    """Make the class of a client with bounded replies that does not follow redirects elsewhere.

    The OpenAI package retries failures; a header marks those that cannot succeed.
    """
    import httpx2

    class BoundedClient(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            try:
                # httpx's own time limit restarts with every chunk of a reply.
                async with asyncio.timeout(request.extensions["timeout"]["read"]):
                    reply = await self._read_whole(request, options)
            except TimeoutError:
                raise httpx2.ReadTimeout("time-out", request=request) from None
            if reply.status_code == 200 and _is_cut(reply.content):
                raise httpx2.RemoteProtocolError("a reply that is cut off", request=request)
            passes = reply.status_code >= 400 and refusal(reply.status_code, reply.content).passes
            reply.headers["x-should-retry"] = "true" if passes else "false"
            return reply

        async def _read_whole(
            self, request: httpx2.Request, options: dict[str, Any]
        ) -> httpx2.Response:
            options |= {"stream": True, "follow_redirects": False}
            response = await super().send(request, **options)
            status, content = response.status_code, bytearray()
            try:
                _refuse_redirect(response)
                packed = response.headers.get("content-encoding", "identity").strip().lower()
                if packed not in ("", "identity"):
                    raise Refusal(status, f"a reply that is compressed as {packed}")
                async for piece in response.aiter_raw():
                    content += piece
                    if len(content) > MOST_BYTES:
                        raise Refusal(status, f"a reply of more than {MOST_BYTES >> 20} MiB")
            finally:
                await response.aclose()
            left_out = ("content-encoding", "content-length", "transfer-encoding")
            pairs = response.headers.multi_items()
            headers = [pair for pair in pairs if pair[0].lower() not in left_out]
            return httpx2.Response(status, headers=headers, content=bytes(content), request=request)

    return BoundedClient


def _is_cut(content: bytes) -> bool:
    """Whether a reply is a truncated object: the next one may be complete."""
    try:
        json.loads(content)
    except RecursionError:
        return False
    except ValueError as error:
        is_json = not content.strip() or content.lstrip()[:1] == b"{"
        return is_json and "Extra data" not in str(error)
    return False


def _refuse_redirect(response: httpx2.Response) -> None:
    if (further := response.next_request) is not None:
        # The rest of the address may contain secrets.
        target = f"{further.url.scheme}://{further.url.netloc.decode('ascii', 'replace')}"
        raise Refusal(response.status_code, f"it redirects to {target}: use this as the address")


class UnusableServer(UserError):
    """Server, key or model with which no request can succeed."""


class NoReply(Exception):
    """Reason why all tries of a request had no reply."""


class CutPrompt(Exception):
    """Reply to a truncated prompt, and the tokens that it cost."""

    def __init__(self, reason: str, usage: Usage) -> None:
        self.usage = usage
        super().__init__(reason)


class Server:
    """Connection to one server, within an `async with`. `group` is the prefix of keys in errors.

    A request is sent again after 408, 429, 5xx, a broken connection or a time-out. The config sets
    the number of retries and the time-out of each.
    """

    def __init__(self, config: LLMConfig, group: str = "llm.") -> None:
        from httpx2 import Limits
        from openai import AsyncOpenAI

        # At lower levels these loggers write headers of replies, which may repeat the key.
        for name in ("openai", "httpx", "httpcore", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.config, self._key, self._group = config, config.key, group
        # Whether `models` found llama.cpp, which ignores vLLM's choices but supports grammars.
        self.is_llama_cpp = False
        http = bounded_client()(
            limits=Limits(max_connections=None), trust_env=may_use_proxy(config.url)
        )
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
        """List the names of the server's models; None if it does not provide a list."""
        try:
            reply, _ = await self.send("/models")
            names = [str(model["id"]) for model in reply["data"]]
            self.is_llama_cpp = any(m.get("owned_by") == _LLAMA_CPP for m in reply["data"])
            return names
        except (KeyError, TypeError, AttributeError):
            return None
        except Refusal as error:
            if error.status in NO_LIST:
                return None
            raise self.unusable(error) from None

    async def slots(self) -> int | None:
        """Return how many requests llama.cpp answers in parallel; None if it is not reported."""
        address = self.config.base_url.rpartition("/")[0]
        try:
            reply, _ = await self.send(f"{address}/props", no_retry=True)
            return _count(reply["total_slots"]) or None
        except (NoReply, Refusal, *_BROKEN):
            return None

    async def ask(
        self,
        request: Request,
        *,
        strict: bool = True,
        failed: int = 0,
        left_out: Collection[str] = (),
    ) -> StoredReply:
        """Request a reply. Raises `NoReply`, `Refusal`, or `UnusableServer` if none can succeed.

        Raises `CutPrompt` if the server truncated the prompt. With `strict` the server must
        enforce the schema or the choices. `failed`: the number of earlier replies that failed.
        `left_out` names those of `OPTIONAL` that the model refuses.
        """
        body = self._body(request, strict, failed, left_out)
        try:
            reply, content = await self.send("/chat/completions", body)
        except Refusal as error:
            if error.is_lasting:
                raise self.unusable(error) from None
            error.parts = frozenset(body)
            raise
        try:
            read = replace(self._reply(request, reply), sent=sent_text(body))
            counted = _count((reply.get("usage") or {}).get("prompt_tokens"))
        except _BROKEN:
            raise self._redacted(other_shape(content, "no chat completion")) from None
        reason = cut_prompt_reason(request, read.usage.prompt if counted else 0, reply)
        if reason is not None:
            raise CutPrompt(reason, read.usage)
        return read

    async def send(
        self, path: str, body: Mapping[str, object] | None = None, *, no_retry: bool = False
    ) -> tuple[Any, bytes]:
        """Send a request; return the reply's JSON and bytes. Raises `NoReply` or `Refusal`.

        `path` is appended to the server's address, or is an address itself. With `no_retry` the
        request is sent only once.
        """
        import httpx2
        import openai

        client = self._client.with_options(max_retries=0) if no_retry else self._client
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
            refused = self._redacted(refusal(error.status_code, error.response.content))
            refused.retry_after = short_line(error.response.headers.get("retry-after", ""))
            raise refused from None
        except Refusal as error:
            raise self._redacted(error) from None
        content = response.content
        try:
            reply = json.loads(content)
        except (ValueError, RecursionError):
            raise self._redacted(other_shape(content, "no JSON")) from None
        if isinstance(reply, dict) and reply.get("error"):
            raise self._redacted(refusal(200, content))
        return reply, content

    def _redacted(self, refused: Refusal) -> Refusal:
        return Refusal(refused.status, short_line(self._without_key(refused.reason)), refused.codes)

    def unusable(self, error: Refusal) -> UnusableServer:
        """Make the error that names the setting which a server rejects."""
        config, group = self.config, self._group
        if error.status in (401, 403) and not error.is_spent:
            key = key_state(config.key_env, config.url)
            return UnusableServer(
                f"config: {group}key_env: the key in {config.key_env} {key} by {config.base_url} "
                f"(status {error.status}): {error.reason}"
            )
        if error.status < 400:
            reason = error.reason or f"status {error.status}"
            return UnusableServer(f"config: {group}url: {config.base_url}: {reason}")
        return UnusableServer(
            f"config: {group}model: {config.base_url} refused {config.model!r} "
            f"(status {error.status}): {error.reason}"
        )

    def _body(
        self, request: Request, strict: bool, failed: int, left_out: Collection[str]
    ) -> dict[str, Any]:
        """Return the request in the form of vLLM 0.32, without the parts that the model refuses."""
        config = self.config
        temperature = config.temperature
        retry = failed > 0
        if retry:
            temperature = max(temperature, RETRY_TEMPERATURE)
        body: dict[str, Any] = {
            "model": config.model,
            "messages": _messages(request, retry),
            "temperature": temperature,
            "max_tokens": request.max_tokens or config.max_tokens,
        }
        if config.top_p < 1:
            body["top_p"] = config.top_p
        if config.seed is not None:
            seed = config.seed + request.sample + failed * RETRY_SEED
            body["seed"] = seed % 2**31
        if request.logprobs:
            body["logprobs"] = True
            body["top_logprobs"] = request.logprobs
        body |= thinking_parts(config)
        if strict:
            body |= _form_parts(request, retry, self.is_llama_cpp)
        if "max_tokens" in left_out:
            body["max_completion_tokens"] = body["max_tokens"]
        for name in left_out:
            body.pop(name, None)
        return body

    def _reply(self, request: Request, reply: Any) -> StoredReply:
        choice = reply["choices"][0]
        message = choice["message"]
        text = self._without_key(_without_surrogates(_text(message.get("content"))))
        finish, native = choice.get("finish_reason"), choice.get("native_finish_reason")
        if not isinstance(finish, str | None):
            raise TypeError("finish_reason is not a string")
        finish = ending(finish, native if isinstance(native, str) else None)
        words = _refusal_words(message)
        if words and not text.strip():
            text = self._without_key(_without_surrogates(words))
            finish = MODEL_REFUSED
        usage = reply.get("usage")
        usage = {} if usage is None else usage
        # Not every server counts tokens.
        prompt = _prompt_count(usage) or prompt_tokens(request)
        completion = _count(usage.get("completion_tokens")) or len(text) // 4 + 1
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        tokens = tuple(
            Token(
                _without_surrogates(token["token"]),
                _logprob(token["logprob"]),
                {
                    _without_surrogates(t["token"]): _logprob(t["logprob"])
                    for t in token.get("top_logprobs") or ()
                },
            )
            for token in logprobs
        )
        finish = finish and short_line(self._without_key(finish))
        reasoned = holds_reasoning(message, usage)
        return StoredReply(text, finish, Usage(prompt, completion), tokens, reasoned=reasoned)

    def _without_key(self, text: str) -> str:
        """Remove the key from a text, because a server may echo it."""
        if len(self._key) < _SHORTEST_KEY:
            return text
        return text.replace(self._key, f"<{self.config.key_env}>")


def refused_part(error: Refusal, refused_names: Collection[str]) -> str | None:
    """Return the part of `OPTIONAL` that a refusal names, unless it is in `refused_names`."""
    words = f"{error.codes} {error.reason}"
    if error.status not in (400, 422) or not _UNWANTED.search(words):
        return None
    for name, pattern in OPTIONAL.items():
        is_sent = name in error.parts and name not in refused_names
        if is_sent and re.search(rf"(?<!\w)(?:{pattern})(?!\w)", words):
            return name
    return None


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = [{"text": part} if isinstance(part, str) else part for part in content]
        texts = [part for part in parts if part.get("type", "text") in _TEXTS]
        # Gemini marks its thoughts this way.
        return "".join(part["text"] for part in texts if not part.get("thought"))
    if not isinstance(content, str | None):
        raise TypeError("content is not a string")
    return content or ""


def _refusal_words(message: Mapping[str, Any]) -> str:
    """Return a model's refusal from its separate field or part; "" if there is none."""
    words = message.get("refusal")
    content = message.get("content")
    if isinstance(content, list) and not words:
        parts = [part for part in content if isinstance(part, dict)]
        words = next((part["refusal"] for part in parts if part.get("refusal")), None)
    return words if isinstance(words, str) else ""


def _messages(request: Request, retry: bool) -> list[dict[str, str]]:
    messages: Sequence[Message] = request.messages
    if retry and request.reminder is not None:
        messages = second_messages(messages, request.reminder)
    return [{"role": message.role, "content": message.content} for message in messages]


def _form_parts(request: Request, retry: bool, is_llama_cpp: bool) -> dict[str, object]:
    """Return the parts of a request that enforce its choices or its schema."""
    if request.choices and is_llama_cpp:
        choices = [json.dumps(choice, ensure_ascii=False) for choice in request.choices]
        return {"grammar": f"root ::= {' | '.join(choices)}"}
    if request.choices:
        return {"structured_outputs": {"choice": list(request.choices)}}
    own_schema = request.form(retry)
    if own_schema is None:
        return {}
    schema = {"name": "reply", "schema": dict(own_schema), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _without_surrogates(text: object) -> str:
    """Replace unpaired surrogates, which cannot be encoded, by question marks."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def _logprob(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("no log-probability")
    # Rounded values may be slightly above 0.
    if not value <= _HIGHEST_LOGPROB:
        raise ValueError("no log-probability")
    return float(value)


def _prompt_count(usage: Mapping[str, Any]) -> int:
    """Return a prompt's tokens, including cached ones; 0 if the server does not count them."""
    tokens = _count(usage.get("prompt_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    if not tokens or isinstance(cached, bool) or not isinstance(cached, int):
        return tokens
    # More cached than total tokens: this server counts them separately.
    return tokens + cached if tokens < cached <= _MOST_TOKENS else tokens


def _count(tokens: object) -> int:
    if tokens is None:
        return 0
    if isinstance(tokens, bool) or not isinstance(tokens, int | float):
        raise TypeError("no number of tokens")
    if not 0 <= tokens <= _MOST_TOKENS or tokens != int(tokens):
        raise ValueError("no number of tokens")
    return int(tokens)
