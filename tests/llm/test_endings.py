"""How a reply ended, if its prompt was truncated, and what the server reported about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.llm import LLM, AnswerStore
from claim2source.llm.endings import cut_prompt_reason, ending, ending_kind
from claim2source.llm.parse import REFUSED, REFUSED_BY_MODEL, TRUNCATED, unfinished_reason
from claim2source.llm.work import prompt_tokens
from tests.llm.test_client import config_of, requests_for
from tests.llm_server import LLMServer, Reply

Start = Callable[..., LLMServer]
WHOLE = ("stop", "eos_token", "end_turn", "stop_sequence", "eos", "STOP", "COMPLETE")
CUT = ("length", "max_tokens", "MAX_TOKENS", "model_length", "model_context_window_exceeded")
REFUSALS = ("content_filter", "SAFETY", "RECITATION", "PROHIBITED_CONTENT", "guardrail_intervened")
OTHERS = ("tool_calls", "error", "MALFORMED_FUNCTION_CALL", "pause_turn", "cancelled", None, "")
# About 6,000 tokens of English.
LONG = "Masks lower the risk of an infection in schools, says a new study of children. " * 340


@pytest.mark.parametrize("finish", WHOLE)
def test_a_reply_that_ended_by_itself_is_good_and_stored(
    finish: str, llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server(lambda chat: Reply("Masks work", finish=finish))
    with AnswerStore(tmp_path / "a.sqlite") as store:
        (answer,) = LLM(config_of(server), store).answer(requests_for("a"))
        assert (answer.failure, answer.text, server.requests) == (None, "Masks work", 1)
        assert len(store) == 1


def test_other_ends_are_failures_of_their_kind() -> None:
    (request,) = requests_for("a")
    assert {unfinished_reason(request, "x", finish) for finish in CUT} == {TRUNCATED}
    assert {unfinished_reason(request, "x", finish) for finish in REFUSALS} == {REFUSED}
    assert unfinished_reason(request, "x", "refusal") == REFUSED_BY_MODEL
    for finish in OTHERS:
        assert ending_kind(finish) == "unfinished"
        assert unfinished_reason(request, "x", finish) not in (None, TRUNCATED, REFUSED)


@pytest.mark.parametrize("native", ["length", "MAX_TOKENS", "SAFETY", "error", "OTHER"])
def test_a_providers_own_reason_that_contradicts_stop_is_a_failure(
    native: str, llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server(lambda chat: Reply("Masks", native=native))
    with AnswerStore(tmp_path / "a.sqlite") as store:
        (answer,) = LLM(config_of(server), store).answer(requests_for("a"))
        assert answer.failure is not None and answer.text == "" and len(store) == 0


@given(
    st.sampled_from(WHOLE),
    st.sampled_from([None, *WHOLE, "completed", "done", "<|eot_id|>", "1"]),
)
def test_a_providers_own_reason_that_agrees_or_is_unknown_contradicts_nothing(
    finish: str, native: str | None
) -> None:
    assert ending(finish, native) == finish


def test_a_refusal_is_a_refusal_wherever_it_stands(llm_server: Start, tmp_path: Path) -> None:
    words = "I cannot help with that."
    refusals = {
        "field": Reply(refusal=words),
        "reason": Reply(words, finish="refusal"),
        "part": Reply(
            body=b'{"choices": [{"finish_reason": "stop", "message": {"content": '
            b'[{"type": "refusal", "refusal": "I cannot help with that."}]}}]}'
        ),
    }
    server = llm_server(lambda chat: refusals[chat.user.split()[1]])
    with AnswerStore(tmp_path / "a.sqlite") as store:
        answers = LLM(config_of(server), store).answer(requests_for(*refusals))
        assert [answer.failure for answer in answers] == [REFUSED_BY_MODEL] * 3
        assert [answer.raw for answer in answers] == [words] * 3 and len(store) == 0
    # The field is there, and empty, in every reply of some servers.
    server = llm_server(lambda chat: Reply("Masks work", refusal=""))
    assert LLM(config_of(server)).answer(requests_for("a"))[0].text == "Masks work"


@pytest.mark.parametrize(
    ("tokens", "fingerprint", "is_cut"),
    [
        (4096, "fp_ollama", True),
        (5376, "fp_ollama", True),
        (4096, None, True),
        (2048, None, True),
        (300, None, True),
        (5300, "fp_ollama", False),
        (5300, None, False),
        (6200, None, False),
        (8192, "fp_ollama", False),
        (0, "fp_ollama", False),
    ],
)
def test_a_prompt_that_a_server_cut_is_a_failure_that_says_so(
    tokens: int, fingerprint: str | None, is_cut: bool, llm_server: Start, tmp_path: Path
) -> None:
    reply = Reply("Masks work", prompt_tokens=tokens, fingerprint=fingerprint)
    server = llm_server(lambda chat: reply)
    requests = requests_for(LONG)
    assert 6_500 < prompt_tokens(requests[0]) < 7_000
    with AnswerStore(tmp_path / "a.sqlite") as store:
        (answer,) = LLM(config_of(server), store).answer(requests)
        assert server.requests == 1 and len(store) == (not is_cut)
        if is_cut:
            assert answer.failure is not None and str(tokens) in answer.failure
            assert "prompt" in answer.failure and answer.text == ""
            # With a larger context the next run has it.
            server.reply = lambda chat: Reply("Masks work", prompt_tokens=6_200)
            (answer,) = LLM(config_of(server), store).answer(requests)
        assert (answer.failure, answer.text) == (None, "Masks work")


def test_cached_tokens_belong_to_the_prompt(llm_server: Start) -> None:
    server = llm_server(lambda chat: Reply("Masks", prompt_tokens=12, cached_tokens=6_100))
    (answer,) = LLM(config_of(server)).answer(requests_for(LONG))
    assert (answer.failure, answer.usage.prompt) == (None, 6_112)
    server.reply = lambda chat: Reply("Masks", prompt_tokens=6_112, cached_tokens=6_100)
    assert LLM(config_of(server)).answer(requests_for(LONG))[0].usage.prompt == 6_112


@pytest.mark.parametrize(
    ("sentence", "fewest"),
    [("Masks work. ", 2), ("Masken helfen Schulkindern. ", 3), ("口罩降低感染风险。", 3)],
)
def test_a_count_as_tokenizers_give_it_is_never_a_cut(sentence: str, fewest: int) -> None:
    """A token a word, or two to three Chinese signs a token, are the fewest."""
    (request,) = requests_for(sentence * 900)
    for tokens in (900 * fewest + 20, 900 * fewest * 2):
        assert cut_prompt_reason(request, tokens) is None
