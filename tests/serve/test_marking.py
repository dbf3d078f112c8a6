"""Marks of posts by the API, the tool for agents and the page's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from claim2source.eval.serve import ServeConfig

from claim2source.find import marks as module
from claim2source.find.finder import Finder
from claim2source.find.marks import MarksFile
from claim2source.search.engine import open_index
from claim2source.serve.marking import Marking
from tests.eval import conftest
from tests.eval.papers import POST
from tests.eval.test_report_browser import Seen, browser  # noqa: F401  the fixture
from tests.serve.servers import serving

index = conftest.index
PATH = "/api/v1/marks"


@pytest.fixture(scope="module")
def finder(index: str) -> Finder:
    return Finder(open_index(index))


@pytest.fixture
def file(tmp_path: Path) -> MarksFile:
    return MarksFile(tmp_path / "marks.jsonl")


@pytest.fixture
def client(finder: Finder, file: MarksFile) -> Iterator[httpx.Client]:
    with serving(finder, marking=Marking(finder.engine, file)) as address:
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client


def test_a_mark_of_the_api_is_kept_and_replaced(
    client: httpx.Client, finder: Finder, file: MarksFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = client.post("/api/v1/find", json={"post": POST}).json()["papers"][0]["id"]
    answer = client.post(PATH, json={"post": POST, "paper": paper, "date": "2020-05"})
    assert answer.status_code == 200
    (mark,) = file.read().marks
    assert (mark.post, mark.paper, mark.lang, mark.date) == (POST, paper, "en", "2020-05")
    assert mark.version == finder.engine.version == answer.json()["version"] and mark.time
    assert client.post(PATH, json={"post": POST, "paper": None, "lang": "de"}).status_code == 200
    (mark,) = file.read().marks
    assert (mark.paper, mark.lang) == (None, "de")
    before = file.path.read_bytes()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"post": POST}, "paper"),
        ({"post": " ", "paper": None}, "post"),
        ({"post": POST, "paper": None, "k": 3}, "k"),
    ]
    for body, field in wrong:
        answer = client.post(PATH, json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
    answer = client.post(PATH, json={"post": POST, "paper": "nowhere"})
    assert (answer.status_code, answer.json()["field"]) == (404, "paper")
    for origin in ("https://elsewhere.example", "null"):
        answer = client.post(PATH, json={"post": POST, "paper": None}, headers={"origin": origin})
        assert answer.status_code == 403
    # A form of another site, in a browser that names no origin.
    foreign = {"sec-fetch-site": "cross-site", "content-type": "text/plain"}
    body = '{"post": "x", "paper": null}'
    assert client.post(PATH, content=body, headers=foreign).status_code == 403
    monkeypatch.setattr(module, "MOST_BYTES", len(before) + 10)
    assert client.post(PATH, json={"post": POST, "paper": None}).status_code == 507
    assert file.path.read_bytes() == before


def test_an_agent_keeps_a_mark_by_the_tool(client: httpx.Client, file: MarksFile) -> None:
    from mcp.client import Client

    async def run() -> tuple[Any, ...]:
        async with Client(str(client.base_url.join("/mcp"))) as agent:
            tools = await agent.list_tools()
            good = await agent.call_tool("mark_post", {"post": POST, "paper": None})
            bad = await agent.call_tool("mark_post", {"post": POST, "paper": "nowhere"})
            return tools, good, bad

    tools, good, bad = asyncio.run(run())
    by_name = {tool.name: tool for tool in tools.tools}
    marking = by_name["mark_post"]
    assert not marking.annotations.read_only_hint and len(marking.description.split()) <= 100
    assert not good.is_error and good.structured_content["paper"] is None
    (mark,) = file.read().marks
    assert mark.post == POST
    assert bad.is_error and bad.content[0].text.startswith("paper: ")


def test_the_page_has_a_place_for_the_buttons_only_where_marks_are_taken(
    client: httpx.Client, finder: Finder
) -> None:
    page = client.get("/", params={"post": POST, "k": 3}).text
    assert "/static/marks.js" in page and page.count('class="marks"') == 4
    assert client.get("/static/marks.js").status_code == 200
    with serving(finder) as address:
        with httpx.Client(base_url=address, timeout=60) as without:
            page = without.get("/", params={"post": POST}).text
            assert "marks.js" not in page and "marked-post" not in page
            assert without.post(PATH, json={"post": POST, "paper": None}).status_code == 404
            assert PATH not in without.get("/openapi.json").json()["paths"]


def test_only_a_local_server_takes_marks_by_itself(tmp_path: Path) -> None:
    location = str(tmp_path / "idx")
    own = ServeConfig(index=[location]).marks_file(location)
    assert own is not None and own.path == tmp_path / "idx.marks.jsonl"
    open_to_others = (
        ServeConfig(index=[location], host="0.0.0.0"),
        ServeConfig(index=[location], proxies=["127.0.0.1"]),
        ServeConfig(index=[location], hosts=["find.example"]),
    )
    for config in open_to_others:
        assert config.marks_file(location) is None
    named = ServeConfig(index=[location], host="0.0.0.0", marks=tmp_path / "mine")
    file = named.marks_file(location)
    assert file is not None and file.path == tmp_path / "mine"


@pytest.mark.slow
def test_the_buttons_keep_marks(
    browser: Any,  # noqa: F811
    client: httpx.Client,
    finder: Finder,
    file: MarksFile,
) -> None:
    page = browser.new_page()
    seen = Seen(page)
    page.goto(str(client.base_url))
    page.fill("#post", POST)
    page.fill("[name=date]", "2021-05-04")
    page.locator("#post").press("Control+Enter")
    block = page.locator(".marks").first
    button = block.locator("button")
    button.wait_for()
    page.fill("#post", "another post, not asked")
    button.click()
    page.wait_for_selector("button.mark[aria-pressed=true]")
    (mark,) = file.read().marks
    assert (mark.post, mark.paper) == (POST, block.get_attribute("data-paper"))
    assert (mark.date, mark.version) == ("2021-05-04", finder.engine.version)
    none = page.locator(".marks[data-paper=''] button")
    none.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("element => element.ariaPressed === 'true'", arg=none.element_handle())
    (mark,) = file.read().marks
    assert (mark.post, mark.paper) == (POST, None)
    assert page.locator("button.mark[aria-pressed=true]").count() == 1
    page.close()
    assert seen.errors == []
