"""Ask a server for many answers at once: stored ones are not asked for, failed ones are kept."""

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
from claim2source.core.errors import UserError
from claim2source.core.files import content_hash
from claim2source.core.progress import Progress
from claim2source.llm.answers import AnswerStore, StoredReply
from claim2source.llm.config import LLMConfig
from claim2source.llm.parse import read_reply, why_unfinished
from claim2source.llm.server import (
    NoReply,
    Refusal,
    Server,
    UnusableServer,
    refused_part,
)
from claim2source.llm.work import (
    NO_REPLY,
    NOT_ASKED,
    Answer,
    Check,
    Plan,
    Request,
    Usage,
    key_of,
    prompt_tokens,
    reasons,
)

log = logging.getLogger(__name__)

# A reply that is no good is asked for once more.
TRIES = 2
# So many requests in a row without a reply, or as many as are under way, mean that the server is
# gone.
LOST = 8
MOST_NAMED = 3


@dataclass
class _Job:
    key: str
    request: Request
    reply: StoredReply | None
    reason: str = ""
    sent: bool = False


class LLM:
    """Ask a server for answers, within the budgets of one config.

    Without a store of answers they are remembered as long as the object lives.
    """

    def __init__(self, config: LLMConfig, answers: AnswerStore | None = None) -> None:
        require(bool(config.model.strip()), "llm.model", config.model, "the name at the server")
        missing = [name for name in ("openai", "jsonschema") if find_spec(name) is None]
        if missing:
            raise UserError(f"no package {missing[0]}: pip install 'claim2source[llm]'")
        self.config = config
        self.answers = answers if answers is not None else AnswerStore()
        # Of this object: the tokens of requests and replies.
        self.usage = Usage()
        self._reserved = 0
        self._no_reply = 0
        self._stop = ""
        self._is_known = False
        # Schemas that the server refuses to keep to: their replies are parsed.
        self._loose: set[str] = set()
        # Parameters that the model refuses, see `server.OPTIONAL`.
        self._without: set[str] = set()

    def plan(self, requests: Sequence[Request]) -> Plan:
        """Count the requests that `answer` would send, and estimate the tokens; send none."""
        missing, stored_count, repeated = dict[str, Request](), 0, 0
        for request in requests:
            key = key_of(request, self.config)
            if key in missing:
                repeated += 1
            elif self._is_done(request, self.answers.get(key), None):
                stored_count += 1
            else:
                missing[key] = request
        return Plan(
            len(missing),
            stored_count,
            repeated,
            sum(map(prompt_tokens, missing.values())),
            sum(request.max_tokens or self.config.max_tokens for request in missing.values()),
        )

    def answer(
        self, requests: Sequence[Request], check: Check | None = None, subject: str = "requests"
    ) -> list[Answer]:
        """Answer all requests, in their order; each has an answer or a failure.

        An answer that `check` finds no good is asked for once more, and then kept with that
        failure. Raises `UserError` where no request can succeed: no server, a wrong key or model.
        """
        run = _Run(self, check, subject)
        answers = run.answers(requests)
        failed = [answer for answer in answers if answer.failure is not None]
        if failed:
            names = ", ".join(answer.id for answer in failed[:MOST_NAMED])
            ellipsis = ", .." if len(failed) > MOST_NAMED else ""
            log.warning(
                "%s: %d of %d failed: %s (%s%s)",
                *(subject, len(failed), len(answers), reasons(failed), names, ellipsis),
            )
        return answers

    def _judge(
        self, request: Request, reply: StoredReply | None, check: Check | None
    ) -> Answer | None:
        if reply is None:
            return None
        answer = read_reply(request, reply.raw, reply.finish)
        answer = replace(answer, usage=reply.usage, logprobs=reply.logprobs)
        if answer.failure is None and check is not None:
            answer = replace(answer, failure=check(request, answer))
        return answer

    def _is_done(self, request: Request, reply: StoredReply | None, check: Check | None) -> bool:
        """Tell whether a stored reply settles a request: it is good, or failed often enough."""
        answer = self._judge(request, reply, check)
        if answer is None or reply is None or answer.failure is None:
            return answer is not None
        return reply.tries >= TRIES and not self.config.retry_failed


