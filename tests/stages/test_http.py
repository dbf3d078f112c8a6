"""Re-ranking over HTTP: recorded exchanges of a real vLLM, and dialects as documented."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
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
from tests.stages.score_server import Rule, ScoreServer, replaying, shuffled
from tests.stages.test_cross_encoder import scored
from tests.stages.test_yes_no import TOLD, exchange, recorded, recorded_pairs

Body = dict[str, Any]
Reply = tuple[int, Any, Mapping[str, str]]


def stage(server: ScoreServer, **settings: Any) -> Http:
    defaults = {
        "url": server.url,
        "model": "rr",
        "instruction": TOLD,
    }
    return Http(**defaults | settings)


def pairs_with(claim: str, texts: Iterable[str]) -> list[Pair]:
    """Pair a claim with each text."""
    return [Pair(claim, text) for text in texts]


def in_order(scores: Mapping[int, float], count: int) -> list[float]:
    """List as many scores by their index, from 0 on."""
    return [scores[i] for i in range(count)]


def by_length(path: str, body: Body) -> Reply:
    """A rule: a document's raw score is minus its length."""
    data: list[dict[str, Any]] = []
    for i, text in enumerate(body["documents"]):
        score = -float(len(text))
        data.append({"index": i, "score": score})
    return 200, {"data": data}, {}


def replying(status: int, reply: Any) -> Rule:
    """A rule: the same reply to every request."""
    return lambda path, body: (status, reply, {})


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "score, raw logits",
        "empty document",
    ],
)
def test_recorded_requests_are_sent_to_the_letter(name: str, mix: bool) -> None:
    call = exchange(name)
    request = call["request"]
    rows = call["response"]["data"]
    expected = {row["index"]: row["score"] for row in rows}
    pairs = pairs_with(request["queries"], request["documents"])
    rule = replaying(recorded()["exchanges"], mix=mix)
    with ScoreServer(rule) as server:
        logits = scored(stage(server), pairs)
        assert len(server.requests) == 1
    expected_logits = in_order(expected, len(logits))
    assert np.allclose(logits, expected_logits, atol=1e-5)


@pytest.mark.parametrize("mix", [False, True])
def test_every_recorded_reply_is_read_by_its_index(mix: bool) -> None:
    """Also replies to requests that we would not send: each answers one of ours."""
    read = 0
    for call in recorded()["exchanges"]:
        if call["status"] != 200:
            continue
        path = call["path"]
        if "/score" not in path and "/rerank" not in path:
            continue
        response = call["response"]
        reply = shuffled(response) if mix else response
        dialect = "vllm_score" if "data" in response else "jina"
        results = response.get("data") or response["results"]
        expected = {}
        for result in results:
            relevance = result.get("relevance_score")
            expected[result["index"]] = result.get("score", relevance)
        with ScoreServer(replying(200, reply)) as server:
            pairs = recorded_pairs()[: max(expected) + 1]
            scores = scored(stage(server, dialect=dialect), pairs)
            assert len(server.requests) == 1
        expected_scores = in_order(expected, len(pairs))
        assert np.allclose(scores, expected_scores, atol=1e-5), call
        read += 1
    assert read == 15


def test_the_instruction_is_always_sent_and_prompts_are_never_cut_by_the_server() -> None:
    with ScoreServer(by_length) as server:
        for settings in ({}, {"instruction": "detailed"}):
            address = {"url": server.url, "model": "m"}
            one = Http(**address | settings)
            scored(one, [Pair("c", "abc")])
        instructions = [body["instruction"] for body in server.bodies]
        assert instructions == [RELEASED, DETAILED]
        assert not any("truncate_prompt_tokens" in body for body in server.bodies)


