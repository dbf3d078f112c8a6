"""Every request gets an answer or a reason, from a real server that makes faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from claim2source.llm import LLM, AnswerStore, LLMConfig, Request
from claim2source.text.prompts import Message
from tests.llm_server import LLMServer, rewritten

SYSTEM = "Task: Rewrite the post."


def requests_for(texts: list[str]) -> list[Request]:
    def messages(text: str) -> tuple[Message, ...]:
        return (Message("system", SYSTEM), Message("user", f"<post>\n{text}\n</post>"))

    return [Request(f"r{i}", messages(text), "1") for i, text in enumerate(texts)]


def test_faults_lose_nothing_and_a_second_run_asks_for_nothing(
    llm_server: Callable[..., LLMServer], tmp_path: Path
) -> None:
    server = llm_server(faults=0.3, hangs=5)
    texts = [f"Masks work, says study {i} #covid" for i in range(60)]
    config = LLMConfig(model="m", url=server.url, timeout=0.5, concurrency=8)
    with AnswerStore(tmp_path / "a.sqlite") as store:
        answers = LLM(config, store).answer(requests_for(texts))
    assert [answer.text for answer in answers] == [rewritten(text, SYSTEM) for text in texts]
    assert len(server.faulty) >= 6 and 1 < server.most_under_way <= 8
    before = server.requests
    with AnswerStore(tmp_path / "a.sqlite") as store:
        again = LLM(config, store).answer(requests_for(texts))
    assert server.requests == before
    assert [a.text for a in again] == [a.text for a in answers] and all(a.stored for a in again)
