"""Re-rank over HTTP: vLLM's score and rerank, Jina's API, text-embeddings-inference, SGLang.

Results are placed by their `index`, raw logits are asked for, and one document that is too long
fails neither its request nor itself: it is halved until the server takes it.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np

from claim2source.core.config import Between, require
from claim2source.core.errors import UserError
from claim2source.core.terminal import shortened
from claim2source.llm.api_key import is_plain, may_use_proxy, read_key, require_key_env, state_of
from claim2source.llm.http import (
    HEADERS,
    Refused,
    other_shape,
    post,
    refusal,
    retry_after,
    shown,
    wait_before,
)
from claim2source.models.local import local_name
from claim2source.stages.pairs import NOT_A_NUMBER, Pair, Reranker, Scored
from claim2source.stages.yes_no import INSTRUCTIONS
from claim2source.text.control import defused

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

Dialect = Literal["vllm_score", "vllm_rerank", "jina", "tei", "sglang"]
Scale = Literal["auto", "raw", "probability"]
# Counted up when the same settings would give other scores.
_FORMAT = 1
_PATHS: Mapping[Dialect, str] = {
    "vllm_score": "/score",
    "vllm_rerank": "/rerank",
    "jina": "/v1/rerank",
    "tei": "/rerank",
    "sglang": "/v1/rerank",
}
# The field that asks for raw logits, and what it is then.
_RAW: Mapping[Dialect, tuple[str, bool]] = {
    "vllm_score": ("use_activation", False),
    "vllm_rerank": ("use_activation", False),
    "tei": ("raw_scores", True),
}
_TOO_LONG = re.compile(r"token|length|too (long|large)|exceed|batch size", re.IGNORECASE)
_REFUSALS = (400, 422)
# A document is not halved below so many characters.
_SHORTEST = 16
_LONGEST_WAIT = 900.0
_CLOSEST = 1e-7
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Http(Reranker):
    """Re-rank by the scores of a server.

    Args:
        url: the server's address, without the path.
        dialect: `vllm_score`, `vllm_rerank`, `jina`, `tei` (text-embeddings-inference) or
            `sglang`.
        model: the model's name at the server.
        key_env: the variable of the environment that holds the key; servers of one's own need
            none. Not the secret of another service (AWS_.., HF_..); sent over https and to this
            machine.
        instruction: what vLLM's and SGLang's models are told to judge by, sent with every
            request: `released`, `detailed` (see `yes_no`), or a text of your own.
        scale: what the scores are: `raw` logits; `probability`, whose logits are then taken; or
            `auto`: raw where the server is seen to honour that, or a score is outside 0 to 1.
        tokenizer: a folder or model on the hub whose tokenizer cuts documents to
            `max_tokens_per_doc` here.
        max_tokens_per_doc: tokens of a document; without a tokenizer vLLM cuts them.
        documents: of one request; jina-reranker-v3 reads at most 64 together.
        concurrency: requests under way at once.
        timeout: seconds until a request is given up and asked again.
        retries: how often a request is asked again after 429, 5xx or a broken connection.
    """

    url: str = "http://localhost:8000"
    dialect: Dialect = "vllm_score"
    model: str = ""
    key_env: str = "RERANK_API_KEY"
    instruction: str = "released"
    scale: Scale = "auto"
    tokenizer: str | None = None
    max_tokens_per_doc: Annotated[int, Between(1, 10**6)] | None = None
    documents: Annotated[int, Between(1, 2000)] = 32
    concurrency: Annotated[int, Between(1, 256)] = 8
    timeout: float = 120.0
    retries: Annotated[int, Between(0, 100)] = 6

    def check(self) -> None:
        super().check()
        try:
            parts = urlsplit(self.url.strip())
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            good = good and is_plain(self.url)
        except ValueError:
            parts, good = urlsplit(""), False
        secret = parts.username or parts.password or parts.query or parts.fragment
        # An address with a password is not shown.
        require(not secret, "url", "..", "an address without user, password or query")
        require(good, "url", self.url, "an address such as http://localhost:8000")
        require_key_env("key_env", self.key_env)
        require(bool(self.model) or self.dialect == "tei", "model", "", "its name at the server")
        require(bool(self.instruction.strip()), "instruction", self.instruction, "a text")
        cut = self.tokenizer is None or self.max_tokens_per_doc is not None
        require(cut, "max_tokens_per_doc", None, "a number, since a tokenizer is given")
        sent = self.tokenizer is not None or self.max_tokens_per_doc is None
        allowed = "none without a tokenizer: only vLLM cuts documents"
        good = sent or self.dialect.startswith("vllm")
        require(good, "max_tokens_per_doc", self.max_tokens_per_doc, allowed)
        require(0 < self.timeout <= 86_400, "timeout", self.timeout, "above 0, at most 86400")

    @property
    def label(self) -> str:
        """Name the model, or the server where it has no name."""
        return self.model or self.url

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the server's model and what it is asked."""
        told = INSTRUCTIONS.get(self.instruction, self.instruction)
        return {
            "reranker": "http",
            "format": _FORMAT,
            "url": self.url.rstrip("/"),
            "dialect": self.dialect,
            "model": self.model,
            "instruction": told,
            "scale": self.scale,
            "cut": [self.tokenizer, self.max_tokens_per_doc],
            # Some models read all documents of a request together.
            "documents": self.documents if self.dialect == "jina" else None,
        }

    def score(self, pairs: Sequence[Pair]) -> Iterator[Scored]:
        """Score pairs claim by claim, several requests at once; the first one alone.

        Raises `UserError` where the server cannot be reached, or refuses that first request.
        """
        by_claim: dict[str, list[int]] = {}
        for row, pair in enumerate(pairs):
            by_claim.setdefault(pair.claim, []).append(row)
        size = self.documents
        parts = [
            rows[start : start + size]
            for rows in by_claim.values()
            for start in range(0, len(rows), size)
        ]
        work = _Work(self, [self._cut(pair) for pair in pairs])
        try:
            # A wrong address, key or model is found before many requests are made.
            yield work.scored(parts[0], first=True)
            with ThreadPoolExecutor(self.concurrency) as pool:
                jobs = [pool.submit(work.scored, rows) for rows in parts[1:]]
                try:
                    for job in as_completed(jobs):
                        yield job.result()
                finally:
                    pool.shutdown(wait=False, cancel_futures=True)
        finally:
            work.close()
        if work.halved:
            log.warning("%s: %d documents too long for it were cut", self.label, work.halved)

    def _cut(self, pair: Pair) -> Pair:
        """Cut a source, and part the control tokens: the server writes texts into a prompt."""
        claim, source = map(defused, pair)
        if self._tokens is not None:
            source = str(self._tokens(source, self.max_tokens_per_doc))
        return Pair(claim, source)

    @cached_property
    def _tokens(self) -> Any:
        """Return a function that cuts a text to a number of tokens; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        from transformers import AutoTokenizer

        try:
            place = local_name(self.tokenizer)
            tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except Exception as error:  # libraries raise anything for what is no tokenizer
            raise UserError(f"tokenizer {self.tokenizer!r}: {shortened(str(error), 200)}") from None

        def cut(text: str, most: int) -> str:
            found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ends = found["offset_mapping"]
            return text if len(ends) <= most else text[: ends[most - 1][1]]

        return cut


@dataclass
class _Work:
    """Ask one server for the scores of pairs."""

    settings: Http
    pairs: Sequence[Pair]
    halved: int = 0
    raw: bool | None = None
    _key: str = field(init=False, repr=False)
    _client: httpx2.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import httpx2

        # At their lower levels they log the headers of replies, which may repeat the key.
        for name in ("httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.WARNING)
        settings = self.settings
        self._key = read_key(settings.key_env, settings.url)
        key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx2.Client(
            base_url=settings.url.strip().rstrip("/"),
            headers={**HEADERS, **key},
            timeout=settings.timeout,
            limits=httpx2.Limits(max_connections=None),
            trust_env=may_use_proxy(settings.url),
        )
        if settings.scale != "auto":
            self.raw = settings.scale == "raw"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def scored(self, rows: Sequence[int], first: bool = False) -> Scored:
        """Score some sources of one claim; what fails is asked for alone, and then counted."""
        claim = self.pairs[rows[0]].claim
        found: dict[int, float] = {}
        why: dict[int, str] = {}
        texts = {row: self.pairs[row].source for row in rows}
        self._fill(claim, texts, found, why, first)
        scores = np.array([found.get(row, np.nan) for row in rows], dtype=np.float32)
        return Scored(rows, scores, {row: why.get(row, NOT_A_NUMBER) for row in why})

    def _fill(
        self,
        claim: str,
        texts: Mapping[int, str],
        found: dict[int, float],
        why: dict[int, str],
        first: bool = False,
        alone: bool = False,
    ) -> None:
        """Ask for the scores of a claim's texts, by row; in halves where the whole fails."""
        rows = list(texts)
        try:
            scores = self._ask(claim, list(texts.values()), 0 if alone else None)
        except Refused as error:
            is_too_long = _is_too_long(error)
            if error.is_spent or (first and not is_too_long and not error.passes):
                raise self._unusable(error) from None
            # What is refused for another reason than its texts is refused in parts as well.
            if len(rows) > 1 and (is_too_long or error.passes or error.status in _REFUSALS):
                for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                    # Not tried again and again: the whole request was.
                    self._fill(claim, {row: texts[row] for row in part}, found, why, False, True)
                return
            text = texts[rows[0]]
            if len(rows) == 1 and is_too_long and len(text) > _SHORTEST:
                self.halved += len(text) == len(self.pairs[rows[0]].source)
                half = {rows[0]: text[: len(text) // 2]}
                self._fill(claim, half, found, why, False, alone)
                return
            why |= dict.fromkeys(rows, f"status {error.status}: {error.why}")
            return
        lacking = [row for row, score in zip(rows, scores, strict=True) if not math.isfinite(score)]
        for row, score in zip(rows, scores, strict=True):
            if math.isfinite(score):
                found[row] = score
        if len(rows) > 1:
            for row in lacking:
                self._fill(claim, {row: texts[row]}, found, why, False, True)
        elif lacking:
            why[rows[0]] = "no score in the reply"

    def _ask(self, claim: str, texts: Sequence[str], retries: int | None) -> list[float]:
        """Ask once, and again after what passes; raw scores in the order of `texts`."""
        body = self._body(claim, texts)
        scores = self._results(self._sent(body, retries), len(texts))
        known = [score for score in scores if math.isfinite(score)]
        inside = all(0 <= score <= 1 for score in known)
        if self.raw is None and known:
            self.raw = not inside or self._honours_raw(body, scores, retries)
        if self.raw is False:
            if not inside:
                raise UserError(
                    f"{self.settings.label}: scores are not in [0, 1], as they seemed to be; "
                    "set scale: raw"
                )
            return [_logit(score) for score in scores]
        return scores

    def _honours_raw(
        self, body: Mapping[str, Any], scores: Sequence[float], retries: int | None
    ) -> bool:
        """Tell whether scores within 0 to 1 are raw: asked for without that, others come."""
        if self.settings.dialect not in _RAW:
            return False
        plain = {key: v for key, v in body.items() if key != _RAW[self.settings.dialect][0]}
        others = self._results(self._sent(plain, retries), len(scores))
        return not np.allclose(scores, others, atol=1e-6, equal_nan=True)

    def _body(self, claim: str, texts: Sequence[str]) -> dict[str, Any]:
        """Write a request as its server takes it."""
        settings, dialect = self.settings, self.settings.dialect
        told = INSTRUCTIONS.get(settings.instruction, settings.instruction)
        body: dict[str, Any] = {"model": settings.model} if settings.model else {}
        if dialect == "vllm_score":
            body |= {"queries": claim, "documents": list(texts)}
        elif dialect == "tei":
            body = {"query": claim, "texts": list(texts), "truncate": False}
        else:
            body |= {"query": claim, "documents": list(texts)}
        if dialect.startswith("vllm"):
            # Left out, vLLM takes an instruction for web search.
            body["instruction"] = told
            if settings.max_tokens_per_doc is not None and settings.tokenizer is None:
                body["max_tokens_per_doc"] = settings.max_tokens_per_doc
        elif dialect == "sglang":
            body |= {"instruct": told, "return_documents": False}
        elif dialect == "jina":
            body |= {"top_n": len(texts), "return_documents": False}
        if dialect in _RAW:
            name, value = _RAW[dialect]
            body[name] = value
        return body

    def _results(self, reply: bytes, count: int) -> list[float]:
        """Read scores by `index`; NaN where the reply has none."""
        names = {"vllm_score": "data", "vllm_rerank": "results", "jina": "results"}
        name = names.get(self.settings.dialect)
        try:
            found = json.loads(reply)
            entries = found[name] if name is not None else found
            scores = [math.nan] * count
            for entry in entries:
                place = entry["index"]
                value = entry["relevance_score" if name == "results" else "score"]
                if {type(place), type(value)} & {bool, str}:
                    raise TypeError("no place or score")
                # Larger ones are infinite as float32.
                if 0 <= place < count and value is not None and abs(value) <= _LARGEST:
                    scores[place] = float(value)
            return scores
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
            what = f"not of the dialect {self.settings.dialect}"
            raise self._shown(_error_in(reply) or other_shape(reply, what)) from None

    def _sent(self, body: Mapping[str, Any], retries: int | None) -> bytes:
        """Send a request. Raises `Refused`, or `UserError` for a server that is gone."""
        import httpx2

        settings = self.settings
        tries = 1 + (settings.retries if retries is None else retries)
        for attempt in range(tries):
            last = attempt == tries - 1
            try:
                response = post(self._client, _PATHS[settings.dialect], body)
            except httpx2.HTTPError as error:
                if last:
                    why = f"{settings.url}: {type(error).__name__}: {self._hidden(str(error))}"
                    raise UserError(f"the re-ranker's server cannot be reached: {why}") from None
                time.sleep(wait_before(attempt, None))
                continue
            except Refused as error:
                raise self._shown(error) from None
            if response.status_code == 200:
                return response.content
            refused = refusal(response.status_code, response.content)
            if last or not refused.passes:
                raise self._shown(refused)
            after = retry_after(response.headers)
            if after is not None and after > _LONGEST_WAIT:
                why = f"{settings.url} wants to be left alone for {after:.0f} s"
                raise UserError(f"the re-ranker's server {why}")
            time.sleep(wait_before(attempt, after))
        raise AssertionError("unreachable")

    def _shown(self, refused: Refused) -> Refused:
        """Make one line of a refusal's words, without the key."""
        return Refused(refused.status, self._hidden(refused.why), refused.codes)

    def _hidden(self, text: str) -> str:
        """Make one short line of a server's words, without the key."""
        hidden = text.replace(self._key, f"<{self.settings.key_env}>") if self._key else text
        return shown(hidden)

    def _unusable(self, error: Refused) -> UserError:
        settings = self.settings
        if error.status in (401, 403) and not error.is_spent:
            known = state_of(settings.key_env, settings.url)
            return UserError(
                f"config: key_env: the key in {settings.key_env} {known} by {settings.url} "
                f"(status {error.status}): {error.why}"
            )
        return UserError(
            f"{settings.url} refused to re-rank with {settings.model!r} as {settings.dialect} "
            f"(status {error.status}): {error.why}"
        )


def _is_too_long(error: Refused) -> bool:
    """Tell whether shorter documents may be taken."""
    wide = error.status in _REFUSALS and bool(_TOO_LONG.search(error.why))
    return wide or error.is_too_large


def _error_in(reply: bytes) -> Refused | None:
    """Read the error that a server sent with status 200; None where it sent none."""
    try:
        found = json.loads(reply)
    except (ValueError, RecursionError):
        return None
    return refusal(200, reply) if isinstance(found, dict) and found.get("error") else None


def _logit(score: float) -> float:
    """Invert the sigmoid; 0 and 1 stay finite."""
    if not math.isfinite(score):
        return math.nan
    inside = min(max(score, _CLOSEST), 1 - _CLOSEST)
    return math.log(inside) - math.log1p(-inside)
