"""Reports are scored once: tests use the scores that the report shows."""

from __future__ import annotations

import pytest

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.evaluation.families import Family
from claim2source.pipeline.evaluate import Scoring, run_tests, score_result


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
