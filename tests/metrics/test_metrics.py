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
BITS = st.integers(-2, 2).map(lambda n: float(NEAR) + n * float(np.spacing(NEAR)) * 0.4)
SCORES = BITS | st.sampled_from([1.0, 1.0 + 1e-9, 1.0 - 1e-9, 2.0, 2.0 + 1e-12, 0.0, -0.0, -1.0])
RANKED = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3", "extra"]),
    st.dictionaries(st.sampled_from(SOURCES), SCORES, max_size=8).map(lambda d: list(d.items())),
    max_size=4,
)
QRELS = st.dictionaries(
    st.sampled_from(["c1", "c2", "c3"]),
    st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 3), min_size=1, max_size=4),
    min_size=1,
).map(Qrels)
JUDGED = QRELS.filter(judged_claims)


def lab_mrr(run: Run, qrels: Qrels, claim: str, k: int) -> float:
    """1 / rank of the first gold among the first k, else 0."""
    ranks = [i for i, s in enumerate(run.sources(claim, k), 1) if s in qrels.golds(claim)]
    return 1 / ranks[0] if ranks else 0.0


@given(RANKED, JUDGED, st.integers(1, 9))
def test_mrr_is_the_labs_to_the_last_bit(ranked, qrels, k):
    run = Run.from_lists(ranked)
    scores = evaluate(run, qrels, [f"mrr@{k}"])
    assert scores.claim_ids == judged_claims(qrels)
    expected = [lab_mrr(run, qrels, claim, k) for claim in scores.claim_ids]
    assert scores[f"mrr@{k}"].tolist() == expected
    assert scores[f"mrr@{k}"].dtype == np.float64
    assert scores.mean(f"mrr@{k}") == pytest.approx(sum(expected) / len(expected), abs=1e-15)


@given(RANKED, JUDGED)
def test_other_metrics_by_their_definitions(ranked, qrels):
    run = Run.from_lists(ranked)
    scores = evaluate(run, qrels, ["recall@3", "hit@3", "p@3", "map", "map@3", "ndcg@3"])
    for i, claim in enumerate(scores.claim_ids):
        golds, first = qrels.golds(claim), run.sources(claim, 3)
        hits = [s in golds for s in run.sources(claim)]
        precisions = [sum(hits[: r + 1]) / (r + 1) if hit else 0 for r, hit in enumerate(hits)]
        gains = sorted((g for g in qrels.grades[claim].values() if g > 0), reverse=True)[:3]
        dcg = sum(
            max(qrels.grades[claim].get(s, 0), 0) / math.log2(r + 2) for r, s in enumerate(first)
        )
        ideal = sum(gain / math.log2(r + 2) for r, gain in enumerate(gains))
        expected = {
            "recall@3": sum(hits[:3]) / len(golds),
            "hit@3": float(any(hits[:3])),
            "p@3": sum(hits[:3]) / 3,
            "map": sum(precisions) / len(golds),
            "map@3": sum(precisions[:3]) / len(golds),
            "ndcg@3": dcg / ideal,
        }
        values = {metric: scores[metric][i] for metric in scores.values}
        assert values == pytest.approx(expected, abs=1e-12)


@given(RANKED, JUDGED)
def test_agrees_with_trec_eval_on_the_raw_scores(ranked, qrels):
    # trec_eval gets the float64 scores with ties and near-ties; our ranking must equal its ranking.
    raw = {claim: dict(pairs) for claim, pairs in ranked.items() if pairs}
    grades = {claim: dict(qrels.grades[claim]) for claim in judged_claims(qrels)}
    evaluator = pytrec_eval.RelevanceEvaluator(grades, {"recip_rank", "map", "ndcg_cut_5"})
    theirs = evaluator.evaluate(raw)
    ours = evaluate(Run.from_lists(ranked), qrels, ["mrr@100", "map", "ndcg@5"])
    for i, claim in enumerate(ours.claim_ids):
        expected = theirs.get(claim, {"recip_rank": 0.0, "map": 0.0, "ndcg_cut_5": 0.0})
        assert ours["mrr@100"][i] == pytest.approx(expected["recip_rank"], abs=1e-12)
        assert ours["map"][i] == pytest.approx(expected["map"], abs=1e-12)
        assert ours["ndcg@5"][i] == pytest.approx(expected["ndcg_cut_5"], abs=1e-12)


