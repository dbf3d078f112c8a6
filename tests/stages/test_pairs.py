"""What all re-rankers share: depth, places, mixing, failures, and the store of pair scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.data.store import Store
from claim2source.stages import pairs
from claim2source.stages.pairs import NOT_A_NUMBER, Pair, RawScores, Reranker, Result

LETTERS = "abcdefgh"
SOURCES = [
    Source(
        letter,
        title=f"t{letter}",
        abstract=letter,
        venue="V",
    )
    for letter in LETTERS
]


@dataclass(frozen=True, kw_only=True)
class Table(Reranker):
    """A re-ranker that looks its scores up by the source's title, a pair at a time."""

    scores: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    fails_after: int = 10**9
    asked: list[Pair] = field(default_factory=list, compare=False)

    @property
    def label(self) -> str:
        return "table"

    @cached_property
    def identity(self) -> Mapping[str, object]:
        return {"version": self.version}

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        for position in reversed(range(len(pairs))):
            if len(self.asked) == self.fails_after:
                raise KeyboardInterrupt
            pair = pairs[position]
            self.asked.append(pair)
            first_line = pair.source.split("\n")[0]
            title = first_line.removeprefix("Title: ").split(".")[0]
            reason = {} if title in self.scores else {position: "no such title"}
            score = self.scores.get(title, np.nan)
            yield RawScores(
                [position],
                np.float32([score]),
                reason,
                tokens=2,
            )


def run_of(*orders: str) -> Run:
    lists: dict[str, list[tuple[str, float]]] = {}
    for claim, order in enumerate(orders):
        lists[str(claim)] = [(s, 10.0 - rank) for rank, s in enumerate(order)]
    return Run.from_lists(lists)


def apply(stage: Reranker, *orders: str, store: Store | None = None) -> Result:
    claims = [Claim(str(i), f"claim {i}") for i in range(len(orders))]
    ready = stage.with_runtime(store, "cpu")
    return ready.apply(claims, SOURCES, run_of(*orders))


def order(result: Result, claim: str = "0") -> str:
    return "".join(result.sources(claim))


def test_the_first_sources_get_raw_scores_and_what_is_beyond_keeps_its_place_below() -> None:
    scores = {
        "ta": -7.5,
        "tb": -5.25,
        "tc": -6.0,
        "td": 99.0,
        "te": 98.0,
    }
    table = Table(depth=3, scores=scores)
    result = apply(table, "abcde")
    assert result.scored("0") == {
        "b": -5.25,
        "c": -6.0,
        "a": -7.5,
        "d": -8.5,
        "e": -9.5,
    }
    assert result.notes["0"] == "3 of 5 sources re-ranked"
    assert len(table.asked) == 3
    assert not result.failures
    assert result.cost.tokens == 6
    # A list that is shorter than the depth, and a claim for which nothing was found.
    deep = Table(depth=9, scores={"ta": 1.0, "tb": 2.0})
    short = apply(deep, "ab", "")
    assert order(short) == "ba"
    assert order(short, "1") == ""
    assert short.notes["1"] == "0 of 0 sources re-ranked"


def test_equal_scores_keep_the_first_stages_order_whatever_the_ids() -> None:
    equal_scores = dict.fromkeys(("ta", "tb", "tc", "td"), 3.5)
    for ranking in ("abcd", "dcba", "bdac"):
        result = apply(Table(scores=equal_scores), ranking)
        assert order(result) == ranking
        values = list(result.scored("0").values())
        assert np.allclose(values, 3.5, atol=1e-5)
    # Also where the mix makes them equal, and behind them.
    with_best = equal_scores | {"te": 9.0}
    result = apply(Table(scores=with_best, depth=5), "cabdeh")
    assert order(result) == "ecabdh"


