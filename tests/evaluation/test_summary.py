"""A report of many systems fits one screen of a terminal; the rest is in its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.report import Choice, NotRun, Report
from claim2source.core.tables import TextTable, render
from claim2source.data.loading import load
from claim2source.evaluation.compare import compare
from claim2source.evaluation.evaluate import evaluate
from claim2source.evaluation.summary import WIDTH, fitting, summary_parts
from claim2source.search.bm25 import BM25

LONG = "Hybrid of a system whose name goes on for longer than a terminal is wide, number "


@pytest.fixture(scope="module")
def report() -> Report:
    dev = load("demo", "dev")
    dev = dev.with_claims(dev.claims[:40])
    bm25 = BM25().index(dev.sources)
    result = bm25.search(dev.claims)
    results = {f"{LONG}{n}": result.top(n + 1) for n in range(30)}
    compared = compare(results, dev, repeats=20)
    reason = "no " * 200
    advice = "do " * 200
    not_run = tuple(NotRun(f"n{n}", "original", reason, advice) for n in range(9))
    evaluated = evaluate(results, dev, repeats=20)
    return replace(
        evaluated,
        tests=compared.tests,
        not_run=not_run,
        notes=("note " * 90,),
    )


def summary(report: Report) -> str:
    """Return what the terminal shows of a report in the folder `out`."""
    parts = summary_parts(report, Path("out"))
    return render(parts)


def test_many_systems_fit_a_screen(report: Report) -> None:
    lines = summary(report).splitlines()
    widest = max(map(len, lines))
    assert widest <= WIDTH
    assert len(lines) <= 70

    first = report.systems[f"{LONG}0"]
    score = first.macro["mrr@5"]
    assert f"{score:.4f}" in lines[1]
    assert "number 0" in lines[1]
    assert ".. and 14 more rows" in lines
    assert ".. and 5 more" in lines

    tested = next(i for i, line in enumerate(lines) if line.startswith("Tests of mrr@5"))
    (best, *_) = report.tests[0].comparisons
    row = lines[tested + 3]
    assert f"{best.difference:+.4f}" in row
    assert f"{best.p_holm:.4f}" in row
    # Each language is a family of its own, which the files have.
    averages = {test.average for test in report.tests}
    assert len(averages) > 1
    assert ".. and 13 more rows" in lines
    assert "out/report.md" in lines[-1]
    assert "claim2source report --reports out" in lines[-1]


def test_cells_of_other_styles_are_no_rows_of_their_own(report: Report) -> None:
    first, *rest = report.systems.values()
    cells = {system.name: replace(system, style="S1C0") for system in rest}
    systems = {first.name: first} | cells
    text = summary(replace(report, systems=systems))
    recall = first.macro["recall@100"]
    (row,) = (line for line in text.splitlines() if f"{recall:.4f} " in line)
    assert "number 0" in row


def test_every_choice_of_a_system_is_a_line_with_its_score(report: Report) -> None:
    first, *_ = report.systems.values()
    settings = {f"setting_{n}": n for n in range(40)}
    bm25 = Choice(
        "bm25",
        settings,
        0.7393,
        "train",
        300,
    )
    fusion = Choice(
        "fusion",
        {"alpha": 0.35},
        0.8704,
        "val",
        63,
    )
    system = replace(first, name="H", choices=(bm25, fusion))
    systems = {first.name: system}
    text = summary(replace(report, systems=systems))
    words = " ".join(text.split())
    assert "alpha 0.35 (mrr@5 0.8704 on 63 claims of val)" in words


def test_wide_tables_are_left_to_the_files() -> None:
    too_wide = "x" * (WIDTH + 1)
    wide = TextTable([too_wide], [["y"]])
    narrow = TextTable(["x"], [["y"]])
    long = TextTable(["x"], [["y"]] * 99)
    parts = fitting(["words", wide, narrow, long])
    assert parts == ["words", narrow]
