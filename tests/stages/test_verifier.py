"""Verifiers against a server that plays verifier: MRR by hand, votes, letters, orders, budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import claim2source as c2s
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Result, Run
from claim2source.data.store import Store
from claim2source.llm import LLMConfig
from claim2source.llm.parse import SEVERAL, read_reply
from claim2source.stages.verifier import (
    NO_LOGPROBS,
    NO_NUMBER,
    OVER_BUDGET,
    Poll,
    Select,
    Verifier,
    shown_order,
)
from claim2source.systems.read import read_stage
from claim2source.systems.stages import apply_stage
from claim2source.text.prompts import Message
from tests.llm_server import Chat, LLMServer, Reply
from tests.llm_server import verifiers as play
from tests.refusals import refused

# Ranks of the gold of ten claims, in lists of twelve.
RANKS = (1, 1, 1, 2, 2, 3, 4, 7, 10, 12)
LENGTH = 12
SOURCES = [
    Source(f"s{i:02}", f"Title {i:02}.", f"Abstract of {i}. " * 3, ("Ann Lee", "Bo Ek"), "Venue")
    for i in range(LENGTH)
]


def ranked(gold: int, rank: int) -> list[tuple[str, float]]:
    """A list with the gold s{place} at a rank."""
    rest = [s.id for s in SOURCES if s.id != SOURCES[gold].id]
    ids = [*rest[: rank - 1], SOURCES[gold].id, *rest[rank - 1 :]]
    return [(source, 1 - i / 20) for i, source in enumerate(ids)]


CLAIMS = [
    Claim(f"c{i}", f"Post {i} about it", "de", f"Translation {i}", golds=(SOURCES[i].id,))
    for i in range(len(RANKS))
]
RUN = Run.from_lists({f"c{i}": ranked(i, rank) for i, rank in enumerate(RANKS)})
QRELS = Qrels({claim.id: {claim.golds[0]: 1} for claim in CLAIMS})
DATA = Dataset(tuple(CLAIMS), tuple(SOURCES), QRELS, "dev")
GOLDS = {claim.text: SOURCES[i].title for i, claim in enumerate(CLAIMS)}
BEFORE = (3 * 1 + 2 / 2 + 1 / 3 + 1 / 4) / 10
# Whoever knows the gold finds it within the first ten.
PERFECT = 9 / 10
Start = Callable[..., LLMServer]


def stage(server: LLMServer, kind: str = "select", **settings: Any) -> Verifier:
    llm = {"model": "m", "url": server.url, "retries": 0, **settings.pop("llm", {})}
    verifier = read_stage({"verify": kind, "llm": llm, **settings}).stage
    assert isinstance(verifier, Verifier)
    return verifier


def verified(server: LLMServer, kind: str = "select", **settings: Any) -> Result:
    return stage(server, kind, **settings).apply(CLAIMS, SOURCES, RUN)


def mrr(result: Result | Run) -> float:
    run = result.run if isinstance(result, Result) else result
    return c2s.evaluate(run, DATA, ["mrr@5"], repeats=0).macro["mrr@5"]


def by_hand(picks: Mapping[str, int]) -> float:
    """The MRR@5 after each claim's source at this rank (from 1) has moved to the front."""
    ranks = []
    for i, rank in enumerate(RANKS):
        place_taken = picks.get(f"c{i}", 1)
        now = 1 if place_taken == rank else rank + (rank < place_taken)
        ranks.append(1 / now if now <= 5 else 0)
    return sum(ranks) / len(ranks)


