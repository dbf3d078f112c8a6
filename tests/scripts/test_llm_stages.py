"""`scripts/llm_stages.py`: every stage against a server, what is counted, and how it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim
from claim2source.data.loading import load
from claim2source.llm.config import LLMConfig
from scripts.llm_stages import (
    RANKING,
    LLMStagesConfig,
    pick_claims,
    run_stages,
    server_process,
    write_sample,
)
from tests.llm_server import Chat, LLMServer, Reply, rewrite
from tests.shared_data import shared

Start = Callable[..., LLMServer]
GERMAN = "Die Studie zeigt, dass Masken in Schulen die Zahl der Ausbrüche deutlich gesenkt haben."


def config(server: LLMServer, folder: Path, **settings: Any) -> LLMStagesConfig:
    llm = LLMConfig(model=server.model, url=server.url, max_tokens=64)
    return LLMStagesConfig(**{"llm": llm, "out": folder, "claims": 2} | settings)


def rows_of(path: Path) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


@pytest.mark.slow
def test_every_stage_has_a_row_and_no_row_runs_twice(llm_server: Start, tmp_path: Path) -> None:
    server = llm_server()
    page = tmp_path / "llm.md"
    given = config(server, tmp_path / "out", page=page, rumors=shared("rumors/English_dev.json"))
    shown = run_stages(given)
    rows = rows_of(given.out / "llm.json")
    assert {*RANKING, "translate", "rumours: stance"} <= rows.keys()
    assert sum(name.startswith("rewrite ") for name in rows) == 7
    for name, row in rows.items():
        assert row["is_done"] and row["requests"] == sum(row["kinds"].values()) > 0, name
        assert row["claims"] == 2
    assert rows["letters"]["ranking"]["before"]["high"] >= 0
    assert server.model in shown and all(name in page.read_text("utf-8") for name in rows)
    asked = server.requests
    # The server's own process is this test's.
    assert rows["select"]["spent"][0]["processor_seconds"] >= 0
    run_stages(given)
    assert server.requests == asked
    # Words around the rows are the reader's.
    page.write_text(f"Before.\n{page.read_text('utf-8')}After.\n", encoding="utf-8")
    run_stages(config(server, tmp_path / "other", page=page, only=["letters"]))
    assert page.read_text("utf-8").startswith("Before.\n")
    assert page.read_text("utf-8").endswith("After.\n")


def test_failures_are_counted_by_kind(llm_server: Start, tmp_path: Path) -> None:
    replies = {
        "rewrite C1, formal": GERMAN,
        "rewrite C2, scientific claim": Reply("Masks", finish="length"),
        "rewrite C3, abstract": "Masks work well.",
        "rewrite C4, question": "I'm sorry, I cannot help with that.",
        "select": "no object",
    }
    kinds = {"C1": "language", "C2": "cut", "C3": "doubtful", "C4": "refused", "se": "schema"}
    for name, reply in replies.items():
        server = llm_server(lambda chat, reply=reply: reply)
        given = config(server, tmp_path / name, only=[name], claims=1)
        run_stages(given)
        row = rows_of(given.out / "llm.json")[name]
        assert row["kinds"] == {kinds[name.removeprefix("rewrite ")[:2]]: 1}, name
        assert sum(row["reasons"].values()) == 1


def test_an_interrupted_row_goes_on_from_its_answers(llm_server: Start, tmp_path: Path) -> None:
    name = "rewrite C1, formal"

    def reply(chat: Chat) -> str | Reply:
        if server.requests > 3:
            return Reply("no such model", status=404)
        return rewrite(chat)

    server = llm_server(reply)
    llm = LLMConfig(model="m", url=server.url, concurrency=1)
    given = config(server, tmp_path, only=[name], claims=5, llm=llm)
    with pytest.raises(Exception, match="404"):
        run_stages(given)
    before = rows_of(given.out / "llm.json")[name]
    assert not before["is_done"] and before["spent"][0]["requests"] == 3
    server.reply = rewrite
    run_stages(given)
    row = rows_of(given.out / "llm.json")[name]
    assert row["is_done"] and row["requests"] == 5
    assert [spent["requests"] for spent in row["spent"]] == [3, 2]


def test_claims_are_drawn_in_turn_and_new_papers_first() -> None:
    claims = [
        Claim("a", "x", "en", golds=("p",)),
        Claim("b", "x", "de", golds=("p",)),
        Claim("c", "x", "de", golds=("q",)),
        Claim("d", "x", "en", golds=("r",)),
    ]
    assert [claim.id for claim in pick_claims(claims, 3)] == ["a", "c", "d"]
    assert {claim.id for claim in pick_claims(claims, 9)} == set("abcd")


def test_a_sample_has_golds_then_what_is_confused_with_them(
    llm_server: Start, tmp_path: Path
) -> None:
    server = llm_server()
    given = config(server, tmp_path, claims=6, pool=9)
    write_sample(given, tmp_path / "sample")
    sample = load(tmp_path / "sample", "dev")
    assert [claim.lang for claim in sample.claims] == ["en", "de", "fr"] * 2
    assert len(sample.sources) == 9 and len(sample.golds) == 6
    golds_alone = config(server, tmp_path, claims=6, pool=1)
    write_sample(golds_alone, tmp_path / "sample")
    assert len(load(tmp_path / "sample", "dev").sources) == 6
    assert server.requests == 0


def test_bad_input_is_named(llm_server: Start, tmp_path: Path) -> None:
    server = llm_server()
    with pytest.raises(ConfigError, match="only"):
        run_stages(config(server, tmp_path, only=["none"]))
    page = tmp_path / "page.md"
    page.write_text("Words.\n", encoding="utf-8")
    with pytest.raises(InputError, match="page.md"):
        run_stages(config(server, tmp_path, page=page, only=["letters"]))
    assert server_process("https://example.org:443/v1") is None
