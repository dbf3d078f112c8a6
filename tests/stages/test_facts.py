"""Facts and their support, entities, relevance: ranks and numbers by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.llm.parse import NO_FIT
from claim2source.stages.facts import FUSIONS, Attribution, matched, means
from claim2source.systems.read import read_stage
from tests.llm_server import Chat, LLMServer

Start = Callable[..., LLMServer]
# q, and the number of four facts that are supported.
PAPERS = {
    "a": (0.95, 1),
    "b": (0.8, 2),
    "c": (0.5, 2),
    "d": (0.29, 4),
    "e": (0.1, 4),
}
SOURCES = [Source(name, f"paper {name}") for name in PAPERS]
LOGITS = [(name, math.log(q / (1 - q))) for name, (q, _) in PAPERS.items()]
# q + n is 1.2, 1.3, 1.0, 1.29; q * n 0.2375, 0.4, 0.25, 0.29; q * (1 + n) 1.1875, 1.2, 0.75, 0.58;
# 0.7 q + 0.3 n 0.74, 0.71, 0.5, 0.503. No two orders are the same. e is beyond the depth.
RANKS = {
    "q": "abcde",
    "n": "dbcae",
    "q+n": "bdace",
    "q*n": "bdcae",
    "q*(1+n)": "bacde",
    "a*q+(1-a)*n": "abdce",
}


def rule(chat: Chat) -> str:
    if "facts" not in chat.data:
        facts = ["one", "two ", " ", "two", "three", "four"]
        return json.dumps({"facts": facts})
    assert chat.data["facts"] == "[1] one\n[2] two\n[3] three\n[4] four"
    paper = chat.data["paper"][-1]
    _, supported = PAPERS[paper]
    labels = [1] * supported + [0] * (4 - supported)
    return json.dumps({"labels": labels})


def llm_settings(server: LLMServer) -> dict[str, Any]:
    """Ask a server once, one request at a time."""
    return {
        "model": server.model,
        "url": server.url,
        "retries": 0,
        "concurrency": 1,
    }


def applied(
    server: LLMServer, scores: Any = LOGITS, rerank: str = "attribution", **settings: Any
) -> Result:
    llm = llm_settings(server)
    llm |= settings.pop("llm", {})
    entry = {
        "rerank": rerank,
        "llm": llm,
        "depth": 4,
        **settings,
    }
    stage = read_stage(entry).stage
    claim = Claim("0", "Ein Beitrag", "de", "A post")
    run = Run.from_lists({"0": scores})
    return stage.apply([claim], SOURCES, run)


def order(result: Result) -> str:
    """Join the ids of the claim's sources, by rank."""
    return "".join(result.sources("0"))


def test_the_six_fusions_give_the_ranks_by_hand(llm_server: Start) -> None:
    assert {*RANKS} == {*FUSIONS}
    assert len({*RANKS.values()}) == 6
    server = llm_server(rule)
    for fusion, ranks in RANKS.items():
        result = applied(server, fusion=fusion)
        assert order(result) == ranks, fusion
        assert not result.failures
    assert result.notes["0"] == "facts: one | two | three | four"
    last_score = result.run.scored("0")["b"]
    assert round(last_score, 4) == 0.71

    bodies = [body for body in server.bodies if "facts" not in Chat(body).data]
    # Facts are extracted from the translation at the paper's temperature, and judged at 0.
    posts = {Chat(body).data["post"] for body in bodies}
    assert posts == {"A post"}
    assert {body["temperature"] for body in bodies} == {0.1}
    others = [body for body in server.bodies if "facts" in Chat(body).data]
    assert {body["temperature"] for body in others} == {0.0}
    assert len(others) == 6 * 4

    # At 0.5, the readme's, 0.7 is another order.
    result = applied(server, alpha=0.5)
    assert order(result) == RANKS["q+n"]


def test_without_facts_the_post_is_judged(llm_server: Start) -> None:
    def none(chat: Chat) -> str:
        if "facts" not in chat.data:
            return '{"facts": [" "]}'
        assert chat.data["facts"] == "[1] A post"
        paper = chat.data["paper"][-1]
        is_supported = paper in "cd"
        return json.dumps({"labels": [int(is_supported)]})

    server = llm_server(none)
    result = applied(server, fusion="n")
    assert order(result) == "cdabe"
    assert not result.failures


