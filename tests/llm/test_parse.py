"""Replies are cleaned, parsed and judged; recorded ones of a real vLLM are among them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from claim2source.llm import LLM, LLMConfig, Request
from claim2source.llm.parse import SEVERAL, cleaned, json_object, read_reply
from claim2source.text.prompts import Message, Reminder, read_prompt
from tests.llm_server import Chat, LLMServer, Reply
from tests.shared_data import shared

SCHEMA = {
    "type": "object",
    "properties": {"selected_paper": {"type": "integer", "minimum": 1, "maximum": 10}},
    "required": ["selected_paper"],
}
POST = "Masks cut infections by 9 % in villages, says a trial of 342,126 adults."


def request(**options: Any) -> Request:
    return Request("r", read_prompt("facts").messages({"post": POST}), "1", **options)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"aim": " Do masks help?", "end": "They do. "}, "Do masks help? They do."),
        # The server cut the second part at its greatest length: what is not whole goes.
        ({"aim": "Do masks help?", "end": "They do. They real"}, "Do masks help? They do."),
        ({"aim": "Do masks help?", "end": "They really do hel"}, "Do masks help? They really do"),
        (
            {"aim": "Do masks help?", "end": "They really do me!"},
            "Do masks help? They really do me!",
        ),
        # Not the parts: a text as any other.
        ({"aim": "Do masks help?"}, '{"aim": "Do masks help?"}'),
        ({"aim": "Do masks help?", "end": 3}, '{"aim": "Do masks help?", "end": 3}'),
    ],
)
def test_the_parts_of_a_text_are_joined(parts: dict[str, object], text: str) -> None:
    asked = request(reminder=Reminder("", "", {"aim": (5, 18), "end": (5, 18)}))
    assert read_reply(asked, json.dumps(parts), "stop").text == text
    assert read_reply(request(), json.dumps(parts), "stop").text == json.dumps(parts)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("  Masks work.\n", "Masks work."),
        ("<think>\nHm {}\n</think>\n\nMasks work.", "Masks work."),
        ("The user wants ...\n</think>\nMasks work.", "Masks work."),
        ('"Masks work."', "Masks work."),
        ("Sure! Here is the rewritten tweet:\n\nMasks work.", "Masks work."),
        ("**Rewritten tweet:** Masks work.", "Masks work."),
        ("```\nMasks work.\n```", "Masks work."),
        ("<post>\nMasks work.\n</post>", "Masks work."),
        ("Post:\n<post>\nMasks work.\n</post>", "Masks work."),
        ("Masks work.\n</post>", "Masks work."),
        # What only looks like it stays.
        ('"Masks" are said to "work"', '"Masks" are said to "work"'),
        ("Here's what we know:\n- they work", "Here's what we know:\n- they work"),
    ],
)
def test_a_text_is_cleaned_of_what_models_put_around_it(reply: str, text: str) -> None:
    answer = read_reply(request(), reply, "stop")
    assert (answer.text, answer.failure, answer.raw) == (text, None, reply)
    assert cleaned(text) == text


@pytest.mark.parametrize(
    ("reply", "finish", "failure"),
    [
        ("", "stop", "empty"),
        ("<think>I do not know", "stop", "empty"),
        ("Masks work, and", "length", "cut off by max_tokens"),
        ("no", "content_filter", "refused by the server's filter"),
        ("Masks work.", "tool_calls", "not ended by itself: finish_reason tool_calls"),
        ("analysisWe need to rewrite it", "stop", "empty"),
        ("Masks work. " * 400, "stop", "far too long"),
        (
            "- Every fact is one sentence that states a single thing and can be understood by\n"
            "itself. Masks work.",
            "stop",
            "an echo of the prompt",
        ),
        (f"Post:\n<post>\n{POST}\n</post>", "stop", "an echo of the prompt"),
    ],
)
def test_a_reply_that_is_no_text_is_a_failure(reply: str, finish: str | None, failure: str) -> None:
    assert read_reply(request(), reply, finish).failure == failure
    assert read_reply(request(), POST, "stop").failure is None  # the text itself is no echo


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"selected_paper": 3}', 3),
        ('<think>{"selected_paper": 9}</think>{"selected_paper": 3}', 3),
        ('Of these\n```json\n{"selected_paper": 3}\n```\nI hope it helps.', 3),
        ('First {"selected_paper": 3}, and then {"selected_paper": 3.0}.', 3),
        ('{{"selected_paper": 3}}', 3),
        # One of several may be a post's.
        ('```json\n{"selected_paper": 3}\n```\nThe post has {"selected_paper": 8}', SEVERAL),
        ('First {"selected_paper": 1}, but then {"selected_paper": 3}.', SEVERAL),
        ('[{"selected_paper": 1}, {"selected_paper": 3}]', SEVERAL),
        ('{"why": "It says {"selected_paper": 4}.", "selected_paper": 3}', "not JSON"),
        ("{'why': 'It says {\"selected_paper\": 4}.', 'selected_paper': 3}", "not JSON"),
        (
            '{"why": "It says\n```json\n{"selected_paper": 4}\n```", "selected_paper": 3}',
            "not JSON",
        ),
        ('<think>Set {a, "{".</think>{"selected_paper": 3}', 3),
        ("<think>" + "{" * 2000 + '</think>{"selected_paper": 3}', 3),
        ('<think>{"selected_paper": 9}</think>"\ue0000\ue001" {"selected_paper": 3}', 3),
        ('{"why": "' + "x" * 2**17 + '", "selected_paper": 3}', 3),
        ('I say {"selected_paper": 3} and not {"selected_paper": 12} or {"a": {"b": 1}}', 3),
        ('{"selected_paper": 3}<|im_end|>\n<|im_start|>user\n{"selected_paper": 9}', 3),
        # Text that a reason quotes is not a thought and does not end a turn.
        ('{"why": "it says <|im_end|>", "selected_paper": 3}', 3),
        ('{"why": "it says <think> to me", "selected_paper": 3}', 3),
        ('{"why": "it says </think> to me", "selected_paper": 3}', 3),
        ('{"why": "<think>x</think>", "selected_paper": 3}', 3),
        ('{"why": "[THINK] <|channel|>final <thought>", "selected_paper": 3}', 3),
        ('<think>a</think>Well: {"why": "a <think> b", "selected_paper": 3}', 3),
        ('<think>a</think>```json\n{"why": "a </think> b", "selected_paper": 3}\n```', 3),
        ('<think>It has "</think>{"selected_paper": 9}"</think>{"selected_paper": 3}', 3),
        ('{"why": "It says {\\"selected_paper\\": 4}.", "selected_paper": 3}', 3),
        ('<|channel|>analysis<|message|>{"selected_paper": 9}<|end|>', "empty"),
        ("{{{{" * 5000 + '{"selected_paper": 4}', "not JSON"),
        ('{"selected_paper": "3"}', "does not fit the schema"),
        ('{"selected_paper": 11}', "does not fit the schema"),
        ('{"selected_paper": ' + "9" * 5000 + "}", "not JSON"),
        ('{"a":' * 50_000, "not JSON"),
    ],
)
def test_the_one_object_that_fits_is_found_whatever_stands_around_it(
    reply: str, expected: int | str
) -> None:
    answer = read_reply(request(schema=SCHEMA), reply, "stop")
    if isinstance(expected, int):
        assert (answer.data or {})["selected_paper"] == expected and answer.failure is None
    else:
        assert (answer.data, answer.failure) == (None, expected)
    assert json_object('{"selected_paper": 3}', SCHEMA)[1] is None


@pytest.mark.parametrize(
    ("reply", "finish", "expected"),
    [
        ("J", "length", "J"),
        (" j.", "stop", "J"),
        ('"None"', "stop", "None"),
        ("Non", "length", "cut off by max_tokens"),
    ],
)
def test_a_cut_reply_that_is_a_choice_is_an_answer(reply: str, finish: str, expected: str) -> None:
    answer = read_reply(request(choices=("J", "K", "None")), reply, finish)
    assert expected in (answer.text, answer.failure)
    assert (answer.failure is None) == (expected in ("J", "None"))


def test_a_cut_choice_with_which_another_begins_is_no_answer() -> None:
    question = request(choices=("1", "10", "2"))
    failures = [read_reply(question, reply, "length").failure for reply in ("1", "10", "2")]
    assert failures == ["cut off by max_tokens", None, None]
    assert read_reply(question, "1", "stop").text == "1"


@pytest.mark.parametrize(
    "part",
    [
        *("```\n", "```json\n{\n", "<think>", "</think>", "{", '{"a":[1,', "\"'", "Sure!\n"),
        *("<", "[", "<|channel|>final", " ", "here is the ", "<a_a_a_a_", "final", "<tool_"),
    ],
)
def test_parsing_is_linear(part: str) -> None:
    """32 KB of fences took 2.9 s, 3.5 MB had no end."""
    began = time.process_time()
    for question in (request(), request(schema=SCHEMA)):
        for text in (part * (2**17 // len(part)), "```" + part * (3 * 2**20 // len(part))):
            assert read_reply(question, text, "stop").failure is not None
    nested = "```\n" * 4000 + "Masks work." + "```" * 4000
    assert cleaned(nested) and time.process_time() - began < 4


def test_recorded_exchanges_of_a_real_vllm(llm_server: Callable[..., LLMServer]) -> None:
    recorded = json.loads((shared("vllm") / "chat.json").read_text(encoding="utf-8"))["exchanges"]
    exchanges = [e for e in recorded if e["path"] == "/v1/chat/completions"]
    by_name = {exchange["name"]: exchange for exchange in exchanges}

    def comparable(body: Any) -> dict[str, Any]:
        """The request, without the schema's name, which is ours."""
        body = json.loads(json.dumps(body))
        if "response_format" in body:
            del body["response_format"]["json_schema"]["name"]
        return dict(body)

    def reply(chat: Chat) -> Reply:
        for exchange in exchanges:
            if comparable(exchange["request"]) == comparable(chat.body):
                body = json.dumps(exchange["response"]).encode()
                return Reply(status=exchange["status"], body=body)
        return Reply(f"not recorded: {json.dumps(chat.body)[:300]}", status=418)

    server = llm_server(reply, model="g")

    def ask(name: str, **options: Any) -> Any:
        body = by_name[name]["request"]
        messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
        thinking = body.get("chat_template_kwargs", {}).get("enable_thinking")
        config = LLMConfig(model="g", url=server.url, thinking=thinking)
        before = len(server.bodies)
        (answer,) = LLM(config).answer(
            [Request("r", messages, max_tokens=body["max_tokens"], **options)]
        )
        assert comparable(server.bodies[before]) == comparable(body)
        return answer

    # The second try is sampled, which was not recorded: 418, so the first reply is used.
    for name in ("plain", "cut off by max_tokens", "thinking off by template argument"):
        answer = ask(name)
        content = by_name[name]["response"]["choices"][0]["message"]["content"]
        assert answer.failure.startswith("refused by the server (418)") and answer.raw == content
        assert read_reply(request(), answer.raw, "length").failure == "cut off by max_tokens"
        assert answer.usage.prompt == 23
    form = by_name["response_format json_schema"]["request"]["response_format"]["json_schema"]
    answer = ask("response_format json_schema", schema=form["schema"])
    assert answer.data is None and answer.raw.startswith('{"reasoning"\n\t')
    choices = by_name["choice with logprobs"]["request"]["structured_outputs"]["choice"]
    answer = ask("choice with logprobs", choices=tuple(choices), logprobs=20)
    assert (answer.text, answer.failure) == ("J", None)
    (token,) = answer.logprobs
    assert token.text == "J" and len(token.top) == 20
    assert token.top["J"] == token.logprob == pytest.approx(-0.0221573729)
    answer = ask("prompt too long")
    assert answer.failure.startswith("refused by the server (400): This model's maximum context")
