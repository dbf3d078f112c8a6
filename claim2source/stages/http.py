"""Re-rank over HTTP: vLLM's score, the rerank API of Jina, Cohere, vLLM and llama.cpp, and
llama.cpp's log-odds of yes.

Results are matched by their `index`. A document that is too long is halved until the server
accepts it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np

from claim2source.core.config import Between, require
from claim2source.core.errors import UserError
from claim2source.llm.client import all_or_none, run_async
from claim2source.llm.config import LLMConfig, check_server
from claim2source.llm.server import NoReply, Refusal, Server, other_shape
from claim2source.stages.pairs import Pair, RawScores, Reranker, rows_by_claim
from claim2source.stages.yes_no import INSTRUCTIONS, write_prompt
from claim2source.text.control import escape_control_tokens

log = logging.getLogger(__name__)

Dialect = Literal["vllm_score", "rerank", "jina", "llama_yes_no"]
# Increased if the same settings give other scores.
_FORMAT = 2
# By dialect: the path, the field of the results, the field of a score.
_SHAPES: Mapping[Dialect, tuple[str, str, str]] = {
    "vllm_score": ("/score", "data", "score"),
    "rerank": ("/v1/rerank", "results", "relevance_score"),
    "jina": ("/v1/rerank", "results", "relevance_score"),
}
_TOO_LONG = re.compile(r"token|length|too (long|large)|exceed|batch size", re.IGNORECASE)
_REFUSALS = (400, 422)
# A document is not halved below so many characters.
_SHORTEST = 16
# Added to both answers' logits: no other token is sampled, and their difference is unchanged.
_BIAS = 100.0
_SMALLEST = float(np.finfo(np.float32).tiny)
# Requests whose scores are returned together.
_WAVE = 64
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Http(Reranker):
    """Re-rank by a server's unchanged scores; vLLM is asked for raw logits.

    llama.cpp's `/v1/rerank` uses the prompt in its GGUF file and returns a Qwen3-Reranker's
    probability of yes. With `llama_yes_no` it uses our prompt and returns the log-odds of `yes_no`.

    Args:
        url: the server's address, without the path.
        dialect: `vllm_score`; `rerank`, `/v1/rerank` of vLLM and llama.cpp; `jina`, the same of
            Jina and other services; `llama_yes_no`, llama.cpp with a generative model.
        model: the model's name on the server.
        key_env: the environment variable with the key; local servers do not need one. The secret
            of another service (AWS_.., HF_..) is refused; keys are sent over https and to this
            machine.
        instruction: the model's instruction, not used in the dialect `jina`: `released`,
            `detailed` (see `yes_no`), or your own text.
        documents: documents per request; jina-reranker-v3 scores at most 64 together.
        concurrency: maximal number of requests in flight.
        timeout: seconds until a request is aborted and sent again.
        retries: how often a request is sent again after 429, 5xx or a broken connection.
    """

    url: str = "http://localhost:8000"
    dialect: Dialect = "vllm_score"
    model: str = ""
    key_env: str = "RERANK_API_KEY"
    instruction: str = "released"
    documents: Annotated[int, Between(1, 2000)] = 32
    concurrency: Annotated[int, Between(1, 256)] = 8
    timeout: Annotated[float, Between(0, 86_400, above=True)] = 120.0
    retries: Annotated[int, Between(0, 100)] = 6

    def check(self) -> None:
        super().check()
        check_server("", self.url, self.key_env)
        require(bool(self.model), "model", "", "its name at the server")
        require(bool(self.instruction.strip()), "instruction", self.instruction, "a text")

    @property
    def label(self) -> str:
        return self.model

    @property
    def server(self) -> Server:
        """Open the server, within a running loop."""
        settings = {key: getattr(self, key) for key in ("key_env", "timeout", "retries")}
        return Server(LLMConfig(self.model, self.url, **settings), group="")

    @cached_property
    def identity(self) -> Mapping[str, object]:
        return {
            "reranker": "http",
            "format": _FORMAT,
            "url": self.url.rstrip("/"),
            "dialect": self.dialect,
            "model": self.model,
            "instruction": INSTRUCTIONS.get(self.instruction, self.instruction),
            # Some models score all documents of a request jointly.
            "documents": self.documents if self.dialect in ("rerank", "jina") else None,
        }

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs claim by claim with concurrent requests, after a single first one.

        Raises `UserError` if the server cannot be reached, or refuses that first request.
        """
        # The server inserts the texts into a prompt.
        pairs = [_escaped(pair) for pair in pairs]
        size = 1 if self.dialect == "llama_yes_no" else self.documents
        parts: list[list[int]] = []
        for rows in rows_by_claim(pairs).values():
            for start in range(0, len(rows), size):
                parts.append(rows[start : start + size])
        # A wrong address, key or model is found before many requests are made.
        borders = [0, *range(1, len(parts), _WAVE), len(parts)]
        for start, end in pairwise(borders):
            work = _Wave(self, pairs, is_first=start == 0)
            try:
                run_async(partial(work.run, parts[start:end]))
            finally:
                yield from work.scored


def _escaped(pair: Pair) -> Pair:
    claim = escape_control_tokens(pair.claim)
    source = escape_control_tokens(pair.source)
    return Pair(claim, source)


