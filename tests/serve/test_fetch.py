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


def find(client: httpx.Client, **question: Any) -> httpx.Response:
    """Send one question to the API."""
    return client.post("/api/v1/find", json=question)


def batch(client: httpx.Client, *posts: dict[str, Any]) -> httpx.Response:
    """Send several posts to the API at once."""
    return client.post("/api/v1/batch", json={"posts": posts})


def by_agent(client: httpx.Client, **arguments: Any) -> tuple[bool, str]:
    from mcp.client import Client

    async def call() -> tuple[bool, str]:
        address = client.base_url.join("/mcp")
        async with Client(str(address)) as agent:
            result = await agent.call_tool("find_papers", arguments)
            return bool(result.is_error), str(result.content)

    return asyncio.run(call())


@pytest.mark.parametrize("post", [KNOWN, UNKNOWN, "file:///x", "at://a/b"])
def test_an_address_is_refused_and_offered_if_its_network_is_known(
    client: httpx.Client, network: Server, post: str
) -> None:
    network.asked.clear()
    found = find(client, post=post)
    several = batch(client, {"text": "masks"}, {"text": post})
    page = client.get("/", params={"post": post})
    script = client.post("/answer", json={"post": post})
    is_error, agent = by_agent(client, post=post)
    found_error = found.json()
    assert found.status_code == 422
    assert found_error["field"] == "post"
    several_error = several.json()
    assert several.status_code == 422
    assert several_error["field"] == "posts.1.text"
    assert page.status_code == 422
    assert is_error

    _, _, shown = page.text.partition('<section id="answer"')
    is_known = post == KNOWN
    for text in (found_error["error"], several_error["error"], agent):
        assert "is an address" in text
        assert ("`fetch`" in text) == is_known
    script_text = script.text.encode().decode("unicode_escape")
    for text in (shown, script_text):
        assert "is an address" in text
        assert (FETCH_LABEL in text) == is_known
    assert network.asked == []


def test_with_fetch_the_post_there_is_searched(
    client: httpx.Client, finder: SlowFinder, network: Server
) -> None:
    asked: list[list[str]] = []
    finder.asked = asked
    found = find(client, post=KNOWN, fetch=True)
    answers = [
        found,
        batch(client, {"text": KNOWN, "fetch": True}),
        client.get("/", params={"post": KNOWN, "fetch": "true"}),
        client.post("/answer", json={"post": KNOWN, "fetch": True}),
    ]
    for answer in answers:
        assert answer.status_code == 200
    is_error, _ = by_agent(client, post=KNOWN, fetch=True)
    assert is_error is False

    texts = {text for posts in asked for text in posts}
    assert len(asked) == 5
    assert len(texts) == 1
    fetched = texts.pop()
    assert fetched.startswith("Wissenschaft\nNeue Studie: Masken & Ausbrüche")

    # Later papers than the post are left out, as by `find`.
    papers = found.json()["papers"]
    dates = {paper["date"] for paper in papers}
    assert dates
    assert not any("2022" in date for date in dates)

    # A text is searched as it is.
    find(client, post="masks", fetch=True)
    assert asked[-1] == ["masks"]


def test_what_cannot_be_fetched_is_said(client: httpx.Client, finder: SlowFinder) -> None:
    answer = find(client, post=GONE, fetch=True)
    refusal = answer.json()
    assert answer.status_code == 422
    assert refusal["field"] == "post"
    assert "no such post" in refusal["error"]
    for value in ("true", 1, "yes"):
        answer = find(client, post=KNOWN, fetch=value)
        assert answer.status_code == 422
        assert answer.json()["field"] == "fetch"

    with (
        serving(finder) as address,
        httpx.Client(base_url=address, timeout=60) as closed,
    ):
        answer = find(closed, post=KNOWN, fetch=True)
        assert answer.status_code == 422
        assert "address" in answer.json()["error"]
        closed_page = closed.get("/")
        assert FETCH_LABEL not in closed_page.text
        page = client.get("/")
        assert FETCH_LABEL in page.text
