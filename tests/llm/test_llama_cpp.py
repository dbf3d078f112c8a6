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
from claim2source.llm.work import Answer
from claim2source.text.prompts import Message
from tests.llm_server import Chat, LLMServer, Reply, llama
from tests.shared_data import REPOSITORY

Start = Callable[..., LLMServer]
FOLDER = REPOSITORY / "tests" / "data" / "llama"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
MESSAGES = (Message("user", "Masks help."),)


@cache
def recorded(name: str = "chat") -> list[dict[str, Any]]:
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    exchanges: list[dict[str, Any]] = json.loads(text)["exchanges"]
    return exchanges


def exchange(name: str) -> dict[str, Any]:
    return next(call for call in recorded() if call["name"] == name)


def comparable(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True)


def replayed(chat: Chat) -> Reply:
    """Reply as llama.cpp did to the same request; 418 to one that is not recorded."""
    for call in recorded():
        if call["request"] is not None and comparable(call["request"]) == comparable(chat.body):
            body = json.dumps(call["response"]).encode()
            return Reply(status=call["status"], body=body)
    return Reply("not recorded", status=418)


def ask(server: LLMServer, name: str, **options: Any) -> Answer:
    """Ask as a recorded request does."""
    body = exchange(name)["request"]
    messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
    request = Request("r", messages, max_tokens=body["max_tokens"], **options)
    (answer,) = LLM(LLMConfig(model="tiny", url=server.url)).answer([request])
    assert comparable(server.bodies[0]) == comparable(body)
    return answer


