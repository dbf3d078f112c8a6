"""What a further request after a bad reply is like."""

from __future__ import annotations

import json

from claim2source.llm import LLM, Answer, Request
from claim2source.llm.log import logged_answers
from claim2source.text.prompts import RawPrompt, read_prompt
from tests.llm.test_client import Start, config_of
from tests.llm_server import Chat


def test_a_bad_reply_is_requested_again_with_its_task_below_the_data(llm_server: Start) -> None:
    """A small model continues the system's message; the key stays the first one's."""
    prompt = read_prompt("translate_generic")
    request = Request.of(prompt, "0", {"text": "Masken helfen.", "language": "German"})
    reminder = request.reminder
    assert reminder is not None

    def reply(chat: Chat) -> str:
        # The model repeats what it reads of its output above the data, whatever stands below.
        # Or the last paragraph of the system's message.
        paragraphs = chat.system.split("\n\n")
        above = [part for part in paragraphs if part.startswith("Output: ")]
        if above:
            return above[0].removeprefix("Output: ")
        if paragraphs[-1].startswith("What stands between"):
            return paragraphs[-1]
        assert any(part.startswith("What stands between") for part in paragraphs)
        return "Masks help." if chat.user.endswith(reminder.text) else "What is the task?"

    server = llm_server(reply)
    llm = LLM(config_of(server))
    with logged_answers() as log:
        (answer,) = llm.answer([request])
    assert answer.text == "Masks help."
    assert answer.failure is None
    assert server.requests == 2
    assert "from German to English" in reminder.text
    assert log.answers == [answer]
    assert log.usage == llm.usage
    assert log.usage.prompt > answer.usage.prompt
    # A prompt to the letter has nothing added.
    raw = RawPrompt("1", "", "", {"post": ""}, user="Tweet: {post}")
    assert Request.of(raw, "0", {"post": "x"}).reminder is None
    assert llm.answer([request])[0].stored
    assert server.requests == 2


def test_a_text_that_is_too_short_is_requested_in_its_parts(llm_server: Start) -> None:
    prompt = read_prompt("c3")
    request = Request.of(prompt, "0", {"post": "Masks help.", "language": "English"})
    assert len(prompt.parts) == 4
    parts = {part: f"The {part}. " for part in prompt.parts}
    server = llm_server(lambda chat: json.dumps(parts) if chat.schema else "Short.")

    def check(request: Request, answer: Answer) -> str | None:
        return "too short" if answer.text == "Short." else None

    (answer,) = LLM(config_of(server)).answer([request], check)
    assert answer.failure is None
    assert server.requests == 2
    assert answer.text == " ".join(text.strip() for text in parts.values())
    first, second = server.bodies
    assert "response_format" not in first
    schema = second["response_format"]["json_schema"]["schema"]
    properties = schema["properties"]
    assert list(properties) == schema["required"]
    assert list(properties) == list(prompt.parts)
    for part in properties.values():
        assert 100 < part["minLength"] < part["maxLength"]
    # Whatever server does not enforce the form: a text is a text.
    plain = llm_server(lambda chat: "Short." if len(plain.bodies) < 2 else "It is longer.")
    (answer,) = LLM(config_of(plain)).answer([request], check)
    assert answer.text == "It is longer."
    assert answer.failure is None


def test_a_refused_translation_is_requested_as_an_object(llm_server: Start) -> None:
    def reply(chat: Chat) -> str:
        if server.requests == 1:
            return "I'm sorry, but I can't assist."
        return '{"translation": "Masks help."}'

    server = llm_server(reply)
    values = {"text": "Masken helfen.", "language": "German"}
    request = Request.of(read_prompt("translate_generic"), "0", values)

    def check(request: Request, answer: Answer) -> str | None:
        return None if answer.text == "Masks help." else "a refusal"

    (answer,) = LLM(config_of(server)).answer([request], check)
    assert answer.failure is None
    first, second = server.bodies
    assert "response_format" not in first
    assert second["response_format"]["json_schema"]["schema"]["required"] == ["translation"]
