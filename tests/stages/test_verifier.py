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
    Source(
        f"s{i:02}",
        f"Title {i:02}.",
        f"Abstract of {i}. " * 3,
        ("Ann Lee", "Bo Ek"),
        "Venue",
    )
    for i in range(LENGTH)
]


def ranked(gold: int, rank: int) -> list[tuple[str, float]]:
    """A list with the gold s{place} at a rank."""
    gold_id = SOURCES[gold].id
    ids = [source.id for source in SOURCES if source.id != gold_id]
    ids.insert(rank - 1, gold_id)
    return [(source, 1 - i / 20) for i, source in enumerate(ids)]


CLAIMS = [
    Claim(
        f"c{i}",
        f"Post {i} about it",
        "de",
        f"Translation {i}",
        golds=(SOURCES[i].id,),
    )
    for i in range(len(RANKS))
]
RUN = Run.from_lists({f"c{i}": ranked(i, rank) for i, rank in enumerate(RANKS)})
QRELS = Qrels({claim.id: {claim.golds[0]: 1} for claim in CLAIMS})
DATA = Dataset(
    tuple(CLAIMS),
    tuple(SOURCES),
    QRELS,
    "dev",
)
GOLDS = {claim.text: SOURCES[i].title for i, claim in enumerate(CLAIMS)}
BEFORE = (3 * 1 + 2 / 2 + 1 / 3 + 1 / 4) / 10
# Whoever knows the gold finds it within the first ten.
PERFECT = 9 / 10
Start = Callable[..., LLMServer]


def stage(server: LLMServer, kind: str = "select", **settings: Any) -> Verifier:
    llm = {
        "model": "m",
        "url": server.url,
        "retries": 0,
        **settings.pop("llm", {}),
    }
    entry = {"verify": kind, "llm": llm, **settings}
    verifier = read_stage(entry).stage
    assert isinstance(verifier, Verifier)
    return verifier


def verified(server: LLMServer, kind: str = "select", **settings: Any) -> Result:
    verifier = stage(server, kind, **settings)
    return verifier.apply(CLAIMS, SOURCES, RUN)


def knowing() -> play.Verifier:
    """Play a verifier that knows every gold."""
    return play.Verifier(play.perfect(GOLDS))


def number_in(chat: Chat) -> int:
    """Read which claim's post is shown."""
    return int(chat.data["post"][5])


def reasons(result: Result) -> dict[str, str]:
    """Index the reasons of failures by claim."""
    return {failure.claim_id: failure.reason for failure in result.failures}


def mrr(result: Result | Run) -> float:
    run = result.run if isinstance(result, Result) else result
    report = c2s.evaluate(run, DATA, ["mrr@5"], repeats=0)
    return report.macro["mrr@5"]


def by_hand(picks: Mapping[str, int]) -> float:
    """The MRR@5 after each claim's source at this rank (from 1) has moved to the front."""
    ranks: list[float] = []
    for i, rank in enumerate(RANKS):
        place_taken = picks.get(f"c{i}", 1)
        moved_down = rank < place_taken
        now = 1 if place_taken == rank else rank + moved_down
        ranks.append(1 / now if now <= 5 else 0)
    return sum(ranks) / len(ranks)


def test_a_perfect_verifier_finds_every_gold_it_is_shown(llm_server: Start) -> None:
    rule = knowing()
    result = verified(llm_server(rule))
    assert mrr(RUN) == pytest.approx(BEFORE)
    assert mrr(result) == pytest.approx(PERFECT)
    # All but the chosen one keep their order; s09, whose gold is not shown, its whole ranking.
    for i, rank in enumerate(RANKS):
        ids = RUN.sources(f"c{i}")
        first = ids.pop(rank - 1 if rank <= 10 else 0)
        assert result.sources(f"c{i}") == [first, *ids]
    assert result.notes["c3"] == "rank 2 chosen: It fits."
    assert not result.failures
    assert result.notes["c0"] == "first rank confirmed: It fits."
    # As 1 on scores from 0 to 1: the range of the list above the first.
    scores = list(result.scored("c4").values())
    assert scores[0] == pytest.approx(1 + 11 / 20)
    assert scores[1] == 1.0
    tokens = [detail["tokens"] for detail in result.details.values()]
    assert result.cost.tokens == sum(tokens)
    assert sum(tokens) > 1000

    # Requests come in any order.
    question = next(question for question, _ in rule.picks if question.post == "Post 3 about it")
    assert question.chat.data["translation"] == "Translation 3"
    labels = [label for label, _ in question.papers]
    assert labels == [str(i) for i in range(1, 11)]
    _, second_paper = question.papers[1]
    lines = second_paper.splitlines()
    assert lines[:3] == [
        "  Title: Title 03.",
        "  Venue: Venue",
        "  Authors: Ann Lee, Bo Ek",
    ]
    template_options = question.chat.body["chat_template_kwargs"]
    assert template_options == {"enable_thinking": False}