def test_recorded_exchanges_of_a_real_llama_cpp(llm_server: Start) -> None:
    def server() -> LLMServer:
        return llm_server(replayed, model="tiny", dialect="llama.cpp", context=10**6)

    # The second try is sampled, which was not recorded.
    for name in ("plain", "cut off by max_tokens"):
        answer = ask(server(), name)
        response = exchange(name)["response"]
        assert answer.raw == response["choices"][0]["message"]["content"]
        assert answer.usage.prompt == response["usage"]["prompt_tokens"]
    # Cached tokens are part of the prompt's count.
    again = exchange("the same again, from its cache")["response"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["usage"]["prompt_tokens"] == answer.usage.prompt

    letters = tuple("ABCD")
    answer = ask(server(), "choice by grammar, with logprobs", choices=letters, logprobs=20)
    assert answer.failure is None and answer.text in letters
    (token,) = answer.logprobs
    assert token.text == answer.text and len(token.top) == 20
    ignored = exchange("vLLM's choice is ignored, status 200")["response"]["choices"][0]
    assert ignored["message"]["content"] not in letters

    answer = ask(server(), "prompt too long")
    assert answer.failure is not None and "context size" in answer.failure
    # Schemas and numbers of tokens do not cause a second try that cannot succeed.
    for name in ("bad schema", "bad grammar", "no messages", "prompt too long"):
        assert exchange(name)["status"] == 400


def test_a_reply_that_llama_cpp_cannot_read_is_parsed_and_asked_for_once(
    llm_server: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers 500, but it is not busy: the same request would fail again."""
    call = exchange("response_format json_schema")
    assert (call["status"], call["response"]["error"]["message"]) == (500, llama.SPOILT)

    def reply(chat: Chat) -> str:
        if chat.user == "spoilt" and chat.schema is not None:
            return '{"a": "\ufffd'
        return '{"a": "good"}'

    server = llm_server(reply, dialect="llama.cpp")
    config = LLMConfig(model="m", url=server.url)
    requests = []
    for name in ("spoilt", "first", "second"):
        requests.append(Request(name, (Message("user", name),), schema=SCHEMA))
    with caplog.at_level(logging.WARNING):
        answers = LLM(config).answer(requests)
    assert [answer.data for answer in answers] == [{"a": "good"}] * 3
    assert not caplog.records, "the schema is not given up for others"
    forms = [(body["messages"][-1]["content"], "response_format" in body) for body in server.bodies]
    expected = [("first", True), ("second", True), ("spoilt", False), ("spoilt", True)]
    assert sorted(forms) == expected


def test_choices_are_a_grammar_and_no_request_waits_in_its_queue(llm_server: Start) -> None:
    choices = ("A", 'say "B"\\', "größer")
    for slots in (1, 3):
        server = llm_server(
            lambda chat: chat.choices[-1], dialect="llama.cpp", slots=slots, delay=0.02
        )
        llm = LLM(LLMConfig(model="m", url=server.url))
        for start in (0, 10):
            requests = []
            for number in range(start, start + 10):
                message = Message("user", str(number))
                requests.append(Request(str(number), (message,), choices=choices, max_tokens=1))
            answers = llm.answer(requests)
            assert [answer.text for answer in answers] == ["größer"] * 10
        assert server.most_under_way == slots
        assert not any("structured_outputs" in body for body in server.bodies)
    # Of vLLM nothing is known, and nothing changes.
    server = llm_server(lambda chat: chat.choices[-1])
    (answer,) = LLM(LLMConfig(model="m", url=server.url)).answer(
        [Request("0", MESSAGES, choices=choices)]
    )
    assert answer.text == "größer" and "grammar" not in server.bodies[0]


def test_the_fake_server_speaks_as_the_recorded_one(llm_server: Start) -> None:
    """The same keys in replies, lists and errors, at every level."""
    server = llm_server(dialect="llama.cpp", model="tiny", context=512)
    checked = 0
    for call in recorded():
        is_chat = call["path"] == "/v1/chat/completions"
        if call["name"] in ("health", "no messages") or not (
            is_chat or call["path"] == "/v1/models"
        ):
            continue
        data = None if call["request"] is None else json.dumps(call["request"]).encode()
        url = server.url.removesuffix("/v1") + call["path"]
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data)) as reply:
                status, response = reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            status, response = error.code, json.load(error)
        if call["status"] == 500:
            continue  # a rule's reply has bytes that are not UTF-8, or not
        assert status == call["status"], call["name"]
        if status == 200 and is_chat:
            assert keys(response) == keys(call["response"]), call["name"]
            assert keys(response["usage"]) == keys(call["response"]["usage"])
            assert keys(response["timings"]) == keys(call["response"]["timings"])
        elif status != 200:
            assert keys(response["error"]) == keys(call["response"]["error"])
            assert response["error"]["type"] == call["response"]["error"]["type"]
        else:
            (model,) = call["response"]["data"]
            assert keys(response["data"][0]) <= keys(model)
            assert response["data"][0]["owned_by"] == model["owned_by"]
        checked += 1
    assert checked >= 9


def keys(value: Mapping[str, Any]) -> set[str]:
    return set(value)


@pytest.mark.parametrize("name", ["translate", "select"])
def test_recorded_replies_of_a_small_model(name: str, llm_server: Start) -> None:
    call = next(call for call in recorded("real") if call["name"] == name)
    body = call["request"]
    reply = Reply(body=json.dumps(call["response"]).encode())
    server = llm_server(lambda chat: reply, model=body["model"], dialect="llama.cpp")
    messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
    form = body.get("response_format")
    schema = None if form is None else form["json_schema"]["schema"]
    request = Request("0", messages, schema=schema, max_tokens=body["max_tokens"])
    (answer,) = LLM(LLMConfig(model=body["model"], url=server.url)).answer([request])
    assert comparable(server.bodies[0]) == comparable(body)
    usage = call["response"]["usage"]
    counted = usage["prompt_tokens"], usage["completion_tokens"]
    assert (answer.usage.prompt, answer.usage.completion) == counted
    assert call["seconds"] > 0 and "timings" in call["response"]
    if schema is None:
        # It repeats the prompt instead of translating: a failure that is requested once more.
        assert answer.failure is not None and len(server.bodies) == 2
        assert answer.raw == call["response"]["choices"][0]["message"]["content"]
    else:
        assert answer.failure is None and answer.data is not None
        assert answer.data["selected_paper"] == 2
