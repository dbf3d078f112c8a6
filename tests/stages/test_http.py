"""Re-ranking over HTTP: recorded exchanges of a real vLLM, and dialects as documented."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.data.store import Store
from claim2source.stages.http import Http
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import DETAILED, RELEASED, YesNo
from tests.llm.test_llama_cpp import recorded as recorded_of_llama_cpp
from tests.refusals import refused
from tests.stages.score_server import ScoreServer, replaying, shuffled
from tests.stages.test_cross_encoder import scored
from tests.stages.test_yes_no import TOLD, exchange, recorded, recorded_pairs

Reply = tuple[int, Any, Mapping[str, str]]


def stage(server: ScoreServer, **settings: Any) -> Http:
    return Http(**{"url": server.url, "model": "rr", "instruction": TOLD} | settings)


def by_length(path: str, body: dict[str, Any]) -> Reply:
    """A rule: a document's raw score is minus its length."""
    data = [{"index": i, "score": -float(len(t))} for i, t in enumerate(body["documents"])]
    return 200, {"data": data}, {}


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("name", ["score, raw logits", "empty document"])
def test_recorded_requests_are_sent_to_the_letter(name: str, mix: bool) -> None:
    call = exchange(name)
    request = call["request"]
    expected = {r["index"]: r["score"] for r in call["response"]["data"]}
    with ScoreServer(replaying(recorded()["exchanges"], mix=mix)) as server:
        logits = scored(stage(server), [Pair(request["queries"], d) for d in request["documents"]])
        assert len(server.requests) == 1
    assert np.allclose(logits, [expected[i] for i in range(len(logits))], atol=1e-5)


@pytest.mark.parametrize("mix", [False, True])
def test_every_recorded_reply_is_read_by_its_index(mix: bool) -> None:
    """Also replies to requests that we would not send: each answers one of ours."""
    read = 0
    for call in recorded()["exchanges"]:
        if call["status"] != 200 or "/score" not in call["path"] and "/rerank" not in call["path"]:
            continue
        reply = shuffled(call["response"]) if mix else call["response"]
        dialect = "vllm_score" if "data" in call["response"] else "jina"
        results = call["response"].get("data") or call["response"]["results"]
        expected = {r["index"]: r.get("score", r.get("relevance_score")) for r in results}
        with ScoreServer(lambda path, body, reply=reply: (200, reply, {})) as server:
            pairs = recorded_pairs()[: max(expected) + 1]
            scores = scored(stage(server, dialect=dialect), pairs)
            assert len(server.requests) == 1
        assert np.allclose(scores, [expected[i] for i in range(len(pairs))], atol=1e-5), call
        read += 1
    assert read == 15


def test_the_instruction_is_always_sent_and_prompts_are_never_cut_by_the_server() -> None:
    with ScoreServer(by_length) as server:
        for settings in ({}, {"instruction": "detailed"}):
            scored(Http(**{"url": server.url, "model": "m"} | settings), [Pair("c", "abc")])
        instructions = [body["instruction"] for body in server.bodies]
        assert instructions == [RELEASED, DETAILED]
        assert not any("truncate_prompt_tokens" in body for body in server.bodies)


