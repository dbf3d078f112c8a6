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

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.io.store import Store
from claim2source.stages.http import Http
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import DETAILED, RELEASED
from tests.stages.score_server import ScoreServer, replaying, shuffled
from tests.stages.test_cross_encoder import scored
from tests.stages.test_yes_no import TOLD, exchange, recorded, recorded_pairs

RAW = [-5.75726842880249, -5.851341247558594, -6.525670528411865]
Reply = tuple[int, Any, Mapping[str, str]]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits; how long it would have been is kept."""
    asked: list[float] = []
    monkeypatch.setattr("claim2source.stages.http.time.sleep", asked.append)
    return asked


def stage(server: ScoreServer, **settings: Any) -> Http:
    return Http(**{"url": server.url, "model": "rr", "instruction": TOLD} | settings)


def by_length(path: str, body: dict[str, Any]) -> Reply:
    """A rule: a document's raw score is minus its length."""
    data = [{"index": i, "score": -float(len(t))} for i, t in enumerate(body["documents"])]
    return 200, {"data": data}, {}


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("score, raw logits", {}),
        ("rerank, raw logits", {"dialect": "vllm_rerank"}),
        ("score, max_tokens_per_doc", {"max_tokens_per_doc": 10}),
        ("empty document", {}),
    ],
)
def test_recorded_requests_are_sent_to_the_letter(
    name: str, settings: dict[str, Any], mix: bool
) -> None:
    one = exchange(name)
    asked = one["request"]
    claim = asked.get("queries") or asked["query"]
    results = one["response"].get("data") or one["response"]["results"]
    expected = {r["index"]: r.get("score", r.get("relevance_score")) for r in results}
    with ScoreServer(replaying(recorded()["exchanges"], mix=mix)) as server:
        found = scored(stage(server, **settings), [Pair(claim, d) for d in asked["documents"]])
        assert len(server.requests) == 1
    assert np.allclose(found, [expected[i] for i in range(len(found))], atol=1e-5)


@pytest.mark.parametrize("mix", [False, True])
def test_every_recorded_reply_is_read_by_its_index(mix: bool) -> None:
    """Also replies to requests that we would not make: each is given to a request of ours."""
    read = 0
    for one in recorded()["exchanges"]:
        if one["status"] != 200 or "/score" not in one["path"] and "/rerank" not in one["path"]:
            continue
        reply = shuffled(one["response"]) if mix else one["response"]
        dialect = "vllm_score" if "data" in one["response"] else "vllm_rerank"
        results = one["response"].get("data") or one["response"]["results"]
        expected = {r["index"]: r.get("score", r.get("relevance_score")) for r in results}
        activated = all(0 <= score <= 1 for score in expected.values())
        if activated:
            expected = {i: math.log(p / (1 - p)) for i, p in expected.items()}
        with ScoreServer(lambda path, body, reply=reply: (200, reply, {})) as server:
            pairs = recorded_pairs()[: max(expected) + 1]
            found = scored(stage(server, dialect=dialect), pairs)
            # Within 0 to 1 it is asked once more, without the flag: this server ignores that.
            assert len(server.requests) == 1 + activated
        assert np.allclose(found, [expected[i] for i in range(len(pairs))], atol=1e-5), one["name"]
        read += 1
    assert read == 15


def test_a_server_without_raw_logits_gives_the_same_scores() -> None:
    """Recorded with the default activation; and raw ones that happen to lie within 0 to 1."""

    def deaf(path: str, body: dict[str, Any]) -> Reply:
        body.pop("use_activation", None)
        return replaying(recorded()["exchanges"])(path, body)

    with ScoreServer(deaf) as server:
        assert np.allclose(scored(stage(server), recorded_pairs()), RAW, atol=1e-4)

    def small(path: str, body: dict[str, Any]) -> Reply:
        raw = [0.25, 0.5, 1.0]
        scores = (
            raw if body.get("use_activation") is False else [1 / (1 + math.exp(-s)) for s in raw]
        )
        return 200, {"data": [{"index": i, "score": s} for i, s in enumerate(scores)]}, {}

    with ScoreServer(small) as server:
        assert scored(stage(server), recorded_pairs()).tolist() == [0.25, 0.5, 1.0]
        found = scored(stage(server, scale="probability"), recorded_pairs())
        assert found.tolist()[:2] == pytest.approx([math.log(1 / 3), 0]) and found[2] > 10
        assert len(server.requests) == 3


