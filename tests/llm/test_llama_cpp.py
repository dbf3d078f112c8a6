"""llama.cpp: its recorded exchanges, and the fake server that speaks as they do."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from claim2source.llm import LLM, LLMConfig, Request
from claim2source.llm.client import TRIES
from claim2source.llm.work import Answer
from claim2source.text.prompts import Message
from tests.llm_server import Chat, LLMServer, Reply, llama
from tests.shared_data import REPOSITORY

Start = Callable[..., LLMServer]
FOLDER = REPOSITORY / "tests" / "data" / "llama"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
}
MESSAGES = (Message("user", "Masks help."),)


@cache
def recorded(name: str = "chat") -> list[dict[str, Any]]:
    path = FOLDER / f"{name}.json"
    text = path.read_text(encoding="utf-8")
    exchanges: list[dict[str, Any]] = json.loads(text)["exchanges"]
    return exchanges


def exchange(name: str, file: str = "chat") -> dict[str, Any]:
    return next(call for call in recorded(file) if call["name"] == name)


def comparable(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True)


def replayed(chat: Chat) -> Reply:
    """Reply as llama.cpp did to the same request; 418 to one that is not recorded."""
    asked = comparable(chat.body)
    for call in recorded():
        request = call["request"]
        if request is not None and comparable(request) == asked:
            body = json.dumps(call["response"]).encode()
            return Reply(status=call["status"], body=body)
    return Reply("not recorded", status=418)


def recorded_messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the messages of a recorded request."""
    return tuple(Message(m["role"], m["content"]) for m in body["messages"])


def ask(server: LLMServer, name: str, **options: Any) -> Answer:
    """Ask as a recorded request does."""
    body = exchange(name)["request"]
    request = Request(
        "r",
        recorded_messages(body),
        max_tokens=body["max_tokens"],
        **options,
    )
    config = LLMConfig(model="tiny", url=server.url)
    (answer,) = LLM(config).answer([request])
    assert comparable(server.bodies[0]) == comparable(body)
    return answer


