"""Answer posts with one warm finder, a batch at a time, from a bounded queue."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import ceil

from claim2source.core.errors import UserError
from claim2source.data.posts import Post
from claim2source.find.finder import Answer, Finder
from claim2source.search.on_demand import unencoded_summary
from claim2source.search.rows import Where
from claim2source.text.language import likeliest

log = logging.getLogger(__name__)

# Posts of several clients that are searched together.
MAX_BATCH = 16
# Most seconds in Retry-After of a busy batcher.
LONGEST = 60
OnPart = Callable[[str], None]


class NoAnswer(Exception):
    """Reason why a post has no answer, with an HTTP status and seconds until a retry.

    `field` is the wrong part of the request, if there is one.
    """

    def __init__(
        self, status: int, reason: str, seconds: int | None = None, field: str | None = None
    ) -> None:
        self.status, self.field = status, field
        self.headers = {} if seconds is None else {"retry-after": str(seconds)}
        super().__init__(reason)

    @property
    def line(self) -> str:
        """Return the reason, after the wrong field if there is one."""
        return f"{self.field}: {self}" if self.field else str(self)


@dataclass(frozen=True, eq=False)
class _Job:
    """One request's posts, and the callback for progress (called in the batcher's thread)."""

    posts: Sequence[Post]
    k: int
    where: Where
    on_part: OnPart
    answers: Future[list[Answer]] = field(default_factory=Future)


class RequestBatcher:
    """Queue requests, and answer them in a separate thread in the order of their arrival.

    At most `capacity` posts wait or are searched at a time. Posts with the same number of papers
    and the same filters are searched together. `seconds` is the time limit of a request, including
    its time in the queue; None: no limit.
    """

    def __init__(self, finder: Finder, *, capacity: int = 64, seconds: float | None = 60) -> None:
        self.finder = finder
        self.capacity = capacity
        self.seconds = seconds
        self._jobs: deque[_Job] = deque()
        self._batch_size = 0
        self._pace = 0.1
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)

    def start(self) -> None:
        """Load the models and start to answer."""
        self.finder.warm_up()
        likeliest("a post", ("en",))
        self._thread.start()

    def close(self) -> None:
        """Finish the running search, cancel waiting requests, and stop."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.answers.cancel()
            self._jobs.clear()
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Return the number of posts that wait or are searched."""
        with self._changed:
            return self._batch_size + self._queued()

    def room(self) -> int:
        """Return how many posts one table may have in the queue, leaving room for others."""
        places = min(MAX_BATCH, self.capacity // 2)
        if self.seconds is not None:
            places = min(places, int(self.seconds / (4 * self._pace)))
        return max(1, places)

    def _queued(self) -> int:
        return sum(len(job.posts) for job in self._jobs)

    async def ask(
        self,
        posts: Sequence[Post],
        k: int,
        where: Where,
        on_part: OnPart = lambda part: None,
    ) -> list[Answer]:
        """Answer posts together, in order.

        `on_part` is called in the batcher's thread with the name of each part of the work. Raises
        `NoAnswer`: 503 if too many posts wait, 504 if it takes too long, 500 if it fails.
        """
        job = _Job(posts, k, where, on_part)
        with self._changed:
            waiting = self._batch_size + self._queued()
            if self._closed or waiting + len(posts) > self.capacity:
                seconds = ceil(waiting * self._pace)
                raise _too_busy(min(LONGEST, max(1, seconds)))
            self._jobs.append(job)
            self._changed.notify()
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.wrap_future(job.answers)
        except TimeoutError:
            raise NoAnswer(504, f"no answer within {self.seconds:g} s") from None
        except asyncio.CancelledError:
            if self._closed:
                raise _too_busy(LONGEST) from None
            raise
        finally:
            # An abandoned request leaves the queue, unless it is being searched.
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)

    def _work(self) -> None:
        while not self._closed:
            jobs = self._next_jobs()
            if jobs:  # all of them may have been abandoned
                self._answer(jobs)

    def _next_jobs(self) -> list[_Job]:
        """Wait for requests; return those that one search can answer together."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            jobs: list[_Job] = []
            waiting: deque[_Job] = deque()
            for job in self._jobs:
                if jobs and not self._fits(job, jobs[0]):
                    waiting.append(job)
                elif job.answers.set_running_or_notify_cancel():
                    jobs.append(job)
                    self._batch_size += len(job.posts)
            self._jobs = waiting
            return jobs

    def _fits(self, job: _Job, first: _Job) -> bool:
        """Whether one search can answer a request together with the first one of a batch."""
        has_same_settings = (job.k, job.where) == (first.k, first.where)
        return has_same_settings and self._batch_size + len(job.posts) <= MAX_BATCH

    def _answer(self, jobs: Sequence[_Job]) -> None:
        try:
            answers = self._search(jobs)
        except Exception as error:
            if len(jobs) > 1:  # one client's post must not fail the others
                for job in jobs:
                    self._answer([job])
                return
            complain(error)
            self._free_capacity(jobs[0])
            jobs[0].answers.set_exception(NoAnswer(500, "the search failed; see the server's log"))
            return
        start = 0
        for job in jobs:
            end = start + len(job.posts)
            self._free_capacity(job)
            job.answers.set_result(answers[start:end])
            start = end

    def _free_capacity(self, job: _Job) -> None:
        """Free a request's share of the queue before its client can send the next one."""
        with self._changed:
            self._batch_size -= len(job.posts)

    def _search(self, jobs: Sequence[_Job]) -> list[Answer]:
        def on_part(part: str) -> None:
            for job in jobs:
                job.on_part(part)

        started = time.monotonic()
        posts: list[Post] = []
        for job in jobs:
            posts += job.posts
        self.finder.on_part = on_part
        # Posts of several clients may have the same ids.
        numbered = [replace(post, id=str(number)) for number, post in enumerate(posts)]
        failed = self.finder.untranslated
        unencoded = self.finder.unencoded.total()
        answers = self.finder.find(numbered, jobs[0].k, jobs[0].where)
        if self.finder.untranslated > failed:
            # Messages of a program may quote a post.
            assert self.finder.translators is not None
            log.warning("%s", self.finder.translators.summary(quotes=False))
        if self.finder.unencoded.total() > unencoded:
            log.warning("%s", unencoded_summary(self.finder.unencoded))
        seconds = (time.monotonic() - started) / len(posts)
        self._pace = 0.8 * self._pace + 0.2 * seconds
        own_answers = []
        for answer, post in zip(answers, posts, strict=True):
            own_answers.append(replace(answer, post=post))
        return own_answers


def _too_busy(seconds: int) -> NoAnswer:
    return NoAnswer(503, f"too many posts are waiting; try again in {seconds} s", seconds)


def complain(error: Exception) -> None:
    """Log the trace of an internal error without its text, which may contain a post.

    A `UserError` is about the server's files and settings, and is logged with its text.
    """
    if isinstance(error, UserError):
        log.error("%s", error)
        return
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("internal error: %s\n%s", type(error).__name__, trace)