def test_a_perfect_verifier_finds_every_gold_it_is_shown(llm_server: Start) -> None:
    rule = play.Verifier(play.perfect(GOLDS))
    result = verified(llm_server(rule))
    assert mrr(RUN) == pytest.approx(BEFORE) and mrr(result) == pytest.approx(PERFECT)
    # All but the chosen one keep their order; s09, whose gold is not shown, its whole ranking.
    for i, rank in enumerate(RANKS):
        ids = RUN.sources(f"c{i}")
        first = ids.pop(rank - 1 if rank <= 10 else 0)
        assert result.sources(f"c{i}") == [first, *ids]
    assert result.notes["c3"] == "rank 2 chosen: It fits." and not result.failures
    assert result.notes["c0"] == "first rank confirmed: It fits."
    # As 1 on scores from 0 to 1: the range of the list above the first.
    scores = list(result.scored("c4").values())
    assert scores[0] == pytest.approx(1 + 11 / 20) and scores[1] == 1.0
    assert result.cost.tokens == sum(detail["tokens"] for detail in result.details.values()) > 1000
    # Requests come in any order.
    question = next(question for question, _ in rule.picks if question.post == "Post 3 about it")
    assert question.chat.data["translation"] == "Translation 3"
    assert [label for label, _ in question.papers] == [str(i) for i in range(1, 11)]
    assert question.papers[1][1].splitlines()[:3] == [
        "  Title: Title 03.", "  Venue: Venue", "  Authors: Ann Lee, Bo Ek"
    ]  # fmt: skip
    assert question.chat.body["chat_template_kwargs"] == {"enable_thinking": False}


def test_votes_in_changing_orders_remove_the_bias_of_places(llm_server: Start) -> None:
    # Only the first shown paper is chosen: in ranked order nothing changes, shuffled it is chance.
    only_first = llm_server(play.Verifier(play.first_shown))
    assert mrr(verified(only_first)) == pytest.approx(BEFORE)
    shuffled = verified(only_first, shuffle=True)
    picks = {c.id: shown_order(c.id, 0, 0, 10)[0] + 1 for c in CLAIMS}
    assert mrr(shuffled) == pytest.approx(by_hand(picks)) and mrr(shuffled) < BEFORE
    # Ten votes show every paper first once: no paper leads, and the ranking stays.
    voted = verified(only_first, votes=10)
    assert mrr(voted) == pytest.approx(BEFORE)
    assert voted.notes["c0"] == "the vote is a tie: ranking unchanged"
    assert all(detail["asks"] == 10 for detail in voted.details.values())

    # It knows the paper, but sees it in the upper half only: ranks 7 and 10 are lost in one vote.
    half = llm_server(play.Verifier(play.biased(GOLDS)))
    assert mrr(verified(half)) == pytest.approx(7 / 10)
    assert mrr(verified(half, votes=10)) == pytest.approx(PERFECT)


def test_a_vote_ends_when_it_is_settled(llm_server: Start) -> None:
    rule = play.Verifier(play.perfect(GOLDS))
    server = llm_server(rule)
    assert mrr(verified(server, votes=5)) == pytest.approx(PERFECT)
    # The gold of the last claim is not shown: each time another paper is chosen, to the end.
    assert server.requests == 3 * 9 + 5
    # Where the first rank leads, a tie changes nothing: two of four votes settle it.
    result = verified(server, votes=4)
    assert [result.details[f"c{i}"]["asks"] for i in range(9)] == [2] * 3 + [3] * 6
    orders = {tuple(label + text for label, text in question.papers) for question, _ in rule.picks}
    assert len(orders) == 3 * 9 + 5


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_an_early_end_never_changes_what_all_votes_give(limit: int) -> None:
    """Every sequence of votes for two sources and none: the end is that of all votes."""

    def settled(votes: tuple[int, ...], early: bool) -> tuple[int, int]:
        poll, done = Poll(CLAIMS[0], ["a", "b"]), 0
        while done < limit and (count := poll.votes_needed(limit) if early else limit - done):
            for vote in votes[done : done + count]:
                poll.asks += 1
                poll.count(np.eye(3)[vote], [0, 1], "")
            done += count
        leader, _ = poll.lead()
        # None and a tie leave the ranking as it is.
        return int(leader == 1), done

    asks = []
    for votes in itertools.product(range(3), repeat=limit):
        (early, done), (late, _) = settled(votes, True), settled(votes, False)
        assert early == late, votes
        asks.append(done)
    assert min(asks) == (limit + 1) // 2 and max(asks) == limit


