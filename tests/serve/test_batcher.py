"""The batcher: posts of several askers are searched together, none waits without end, none is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.data.posts import Post
from claim2source.find.finder import Answer, Finder
from claim2source.search.engine import open_index
from claim2source.search.rows import EVERYWHERE, Where
from claim2source.serve.batcher import MAX_BATCH, NoAnswer, RequestBatcher, _Job
from tests.eval import conftest
from tests.refusals import refused
from tests.serve.servers import SlowFinder

index = conftest.index


@pytest.fixture
def batchers(index: str) -> Iterator[Callable[..., RequestBatcher]]:
    request_batchers: list[RequestBatcher] = []

    def make(**options: Any) -> RequestBatcher:
        request_batchers.append(
            RequestBatcher(SlowFinder(open_index(index), sentences=False), **options)
        )
        request_batchers[-1].start()
        return request_batchers[-1]

    yield make
    for batcher in request_batchers:
        batcher.finder.go.set()  # type: ignore[attr-defined]
        batcher.close()


def slow(batcher: RequestBatcher) -> SlowFinder:
    assert isinstance(batcher.finder, SlowFinder)
    return batcher.finder


async def block(batcher: RequestBatcher) -> asyncio.Task[list[Answer]]:
    """A post that is being searched, until `go` is set."""
    slow(batcher).go.clear()
    first = asyncio.ensure_future(ask(batcher, "first"))
    while not slow(batcher).begun.is_set():
        await asyncio.sleep(0.005)
    return first


def ask(
    batcher: RequestBatcher, *texts: str, k: int = 3, where: Where = EVERYWHERE, **options: Any
) -> Awaitable[list[Answer]]:
    # All have the same id, as posts of several askers may.
    return batcher.ask([Post("0", text) for text in texts], k, where, **options)


def test_posts_that_wait_are_searched_together_and_get_their_own_answers(
    batchers: Callable[..., RequestBatcher], index: str
) -> None:
    batcher = batchers()
    texts = [f"claim {'abc'[i % 3]} number {i}" for i in range(MAX_BATCH + 4)]

    async def run() -> list[list[Answer]]:
        first = await block(batcher)
        waiting = [asyncio.ensure_future(ask(batcher, text)) for text in texts]
        await asyncio.sleep(0)
        assert batcher.waiting == 1 + len(texts)
        slow(batcher).go.set()
        return await asyncio.gather(first, *waiting)

    answers = asyncio.run(run())
    assert slow(batcher).asked == [["first"], texts[:MAX_BATCH], texts[MAX_BATCH:]]
    assert batcher.waiting == 0
    assert [answer.post for (answer,) in answers[1:]] == [Post("0", text) for text in texts]
    finder = Finder(open_index(index), sentences=False)
    for text, (answer,) in zip(texts, answers[1:], strict=True):
        (expected,) = finder.find([Post("0", text)], 3)
        assert [m.paper.source.id for m in answer.matches] == [
            m.paper.source.id for m in expected.matches
        ]


@dataclass
class Echo:
    """A finder whose answers are the posts; it records its searches."""

    searches: list[tuple[list[str], int, Where]] = field(default_factory=list)
    untranslated: int = 0
    unencoded: Counter[str] = field(default_factory=Counter)

    def find(self, posts: Sequence[Post], k: int, where: Where) -> list[Echoed]:
        self.searches.append(([post.text for post in posts], k, where))
        return [Echoed(post) for post in posts]


@dataclass
class Echoed:
    post: Post


FILTERS = st.sampled_from([EVERYWHERE, Where(venue="Nature")])


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, MAX_BATCH + 2), st.integers(1, 2), FILTERS), max_size=9))
def test_every_post_is_searched_once_in_its_turn_and_with_its_own_settings(
    requests: list[tuple[int, int, Where]],
) -> None:
    finder: Any = Echo()
    batcher = RequestBatcher(finder)
    jobs = []
    for number, (count, k, where) in enumerate(requests):
        posts = [Post("0", f"{number} {place}") for place in range(count)]
        jobs.append(_Job(posts, k, where, lambda part: None))
    batcher._jobs.extend(jobs)
    while batcher.waiting:
        batcher._answer(batcher._next_jobs())
    for job in jobs:
        assert [answer.post for answer in job.answers.result(0)] == job.posts
    left = set(range(len(jobs)))
    for texts, *settings_of_search in finder.searches:
        searched = sorted({int(text.split()[0]) for text in texts})
        assert all([jobs[i].k, jobs[i].where] == settings_of_search for i in searched)
        assert len(texts) <= MAX_BATCH or len(searched) == 1
        assert searched[0] == min(left) and set(searched) <= left
        left -= set(searched)
    assert not left


def test_more_posts_than_places_are_refused_at_once_and_all_once_it_is_closed(
    batchers: Callable[..., RequestBatcher],
) -> None:
    batcher = batchers(capacity=3)

    async def run() -> None:
        first = await block(batcher)
        second = asyncio.ensure_future(ask(batcher, "a", "b"))
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(NoAnswer) as error:
            await ask(batcher, "one too many")
        assert time.monotonic() - started < 1 and error.value.status == 503
        assert int(error.value.headers["retry-after"]) >= 1
        slow(batcher).go.set()
        assert [len(answers) for answers in await asyncio.gather(first, second)] == [1, 2]
        assert len(await ask(batcher, "a", "b", "c")) == 3  # the places are free again
        with pytest.raises(NoAnswer) as error:
            await ask(batcher, "a", "b", "c", "d")
        assert error.value.status == 503
        # Closed, it answers what it began and refuses the rest.
        slow(batcher).begun.clear()
        first = await block(batcher)
        waiting = asyncio.ensure_future(ask(batcher, "waits"))
        await asyncio.sleep(0)
        batcher.close()
        slow(batcher).go.set()
        assert len(await first) == 1
        for task in (waiting, ask(batcher, "late")):
            with pytest.raises(NoAnswer) as error:
                await task
            assert error.value.status == 503

    asyncio.run(run())


def test_a_post_that_takes_too_long_is_given_up_and_leaves_its_place(
    batchers: Callable[..., RequestBatcher],
) -> None:
    batcher = batchers(capacity=2, seconds=0.2)

    async def run() -> None:
        first = await block(batcher)
        second = asyncio.ensure_future(ask(batcher, "never searched"))
        for task in (first, second):
            with refused(NoAnswer, "0.2 s") as error:
                await task
            assert error.value.status == 504
        assert batcher.waiting == 1  # the first is still being searched
        batcher.seconds = 30
        third = asyncio.ensure_future(ask(batcher, "third"))
        await asyncio.sleep(0)
        slow(batcher).go.set()
        assert len(await third) == 1

    asyncio.run(run())
    assert slow(batcher).asked == [["first"], ["third"]]


def test_a_search_that_fails_fails_only_its_own_post(
    batchers: Callable[..., RequestBatcher], caplog: pytest.LogCaptureFixture
) -> None:
    batcher = batchers()

    async def run() -> list[Any]:
        first = await block(batcher)
        waiting = [
            asyncio.ensure_future(ask(batcher, text)) for text in ("good", "poison apple", "fine")
        ]
        await asyncio.sleep(0)
        slow(batcher).go.set()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    with caplog.at_level(logging.DEBUG):
        _, good, bad, fine = asyncio.run(run())
    assert (good[0].post.text, fine[0].post.text) == ("good", "fine")
    assert isinstance(bad, NoAnswer) and bad.status == 500 and "apple" not in str(bad)
    assert "ValueError" in caplog.text and "in find" in caplog.text
    assert "apple" not in caplog.text
