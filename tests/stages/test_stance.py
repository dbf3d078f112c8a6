"""Stances of posts towards rumours: cosine, a language model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.data.rumors import LABELS
from claim2source.llm import LLMConfig
from claim2source.stages.max_sim import Cosine
from claim2source.stages.pairs import Pair
from claim2source.stages.stance import Stance, mean_stance, to_verdict
from tests.llm_server import Chat, LLMServer
from tests.models.test_dense_layer import save_t5
from tests.refusals import refused

Start = Callable[..., LLMServer]


def judge(server: LLMServer, **settings: object) -> Stance:
    llm = LLMConfig(
        server.model,
        server.url,
        retries=0,
        concurrency=1,
        seed=1,
    )
    stage = Stance(llm=llm)
    return replace(stage, **settings)  # type: ignore[arg-type]


def score(value: float) -> str:
    """The reply of a judge."""
    return json.dumps({"score": value})


@pytest.mark.parametrize("summaries", [False, True])
def test_k_versions_of_both_are_judged_and_averaged(llm_server: Start, summaries: bool) -> None:
    def rule(chat: Chat) -> str:
        if "post" in chat.data:
            kind = "summary" if "Sum up" in chat.system else "rewrite"
            seed = chat.body["seed"]
            return f"{kind} {seed} of {chat.data['post']}"
        kind, number, *_ = chat.data["tweet"].split()
        expected_kind = "summary" if summaries else "rewrite"
        assert kind == expected_kind
        assert chat.data["rumor"] == f"{kind} {number} of rumour"
        return score(int(number) - 2.5)

    server = llm_server(rule)
    stage = judge(server, rewrites=3, summaries=summaries)
    stances = stage.stances([Pair("rumour", "tweet")])
    # Seeds 1, 2 and 3.
    assert stances.values.tolist() == pytest.approx([-0.5])
    assert server.requests == 9


def test_failures_are_counted_and_leave_a_hole_only_where_all_fail(llm_server: Start) -> None:
    def rule(chat: Chat) -> str:
        if "post" in chat.data:
            post = chat.data["post"]
            if post == "tweet":
                return ""
            return f"in other words: {post}"
        is_bad = "bad" in chat.data["tweet"]
        return score(3 if is_bad else 2)

    pairs = [
        Pair("rumour", "tweet"),
        Pair("rumour", "bad tweet"),
    ]
    stage = judge(llm_server(rule), rewrites=1)
    stances = stage.stances(pairs)
    first, second = stances.values
    assert first == 2
    assert np.isnan(second)
    assert stances.reason == {
        0: ["rewrites: empty"],
        1: ["does not fit the schema"],
    }


def test_a_cosine_is_the_stance_and_pairs_may_repeat(tmp_path: Path) -> None:
    folder = save_t5(tmp_path, bias=False)
    cosine = Cosine(model=str(folder)).with_runtime(None, "cpu")
    pairs = [
        Pair("the user", "a b"),
        Pair("the user", "the user"),
        Pair("the user", "a b"),
    ]
    stage = Stance(by="cosine", model=cosine.model)
    stances = stage.with_runtime(None, "cpu").stances(pairs)
    different, same, again = stances.values
    assert same == pytest.approx(1)
    assert different == again
    assert again < 0.99
    own = cosine.pair_scores(pairs[:1])
    assert different == pytest.approx(own.scores[0])


def test_versions_need_a_temperature_and_summaries_rewrites() -> None:
    refused_settings = {
        "summaries": {"summaries": True},
        "rewrites": {"rewrites": 2},
    }
    stage = Stance(llm=LLMConfig("m"))
    for key, settings in refused_settings.items():
        with refused(ConfigError, key):
            replace(stage, temperature=0, **settings)  # type: ignore[arg-type]


# --- verdicts -----------------------------------------------------------------------------

YES, NO, OPEN = LABELS
NAN = float("nan")


@pytest.mark.parametrize(
    ("stances", "scores", "weights", "mean"),
    [
        (
            [2, -1],
            [3, 1],
            "raw",
            (2 * 3 - 1) / 4,
        ),
        (
            [2, -1, 1],
            [3, 1, 2],
            "min_max",
            (2 * 1 + 1 * 0.5) / 1.5,
        ),
        ([-2, -2], [4, 4], "min_max", -2),
        ([2, NAN], [1, 100], "raw", 2),
        ([NAN, 2, -1], [9, 3, 1], "min_max", 2),
        # The paper's formula unchanged: a weight below 0 inverts its stance.
        ([2, -1], [3, -1], "raw", (2 * 3 + 1) / 2),
        ([2, -1], [1, -1], "raw", None),
        ([NAN], [1], "raw", None),
        ([], [], "min_max", None),
    ],
)
def test_the_mean_is_weighted_by_the_scores(stances, scores, weights, mean) -> None:
    expected = mean if mean is None else pytest.approx(mean)
    assert mean_stance(stances, scores, weights) == expected


@pytest.mark.parametrize(
    ("mean", "label"),
    [
        (0.4, YES),
        (0.39, OPEN),
        (0.0, OPEN),
        (-0.39, OPEN),
        (-0.4, NO),
        (2, YES),
        (None, OPEN),
    ],
)
def test_verdicts_begin_at_the_threshold(mean: float | None, label: str) -> None:
    assert to_verdict(mean, 0.4) == label


def test_a_verdict_is_the_note_and_its_mean_the_detail(llm_server: Start) -> None:
    score_of = {
        "denied": -2,
        "confirmed": 1.5,
        "open": 0,
    }
    server = llm_server(lambda chat: score(score_of[chat.data["tweet"]]))
    sources = [Source(f"s{i}", abstract=text) for i, text in enumerate(score_of)]
    lists = {
        "no": [("s0", 3.0), ("s2", 1.0), ("s1", 0.5)],
        "yes": [("s1", 2.0)],
        "open": [("s2", 1.0)],
        "none": [],
    }
    claims = [Claim(name, "rumour") for name in lists]
    run = Run.from_lists(lists)
    stage = judge(server, depth=2)
    result = stage.apply(claims, sources, run)
    assert server.requests == 3  # a pair that is there twice is asked once
    assert result.cost.tokens
    assert result.notes == {
        "no": NO,
        "yes": YES,
        "open": OPEN,
        "none": OPEN,
    }
    means = {name: detail["stance"] for name, detail in result.details.items()}
    assert means == {
        "no": pytest.approx(-1.5),
        "yes": 1.5,
        "open": 0,
    }
    assert result.sources("no") == ["s0", "s2"]
    assert not result.failures

    dropping = replace(stage, drop_unverifiable=True)
    dropped = dropping.apply(claims, sources, run)
    left = [dropped.sources(claim.id) for claim in claims]
    assert left == [["s0", "s2"], ["s1"], [], []]
