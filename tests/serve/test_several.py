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


@pytest.fixture(scope="module")
def served(shards: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A process that serves copies of both shards; its folder is `folder`."""
    folder = tmp_path_factory.mktemp("served")
    copies = [str(shutil.copytree(location, folder / Path(location).name)) for location in shards]
    words = ["--index", copies[1], "--device", "cpu", "--rate", "0"]
    with started(copies[0], folder, *words) as process:
        with httpx.Client(base_url=process.url, timeout=120) as client:
            client.folder = folder  # type: ignore[attr-defined]
            yield client


def test_the_page_names_the_index_of_each_paper(served: httpx.Client) -> None:
    page = served.get("/", params={"post": POST}).text
    papers = served.post("/api/v1/find", json={"post": POST}).json()["papers"]
    for paper in papers:
        name = paper["index"]["name"]
        assert f'data-paper="{paper["id"]}" data-index="{name}"' in page.replace("&#39;", "'")
    assert page.count('class="index"') == len(papers) == 10
    german = served.get("/", params={"post": POST}, headers={"accept-language": "de"}).text
    assert "Index: shard0" in german and "Die Indexe" in german


def test_the_table_names_the_index_of_each_paper(served: httpx.Client) -> None:
    content = f"text\n{POST}\n"
    answer = served.post("/table", params={"name": "posts.csv"}, content=content)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    (row,) = csv.DictReader(io.StringIO("".join(line["csv"] for line in lines)))
    paper = served.post("/api/v1/find", json={"post": POST}).json()["papers"][0]
    assert (row["id"], row["index"]) == (paper["id"], paper["index"]["name"])


def test_a_mark_names_the_index_of_its_paper(served: httpx.Client) -> None:
    files = [MarksFile.beside(served.folder / f"shard{i}") for i in range(2)]  # type: ignore[attr-defined]
    body = {"post": POST, "paper": "p1", "index": "shard1"}
    answer = served.post("/api/v1/marks", json=body)
    assert (answer.status_code, answer.json()["index"]) == (200, "shard1")
    assert [file.read().marks[0].paper for file in files] == [None, "p1"]
    # The paper is in both: each file has its own copy's id.
    assert served.post("/api/v1/marks", json={"post": POST, "paper": "p2"}).status_code == 200
    assert [file.read().marks[0].paper for file in files] == ["p2", "p2"]
    answer = served.post("/api/v1/marks", json={**body, "index": "shard0"})
    assert (answer.status_code, answer.json()["field"]) == (404, "paper")
    assert served.post("/api/v1/marks", json={"post": POST, "paper": None}).status_code == 200
    assert [file.read().marks[0].paper for file in files] == [None, None]


def test_an_agent_sees_and_marks_papers_by_their_index(served: httpx.Client) -> None:
    from mcp.client import Client

    async def run() -> tuple[Any, Any]:
        async with Client(str(served.base_url.join("/mcp"))) as agent:
            found = await agent.call_tool("find_papers", {"post": POST, "k": 3})
            mark = {"post": POST, "paper": "p1", "index": "shard1"}
            return found, await agent.call_tool("mark_post", mark)

    found, kept = asyncio.run(run())
    assert found.structured_content["indexes"] == ["shard0", "shard1"]
    assert all(paper["index"]["name"] for paper in found.structured_content["papers"])
    assert kept.structured_content["index"] == "shard1"


def test_an_index_that_goes_is_named_and_without_any_the_search_fails(
    served: httpx.Client,
) -> None:
    folder = served.folder  # type: ignore[attr-defined]
    answer = served.post("/api/v1/find", json={"post": POST}).json()
    assert (answer["indexes"], answer["lost"]) == (["shard0", "shard1"], [])
    assert {paper["index"]["name"] for paper in answer["papers"]} == {"shard0", "shard1"}
    (folder / "shard1").rename(folder / "away")
    left = served.post("/api/v1/find", json={"post": POST})
    assert (left.status_code, left.json()["lost"]) == (200, ["shard1"])
    assert {paper["index"]["name"] for paper in left.json()["papers"]} == {"shard0"}
    assert any("shard1" in note for note in left.json()["notes"])
    assert served.get("/health").json()["lost"] == ["shard1"]
    # Damage instead of absence.
    manifest = folder / "shard0" / "manifest.json"
    manifest.write_text("{")
    failed = served.post("/api/v1/find", json={"post": POST})
    assert failed.status_code == 500 and str(folder) not in failed.text
