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
    for number, lang in enumerate(languages):
        claims.append(Claim(f"c{number}", "", lang, golds=(f"p{number // per_paper}",)))
    qrels = Qrels({claim.id: {claim.golds[0]: 1} for claim in claims})
    sources = tuple(Source(f"p{number}") for number in range(len(claims)))
    return Dataset(tuple(claims), (*sources, Source("x")), qrels, "dev")


def make_run(data: Dataset, ranks: Sequence[int]) -> Run:
    """A run whose gold is at rank 1 or 2, or is not found: 0. None of a claim: -1."""
    lists = {}
    for claim, rank in zip(data.claims, ranks, strict=True):
        if rank >= 0:
            gold = [(claim.golds[0], 2.0 if rank == 1 else 0.5)] if rank else []
            lists[claim.id] = [*gold, ("x", 1.0)]
    return Run.from_lists(lists)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return make_data(["en"] * 160 + ["de"] * 40)


def test_paired_tests_separate_what_intervals_of_scores_do_not(data: Dataset) -> None:
    # One is better for 14 claims of 200, worse for none; every other claim is right or wrong.
    ranks = [number % 2 for number in range(PAPERS)]
    worse = list(ranks)
    for number in range(14):
        worse[10 * number + 11] = 2
    runs = {"worse": make_run(data, worse), "best": make_run(data, ranks)}
    runs["twin"] = make_run(data, ranks)
    found = c2s.groups(runs, data, repeats=2_000)
    assert (found.first, found.tied_with_first) == ("best", ("twin",))
    assert found.groups == {"a": ("best", "twin"), "b": ("worse",)}
    places = [(s.system, s.rank, s.best_rank, s.worst_rank, s.groups) for s in found.systems]
    assert places == [
        ("best", 1, 1, 2, ("a",)),
        ("twin", 1, 1, 2, ("a",)),
        ("worse", 3, 3, 3, ("b",)),
    ]
    assert [s.p_first is None for s in found.systems] == [True, False, False]
    assert found.systems[1].p_first == 1.0
    bounds = c2s.compare(runs, data, repeats=2_000).intervals
    assert bounds["worse"]["macro"][1] > bounds["best"]["macro"][0]
    assert any("best" in note and "twin" in note for note in found.notes)
    by_pair = {(pair.system, pair.other): pair for pair in found.pairs}
    assert len(by_pair) == 3 and by_pair["best", "worse"].separated
    score = {system.system: system.score for system in found.systems}
    assert by_pair["best", "worse"].difference == pytest.approx(score["best"] - score["worse"])


def test_claims_of_one_paper_do_not_count_as_many() -> None:
    data = make_data(["en"] * 60, per_paper=15)
    found = c2s.groups(
        {"right": make_run(data, [1] * 60), "wrong": make_run(data, [0] * 60)}, data, repeats=500
    )
    assert (found.claims, found.papers) == (60, 4)
    assert found.tied_with_first == ("wrong",)
    assert [(s.best_rank, s.worst_rank) for s in found.systems] == [(1, 2), (1, 2)]
    assert any("0.12" in note for note in found.notes)  # the smallest p of four papers is 1/8
    by_claim = make_data(["en"] * 60)
    runs = {"right": make_run(by_claim, [1] * 60), "wrong": make_run(by_claim, [0] * 60)}
    assert c2s.groups(runs, by_claim, repeats=500).tied_with_first == ()


def test_languages_weigh_the_same_and_claims_that_a_run_lacks_count_as_0(data: Dataset) -> None:
    english = [1] * 160 + [0] * 40
    german = [-1] * 160 + [1] * 40
    found = c2s.groups(
        {"english": make_run(data, english), "german": make_run(data, german)}, data, repeats=500
    )
    # Over all claims the first would be far better: 0.8 to 0.2.
    assert [(s.system, s.score, s.missing) for s in found.systems] == [
        ("english", 0.5, 0),
        ("german", 0.5, 160),
    ]
    assert found.systems[1].languages == {"en": 0.0, "de": 1.0}
    assert found.tied_with_first == ("german",) and found.systems[1].rank == 1
    assert any("german" in note and "160" in note for note in found.notes)
    assert "160" in str(found)


def test_one_run_alone_and_many_letters(data: Dataset) -> None:
    alone = c2s.groups({"one": make_run(data, [1] * PAPERS)}, data, repeats=50)
    assert [(s.rank, s.best_rank, s.worst_rank) for s in alone.systems] == [(1, 1, 1)]
    assert (alone.pairs, alone.tied_with_first, alone.groups) == ((), (), {"a": ("one",)})
    assert "one" in str(alone) and json.loads(json.dumps(alone.as_json()))["pairs"] == []
    many = {}
    for number in range(28):
        right = 7 * number
        many[f"s{number}"] = make_run(data, [1] * right + [0] * (PAPERS - right))
    found = c2s.groups(many, data, repeats=200, alpha=0.5)
    assert found.first == "s27" and {"z", "aa"} <= set(found.groups)


def test_text_csv_html_and_json_have_the_same_rows(data: Dataset) -> None:
    name = "<b>=1,2</b>"
    found = c2s.groups(
        {"good": make_run(data, [1] * PAPERS), name: make_run(data, [2] * PAPERS)},
        data,
        repeats=300,
    )
    rows = [*csv.DictReader(io.StringIO(found.csv()))]
    record = json.loads(json.dumps(found.as_json()))
    for row, system, line in zip(rows, record["systems"], found.systems, strict=True):
        assert row["system"] == system["system"] == line.system
        for key in ("rank", "best_rank", "worst_rank", "missing"):
            assert int(row[key]) == system[key] == getattr(line, key)
        assert float(row["score"]) == system["score"] == line.score
        assert float(row["de"]) == system["languages"]["de"]
        assert row["groups"].split() == system["groups"] == list(line.groups)
    assert rows[0]["p_first"] == "" and float(rows[1]["p_first"]) < 0.05
    assert "2 to 2" in str(found) and name in str(found)
    assert name not in found._repr_html_() and "&lt;b&gt;" in found._repr_html_()
    assert record["tied_with_first"] == []


def test_what_cannot_be_grouped(data: Dataset) -> None:
    good = make_run(data, [1] * PAPERS)
    with pytest.raises(ConfigError, match="results"):
        c2s.groups({}, data)
    with pytest.raises(ConfigError, match="alpha"):
        c2s.groups({"a": good}, data, alpha=1.5)
    with pytest.raises(ConfigError, match="metric"):
        c2s.groups({"a": good}, data, metric="bleu")
    strange = Run.from_lists({"other": [("x", 1.0)]})
    with pytest.raises(UserError, match="strange: ids do not match"):
        c2s.groups({"a": good, "strange": strange}, data)
    half = Run.from_lists({"c0": [("x", 1.0)], "other": [("x", 1.0)]})
    with pytest.raises(UserError, match=r"half: .* 1 claims .* 199 "):
        c2s.groups({"a": good, "half": half}, data)