def test_what_fails_keeps_its_rank(llm_server: Start) -> None:
    def one(chat: Chat) -> str:
        # With one label too few there is no judgement.
        bad = "facts" in chat.data and chat.data["paper"].endswith("b")
        if bad:
            return '{"labels": [1, 1, 1]}'
        return rule(chat)

    def no_facts(chat: Chat) -> str:
        if "facts" not in chat.data:
            return "?"
        return rule(chat)

    server = llm_server(one)
    result = applied(server, fusion="n")
    assert order(result) == "dbcae"
    assert len(result.failures) == 1

    server = llm_server(no_facts)
    result = applied(server)
    assert order(result) == "abcde"
    assert len(result.failures) == 1
    scores = list(result.run.scored("0").values())
    logits = [logit for _, logit in LOGITS]
    assert scores == pytest.approx(logits, abs=1e-6)


def test_versions_and_their_extractor(llm_server: Start) -> None:
    """Version 1 finds what a supports, 2 what b does, 3 nothing at all."""

    def facts(chat: Chat) -> str:
        found: list[str] = []
        if chat.before < 3:
            letter = "abx"[chat.before]
            found.append(f"of {letter}")
        return json.dumps({"facts": found})

    def labels(chat: Chat) -> str:
        fact = chat.data["facts"][-1]
        paper = chat.data["paper"][-1]
        return json.dumps({"labels": [int(fact == paper)]})

    def run(**settings: Any) -> str:
        taking = llm_server(facts)
        judging = llm_server(labels)
        extractor = {
            "model": "m",
            "url": taking.url,
            "temperature": 0.1,
            "concurrency": 1,
        }
        result = applied(
            judging,
            extractor=extractor,
            fusion="n",
            versions=3,
            **settings,
        )
        # Each version has its own requests; repeated facts are judged once.
        expected_requests = 1 if "version" in settings else 3
        assert taking.requests == expected_requests
        return order(result)

    assert run() == "abcde"
    assert run(version=1) == "abcde"

    entry = {
        "rerank": "attribution",
        "llm": {"model": "m"},
        "versions": 3,
    }
    stage = read_stage(entry).stage
    assert isinstance(stage, Attribution)
    assert [version.version for version in stage.each_version()] == [1, 2, 3]
    samples = [list(version.samples) for version in stage.each_version()]
    assert samples == [[0], [1], [2]]


POST = ["Zinc", "48 %"]


def reply(*entities: list[str]) -> str:
    documents = [{"document": i, "entities": names} for i, names in enumerate(entities, 1)]
    answer = {
        "query_entities": POST,
        "documents": documents,
    }
    return json.dumps(answer)


def test_entities_are_counted_once_and_only_those_of_the_post() -> None:
    text = reply(
        ["zinc ", "Zinc", "ZINC"],
        ["Copper", "Iron"],
        ["48  %", "zinc"],
    )
    data = json.loads(text)
    data["documents"] += [
        {"document": 9, "entities": POST},
        {"document": 2, "entities": ["Zinc"]},
    ]
    counts = matched(data, 4)
    assert counts.tolist() == [1, 1, 2, 0]


def test_sources_are_ordered_by_their_counts(llm_server: Start) -> None:
    entities: list[list[str]] = [
        [],
        ["Zinc"],
        ["zinc", "48 %"],
        ["48 %"],
    ]
    server = llm_server(lambda chat: reply(*entities))
    result = applied(server, rerank="entities")
    # 0 1 2 1, ties as before, and e beyond the depth.
    assert result.sources("0") == list("cbdae")
    assert not result.failures
    data = Chat(server.bodies[0]).data
    documents = data["documents"].split("\n")
    assert documents[3] == "[4] Title: paper d"
    assert data["translation"] == "A post"


def test_a_failed_chunk_keeps_its_ranks(llm_server: Start) -> None:
    def rule(chat: Chat) -> str:
        if "paper c" in chat.data["documents"]:
            return reply()
        return reply([], ["Zinc"])

    server = llm_server(rule)
    result = applied(server, rerank="entities", chunk=2)
    assert result.sources("0") == list("bacde")
    assert result.failure_counts() == {NO_FIT: 1}
    assert server.requests == 4