def test_every_paper_is_at_every_place_once() -> None:
    for first in (0, 10):
        orders = [shown_order("c", 0, first + draw, 10) for draw in range(10)]
        assert all(sorted(column) == list(range(10)) for column in zip(*orders, strict=True))
    assert shown_order("c", 0, 0, 10) != shown_order("c", 0, 10, 10) != shown_order("d", 0, 10, 10)


def test_letters_give_a_probability_for_every_paper_and_none(llm_server: Start) -> None:
    rule = play.Verifier(play.perfect(GOLDS))
    server = llm_server(rule)
    result = verified(server, "letters")
    assert mrr(result) == pytest.approx(PERFECT)
    assert result.details["c3"]["share"] == pytest.approx(0.8)
    assert result.details["c3"]["none"] == pytest.approx(0.02)
    assert result.details["c9"]["none"] == pytest.approx(0.8)
    assert result.notes["c9"] == "none of the first 10 fits: ranking unchanged"
    assert result.run.scored("c9") == RUN.scored("c9")
    body = server.bodies[-1]
    assert body["structured_outputs"] == {"choice": list("ABCDEFGHIJK")}
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    # In several orders the probabilities add up.
    with_votes = verified(server, "letters", votes=3, depth=12)
    assert mrr(with_votes) == pytest.approx(1.0) and with_votes.details["c5"]["asks"] == 2
    assert with_votes.sources("c9")[0] == "s09"
    with refused(ConfigError, "depth: 20 ", "1 to 19"):
        stage(server, "letters", depth=20)
    without_logprobs = llm_server(lambda chat: chat.choices[1])
    assert {f.reason for f in verified(without_logprobs, "letters").failures} == {NO_LOGPROBS}

    def thinks(chat: Chat) -> Reply:
        """Weigh another letter first, if a server lets a model think all the same."""
        reply = rule(chat)
        assert isinstance(reply, Reply)
        thought = [(token, -0.01, {token: -0.01}) for token in ("<think>", "B", "</think>")]
        text = f"<think>B</think>{reply.text}"
        return replace(reply, text=text, logprobs=[*thought, *reply.logprobs])

    thought = verified(llm_server(thinks), "letters")
    for claim, details in result.details.items():
        assert [thought.details[claim][key] for key in ("share", "none")] == [
            details[key] for key in ("share", "none")
        ]
    assert mrr(thought) == mrr(result)


def test_the_released_short_prompt_is_answered_by_a_number_or_none(llm_server: Start) -> None:
    short = {"prompt": "verify_short", "reply": "number"}
    perfect = llm_server(play.Verifier(play.perfect(GOLDS)))
    assert mrr(verified(perfect, **short)) == pytest.approx(PERFECT)
    replies = ["**4**", "Paper 2 fits", "none of them", "11", "the second", "2.5", "2, or 3", "0"]

    def reply(chat: Chat) -> str:
        return replies[int(chat.data["post"][5])] if int(chat.data["post"][5]) < 8 else "1"

    result = verified(llm_server(reply), **short)
    picks = [RUN.sources(f"c{i}").index(result.sources(f"c{i}")[0]) + 1 for i in range(8)]
    assert picks == [4, 2, 1, 1, 1, 1, 2, 1]
    failed = {f.claim_id: f.reason for f in result.failures}
    assert failed == {
        "c3": "chooses a paper that is not among 1 to 10",
        "c4": NO_NUMBER,
        "c5": NO_NUMBER,
        "c7": "chooses a paper that is not among 1 to 10",
    }
    assert result.notes["c2"].startswith("none of the first 10")


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ('"Paper 4 is the one", says the post, but I choose 2.', None),
        ("> 4\n\n2", None),
        ("“4” says the post. 2", None),
        ('"4"', 4),
        ('**"4"**. It fits.', 4),
        ('**Paper 4**: the post\'s "<think>"', 4),
        ("None. The post quotes `</think>`.", 11),
    ],
)
def test_a_quoted_number_is_no_choice(reply: str, chosen: int | None) -> None:
    select = Select(llm=LLMConfig("m"), prompt="verify_short", reply="number")
    answer = read_reply(select.request("c", (Message("user", "x" * 100),), 10), reply, "stop")
    vote = select.vote(answer, 10)
    assert vote == NO_NUMBER if chosen is None else vote.weights.argmax() + 1 == chosen


