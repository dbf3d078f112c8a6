"""A long run on a faulty server with many kills: nothing is lost, no request is repeated."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from claim2source.llm import LLM, AnswerStore, LLMConfig, Request
from claim2source.text.prompts import read_prompt
from tests.llm_server import CONTENT, LLMServer, rewritten
from tests.shared_data import REPOSITORY

STYLES = ("C1", "C2", "C3", "C4")
CONCURRENCY, KILLS = 32, 5
PROMPT = """\
version: 1
role: You rewrite posts.
task: Rewrite the post in style {style}.
output: Only the text.
variables: {style: "", post: "Post:"}
"""
# What hangs costs the time-out.
KINDS = (*("429", "500", "cut", "not json", *CONTENT) * 9, "hang", "trickle")
TIMEOUT = 12.0


def requests_of(folder: Path, count: int) -> list[Request]:
    prompt = read_prompt(str(folder / "rewrite.yaml"))
    return [
        Request(
            f"{style} {i}",
            prompt.messages({"style": style, "post": f"Study {i}: masks cut infections by {i} %"}),
            prompt.version,
        )
        for i in range(count)
        for style in STYLES
    ]


def config_of(url: str) -> LLMConfig:
    return LLMConfig(model="m", url=url, concurrency=CONCURRENCY, timeout=TIMEOUT, retries=9)


def client(folder: Path, url: str, count: int, out: str) -> None:
    """What a program does: it answers all requests and writes the answers."""

    with AnswerStore(folder / "answers.sqlite") as store:
        answers = LLM(config_of(url), store).answer(requests_of(folder, count))
    (folder / out).write_text(json.dumps([[a.id, a.text, a.failure] for a in answers]))


def start(folder: Path, url: str, count: int, out: str) -> subprocess.Popen[bytes]:
    words = ["-m", "tests.llm.test_soak", str(folder), url, str(count), out]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, *words], env=environment, cwd=REPOSITORY)


@pytest.mark.slow
def test_2000_texts_in_4_styles_survive_5_kills(tmp_path: Path, count: int = 2000) -> None:
    (tmp_path / "rewrite.yaml").write_text(PROMPT)
    requests = requests_of(tmp_path, count)
    draw = random.Random(14)
    kills: list[float] = []
    with LLMServer(faults=0.3, kinds=KINDS, delay=0.005) as llm_server:
        llm_server.keep_bodies = False
        for replies in sorted(draw.sample(range(len(requests) * 3 // 4), KILLS)):
            process = start(tmp_path, llm_server.url, count, "killed.json")
            while len(llm_server.good) < replies or llm_server.under_way == 0:
                assert process.poll() is None, "it ended before it was killed"
                time.sleep(draw.uniform(0, 0.01))
            process.kill()
            process.wait()
            kills.append(time.monotonic())
        assert llm_server.most_under_way <= CONCURRENCY
        assert start(tmp_path, llm_server.url, count, "out.json").wait() == 0
        assert llm_server.most_under_way <= CONCURRENCY
        calls = llm_server.requests
        with AnswerStore(tmp_path / "answers.sqlite") as store:
            plan = LLM(config_of(llm_server.url), store).plan(requests)
            assert (plan.requests, plan.stored) == (0, len(requests))
        assert llm_server.requests == calls

    # Every text of every style is there, in order.
    system = {r.id: r.messages[0].content for r in requests}
    expected = [
        [r.id, rewritten(r.messages[1].content.split("\n")[2], system[r.id]), None]
        for r in requests
    ]
    assert json.loads((tmp_path / "out.json").read_text()) == expected
    assert not (tmp_path / "killed.json").exists()
    assert len(llm_server.good) == len(requests)
    # A text was requested again only after a kill, and few for each kill; on a busy
    # machine also where a reply came after the time-out.
    lost, late = Counter[int](), 0
    seen: dict[str, float] = {}
    for moment, key in llm_server.log:
        if key in seen:
            between = [i for i, kill in enumerate(kills) if seen[key] < kill < moment]
            lost.update(between[:1])
            late += not between
        seen[key] = moment
    assert late < len(requests) / 100
    assert all(number <= CONCURRENCY for number in lost.values())
    assert {*llm_server.faulty} == {*KINDS} or count < 2000
    share = sum(llm_server.faulty.values()) / llm_server.requests
    assert 0.2 < share < 0.35


if __name__ == "__main__":
    client(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