def test_a_document_that_is_too_long_is_halved_and_fails_no_other() -> None:
    refusal = exchange("one document too long: the whole request fails")
    long = len(refusal["request"]["documents"][1])
    assert long > 1000

    def limited(path: str, body: dict[str, Any]) -> Reply:
        if max(map(len, body["documents"])) > long // 3:
            return refusal["status"], refusal["response"], {}
        return by_length(path, body)

    texts = refusal["request"]["documents"]
    pairs = [Pair("claim", text) for text in (*texts, "c" * 40, "dd")]
    with ScoreServer(limited) as server:
        scores = scored(stage(server), pairs)
        assert scores.tolist() == [-len(texts[0]), -(long // 4), -40, -2]


def applied(
    one: Http, sources: list[Source], store: Store | None = None, claims: int = 1
) -> Result:
    run = Run.from_lists(
        {str(i): [(s.id, -float(n)) for n, s in enumerate(sources)] for i in range(claims)}
    )
    claims_asked = [Claim(str(i), f"claim {i}") for i in range(claims)]
    return one.with_runtime(store, None).apply(claims_asked, sources, run)


SOURCES = [Source(str(i), abstract="x" * (i + 1)) for i in range(10)]


def test_what_fails_is_asked_alone_and_counted() -> None:
    bad = SOURCES[3].abstract

    def faulty(path: str, body: dict[str, Any]) -> Reply:
        if any(text.endswith(f" {bad}") or text == bad for text in body["documents"]):
            return 500, {"error": {"message": "CUDA error"}}, {}
        return by_length(path, body)

    with ScoreServer(faulty) as server:
        result = applied(stage(server, retries=2, sources="title_abstract"), SOURCES)
        assert result.failure_counts() == {"status 500: CUDA error": 1}
        # By raw score, the shortest first; the failed one keeps its rank.
        assert result.sources("0") == [s.id for s in SOURCES]
        counter = Counter(len(body["documents"]) for body in server.bodies)
        assert counter[10] == 3 and counter[1] <= 4


def test_results_that_a_reply_lacks_are_asked_for_alone() -> None:
    def lacking(path: str, body: dict[str, Any]) -> Reply:
        status, reply, headers = by_length(path, body)
        if len(body["documents"]) > 1:
            reply["data"] = [*reply["data"][1:], {"index": 99, "score": 1.0}]
            reply["data"][0]["score"] = None
        return status, reply, headers

    with ScoreServer(lacking) as server:
        scores = scored(stage(server), [Pair("c", "a" * n) for n in (1, 2, 3)])
        assert scores.tolist() == [-1, -2, -3]


def test_a_server_that_cannot_serve_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = exchange("unknown model")
    with ScoreServer(lambda *_: (unknown["status"], unknown["response"], {})) as server:
        with refused(UserError, "The model `nope` does not exist"):
            applied(stage(server, model="nope"), SOURCES, claims=5)
        assert len(server.requests) == 1
    with refused(UserError, server.url):
        applied(Http(url=server.url, model="m", retries=1), SOURCES)
    monkeypatch.setenv("RERANK_API_KEY", "sk-secret-123")
    text = {"error": "no such key sk-secret-123"}
    with caplog.at_level(logging.DEBUG), ScoreServer(lambda *_: (401, text, {})) as server:
        with refused(UserError, "RERANK_API_KEY") as error:
            applied(stage(server), SOURCES)
        (headers,) = [headers for *_, headers in server.requests]
        assert headers["authorization"] == "Bearer sk-secret-123"
    assert "sk-secret" not in str(error.value) + caplog.text


LASTING: list[tuple[Any, str]] = [
    ({"results": [{"index": 0, "relevance_score": 1.0}]}, "relevance_score"),
    ([{"index": 0, "score": 1.0}], "vllm_score"),
    ({"data": [{"index": 0, "score": "high"}]}, "high"),
    ({"data": [{"index": 0, "score": True}]}, "score"),
    ({"data": [{"index": False, "score": 1.0}]}, "score"),
]


@pytest.mark.parametrize(("text", "words"), LASTING)
def test_what_cannot_succeed_is_asked_once_and_the_words_are_shown(text: Any, words: str) -> None:
    with ScoreServer(lambda *_: (200, text, {})) as server:
        with refused(UserError, words):
            applied(stage(server), SOURCES, claims=3)
        assert len(server.requests) == 1

    def later(path: str, body: dict[str, Any]) -> Reply:
        return by_length(path, body) if body["queries"] == "claim 0" else (200, text, {})

    with ScoreServer(later) as server:
        result = applied(stage(server, concurrency=1), SOURCES, claims=2)
        assert sum(result.failure_counts().values()) == 10 and len(server.requests) == 2


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_text_that_is_too_large_is_halved_whatever_the_status(status: int) -> None:
    def limited(path: str, body: dict[str, Any]) -> Reply:
        if max(map(len, body["documents"])) > 50:
            reason = "input is too large to process. increase the physical batch size"
            return status, {"error": {"code": status, "message": reason}}, {}
        return by_length(path, body)

    with ScoreServer(limited) as server:
        assert scored(stage(server), [Pair("c", "a" * 160), Pair("c", "bb")]).tolist() == [-40, -2]
        assert len(server.requests) == 5


def test_too_many_texts_are_halved_and_a_score_beyond_float32_is_none() -> None:
    def limited(path: str, body: dict[str, Any]) -> Reply:
        texts = body["documents"]
        if len(texts) > 2:
            reason = f"batch size {len(texts)} > maximum allowed batch size 2"
            return 422, {"error": reason, "error_type": "Validation"}, {}
        scores = [1e39 if text == "aaaa" else -float(len(text)) for text in texts]
        return 200, {"data": [{"index": i, "score": s} for i, s in enumerate(scores)]}, {}

    with ScoreServer(limited) as server:
        scores = scored(stage(server), [Pair("c", "a" * n) for n in (1, 2, 3, 4)])
        assert scores[:3].tolist() == [-1, -2, -3] and math.isnan(scores[3])


def test_control_tokens_reach_no_servers_template() -> None:
    with ScoreServer(by_length) as server:
        scored(stage(server), [Pair("a <|im_end|> b", "<tool_call>x</s> [INST]")])
        (body,) = server.bodies
        assert body["queries"] == "a < |im_end| > b"
        assert body["documents"] == ["< tool_call>x< /s> [ INST]"]


def test_scores_are_kept_until_the_server_is_gone(tmp_path: Path) -> None:
    """Many claims at once; the second run only requests what the first did not get."""
    store, calls = Store(tmp_path), 0

    def dying(path: str, body: dict[str, Any]) -> Reply:
        nonlocal calls
        calls += 1
        return by_length(path, body) if calls <= 7 else (401, {"error": "gone"}, {})

    with ScoreServer(dying) as server:
        url = server.url
        first = applied(stage(server, documents=5, concurrency=3), SOURCES, store, claims=6)
        # Refused permanently after the first: counted, not stored.
        assert sum(first.failure_counts().values()) == 25
        # A refused key is refused for parts of a request as well: they are not tried.
        assert len(server.bodies) == 12
        calls = -(10**6)
        rerun = applied(Http(url=url, model="rr", instruction=TOLD), SOURCES, store, claims=6)
        assert rerun.cost.reused == 35 and not rerun.failures
        assert sum(len(body["documents"]) for body in server.bodies[12:]) == 25


@pytest.mark.parametrize("mix", [False, True])
def test_the_documented_rerank_api(mix: bool) -> None:
    """Not recorded: jina.ai/reranker sorts results by relevance, scores are of a cosine's kind."""
    scores = {2: 0.41, 0: -0.05, 1: -0.12}
    results = [{"index": i, "relevance_score": score} for i, score in scores.items()]
    reply = {"model": "rr", "results": results}
    body = {"model": "rr", "query": "c", "documents": ["a", "b", "d"]}
    body |= {"top_n": 3, "return_documents": False}
    reply = shuffled(reply) if mix else reply
    with ScoreServer(lambda path, body: (200, reply, {})) as server:
        found = scored(stage(server, dialect="jina"), [Pair("c", t) for t in "abd"])
        assert [request[:2] for request in server.requests] == [("/v1/rerank", body)]
    assert found.tolist() == pytest.approx([-0.05, -0.12, 0.41])


def test_the_rerank_api_of_vllm_and_llama_cpp_as_recorded() -> None:
    """vLLM returns raw logits with our instruction; llama.cpp returns probabilities of yes."""
    raw = exchange("rerank, raw logits")
    ours = next(call for call in recorded_of_llama_cpp("rerank") if call["name"] == "rerank")
    for call in (raw, ours):
        request = call["request"]
        expected = {row["index"]: row["relevance_score"] for row in call["response"]["results"]}
        pairs = [Pair(request["query"], text) for text in request["documents"]]
        with ScoreServer(lambda *_, call=call: (call["status"], call["response"], {})) as server:
            one = stage(server, dialect="rerank", instruction=request["instruction"])
            scores = scored(one, pairs)
            ((path, body, _),) = server.requests
        assert np.allclose(scores, [expected[n] for n in range(len(pairs))], atol=1e-6)
        assert path == "/v1/rerank" and body["model"] == "rr"
        for name, value in request.items():
            assert name == "model" or body[name] == value
    # An address with /v1, as language models have it, is the same server.
    with ScoreServer(lambda *_: (200, raw["response"], {})) as server:
        one = Http(url=f"{server.url}/v1", model="rr", dialect="rerank", instruction=TOLD)
        scored(one, [Pair("c", text) for text in raw["request"]["documents"]])
        assert [path for path, *_ in server.requests] == ["/v1/rerank"]


def test_a_document_too_long_for_llama_cpp_is_halved() -> None:
    name = "one document too long: the whole request fails"
    refusal = next(call for call in recorded_of_llama_cpp("rerank") if call["name"] == name)
    long = max(map(len, refusal["request"]["documents"]))

    def limited(path: str, body: dict[str, Any]) -> Reply:
        if max(map(len, body["documents"])) > long // 2:
            return refusal["status"], refusal["response"], {}
        rows = [{"index": n, "relevance_score": 0.5} for n in range(len(body["documents"]))]
        return 200, {"results": rows}, {}

    pairs = [Pair("c", text) for text in refusal["request"]["documents"]]
    with ScoreServer(limited) as server:
        assert scored(stage(server, dialect="rerank"), pairs).tolist() == [0.5, 0.5]


def test_the_log_odds_of_llama_cpp_ask_for_one_document_at_a_time() -> None:
    probabilities: dict[str, list[dict[str, Any]]] = {
        "good": [{"token": "yes", "prob": 0.75}, {"token": "no", "prob": 0.25}],
        "sure": [{"token": "yes", "prob": 1.0}, {"token": "no", "prob": 0.0}],
        "half": [{"token": "yes", "prob": 1.0}],
    }

    def reply(path: str, body: dict[str, Any]) -> Reply:
        word = body["prompt"].partition("<Document>: ")[2].partition("<")[0]
        return 200, {"completion_probabilities": [{"top_probs": probabilities[word]}]}, {}

    with ScoreServer(reply) as server:
        one = stage(server, dialect="llama_yes_no", instruction="released")
        scores = scored(one, [Pair("claim", word) for word in probabilities])
        assert {path for path, *_ in server.requests} == {"/completion"}
        prompt = YesNo().prompt(Pair("claim", "good"))
        assert "".join(prompt) in [body["prompt"] for body in server.bodies]
    assert scores[0] == pytest.approx(math.log(3), abs=1e-6)
    assert np.isfinite(scores[1]) and scores[1] > 80 and np.isnan(scores[2])
    for odd in ({}, {"completion_probabilities": []}, []):
        with ScoreServer(lambda *_, odd=odd: (200, odd, {})) as server:
            with refused(UserError, "llama_yes_no"):
                applied(stage(server, dialect="llama_yes_no"), SOURCES)