def test_a_quoted_verdict_does_not_win_over_the_models_own(llm_server: Start) -> None:
    quoted = '{"reasoning": "", "selected_paper": 7}'
    own = '{"reasoning": "It holds </think> and <think>.", "selected_paper": 2}'
    replies = {"c0": f"{own}\nThe post has {quoted}", "c1": f"The post has {quoted}\n{own}"}
    replies["c2"] = own

    def reply(chat: Chat) -> str:
        return replies.get(f"c{chat.data['post'][5]}", own)

    result = verified(llm_server(reply))
    assert {failure.claim_id: failure.reason for failure in result.failures} == {
        "c0": SEVERAL,
        "c1": SEVERAL,
    }
    assert result.sources("c0") == RUN.sources("c0")
    assert result.sources("c2")[0] == RUN.sources("c2")[1]


def test_faulty_replies_leave_the_ranking_and_are_counted(llm_server: Start) -> None:
    """Of ten claims one gets no JSON, one a paper that is not there, one a word for a number."""
    spoilt = {3: "I choose 2", 4: '{"reasoning": "", "selected_paper": 11}'}
    spoilt[5] = '{"reasoning": "", "selected_paper": "three"}'
    rule = play.Verifier(play.perfect(GOLDS))

    def reply(chat: Chat) -> str | Reply:
        return spoilt.get(int(chat.data["post"][5])) or rule(chat)

    result = verified(llm_server(reply))
    assert mrr(result) == pytest.approx(PERFECT - (1 / 2 + 1 / 2 + 2 / 3) / 10)
    assert {f.claim_id for f in result.failures} == {"c3", "c4", "c5"}
    assert [*result.run.scored("c4").items()] == [*RUN.scored("c4").items()]
    assert result.notes["c4"] == "no usable answer: ranking unchanged"
    # A server with temporary faults, and votes some of which fail: nothing is lost.
    shaky = llm_server(rule, faults=0.3, kinds=("500", "cut", "not json"))
    assert mrr(verified(shaky, llm={"retries": 6})) == pytest.approx(PERFECT)


def test_answers_are_kept_and_what_was_not_answered_is_asked_again(
    llm_server: Start, tmp_path: Path
) -> None:
    store, server = Store(tmp_path), llm_server(play.Verifier(play.perfect(GOLDS)))
    limited = stage(server, votes=3, llm={"max_tokens_total": 4_000})
    first = apply_stage(limited, CLAIMS, SOURCES, Result(RUN), store)
    asked = server.requests
    assert 0 < asked < 30 and not first.stored
    assert {f.reason.split(":")[0] for f in first.failures} == {"not asked"}
    second = apply_stage(limited, CLAIMS, SOURCES, Result(RUN), store)
    assert not second.stored and asked < server.requests < 30
    full = stage(server, votes=3)
    result = apply_stage(full, CLAIMS, SOURCES, Result(RUN), store)
    assert server.requests < 32 and not result.failures and mrr(result) == pytest.approx(PERFECT)
    rerun = apply_stage(full, CLAIMS, SOURCES, Result(RUN), store)
    assert rerun.stored and rerun.details == result.details and len(result.details) == 10
    assert (tmp_path / "answers.sqlite").is_file()
    # All answers are stored: another model config with the same requests costs nothing.
    before = server.requests
    wider = stage(server, votes=3, llm={"concurrency": 2})
    assert [*apply_stage(wider, CLAIMS, SOURCES, Result(RUN), store).run] == [*result.run]
    assert server.requests == before


