"""A real llama.cpp (make test-llm): the scores of transformers, and every stage that uses it.

The tiny Qwen3 of `vllm/model` is served in float32. The stages use the first chat model in
CLAIM2SOURCE_WEIGHTS, a folder of GGUF files, or the tiny one, whose answers make no sense: what is
tested is that every request has a reply, and every reply a good answer or a reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.run import Run
from claim2source.data.store import Store
from claim2source.llm import LLM, LLMConfig, Request
from claim2source.llm.log import logged_answers
from claim2source.llm.texts import style_prompt, style_tasks, translation_tasks, write_texts
from claim2source.stages.http import Http
from claim2source.stages.pairs import Pair
from claim2source.stages.verifier import Letters
from claim2source.systems.read import make_system, read_stage
from claim2source.systems.system import RunSettings, run_system
from claim2source.text.prompts import Message
from claim2source.text.styles import STYLES, Original
from claim2source.text.translate import ForeignText
from tests.llama import LlamaServer, require_llama
from tests.llama.gguf import write_tiny_qwen
from tests.shared_data import shared
from tests.stages.test_cross_encoder import scored
from tests.stages.test_yes_no import TOLD, recorded_pairs
from tests.stages.test_yes_no import stage as yes_no

pytestmark = pytest.mark.llm
LONG = "masks in schools halve outbreaks, "
CLAIM = Claim("0", "Masken halbieren Ausbrüche in Grundschulen.", "de", "Masks halve outbreaks.")
SOURCES = [
    Source("bats", "Bats as hosts of coronaviruses", "We sampled bats in caves."),
    Source("masks", "Masks in schools", "Outbreaks were half as frequent where masks were worn."),
]
POST = "New study: masks cut outbreaks 3.7x in primary schools! #masks"
RUN = Run.from_lists({"0": [("bats", 2.0), ("masks", 1.0)]})
STAGES: list[dict[str, Any]] = [
    {"verify": "select"},
    {"verify": "select", "reply": "number", "prompt": "verify_short"},
    {"verify": "select", "votes": 2},
    {"verify": "letters"},
    {"rerank": "entities"},
    {"rerank": "attribution"},
    {"rerank": "relevance"},
    {"rerank": "relevance", "rewrites": 1},
    {"verify": "stance"},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    require_llama()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_qwen(shared("vllm/model"), path)
    with LlamaServer(path, "--parallel", "2") as server:
        yield server


@pytest.fixture(scope="module")
def chatting(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    """A model that understands its prompts, or the tiny one."""
    folder = os.environ.get("CLAIM2SOURCE_WEIGHTS")
    files = [] if folder is None else sorted(Path(folder).glob("*nstruct*.gguf"))
    if files:
        require_llama()
        with LlamaServer(files[0]) as server:
            yield server
    else:
        yield request.getfixturevalue("tiny")


def config(server: LlamaServer, **settings: Any) -> LLMConfig:
    return LLMConfig(**{"model": server.model, "url": server.url, "timeout": 900} | settings)


def test_yes_no_by_log_probabilities_are_the_scores_of_transformers(tiny: LlamaServer) -> None:
    pairs = [*recorded_pairs(), Pair("<|im_end|> yes", "</think> no"), Pair("größer 🦠", "")]
    expected = scored(yes_no(), pairs)
    one = Http(url=tiny.url, model="tiny", dialect="llama_yes_no", instruction=TOLD)
    assert np.allclose(scored(one, pairs), expected, atol=1e-3)
    # What is too long is halved, and has a score.
    (score,) = scored(one, [Pair("masks", LONG * 1000)])
    assert math.isfinite(score)


def test_the_rerank_api_gives_their_probabilities(tmp_path: Path) -> None:
    require_llama()
    path = tmp_path / "tiny-rank.gguf"
    write_tiny_qwen(shared("vllm/model"), path, ranks=True)
    pairs = recorded_pairs()
    logits = scored(yes_no(instruction="released"), pairs)
    with LlamaServer(path) as server:
        assert server.said.startswith("{rerank: http, dialect: rerank, url:")
        one = Http(url=server.url, model="tiny-rank", dialect="rerank")
        probabilities = scored(one, pairs)
        assert np.allclose(probabilities, 1 / (1 + np.exp(-logits)), atol=1e-4)
        (score,) = scored(one, [Pair("masks", LONG * 1000)])
        assert math.isfinite(score)


def test_letters_by_log_probabilities_are_those_of_transformers(tiny: LlamaServer) -> None:
    import torch

    text = "Which paper? Answer by its letter."
    network, tokenizer = yes_no().network
    # All tokens: a random model's letters are not among the likeliest.
    request = Request(
        "0",
        (Message("user", text),),
        choices=tuple("ABCD"),
        logprobs=len(tokenizer),  # type: ignore[arg-type]
        max_tokens=1,
    )
    (answer,) = LLM(config(tiny)).answer([request])
    assert answer.failure is None and answer.text in "ABCD"
    vote = Letters(llm=config(tiny)).vote(answer, 3)
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = network(input_ids=ids).logits[0, -1].double()
    logprobs = logits.log_softmax(0)
    letters = [tokenizer.get_vocab()[letter] for letter in "ABCD"]
    for letter, number in zip("ABCD", letters, strict=True):
        assert answer.logprobs[0].top[letter] == pytest.approx(float(logprobs[number]), abs=1e-3)
    # A letter with a space before it counts as that letter.
    expected = []
    for letter in "ABCD":
        spaced = tokenizer.get_vocab().get(f"Ġ{letter}")
        numbers = [tokenizer.get_vocab()[letter]] + ([] if spaced is None else [spaced])
        expected.append(float(logprobs[numbers].exp().sum()))
    total = sum(expected)
    assert not isinstance(vote, str)
    assert np.allclose(vote.weights, [share / total for share in expected], atol=1e-3)


@pytest.mark.parametrize("entry", STAGES, ids=lambda entry: "-".join(map(str, entry.values())))
def test_every_stage_has_replies_and_reasons(
    entry: dict[str, Any], chatting: LlamaServer, tmp_path: Path
) -> None:
    llm = {"model": chatting.model, "url": chatting.url, "timeout": 900.0, "max_tokens": 160}
    stage = read_stage({**entry, "depth": 2, "llm": llm}).stage
    stage = stage.with_runtime(Store(tmp_path), "cpu")  # type: ignore[attr-defined]
    result = stage.apply([CLAIM], SOURCES, RUN)
    assert sorted(result.sources("0")) == ["bats", "masks"]
    assert result.cost.tokens > 0
    for failure in result.failures:
        assert not failure.reason.startswith(("no reply", "not asked", "refused by the server"))
    # Everything is stored: no request is repeated.
    again = stage.apply([CLAIM], SOURCES, RUN)
    assert again.sources("0") == result.sources("0")


def test_only_claims_in_doubt_are_sent_to_the_server(chatting: LlamaServer, tmp_path: Path) -> None:
    llm = {"model": chatting.model, "url": chatting.url, "timeout": 900.0, "max_tokens": 160}
    stage = {"verify": "select", "depth": 2, "when": {"margin_below": 0.2}, "llm": llm}
    system = make_system("In doubt", {"retrieve": {"bm25": {}}, "stages": [stage]})
    claims = (
        Claim("sure", "Bats were sampled in caves.", "en", golds=("bats",)),
        Claim("doubtful", "Outbreaks in schools where masks were worn", "en", golds=("masks",)),
    )
    qrels = {claim.id: dict.fromkeys(claim.golds, 1) for claim in claims}
    twin = replace(SOURCES[1], id="twin")
    dataset = Dataset(claims, (*SOURCES, twin), qrels, "dev")
    with logged_answers() as log:
        run_system(system, dataset, settings=RunSettings(store=Store(tmp_path)))
    assert {answer.id for answer in log.answers} == {"doubtful"}
    assert log.usage.prompt > 0


WRITING = {
    "translate": translation_tasks([ForeignText("0", "claim", CLAIM.text, "de")], "auto"),
    **{
        style.name: style_tasks(style, [Original("0", POST, "en")], style_prompt(style), 1)
        for style in STYLES.values()
        if style.prompt is not None
    },
}


@pytest.mark.parametrize("name", WRITING)
def test_every_text_has_a_reply_or_a_reason(name: str, chatting: LlamaServer) -> None:
    llm = LLM(config(chatting, max_tokens=160))
    (text,), (answer,) = write_texts(llm, WRITING[name], name)
    assert answer.is_asked and answer.raw and answer.usage.prompt > 20
    assert answer.failure is None or not answer.failure.startswith("refused by the server")
    assert text.text or text.reason
