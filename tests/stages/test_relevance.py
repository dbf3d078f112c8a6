"""A language model's relevance over rewrites, added to BM25's score; numbers by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.systems.stages import load_stages
from tests.llm_server import Chat, LLMServer

Start = Callable[..., LLMServer]
SOURCES = [Source(name, abstract=f"tweet {name} says it") for name in "abcd"]
RUN = Run.from_lists({"c": [("a", 3.0), ("b", 2.5), ("c", 1.0), ("d", 0.5)]})


def applied(server: LLMServer, **settings: Any) -> Result:
    llm = {"model": server.model, "url": server.url, "retries": 0, "concurrency": 1}
    ((_, stage),) = load_stages([{"rerank": "relevance", "depth": 3, "llm": llm, **settings}])
    return stage.apply([Claim("c", "A rumour")], SOURCES, RUN)


def score(value: object) -> str:
    return json.dumps({"score": value})


def test_scores_are_added_to_those_before(llm_server: Start) -> None:
    given = {"tweet a": 0, "tweet b": 1.25, "tweet c": 5}
    server = llm_server(lambda chat: score(given[chat.data["tweet"][:7]]))
    found = applied(server)
    # 3 + 0, 2.5 + 1.25, 1 + 5; d is beyond the depth.
    assert found.sources("c") == ["c", "b", "a", "d"] and server.requests == 3
    assert list(found.scored("c").values())[:3] == pytest.approx([6, 3.75, 3])
    assert Chat(server.bodies[0]).data["rumor"] == "A rumour"
    scaled = applied(llm_server(lambda chat: score(given[chat.data["tweet"][:7]])), first="min_max")
    # 1 + 0, 0.75 + 0.25, 0 + 1: equal ones keep their order.
    assert scaled.sources("c") == ["a", "b", "c", "d"]
    assert list(scaled.scored("c").values())[:3] == pytest.approx([1, 1, 1], abs=1e-5)


def test_each_of_k_rewrites_is_scored_and_the_mean_taken(llm_server: Start) -> None:
    def rule(chat: Chat) -> str:
        if "post" in chat.data:
            return f"{chat.data['post']}, version {chat.body['seed']}"
        tweet = chat.data["tweet"]
        return score(int(tweet[-1]) if "tweet b" in tweet else 0)

    server = llm_server(rule)
    llm = {"model": server.model, "url": server.url, "seed": 1, "concurrency": 1}
    found = applied(server, rewrites=3, llm=llm)
    # 2.5 + (1 + 2 + 3) / 3; nine rewrites, nine scores.
    assert found.scored("c")["b"] == pytest.approx(4.5) and server.requests == 18
    assert {body["temperature"] for body in server.bodies if "seed" in body} == {0.0, 0.7}


def test_what_fails_is_counted_and_keeps_its_rank(llm_server: Start) -> None:
    replies: dict[str, object] = {"tweet a": 7, "tweet b": "five", "tweet c": 4.5}
    found = applied(llm_server(lambda chat: score(replies[chat.data["tweet"][:7]])))
    assert found.sources("c") == ["a", "b", "c", "d"]
    assert found.scored("c")["c"] == pytest.approx(5.5)
    assert found.failure_counts() == {"does not fit the schema": 2}

    def refusing(chat: Chat) -> str:
        return "I'm sorry, I cannot help with that." if "post" in chat.data else score(5)

    found = applied(llm_server(refusing), rewrites=2)
    # The tweet itself is scored in place of its rewrites.
    assert found.failure_counts() == {"rewrites: a refusal": 6}
    assert found.scored("c")["c"] == pytest.approx(6)


def test_settings_that_make_no_sense_are_refused() -> None:
    llm = {"model": "m"}
    with pytest.raises(ConfigError, match="rewrites"):
        load_stages([{"rerank": "relevance", "llm": llm, "rewrites": 2, "temperature": 0}])
