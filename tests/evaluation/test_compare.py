"""Comparing runs in Python: scores with intervals, tests against a baseline, text and HTML."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.evaluation.compare import compare
from claim2source.metrics.families import Family, compare_families, holm, score_intervals
from claim2source.metrics.metrics import evaluate, judged_claims, macro, score_languages
from tests.refusals import refused

METRICS = ["mrr@5"]
EVIL = "<b>a & b</b>"


@pytest.fixture(scope="module")
def dev() -> Dataset:
    """60 claims in three languages, two to a paper, and one without a gold."""
    languages = ["de"] * 20 + ["en"] * 30 + ["fr"] * 10
    claims = []
    judged = {}
    for i, lang in enumerate(languages):
        gold = f"p{i // 2}"
        claim = Claim(f"c{i}", "", lang, golds=(gold,))
        claims.append(claim)
        judged[claim.id] = {gold: 1}
    claims.append(Claim("none", ""))
    sources = tuple(Source(f"p{i}") for i in range(31))
    qrels = Qrels(judged)
    return Dataset(tuple(claims), sources, qrels, "dev")


@pytest.fixture(scope="module")
def runs(dev: Dataset) -> dict[str, Run]:
    """Three systems that rank the gold first for some claims, else second or not at all."""
    rng = np.random.default_rng(0)

    def run(chance: float) -> Run:
        draws = rng.random(len(dev.claims))
        lists = {}
        for claim, draw in zip(dev.claims, draws, strict=True):
            if not claim.golds:
                continue
            gold = claim.golds[0]
            score = 2.0 if draw < chance else 0.5
            lists[claim.id] = [
                (gold, score),
                ("p30", 1.0),
            ]
        return Run.from_lists(lists)

    return {
        "low": run(0.2),
        "high": run(0.9),
        EVIL: run(0.3),
    }


def test_scores_and_intervals_are_those_of_the_report(dev: Dataset, runs: dict[str, Run]) -> None:
    board = compare(runs, dev, repeats=200)
    assert board.metric == "mrr@5"
    assert board.baseline == "low"
    for name, run in runs.items():
        table = score_languages(run, dev.claims, dev.qrels, METRICS)
        expected = {lang: row["mrr@5"] for lang, row in table.items()}
        expected["macro"] = macro(table)["mrr@5"]
        assert board.scores[name] == pytest.approx(expected)

        scores = evaluate(run, dev.qrels, METRICS)
        bounds = score_intervals(scores, dev, repeats=200)
        assert board.intervals[name] == bounds.values["mrr@5"]
        assert bounds.repeats == 200
        assert bounds.seed == 0
        assert bounds.papers == 30
        for part, value in board.scores[name].items():
            low, high = board.intervals[name][part]
            assert low <= value <= high


def test_all_others_are_tested_on_the_macro_average_and_in_each_language(
    dev: Dataset, runs: dict[str, Run]
) -> None:
    board = compare(runs, dev, baseline="high", repeats=200, seed=3)
    averages = [test.average for test in board.tests]
    assert averages == ["macro", "en", "de", "fr"]
    assert board.tests[0].family == "All against high"

    claims = judged_claims(dev.qrels)
    values = {}
    for name, run in runs.items():
        scores = evaluate(run, dev.qrels, METRICS, claims)
        values[name] = scores["mrr@5"]
    family = Family.against("All against high", "high", ["low", EVIL])
    expected = compare_families(
        values,
        [family],
        dev,
        claims,
        repeats=200,
        seed=3,
    )
    assert list(board.tests) == expected
    for test in board.tests:
        pairs = [(c.system, c.baseline) for c in test.comparisons]
        assert pairs == list(family.pairs)
        p = [c.p for c in test.comparisons]
        p_holm = [c.p_holm for c in test.comparisons]
        assert p_holm == pytest.approx(holm(p))
    verdicts = {c.verdict for c in board.tests[0].comparisons}
    assert verdicts == {"worse"}


def test_the_text_and_the_html_show_every_table(dev: Dataset, runs: dict[str, Run]) -> None:
    board = compare(runs, dev, repeats=200)
    text = str(board)
    html = board._repr_html_()
    lines = text.splitlines()
    header = lines[2].split()
    assert header == ["system", "en", "de", "fr", "macro"]

    score = board.scores["high"]["macro"]
    low, high = board.intervals["high"]["macro"]
    for shown in (text, html):
        assert f"{score:.4f} [{low:.4f}, {high:.4f}]" in shown
        assert "All against low, de claims (a family of its own): mrr@5 (de)" in shown
        assert "Holm over the 2 tests" in shown
        assert "better" in shown
    assert EVIL in text
    assert EVIL not in html

    tags: list[str] = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    reader.feed(html)
    assert set(tags) == {"p", "table", "tr", "th", "td"}
    assert tags.count("table") == 5


def test_what_cannot_be_compared(dev: Dataset, runs: dict[str, Run]) -> None:
    with refused(ConfigError, "results"):
        compare({}, dev)
    with refused(ConfigError, "baseline: 'nobody'", "low, high"):
        compare(runs, dev, baseline="nobody")
    run = Run.from_lists({"x": [("p1", 1.0)]})
    with_other = {**runs, "other": run}
    with refused(UserError, "other: ", "'x'"):
        compare(with_other, dev)
