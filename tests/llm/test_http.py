"""Replies are bounded and redirects refused; a request that cannot succeed is sent only once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import UserError
from claim2source.llm import LLM, Answer, LLMConfig
from claim2source.llm.answers import AnswerStore
from claim2source.llm.server import MOST_BYTES, refusal
from tests.llm.test_client import config_of, requests_for
from tests.llm_server import Chat, LLMServer, Reply
from tests.refusals import refused

Start = Callable[..., LLMServer]


def ask(server: LLMServer, *texts: str, **options: Any) -> list[Answer]:
    config: LLMConfig = config_of(server, concurrency=1, **options)
    requests = requests_for(*texts or ("a",))
    return LLM(config).answer(requests)


def completion(content: object = "Masks work", **options: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"message": message, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], **options}).encode()


@pytest.mark.parametrize(
    ("status", "error", "field"),
    [
        (
            501,
            {"message": "chat is not built in"},
            "chat is not built in",
        ),
        (
            404,
            {"message": "no such path here"},
            "no such path here",
        ),
        (
            429,
            {"message": "You exceeded it", "code": "insufficient_quota"},
            "You exceeded it",
        ),
    ],
)
def test_where_no_request_can_succeed_one_is_sent_and_the_servers_words_are_shown(
    status: int, error: dict[str, str], field: str, llm_server: Start
) -> None:
    body = json.dumps({"error": error}).encode()
    server = llm_server(lambda chat: Reply(status=status, body=body))
    with refused(UserError, field):
        ask(server, "a", "b", "c")
    assert server.requests == 1


@pytest.mark.parametrize(
    ("status", "body", "field"),
    [
        (
            500,
            {"error": {"message": "input is too large to process"}},
            "too large",
        ),
        (
            429,
            {"error": {"message": "Request too large for m: Limit 9, Requested 12"}},
            "Limit 9",
        ),
        (
            200,
            {"error": "model crashed"},
            "model crashed",
        ),
        (
            200,
            {"message": {"content": "Masks work"}, "done": True},
            '"done": true',
        ),
        (
            200,
            {"choices": [{"text": "Masks work"}]},
            '"text"',
        ),
        (
            200,
            ["Masks work"],
            "Masks work",
        ),
        (
            200,
            b"<html>Log in first</html>",
            "Log in first",
        ),
        (
            200,
            b'data: {"choices": []}\n\ndata: [DONE]\n',
            "DONE",
        ),
        (
            200,
            b'{"a":' * 10**5,
            '{"a":',
        ),
    ],
)
def test_a_request_that_cannot_succeed_is_not_sent_again(
    status: int, body: object, field: str, llm_server: Start
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    server = llm_server(lambda chat: Reply(status=status, body=content))
    (answer,) = ask(server)
    assert server.requests == 1
    assert answer.text == ""
    assert answer.failure is not None
    assert field in answer.failure
    if (status, body) == (200, ["Masks work"]):  # a server that speaks otherwise is left alone
        texts = map(str, range(50))
        answers = ask(server, *texts)
        assert server.requests == 9
        assert not any(answer.is_asked for answer in answers)


@pytest.mark.parametrize("status", [408, 429, 503])
def test_what_may_pass_is_asked_for_again(status: int, llm_server: Start) -> None:
    def reply(chat: Chat) -> Reply:
        words = "Rate limit reached: 9 tokens per min. You can add a payment method to your billing"
        if chat.before == 0:
            return Reply(words, status=status)
        return Reply("Masks work", status=200)

    server = llm_server(reply)
    (answer,) = ask(server)
    assert answer.text == "Masks work"
    assert server.requests == 2


def test_only_the_servers_status_says_that_means_are_spent() -> None:
    """A post that a refusal repeats ends no run."""
    error = {"message": "bad text: insufficient_quota"}
    echoed = json.dumps({"error": error}).encode()
    assert refusal(429, echoed).is_spent
    assert not refusal(400, echoed).is_spent
    too_long = b'{"detail": "the request took too long"}'
    assert refusal(503, too_long).passes
    unnamed = refusal(400, b'{"detail": [{"loc": ["body"], "msg": "no"}]}')
    assert unnamed.reason.startswith('{"detail')


def test_a_reply_is_bounded(llm_server: Start) -> None:
    def reply(chat: Chat) -> Reply:
        size = MOST_BYTES if "large" in chat.user else 9
        content = " " * size + "Masks work"
        return Reply(body=completion(content))

    server = llm_server(reply)
    began = time.monotonic()
    small, large = ask(server, "small", "large")
    assert small.text == "Masks work"
    assert small.failure is None
    assert large.failure == "no reply: a reply of more than 8 MiB"
    assert large.raw == ""
    assert server.requests == 2
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("packed", ["br", "gzip", "gzip, gzip", "zstd"])
def test_a_packed_reply_is_refused(packed: str, llm_server: Start) -> None:
    """It could unpack to any size, and compression was not requested."""
    headers = {"Content-Encoding": packed}
    server = llm_server(lambda chat: Reply(body=b"x", headers=headers))
    answer = ask(server)[0]
    assert packed in str(answer.failure)


def test_posts_follow_no_redirect(llm_server: Start) -> None:
    target = llm_server()
    url = f"{target.url}/chat/completions?secret=1"
    headers = {"Location": url}
    server = llm_server(lambda chat: Reply(status=307, headers=headers))
    with refused(UserError, server.url, "http://127.0.0.1") as error:
        ask(server)
    assert target.requests == 0
    assert "secret" not in str(error.value)
    assert server.requests == 1


@pytest.mark.parametrize("count", ["Infinity", str(2**63), "-1", '"12"', "true"])
def test_a_reply_with_a_senseless_count_of_tokens_is_no_reply(
    count: str, llm_server: Start
) -> None:
    counts = {"prompt_tokens": 1, "completion_tokens": "?"}
    body = completion(usage=counts).decode()
    server = llm_server(lambda chat: Reply(body=body.replace('"?"', count).encode()))
    (answer,) = ask(server)
    assert answer.failure is not None
    assert answer.failure.startswith("no reply: ")
    assert "usage" in answer.failure
    assert not answer.is_asked
    assert answer.usage.total == 0
    for usage in ('"all"', "[1]"):
        body = completion(usage="?").decode().replace('"?"', usage)
        answer = ask(server)[0]
        assert answer.failure is not None


@pytest.mark.parametrize(
    ("logprob", "is_good"),
    [("-1.5", True), ("-Infinity", True), ("0.001", True)]
    + [(value, False) for value in ("NaN", "Infinity", "0.7", "true", '"-1"', "null")],
)
def test_senseless_probabilities_are_no_reply_and_no_token_spoils_the_store(
    logprob: str, is_good: bool, llm_server: Start, tmp_path: Path
) -> None:
    token = {
        "token": "\ud83d",
        "logprob": "?",
        "top_logprobs": [{"token": "a", "logprob": "?"}],
    }
    choice = {
        "message": {"content": "A"},
        "finish_reason": "stop",
        "logprobs": {"content": [token]},
    }
    body = json.dumps({"choices": [choice]})
    content = body.replace('"?"', logprob).encode()
    server = llm_server(lambda chat: Reply(body=content))
    for _ in range(2):
        with AnswerStore(tmp_path / "a.sqlite") as store:
            llm = LLM(config_of(server), store)
            (answer,) = llm.answer(requests_for("a", logprobs=1))
            is_answered = answer.failure is None
            assert is_answered == is_good
            assert len(store) == is_good
            tokens = [logprob.text for logprob in answer.logprobs]
            assert tokens == (["?"] if is_good else [])
    assert server.requests == (1 if is_good else 2)


def test_a_content_of_parts_is_read_without_its_thoughts(llm_server: Start) -> None:
    parts = [
        {
            "type": "thinking",
            "thinking": [{"type": "text", "text": "Hm"}],
        },
        {"text": "Hm", "thought": True},
        {"type": "text", "text": "Masks "},
        {"type": "text", "text": "work"},
        {"type": "image_url", "image_url": {"url": "x"}},
    ]
    server = llm_server(lambda chat: Reply(body=completion(parts, usage=None)))
    answer = ask(server)[0]
    assert answer.text == "Masks work"

    message = {"content": None, "reasoning_content": "Hm", "reasoning": "Hm"}
    choice = {"message": message, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()
    server = llm_server(lambda chat: Reply(body=body))
    assert ask(server)[0].failure == "empty"
    assert ask(server)[0].text == ""