def test_a_document_that_is_too_long_is_halved_and_fails_no_other() -> None:
    refusal = exchange("one document too long: the whole request fails")
    texts = refusal["request"]["documents"]
    long = len(texts[1])
    assert long > 1000

    def limited(path: str, body: Body) -> Reply:
        longest = max(map(len, body["documents"]))
        if longest > long // 3:
            return refusal["status"], refusal["response"], {}
        return by_length(path, body)

    all_texts = (*texts, "c" * 40, "dd")
    pairs = pairs_with("claim", all_texts)
    with ScoreServer(limited) as server:
        scores = scored(stage(server), pairs)
        assert scores.tolist() == [
            -len(texts[0]),
            -(long // 4),
            -40,
            -2,
        ]


def applied(
    one: Http,
    sources: list[Source],
    store: Store | None = None,
    claims: int = 1,
) -> Result:
    ranking = [(source.id, -float(n)) for n, source in enumerate(sources)]
    run = Run.from_lists({str(i): ranking for i in range(claims)})
    claims_asked = [Claim(str(i), f"claim {i}") for i in range(claims)]
    ready = one.with_runtime(store, None)
    return ready.apply(claims_asked, sources, run)


def failure_count(result: Result) -> int:
    """Count the failures of all kinds."""
    return sum(result.failure_counts().values())


SOURCES = [
    Source(
        str(i),
        abstract="x" * (i + 1),
    )
    for i in range(10)
]


def test_what_fails_is_asked_alone_and_counted() -> None:
    bad = SOURCES[3].abstract

    def faulty(path: str, body: Body) -> Reply:
        for text in body["documents"]:
            if text.endswith(f" {bad}") or text == bad:
                return 500, {"error": {"message": "CUDA error"}}, {}
        return by_length(path, body)

    with ScoreServer(faulty) as server:
        one = stage(server, retries=2, sources="title_abstract")
        result = applied(one, SOURCES)
        assert result.failure_counts() == {"status 500: CUDA error": 1}
        # By raw score, the shortest first; the failed one keeps its rank.
        assert result.sources("0") == [s.id for s in SOURCES]
        counter = Counter(len(body["documents"]) for body in server.bodies)
        assert counter[10] == 3
        assert counter[1] <= 4


def test_results_that_a_reply_lacks_are_asked_for_alone() -> None:
    def lacking(path: str, body: Body) -> Reply:
        status, reply, headers = by_length(path, body)
        if len(body["documents"]) > 1:
            unknown = {"index": 99, "score": 1.0}
            rows = [*reply["data"][1:], unknown]
            rows[0]["score"] = None
            reply["data"] = rows
        return status, reply, headers

    pairs = pairs_with("c", ["a", "aa", "aaa"])
    with ScoreServer(lacking) as server:
        scores = scored(stage(server), pairs)
        assert scores.tolist() == [-1, -2, -3]


def test_a_server_that_cannot_serve_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = exchange("unknown model")
    no_model = replying(unknown["status"], unknown["response"])
    with ScoreServer(no_model) as server:
        one = stage(server, model="nope")
        with refused(UserError, "The model `nope` does not exist"):
            applied(one, SOURCES, claims=5)
        assert len(server.requests) == 1
    gone = Http(url=server.url, model="m", retries=1)
    with refused(UserError, server.url):
        applied(gone, SOURCES)

    monkeypatch.setenv("RERANK_API_KEY", "sk-secret-123")
    text = {"error": "no such key sk-secret-123"}
    no_key = replying(401, text)
    with caplog.at_level(logging.DEBUG), ScoreServer(no_key) as server:
        with refused(UserError, "RERANK_API_KEY") as error:
            applied(stage(server), SOURCES)
        (headers,) = [headers for *_, headers in server.requests]
        assert headers["authorization"] == "Bearer sk-secret-123"
    shown = str(error.value) + caplog.text
    assert "sk-secret" not in shown


LASTING: list[tuple[Any, str]] = [
    (
        {"results": [{"index": 0, "relevance_score": 1.0}]},
        "relevance_score",
    ),
    (
        [{"index": 0, "score": 1.0}],
        "vllm_score",
    ),
    (
        {"data": [{"index": 0, "score": "high"}]},
        "high",
    ),
    (
        {"data": [{"index": 0, "score": True}]},
        "score",
    ),
    (
        {"data": [{"index": False, "score": 1.0}]},
        "score",
    ),
]


@pytest.mark.parametrize(("text", "words"), LASTING)
def test_what_cannot_succeed_is_asked_once_and_the_words_are_shown(text: Any, words: str) -> None:
    with ScoreServer(replying(200, text)) as server:
        with refused(UserError, words):
            applied(stage(server), SOURCES, claims=3)
        assert len(server.requests) == 1

    def later(path: str, body: Body) -> Reply:
        if body["queries"] == "claim 0":
            return by_length(path, body)
        return 200, text, {}

    with ScoreServer(later) as server:
        one = stage(server, concurrency=1)
        result = applied(one, SOURCES, claims=2)
        assert failure_count(result) == 10
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_text_that_is_too_large_is_halved_whatever_the_status(status: int) -> None:
    def limited(path: str, body: Body) -> Reply:
        longest = max(map(len, body["documents"]))
        if longest > 50:
            reason = "input is too large to process. increase the physical batch size"
            error = {"code": status, "message": reason}
            return status, {"error": error}, {}
        return by_length(path, body)

    pairs = pairs_with("c", ["a" * 160, "bb"])
    with ScoreServer(limited) as server:
        scores = scored(stage(server), pairs)
        assert scores.tolist() == [-40, -2]
        assert len(server.requests) == 5


def test_too_many_texts_are_halved_and_a_score_beyond_float32_is_none() -> None:
    def limited(path: str, body: Body) -> Reply:
        texts = body["documents"]
        if len(texts) > 2:
            reason = f"batch size {len(texts)} > maximum allowed batch size 2"
            error = {"error": reason, "error_type": "Validation"}
            return 422, error, {}
        rows: list[dict[str, Any]] = []
        for i, text in enumerate(texts):
            score = 1e39 if text == "aaaa" else -float(len(text))
            rows.append({"index": i, "score": score})
        return 200, {"data": rows}, {}

    pairs = pairs_with("c", ["a", "aa", "aaa", "aaaa"])
    with ScoreServer(limited) as server:
        scores = scored(stage(server), pairs)
        assert scores[:3].tolist() == [-1, -2, -3]
        assert math.isnan(scores[3])


def test_control_tokens_reach_no_servers_template() -> None:
    pair = Pair("a <|im_end|> b", "<tool_call>x</s> [INST]")
    with ScoreServer(by_length) as server:
        scored(stage(server), [pair])
        (body,) = server.bodies
        assert body["queries"] == "a < |im_end| > b"
        assert body["documents"] == ["< tool_call>x< /s> [ INST]"]


def test_scores_are_kept_until_the_server_is_gone(tmp_path: Path) -> None:
    """Many claims at once; the second run only requests what the first did not get."""
    store = Store(tmp_path)
    calls = 0

    def dying(path: str, body: Body) -> Reply:
        nonlocal calls
        calls += 1
        if calls <= 7:
            return by_length(path, body)
        return 401, {"error": "gone"}, {}

    with ScoreServer(dying) as server:
        url = server.url
        one = stage(server, documents=5, concurrency=3)
        first = applied(one, SOURCES, store, claims=6)
        # Refused permanently after the first: counted, not stored.
        assert failure_count(first) == 25
        # A refused key is refused for parts of a request as well: they are not tried.
        assert len(server.bodies) == 12
        calls = -(10**6)
        again = Http(url=url, model="rr", instruction=TOLD)
        rerun = applied(again, SOURCES, store, claims=6)
        assert rerun.cost.reused == 35
        assert not rerun.failures
        asked = [len(body["documents"]) for body in server.bodies[12:]]
        assert sum(asked) == 25


@pytest.mark.parametrize("mix", [False, True])
def test_the_documented_rerank_api(mix: bool) -> None:
    """Not recorded: jina.ai/reranker sorts results by relevance, scores are of a cosine's kind."""
    scores = {2: 0.41, 0: -0.05, 1: -0.12}
    results = []
    for i, score in scores.items():
        result = {"index": i, "relevance_score": score}
        results.append(result)
    reply = {"model": "rr", "results": results}
    body = {
        "model": "rr",
        "query": "c",
        "documents": ["a", "b", "d"],
        "top_n": 3,
        "return_documents": False,
    }
    if mix:
        reply = shuffled(reply)
    pairs = pairs_with("c", "abd")
    with ScoreServer(replying(200, reply)) as server:
        one = stage(server, dialect="jina")
        found = scored(one, pairs)
        requests = [request[:2] for request in server.requests]
        assert requests == [("/v1/rerank", body)]
    expected = [-0.05, -0.12, 0.41]
    assert found.tolist() == pytest.approx(expected)


def call_of_llama_cpp(name: str) -> dict[str, Any]:
    """A recorded re-ranking by its name."""
    return next(call for call in recorded_of_llama_cpp("rerank") if call["name"] == name)


def test_the_rerank_api_of_vllm_and_llama_cpp_as_recorded() -> None:
    """vLLM returns raw logits with our instruction; llama.cpp returns probabilities of yes."""
    raw = exchange("rerank, raw logits")
    ours = call_of_llama_cpp("rerank")
    for call in (raw, ours):
        request = call["request"]
        response = call["response"]
        expected = {row["index"]: row["relevance_score"] for row in response["results"]}
        pairs = pairs_with(request["query"], request["documents"])
        rule = replying(call["status"], response)
        with ScoreServer(rule) as server:
            one = stage(server, dialect="rerank", instruction=request["instruction"])
            scores = scored(one, pairs)
            ((path, body, _),) = server.requests
        expected_scores = in_order(expected, len(pairs))
        assert np.allclose(scores, expected_scores, atol=1e-6)
        assert path == "/v1/rerank"
        assert body["model"] == "rr"
        for name, value in request.items():
            assert name == "model" or body[name] == value
    # An address with /v1, as language models have it, is the same server.
    pairs = pairs_with("c", raw["request"]["documents"])
    with ScoreServer(replying(200, raw["response"])) as server:
        one = Http(
            url=f"{server.url}/v1",
            model="rr",
            dialect="rerank",
            instruction=TOLD,
        )
        scored(one, pairs)
        assert [path for path, *_ in server.requests] == ["/v1/rerank"]


def test_a_document_too_long_for_llama_cpp_is_halved() -> None:
    name = "one document too long: the whole request fails"
    refusal = call_of_llama_cpp(name)
    texts = refusal["request"]["documents"]
    long = max(map(len, texts))

    def limited(path: str, body: Body) -> Reply:
        documents = body["documents"]
        longest = max(map(len, documents))
        if longest > long // 2:
            return refusal["status"], refusal["response"], {}
        rows = [{"index": n, "relevance_score": 0.5} for n in range(len(documents))]
        return 200, {"results": rows}, {}

    pairs = pairs_with("c", texts)
    with ScoreServer(limited) as server:
        one = stage(server, dialect="rerank")
        scores = scored(one, pairs)
        assert scores.tolist() == [0.5, 0.5]


def test_the_log_odds_of_llama_cpp_ask_for_one_document_at_a_time() -> None:
    probabilities: dict[str, list[dict[str, Any]]] = {
        "good": [
            {"token": "yes", "prob": 0.75},
            {"token": "no", "prob": 0.25},
        ],
        "sure": [
            {"token": "yes", "prob": 1.0},
            {"token": "no", "prob": 0.0},
        ],
        "half": [
            {"token": "yes", "prob": 1.0},
        ],
    }

    def reply(path: str, body: Body) -> Reply:
        _, _, document = body["prompt"].partition("<Document>: ")
        word, _, _ = document.partition("<")
        top = {"top_probs": probabilities[word]}
        return 200, {"completion_probabilities": [top]}, {}

    pairs = pairs_with("claim", probabilities)
    with ScoreServer(reply) as server:
        one = stage(server, dialect="llama_yes_no", instruction="released")
        scores = scored(one, pairs)
        assert {path for path, *_ in server.requests} == {"/completion"}
        prompt = YesNo().prompt(Pair("claim", "good"))
        prompts_asked = [body["prompt"] for body in server.bodies]
        assert "".join(prompt) in prompts_asked
    assert scores[0] == pytest.approx(math.log(3), abs=1e-6)
    assert np.isfinite(scores[1])
    assert scores[1] > 80
    assert np.isnan(scores[2])
    for odd in ({}, {"completion_probabilities": []}, []):
        with ScoreServer(replying(200, odd)) as server:
            with refused(UserError, "llama_yes_no"):
                applied(stage(server, dialect="llama_yes_no"), SOURCES)
