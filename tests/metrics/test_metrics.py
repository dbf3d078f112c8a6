"""Metrics: the lab's definition, trec_eval's ties, languages."""

import math

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Qrels
from claim2source.core.run import Run
from claim2source.metrics.metrics import (
    coverage,
    cutoff,
    evaluate,
    judged_claims,
    macro,
    score_languages,
)
from tests.refusals import refused

SOURCES = "abcdefgh"
# Steps of 0.4 units in the last place: some neighbours round to one float32, some do not.
NEAR = np.float32(0.7)
STEP = float(np.spacing(NEAR))
BITS = st.integers(-2, 2).map(lambda n: float(NEAR) + n * STEP * 0.4)
CLOSE = [
    1.0,
    1.0 + 1e-9,
    1.0 - 1e-9,
    2.0,
    2.0 + 1e-12,
    0.0,
    -0.0,
    -1.0,
]
SCORES = BITS | st.sampled_from(CLOSE)
SCORED = st.dictionaries(
    st.sampled_from(SOURCES),
    SCORES,
    max_size=8,
)
RANKED = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3", "extra"]),
    SCORED.map(lambda d: list(d.items())),
    max_size=4,
)
GRADED = st.dictionaries(
    st.sampled_from(SOURCES),
    st.integers(0, 3),
    min_size=1,
    max_size=4,
)
GRADES = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3"]),
    GRADED,
    min_size=1,
)
QRELS = GRADES.map(Qrels)
JUDGED = QRELS.filter(judged_claims)


def lab_mrr(run: Run, qrels: Qrels, claim: str, k: int) -> float:
    """1 / rank of the first gold among the first k, else 0."""
    golds = qrels.golds(claim)
    for rank, source in enumerate(run.sources(claim, k), 1):
        if source in golds:
            return 1 / rank
    return 0.0


@given(RANKED, JUDGED, st.integers(1, 9))
def test_mrr_is_the_labs_to_the_last_bit(ranked, qrels, k):
    run = Run.from_lists(ranked)
    metric = f"mrr@{k}"
    scores = evaluate(run, qrels, [metric])
    assert scores.claim_ids == judged_claims(qrels)
    expected = [lab_mrr(run, qrels, claim, k) for claim in scores.claim_ids]
    assert scores[metric].tolist() == expected
    assert scores[metric].dtype == np.float64
    mean = sum(expected) / len(expected)
    assert scores.mean(metric) == pytest.approx(mean, abs=1e-15)


def discounted(gains: list[float]) -> float:
    """Sum the gains, each by the logarithm of its rank."""
    return sum(gain / math.log2(r + 2) for r, gain in enumerate(gains))


def defined_values(run: Run, qrels: Qrels, claim: str) -> dict[str, float]:
    """Compute one claim's metrics by their definitions."""
    grades = qrels.grades[claim]
    golds = qrels.golds(claim)
    first = run.sources(claim, 3)
    hits = [s in golds for s in run.sources(claim)]

    precisions: list[float] = []
    for r, hit in enumerate(hits):
        precision = sum(hits[: r + 1]) / (r + 1)
        precisions.append(precision if hit else 0)

    positive = [g for g in grades.values() if g > 0]
    gains = sorted(positive, reverse=True)[:3]
    found = [max(grades.get(s, 0), 0) for s in first]
    return {
        "recall@3": sum(hits[:3]) / len(golds),
        "hit@3": float(any(hits[:3])),
        "p@3": sum(hits[:3]) / 3,
        "map": sum(precisions) / len(golds),
        "map@3": sum(precisions[:3]) / len(golds),
        "ndcg@3": discounted(found) / discounted(gains),
    }


@given(RANKED, JUDGED)
def test_other_metrics_by_their_definitions(ranked, qrels):
    run = Run.from_lists(ranked)
    metrics = [
        "recall@3",
        "hit@3",
        "p@3",
        "map",
        "map@3",
        "ndcg@3",
    ]
    scores = evaluate(run, qrels, metrics)
    for i, claim in enumerate(scores.claim_ids):
        expected = defined_values(run, qrels, claim)
        values = {metric: scores[metric][i] for metric in scores.values}
        assert values == pytest.approx(expected, abs=1e-12)


@given(RANKED, JUDGED)
def test_agrees_with_trec_eval_on_the_raw_scores(ranked, qrels):
    # trec_eval gets the float64 scores with ties and near-ties; our ranking must equal its ranking.
    raw = {claim: dict(pairs) for claim, pairs in ranked.items() if pairs}
    grades = {claim: dict(qrels.grades[claim]) for claim in judged_claims(qrels)}
    measures = {"recip_rank", "map", "ndcg_cut_5"}
    evaluator = pytrec_eval.RelevanceEvaluator(grades, measures)
    theirs = evaluator.evaluate(raw)
    run = Run.from_lists(ranked)
    ours = evaluate(run, qrels, ["mrr@100", "map", "ndcg@5"])
    missing = dict.fromkeys(measures, 0.0)
    for i, claim in enumerate(ours.claim_ids):
        expected = theirs.get(claim, missing)
        rank = expected["recip_rank"]
        precision = expected["map"]
        gain = expected["ndcg_cut_5"]
        assert ours["mrr@100"][i] == pytest.approx(rank, abs=1e-12)
        assert ours["map"][i] == pytest.approx(precision, abs=1e-12)
        assert ours["ndcg@5"][i] == pytest.approx(gain, abs=1e-12)


