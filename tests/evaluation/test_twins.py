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
GOLDS = {
    "q1": "a1",
    "q2": "a2",
    "q3": "a1",
    "q4": "b",
    "q5": "a3",
    "q6": "c",
}
RUN = {
    # The twin is first at the same score: lost, and a tie.
    "q1": [
        ("a1", 2.0),
        ("a2", 2.0),
        ("b", 1.0),
    ],
    # Both twins before it, at another score: lost, no tie.
    "q2": [
        ("a1", 3.0),
        ("a3", 2.5),
        ("a2", 2.0),
    ],
    # As one it is second, not fourth.
    "q3": [
        ("b", 4.0),
        ("a2", 3.0),
        ("a3", 2.0),
        ("a1", 1.0),
    ],
    # The gold has no twin, but three twins before it share one rank.
    "q4": [
        ("a1", 9.0),
        ("a2", 8.0),
        ("a3", 7.0),
        ("b", 1.0),
    ],
    # Only a twin is found.
    "q5": [("a1", 1.0)],
    "q6": [("c", 1.0)],
}


def dataset() -> Dataset:
    claims: list[Claim] = []
    for claim, gold in GOLDS.items():
        lang = "de" if claim == "q6" else "en"
        claims.append(Claim(claim, claim, lang, golds=(gold,)))
    qrels = Qrels({c: {g: 1} for c, g in GOLDS.items()})
    return Dataset(tuple(claims), SOURCES, qrels, "dev")


def test_twins_are_of_one_text_whatever_its_signs() -> None:
    assert dataset().twins == {"a1": "a1", "a2": "a1", "a3": "a1"}
    demo = c2s.load("demo", "dev")
    assert demo.twins == {}


def test_what_twins_do_is_counted_by_hand(tmp_path: Path) -> None:
    run = Run.from_lists(RUN)
    report = c2s.evaluate(run, dataset(), repeats=0)
    twins = report.systems["system"].twins
    assert twins is not None
    # Ties are broken by id, descending: a2 is before a1 for q1.
    assert twins.golds == 6
    assert twins.of_golds == 4
    assert twins.ties == 1
    assert twins.lost == 3

    english = (1 + 1 + 1 / 2 + 1 / 2 + 1) / 5
    assert twins.as_one["en"] == pytest.approx(english)
    assert twins.as_one["de"] == 1
    assert twins.as_one["macro"] == pytest.approx((english + 1) / 2)
    score = (1 / 2 + 1 / 3 + 1 / 4 + 1 / 4 + 0) / 5
    assert report.macro["mrr@5"] == pytest.approx((score + 1) / 2)

    report.write(tmp_path)
    read = Report.read(tmp_path)
    assert read.systems["system"].twins == twins
    # Without twins of golds there is no note, whatever else the pool repeats.
    qrels = Qrels({"q6": {"c": 1}})
    data = replace(dataset(), qrels=qrels)
    found = c2s.evaluate(run, data, repeats=0)
    assert found.systems["system"].twins is None
    assert found.twins_table is None
