"""Thinking is switched by each family's own key; the sent settings and the replies are counted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.files import content_hash
from claim2source.core.run import Thinking
from claim2source.llm import LLM, AnswerStore, LLMConfig
from claim2source.llm.thinking import sent_text, thinking_parts
from claim2source.llm.work import answer_key, count_thinking
from tests.llm.test_client import config_of, requests_for
from tests.llm_server import LLMServer, Reply

Start = Callable[..., LLMServer]
LOCAL = "http://localhost:8000/v1"
OFF, ON = {"type": "disabled"}, {"type": "enabled"}


def template(**keys: object) -> dict[str, object]:
    return {"chat_template_kwargs": keys}


@pytest.mark.parametrize(
    ("model", "url", "off", "on"),
    [
        *(
            (model, LOCAL, template(enable_thinking=False), template(enable_thinking=True))
            for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3.5-27B", "zai-org/GLM-4.6", "m", "mine-v3.1")
        ),
        *(
            (model, LOCAL, template(thinking=False), template(thinking=True))
            for model in (
                *("moonshotai/Kimi-K2.6", "kimi-k2.5", "deepseek-ai/DeepSeek-V3.1"),
                *("deepseek-v3p2", "/models/DeepSeek-V4-Flash", "nvidia/Kimi-K2.6-NVFP4"),
            )
        ),
        *(
            (model, LOCAL, template(enable_thinking=False), template(enable_thinking=True))
            for model in ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-R1")
        ),
        (
            "openai/gpt-oss-120b",
            LOCAL,
            {**template(reasoning_effort="low"), "reasoning_effort": "low"},
            {**template(reasoning_effort="medium"), "reasoning_effort": "medium"},
        ),
        ("kimi-k2.6", "https://api.moonshot.ai/v1", {"thinking": OFF}, {"thinking": ON}),
        ("kimi-k2.6", "https://api.moonshot.cn", {"thinking": OFF}, {"thinking": ON}),
        ("deepseek-v4-pro", "https://api.deepseek.com", {"thinking": OFF}, {"thinking": ON}),
        (
            "kimi-k2.6",
            "https://moonshot.ai.example.org/v1",
            template(thinking=False),
            template(thinking=True),
        ),
    ],
)
def test_each_family_has_its_own_switch(
    model: str, url: str, off: dict[str, object], on: dict[str, object]
) -> None:
    assert thinking_parts(LLMConfig(model, url, thinking=False)) == off
    assert thinking_parts(LLMConfig(model, url, thinking=True)) == on
    assert thinking_parts(LLMConfig(model, url, thinking=None)) == {}


def test_free_keys_are_sent_and_win(llm_server: Start) -> None:
    server = llm_server(models=["moonshotai/Kimi-K2.6", "gpt-oss-20b", "other"])

    def sent(model: str, **options: Any) -> dict[str, Any]:
        LLM(config_of(server, model=model, **options)).answer(requests_for("a"))
        names = ("chat_template_kwargs", "reasoning_effort", "thinking")
        return {name: value for name, value in server.bodies[-1].items() if name in names}

    own = {"think": "off", "budget": 0}
    assert sent("other", thinking=None, chat_template_kwargs=own) == template(**own)
    assert sent("moonshotai/Kimi-K2.6", chat_template_kwargs={"a": [1]}) == template(
        thinking=False, a=[1]
    )
    high = {"reasoning_effort": "high"}
    assert sent("gpt-oss-20b", chat_template_kwargs=high) == {**template(**high), **high}


def old_key(config: LLMConfig) -> str:
    """The key as stores have it since their first version."""
    (request,) = requests_for("a")
    return content_hash(
        {
            "model": config.model,
            "messages": [list(message) for message in request.messages],
            "version": request.version,
            "schema": None,
            "choices": (),
            "logprobs": 0,
            "sample": 0,
            "max_tokens": 1024,
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": None,
            "thinking": config.thinking,
        }
    )


def test_stored_answers_are_kept_where_the_same_is_sent() -> None:
    (request,) = requests_for("a")
    for thinking in (False, True, None):
        for model in ("Qwen/Qwen3-8B", "m", "meta-llama/Llama-3.3-70B-Instruct"):
            config = LLMConfig(model, thinking=thinking)
            assert answer_key(request, config) == old_key(config)
        kimi = LLMConfig("moonshotai/Kimi-K2.6", thinking=thinking)
        assert (answer_key(request, kimi) == old_key(kimi)) == (thinking is None)
    keys = {
        answer_key(request, LLMConfig("kimi-k2.6", url, thinking=thinking))
        for url in (LOCAL, "https://api.moonshot.ai/v1")
        for thinking in (False, True)
    }
    own = LLMConfig("m", chat_template_kwargs={"enable_thinking": 0})
    assert len(keys) == 4 and answer_key(request, own) != old_key(own)


def test_a_refused_switch_is_reported_as_not_sent(llm_server: Start, tmp_path: Path) -> None:
    server = llm_server(refuses=("chat_template_kwargs",))
    for stored in (False, True):
        with AnswerStore(tmp_path / "a.sqlite") as store:
            answers = LLM(config_of(server), store).answer(requests_for("a", "b"))
        assert [answer.stored for answer in answers] == [stored] * 2
        assert count_thinking(answers) == (Thinking("m", False, "nothing", 2, 0),)
    # Each of several parts is refused by its own name.
    for name in ("reasoning_effort", "chat_template_kwargs"):
        server = llm_server(model="gpt-oss-20b", refuses=(name,))
        (answer,) = LLM(config_of(server, model="gpt-oss-20b")).answer(requests_for("a"))
        assert answer.thinking is not None and answer.thinking.sent == "reasoning_effort=low"
        assert name not in server.bodies[-1] and server.requests == 2


def completion(**message: object) -> Reply:
    message = {"role": "assistant", "content": "Masks work", **message}
    usage = message.pop("usage", None)
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Reply(body=json.dumps({"choices": [choice], "usage": usage}).encode())


@pytest.mark.parametrize(
    ("reply", "reasoned"),
    [
        (completion(), 0),
        (completion(reasoning_content="", reasoning=None), 0),
        (completion(content="<think>\n\n</think>\n\nMasks work"), 0),
        (completion(content="finalMasks work"), 0),
        (completion(usage={"completion_tokens_details": {"reasoning_tokens": 0}}), 0),
        (completion(reasoning_content="Hm."), 1),
        (completion(reasoning="Hm."), 1),
        (completion(content="<think>Hm.</think>Masks work"), 1),
        (completion(content="Hm.</think>Masks work"), 1),
        (completion(content=[{"type": "thinking", "thinking": "Hm."}, "Masks work"]), 1),
        (completion(usage={"completion_tokens_details": {"reasoning_tokens": 7}}), 1),
    ],
)
def test_replies_that_reason_although_it_is_off_are_counted(
    reply: Reply, reasoned: int, llm_server: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = llm_server(lambda chat: reply)
    (answer,) = LLM(config_of(server)).answer(requests_for("a"))
    assert answer.text == "Masks work"
    assert answer.thinking == Thinking("m", False, "enable_thinking=false", 1, reasoned)
    assert bool(answer.thinking.note) == bool(reasoned) == ("contain reasoning" in caplog.text)
    # On, and without reasoning, is worth a word, too.
    (answer,) = LLM(config_of(server, thinking=True)).answer(requests_for("a"))
    assert answer.thinking is not None and bool(answer.thinking.note) == (not reasoned)


def test_a_store_of_before_says_what_its_key_says(llm_server: Start, tmp_path: Path) -> None:
    server, path = llm_server(), tmp_path / "a.sqlite"
    with AnswerStore(path) as store:
        LLM(config_of(server), store).answer(requests_for("a"))
        (key,) = store._base.execute("SELECT key FROM answers").fetchone()
        reply = store.get(key)
        assert reply is not None and (reply.sent, reply.reasoned) == (
            "enable_thinking=false",
            False,
        )
    with sqlite3.connect(path) as base:
        base.executescript(
            "UPDATE answers SET hash = NULL; ALTER TABLE answers DROP COLUMN sent;"
            "ALTER TABLE answers DROP COLUMN reasoned; PRAGMA user_version = 2"
        )
    base.close()
    with AnswerStore(path) as store:
        (answer,) = LLM(config_of(server), store).answer(requests_for("a"))
    assert answer.stored and server.requests == 1
    assert answer.thinking == Thinking("m", False, "enable_thinking=false", 1, 0)


def test_what_is_sent_is_one_line() -> None:
    assert sent_text({}) == "nothing"
    assert sent_text({"thinking": OFF, "model": "m"}) == "thinking.type=disabled"
    assert sent_text(template(a="b", c=None, d=[1])) == "a=b, c=null, d=[1]"
