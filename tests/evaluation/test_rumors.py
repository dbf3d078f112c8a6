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
labelled = st.tuples(labels, labels, st.booleans())


@given(st.lists(labelled, min_size=1, max_size=12))
def test_macro_f1_is_scikits_over_the_labels_that_occur(rows: list[tuple[str, str, bool]]) -> None:
    actual, predicted, evidenced = zip(*rows, strict=True)
    occur = sorted(set(actual))
    expected = f1_score(
        actual,
        predicted,
        labels=occur,
        average="macro",
        zero_division=0,
    )
    plain = macro_f1(actual, predicted)
    assert plain == pytest.approx(expected)
    strict = macro_f1(actual, predicted, evidenced)
    assert strict <= plain + 1e-12


def test_a_right_label_without_evidence_is_a_false_positive_and_no_miss() -> None:
    actual = [YES, YES, NO]
    predicted = [YES, YES, NO]
    # SUPPORTS: one right, one wrong, none missed: precision 1/2, recall 1.
    one_right = macro_f1(actual, predicted, [True, False, True])
    assert one_right == pytest.approx((2 / 3 + 1) / 2)
    none_right = macro_f1(actual, predicted, [False, False, True])
    assert none_right == pytest.approx(0.5)


@pytest.fixture
def rumors(tmp_path: Path) -> Rumors:
    path = write_rumors(tmp_path / "dev.json")
    return load_rumors(path)


FOUND = {
    "r1": [
        ("r1/12", 3.0),
        ("r1/11", 2.0),
    ],
    "r2": [
        ("r2/21", 1.0),
        ("r2/23", 0.5),
    ],
}


def test_measures_by_hand(rumors: Rumors) -> None:
    needless = {"r3": [("r3/31", 1.0)]}
    run = Run.from_lists({**FOUND, **needless})
    predicted = {"r1": NO, "r2": YES, "r3": YES}
    scores = score_rumors(rumors, run, predicted, repeats=200)
    values = scores.values
    # r1: its one tweet second; r2: one of two, first; r3: something retrieved for nothing.
    assert scores.average_precision == {"r1": 0.5, "r2": 0.5}
    assert values["map"] == 0.5
    assert values["recall@5"] == 0.75
    assert values["map_task"] == pytest.approx(1 / 3)
    # NO 1, YES 2/3, unverifiable 0.
    assert values["macro_f1"] == pytest.approx(5 / 9)

    found = Run.from_lists(FOUND)
    nothing = score_rumors(rumors, found, predicted)
    assert nothing.values["map_task"] == pytest.approx(2 / 3)
    assert nothing.values["map"] == 0.5
    assert nothing.intervals is None

    assert scores.intervals is not None
    for name, value in scores.defined.items():
        interval = scores.intervals.values[name]
        low, high = interval["macro"]
        assert low <= value <= high, name
        assert low < high or name == "map", name


def test_strict_asks_for_one_right_tweet_except_where_there_is_none(rumors: Rumors) -> None:
    predicted = {
        "r1": NO,
        "r2": YES,
        "r3": OPEN_LABEL,
    }
    missed = Run.from_lists(
        {
            "r1": [("r1/12", 1.0)],
            "r2": [("r2/22", 1.0)],
            "r3": [],
        }
    )
    scores = score_rumors(rumors, missed, predicted)
    assert scores.values["macro_f1"] == 1
    assert scores.values["strict_macro_f1"] == pytest.approx(2 / 3)

    found = Run.from_lists(FOUND)
    scores = score_rumors(rumors, found, predicted)
    assert scores.values["strict_macro_f1"] == 1


def test_only_the_first_five_tweets_count(tmp_path: Path) -> None:
    tweets = {str(i): f"tweet {i}" for i in range(7)}
    deep = rumor("r1", "text", tweets, NO, ["5", "6"])
    path = write_rumors(tmp_path / "dev.json", [deep])
    rumors = load_rumors(path)
    ranked = [(f"r1/{i}", float(-i)) for i in range(7)]
    run = Run.from_lists({"r1": ranked})
    scores = score_rumors(rumors, run, {"r1": NO})
    values = scores.values
    assert values["map"] == 0
    assert values["recall@5"] == 0
    assert values["strict_macro_f1"] == 0
    assert values["macro_f1"] == 1


def test_without_verdicts_or_evidence_there_is_no_value(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "dev.json", [OPEN])
    rumors = load_rumors(path)
    run = Run.from_lists({"r3": []})
    scores = score_rumors(rumors, run, {"r3": None}, repeats=10)
    assert scores.defined == {"map_task": 1.0}
    assert scores.values["map"] is None
    assert scores.values["macro_f1"] is None

    unlabelled = {k: v for k, v in DENIED.items() if k not in ("label", "evidence")}
    with refused(ValueError, "labels"):
        path = write_rumors(tmp_path / "t.json", [unlabelled])
        blind = load_rumors(path)
        nothing = Run.from_lists({})
        score_rumors(blind, nothing, {})
