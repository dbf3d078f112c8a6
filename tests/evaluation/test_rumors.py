"""Measures of the rumour task: by hand, and against scikit-learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from claim2source.core.run import Run
from claim2source.data.rumors import LABELS, Rumors, load_rumors
from claim2source.evaluation.rumors import score_rumors
from claim2source.metrics.verdicts import macro_f1
from tests.refusals import refused
from tests.rumor_files import DENIED, OPEN, rumor, write_rumors

YES, NO, OPEN_LABEL = LABELS
labels = st.sampled_from(LABELS)


@given(st.lists(st.tuples(labels, labels, st.booleans()), min_size=1, max_size=12))
def test_macro_f1_is_scikits_over_the_labels_that_occur(rows: list[tuple[str, str, bool]]) -> None:
    actual, predicted, evidenced = zip(*rows, strict=True)
    occur = sorted(set(actual))
    expected = f1_score(actual, predicted, labels=occur, average="macro", zero_division=0)
    assert macro_f1(actual, predicted) == pytest.approx(expected)
    assert macro_f1(actual, predicted, evidenced) <= macro_f1(actual, predicted) + 1e-12


def test_a_right_label_without_evidence_is_a_false_positive_and_no_miss() -> None:
    actual, predicted = [YES, YES, NO], [YES, YES, NO]
    # SUPPORTS: one right, one wrong, none missed: precision 1/2, recall 1.
    assert macro_f1(actual, predicted, [True, False, True]) == pytest.approx((2 / 3 + 1) / 2)
    assert macro_f1(actual, predicted, [False, False, True]) == pytest.approx(0.5)


@pytest.fixture
def rumors(tmp_path: Path) -> Rumors:
    return load_rumors(write_rumors(tmp_path / "dev.json"))


FOUND = {"r1": [("r1/12", 3.0), ("r1/11", 2.0)], "r2": [("r2/21", 1.0), ("r2/23", 0.5)]}


def test_measures_by_hand(rumors: Rumors) -> None:
    run = Run.from_lists({**FOUND, "r3": [("r3/31", 1.0)]})
    predicted = {"r1": NO, "r2": YES, "r3": YES}
    scores = score_rumors(rumors, run, predicted, repeats=200)
    # r1: its one tweet second; r2: one of two, first; r3: something retrieved for nothing.
    assert scores.average_precision == {"r1": 0.5, "r2": 0.5}
    assert scores.values["map"] == 0.5 and scores.values["recall@5"] == 0.75
    assert scores.values["map_task"] == pytest.approx(1 / 3)
    # NO 1, YES 2/3, unverifiable 0.
    assert scores.values["macro_f1"] == pytest.approx(5 / 9)
    nothing = score_rumors(rumors, Run.from_lists(FOUND), predicted)
    assert nothing.values["map_task"] == pytest.approx(2 / 3)
    assert nothing.values["map"] == 0.5 and nothing.intervals is None
    assert scores.intervals is not None
    for name, value in scores.defined.items():
        low, high = scores.intervals.values[name]["macro"]
        assert low <= value <= high and (low < high or name == "map"), name


def test_strict_asks_for_one_right_tweet_except_where_there_is_none(rumors: Rumors) -> None:
    predicted = {"r1": NO, "r2": YES, "r3": OPEN_LABEL}
    missed = Run.from_lists({"r1": [("r1/12", 1.0)], "r2": [("r2/22", 1.0)], "r3": []})
    scores = score_rumors(rumors, missed, predicted)
    assert scores.values["macro_f1"] == 1
    assert scores.values["strict_macro_f1"] == pytest.approx(2 / 3)
    assert score_rumors(rumors, Run.from_lists(FOUND), predicted).values["strict_macro_f1"] == 1


def test_only_the_first_five_tweets_count(tmp_path: Path) -> None:
    deep = rumor("r1", "text", {str(i): f"tweet {i}" for i in range(7)}, NO, ["5", "6"])
    rumors = load_rumors(write_rumors(tmp_path / "dev.json", [deep]))
    run = Run.from_lists({"r1": [(f"r1/{i}", float(-i)) for i in range(7)]})
    scores = score_rumors(rumors, run, {"r1": NO})
    assert scores.values["map"] == scores.values["recall@5"] == 0
    assert scores.values["strict_macro_f1"] == 0 and scores.values["macro_f1"] == 1


def test_without_verdicts_or_evidence_there_is_no_value(tmp_path: Path) -> None:
    rumors = load_rumors(write_rumors(tmp_path / "dev.json", [OPEN]))
    scores = score_rumors(rumors, Run.from_lists({"r3": []}), {"r3": None}, repeats=10)
    assert scores.defined == {"map_task": 1.0}
    assert scores.values["map"] is None and scores.values["macro_f1"] is None
    blind = [{k: v for k, v in DENIED.items() if k not in ("label", "evidence")}]
    with refused(ValueError, "labels"):
        score_rumors(load_rumors(write_rumors(tmp_path / "t.json", blind)), Run.from_lists({}), {})
