"""Abstention of an index: fitted with other posts, measured on what it was not fitted on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from claim2source.eval.abstain import main

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Result, Run
from claim2source.data.posts import Post
from claim2source.find import calibrate as module
from claim2source.find.abstention import AbstainModel, Tenth, fit, reliability_tenths
from claim2source.find.calibrate import (
    FOLDS,
    PENALTIES,
    SCORES,
    as_asked,
    calibrate,
    choose_design,
    gold_papers,
    paired,
    posts_from_elsewhere,
    reliability,
    reliability_line,
)
from claim2source.find.finder import Finder
from claim2source.models import ModelConfig
from claim2source.search.engine import Engine, open_index
from claim2source.search.growing import grow_engine
from tests.refusals import refused

WORDS = "sleep masks vaccine outbreak school children dose risk study number works cut".split()


def texts(seed: int) -> list[str]:
    """Four words of a paper, as numbers no other paper has."""
    rng = np.random.default_rng(seed)
    return [f"{word}{seed}" for word in rng.choice(WORDS, 4, False)]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    sources = [
        Source(f"p{i}", " ".join(texts(i)), f"{' '.join(texts(i))} trial") for i in range(60)
    ]
    claims = [
        Claim(f"c{i}-{j}", f"new: {' '.join(texts(i)[j : j + 2])} trial", "en", golds=(f"p{i}",))
        for i in range(60)
        for j in (0, 1)
    ]
    qrels = Qrels({claim.id: dict.fromkeys(claim.golds, 1) for claim in claims})
    return Dataset(tuple(claims), tuple(sources), qrels, "train", "papers")


@pytest.fixture
def engine(tiny_folder: Path, dataset: Dataset, tmp_path: Path) -> Engine:
    model = ModelConfig(name=str(tiny_folder), pooling="mean", max_length=32)
    grow_engine(tmp_path / "idx", dataset.sources, model)
    return open_index(str(tmp_path / "idx"))


def test_an_index_tells_its_claims_from_absent_ones_and_from_other_posts(
    engine: Engine, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted_on: list[tuple[module.Questions, np.ndarray]] = []
    fit = module._fit_model

    def watched(questions: module.Questions, *rest: object) -> AbstainModel:
        fitted_on.append((questions, rest[-1]))  # type: ignore[arg-type]
        return fit(questions, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_fit_model", watched)
    model = calibrate(engine, dataset)
    # No paper, and no kind of other posts, is on both sides; the last model is fitted on all.
    questions = fitted_on[0][0]
    claims = 2 * len(dataset.claims)
    papers, kinds = np.split(questions.groups, [claims])
    held_out = np.zeros(len(questions.groups), int)
    for _, rows in fitted_on[:-1]:
        for groups, rows_of in ((papers, rows[:claims]), (kinds, rows[claims:])):
            assert not {*groups[rows_of]} & {*groups[~rows_of]}
        held_out += ~rows
    assert (held_out == 1).all() and fitted_on[-1][1].all()
    assert sum(tenth.answers for tenth in model.tenths) == len(held_out)
    assert sum(tenth.here for tenth in model.tenths) == len(dataset.claims)
    present, absent = model.measured(model.sure, 1.1), model.measured(0, model.threshold)
    assert present.answers > 60 and present.here / present.answers > 0.9
    assert absent.answers > 150 and absent.here / absent.answers < 0.1
    assert f'{present.here} of {present.answers} that are "found"' in reliability_line(model)
    assert model.papers == 60 and model.topic is not None
    engine.note(abstain=model.as_json())
    engine.close()
    finder = Finder(open_index(engine.location))
    posts = [Post("a", dataset.claims[0].text), Post("b", "Regen in Kiel, nie wieder Urlaub hier")]
    first, second = finder.find(posts)
    assert (first.verdict, first.measured) == ("found", present)
    assert (second.verdict, second.measured) == ("not here", absent)
    assert "the index has 60 papers" in model.fitted


@pytest.mark.slow
def test_abstention_of_an_index_is_measured_by_a_command(
    engine: Engine, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from claim2source.data.beir import write_beir

    write_beir(dataset, tmp_path / "data")
    words = ["--index", engine.location, "--dataset", str(tmp_path / "data"), "--split", "train"]
    words += ["--out", str(tmp_path / "out")]
    with refused(UserError, engine.location, "--claims"):
        main(words)
    model = calibrate(engine, dataset)
    tenths = reliability(engine, model, dataset)
    assert sum(tenth.answers for tenth in tenths) == 2 * len(dataset.claims)
    engine.note(abstain=model.as_json())
    engine.close()
    main(words)
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "reliability.json").is_file()
    last = tenths[9]
    assert f"{last.answers}" in text and text.count("paper there") >= 2 and "0.9 to 1.0" in text
    with refused(UserError, "'train'"):
        calibrate(engine, replace(dataset, claims=(Claim("x", "y", "en", golds=("q",)),)))


def test_tenths_count_answers_by_their_probability() -> None:
    shares = np.array([0.0, 0.05, 0.1, 0.95, 1.0])
    is_present = np.array([False, True, False, True, True])
    tenths = reliability_tenths(shares, is_present, is_present & (shares < 1))
    assert tenths[0] == Tenth(2, 0.025, 1, 1) and tenths[1] == Tenth(1, 0.1, 0, 0)
    assert tenths[9] == Tenth(2, pytest.approx(0.975), 2, 1)  # type: ignore[arg-type]
    assert len(tenths) == 10 and tenths[5] == Tenth()


def test_other_posts_are_of_the_languages_and_kinds_that_are_asked_for() -> None:
    posts, kinds = posts_from_elsewhere(("de", "es"), 40)
    assert len(posts) == len(kinds) == len({post.text for post in posts}) == 40
    assert {post.lang for post in posts} == {"de"} and len({*kinds}) > 10
    assert {post.lang for post in posts_from_elsewhere(("es",), 9)[0]} == {"en"}
    assert posts == posts_from_elsewhere(("de", "es"), 40)[0]


def test_near_duplicates_of_a_gold_go_with_it() -> None:
    title = "the effect of masks on the spread of outbreaks in schools of a large city"
    sources = (
        Source("g", title, "one"),
        Source("copy", title.upper() + ".", "two"),
        Source("other", "another title", "three"),
        Source("far", "a third title", "four five six seven eight nine ten eleven twelve"),
        Source("text", "its preprint", "four five six seven eight nine ten eleven twelve"),
    )
    claims = (Claim("1", "x", golds=("g",)), Claim("2", "y", golds=("text", "other")))
    claims += (Claim("3", "no gold"),)
    qrels = Qrels({"1": {"g": 1}, "2": {"text": 1, "other": 1}})
    data = Dataset(claims, sources, qrels, "dev")
    assert gold_papers(data) == {"1": {"g", "copy"}, "2": {"text", "far", "other"}}


def test_features_are_chosen_on_papers_that_a_model_was_not_fitted_on() -> None:
    rng = np.random.default_rng(0)
    claims = [Claim(f"c{i}", f"c{i}", golds=(f"p{i // 2}",)) for i in range(40)]

    def run(loc: float) -> Result:
        lists = {c.id: [(c.golds[0], rng.normal(loc)), ("x", -3.0)] for c in claims}
        return Result(Run.from_lists(lists))

    questions = paired(claims, {"s": run(2.0)}, {"s": run(0.0)})
    assert questions.present.tolist() == [True] * 40 + [False] * 40
    assert (questions.groups[:40] == questions.groups[40:]).all() and len({*questions.groups}) == 20
    assert not questions.right[40:].any() and questions.right[:40].any()
    design, penalty = choose_design(questions)
    # The chosen one has the smallest log loss, each paper's by a model of the other papers.
    fold = (np.random.default_rng(13).permutation(20) % FOLDS)[questions.groups]
    losses = {}
    for scores in SCORES:
        for weight in PENALTIES:
            one, shares = replace(design, scores=scores), np.empty(80)
            features = questions.features(one)
            for number in range(FOLDS):
                rest = fold != number
                model = fit(one, features[rest], questions.present[rest], weight)
                shares[~rest] = model.probabilities(features[~rest])
            losses[scores, weight] = -np.log(np.where(questions.present, shares, 1 - shares)).mean()
    assert losses[design.scores, penalty] == pytest.approx(min(losses.values()))
    with pytest.raises(UserError, match=r"\b5 papers; there are 1"):
        choose_design(paired(claims[:2], {"s": run(2.0)}, {"s": run(0.0)}))


def test_claims_are_asked_as_posts_are_without_their_written_translations(engine: Engine) -> None:
    claim = Claim("c", "Ratten riechen", "de", "rats smell")
    assert as_asked(engine, [claim]) == [replace(claim, translation=None)]
