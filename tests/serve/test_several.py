"""A server of several indexes: the page, the API, marks, and an index that disappears."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from claim2source.find.marks import MarksFile
from tests.eval import conftest
from tests.eval.papers import POST
from tests.eval.test_serve import started
from tests.find import test_several

index = conftest.index
shards = test_several.shards

# The process that serves both takes ten seconds to start.
pytestmark = pytest.mark.slow


def find(client: httpx.Client, post: str) -> httpx.Response:
    """Send one post to the API."""
    return client.post("/api/v1/find", json={"post": post})


def opened(client: httpx.Client, post: str, **options: Any) -> httpx.Response:
    """Open the page with a post."""
    return client.get("/", params={"post": post}, **options)


def index_names_in(papers: list[dict[str, Any]]) -> set[str]:
    """Give the names of the indexes that the papers are from."""
    return {paper["index"]["name"] for paper in papers}


@pytest.fixture(scope="module")
def served(shards: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A process that serves copies of both shards; its folder is `folder`."""
    folder = tmp_path_factory.mktemp("served")
    copies = []
    for location in shards:
        name = Path(location).name
        copy = shutil.copytree(location, folder / name)
        copies.append(str(copy))
    words = [
        "--index",
        copies[1],
        "--device",
        "cpu",
        "--rate",
        "0",
    ]
    with started(copies[0], folder, *words) as process:
        with httpx.Client(base_url=process.url, timeout=120) as client:
            client.folder = folder  # type: ignore[attr-defined]
            yield client


def test_the_page_names_the_index_of_each_paper(served: httpx.Client) -> None:
    page = opened(served, POST).text
    papers = find(served, POST).json()["papers"]
    for paper in papers:
        name = paper["index"]["name"]
        named = f'data-paper="{paper["id"]}" data-index="{name}"'
        assert named in page.replace("&#39;", "'")
    assert page.count('class="index"') == len(papers) == 10
    german = opened(served, POST, headers={"accept-language": "de"}).text
    assert "Index: shard0" in german
    assert "Die Indexe" in german


def test_the_table_names_the_index_of_each_paper(served: httpx.Client) -> None:
    content = f"text\n{POST}\n"
    params = {"name": "posts.csv"}
    answer = served.post("/table", params=params, content=content)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    text = "".join(line["csv"] for line in lines)
    (row,) = csv.DictReader(io.StringIO(text))
    paper = find(served, POST).json()["papers"][0]
    assert row["id"] == paper["id"]
    assert row["index"] == paper["index"]["name"]


def marked_papers(folder: Path) -> list[str | None]:
    """Read the paper of the first mark beside each of both shards."""
    papers = []
    for name in ("shard0", "shard1"):
        file = MarksFile.beside(folder / name)
        marks = file.read().marks
        papers.append(marks[0].paper)
    return papers


def test_a_mark_names_the_index_of_its_paper(served: httpx.Client) -> None:
    folder = served.folder  # type: ignore[attr-defined]
    body = {
        "post": POST,
        "paper": "p1",
        "index": "shard1",
    }
    answer = served.post("/api/v1/marks", json=body)
    assert answer.status_code == 200
    assert answer.json()["index"] == "shard1"
    assert marked_papers(folder) == [None, "p1"]

    # The paper is in both: each file has its own copy's id.
    in_both = {"post": POST, "paper": "p2"}
    answer = served.post("/api/v1/marks", json=in_both)
    assert answer.status_code == 200
    assert marked_papers(folder) == ["p2", "p2"]

    elsewhere = {**body, "index": "shard0"}
    answer = served.post("/api/v1/marks", json=elsewhere)
    assert answer.status_code == 404
    assert answer.json()["field"] == "paper"

    none = {"post": POST, "paper": None}
    answer = served.post("/api/v1/marks", json=none)
    assert answer.status_code == 200
    assert marked_papers(folder) == [None, None]


def test_an_agent_sees_and_marks_papers_by_their_index(served: httpx.Client) -> None:
    from mcp.client import Client

    question = {"post": POST, "k": 3}
    mark = {
        "post": POST,
        "paper": "p1",
        "index": "shard1",
    }

    async def run() -> tuple[Any, Any]:
        address = served.base_url.join("/mcp")
        async with Client(str(address)) as agent:
            found = await agent.call_tool("find_papers", question)
            kept = await agent.call_tool("mark_post", mark)
            return found, kept

    found, kept = asyncio.run(run())
    answer = found.structured_content
    assert answer["indexes"] == ["shard0", "shard1"]
    assert all(index_names_in(answer["papers"]))
    assert kept.structured_content["index"] == "shard1"


def test_an_index_that_goes_is_named_and_without_any_the_search_fails(
    served: httpx.Client,
) -> None:
    folder = served.folder  # type: ignore[attr-defined]
    answer = find(served, POST).json()
    assert answer["indexes"] == ["shard0", "shard1"]
    assert answer["lost"] == []
    assert index_names_in(answer["papers"]) == {"shard0", "shard1"}

    (folder / "shard1").rename(folder / "away")
    left = find(served, POST)
    assert left.status_code == 200
    answer = left.json()
    assert answer["lost"] == ["shard1"]
    assert index_names_in(answer["papers"]) == {"shard0"}
    assert any("shard1" in note for note in answer["notes"])
    health = served.get("/health").json()
    assert health["lost"] == ["shard1"]

    # Damage instead of absence.
    manifest = folder / "shard0" / "manifest.json"
    manifest.write_text("{")
    failed = find(served, POST)
    assert failed.status_code == 500
    assert str(folder) not in failed.text