def test_votes_in_changing_orders_remove_the_bias_of_places(llm_server: Start) -> None:
    # Only the first shown paper is chosen: in ranked order nothing changes, shuffled it is chance.
    only_first = llm_server(play.Verifier(play.first_shown))
    assert mrr(verified(only_first)) == pytest.approx(BEFORE)
    shuffled = verified(only_first, shuffle=True)
    picks: dict[str, int] = {}
    for claim in CLAIMS:
        order = shown_order(claim.id, 0, 0, 10)
        picks[claim.id] = order[0] + 1
    assert mrr(shuffled) == pytest.approx(by_hand(picks))
    assert mrr(shuffled) < BEFORE
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
    rule = knowing()
    server = llm_server(rule)
    assert mrr(verified(server, votes=5)) == pytest.approx(PERFECT)
    # The gold of the last claim is not shown: each time another paper is chosen, to the end.
    assert server.requests == 3 * 9 + 5
    # Where the first rank leads, a tie changes nothing: two of four votes settle it.
    result = verified(server, votes=4)
    asks = [result.details[f"c{i}"]["asks"] for i in range(9)]
    assert asks == [2] * 3 + [3] * 6
    orders: set[tuple[str, ...]] = set()
    for question, _ in rule.picks:
        papers = [label + text for label, text in question.papers]
        orders.add(tuple(papers))
    assert len(orders) == 3 * 9 + 5


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_an_early_end_never_changes_what_all_votes_give(limit: int) -> None:
    """Every sequence of votes for two sources and none: the end is that of all votes."""

    def settled(votes: tuple[int, ...], early: bool) -> tuple[int, int]:
        poll = Poll(CLAIMS[0], ["a", "b"])
        done = 0
        while done < limit:
            count = poll.votes_needed(limit) if early else limit - done
            if not count:
                break
            for vote in votes[done : done + count]:
                poll.asks += 1
                poll.count(np.eye(3)[vote], [0, 1], "")
            done += count
        leader, _ = poll.lead()
        # None and a tie leave the ranking as it is.
        return int(leader == 1), done

    counts: list[int] = []
    for votes in itertools.product(range(3), repeat=limit):
        early, done = settled(votes, True)
        late, _ = settled(votes, False)
        assert early == late, votes
        counts.append(done)
    assert min(counts) == (limit + 1) // 2
    assert max(counts) == limit


def test_every_paper_is_at_every_place_once() -> None:
    for first in (0, 10):
        orders = [shown_order("c", 0, first + draw, 10) for draw in range(10)]
        columns = zip(*orders, strict=True)
        assert all(sorted(column) == list(range(10)) for column in columns)
    first_ten = shown_order("c", 0, 0, 10)
    next_ten = shown_order("c", 0, 10, 10)
    of_another = shown_order("d", 0, 10, 10)
    assert first_ten != next_ten
    assert next_ten != of_another


def test_letters_give_a_probability_for_every_paper_and_none(llm_server: Start) -> None:
    rule = knowing()
    server = llm_server(rule)
    result = verified(server, "letters")
    assert mrr(result) == pytest.approx(PERFECT)
    details = result.details["c3"]
    assert details["share"] == pytest.approx(0.8)
    assert details["none"] == pytest.approx(0.02)
    assert result.details["c9"]["none"] == pytest.approx(0.8)
    assert result.notes["c9"] == "none of the first 10 fits: ranking unchanged"
    assert result.run.scored("c9") == RUN.scored("c9")
    body = server.bodies[-1]
    assert body["structured_outputs"] == {"choice": list("ABCDEFGHIJK")}
    sampling = [body[key] for key in ("logprobs", "top_logprobs", "max_tokens")]
    assert sampling == [True, 20, 1]
    # In several orders the probabilities add up.
    with_votes = verified(server, "letters", votes=3, depth=12)
    assert mrr(with_votes) == pytest.approx(1.0)
    assert with_votes.details["c5"]["asks"] == 2
    assert with_votes.sources("c9")[0] == "s09"
    with refused(ConfigError, "depth: 20 ", "1 to 19"):
        stage(server, "letters", depth=20)
    without_logprobs = llm_server(lambda chat: chat.choices[1])
    failed = verified(without_logprobs, "letters")
    assert {failure.reason for failure in failed.failures} == {NO_LOGPROBS}

    def thinks(chat: Chat) -> Reply:
        """Weigh another letter first, if a server lets a model think all the same."""
        reply = rule(chat)
        assert isinstance(reply, Reply)
        tokens = ("<think>", "B", "</think>")
        thought = [(token, -0.01, {token: -0.01}) for token in tokens]
        text = f"<think>B</think>{reply.text}"
        return replace(reply, text=text, logprobs=[*thought, *reply.logprobs])

    thought = verified(llm_server(thinks), "letters")
    for claim, details in result.details.items():
        thought_details = thought.details[claim]
        assert thought_details["share"] == details["share"]
        assert thought_details["none"] == details["none"]
    assert mrr(thought) == mrr(result)


