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
    words = rng.choice(WORDS, 4, False)
    return [f"{word}{seed}" for word in words]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    sources: list[Source] = []
    claims: list[Claim] = []
    for i in range(60):
        words = texts(i)
        title = " ".join(words)
        source = Source(f"p{i}", title, f"{title} trial")
        sources.append(source)
        for j in (0, 1):
            two_words = " ".join(words[j : j + 2])
            claim = Claim(
                f"c{i}-{j}",
                f"new: {two_words} trial",
                "en",
                golds=(source.id,),
            )
            claims.append(claim)
    qrels = Qrels({claim.id: dict.fromkeys(claim.golds, 1) for claim in claims})
    return Dataset(tuple(claims), tuple(sources), qrels, "train", "papers")


@pytest.fixture
def engine(tiny_folder: Path, dataset: Dataset, tmp_path: Path) -> Engine:
    model = ModelConfig(
        name=str(tiny_folder),
        pooling="mean",
        max_length=32,
    )
    location = tmp_path / "idx"
    grow_engine(location, dataset.sources, model)
    return open_index(str(location))


Fit = tuple[module.Questions, np.ndarray]


def check_held_out(fitted_on: list[Fit], claims: int) -> None:
    """Check the splits: nothing on both sides, each row held out once, the last fit on all."""
    questions = fitted_on[0][0]
    papers, kinds = np.split(questions.groups, [claims])
    held_out = np.zeros(len(questions.groups), int)
    for _, rows in fitted_on[:-1]:
        for groups, rows_of in (
            (papers, rows[:claims]),
            (kinds, rows[claims:]),
        ):
            inside = {*groups[rows_of]}
            outside = {*groups[~rows_of]}
            assert not inside & outside
        held_out += ~rows
    assert (held_out == 1).all()
    assert fitted_on[-1][1].all()


