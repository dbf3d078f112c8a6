"""Sources by the number of the post's entities that they hold; ranks counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.stages.entities import matched
from claim2source.stages.llm_scores import mean_known
from claim2source.systems.stages import load_stages
from tests.llm_server import Chat, LLMServer

Start = Callable[..., LLMServer]
SOURCES = [Source(name, f"paper {name}") for name in "abcde"]
RUN = Run.from_lists({"0": [(name, -float(i)) for i, name in enumerate("abcde")]})
POST = ["Zinc", "48 %"]


def reply(*held: list[str]) -> str:
    documents = [{"document": i, "entities": names} for i, names in enumerate(held, 1)]
    return json.dumps({"query_entities": POST, "documents": documents})


def applied(server: LLMServer, **settings: Any) -> Result:
    llm = {"model": server.model, "url": server.url, "retries": 0}
    ((_, stage),) = load_stages([{"rerank": "entities", "llm": llm, "depth": 4, **settings}])
    return stage.apply([Claim("0", "Zink: 48 %", "de", "Zinc: 48 %")], SOURCES, RUN)


def test_entities_are_counted_once_and_only_those_of_the_post() -> None:
    data = json.loads(reply(["zinc ", "Zinc", "ZINC"], ["Copper", "Iron"], ["48  %", "zinc"]))
    data["documents"] += [{"document": 9, "entities": POST}, {"document": 2, "entities": ["Zinc"]}]
    assert matched(data, 4).tolist() == [1, 1, 2, 0]


def test_sources_are_ordered_by_their_counts(llm_server: Start) -> None:
    server = llm_server(lambda chat: reply([], ["Zinc"], ["zinc", "48 %"], ["48 %"]))
    found = applied(server)
    # 0 1 2 1, ties as before, and e beyond the depth.
    assert found.sources("0") == list("cbdae") and not found.failures
    data = Chat(server.bodies[0]).data
    assert data["documents"].split("\n")[3] == "[4] Title: paper d"
    assert data["translation"] == "Zinc: 48 %"


def test_a_failed_chunk_keeps_its_ranks(llm_server: Start) -> None:
    def rule(chat: Chat) -> str:
        failing = "paper c" in chat.data["documents"]
        return '{"query_entities": [], "documents": []}' if failing else reply([], ["Zinc"])

    server = llm_server(rule)
    found = applied(server, chunk=2)
    assert found.sources("0") == list("bacde")
    assert found.failure_counts() == {"names no document": 1} and server.requests == 3


def test_versions_are_averaged_or_taken_alone(llm_server: Start) -> None:
    replies = [reply([], ["Zinc"]), reply([], [], ["Zinc", "48 %"]), "nothing"]

    def rule(chat: Chat) -> str:
        return replies[min(chat.before, 2)]

    settings = {"versions": 2, "llm": {"concurrency": 1}}
    found = {
        version: applied(llm_server(rule), **settings_of(rule, llm_server, settings, version))
        for version in (None, 1)
    }
    # Means by hand: a 0, b 0.5, c 1, d 0.
    assert found[None].sources("0") == list("cbade")
    assert found[1].sources("0") == list("bacde")
    rows = [np.array([1.0, np.nan, np.nan]), np.array([2.0, 4.0, np.nan])]
    assert mean_known(rows).tolist() == pytest.approx([1.5, 4, np.nan], nan_ok=True)


def settings_of(
    rule: Callable[[Chat], str], start: Start, settings: dict[str, Any], version: int | None
) -> dict[str, Any]:
    server = start(rule)
    llm = {"model": server.model, "url": server.url, "retries": 0, **settings["llm"]}
    return {**settings, "llm": llm, "version": version}
