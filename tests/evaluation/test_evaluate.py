"""Reports are scored once: tests use the scores that the report shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Result, Run
from claim2source.core.tables import render
from claim2source.data.loading import load
from claim2source.evaluation.compare import compare
from claim2source.evaluation.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    evaluate,
    make_report,
    run_tests,
    score_named,
    score_result,
    unscored,
)
from claim2source.metrics import families
from claim2source.metrics.families import Family
from claim2source.search.bm25 import BM25
from tests.shared_data import shared


def test_the_hybrid_is_tested_against_both_parts_on_the_average_that_is_shown() -> None:
    """Eight English claims and two German: the macro average weighs the languages alike."""
    claims = [Claim(f"e{i}", "t", golds=(f"g{i}",)) for i in range(8)]
    claims += [Claim(f"d{i}", "t", "de", golds=(f"h{i}",)) for i in range(2)]
    qrels = Qrels({c.id: {c.golds[0]: 1} for c in claims})
    sources = (*(Source(c.golds[0]) for c in claims), Source("x"))
    data = Dataset(tuple(claims), sources, qrels, "dev")
    runs = {
        "hybrid": {c.id: [(c.golds[0], 1.0)] for c in claims},
        "bm25": {c.id: [("x", 2.0), (c.golds[0], 1.0)] for c in claims},
        "dense": {c.id: [(c.golds[0] if c.lang == "de" else "x", 1.0)] for c in claims},
    }
    systems = {
        name: score_result(name, Run.from_lists(ranked), data, Scoring(repeats=0))
        for name, ranked in runs.items()
    }
    family = Family("The hybrid against its parts", (("hybrid", "bm25"), ("hybrid", "dense")))
    macro, english, german = run_tests(systems, [family], data, 2000, 0)
    assert [test.average for test in (macro, english, german)] == ["macro", "en", "de"]
    pairs = [(c.system, c.baseline) for c in macro.comparisons]
    assert pairs == [("hybrid", "bm25"), ("hybrid", "dense")]
    # Over all claims it would be 0.8 against dense; the better part is tested as the other is.
    assert [c.difference for c in macro.comparisons] == pytest.approx([0.5, 0.5])
    assert [c.difference for c in english.comparisons] == pytest.approx([0.5, 1.0])
    assert [c.difference for c in german.comparisons] == pytest.approx([0.5, 0.0])
    for comparison in macro.comparisons:
        report = systems[comparison.system].report
        assert comparison.mean == pytest.approx(report.macro["mrr@5"])


def test_metrics_deeper_than_the_lists_are_noted() -> None:
    """But not if the lists contain the whole pool."""
    claims = tuple(Claim(f"c{i}", "t", golds=(f"p{i}",)) for i in range(6))
    sources = tuple(Source(f"p{i}") for i in range(6))
    data = Dataset(claims, sources, Qrels({c.id: {c.golds[0]: 1} for c in claims}), "dev")

    def run(depth: int) -> Run:
        return Run.from_lists({c.id: [(f"p{n}", -n) for n in range(depth)] for c in claims})

    metrics = ["mrr@1", "mrr@5", "recall@100"]
    report = evaluate({"a": run(2), "b": run(2), "c": run(6)}, data, metrics, repeats=0)
    (note,) = report.notes
    assert note.startswith("mrr@5, recall@100: ") and " a, b" in note and " 2 " in note
    assert report.systems["a"].macro["recall@100"] == pytest.approx(2 / 6)
    assert note in str(report)
    assert evaluate(run(6), data, metrics, repeats=0).notes == ()
    assert evaluate(run(5), data, ["mrr@5"], repeats=0).notes == ()
    compared = compare({"a": run(2), "c": run(6)}, data, "recall@5", repeats=20)
    (note,) = compared.notes
    assert note.startswith("recall@5: ") and " a," in note and " 2 " in note
    assert note in str(compared)


def test_a_report_is_written_where_every_claim_differs_by_one_amount(tmp_path: Path) -> None:
    claims = tuple(Claim(f"c{i}", "t", golds=(f"p{i}",)) for i in range(6))
    sources = (*(Source(c.golds[0]) for c in claims), Source("x"))
    data = Dataset(claims, sources, Qrels({c.id: {c.golds[0]: 1} for c in claims}), "dev")
    first = Run.from_lists({c.id: [(c.golds[0], 1.0)] for c in claims})
    second = Run.from_lists({c.id: [("x", 2.0), (c.golds[0], 1.0)] for c in claims})
    settings = Scoring(repeats=20)
    systems = {
        name: score_result(name, run, data, settings) for name, run in (("a", first), ("b", second))
    }
    report = make_report(data, systems, "a")
    report = add_tests(report, systems, [Family.against("f", "b", ["a"])], data, 20, 0)
    report.write(tmp_path)
    (test,) = Report.read(tmp_path).tests
    assert test.comparisons[0].difference == pytest.approx(0.5)
    assert test.comparisons[0].t_p is None
    assert render(families.tests_parts(report.tests, "mrr@5"), "html")


def test_a_ranking_that_lacks_claims_says_how_many(tmp_path: Path) -> None:
    claims = tuple(Claim(f"c{i}", "t", golds=(f"p{i}",)) for i in range(22))
    sources = tuple(Source(c.golds[0]) for c in claims)
    data = Dataset(claims, sources, Qrels({c.id: {c.golds[0]: 1} for c in claims}), "dev")
    whole = {c.id: {c.golds[0]: 1.0} for c in claims}
    one = {"c3": {"p4": 1.0}}
    file = tmp_path / "one.trec"
    file.write_text("c3 Q0 p4 1 1.0 x\n")
    frame = pandas.DataFrame([("c3", "p4", 1.0)], columns=["qid", "docno", "score"])
    empty = Run.from_lists({**{c.id: [] for c in claims}, "c3": [("p4", 1.0)]})
    rankings: list[Any] = [one, file, frame, empty, Run.from_lists({"c3": [("p4", 1.0)]})]
    for ranking in rankings:
        notes = evaluate(ranking, data, repeats=0).notes
        assert any("21" in note and "22" in note for note in notes)
        report = evaluate({"whole": whole, "mine": ranking}, data, repeats=0)
        (note,) = (note for note in report.notes if "21" in note)
        assert note.startswith("mine:") and note in str(report)
        compared = compare({"whole": whole, "mine": ranking}, data, repeats=20)
        assert note in compared.notes and note in str(compared)
    assert not any("22" in note for note in evaluate(whole, data, repeats=0).notes)


def test_the_known_score_of_bm25() -> None:
    data = load(shared("ct25"), "dev")
    result = BM25().index(data.sources).search(data.claims, 5)
    assert evaluate(result, data, ["mrr@5"]).macro["mrr@5"] == pytest.approx(0.6207, abs=5e-5)


def test_a_model_of_several_names_is_scored_once() -> None:
    scored: list[float] = []

    def score(scale: float) -> ScoredSystem:
        scored.append(scale)
        return unscored(f"scale {scale}", Result(Run.from_lists({"1": [("x", scale)]})))

    rows = score_named({"trained": 1.0, "base": 0.0, "picked": 1.0}, score)
    assert scored == [0.0, 1.0]
    assert [(name, row.report.name) for name, row in rows.items()] == [
        ("trained", "trained"),
        ("base", "base"),
        ("picked", "picked"),
    ]
    assert [row.run.scored("1")["x"] for row in rows.values()] == [1.0, 0.0, 1.0]