@pytest.mark.slow
def test_an_index_tells_its_claims_from_absent_ones_and_from_other_posts(
    engine: Engine, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted_on: list[Fit] = []
    fit = module._fit_model

    def watched(questions: module.Questions, *rest: object) -> AbstainModel:
        rows = rest[-1]
        fitted_on.append((questions, rows))  # type: ignore[arg-type]
        return fit(questions, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_fit_model", watched)
    model = calibrate(engine, dataset)
    # No paper, and no kind of other posts, is on both sides; the last model is fitted on all.
    check_held_out(fitted_on, claims=2 * len(dataset.claims))
    answers = sum(tenth.answers for tenth in model.tenths)
    assert answers == len(fitted_on[0][0].groups)
    here = sum(tenth.here for tenth in model.tenths)
    assert here == len(dataset.claims)

    present = model.measured(model.sure, 1.1)
    absent = model.measured(0, model.threshold)
    assert present.answers > 60
    assert present.here / present.answers > 0.9
    assert absent.answers > 150
    assert absent.here / absent.answers < 0.1
    line = reliability_line(model)
    assert f'{present.here} of {present.answers} that are "found"' in line
    assert model.papers == 60
    assert model.topic is not None

    engine.note(abstain=model.as_json())
    engine.close()
    reopened = open_index(engine.location)
    finder = Finder(reopened)
    of_a_paper = Post("a", dataset.claims[0].text)
    of_none = Post("b", "Regen in Kiel, nie wieder Urlaub hier")
    first, second = finder.find([of_a_paper, of_none])
    assert first.verdict == "found"
    assert first.measured == present
    assert second.verdict == "not here"
    assert second.measured == absent
    assert "the index has 60 papers" in model.fitted


@pytest.mark.slow
def test_abstention_of_an_index_is_measured_by_a_command(
    engine: Engine, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from claim2source.data.beir import write_beir

    data = tmp_path / "data"
    out = tmp_path / "out"
    write_beir(dataset, data)
    words = [
        *("--index", engine.location),
        *("--dataset", str(data)),
        *("--split", "train"),
        *("--out", str(out)),
    ]
    with refused(UserError, engine.location, "--claims"):
        main(words)
    model = calibrate(engine, dataset)
    tenths = reliability(engine, model, dataset)
    answers = sum(tenth.answers for tenth in tenths)
    assert answers == 2 * len(dataset.claims)

    engine.note(abstain=model.as_json())
    engine.close()
    main(words)
    text = capsys.readouterr().out
    assert (out / "reliability.json").is_file()
    last = tenths[9]
    assert f"{last.answers}" in text
    assert text.count("paper there") >= 2
    assert "0.9 to 1.0" in text

    unknown = Claim("x", "y", "en", golds=("q",))
    with refused(UserError, "'train'"):
        calibrate(engine, replace(dataset, claims=(unknown,)))


def test_tenths_count_answers_by_their_probability() -> None:
    shares = np.array([0.0, 0.05, 0.1, 0.95, 1.0])
    is_present = np.array([False, True, False, True, True])
    is_right = is_present & (shares < 1)
    tenths = reliability_tenths(shares, is_present, is_right)
    assert tenths[0] == Tenth(2, 0.025, 1, 1)
    assert tenths[1] == Tenth(1, 0.1, 0, 0)
    assert tenths[9] == Tenth(2, pytest.approx(0.975), 2, 1)  # type: ignore[arg-type]
    assert len(tenths) == 10
    assert tenths[5] == Tenth()


def test_other_posts_are_of_the_languages_and_kinds_that_are_asked_for() -> None:
    posts, kinds = posts_from_elsewhere(("de", "es"), 40)
    distinct = {post.text for post in posts}
    assert len(posts) == 40
    assert len(kinds) == 40
    assert len(distinct) == 40
    assert {post.lang for post in posts} == {"de"}
    assert len({*kinds}) > 10

    spanish, _ = posts_from_elsewhere(("es",), 9)
    assert {post.lang for post in spanish} == {"en"}
    again, _ = posts_from_elsewhere(("de", "es"), 40)
    assert posts == again


def test_near_duplicates_of_a_gold_go_with_it() -> None:
    title = "the effect of masks on the spread of outbreaks in schools of a large city"
    sources = (
        Source("g", title, "one"),
        Source("copy", title.upper() + ".", "two"),
        Source("other", "another title", "three"),
        Source("far", "a third title", "four five six seven eight nine ten eleven twelve"),
        Source("text", "its preprint", "four five six seven eight nine ten eleven twelve"),
    )
    claims = (
        Claim("1", "x", golds=("g",)),
        Claim("2", "y", golds=("text", "other")),
        Claim("3", "no gold"),
    )
    qrels = Qrels(
        {
            "1": {"g": 1},
            "2": {"text": 1, "other": 1},
        }
    )
    data = Dataset(claims, sources, qrels, "dev")
    assert gold_papers(data) == {
        "1": {"g", "copy"},
        "2": {"text", "far", "other"},
    }


def test_features_are_chosen_on_papers_that_a_model_was_not_fitted_on() -> None:
    rng = np.random.default_rng(0)
    claims = [Claim(f"c{i}", f"c{i}", golds=(f"p{i // 2}",)) for i in range(40)]

    def run(loc: float) -> Result:
        lists = {}
        for claim in claims:
            score = rng.normal(loc)
            lists[claim.id] = [(claim.golds[0], score), ("x", -3.0)]
        return Result(Run.from_lists(lists))

    here = {"s": run(2.0)}
    elsewhere = {"s": run(0.0)}
    questions = paired(claims, here, elsewhere)
    present = questions.present
    groups = questions.groups
    right = questions.right
    assert present.tolist() == [True] * 40 + [False] * 40
    assert (groups[:40] == groups[40:]).all()
    assert len({*groups}) == 20
    assert not right[40:].any()
    assert right[:40].any()

    design, penalty = choose_design(questions)
    # The chosen one has the smallest log loss, each paper's by a model of the other papers.
    order = np.random.default_rng(13).permutation(20)
    fold = (order % FOLDS)[groups]
    losses = {}
    for scores in SCORES:
        for weight in PENALTIES:
            one = replace(design, scores=scores)
            shares = np.empty(80)
            features = questions.features(one)
            for number in range(FOLDS):
                rest = fold != number
                model = fit(one, features[rest], present[rest], weight)
                shares[~rest] = model.probabilities(features[~rest])
            likelihoods = np.where(present, shares, 1 - shares)
            losses[scores, weight] = -np.log(likelihoods).mean()
    chosen = losses[design.scores, penalty]
    least = min(losses.values())
    assert chosen == pytest.approx(least)
    with pytest.raises(UserError, match=r"\b5 papers; there are 1"):
        one_paper = paired(claims[:2], {"s": run(2.0)}, {"s": run(0.0)})
        choose_design(one_paper)


def test_claims_are_asked_as_posts_are_without_their_written_translations(engine: Engine) -> None:
    claim = Claim("c", "Ratten riechen", "de", "rats smell")
    asked = as_asked(engine, [claim])
    assert asked == [replace(claim, translation=None)]
