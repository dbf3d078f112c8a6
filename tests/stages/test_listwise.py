"""An order by windows, after RankGPT; replies that are odd or fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.io.store import Store
from claim2source.stages.listwise import windows
from claim2source.systems.read import read_stage
from claim2source.systems.stages import apply_stage
from tests.llm_server import Chat, LLMServer

Start = Callable[..., LLMServer]
# The first stage has the worst one first: a is worth 1, f 6.
SOURCES = [Source(name, f"worth {i}", "line\n[1] worth 9") for i, name in enumerate("abcdefg", 1)]
CLAIM = Claim("0", "Beitrag", "de", "A post")


def applied(
    server: LLMServer, store: Store | None = None, claims: int = 1, **settings: Any
) -> Result:
    extra = {"depth": 6, "window": 4, "stride": 2} | settings
    llm = {"model": server.model, "url": server.url, "retries": 0}
    stage = read_stage({"rerank": "listwise", "llm": llm, **extra}).stage
    posts = [Claim(str(n), f"{CLAIM.text} {n}", "de", CLAIM.translation) for n in range(claims)]
    run = Run.from_lists({c.id: [(s.id, -float(i)) for i, s in enumerate(SOURCES)] for c in posts})
    return apply_stage(stage, posts, SOURCES, Result(run), store)


def worths(chat: Chat) -> list[int]:
    lines = chat.data["papers"].split("\n")
    assert [line.split()[0] for line in lines] == [f"[{i}]" for i in range(1, len(lines) + 1)]
    return [int(re.findall(r"worth (\d+)", line)[0]) for line in lines]


def best_first(chat: Chat) -> str:
    values = worths(chat)
    order = sorted(range(len(values)), key=lambda i: -values[i])
    return json.dumps({"order": [i + 1 for i in order]})


def test_windows_go_up_to_the_very_top() -> None:
    assert list(windows(6, 4, 2)) == [(2, 6), (0, 4)]
    assert [start for start, _ in windows(100, 20, 10)] == [80, 70, 60, 50, 40, 30, 20, 10, 0]
    # RankGPT's code would leave out the first five: its strides do not end at the top.
    assert list(windows(25, 20, 10)) == [(5, 25), (0, 20)]
    assert list(windows(7, 4, 4)) == [(3, 7), (0, 4)]
    assert list(windows(3, 4, 2)) == [(0, 3)] and not list(windows(1, 4, 2))


def test_a_good_source_rises_from_the_bottom(llm_server: Start) -> None:
    server = llm_server(best_first)
    result = applied(server, claims=2)
    # By hand: a b [c d e f] -> a b f e d c; [a b f e] d c -> f e b a d c; g is beyond the depth.
    assert [result.sources(claim) for claim in "01"] == [list("febadcg")] * 2
    assert server.requests == 4 and result.notes["0"] == "2 of 2 windows ordered"
    assert not result.failures and result.cost.tokens > 0
    scores = list(result.run.scored("0").values())
    assert scores == sorted(set(scores), reverse=True)
    data = Chat(server.bodies[0]).data
    assert data["translation"] == "A post" and data["post"].startswith("Beitrag")


def test_odd_orders_keep_what_they_do_not_name(llm_server: Start) -> None:
    # Out of range, repeated and left out: of four, 4 and 2 are named, 1 and 3 follow in order.
    server = llm_server(lambda chat: '```json\n{"order": [9, 4, 0, -1, 2, 4]}\n```')
    assert applied(server, depth=4).sources("0") == list("dbacefg")


@pytest.mark.parametrize("bad", ['{"order": [7, 0]}', '{"order": []}', '{"order": "b"}', "No."])
def test_a_failed_window_leaves_its_order_and_is_counted(llm_server: Start, bad: str) -> None:
    server = llm_server(lambda chat: bad if 6 in worths(chat) else best_first(chat))
    result = applied(server)
    # The lower window failed: [a b c d] is all that is ordered.
    assert result.sources("0") == list("dcbaefg")
    assert sum(result.failure_counts().values()) == 1
    assert result.notes["0"] == "1 of 2 windows ordered"
