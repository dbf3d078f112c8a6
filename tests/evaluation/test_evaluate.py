"""Reports are scored once: tests use the scores that the report shows."""

from __future__ import annotations

from collections.abc import Sequence
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


def make_claims(count: int) -> tuple[Claim, ...]:
    """Claims of one gold each."""
    claims = []
    for i in range(count):
        golds = (f"p{i}",)
        claims.append(Claim(f"c{i}", "t", golds=golds))
    return tuple(claims)


def make_data(claims: Sequence[Claim], sources: tuple[Source, ...]) -> Dataset:
    """A dev set in which each claim's gold is judged."""
    judged = {}
    for claim in claims:
        gold = claim.golds[0]
        judged[claim.id] = {gold: 1}
    qrels = Qrels(judged)
    return Dataset(tuple(claims), sources, qrels, "dev")


def test_the_hybrid_is_tested_against_both_parts_on_the_average_that_is_shown() -> None:
    """Eight English claims and two German: the macro average weighs the languages alike."""
    claims = []
    for i in range(8):
        golds = (f"g{i}",)
        claims.append(Claim(f"e{i}", "t", golds=golds))
    for i in range(2):
        golds = (f"h{i}",)
        claims.append(Claim(f"d{i}", "t", "de", golds=golds))
    gold_sources = [Source(c.golds[0]) for c in claims]
    sources = (*gold_sources, Source("x"))
    data = make_data(claims, sources)

    hybrid = {}
    bm25 = {}
    dense = {}
    for claim in claims:
        gold = claim.golds[0]
        hybrid[claim.id] = [(gold, 1.0)]
        bm25[claim.id] = [("x", 2.0), (gold, 1.0)]
        first = gold if claim.lang == "de" else "x"
        dense[claim.id] = [(first, 1.0)]
    runs = {
        "hybrid": hybrid,
        "bm25": bm25,
        "dense": dense,
    }
    systems = {}
    for name, ranked in runs.items():
        run = Run.from_lists(ranked)
        systems[name] = score_result(name, run, data, Scoring(repeats=0))

    against_parts = (
        ("hybrid", "bm25"),
        ("hybrid", "dense"),
    )
    family = Family("The hybrid against its parts", against_parts)
    tests = run_tests(systems, [family], data, 2000, 0)
    macro, english, german = tests
    averages = [test.average for test in tests]
    assert averages == ["macro", "en", "de"]
    pairs = [(c.system, c.baseline) for c in macro.comparisons]
    assert pairs == [("hybrid", "bm25"), ("hybrid", "dense")]
    # Over all claims it would be 0.8 against dense; the better part is tested as the other is.
    macro_differences = [c.difference for c in macro.comparisons]
    assert macro_differences == pytest.approx([0.5, 0.5])
    english_differences = [c.difference for c in english.comparisons]
    assert english_differences == pytest.approx([0.5, 1.0])
    german_differences = [c.difference for c in german.comparisons]
    assert german_differences == pytest.approx([0.5, 0.0])
    for comparison in macro.comparisons:
        report = systems[comparison.system].report
        score = report.macro["mrr@5"]
        assert comparison.mean == pytest.approx(score)


def test_metrics_deeper_than_the_lists_are_noted() -> None:
    """But not if the lists contain the whole pool."""
    claims = make_claims(6)
    sources = tuple(Source(c.golds[0]) for c in claims)
    data = make_data(claims, sources)

    def run(depth: int) -> Run:
        lists = {}
        for claim in claims:
            lists[claim.id] = [(f"p{n}", -n) for n in range(depth)]
        return Run.from_lists(lists)

    metrics = ["mrr@1", "mrr@5", "recall@100"]
    runs = {
        "a": run(2),
        "b": run(2),
        "c": run(6),
    }
    report = evaluate(runs, data, metrics, repeats=0)
    (note,) = report.notes
    assert note.startswith("mrr@5, recall@100: ")
    assert " a, b" in note
    assert " 2 " in note
    recall = report.systems["a"].macro["recall@100"]
    assert recall == pytest.approx(2 / 6)
    assert note in str(report)

    whole_pool = run(6)
    whole = evaluate(whole_pool, data, metrics, repeats=0)
    assert whole.notes == ()
    deep_enough = evaluate(run(5), data, ["mrr@5"], repeats=0)
    assert deep_enough.notes == ()

    runs = {"a": run(2), "c": run(6)}
    compared = compare(runs, data, "recall@5", repeats=20)
    (note,) = compared.notes
    assert note.startswith("recall@5: ")
    assert " a," in note
    assert " 2 " in note
    assert note in str(compared)


