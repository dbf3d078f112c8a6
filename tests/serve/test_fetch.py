"""A pasted address is offered to be fetched, and fetched, by the API, the page and agents alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from claim2source.data.fetch import BLUESKY_API, Fetcher
from claim2source.search.engine import open_index
from claim2source.serve.page import FETCH_LABEL
from tests.data.social_server import Server
from tests.data.social_server import serving as social
from tests.eval import conftest
from tests.serve.servers import SlowFinder, serving

index = conftest.index
KNOWN = "https://mastodon.social/@ada/110"
GONE = "https://mastodon.social/@ada/404"
UNKNOWN = "https://example.org/@ada/110"


@pytest.fixture(scope="module")
def finder(index: str) -> SlowFinder:
    return SlowFinder(open_index(index))


@pytest.fixture(scope="module")
def network() -> Iterator[Server]:
    with social() as running:
        yield running


@pytest.fixture(scope="module")
def client(finder: SlowFinder, network: Server) -> Iterator[httpx.Client]:
    hosts = dict.fromkeys((BLUESKY_API, "mastodon.social"), network.place)
    with serving(finder, fetcher=Fetcher(base_urls=hosts)) as address:
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client


def by_agent(client: httpx.Client, **arguments: Any) -> tuple[bool, str]:
    from mcp.client import Client

    async def call() -> tuple[bool, str]:
        async with Client(str(client.base_url.join("/mcp"))) as agent:
            result = await agent.call_tool("find_papers", arguments)
            return bool(result.is_error), str(result.content)

    return asyncio.run(call())


@pytest.mark.parametrize("post", [KNOWN, UNKNOWN, "file:///x", "at://a/b"])
def test_an_address_is_refused_and_offered_if_its_network_is_known(
    client: httpx.Client, network: Server, post: str
) -> None:
    network.asked.clear()
    found = client.post("/api/v1/find", json={"post": post})
    batch = client.post("/api/v1/batch", json={"posts": [{"text": "masks"}, {"text": post}]})
    page = client.get("/", params={"post": post})
    script = client.post("/answer", json={"post": post})
    is_error, agent = by_agent(client, post=post)
    assert (found.status_code, found.json()["field"]) == (422, "post")
    assert (batch.status_code, batch.json()["field"]) == (422, "posts.1.text")
    assert page.status_code == 422 and is_error
    shown = page.text.partition('<section id="answer"')[2]
    is_known = post == KNOWN
    for text in (found.json()["error"], batch.json()["error"], agent):
        assert "is an address" in text and ("`fetch`" in text) == is_known
    for text in (shown, script.text.encode().decode("unicode_escape")):
        assert "is an address" in text and (FETCH_LABEL in text) == is_known
    assert network.asked == []


def test_with_fetch_the_post_there_is_searched(
    client: httpx.Client, finder: SlowFinder, network: Server
) -> None:
    asked: list[list[str]] = []
    finder.asked = asked
    answers = [
        client.post("/api/v1/find", json={"post": KNOWN, "fetch": True}),
        client.post("/api/v1/batch", json={"posts": [{"text": KNOWN, "fetch": True}]}),
        client.get("/", params={"post": KNOWN, "fetch": "true"}),
        client.post("/answer", json={"post": KNOWN, "fetch": True}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert by_agent(client, post=KNOWN, fetch=True)[0] is False
    texts = {text for batch in asked for text in batch}
    assert len(asked) == 5 and len(texts) == 1
    assert texts.pop().startswith("Wissenschaft\nNeue Studie: Masken & Ausbrüche")
    # Later papers than the post are left out, as by `find`.
    dates = {paper["date"] for paper in answers[0].json()["papers"]}
    assert dates and not any("2022" in date for date in dates)
    # A text is searched as it is.
    client.post("/api/v1/find", json={"post": "masks", "fetch": True})
    assert asked[-1] == ["masks"]


def test_what_cannot_be_fetched_is_said(client: httpx.Client, finder: SlowFinder) -> None:
    answer = client.post("/api/v1/find", json={"post": GONE, "fetch": True})
    assert (answer.status_code, answer.json()["field"]) == (422, "post")
    assert "no such post" in answer.json()["error"]
    for value in ("true", 1, "yes"):
        answer = client.post("/api/v1/find", json={"post": KNOWN, "fetch": value})
        assert (answer.status_code, answer.json()["field"]) == (422, "fetch")
    with serving(finder) as address, httpx.Client(base_url=address, timeout=60) as closed:
        answer = closed.post("/api/v1/find", json={"post": KNOWN, "fetch": True})
        assert answer.status_code == 422 and "address" in answer.json()["error"]
        assert FETCH_LABEL not in closed.get("/").text and FETCH_LABEL in client.get("/").text
