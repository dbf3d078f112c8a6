"""Request many answers from a server at once; stored answers are not requested again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from claim2source.core.config import require
from claim2source.core.errors import UserError, did_you_mean
from claim2source.core.files import content_hash
from claim2source.core.progress import Progress
from claim2source.core.reasons import Reason
from claim2source.core.run import Thinking
from claim2source.llm.answers import AnswerStore, StoredReply
from claim2source.llm.config import LLMConfig
from claim2source.llm.endings import cut_prompt_reason
from claim2source.llm.log import log_answers
from claim2source.llm.parse import read_reply, unfinished_reason
from claim2source.llm.server import (
    CutPrompt,
    NoReply,
    Refusal,
    Server,
    UnusableServer,
    refused_part,
)
from claim2source.llm.thinking import sent_text, thinking_parts
from claim2source.llm.work import (
    NO_REPLY,
    NOT_ASKED,
    Answer,
    Check,
    Plan,
    Request,
    Usage,
    answer_key,
    count_thinking,
    prompt_tokens,
    reasons,
)

log = logging.getLogger(__name__)

# A reply that fails its checks is requested up to twice more.
TRIES = 3
# A server counts as gone after so many requests in a row without a reply, or after as many as are
# in flight.
LOST = 8
MOST_NAMED = 3


@dataclass
class _PendingRequest:
    key: str
    request: Request
    reply: StoredReply | None
    reason: str = ""
    sent: bool = False


class LLM:
    """Request answers from a server, within the budgets of one config.

    Without a store, answers are kept as long as the object lives.
    """

    def __init__(self, config: LLMConfig, answers: AnswerStore | None = None) -> None:
        require(bool(config.model.strip()), "llm.model", config.model, "the name at the server")
        missing = [name for name in ("openai", "jsonschema") if find_spec(name) is None]
        if missing:
            raise UserError(f"{missing[0]} is not installed: pip install 'claim2source[llm]'")
        self.config = config
        self.answers = answers if answers is not None else AnswerStore()
        # Tokens of this object's requests and replies.
        self.usage = Usage()
        self._reserved = 0
        self._no_reply = 0
        self._stop = ""
        self._is_known = False
        self._is_llama_cpp = False
        self._concurrency = config.concurrency
        # Schemas that the server refuses to enforce: their replies are parsed.
        self._loose: set[str] = set()
        # Parameters that the model refuses, see `server.OPTIONAL`.
        self._without: set[str] = set()

    def plan(self, requests: Sequence[Request]) -> Plan:
        """Count the requests that `answer` would send, and estimate the tokens; send none."""
        missing: dict[str, Request] = {}
        stored_count = repeated = 0
        for request in requests:
            key = answer_key(request, self.config)
            if key in missing:
                repeated += 1
            elif self._is_done(_PendingRequest(key, request, self.answers.get(key)), None):
                stored_count += 1
            else:
                missing[key] = request
        tokens = most_completed = 0
        for request in missing.values():
            tokens += prompt_tokens(request)
            most_completed += request.max_tokens or self.config.max_tokens
        return Plan(len(missing), stored_count, repeated, tokens, most_completed)

    def answer(
        self,
        requests: Sequence[Request],
        check: Check | None = None,
        subject: str = "requests",
        *,
        warns: bool = True,
    ) -> list[Answer]:
        """Return an answer or a failure for each request, in their order.

        An answer that fails `check` is requested once more, and then kept with that
        failure. `warns`: whether a warning counts the failures. Raises `UserError` if no request
        can succeed: no server, a wrong key or model.
        """
        self._check = check
        self._subject = subject
        jobs: dict[str, _PendingRequest] = {}
        jobs_in_order: list[_PendingRequest] = []
        for request in requests:
            key = answer_key(request, self.config)
            if key not in jobs:
                jobs[key] = _PendingRequest(key, request, self.answers.get(key))
            jobs_in_order.append(jobs[key])

        todo = deque(job for job in jobs.values() if not self._is_done(job, check))
        if todo:
            with Progress(subject, len(jobs), len(jobs) - len(todo)) as self._progress:
                self._began = time.monotonic()
                self._tokens = 0
                self._jobs = self._left = len(todo)
                self._stop = ""
                self._no_reply = 0
                before = self.usage
                try:
                    run_async(lambda: self._work(todo))
                finally:
                    log_answers((), self.usage - before)

        answers: list[Answer] = []
        for job, request in zip(jobs_in_order, requests, strict=True):
            answers.append(self._answer(job, request))
        log_answers(answers, Usage())
        if warns:
            self._warn_of_failures(answers)
        self._warn_of_thinking(answers)
        return answers

    def _warn_of_failures(self, answers: Sequence[Answer]) -> None:
        failed = [answer for answer in answers if answer.failure is not None]
        if failed:
            names = ", ".join(answer.id for answer in failed[:MOST_NAMED])
            ellipsis = ", .." if len(failed) > MOST_NAMED else ""
            counts = (len(failed), len(answers), reasons(failed))
            log.warning("%s: %d of %d failed: %s (%s%s)", self._subject, *counts, names, ellipsis)

    def _warn_of_thinking(self, answers: Sequence[Answer]) -> None:
        """Warn of models that think although thinking is off, and the other way round."""
        for count in count_thinking(answers):
            if count.note:
                log.warning("%s: %s", self._subject, count.note)

    def _judge(self, request: Request, reply: StoredReply, check: Check | None) -> Answer:
        answer = read_reply(request, reply.raw, reply.finish)
        # Replies of older stores do not record what was sent; their key determines it.
        sent = reply.sent or sent_text(thinking_parts(self.config))
        reasoned = int(reply.reasoned or answer.reasoned)
        thinking = Thinking(self.config.model, self.config.thinking, sent, 1, reasoned)
        answer = replace(answer, usage=reply.usage, logprobs=reply.logprobs, thinking=thinking)
        # Stores of earlier versions have replies to truncated prompts.
        reason = cut_prompt_reason(request, reply.usage.prompt)
        if reason is not None:
            return replace(answer, failure=reason, text="", data=None)
        if answer.failure is None and check is not None:
            answer = replace(answer, failure=check(request, answer))
        return answer

    def _is_done(self, job: _PendingRequest, check: Check | None) -> bool:
        """Whether a reply is final: it is good, or has failed often enough."""
        if job.reply is None:
            return False
        is_tried = job.reply.tries >= TRIES and (job.sent or not self.config.retry_failed)
        return is_tried or self._judge(job.request, job.reply, check).failure is None

    def _answer(self, job: _PendingRequest, request: Request) -> Answer:
        answer = Answer(request.id)
        if job.reply is not None:
            answer = self._judge(request, job.reply, self._check)
        if job.reason:
            return replace(answer, failure=job.reason, text="", data=None)
        return replace(answer, stored=not job.sent)

    async def _work(self, jobs: deque[_PendingRequest]) -> None:
        async with Server(self.config) as self._server:
            await self._check_model()
            self._server.is_llama_cpp = self._is_llama_cpp
            self._freed = asyncio.Condition()
            count = min(self._concurrency, len(jobs))
            await all_or_none(self._worker(jobs) for _ in range(count))

    async def _worker(self, jobs: deque[_PendingRequest]) -> None:
        while jobs:
            job = jobs.popleft()
            if self._stop:
                job.reason = Reason(f"{NOT_ASKED}: {self._stop}", "server")
                continue
            await self._ask_until_good(job)
            self._left -= 1
            self._progress.update(1, self._note())

    async def _ask_until_good(self, job: _PendingRequest) -> None:
        # Another process may have stored an answer since.
        job.reply = self.answers.get(job.key)
        while not self._is_done(job, self._check):
            tries = 0 if job.reply is None else job.reply.tries
            reply = await self._reply(job.request, failed=tries)
            if isinstance(reply, str):
                job.reason = reply
                return
            job.sent = True
            self._tokens += reply.usage.completion
            request = job.request
            job.reply = replace(
                reply,
                tries=tries + 1,
                failure=self._judge(request, reply, self._check).failure,
                model=self.config.model,
                version=request.version,
                id=request.id,
            )
            if unfinished_reason(request, reply.raw, reply.finish) is None:
                self.answers.put(job.key, job.reply)

    async def _reply(self, request: Request, failed: int) -> StoredReply | str:
        """Request one reply in a form that the model supports; return the reason if there is none.

        After repeated failures or malformed replies no more requests are sent.
        """
        form = _form_name(request, failed > 0)
        strict = bool(form) and form not in self._loose
        left_out = set(self._without)
        is_spoilt = False
        while True:
            cost = await self._reserve(request)
            if isinstance(cost, str):
                return cost
            try:
                reply = await self._server.ask(
                    request, strict=strict, failed=failed, left_out=left_out
                )
                self.usage += reply.usage
            except NoReply as error:
                return self._unanswered(str(error))
            except CutPrompt as error:
                self.usage += error.usage
                self._no_reply = 0
                return str(error)
            except Refusal as error:
                part = refused_part(error, left_out)
                if part:
                    left_out.add(part)
                elif strict and error.is_spoilt:
                    strict = False
                    is_spoilt = True
                elif strict and error.status in (400, 422) and not error.is_too_large:
                    strict = False
                else:
                    return self._refused(error)
                continue
            finally:
                await self._free(cost)
            self._no_reply = 0
            is_loose = bool(form) and not strict and not is_spoilt
            self._remember(form if is_loose else None, left_out)
            return reply

    def _remember(self, loose: str | None, left_out: set[str]) -> None:
        if loose is not None and loose not in self._loose:
            self._loose.add(loose)
            log.warning("%s: the server refuses the format; replies are parsed", self._subject)
        for name in sorted(left_out - self._without):
            log.warning("%s: the model refuses %s; requests omit it", self._subject, name)
        self._without |= left_out

    def _refused(self, error: Refusal) -> str:
        """Return the reason why a request has no reply in any form."""
        if error.passes:
            reason = f"status {error.status}"
            if error.reason.strip():
                reason += f": {error.reason}"
            if error.retry_after:
                reason += f" (Retry-After: {error.retry_after})"
            return self._unanswered(reason)
        if error.status == 200:
            return self._unanswered(error.reason)
        self._no_reply = 0
        return Reason(f"refused by the server ({error.status}): {error.reason}", "server")

    def _unanswered(self, reason: str) -> str:
        self._no_reply += 1
        if self._no_reply >= max(LOST, self.config.concurrency) and not self._stop:
            self._stop = f"the server does not answer ({reason})"
        return Reason(f"{NO_REPLY}: {reason}", "server")

    async def _reserve(self, request: Request) -> int | str:
        """Wait until a request may be sent; return its maximal tokens, or the reason to stop."""
        config = self.config
        cost = 2 * prompt_tokens(request) + (request.max_tokens or config.max_tokens)
        budget = config.max_tokens_total
        async with self._freed:
            while budget is not None and self.usage.total + self._reserved + cost > budget:
                if not self._reserved:
                    self._stop = f"the budget of {budget} tokens (llm.max_tokens_total) is spent"
                    break
                await self._freed.wait()
            if self._stop:
                return Reason(f"{NOT_ASKED}: {self._stop}", "server")
            self._reserved += cost
        return cost

    async def _free(self, cost: int) -> None:
        async with self._freed:
            self._reserved -= cost
            self._freed.notify_all()

    async def _check_model(self) -> None:
        if self._is_known:
            return
        url, name = self.config.base_url, self.config.model
        try:
            models = await self._server.models()
        except NoReply as error:
            raise UnusableServer(f"config: llm.url: no server answers at {url}: {error}") from None
        if models and name not in models:
            remainder = f" and {len(models) - 10} more" if len(models) > 10 else ""
            names = ", ".join(models[:10]) + remainder
            near = did_you_mean(name, models)
            reason = f"{url} has no model {name!r}; {near}it has: {names}"
            raise UnusableServer(f"config: llm.model: {reason}")
        self._is_llama_cpp = self._server.is_llama_cpp
        if self._is_llama_cpp:
            # More requests would wait in the server's queue and time out.
            slots = await self._server.slots()
            self._concurrency = min(self.config.concurrency, slots or self.config.concurrency)
        self._is_known = True

    def _note(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-3)
        remaining = self._left * seconds / max(self._jobs - self._left, 1)
        return f"{self._tokens / seconds:.0f} tokens/s, {self._left} left, about {remaining:.0f} s"


def _form_name(request: Request, retry: bool) -> str:
    """Return the key of the form that a reply must have; empty for free text."""
    if request.choices:
        return "choices"
    schema = request.form(retry)
    return "" if schema is None else content_hash(schema)


async def all_or_none(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run concurrently; if one raises, cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_async(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in a separate thread, so that a signal or an error ends it at once."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        portal.call(work)
