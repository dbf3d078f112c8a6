"""The learned fusion as a stage: its ranking, its file, its refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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

FITTED = FittingData("d", "train", 3, 2, "0", "BM25", 10, 0.1)
SOURCES = [
    Source("s1", "tea masks", "coffee", date="2020"),
    Source("s2", "coffee masks masks", "tea", date="2010"),
    Source("s3", "masks coffee tea", ""),
]
CLAIMS = [Claim("c", "tea coffee"), Claim("d", "tea", candidates=("s3", "s2"))]
TITLE, ABSTRACT = ViewConfig(part="title"), ViewConfig(part="abstract")


def fusion(*views: LearnedView) -> LearnedFusion:
    return LearnedFusion(views, FITTED)


def write_fusion(folder: Path, fusion_model: LearnedFusion) -> str:
    fusion_model.write(folder / "fusion.json")
    return str(folder / "fusion.json")


def test_candidates_are_ranked_by_the_weighted_scores_and_nothing_else(tmp_path: Path) -> None:
    learned_fusion = fusion(
        LearnedView("title", TITLE, "", 0.5, 2.0), LearnedView("abstract", ABSTRACT, "", 5, 0.1)
    )
    run = BM25().index(SOURCES).search(CLAIMS, 10).run
    file = write_fusion(tmp_path, learned_fusion)
    read = read_stage({"rerank": "learned", "file": file, "depth": 10})
    name, stage = read.name, read.stage
    ranking = stage.apply(CLAIMS, SOURCES, run).run
    assert name == "rerank learned"
    scorer = Scorer(SOURCES)
    for claim in CLAIMS:
        ids = run.sources(claim.id)
        (title,) = scorer.scores(TITLE, [claim], [ids])
        # A source without an abstract counts as the mean of the claim's others.
        (abstract,) = scorer.scores(ABSTRACT, [claim], [ids])
        assert np.isnan(abstract).tolist() == [source == "s3" for source in ids]
        abstract[np.isnan(abstract)] = np.nanmean(abstract)
        expected = title / 0.5 * 2.0 + 0.1 / 5 * abstract
        assert ranking.scored(claim.id) == pytest.approx(dict(zip(ids, expected, strict=True)), rel=1e-5)  # fmt: skip
    assert set(ranking.sources("d")) == {"s2", "s3"} and len(ranking.sources("c")) == 3


def test_terms_are_counted_over_a_pool_that_is_given(tmp_path: Path) -> None:
    stage = Learned(file=write_fusion(tmp_path, fusion(LearnedView("title", TITLE, "", 1, 1.0))))
    run = Run.from_lists({"c": [("s2", 9.0), ("s1", 8.0)]})
    claims, given = [Claim("c", "tea masks")], SOURCES[:2]
    pool = [*SOURCES, Source("s4", "tea", ""), Source("s5", "tea", "")]
    over = stage.with_corpus_stats(pool)
    assert stage.counts_terms and not stage.apply(claims, given, run).run.scored("c") == (
        over.apply(claims, given, run).run.scored("c")
    )
    expected = stage.apply(claims, pool, run).run.scored("c")
    assert over.apply(claims, given, run).run.scored("c") == expected
    # The pool is part of the store's keys, and the separator is unambiguous.
    assert (
        over.identity
        != stage.identity
        != stage.with_corpus_stats(pool[:4]).identity
        != over.identity
    )
    assert over.with_runtime(None, None).identity == over.identity
    cosine = ViewConfig(score="cosine", model=ModelConfig("m"))
    file = write_fusion(tmp_path, fusion(LearnedView("v", cosine, "", 5, 0.1)))
    assert not Learned(file=file).counts_terms


def test_another_encoder_is_refused_and_a_moved_one_is_found(
    tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    first, second = (save_tiny(tmp_path / f"model{seed}", seed) for seed in (0, 1))
    model = ModelConfig(str(first), pooling="mean", max_length=32)
    view = ViewConfig(score="cosine", model=model)
    learned_fusion = fusion(LearnedView("v", view, Scorer(SOURCES).key(view), 1, 1.0))
    file = write_fusion(tmp_path, learned_fusion)
    claims, run = [Claim("c", "a b")], Run.from_lists({"c": [("s1", 2.0), ("s2", 1.0)]})
    before = Learned(file=file).apply(claims, SOURCES, run).run.scored("c")
    shutil.move(first, tmp_path / "moved")
    learned = Learned(file=file, models={"v": str(tmp_path / "moved")})
    assert learned.apply(claims, SOURCES, run).run.scored("c") == pytest.approx(before)
    with refused(UserError, file, "'v'", second):
        Learned(file=file, models={"v": str(second)}).apply(claims, SOURCES, run)
    longer = replace(view, model=replace(model, name=str(tmp_path / "moved"), max_length=31))
    file = write_fusion(tmp_path, fusion(replace(learned_fusion.views[0], view=longer)))
    with refused(UserError, file, "'v'", tmp_path / "moved"):
        Learned(file=file).apply(claims, SOURCES, run)
    with refused(ConfigError, "models.w: ", "views: v"):
        Learned(file=file, models={"w": "x"}).apply(claims, SOURCES, run)


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split(".")

    def apply(raw: dict[str, Any]) -> None:
        part: Any = raw
        for key in parents:
            part = part[int(key) if key.isdigit() else key]
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
    raw = json.loads(json.dumps(asdict(fusion(LearnedView("v", TITLE, "", 1, 1.0)))))
    (tmp_path / "f.json").write_text(json.dumps(raw))
    assert LearnedFusion.read(tmp_path / "f.json").views[0].view == TITLE
    spoil(raw)
    (tmp_path / "f.json").write_text(json.dumps(raw))
    with refused(InputError, "f.json", field):
        LearnedFusion.read(tmp_path / "f.json")


def test_a_fusion_keeps_the_claims_that_it_was_fitted_on(tmp_path: Path) -> None:
    """Nothing further is chosen on them; its stored results stay, since no score changes."""
    claims = [Claim("1", "masks cut outbreaks"), Claim("2", "krass", "de", "wow")]
    view = LearnedView("a", ViewConfig(), "", 1.0, 1.0)
    texts = TrainedOn.on(claims).as_text()
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for file, fitted in zip(files, (FITTED, replace(FITTED, texts=texts)), strict=True):
        LearnedFusion((view,), fitted).write(file)
    old, new = (Learned(file=str(file)) for file in files)
    assert old.identity == new.identity
    assert not old.fusion.fitted.trained_on and all(
        new.fusion.fitted.trained_on.knows(claim) for claim in claims
    )
    stages = [{"rerank": "learned", "file": str(files[1])}]
    system = make_system("A", {"retrieve": {"bm25": {}}, "stages": stages})
    assert system.trained_on("") == TrainedOn.on(claims)
    files[1].write_text(files[1].read_text().replace(texts, texts[:-4]))
    with refused(InputError, "new.json: fitted"):
        LearnedFusion.read(files[1])