def test_claims_without_prediction_count_as_zero_and_without_gold_not_at_all():
    qrels = Qrels(
        {
            "hit": {"a": 1},
            "none": {"a": 1},
            "empty": {"a": 1},
            "nogold": {"a": 0},
        }
    )
    run = Run.from_lists(
        {
            "hit": [("a", 1.0)],
            "empty": [],
            "nogold": [("a", 1.0)],
        }
    )
    scores = evaluate(run, qrels, ["mrr@5", "recall@5"])
    assert scores.claim_ids == ("hit", "none", "empty")
    means = scores.means()
    assert means == pytest.approx({"mrr@5": 1 / 3, "recall@5": 1 / 3})
    # A run without rows scores zero, for each of ir_measures' providers.
    nothing = Run.from_lists({})
    scores = evaluate(nothing, qrels, ["mrr@5", "map"])
    assert scores.means() == {"mrr@5": 0, "map": 0}


def test_claim_ids_restrict_and_order():
    qrels = Qrels(
        {
            "a": {"s": 1},
            "b": {"t": 1},
            "c": {"u": 0},
        }
    )
    run = Run.from_lists({"a": [("s", 1.0)], "b": [("s", 1.0)]})
    scores = evaluate(run, qrels, ["mrr@1"], ["b", "a"])
    assert scores.claim_ids == ("b", "a")
    assert scores["mrr@1"].tolist() == [0, 1]
    for claim in ("c", "unknown"):
        with refused(ValueError, f"'{claim}'"):
            evaluate(run, qrels, ["mrr@1"], ["a", claim])
    without_gold = Qrels({"c": {"u": 0}})
    with refused(UserError, "qrels"):
        evaluate(run, without_gold, ["mrr@1"])


def test_unknown_metrics_are_refused_with_what_is_allowed():
    qrels = Qrels({"c": {"s": 1}})
    run = Run.from_lists({})
    unknown = (
        "mrr",
        "mrr@0",
        "MRR@5",
        "map@",
        "",
        "mrr@1000001",
        "mrr@5\n",
        "ndcg@٣",
        "foo@5",
    )
    for name in unknown:
        with refused(ConfigError, "metrics", "mrr@K, recall@K, hit@K"):
            evaluate(run, qrels, ["mrr@5", name])
    assert cutoff("mrr@5") == 5
    assert cutoff("map") is None
    assert cutoff("map@1000000") == 1_000_000
    with refused(ConfigError, "metrics", "at least one"):
        evaluate(run, qrels, [])


def test_coverage_counts_both_sides_and_ids_that_never_meet_are_an_error():
    qrels = Qrels(
        {
            "a": {"s": 1},
            "b": {"s": 1},
            "c": {"s": 1},
            "n": {"s": 0},
        }
    )
    found = [("s", 1.0)]
    run = Run.from_lists(
        {
            "a": found,
            "b": [],
            "n": found,
            "x": found,
        }
    )
    counts = coverage(run, qrels)
    assert counts.claims == 3
    assert counts.missing == 2
    assert counts.ignored == 2

    run = Run.from_lists({"16": found})
    other_ids = Qrels({"dev-16": {"s": 1}})
    with refused(UserError, "my.tsv: ", "'16'", "'dev-16'"):
        coverage(run, other_ids, "my.tsv")
    without_gold = Qrels({"16": {"s": 0}})
    with refused(UserError, "qrels"):
        coverage(run, without_gold)


def test_languages_and_their_macro_average():
    languages = {
        "f": "fr",
        "e1": "en",
        "e2": "en",
        "e3": "en",
        "g": "de",
        "nogold": "de",
        "i": "it",
    }
    claims = [Claim(claim, "", lang) for claim, lang in languages.items()]
    judged = ("e1", "e2", "e3", "f", "g", "elsewhere")
    qrels = Qrels({c: {"s": 1} for c in judged})
    good = [("s", 2.0), ("t", 1.0)]
    second = [("s", 1.0), ("t", 2.0)]
    run = Run.from_lists(
        {
            "e1": good,
            "e2": second,
            "f": second,
            "g": good,
            "elsewhere": good,
        }
    )
    table = score_languages(run, claims, qrels, ["mrr@5", "mrr@1"])
    assert list(table) == ["en", "de", "fr"]
    english = {
        "mrr@5": 0.5,
        "mrr@1": 1 / 3,
        "queries": 3,
    }
    assert table["en"] == pytest.approx(english)
    assert table["de"] == {"mrr@5": 1.0, "mrr@1": 1.0, "queries": 1}
    assert table["fr"] == {"mrr@5": 0.5, "mrr@1": 0.0, "queries": 1}
    # Languages have the same weight, whatever their number of claims.
    expected = {
        "mrr@5": 2 / 3,
        "mrr@1": 4 / 9,
        "queries": 5,
    }
    assert macro(table) == pytest.approx(expected)