class _Run:
    def __init__(self, llm: LLM, check: Check | None, subject: str) -> None:
        self.llm, self.check, self.subject = llm, check, subject
        self.config, self.store = llm.config, llm.answers

    def answers(self, requests: Sequence[Request]) -> list[Answer]:
        keys = [key_of(request, self.config) for request in requests]
        job_of: dict[str, _Job] = {}
        for key, request in zip(keys, requests, strict=True):
            if key not in job_of:
                job_of[key] = _Job(key, request, self.store.get(key))
        jobs = deque(job for job in job_of.values() if not self._is_done(job))
        if jobs:
            with Progress(self.subject, len(job_of), len(job_of) - len(jobs)) as self.progress:
                self.began, self.tokens, self.left = time.monotonic(), 0, len(jobs)
                self.jobs, self.llm._stop, self.llm._no_reply = len(jobs), "", 0
                run_async(lambda: self._work(jobs))
        pairs = zip(keys, requests, strict=True)
        return [self._answer(job_of[key], request) for key, request in pairs]

    def _answer(self, job: _Job, request: Request) -> Answer:
        answer = self.llm._judge(request, job.reply, self.check) or Answer(request.id)
        if job.reason:
            return replace(answer, failure=job.reason, text="", data=None)
        return replace(answer, stored=not job.sent)

    def _is_done(self, job: _Job) -> bool:
        if job.sent and job.reply is not None and job.reply.tries >= TRIES:
            return True
        return self.llm._is_done(job.request, job.reply, self.check)

    async def _work(self, jobs: deque[_Job]) -> None:
        async with Server(self.config) as self.server:
            await self._check_model()
            self.freed = asyncio.Condition()
            count = min(self.config.concurrency, len(jobs))
            await all_or_none(self._worker(jobs) for _ in range(count))

    async def _worker(self, jobs: deque[_Job]) -> None:
        while jobs:
            job = jobs.popleft()
            if self.llm._stop:
                job.reason = f"{NOT_ASKED}: {self.llm._stop}"
                continue
            await self._ask_until_good(job)
            self.left -= 1
            self.progress.update(1, self._note())

    async def _ask_until_good(self, job: _Job) -> None:
        # Another process may have answered it since.
        job.reply = self.store.get(job.key)
        while not self._is_done(job):
            tries = 0 if job.reply is None else job.reply.tries
            reply = await self._reply(job.request, retry=tries > 0)
            if isinstance(reply, str):
                job.reason = reply
                return
            job.sent = True
            self.tokens += reply.usage.completion
            request = job.request
            answer = self.llm._judge(request, reply, self.check)
            job.reply = replace(
                reply,
                tries=tries + 1,
                failure=None if answer is None else answer.failure,
                model=self.config.model,
                version=request.version,
                id=request.id,
            )
            if why_unfinished(request, reply.raw, reply.finish) is None:
                self.store.put(job.key, job.reply)

    async def _reply(self, request: Request, retry: bool) -> StoredReply | str:
        """Request one reply in the form that the model takes; return the reason for none.

        A server that gives none, or speaks otherwise, again and again, is left alone.
        """
        llm = self.llm
        form = "" if request.schema is None else content_hash(request.schema)
        form = "choices" if request.choices else form
        strict, left_out = bool(form) and form not in llm._loose, {*llm._without}
        while True:
            cost = await self._reserve(request)
            if isinstance(cost, str):
                return cost
            try:
                reply = await self.server.ask(
                    request, strict=strict, retry=retry, left_out=left_out
                )
                llm.usage += reply.usage
            except NoReply as error:
                return self._no_reply(str(error))
            except Refusal as error:
                if part := refused_part(error, left_out):
                    left_out.add(part)
                elif strict and error.status in (400, 422) and not error.is_too_large:
                    strict = False
                elif error.passes:
                    return self._no_reply(f"status {error.status}")
                elif error.status == 200:
                    return self._no_reply(error.why)
                else:
                    llm._no_reply = 0
                    return f"refused by the server ({error.status}): {error.why}"
                continue
            finally:
                await self._free(cost)
            llm._no_reply = 0
            self._remember(form if form and not strict else None, left_out)
            return reply

    def _remember(self, loose: str | None, left_out: set[str]) -> None:
        llm = self.llm
        if loose is not None and loose not in llm._loose:
            llm._loose.add(loose)
            log.warning("%s: the server refuses its form; replies are parsed", self.subject)
        for name in sorted(left_out - llm._without):
            log.warning("%s: the model refuses %s; requests go without it", self.subject, name)
        llm._without |= left_out

    def _no_reply(self, why: str) -> str:
        self.llm._no_reply += 1
        if self.llm._no_reply >= max(LOST, self.config.concurrency) and not self.llm._stop:
            self.llm._stop = f"the server does not answer ({why})"
        return f"{NO_REPLY}: {why}"

    async def _reserve(self, request: Request) -> int | str:
        """Wait until a request may be sent; return its most tokens, or why it may not be."""
        config, llm = self.config, self.llm
        cost = 2 * prompt_tokens(request) + (request.max_tokens or config.max_tokens)
        budget = config.max_tokens_total
        async with self.freed:
            while budget is not None and llm.usage.total + llm._reserved + cost > budget:
                if not llm._reserved:
                    llm._stop = f"the budget of {budget} tokens (llm.max_tokens_total) is spent"
                    break
                await self.freed.wait()
            if llm._stop:
                return f"{NOT_ASKED}: {llm._stop}"
            llm._reserved += cost
        return cost

    async def _free(self, cost: int) -> None:
        async with self.freed:
            self.llm._reserved -= cost
            self.freed.notify_all()

    async def _check_model(self) -> None:
        if self.llm._is_known:
            return
        url, name = self.config.base_url, self.config.model
        try:
            models = await self.server.models()
        except NoReply as error:
            raise UnusableServer(f"config: llm.url: no server answers at {url}: {error}") from None
        if models and name not in models:
            remainder = f" and {len(models) - 10} more" if len(models) > 10 else ""
            names = ", ".join(models[:10]) + remainder
            raise UnusableServer(f"config: llm.model: {url} has no model {name!r}; it has: {names}")
        self.llm._is_known = True

    def _note(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-3)
        remaining = self.left * seconds / max(self.jobs - self.left, 1)
        return f"{self.tokens / seconds:.0f} tokens/s, {self.left} left, about {remaining:.0f} s"


async def all_or_none(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run side by side; where one raises, the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_async(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run to the end in a thread of its own, so that a signal, or an error, ends it at once."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        portal.call(work)