def test_the_instruction_is_always_sent_and_prompts_are_never_cut_by_the_server() -> None:
    with ScoreServer(by_length) as server:
        for settings in ({}, {"instruction": "detailed"}, {"max_tokens_per_doc": 9}):
            scored(Http(**{"url": server.url, "model": "m"} | settings), [Pair("c", "abc")])
        told = [body["instruction"] for body in server.bodies]
        assert told == [RELEASED, DETAILED, RELEASED]
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
        found = scored(stage(server), pairs)
        assert found.tolist() == [-len(texts[0]), -(long // 4), -40, -2]
        # A tokenizer of one's own: nothing is refused.
        before = len(server.requests)
        model = str(Path(__file__))
        with pytest.raises(UserError, match="tokenizer"):
            scored(stage(server, tokenizer=model, max_tokens_per_doc=9), pairs)
        assert len(server.requests) == before


def test_a_tokenizer_here_cuts_documents(tiny_folder: Path) -> None:
    with ScoreServer(by_length) as server:
        settings = {"tokenizer": str(tiny_folder), "max_tokens_per_doc": 3}
        scored(stage(server, **settings), [Pair("c", "a claim  works b c"), Pair("c", "a b")])
        assert server.bodies[0]["documents"] == ["a claim  works", "a b"]
        assert "max_tokens_per_doc" not in server.bodies[0]


def applied(
    one: Http, sources: list[Source], store: Store | None = None, claims: int = 1
) -> Result:
    run = Run.from_lists(
        {str(i): [(s.id, -float(n)) for n, s in enumerate(sources)] for i in range(claims)}
    )
    asked = [Claim(str(i), f"claim {i}") for i in range(claims)]
    return one.with_runtime(store, None).apply(asked, sources, run)


SOURCES = [Source(str(i), abstract="x" * (i + 1)) for i in range(10)]


def test_what_fails_is_asked_alone_and_counted(waits: list[float]) -> None:
    bad = SOURCES[3].abstract

    def faulty(path: str, body: dict[str, Any]) -> Reply:
        if any(text.endswith(f" {bad}") or text == bad for text in body["documents"]):
            return 500, {"error": {"message": "CUDA error"}}, {}
        return by_length(path, body)

    with ScoreServer(faulty) as server:
        found = applied(stage(server, retries=2, sources="title_abstract"), SOURCES)
        assert found.failure_counts() == {"status 500: CUDA error": 1}
        # By raw score, the shortest first; the failed one keeps its rank.
        assert found.sources("0") == [s.id for s in SOURCES]
        alone = Counter(len(body["documents"]) for body in server.bodies)
        assert alone[10] == 3 and alone[1] <= 4 and len(waits) == 2


def test_results_that_a_reply_lacks_are_asked_for_alone() -> None:
    def lacking(path: str, body: dict[str, Any]) -> Reply:
        status, reply, headers = by_length(path, body)
        if len(body["documents"]) > 1:
            reply["data"] = [*reply["data"][1:], {"index": 99, "score": 1.0}]
            reply["data"][0]["score"] = None
        return status, reply, headers

    with ScoreServer(lacking) as server:
        assert scored(stage(server), [Pair("c", "a" * n) for n in (1, 2, 3)]).tolist() == [
            -1,
            -2,
            -3,
        ]


def test_a_busy_server_is_asked_again_when_it_says(waits: list[float]) -> None:
    replies = iter([(429, {}, {"retry-after": "7"}), (503, {}, {})])

    def busy(path: str, body: dict[str, Any]) -> Reply:
        return next(replies, None) or by_length(path, body)

    with ScoreServer(busy) as server:
        assert scored(stage(server), [Pair("c", "ab")]).tolist() == [-2]
        assert len(server.requests) == 3 and 7 <= waits[0] < 9 and waits[1] <= 2


def test_a_server_that_cannot_serve_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = exchange("unknown model")
    with ScoreServer(lambda *_: (unknown["status"], unknown["response"], {})) as server:
        with pytest.raises(UserError, match="The model `nope` does not exist"):
            applied(stage(server, model="nope"), SOURCES, claims=5)
        assert len(server.requests) == 1
    refusal = exchange("TEI's shape is refused")
    with ScoreServer(lambda *_: (refusal["status"], refusal["response"], {})) as server:
        with pytest.raises(UserError, match="Field required"):
            applied(stage(server, dialect="tei"), SOURCES)
        assert len(server.requests) == 1
    with pytest.raises(UserError, match="cannot be reached"):
        applied(Http(url=server.url, model="m", retries=1), SOURCES)
    monkeypatch.setenv("RERANK_API_KEY", "sk-secret-123")
    said = {"error": "no such key sk-secret-123"}
    with caplog.at_level(logging.DEBUG), ScoreServer(lambda *_: (401, said, {})) as server:
        with pytest.raises(UserError, match=r"RERANK_API_KEY is refused") as caught:
            applied(stage(server), SOURCES)
        (headers,) = [headers for *_, headers in server.requests]
        assert headers["Authorization"] == "Bearer sk-secret-123"
    assert "sk-secret" not in str(caught.value) + caplog.text


LASTING: list[tuple[int, Any, str]] = [
    (501, {"error": {"message": "not built for scores"}}, "not built for scores"),
    (429, {"error": {"message": "Pay first", "code": "insufficient_quota"}}, "Pay first"),
    (200, {"error": {"message": "upstream said no"}}, "upstream said no"),
    (200, {"results": [{"index": 0, "relevance_score": 1.0}]}, "relevance_score"),
    (200, [{"index": 0, "score": 1.0}], "vllm_score.*score"),
    (200, {"data": [{"index": 0, "score": "high"}]}, "high"),
    (200, {"data": [{"index": 0, "score": True}]}, "score"),
    (200, {"data": [{"index": False, "score": 1.0}]}, "score"),
]


@pytest.mark.parametrize(("status", "said", "words"), LASTING)
def test_what_cannot_succeed_is_asked_once_and_the_words_are_shown(
    status: int, said: Any, words: str, waits: list[float]
) -> None:
    with ScoreServer(lambda *_: (status, said, {})) as server:
        with pytest.raises(UserError, match=words):
            applied(stage(server), SOURCES, claims=3)
        assert len(server.requests) == 1 and not waits

    def later(path: str, body: dict[str, Any]) -> Reply:
        return by_length(path, body) if body["queries"] == "claim 0" else (status, said, {})

    with ScoreServer(later) as server:
        one = stage(server, concurrency=1)
        if status == 429:
            with pytest.raises(UserError, match=words):
                applied(one, SOURCES, claims=2)
        else:
            found = applied(one, SOURCES, claims=2)
            assert sum(found.failure_counts().values()) == 10
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_text_that_is_too_large_is_halved_whatever_the_status(
    status: int, waits: list[float]
) -> None:
    def limited(path: str, body: dict[str, Any]) -> Reply:
        if max(map(len, body["documents"])) > 50:
            why = "input is too large to process. increase the physical batch size"
            return status, {"error": {"code": status, "message": why}}, {}
        return by_length(path, body)

    with ScoreServer(limited) as server:
        assert scored(stage(server), [Pair("c", "a" * 160), Pair("c", "bb")]).tolist() == [-40, -2]
        assert len(server.requests) == 5 and not waits


def test_too_many_texts_are_halved_and_a_score_beyond_float32_is_none(waits: list[float]) -> None:
    def limited(path: str, body: dict[str, Any]) -> Reply:
        texts = body["texts"]
        if len(texts) > 2:
            why = f"batch size {len(texts)} > maximum allowed batch size 2"
            return 422, {"error": why, "error_type": "Validation"}, {}
        scores = [1e39 if text == "aaaa" else -float(len(text)) for text in texts]
        return 200, [{"index": i, "score": score} for i, score in enumerate(scores)], {}

    with ScoreServer(limited) as server:
        found = scored(stage(server, dialect="tei"), [Pair("c", "a" * n) for n in (1, 2, 3, 4)])
        assert found[:3].tolist() == [-1, -2, -3] and math.isnan(found[3]) and not waits


def test_replies_are_bounded_and_redirects_to_another_origin_refused() -> None:
    """By the client of language models, whose tests say more of both."""
    to = {"Location": "http://127.0.0.2:1/score?secret=1"}
    with ScoreServer(lambda *_: (307, {}, to)) as server:
        with pytest.raises(UserError, match="redirects to http://127.0.0.2") as error:
            applied(stage(server), SOURCES)
        assert "secret" not in str(error.value)
    large = {"data": [], "x": " " * 2**23}
    with ScoreServer(lambda *_: (200, large, {})) as server:
        with pytest.raises(UserError, match="more than 8 MiB"):
            applied(stage(server), SOURCES)
        assert len(server.requests) == 1


def test_control_tokens_reach_no_servers_template() -> None:
    with ScoreServer(by_length) as server:
        scored(stage(server), [Pair("a <|im_end|> b", "<tool_call>x</s> [INST]")])
        (body,) = server.bodies
        assert body["queries"] == "a < |im_end| > b"
        assert body["documents"] == ["< tool_call>x< /s> [ INST]"]


def test_scores_are_kept_until_the_server_is_gone(tmp_path: Path) -> None:
    """Many claims at once; the second run asks only for what the first did not get."""
    store, asked = Store(tmp_path), 0

    def dying(path: str, body: dict[str, Any]) -> Reply:
        nonlocal asked
        asked += 1
        return by_length(path, body) if asked <= 7 else (401, {"error": "gone"}, {})

    with ScoreServer(dying) as server:
        url = server.url
        first = applied(stage(server, documents=5, concurrency=3), SOURCES, store, claims=6)
        # Refused for good after the first: counted, not stored.
        assert sum(first.failure_counts().values()) == 25
        # A refused key is refused for parts of a request as well: they are not tried.
        assert len(server.bodies) == 12
        asked = -(10**6)
        again = applied(Http(url=url, model="rr", instruction=TOLD), SOURCES, store, claims=6)
        assert again.cost.reused == 35 and not again.failures
        assert sum(len(body["documents"]) for body in server.bodies[12:]) == 25


# Not recorded: written after the documentation of each server.
DOCUMENTED: dict[str, tuple[dict[str, Any], Any]] = {
    # jina.ai/reranker: results sorted by relevance, scores of a cosine's kind.
    "jina": (
        {
            "model": "rr",
            "query": "c",
            "documents": ["a", "b", "d"],
            "top_n": 3,
            "return_documents": False,
        },
        {
            "model": "rr",
            "results": [
                {"index": 2, "relevance_score": 0.41},
                {"index": 0, "relevance_score": -0.05},
                {"index": 1, "relevance_score": -0.12},
            ],
        },
    ),
    # huggingface.github.io/text-embeddings-inference: a bare list.
    "tei": (
        {"query": "c", "texts": ["a", "b", "d"], "truncate": False, "raw_scores": True},
        [{"index": 2, "score": 0.41}, {"index": 0, "score": -0.05}, {"index": 1, "score": -0.12}],
    ),
    # docs.sglang.ai, rerank models: a bare list; `instruct` for Qwen3-Reranker.
    "sglang": (
        {
            "model": "rr",
            "query": "c",
            "documents": ["a", "b", "d"],
            "instruct": TOLD,
            "return_documents": False,
        },
        [
            {"score": 0.41, "document": "d", "index": 2},
            {"score": -0.05, "document": "a", "index": 0},
            {"score": -0.12, "document": "b", "index": 1},
        ],
    ),
}


@pytest.mark.parametrize("dialect", DOCUMENTED)
def test_documented_dialects(dialect: str) -> None:
    body, reply = DOCUMENTED[dialect]
    paths = {"jina": "/v1/rerank", "tei": "/rerank", "sglang": "/v1/rerank"}
    for mix in (False, True):
        given = shuffled(reply) if mix else reply
        with ScoreServer(lambda path, asked, given=given: (200, given, {})) as server:
            found = scored(stage(server, dialect=dialect), [Pair("c", t) for t in "abd"])
            assert [one[:2] for one in server.requests] == [(paths[dialect], body)]
        assert found.tolist() == pytest.approx([-0.05, -0.12, 0.41])


def test_one_kind_of_score_holds_for_a_whole_run() -> None:
    """Within 0 to 1 at first, outside later: no two claims are scored by different rules."""

    def changing(path: str, body: dict[str, Any]) -> Reply:
        score = 0.5 if body["query"] == "claim 0" else -2.0
        texts = body["documents"]
        return (
            200,
            {"results": [{"index": i, "relevance_score": score} for i in range(len(texts))]},
            {},
        )

    with ScoreServer(changing) as server:
        with pytest.raises(UserError, match="set scale: raw"):
            applied(stage(server, dialect="jina"), SOURCES, claims=2)
        found = applied(stage(server, dialect="jina", scale="raw"), SOURCES, claims=2)
        assert round(found.scored("1")["0"], 4) == -2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "localhost"}, "url"),
        ({"url": "http://u:p@h"}, "without user"),
        ({"url": "http://localhost:99999"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://local\nhost"}, "url"),
        ({"url": "http://local host"}, "url"),
        ({"model": ""}, "model"),
        ({"dialect": "jina", "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"tokenizer": "t"}, "max_tokens_per_doc"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Http(**{"model": "m"} | settings)
    assert "u:p" not in str(caught.value)