def test_claims_without_prediction_count_as_zero_and_without_gold_not_at_all():
    qrels = Qrels({"hit": {"a": 1}, "none": {"a": 1}, "empty": {"a": 1}, "nogold": {"a": 0}})
    run = Run.from_lists({"hit": [("a", 1.0)], "empty": [], "nogold": [("a", 1.0)]})
    scores = evaluate(run, qrels, ["mrr@5", "recall@5"])
    assert scores.claim_ids == ("hit", "none", "empty")
    assert scores.means() == pytest.approx({"mrr@5": 1 / 3, "recall@5": 1 / 3})
    # A run without rows scores zero, for each of ir_measures' providers.
    assert evaluate(Run.from_lists({}), qrels, ["mrr@5", "map"]).means() == {"mrr@5": 0, "map": 0}


def test_claim_ids_restrict_and_order():
    qrels = Qrels({"a": {"s": 1}, "b": {"t": 1}, "c": {"u": 0}})
    run = Run.from_lists({"a": [("s", 1.0)], "b": [("s", 1.0)]})
    scores = evaluate(run, qrels, ["mrr@1"], ["b", "a"])
    assert scores.claim_ids == ("b", "a") and scores["mrr@1"].tolist() == [0, 1]
    for claim in ("c", "unknown"):
        with refused(ValueError, f"'{claim}'"):
            evaluate(run, qrels, ["mrr@1"], ["a", claim])
    with refused(UserError, "qrels"):
        evaluate(run, Qrels({"c": {"u": 0}}), ["mrr@1"])


def test_unknown_metrics_are_refused_with_what_is_allowed():
    qrels = Qrels({"c": {"s": 1}})
    for name in ("mrr", "mrr@0", "MRR@5", "map@", "", "mrr@1000001", "mrr@5\n", "ndcg@٣", "foo@5"):
        with refused(ConfigError, "metrics", "mrr@K, recall@K, hit@K"):
            evaluate(Run.from_lists({}), qrels, ["mrr@5", name])
    assert [cutoff(m) for m in ("mrr@5", "map", "map@1000000")] == [5, None, 1_000_000]
    with refused(ConfigError, "metrics", "at least one"):
        evaluate(Run.from_lists({}), qrels, [])


def test_coverage_counts_both_sides_and_ids_that_never_meet_are_an_error():
    qrels = Qrels({"a": {"s": 1}, "b": {"s": 1}, "c": {"s": 1}, "n": {"s": 0}})
    run = Run.from_lists({"a": [("s", 1.0)], "b": [], "n": [("s", 1.0)], "x": [("s", 1.0)]})
    counts = coverage(run, qrels)
    assert (counts.claims, counts.missing, counts.ignored) == (3, 2, 2)
    run = Run.from_lists({"16": [("s", 1.0)]})
    with refused(UserError, "my.tsv: ", "'16'", "'dev-16'"):
        coverage(run, Qrels({"dev-16": {"s": 1}}), "my.tsv")
    with refused(UserError, "qrels"):
        coverage(run, Qrels({"16": {"s": 0}}))


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
    qrels = Qrels({c: {"s": 1} for c in ("e1", "e2", "e3", "f", "g", "elsewhere")})
    good, second = [("s", 2.0), ("t", 1.0)], [("s", 1.0), ("t", 2.0)]
    run = Run.from_lists({"e1": good, "e2": second, "f": second, "g": good, "elsewhere": good})
    table = score_languages(run, claims, qrels, ["mrr@5", "mrr@1"])
    assert list(table) == ["en", "de", "fr"]
    assert table["en"] == pytest.approx({"mrr@5": 0.5, "mrr@1": 1 / 3, "queries": 3})
    assert table["de"] == {"mrr@5": 1.0, "mrr@1": 1.0, "queries": 1}
    assert table["fr"] == {"mrr@5": 0.5, "mrr@1": 0.0, "queries": 1}
    # Languages have the same weight, whatever their number of claims.
    assert macro(table) == pytest.approx({"mrr@5": 2 / 3, "mrr@1": 4 / 9, "queries": 5})