def test_recorded_exchanges_of_a_real_llama_cpp(llm_server: Start) -> None:
    def server() -> LLMServer:
        return llm_server(
            replayed,
            model="tiny",
            dialect="llama.cpp",
            context=10**6,
        )

    # The second try is sampled, which was not recorded.
    for name in ("plain", "cut off by max_tokens"):
        answer = ask(server(), name)
        response = exchange(name)["response"]
        message = response["choices"][0]["message"]
        assert answer.raw == message["content"]
        assert answer.usage.prompt == response["usage"]["prompt_tokens"]
    # Cached tokens are part of the prompt's count.
    again = exchange("the same again, from its cache")["response"]
    usage = again["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert usage["prompt_tokens"] == answer.usage.prompt

    letters = tuple("ABCD")
    answer = ask(
        server(),
        "choice by grammar, with logprobs",
        choices=letters,
        logprobs=20,
    )
    assert answer.failure is None
    assert answer.text in letters
    (token,) = answer.logprobs
    assert token.text == answer.text
    assert len(token.top) == 20
    ignored = exchange("vLLM's choice is ignored, status 200")["response"]
    message = ignored["choices"][0]["message"]
    assert message["content"] not in letters

    answer = ask(server(), "prompt too long")
    assert answer.failure is not None
    assert "context size" in answer.failure
    # Schemas and numbers of tokens do not cause a second try that cannot succeed.
    for name in ("bad schema", "bad grammar", "no messages", "prompt too long"):
        assert exchange(name)["status"] == 400


def test_a_reply_that_llama_cpp_cannot_read_is_parsed_and_asked_for_once(
    llm_server: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers 500, but it is not busy: the same request would fail again."""
    call = exchange("response_format json_schema")
    error = call["response"]["error"]
    assert call["status"] == 500
    assert error["message"] == llama.SPOILT

    def reply(chat: Chat) -> str:
        if chat.user == "spoilt" and chat.schema is not None:
            return '{"a": "\ufffd'
        return '{"a": "good"}'

    server = llm_server(reply, dialect="llama.cpp")
    config = LLMConfig(model="m", url=server.url)
    requests = []
    for name in ("spoilt", "first", "second"):
        message = Message("user", name)
        request = Request(name, (message,), schema=SCHEMA)
        requests.append(request)
    with caplog.at_level(logging.WARNING):
        answers = LLM(config).answer(requests)
    assert [answer.data for answer in answers] == [{"a": "good"}] * 3
    assert not caplog.records, "the schema is not given up for others"

    forms = []
    for body in server.bodies:
        message = body["messages"][-1]
        forms.append((message["content"], "response_format" in body))
    assert sorted(forms) == [
        ("first", True),
        ("second", True),
        ("spoilt", False),
        ("spoilt", True),
    ]


def test_choices_are_a_grammar_and_no_request_waits_in_its_queue(llm_server: Start) -> None:
    choices = ("A", 'say "B"\\', "größer")
    for slots in (1, 3):
        server = llm_server(
            lambda chat: chat.choices[-1],
            dialect="llama.cpp",
            slots=slots,
            delay=0.02,
        )
        config = LLMConfig(model="m", url=server.url)
        llm = LLM(config)
        for start in (0, 10):
            requests = []
            for number in range(start, start + 10):
                message = Message("user", str(number))
                request = Request(
                    str(number),
                    (message,),
                    choices=choices,
                    max_tokens=1,
                )
                requests.append(request)
            answers = llm.answer(requests)
            assert [answer.text for answer in answers] == ["größer"] * 10
        assert server.most_under_way == slots
        assert not any("structured_outputs" in body for body in server.bodies)
    # Of vLLM nothing is known, and nothing changes.
    server = llm_server(lambda chat: chat.choices[-1])
    config = LLMConfig(model="m", url=server.url)
    request = Request("0", MESSAGES, choices=choices)
    (answer,) = LLM(config).answer([request])
    assert answer.text == "größer"
    assert "grammar" not in server.bodies[0]


def sent(url: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """Send a request, and return the status and the values of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_fake_server_speaks_as_the_recorded_one(llm_server: Start) -> None:
    """The same keys in replies, lists and errors, at every level."""
    server = llm_server(dialect="llama.cpp", model="tiny", context=512)
    checked = 0
    for call in recorded():
        name = call["name"]
        path = call["path"]
        is_chat = path == "/v1/chat/completions"
        is_compared = is_chat or path == "/v1/models"
        if name in ("health", "no messages") or not is_compared:
            continue
        url = server.url.removesuffix("/v1") + path
        status, response = sent(url, call["request"])
        if call["status"] == 500:
            continue  # a rule's reply has bytes that are not UTF-8, or not
        assert status == call["status"], name

        expected = call["response"]
        if status == 200 and is_chat:
            assert keys(response) == keys(expected), name
            assert keys(response["usage"]) == keys(expected["usage"])
            assert keys(response["timings"]) == keys(expected["timings"])
        elif status != 200:
            error = response["error"]
            expected_error = expected["error"]
            assert keys(error) == keys(expected_error)
            assert error["type"] == expected_error["type"]
        else:
            first = response["data"][0]
            (model,) = expected["data"]
            assert keys(first) <= keys(model)
            assert first["owned_by"] == model["owned_by"]
        checked += 1
    assert checked >= 9


def keys(value: Mapping[str, Any]) -> set[str]:
    return set(value)


@pytest.mark.parametrize("name", ["translate", "select"])
def test_recorded_replies_of_a_small_model(name: str, llm_server: Start) -> None:
    call = exchange(name, "real")
    body = call["request"]
    response = call["response"]
    reply = Reply(body=json.dumps(response).encode())
    server = llm_server(
        lambda chat: reply,
        model=body["model"],
        dialect="llama.cpp",
    )
    form = body.get("response_format")
    schema = None if form is None else form["json_schema"]["schema"]
    request = Request(
        "0",
        recorded_messages(body),
        schema=schema,
        max_tokens=body["max_tokens"],
    )
    config = LLMConfig(model=body["model"], url=server.url)
    (answer,) = LLM(config).answer([request])
    assert comparable(server.bodies[0]) == comparable(body)
    usage = response["usage"]
    assert answer.usage.prompt == usage["prompt_tokens"]
    assert answer.usage.completion == usage["completion_tokens"]
    assert call["seconds"] > 0
    assert "timings" in response

    if schema is None:
        # It repeats the prompt instead of translating: a failure that is requested again.
        assert answer.failure is not None
        assert len(server.bodies) == TRIES
        message = response["choices"][0]["message"]
        assert answer.raw == message["content"]
    else:
        assert answer.failure is None
        assert answer.data is not None
        assert answer.data["selected_paper"] == 2