def test_a_pair_without_score_keeps_its_rank_and_is_counted() -> None:
    scores = {
        "ta": 1.0,
        "tc": 3.0,
        "td": 2.0,
        "te": float("nan"),
    }
    result = apply(Table(scores=scores), "abcde")
    assert order(result) == "cbdae"  # b and e stay where they were
    reasons = result.failure_counts()
    assert reasons == {"no such title": 1, NOT_A_NUMBER: 1}
    # The first rank, and a claim without any score.
    two = Table(scores={"tb": 1.0, "tc": 2.0})
    none = apply(two, "abc", "fgh")
    assert order(none) == "acb"
    assert none.scored("1") == {"f": 10.0, "g": 9.0, "h": 8.0}
    assert none.failure_counts() == {"no such title": 4}
    endless = Table(scores={"ta": float("inf"), "tb": 1.0})
    infinite = apply(endless, "ba")
    assert order(infinite) == "ba"
    assert infinite.failure_counts() == {NOT_A_NUMBER: 1}


def test_scores_are_mixed_with_the_first_stages() -> None:
    """Hand-computed: first 10, 9, 8 -> 1, 0.5, 0; own 0, 1, 4 -> 0, 0.25, 1."""
    scores = {"ta": 0.0, "tb": 1.0, "tc": 4.0}
    mixing = Table(scores=scores, mix=0.25, depth=3)
    linear = apply(mixing, "abcd")
    expected = {
        "c": 0.75,
        "b": 0.3125,
        "a": 0.25,
        "d": -0.75,
    }
    assert linear.scored("0") == pytest.approx(expected)
    only_first = apply(Table(scores=scores, mix=1.0), "abc")
    assert order(only_first) == "abc"


def test_the_form_of_claims_and_sources_is_what_is_scored() -> None:
    claims = [
        Claim("0", "auf Deutsch", "de", "in English"),
        Claim("1", "sans", "fr"),
    ]

    def asked(**settings: str) -> list[Pair]:
        table = Table(scores={"ta": 1.0}, **settings)  # type: ignore[arg-type]
        result = table.apply(claims, SOURCES, run_of("a", "a"))
        says_so = "no translation" in result.notes["1"]
        assert says_so == (settings.get("claims") != "original")
        return table.asked[::-1]

    assert asked() == [
        Pair("in English", "Title: ta\nVenue: V\nAbstract: a"),
        Pair("sans", "Title: ta\nVenue: V\nAbstract: a"),
    ]
    original = asked(sources="title_abstract", claims="original")
    assert original[0] == Pair("auf Deutsch", "ta. a")
    bilingual = asked(claims="bilingual")
    assert bilingual[0].claim == "auf Deutsch\nin English"


def test_scores_are_kept_by_both_texts_and_the_model(tmp_path: Path) -> None:
    store = Store(tmp_path)
    scores = {f"t{letter}": 1.0 + i / 3000 for i, letter in enumerate(LETTERS)}

    def asked(*orders: str, **settings: object) -> int:
        table = Table(scores=scores, **settings)  # type: ignore[arg-type]
        without_store = Table(scores=scores, depth=table.depth)
        fresh = apply(without_store, *orders)
        result = apply(table, *orders, store=store)
        assert list(result.run) == list(fresh.run)
        return len(table.asked)

    assert asked("abc", depth=2) == 2
    assert asked(LETTERS, depth=8) == 6  # deeper: only what is new
    assert asked("hgfedcba", depth=8) == 0
    assert asked("abc", "abc") == 3  # another claim
    assert asked("abc", version=2) == 3
    assert asked("abc", sources="title_abstract", claims="original") == 3
    # One text in two sources or claims is one pair.
    twice = Table(scores=scores)
    claims = [Claim("0", "same"), Claim("1", "same")]
    twice.apply(claims, SOURCES, run_of("ab", "ba"))
    assert len(twice.asked) == 2


@pytest.mark.parametrize("shard", [3, 10**6])
def test_what_was_scored_before_it_was_killed_is_not_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    monkeypatch.setattr(pairs, "_SHARD", shard)
    store = Store(tmp_path)
    scores = {f"t{letter}": 1.0 for letter in LETTERS}
    killed = Table(scores=scores, fails_after=5)
    with pytest.raises(KeyboardInterrupt):
        apply(killed, LETTERS, store=store)
    rest = Table(scores=scores)
    result = apply(rest, LETTERS, store=store)
    assert order(result) == LETTERS
    assert len(rest.asked) == 3
