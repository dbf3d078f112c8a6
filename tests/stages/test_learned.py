"""The learned fusion as a stage: its ranking, its file, its refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.models import ModelConfig
from claim2source.models.trained_on import TrainedOn
from claim2source.search.bm25 import BM25
from claim2source.stages.learned import FittingData, Learned, LearnedFusion, LearnedView
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.systems.read import make_system, read_stage
from tests.refusals import refused

FITTED = FittingData(
    "d",
    "train",
    3,
    2,
    "0",
    "BM25",
    10,
    0.1,
)
SOURCES = [
    Source("s1", "tea masks", "coffee", date="2020"),
    Source("s2", "coffee masks masks", "tea", date="2010"),
    Source("s3", "masks coffee tea", ""),
]
CLAIMS = [
    Claim("c", "tea coffee"),
    Claim("d", "tea", candidates=("s3", "s2")),
]
TITLE = ViewConfig(part="title")
ABSTRACT = ViewConfig(part="abstract")


def fusion(*views: LearnedView) -> LearnedFusion:
    return LearnedFusion(views, FITTED)


def write_fusion(folder: Path, fusion_model: LearnedFusion) -> str:
    file = folder / "fusion.json"
    fusion_model.write(file)
    return str(file)


def test_candidates_are_ranked_by_the_weighted_scores_and_nothing_else(tmp_path: Path) -> None:
    title_view = LearnedView("title", TITLE, "", 0.5, 2.0)
    abstract_view = LearnedView("abstract", ABSTRACT, "", 5, 0.1)
    learned_fusion = fusion(title_view, abstract_view)
    run = BM25().index(SOURCES).search(CLAIMS, 10).run
    file = write_fusion(tmp_path, learned_fusion)
    entry = {
        "rerank": "learned",
        "file": file,
        "depth": 10,
    }
    read = read_stage(entry)
    ranking = read.stage.apply(CLAIMS, SOURCES, run).run
    assert read.name == "rerank learned"

    scorer = Scorer(SOURCES)
    for claim in CLAIMS:
        ids = run.sources(claim.id)
        (title,) = scorer.scores(TITLE, [claim], [ids])
        # A source without an abstract counts as the mean of the claim's others.
        (abstract,) = scorer.scores(ABSTRACT, [claim], [ids])
        is_unknown = np.isnan(abstract)
        assert is_unknown.tolist() == [source == "s3" for source in ids]
        abstract[is_unknown] = np.nanmean(abstract)
        values = title / 0.5 * 2.0 + 0.1 / 5 * abstract
        expected = dict(zip(ids, values, strict=True))
        assert ranking.scored(claim.id) == pytest.approx(expected, rel=1e-5)
    assert set(ranking.sources("d")) == {"s2", "s3"}
    assert len(ranking.sources("c")) == 3


def test_terms_are_counted_over_a_pool_that_is_given(tmp_path: Path) -> None:
    title_view = LearnedView("title", TITLE, "", 1, 1.0)
    file = write_fusion(tmp_path, fusion(title_view))
    stage = Learned(file=file)
    run = Run.from_lists({"c": [("s2", 9.0), ("s1", 8.0)]})
    claims = [Claim("c", "tea masks")]
    given = SOURCES[:2]
    pool = [
        *SOURCES,
        Source("s4", "tea", ""),
        Source("s5", "tea", ""),
    ]
    over = stage.with_corpus_stats(pool)

    def scores(learned: Learned, sources: list[Source]) -> Mapping[str, float]:
        return learned.apply(claims, sources, run).run.scored("c")

    assert stage.counts_terms
    assert not scores(stage, given) == scores(over, given)
    expected = scores(stage, pool)
    assert scores(over, given) == expected

    # The pool is part of the store's keys, and the separator is unambiguous.
    over_four = stage.with_corpus_stats(pool[:4])
    assert over.identity != stage.identity
    assert stage.identity != over_four.identity
    assert over_four.identity != over.identity
    assert over.with_runtime(None, None).identity == over.identity

    cosine = ViewConfig(score="cosine", model=ModelConfig("m"))
    cosine_view = LearnedView("v", cosine, "", 5, 0.1)
    file = write_fusion(tmp_path, fusion(cosine_view))
    assert not Learned(file=file).counts_terms


def test_another_encoder_is_refused_and_a_moved_one_is_found(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    first = save_tiny(tmp_path / "model0", 0)
    second = save_tiny(tmp_path / "model1", 1)
    model = ModelConfig(str(first), pooling="mean", max_length=32)
    view = ViewConfig(score="cosine", model=model)
    key = Scorer(SOURCES).key(view)
    learned_view = LearnedView("v", view, key, 1, 1.0)
    file = write_fusion(tmp_path, fusion(learned_view))
    claims = [Claim("c", "a b")]
    run = Run.from_lists({"c": [("s1", 2.0), ("s2", 1.0)]})

    def scores(**settings: Any) -> Mapping[str, float]:
        learned = Learned(file=file, **settings)
        return learned.apply(claims, SOURCES, run).run.scored("c")

    before = scores()
    moved = tmp_path / "moved"
    shutil.move(first, moved)
    after = scores(models={"v": str(moved)})
    assert after == pytest.approx(before)
    with refused(UserError, file, "'v'", second):
        scores(models={"v": str(second)})

    moved_model = replace(model, name=str(moved), max_length=31)
    longer = replace(view, model=moved_model)
    longer_view = replace(learned_view, view=longer)
    file = write_fusion(tmp_path, fusion(longer_view))
    with refused(UserError, file, "'v'", moved):
        scores()
    with refused(ConfigError, "models.w: ", "views: v"):
        scores(models={"w": "x"})


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split(".")

    def apply(raw: dict[str, Any]) -> None:
        part: Any = raw
        for key in parents:
            step = int(key) if key.isdigit() else key
            part = part[step]
        part[last] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (change("views.0.weight", -0.1), "views.0: "),
        (change("views.0.weight", "1"), "views.0.weight"),
        (change("views.0.view.part", "body"), "views.0.view"),
        (change("views", []), "f.json: "),
        (change("ranker", "lambdamart"), "ranker"),
        (lambda raw: raw["views"].append(raw["views"][0]), "f.json: "),
        (lambda raw: raw.pop("fitted"), "fitted: "),
    ],
)
def test_a_damaged_file_is_named_with_its_field(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], field: str
) -> None:
    learned_view = LearnedView("v", TITLE, "", 1, 1.0)
    content = json.dumps(asdict(fusion(learned_view)))
    raw = json.loads(content)
    file = tmp_path / "f.json"
    file.write_text(json.dumps(raw))
    sound = LearnedFusion.read(file)
    assert sound.views[0].view == TITLE
    spoil(raw)
    file.write_text(json.dumps(raw))
    with refused(InputError, "f.json", field):
        LearnedFusion.read(file)


def test_a_fusion_keeps_the_claims_that_it_was_fitted_on(tmp_path: Path) -> None:
    """Nothing further is chosen on them; its stored results stay, since no score changes."""
    claims = [
        Claim("1", "masks cut outbreaks"),
        Claim("2", "krass", "de", "wow"),
    ]
    view = LearnedView("a", ViewConfig(), "", 1.0, 1.0)
    texts = TrainedOn.on(claims).as_text()
    old_file = tmp_path / "old.json"
    new_file = tmp_path / "new.json"
    with_texts = replace(FITTED, texts=texts)
    LearnedFusion((view,), FITTED).write(old_file)
    LearnedFusion((view,), with_texts).write(new_file)

    old = Learned(file=str(old_file))
    new = Learned(file=str(new_file))
    assert old.identity == new.identity
    assert not old.fusion.fitted.trained_on
    known = new.fusion.fitted.trained_on
    assert all(known.knows(claim) for claim in claims)

    entry = {
        "retrieve": {"bm25": {}},
        "stages": [{"rerank": "learned", "file": str(new_file)}],
    }
    system = make_system("A", entry)
    assert system.trained_on("") == TrainedOn.on(claims)
    content = new_file.read_text()
    cut = content.replace(texts, texts[:-4])
    new_file.write_text(cut)
    with refused(InputError, "new.json: fitted"):
        LearnedFusion.read(new_file)