def test_versions_are_averaged_or_taken_alone(llm_server: Start) -> None:
    replies = [
        reply([], ["Zinc"]),
        reply([], [], ["Zinc", "48 %"]),
        "nothing",
    ]

    def ranking(**settings: Any) -> list[str]:
        server = llm_server(lambda chat: replies[min(chat.before, 2)])
        result = applied(server, rerank="entities", versions=2, **settings)
        return result.sources("0")

    # Means by hand: a 0, b 0.5, c 1, d 0.
    assert ranking() == list("cbade")
    assert ranking(version=1) == list("bacde")
    averages = means([[1.0, 2.0], [4.0], []])
    assert averages.tolist() == pytest.approx([1.5, 4, np.nan], nan_ok=True)


TWEETS = [Source(name, abstract=f"tweet {name} says it") for name in "abcd"]
BM25 = Run.from_lists(
    {
        "c": [
            ("a", 3.0),
            ("b", 2.5),
            ("c", 1.0),
            ("d", 0.5),
        ]
    }
)


def relevant(server: LLMServer, **settings: Any) -> Result:
    entry = {
        "rerank": "relevance",
        "depth": 3,
        "llm": llm_settings(server),
        **settings,
    }
    stage = read_stage(entry).stage
    claim = Claim("c", "A rumour")
    return stage.apply([claim], TWEETS, BM25)


def score(value: object) -> str:
    return json.dumps({"score": value})


def tweet_name(chat: Chat) -> str:
    """Read which tweet is asked about."""
    return chat.data["tweet"][:7]


def test_scores_are_added_to_those_before(llm_server: Start) -> None:
    score_of = {
        "tweet a": 0,
        "tweet b": 1.25,
        "tweet c": 5,
    }
    server = llm_server(lambda chat: score(score_of[tweet_name(chat)]))
    result = relevant(server)
    # 3 + 0, 2.5 + 1.25, 1 + 5; d is beyond the depth.
    assert result.sources("c") == ["c", "b", "a", "d"]
    assert server.requests == 3
    scores = list(result.scored("c").values())
    assert scores[:3] == pytest.approx([6, 3.75, 3])
    first_body = server.bodies[0]
    assert Chat(first_body).data["rumor"] == "A rumour"


def test_each_of_k_rewrites_is_scored_and_the_mean_taken(llm_server: Start) -> None:
    def rule(chat: Chat) -> str:
        if "post" in chat.data:
            seed = chat.body["seed"]
            return f"{chat.data['post']}, version {seed}"
        tweet = chat.data["tweet"]
        if "tweet b" not in tweet:
            return score(0)
        version = int(tweet[-1])
        return score(version)

    server = llm_server(rule)
    llm = {
        "model": server.model,
        "url": server.url,
        "seed": 1,
        "concurrency": 1,
    }
    result = relevant(server, rewrites=3, llm=llm)
    # 2.5 + (1 + 2 + 3) / 3; nine rewrites, nine scores.
    assert result.scored("c")["b"] == pytest.approx(4.5)
    assert server.requests == 18
    temperatures = {body["temperature"] for body in server.bodies if "seed" in body}
    assert temperatures == {0.0, 0.7}


def test_tweets_that_fail_are_counted_and_keep_their_rank(llm_server: Start) -> None:
    replies: dict[str, object] = {
        "tweet a": 7,
        "tweet b": "five",
        "tweet c": 4.5,
    }
    server = llm_server(lambda chat: score(replies[tweet_name(chat)]))
    result = relevant(server)
    assert result.sources("c") == ["a", "b", "c", "d"]
    assert result.scored("c")["c"] == pytest.approx(5.5)
    assert result.failure_counts() == {"does not fit the schema": 2}

    def refusing(chat: Chat) -> str:
        if "post" in chat.data:
            return "I'm sorry, I cannot help with that."
        return score(5)

    server = llm_server(refusing)
    result = relevant(server, rewrites=2)
    # The tweet itself is scored instead of its rewrites.
    assert result.failure_counts() == {"rewrites: a refusal": 6}
    assert result.scored("c")["c"] == pytest.approx(6)
