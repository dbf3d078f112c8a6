"""`when`: a stage is applied to some claims only; requests without an answer are sent again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Failure, Result, Run
from claim2source.data.store import Store
from claim2source.llm.work import NO_REPLY, NOT_ASKED
from claim2source.systems.conditions import WhenConfig, share_asked, top_margin
from claim2source.systems.read import make_system, read_stage
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import StageResult, apply_stage
from tests.refusals import refused

CLAIMS = [
    Claim("wide", "wide"),
    Claim("edge", "edge"),
    Claim("near", "near"),
    Claim("flat", "flat"),
    Claim("one", "one"),
    Claim("none", "none"),
]
SOURCES = [Source(letter, title=letter) for letter in "abc"]
# Margins by hand: 3/4, 1/5, 1/8, all equal, and nothing to choose.
SCORES = {
    "wide": (5.0, 2.0, 1.0),
    "edge": (6.0, 5.0, 1.0),
    "near": (5.0, 4.5, 1.0),
    "flat": (2.0, 2.0, 2.0),
    "one": (4.0,),
    "none": (),
}
LISTS = {claim: list(zip("abc", scores, strict=False)) for claim, scores in SCORES.items()}
RUN = Run.from_lists(LISTS)
ASKED: list[list[str]] = []


@dataclass(frozen=True)
class Last:
    """A stage that moves the last source to the front; `why` is its failure for each claim."""

    reason: str = ""
    depth: int = 3

    @cached_property
    def identity(self) -> dict[str, object]:
        return {"prompt": 1}

    def apply(self, claims: Any, sources: Any, run: Run) -> Result:
        asked = [claim.id for claim in claims]
        ASKED.append(asked)
        assert [*run.claim_ids] == asked
        assert len(sources) == 3
        lists = {}
        failures = []
        for claim in claims:
            ids = run.sources(claim.id)
            moved = [*ids[-1:], *ids[:-1]]
            lists[claim.id] = [(source, -i) for i, source in enumerate(moved)]
            if self.reason:
                failures.append(Failure(claim.id, self.reason))
        reranked = Run.from_lists(lists)
        return Result(reranked, failures=tuple(failures))


def test_margins_are_shares_of_the_lists_range() -> None:
    margins = [top_margin(RUN, claim.id) for claim in CLAIMS]
    expected = [0.75, 0.2, 0.125, 0.0, 1.0, 1.0]
    assert margins == pytest.approx(expected)


def test_only_claims_in_doubt_are_asked_and_the_others_keep_their_ranking(tmp_path: Path) -> None:
    ASKED.clear()
    stage = f"{__name__}.Last"
    when = {"margin_below": 0.2}
    read = read_stage({"verify": stage, "when": when})
    assert read.name == f"verify {stage}"
    assert read.depth == 3
    first = [StageResult("first", Result(RUN))]
    runtime = SystemRuntime(Store(tmp_path))
    result = read.apply(CLAIMS, SOURCES, first, runtime)
    # A margin at the limit is not in doubt, and equal scores are.
    assert ASKED == [["near", "flat"]]
    assert share_asked(result) == pytest.approx(2 / 6)
    assert result.run.claim_ids == RUN.claim_ids
    for claim in CLAIMS:
        before = list(RUN.scored(claim.id).items())
        after = list(result.scored(claim.id).items())
        is_asked = claim.id in ASKED[0]
        assert (after == before) != is_asked
    assert result.sources("near") == ["c", "a", "b"]
    assert result.sources("flat")[0] == "a"
    assert result.notes["wide"] == "ranking kept: a margin of 0.750"
    assert result.cost.items == 2

    # Read from the store, with the same stage behind another condition for the same claims.
    wider = replace(read, when=WhenConfig(0.15))
    rerun = wider.apply(CLAIMS, SOURCES, first, runtime)
    assert rerun.stored
    assert rerun.sources("near") == result.sources("near")
    assert len(ASKED) == 1

    # Without doubts no request is sent.
    never = replace(read, when=WhenConfig(0.0))
    sure = never.apply(CLAIMS, SOURCES, first, SystemRuntime())
    assert [*sure.run] == [*RUN]
    assert share_asked(sure) == 0
    assert len(ASKED) == 1


def test_claims_are_asked_about_where_the_stage_before_changed_their_first_source() -> None:
    earlier = Run.from_lists(
        {
            "wide": [("a", 9.0), ("b", 1.0)],
            "edge": [("c", 9.0), ("a", 1.0)],
            "near": [("a", 9.0)],
            "flat": [("c", 2.0)],
            "one": [("b", 1.0), ("a", 0.5)],
        }
    )

    def ids_asked(**when: Any) -> list[str]:
        ASKED.clear()
        stage = read_stage({"verify": f"{__name__}.Last", "when": when})
        before = [
            StageResult("first", Result(earlier)),
            StageResult("second", Result(RUN)),
        ]
        stage.apply(CLAIMS, SOURCES, before, SystemRuntime())
        return [claim for part in ASKED for claim in part]

    assert ids_asked(disagree=True) == ["edge"]
    in_doubt_too = ids_asked(disagree=True, margin_below=0.2)
    assert in_doubt_too == ["edge", "near", "flat"]


@pytest.mark.parametrize(
    ("when", "facts"),
    [
        ({}, ("when: ", "margin_below, disagree")),
        ({"margin": 0.2}, ("stages.2.when.margin: ", "margin_below")),
        (0.2, ("stages.2.when: 0.2",)),
    ],
)
def test_a_condition_is_checked_when_it_is_read(when: Any, facts: tuple[str, ...]) -> None:
    stage = {"verify": f"{__name__}.Last"}
    system = {"retrieve": {"bm25": {}}}
    conditional = {**stage, "when": when}
    with refused(ConfigError, *facts):
        make_system("A", {**system, "stages": [stage, conditional]})
    without_a_stage_before = {**stage, "when": {"disagree": True}}
    with refused(ConfigError, "stages.1.when.disagree: "):
        make_system("A", {**system, "stages": [without_a_stage_before]})


def test_what_a_server_has_not_answered_is_not_kept_as_done(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for reason, keeps in (
        ("not JSON", True),
        (f"{NO_REPLY}: x", False),
        (f"{NOT_ASKED}: y", False),
    ):
        stage = Last(reason)
        first = apply_stage(stage, CLAIMS, SOURCES, Result(RUN), store)
        second = apply_stage(stage, CLAIMS, SOURCES, Result(RUN), store)
        assert first.stored is False, reason
        assert second.stored is keeps, reason


def test_the_identity_of_any_stage_is_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def is_stored() -> bool:
        result = apply_stage(Last(), CLAIMS, SOURCES, Result(RUN), store)
        return result.stored

    is_stored()
    assert is_stored()
    monkeypatch.setattr(Last, "identity", {"prompt": 2})
    assert not is_stored()