def test_a_report_is_written_where_every_claim_differs_by_one_amount(tmp_path: Path) -> None:
    claims = make_claims(6)
    gold_sources = [Source(c.golds[0]) for c in claims]
    sources = (*gold_sources, Source("x"))
    data = make_data(claims, sources)
    ahead = {}
    behind = {}
    for claim in claims:
        gold = claim.golds[0]
        ahead[claim.id] = [(gold, 1.0)]
        behind[claim.id] = [("x", 2.0), (gold, 1.0)]
    first = Run.from_lists(ahead)
    second = Run.from_lists(behind)
    settings = Scoring(repeats=20)
    systems = {
        "a": score_result("a", first, data, settings),
        "b": score_result("b", second, data, settings),
    }
    report = make_report(data, systems, "a")
    family = Family.against("f", "b", ["a"])
    report = add_tests(report, systems, [family], data, 20, 0)
    report.write(tmp_path)
    (test,) = Report.read(tmp_path).tests
    comparison = test.comparisons[0]
    assert comparison.difference == pytest.approx(0.5)
    assert comparison.t_p is None
    parts = families.tests_parts(report.tests, "mrr@5")
    assert render(parts, "html")


def test_a_ranking_that_lacks_claims_says_how_many(tmp_path: Path) -> None:
    claims = make_claims(22)
    sources = tuple(Source(c.golds[0]) for c in claims)
    data = make_data(claims, sources)
    whole = {c.id: {c.golds[0]: 1.0} for c in claims}

    one = {"c3": {"p4": 1.0}}
    file = tmp_path / "one.trec"
    file.write_text("c3 Q0 p4 1 1.0 x\n")
    columns = ["qid", "docno", "score"]
    row = ("c3", "p4", 1.0)
    frame = pandas.DataFrame([row], columns=columns)
    lists: dict[str, list[tuple[str, float]]] = {c.id: [] for c in claims}
    lists["c3"] = [("p4", 1.0)]
    empty = Run.from_lists(lists)
    alone = Run.from_lists({"c3": [("p4", 1.0)]})
    rankings: list[Any] = [
        one,
        file,
        frame,
        empty,
        alone,
    ]
    for ranking in rankings:
        notes = evaluate(ranking, data, repeats=0).notes
        assert any("21" in note and "22" in note for note in notes)

        both = {"whole": whole, "mine": ranking}
        report = evaluate(both, data, repeats=0)
        (note,) = [note for note in report.notes if "21" in note]
        assert note.startswith("mine:")
        assert note in str(report)
        compared = compare(both, data, repeats=20)
        assert note in compared.notes
        assert note in str(compared)
    whole_notes = evaluate(whole, data, repeats=0).notes
    assert not any("22" in note for note in whole_notes)


def test_the_known_score_of_bm25() -> None:
    folder = shared("ct25")
    data = load(folder, "dev")
    index = BM25().index(data.sources)
    result = index.search(data.claims, 5)
    scores = evaluate(result, data, ["mrr@5"])
    assert scores.macro["mrr@5"] == pytest.approx(0.6207, abs=5e-5)


def test_a_model_of_several_names_is_scored_once() -> None:
    scored: list[float] = []

    def score(scale: float) -> ScoredSystem:
        scored.append(scale)
        run = Run.from_lists({"1": [("x", scale)]})
        return unscored(f"scale {scale}", Result(run))

    scales = {
        "trained": 1.0,
        "base": 0.0,
        "picked": 1.0,
    }
    rows = score_named(scales, score)
    assert scored == [0.0, 1.0]
    names = [(name, row.report.name) for name, row in rows.items()]
    assert names == [
        ("trained", "trained"),
        ("base", "base"),
        ("picked", "picked"),
    ]
    scores = [row.run.scored("1")["x"] for row in rows.values()]
    assert scores == [1.0, 0.0, 1.0]