def test_the_released_short_prompt_is_answered_by_a_number_or_none(llm_server: Start) -> None:
    short = {"prompt": "verify_short", "reply": "number"}
    perfect = llm_server(knowing())
    assert mrr(verified(perfect, **short)) == pytest.approx(PERFECT)
    replies = [
        "**4**",
        "Paper 2 fits",
        "none of them",
        "11",
        "the second",
        "2.5",
        "2, or 3",
        "0",
    ]

    def reply(chat: Chat) -> str:
        number = number_in(chat)
        return replies[number] if number < 8 else "1"

    result = verified(llm_server(reply), **short)
    picks: list[int] = []
    for i in range(8):
        first = result.sources(f"c{i}")[0]
        rank_before = RUN.sources(f"c{i}").index(first) + 1
        picks.append(rank_before)
    assert picks == [4, 2, 1, 1, 1, 1, 2, 1]
    assert reasons(result) == {
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
    message = Message("user", "x" * 100)
    request = select.request("c", (message,), 10)
    answer = read_reply(request, reply, "stop")
    vote = select.vote(answer, 10)
    if chosen is None:
        assert vote == NO_NUMBER
    else:
        assert vote.weights.argmax() + 1 == chosen


def test_a_quoted_verdict_does_not_win_over_the_models_own(llm_server: Start) -> None:
    quoted = '{"reasoning": "", "selected_paper": 7}'
    own = '{"reasoning": "It holds </think> and <think>.", "selected_paper": 2}'
    replies = {
        0: f"{own}\nThe post has {quoted}",
        1: f"The post has {quoted}\n{own}",
        2: own,
    }

    def reply(chat: Chat) -> str:
        return replies.get(number_in(chat), own)

    result = verified(llm_server(reply))
    assert reasons(result) == {
        "c0": SEVERAL,
        "c1": SEVERAL,
    }
    assert result.sources("c0") == RUN.sources("c0")
    before = RUN.sources("c2")
    after = result.sources("c2")
    assert after[0] == before[1]


def test_faulty_replies_leave_the_ranking_and_are_counted(llm_server: Start) -> None:
    """Of ten claims one gets no JSON, one a paper that is not there, one a word for a number."""
    spoilt = {
        3: "I choose 2",
        4: '{"reasoning": "", "selected_paper": 11}',
        5: '{"reasoning": "", "selected_paper": "three"}',
    }
    rule = knowing()

    def reply(chat: Chat) -> str | Reply:
        return spoilt.get(number_in(chat)) or rule(chat)

    result = verified(llm_server(reply))
    lost = (1 / 2 + 1 / 2 + 2 / 3) / 10
    assert mrr(result) == pytest.approx(PERFECT - lost)
    assert {*reasons(result)} == {"c3", "c4", "c5"}
    scores_after = result.run.scored("c4")
    scores_before = RUN.scored("c4")
    assert [*scores_after.items()] == [*scores_before.items()]
    assert result.notes["c4"] == "no usable answer: ranking unchanged"
    # A server with temporary faults, and votes some of which fail: nothing is lost.
    faults = ("500", "cut", "not json")
    shaky = llm_server(rule, faults=0.3, kinds=faults)
    result = verified(shaky, llm={"retries": 6})
    assert mrr(result) == pytest.approx(PERFECT)


def test_answers_are_kept_and_what_was_not_answered_is_asked_again(
    llm_server: Start, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    server = llm_server(knowing())

    def stored(verifier: Verifier) -> Result:
        return apply_stage(verifier, CLAIMS, SOURCES, Result(RUN), store)

    limited = stage(server, votes=3, llm={"max_tokens_total": 4_000})
    first = stored(limited)
    asked = server.requests
    assert 0 < asked < 30
    assert not first.stored
    kinds = {failure.reason.split(":")[0] for failure in first.failures}
    assert kinds == {"not asked"}
    second = stored(limited)
    assert not second.stored
    assert asked < server.requests < 30

    full = stage(server, votes=3)
    result = stored(full)
    assert server.requests < 32
    assert not result.failures
    assert mrr(result) == pytest.approx(PERFECT)
    rerun = stored(full)
    assert rerun.stored
    assert rerun.details == result.details
    assert len(result.details) == 10
    assert (tmp_path / "answers.sqlite").is_file()

    # All answers are stored: another model config with the same requests costs nothing.
    before = server.requests
    wider = stage(server, votes=3, llm={"concurrency": 2})
    again = stored(wider)
    assert [*again.run] == [*result.run]
    assert server.requests == before


def test_over_the_budget_authors_go_first_and_then_the_same_share_of_every_abstract(
    llm_server: Start,
) -> None:
    server = llm_server(knowing())
    names = tuple(f"{chr(65 + i)}na Author" for i in range(6))
    long: list[Source] = []
    for i, source in enumerate(SOURCES):
        count = 40 * (1 + i % 2)
        abstract = f"{source.id} word " * count
        long.append(Source(source.id, source.title, abstract, names, "Venue"))
    claims = CLAIMS[:1]

    def prompt_of(budget: int) -> tuple[str, int]:
        verifier = stage(server, max_prompt_tokens=budget)
        verifier.apply(claims, long, RUN)
        messages = server.bodies[-1]["messages"]
        sizes = [len(message["content"].encode()) for message in messages]
        size = sum(sizes) // 4 + 8 * len(messages)
        assert size <= budget
        return messages[-1]["content"], size

    text, full = prompt_of(100_000)
    assert text.count("Authors: ") == 10
    assert " .." not in text
    text, shorter = prompt_of(full - 1)
    assert "Authors: " not in text
    assert "Venue: " in text
    assert " .." not in text
    assert shorter < full
    text, shortest = prompt_of(shorter - 500)
    assert text.count(" ..\n") == 10
    assert shorter - shortest < 530
    abstracts = text.split("Abstract: ")[1:]
    first, second, *_ = [len(part) for part in abstracts]
    # Long abstracts stay twice as long as short ones.
    assert 1.7 < first / second < 2.3 or 1.7 < second / first < 2.3

    short_of_tokens = stage(server, max_prompt_tokens=200, votes=3)
    none = short_of_tokens.apply(claims, long, RUN)
    assert [failure.reason for failure in none.failures] == [OVER_BUDGET]
    assert none.details["c0"]["asks"] == 0
    assert [*none.run] == [*RUN.restricted(["c0"])]


def test_forms_of_claims_and_papers_are_settings(llm_server: Start) -> None:
    server = llm_server(play.Verifier(play.first_shown))
    english = Claim("e", "English post", "en")
    lost = Claim("c1", "Nur deutsch", "de")
    lists = {c: RUN.scored(c).items() for c in ("c0", "c1")}
    run = Run.from_lists(lists | {"e": ranked(0, 1)})

    def data(claim: Claim, **settings: Any) -> dict[str, str]:
        verifier = stage(server, **settings)
        result = verifier.apply([claim], SOURCES, run)
        lacks_translation = claim is lost and settings.get("claims") != "original"
        says_so = "no translation" in result.notes[claim.id]
        assert says_so == lacks_translation
        return Chat(server.bodies[-1]).data

    first = CLAIMS[0]
    original = data(first, claims="original")
    assert set(original) == {"post", "papers"}
    translated = data(first, claims="translated")
    assert translated["post"] == "Translation 0"
    assert set(data(english)) == {"post", "papers"}
    assert data(lost)["post"] == "Nur deutsch"
    without_names = data(first, sources="title_abstract")
    assert "Authors" not in without_names["papers"]
    released = data(first, sources="released")
    assert "Venue: Venue Authors: Ann Lee, Bo Ek" in released["papers"]


def test_settings_are_checked_when_they_are_read(llm_server: Start, tmp_path: Path) -> None:
    server = llm_server()
    with refused(InputError, "variables"):
        stage(server, prompt="support")
    # Another text of the prompt is another stage.
    own = tmp_path / "own.yaml"
    released = c2s.text.prompts.PROMPTS / "verify_short.yaml"
    own.write_text(released.read_text())
    first = stage(server, prompt=str(own)).identity
    changed = own.read_text().replace("stronger", "strongest")
    own.write_text(changed)
    second = stage(server, prompt=str(own)).identity
    assert second != first

    # With a single source no request is sent.
    run = Run.from_lists({"c0": [("s00", 1.0)], "c1": []})
    result = stage(server).apply(CLAIMS[:2], SOURCES, run)
    assert [*result.run] == [*run]
    assert server.requests == 0