@dataclass
class _Wave:
    """Concurrent requests and the scores received so far."""

    settings: Http
    pairs: Sequence[Pair]
    is_first: bool
    scored: list[RawScores] = field(default_factory=list)
    halved: int = 0

    async def run(self, parts: Sequence[Sequence[int]]) -> None:
        gate = asyncio.Semaphore(self.settings.concurrency)

        async def part(rows: Sequence[int]) -> None:
            async with gate:
                texts = [self.pairs[row].source for row in rows]
                claim = self.pairs[rows[0]].claim
                values = await self._score_texts(claim, texts, self.is_first)
                self.scored.append(_raw_scores(rows, values))

        async with self.settings.server as self.server:
            await all_or_none(map(part, parts))
        if self.halved:
            log.warning("%s: %d documents were too long and cut", self.settings.label, self.halved)

    async def _score_texts(
        self,
        claim: str,
        texts: Sequence[str],
        is_first: bool = False,
        *,
        no_retry: bool = False,
    ) -> list[float | str]:
        """Score a claim's texts, in halves if all of them fail; a failed text has its error."""
        try:
            replied = await self._ask(claim, texts, no_retry)
        except NoReply as error:
            url = self.settings.url
            raise UserError(f"{url}: the re-ranker's server cannot be reached: {error}") from None
        except Refusal as error:
            is_too_long = _is_too_long(error)
            is_fatal = is_first and not is_too_long and not error.passes
            if error.is_spent or is_fatal:
                raise self.server.unusable(error) from None
            refusal = error
        else:
            return await self._with_missing(claim, texts, replied)

        # If the texts are not the reason of a refusal, their parts are refused as well.
        half = len(texts) // 2
        may_pass = is_too_long or refusal.passes or refusal.status in _REFUSALS
        if half and may_pass:
            # Each half is requested once, because the whole was requested several times.
            first = await self._score_texts(claim, texts[:half], no_retry=True)
            second = await self._score_texts(claim, texts[half:], no_retry=True)
            return [*first, *second]
        text = texts[0]
        if not half and is_too_long and len(text) > _SHORTEST:
            self.halved += 1
            shorter = text[: len(text) // 2]
            return await self._score_texts(claim, [shorter], no_retry=no_retry)
        return [f"status {refusal.status}: {refusal.reason}"] * len(texts)

    async def _with_missing(
        self,
        claim: str,
        texts: Sequence[str],
        replied: Sequence[float],
    ) -> list[float | str]:
        """Request a score for each text that the reply omitted; a single text has failed."""
        scores: list[float | str] = list(replied)
        for number, score in enumerate(replied):
            if math.isfinite(score):
                continue
            if len(texts) == 1:
                scores[number] = "no score in the reply"
            else:
                alone = [texts[number]]
                (scores[number],) = await self._score_texts(claim, alone, no_retry=True)
        return scores

    async def _ask(
        self,
        claim: str,
        texts: Sequence[str],
        no_retry: bool,
    ) -> list[float]:
        settings = self.settings
        address = settings.url.strip().rstrip("/").removesuffix("/v1")
        if settings.dialect == "llama_yes_no":
            (text,) = texts
            body = _yes_no_body(Pair(claim, text), settings.instruction)
            address += "/completion"
            reply, content = await self.server.send(address, body, no_retry=no_retry)
            return [_log_odds(reply, content)]
        path, results, score_field = _SHAPES[settings.dialect]
        body = {"model": settings.model, "documents": list(texts)}
        if settings.dialect == "vllm_score":
            body["queries"] = claim
        else:
            body |= {"query": claim, "top_n": len(texts), "return_documents": False}
        if settings.dialect != "jina":
            # By default vLLM uses an instruction for web search and returns probabilities.
            instruction = INSTRUCTIONS.get(settings.instruction, settings.instruction)
            body |= {"instruction": instruction, "use_activation": False}
        reply, content = await self.server.send(address + path, body, no_retry=no_retry)
        scores = [math.nan] * len(texts)
        try:
            for entry in reply[results]:
                number = entry["index"]
                value = entry[score_field]
                if {type(number), type(value)} & {bool, str}:
                    raise TypeError("no index or score")
                # Larger values are infinite as float32.
                is_asked = 0 <= number < len(texts)
                if is_asked and value is not None and abs(value) <= _LARGEST:
                    scores[number] = float(value)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise other_shape(content, f"not of the dialect {settings.dialect}") from None
        return scores


def _yes_no_body(pair: Pair, instruction: str) -> dict[str, Any]:
    """Request the probabilities of yes and no after a pair's prompt from llama.cpp."""
    return {
        "prompt": "".join(write_prompt(pair, instruction)),
        "n_predict": 1,
        "n_probs": 2,
        # Probabilities after sampling, where only the bias has an effect.
        "post_sampling_probs": True,
        "logit_bias": [["yes", _BIAS], ["no", _BIAS]],
        "samplers": ["temperature"],
        "temperature": 1.0,
    }


def _log_odds(reply: Any, content: bytes) -> float:
    """Return the log-odds of yes; NaN if a probability is missing."""
    try:
        probabilities: dict[str, float] = {}
        for token in reply["completion_probabilities"][0]["top_probs"]:
            probabilities[token["token"].strip()] = float(token["prob"])
        yes = probabilities.get("yes", math.nan)
        no = probabilities.get("no", math.nan)
        return math.log(max(yes, _SMALLEST)) - math.log(max(no, _SMALLEST))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise other_shape(content, "not of the dialect llama_yes_no") from None


def _is_too_long(error: Refusal) -> bool:
    """Whether a server refused a request because of its length."""
    if error.is_too_large:
        return True
    return error.status in _REFUSALS and bool(_TOO_LONG.search(error.reason))


def _raw_scores(rows: Sequence[int], values: Sequence[float | str]) -> RawScores:
    """Make scores from values, some of which are errors."""
    scores = np.full(len(rows), np.nan, np.float32)
    reasons: dict[int, str] = {}
    for place, value in enumerate(values):
        if isinstance(value, str):
            reasons[rows[place]] = value
        else:
            scores[place] = value
    return RawScores(rows, scores, reasons)
