"""`scripts/plan.py --systems`: requests of a system's stages, scaled from a few claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from claim2source.core.errors import ConfigError
from claim2source.data.loading import load
from scripts.plan import main
from tests.llm_server import Chat, LLMServer
from tests.refusals import refused

Start = Callable[..., LLMServer]
SYSTEMS = """
Asks:
  retrieve: {bm25: {}}
  stages:
    - {verify: select, depth: 2}
    - {verify: select, depth: 3, llm: {model: other, url: URL}}
Plain: {retrieve: {bm25: {}}}
"""


def test_requests_tokens_and_hours_are_scaled_from_those_that_were_asked(
    llm_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(chat: Chat) -> str:
        return '{"reasoning": "x", "selected_paper": 1}'

    server = llm_server(reply, models=["m", "other"], delay=0.05)
    systems = tmp_path / "systems.yaml"
    systems.write_text(SYSTEMS.replace("URL", server.url), encoding="utf-8")
    words = ["--systems", str(systems), "--dataset", "demo", "--llm.model", "m"]
    words += ["--llm.url", server.url, "--claims", "4", "--store", str(tmp_path / "store")]
    main(words)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    claims = len(load("demo", "dev").claims)
    by_model = {row[3]: row for row in rows if len(row) > 3 and row[0] == "Asks.original:"}
    models = [body["model"] for body in server.bodies]
    asked = models.count("m")
    assert models.count("other") == asked == server.requests / 2 and asked <= 4
    for model in ("m", "other"):
        assert by_model[model][4] == f"{asked / 4 * claims:,.0f}"
    tokens = float(by_model["m"][5].replace(",", ""))
    sent = [body for body in server.bodies if body["model"] == "m"]
    read = sum(len(message["content"]) for body in sent for message in body["messages"]) / 4
    assert tokens * 1000 == pytest.approx(read / 4 * claims, rel=0.3)
    # Two waves of requests at most: the hours are those of a delay for some of them.
    assert 0.0 <= float(by_model["m"][6]) < 1.0
    # The run reuses the answers: the same plan sends no requests.
    main(words)
    assert server.requests == len(models)
    main([*words, "--only", "Plain"])
    assert "m" not in capsys.readouterr().out.splitlines()[-1].split()
    with refused(ConfigError, "only: "):
        main([*words, "--only", "None"])
