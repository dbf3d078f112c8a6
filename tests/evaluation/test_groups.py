"""Who is tied with the first: rankings of others, by paired tests of all pairs by gold paper."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pytest

import claim2source as c2s
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run

PAPERS = 200


def make_data(languages: Sequence[str], per_paper: int = 1) -> Dataset:
    claims = []
    judged = {}
    for number, lang in enumerate(languages):
        claim_id = f"c{number}"
        gold = f"p{number // per_paper}"
        claims.append(Claim(claim_id, "", lang, golds=(gold,)))
        judged[claim_id] = {gold: 1}
    sources = [Source(f"p{number}") for number in range(len(claims))]
    sources.append(Source("x"))
    return Dataset(
        tuple(claims),
        tuple(sources),
        Qrels(judged),
        "dev",
    )


def make_run(data: Dataset, ranks: Sequence[int]) -> Run:
    """A run whose gold is at rank 1 or 2, or is not found: 0. None of a claim: -1."""
    lists = {}
    for claim, rank in zip(data.claims, ranks, strict=True):
        if rank < 0:
            continue
        ranking = []
        if rank:
            gold = claim.golds[0]
            score = 2.0 if rank == 1 else 0.5
            ranking.append((gold, score))
        ranking.append(("x", 1.0))
        lists[claim.id] = ranking
    return Run.from_lists(lists)


@pytest.fixture(scope="module")
def data() -> Dataset:
    languages = ["en"] * 160 + ["de"] * 40
    return make_data(languages)


def test_paired_tests_separate_what_intervals_of_scores_do_not(data: Dataset) -> None:
    # One is better for 14 claims of 200, worse for none; every other claim is right or wrong.
    ranks = [number % 2 for number in range(PAPERS)]
    worse = list(ranks)
    for number in range(14):
        claim = 10 * number + 11
        worse[claim] = 2
    runs = {
        "worse": make_run(data, worse),
        "best": make_run(data, ranks),
        "twin": make_run(data, ranks),
    }
    found = c2s.groups(runs, data, repeats=2_000)
    assert found.first == "best"
    assert found.tied_with_first == ("twin",)
    assert found.groups == {
        "a": ("best", "twin"),
        "b": ("worse",),
    }
    places = [
        (
            s.system,
            s.rank,
            s.best_rank,
            s.worst_rank,
            s.groups,
        )
        for s in found.systems
    ]
    assert places == [
        ("best", 1, 1, 2, ("a",)),
        ("twin", 1, 1, 2, ("a",)),
        ("worse", 3, 3, 3, ("b",)),
    ]
    untested = [s.p_first is None for s in found.systems]
    assert untested == [True, False, False]
    assert found.systems[1].p_first == 1.0

    bounds = c2s.compare(runs, data, repeats=2_000).intervals
    worse_high = bounds["worse"]["macro"][1]
    best_low = bounds["best"]["macro"][0]
    assert worse_high > best_low
    assert any("best" in note and "twin" in note for note in found.notes)

    by_pair = {(pair.system, pair.other): pair for pair in found.pairs}
    assert len(by_pair) == 3
    pair = by_pair["best", "worse"]
    assert pair.separated
    score = {system.system: system.score for system in found.systems}
    difference = score["best"] - score["worse"]
    assert pair.difference == pytest.approx(difference)


def test_claims_of_one_paper_do_not_count_as_many() -> None:
    languages = ["en"] * 60
    right = [1] * 60
    wrong = [0] * 60
    data = make_data(languages, per_paper=15)
    runs = {
        "right": make_run(data, right),
        "wrong": make_run(data, wrong),
    }
    found = c2s.groups(runs, data, repeats=500)
    assert found.claims == 60
    assert found.papers == 4
    assert found.tied_with_first == ("wrong",)
    bounds = [(s.best_rank, s.worst_rank) for s in found.systems]
    assert bounds == [(1, 2), (1, 2)]
    assert any("0.12" in note for note in found.notes)  # the smallest p of four papers is 1/8

    by_claim = make_data(languages)
    runs = {
        "right": make_run(by_claim, right),
        "wrong": make_run(by_claim, wrong),
    }
    apart = c2s.groups(runs, by_claim, repeats=500)
    assert apart.tied_with_first == ()


def test_languages_weigh_the_same_and_claims_that_a_run_lacks_count_as_0(data: Dataset) -> None:
    english = [1] * 160 + [0] * 40
    german = [-1] * 160 + [1] * 40
    runs = {
        "english": make_run(data, english),
        "german": make_run(data, german),
    }
    found = c2s.groups(runs, data, repeats=500)
    # Over all claims the first would be far better: 0.8 to 0.2.
    scores = [(s.system, s.score, s.missing) for s in found.systems]
    assert scores == [
        ("english", 0.5, 0),
        ("german", 0.5, 160),
    ]
    second = found.systems[1]
    assert second.languages == {"en": 0.0, "de": 1.0}
    assert found.tied_with_first == ("german",)
    assert second.rank == 1
    assert any("german" in note and "160" in note for note in found.notes)
    assert "160" in str(found)


def test_one_run_alone_and_many_letters(data: Dataset) -> None:
    only = make_run(data, [1] * PAPERS)
    alone = c2s.groups({"one": only}, data, repeats=50)
    places = [(s.rank, s.best_rank, s.worst_rank) for s in alone.systems]
    assert places == [(1, 1, 1)]
    assert alone.pairs == ()
    assert alone.tied_with_first == ()
    assert alone.groups == {"a": ("one",)}
    assert "one" in str(alone)
    record = json.loads(json.dumps(alone.as_json()))
    assert record["pairs"] == []

    many = {}
    for number in range(28):
        right = 7 * number
        wrong = PAPERS - right
        ranks = [1] * right + [0] * wrong
        many[f"s{number}"] = make_run(data, ranks)
    found = c2s.groups(many, data, repeats=200, alpha=0.5)
    assert found.first == "s27"
    assert {"z", "aa"} <= set(found.groups)


def test_text_csv_html_and_json_have_the_same_rows(data: Dataset) -> None:
    name = "<b>=1,2</b>"
    runs = {
        "good": make_run(data, [1] * PAPERS),
        name: make_run(data, [2] * PAPERS),
    }
    found = c2s.groups(runs, data, repeats=300)
    file = io.StringIO(found.csv())
    rows = [*csv.DictReader(file)]
    record = json.loads(json.dumps(found.as_json()))
    systems = record["systems"]
    for row, system, line in zip(rows, systems, found.systems, strict=True):
        assert row["system"] == system["system"]
        assert system["system"] == line.system
        for key in ("rank", "best_rank", "worst_rank", "missing"):
            assert int(row[key]) == system[key]
            assert system[key] == getattr(line, key)
        assert float(row["score"]) == system["score"]
        assert system["score"] == line.score
        german = system["languages"]["de"]
        assert float(row["de"]) == german
        assert row["groups"].split() == system["groups"]
        assert system["groups"] == list(line.groups)

    assert rows[0]["p_first"] == ""
    assert float(rows[1]["p_first"]) < 0.05
    text = str(found)
    assert "2 to 2" in text
    assert name in text
    html = found._repr_html_()
    assert name not in html
    assert "&lt;b&gt;" in html
    assert record["tied_with_first"] == []


def test_what_cannot_be_grouped(data: Dataset) -> None:
    good = make_run(data, [1] * PAPERS)
    with pytest.raises(ConfigError, match="results"):
        c2s.groups({}, data)
    with pytest.raises(ConfigError, match="alpha"):
        c2s.groups({"a": good}, data, alpha=1.5)
    with pytest.raises(ConfigError, match="metric"):
        c2s.groups({"a": good}, data, metric="bleu")

    ranking = [("x", 1.0)]
    strange = Run.from_lists({"other": ranking})
    runs = {"a": good, "strange": strange}
    with pytest.raises(UserError, match="strange: ids do not match"):
        c2s.groups(runs, data)
    half = Run.from_lists({"c0": ranking, "other": ranking})
    runs = {"a": good, "half": half}
    with pytest.raises(UserError, match=r"half: .* 1 claims .* 199 "):
        c2s.groups(runs, data)
