"""Every stage: a permutation within its depth, costs, failures, no repeated requests."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.core.stage import Stage
from claim2source.data.store import Store
from claim2source.systems.read import read_stage
from claim2source.systems.stages import apply_stage
from tests.llm_server import Chat, LLMServer, Reply
from tests.refusals import refused
from tests.stages.tiny import save_cross_encoder

Start = Callable[..., LLMServer]
DEPTH = 4
SOURCES = [
    Source(name, f"paper {name}", f"vaccine works {'a b c ' * number}")
    for number, name in enumerate("abcdef")
]
CLAIMS = [
    Claim("0", "vaccine works a b"),
    Claim("1", "ein Beitrag", "de", "a claim"),
    Claim("2", "c"),
]
RUN = Run.from_lists(
    {
        "0": [(name, 9.0 - i) for i, name in enumerate("fedcba")],
        "1": [(name, 0.5 - i / 4) for i, name in enumerate("abdf")],
        "2": [("c", 1.0)],
    }
)
MODELS = ("max_sim", "cross_encoder")
ASKING = ("entities", "attribution", "relevance", "select", "letters")
VERIFIERS = ("select", "letters")


def reply(chat: Chat) -> str | Reply:
    """Prefer the last shown one, in the requested form."""
    if chat.choices:
        last = chat.choices[-2]
        return Reply(last, logprobs=[(last, -0.1, {last: -0.1, chat.choices[0]: -3.0})])
    count = max(chat.user.count("\n["), chat.user.count("Paper "), 1)
    values: dict[str, Any] = {
        "facts": ["one", "two"],
        "labels": [int("paper c" in chat.user)] * 2,
        "score": len(chat.user) % 5,
        "query_entities": ["x"],
        "documents": [{"document": count, "entities": ["x"]}],
        "reasoning": "So.",
        "selected_paper": chat.user.count("Paper "),
    }
    assert chat.schema is not None
    return json.dumps({name: values[name] for name in chat.schema["required"]})


@pytest.fixture
def stage_and_server(
    request: pytest.FixtureRequest, llm_server: Start, tiny_folder: Path, tmp_path: Path
) -> tuple[Stage, LLMServer]:
    """A stage by its name, and its server, if it has one."""
    name, server = request.param, llm_server(reply)
    entry: dict[str, Any] = {"depth": DEPTH}
    if name in ASKING:
        entry["llm"] = {"model": server.model, "url": server.url, "retries": 0}
    elif name == "cross_encoder":
        entry["model"] = str(save_cross_encoder(tmp_path / "model", tiny_folder))
    elif name in MODELS:
        entry |= {"model": str(tiny_folder), "max_length": 64}
    stage = read_stage({"verify" if name in VERIFIERS else "rerank": name, **entry}).stage
    return stage, server


def applied(stage: Stage, store: Store | None = None) -> Result:
    return apply_stage(stage, CLAIMS, SOURCES, Result(RUN), store, device="cpu")


@pytest.mark.parametrize("stage_and_server", [*MODELS, *ASKING], indirect=True)
def test_a_stage_reorders_its_depth_once_and_changes_nothing_else(
    stage_and_server: tuple[Stage, LLMServer], tmp_path: Path
) -> None:
    stage, server = stage_and_server
    inputs = copy.deepcopy((CLAIMS, SOURCES, list(RUN)))
    result = applied(stage, store := Store(tmp_path / "store"))
    assert inputs == (CLAIMS, SOURCES, list(RUN))
    assert not result.failures and not result.stored
    changed = False
    for claim in CLAIMS:
        before, after = RUN.sources(claim.id), result.sources(claim.id)
        assert sorted(before[:DEPTH]) == sorted(after[:DEPTH]) and before[DEPTH:] == after[DEPTH:]
        scores = list(result.scored(claim.id).values())
        assert scores == sorted(scores, reverse=True)
        changed |= before != after
    assert changed and result.cost.items == len(CLAIMS) and result.cost.seconds > 0
    calls = server.requests
    assert (calls > 0) == (result.cost.tokens > 0 and "llm" in vars(stage))
    rerun = applied(stage, store)
    assert rerun.stored and list(rerun.run) == list(result.run) and server.requests == calls


COLD = {"model": "m", "temperature": 0.0}
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("depht", "cross_encoder", {"depht": 3}),
    ("versions", "attribution", {"versions": 3, "extractor": COLD}),
    ("version", "attribution", {"versions": 2, "version": 3}),
    ("extractor", "attribution", {"extractor": {"url": "http://x"}}),
    ("rewrites", "relevance", {"rewrites": 2, "temperature": 0}),
    ("instruction", "yes_no", {"instruction": " "}),
    ("url", "http", {"url": "http://u:p@h"}),
]


@pytest.mark.parametrize(("key", "name", "settings"), WRONG)
def test_settings_are_checked_when_they_are_read(
    key: str, name: str, settings: dict[str, Any]
) -> None:
    model: dict[str, Any] = {"llm": {"model": "m"}} if name in ASKING else {"model": "m"}
    with refused(ConfigError, key) as error:
        read_stage({"rerank": name, **model, **settings})
    assert "u:p" not in str(error.value)


@pytest.mark.parametrize("stage_and_server", ASKING, indirect=True)
@pytest.mark.parametrize("bad", ["I cannot.", '{"score": null}', None])
def test_what_a_language_model_fails_at_keeps_its_ranking_and_is_counted(
    stage_and_server: tuple[Stage, LLMServer], bad: str | None, tmp_path: Path
) -> None:
    stage, server = stage_and_server
    server.reply = lambda chat: Reply("down", status=500) if bad is None else bad
    store = Store(tmp_path / "store")
    result = applied(stage, store)
    assert {failure.claim_id for failure in result.failures} >= {"0", "1"}
    for claim in CLAIMS:
        assert result.sources(claim.id) == RUN.sources(claim.id)
    # A request without reply is sent again, an unusable answer is not.
    calls = server.requests
    assert applied(stage, store).stored == (bad is not None)
    assert (server.requests > calls) == (bad is None)
