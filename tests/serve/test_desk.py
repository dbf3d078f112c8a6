"""The desk: posts of several askers are searched together, none waits without end, none is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from claim2source.engines import Where, open_engine
from claim2source.engines.rows import EVERYWHERE
from claim2source.io.posts import Post
from claim2source.pipeline.asking import Answer, Finder
from claim2source.serve.desk import TOGETHER, Busy, Desk, Failed, Late
from tests.eval.test_find import index  # noqa: F401  the fixture
from tests.serve.servers import SlowFinder


@pytest.fixture
def desks(index: str) -> Iterator[Callable[..., Desk]]:  # noqa: F811
    made: list[Desk] = []

    def make(**options: Any) -> Desk:
        made.append(Desk(SlowFinder(open_engine(index), sentences=False), **options))
        made[-1].start()
        return made[-1]

    yield make
    for desk in made:
        desk.finder.go.set()  # type: ignore[attr-defined]
        desk.close()


def slow(desk: Desk) -> SlowFinder:
    assert isinstance(desk.finder, SlowFinder)
    return desk.finder


async def held(desk: Desk) -> asyncio.Task[list[Answer]]:
    """A post that is being searched, until `go` is set."""
    slow(desk).go.clear()
    first = asyncio.ensure_future(ask(desk, "first"))
    while not slow(desk).begun.is_set():
        await asyncio.sleep(0.005)
    return first


def ask(
    desk: Desk, *texts: str, k: int = 3, where: Where = EVERYWHERE, **options: Any
) -> Awaitable[list[Answer]]:
    # All have the same id, as posts of several askers may.
    return desk.ask([Post("0", text) for text in texts], k, where, **options)


def test_posts_that_wait_are_searched_together_and_get_their_own_answers(
    desks: Callable[..., Desk],
    index: str,  # noqa: F811
) -> None:
    desk = desks()
    texts = [f"claim {'abc'[i % 3]} number {i}" for i in range(TOGETHER + 4)]

    async def run() -> list[list[Answer]]:
        first = await held(desk)
        waiting = [asyncio.ensure_future(ask(desk, text)) for text in texts]
        others = [
            asyncio.ensure_future(ask(desk, "other k", k=2)),
            asyncio.ensure_future(ask(desk, "other papers", where=Where(venue="Nature"))),
        ]
        await asyncio.sleep(0)
        assert desk.waiting == 1 + len(texts) + 2
        slow(desk).go.set()
        return await asyncio.gather(first, *waiting, *others)

    answers = asyncio.run(run())
    assert slow(desk).asked == [
        ["first"],
        texts[:TOGETHER],
        texts[TOGETHER:],
        ["other k"],
        ["other papers"],
    ]
    assert desk.waiting == 0
    assert [answer.post for (answer,) in answers[1:-2]] == [Post("0", text) for text in texts]
    alone = Finder(open_engine(index), sentences=False)
    for text, (answer,) in zip(texts, answers[1:-2], strict=True):
        (expected,) = alone.find([Post("0", text)], 3)
        assert [m.paper.source.id for m in answer.matches] == [
            m.paper.source.id for m in expected.matches
        ]
    assert len(answers[-2][0].matches) == 2
    assert {m.paper.source.venue for m in answers[-1][0].matches} == {"Nature"}


def test_more_posts_than_places_are_refused_at_once_and_all_once_it_is_closed(
    desks: Callable[..., Desk],
) -> None:
    desk = desks(places=3)

    async def run() -> None:
        first = await held(desk)
        second = asyncio.ensure_future(ask(desk, "a", "b"))
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(Busy) as caught:
            await ask(desk, "one too many")
        assert time.monotonic() - started < 1 and caught.value.seconds >= 1
        assert caught.value.headers == {"retry-after": str(caught.value.seconds)}
        slow(desk).go.set()
        assert [len(one) for one in await asyncio.gather(first, second)] == [1, 2]
        assert len(await ask(desk, "a", "b", "c")) == 3  # the places are free again
        with pytest.raises(Busy):
            await ask(desk, "a", "b", "c", "d")
        # Closed, it answers what it began and refuses the rest.
        slow(desk).begun.clear()
        first = await held(desk)
        waiting = asyncio.ensure_future(ask(desk, "waits"))
        await asyncio.sleep(0)
        desk.close()
        slow(desk).go.set()
        assert len(await first) == 1
        for refused in (waiting, ask(desk, "late")):
            with pytest.raises(Busy):
                await refused

    asyncio.run(run())


def test_a_post_that_takes_too_long_is_given_up_and_leaves_its_place(
    desks: Callable[..., Desk],
) -> None:
    desk = desks(places=2, seconds=0.2)

    async def run() -> None:
        first = await held(desk)
        second = asyncio.ensure_future(ask(desk, "never searched"))
        for one in (first, second):
            with pytest.raises(Late, match="within 0.2 s"):
                await one
        assert desk.waiting == 1  # the first is still being searched
        desk.seconds = 30
        third = asyncio.ensure_future(ask(desk, "third"))
        await asyncio.sleep(0)
        slow(desk).go.set()
        assert len(await third) == 1

    asyncio.run(run())
    assert slow(desk).asked == [["first"], ["third"]]


def test_a_search_that_fails_fails_only_its_own_post(
    desks: Callable[..., Desk], caplog: pytest.LogCaptureFixture
) -> None:
    desk = desks()

    async def run() -> list[Any]:
        first = await held(desk)
        waiting = [
            asyncio.ensure_future(ask(desk, text)) for text in ("good", "poison apple", "fine")
        ]
        await asyncio.sleep(0)
        slow(desk).go.set()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    with caplog.at_level(logging.DEBUG):
        _, good, bad, fine = asyncio.run(run())
    assert (good[0].post.text, fine[0].post.text) == ("good", "fine")
    assert isinstance(bad, Failed) and "apple" not in str(bad)
    assert "ValueError" in caplog.text and "in find" in caplog.text
    assert "apple" not in caplog.text