def test_over_the_budget_authors_go_first_and_then_the_same_share_of_every_abstract(
    llm_server: Start,
) -> None:
    server = llm_server(play.Verifier(play.perfect(GOLDS)))
    names = tuple(f"{chr(65 + i)}na Author" for i in range(6))
    long = [
        Source(s.id, s.title, f"{s.id} word " * (40 * (1 + i % 2)), names, "Venue")
        for i, s in enumerate(SOURCES)
    ]
    claims = CLAIMS[:1]

    def prompt_of(budget: int) -> tuple[str, int]:
        stage(server, max_prompt_tokens=budget).apply(claims, long, RUN)
        body = server.bodies[-1]["messages"]
        size = sum(len(m["content"].encode()) for m in body) // 4 + 8 * len(body)
        assert size <= budget
        return body[-1]["content"], size

    text, full = prompt_of(100_000)
    assert text.count("Authors: ") == 10 and " .." not in text
    text, shorter = prompt_of(full - 1)
    assert "Authors: " not in text and "Venue: " in text and " .." not in text and shorter < full
    text, shortest = prompt_of(shorter - 500)
    assert text.count(" ..\n") == 10 and shorter - shortest < 530
    lengths = [len(part) for part in text.split("Abstract: ")[1:]]
    # Long abstracts stay twice as long as short ones.
    assert 1.7 < lengths[0] / lengths[1] < 2.3 or 1.7 < lengths[1] / lengths[0] < 2.3
    none = stage(server, max_prompt_tokens=200, votes=3).apply(claims, long, RUN)
    assert [f.reason for f in none.failures] == [OVER_BUDGET]
    assert none.details["c0"]["asks"] == 0 and [*none.run] == [*RUN.restricted(["c0"])]


def test_forms_of_claims_and_papers_are_settings(llm_server: Start) -> None:
    server = llm_server(play.Verifier(play.first_shown))
    english = Claim("e", "English post", "en")
    lost = Claim("c1", "Nur deutsch", "de")
    run = Run.from_lists({c: RUN.scored(c).items() for c in ("c0", "c1")} | {"e": ranked(0, 1)})

    def data(claim: Claim, **settings: Any) -> dict[str, str]:
        result = stage(server, **settings).apply([claim], SOURCES, run)
        assert ("no translation" in result.notes[claim.id]) == (
            claim is lost and settings.get("claims") != "original"
        )
        return Chat(server.bodies[-1]).data

    assert set(data(CLAIMS[0], claims="original")) == {"post", "papers"}
    assert data(CLAIMS[0], claims="translated")["post"] == "Translation 0"
    assert set(data(english)) == {"post", "papers"} and data(lost)["post"] == "Nur deutsch"
    assert "Authors" not in data(CLAIMS[0], sources="title_abstract")["papers"]
    assert "Venue: Venue Authors: Ann Lee, Bo Ek" in data(CLAIMS[0], sources="released")["papers"]


def test_settings_are_checked_when_they_are_read(llm_server: Start, tmp_path: Path) -> None:
    server = llm_server()
    with refused(InputError, "variables"):
        stage(server, prompt="support")
    # Another text of the prompt is another stage.
    own = tmp_path / "own.yaml"
    own.write_text((c2s.text.prompts.PROMPTS / "verify_short.yaml").read_text())
    first = stage(server, prompt=str(own)).identity
    own.write_text(own.read_text().replace("stronger", "strongest"))
    assert stage(server, prompt=str(own)).identity != first
    # With a single source no request is sent.
    run = Run.from_lists({"c0": [("s00", 1.0)], "c1": []})
    result = stage(server).apply(CLAIMS[:2], SOURCES, run)
    assert [*result.run] == [*run] and server.requests == 0
