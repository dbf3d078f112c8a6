"""Sources of the same text under two ids: how many golds tie with one, and MRR@5 as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import claim2source as c2s
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Run

SOURCES = (
    Source("a1", "Masks work", 'They "do", says CO₂'),
    Source("a2", "MASKS WORK", "They 'do' says CO2"),
    Source("a3", "Masks work", "They do, says CO2."),
    Source("b", "Masks", "work they do says CO2 too"),
    Source("c", "Tea"),
    Source("d"),
    Source("e", "!!!"),
    Source("f", "..."),
)
GOLDS = {"q1": "a1", "q2": "a2", "q3": "a1", "q4": "b", "q5": "a3", "q6": "c"}
RUN = {
    # The twin is first at the same score: lost, and a tie.
    "q1": [("a1", 2.0), ("a2", 2.0), ("b", 1.0)],
    # Both twins before it, at another score: lost, no tie.
    "q2": [("a1", 3.0), ("a3", 2.5), ("a2", 2.0)],
    # As one it is second, not fourth.
    "q3": [("b", 4.0), ("a2", 3.0), ("a3", 2.0), ("a1", 1.0)],
    # The gold has no twin, but three twins before it share one rank.
    "q4": [("a1", 9.0), ("a2", 8.0), ("a3", 7.0), ("b", 1.0)],
    # Only a twin is found.
    "q5": [("a1", 1.0)],
    "q6": [("c", 1.0)],
}


def dataset() -> Dataset:
    claims = tuple(Claim(c, c, "de" if c == "q6" else "en", golds=(g,)) for c, g in GOLDS.items())
    return Dataset(claims, SOURCES, Qrels({c: {g: 1} for c, g in GOLDS.items()}), "dev")


def test_twins_are_of_one_text_whatever_its_signs() -> None:
    assert dataset().twins == {"a1": "a1", "a2": "a1", "a3": "a1"}
    assert c2s.load("demo", "dev").twins == {}


def test_what_twins_do_is_counted_by_hand(tmp_path: Path) -> None:
    report = c2s.evaluate(Run.from_lists(RUN), dataset(), repeats=0)
    twins = report.systems["system"].twins
    assert twins is not None
    # Ties are broken by id, descending: a2 is before a1 for q1.
    assert (twins.golds, twins.of_golds, twins.ties, twins.lost) == (6, 4, 1, 3)
    english = (1 + 1 + 1 / 2 + 1 / 2 + 1) / 5
    assert twins.as_one["en"] == pytest.approx(english) and twins.as_one["de"] == 1
    assert twins.as_one["macro"] == pytest.approx((english + 1) / 2)
    score = (1 / 2 + 1 / 3 + 1 / 4 + 1 / 4 + 0) / 5
    assert report.macro["mrr@5"] == pytest.approx((score + 1) / 2)
    report.write(tmp_path)
    assert Report.read(tmp_path).systems["system"].twins == twins
    # Without twins of golds there is no note, whatever else the pool repeats.
    data = replace(dataset(), qrels=Qrels({"q6": {"c": 1}}))
    found = c2s.evaluate(Run.from_lists(RUN), data, repeats=0)
    assert found.systems["system"].twins is None and found.twins_table is None
