"""`train/fusion.py` from its arguments to its files; it fits on claims new to the encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.train.fusion import difference_cells, main, read_views, without_learned

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.data.beir import write_beir
from claim2source.data.grouping import gold_groups
from claim2source.data.known_posts import KnownPosts
from claim2source.data.loading import load
from claim2source.data.split import carve_val, claims_of_shared_papers
from claim2source.data.trec import read_run
from claim2source.evaluation.compare import ScoredRuns
from claim2source.metrics.metrics import Scores, judged_claims, language_strata
from claim2source.metrics.significance import paired_randomisations
from claim2source.models import Base, DataRecord, EncoderSettings, Manifest, ModelConfig, Weights
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import Hybrid
from claim2source.stages.learned import Learned, LearnedFusion
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.read import read_systems
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import Rendering
from claim2source.training.finetune import finetune
from claim2source.training.fusion import Fitting, gather, known_claims
from tests.refusals import refused
from tests.shared_data import REPOSITORY
from tests.training.small import small_config, small_splits

VIEWS = """
bm25: {bm25: {title_weight: 2}}
title: {part: title}
characters: {terms: characters}
abstract: {part: abstract}
"""
SYSTEMS = """
BM25: {retrieve: {bm25: {k1: 1.2}}}
Tuned: {retrieve: {bm25: {k1: fit}}}
"""


@pytest.fixture
def base_arguments(tmp_path: Path) -> list[str]:
    """The arguments of a run without an encoder; the sources have no abstracts."""
    splits = []
    for split in small_splits():
        sources = tuple(replace(source, abstract="") for source in split.sources)
        splits.append(replace(split, sources=sources))
    data = tmp_path / "data"
    views = tmp_path / "views.yaml"
    systems = tmp_path / "systems.yaml"
    write_beir(splits, data)
    views.write_text(VIEWS)
    systems.write_text(SYSTEMS)
    return [
        f"--views={views}",
        f"--files={systems}",
        f"--dataset={data}",
        f"--out={tmp_path / 'out'}",
        "--repeats=50",
        "--depth=12",
    ]


def test_the_written_fusion_is_what_was_reported(
    base_arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*base_arguments, "--system=BM25", "--against=Tuned"])
    out = tmp_path / "out"
    output = capsys.readouterr().out
    fusion_file = out / "fusion.json"
    fusion = LearnedFusion.read(fusion_file)
    data = str(tmp_path / "data")
    train = load(data, "train")
    dev = load(data, "dev")
    fitted = fusion.fitted
    assert fitted.data_sha256 == train.fingerprint
    assert fitted.split == "train"
    assert fitted.candidates == "BM25"
    assert fitted.depth == 12
    names = [view.name for view in fusion.views]
    assert names[:2] == ["bm25", "title"]
    assert "abstract" not in names
    report = json.loads((out / "report.json").read_text())
    assert list(report["systems"]) == ["first stage", "Tuned", "learned"]
    learned = report["systems"]["learned"]
    (choice,) = [row for row in learned["choices"] if row["what"] == "learned fusion"]
    assert choice["settings"]["views"] == ", ".join(names)
    assert choice["split"] == "train"
    assert learned["settings"]["weights"].keys() == set(names)

    # The stage ranks the candidates as in the report.
    before = read_run(out / "runs" / "first-stage" / "en.trec").run
    after = read_run(out / "runs" / "learned" / "en.trec").run
    english = [claim for claim in dev.claims if claim.lang == "en"]
    stage = Learned(file=str(fusion_file), depth=12)
    reranked = stage.apply(english, dev.sources, before).run
    for claim in english:
        assert reranked.sources(claim.id) == after.sources(claim.id)
    assert "raw two: bm25, title" in output
    assert "Left out" in output

    # A separate system, read from YAML, ranks the same.
    own_file = tmp_path / "own.yaml"
    own_file.write_text(
        "retrieve: {bm25: {k1: 1.2}}\n"
        f"stages: [{{rerank: learned, file: {fusion_file}, depth: 12}}]\n"
    )
    own = read_systems([own_file])["own"]
    settings = RunSettings(data)
    ranking = SystemRunner(dev, settings).run(own).result.run
    for claim in english:
        assert ranking.sources(claim.id, 12) == after.sources(claim.id)

    # Fitted for that system, its candidates are those before the learned stage.
    runner = SystemRunner(dev, replace(settings, depth=12))
    lists = runner.run(without_learned(own)).result.run
    for claim in english:
        assert lists.sources(claim.id, 12) == before.sources(claim.id)


def declare_trained(export: Path, data: str, val: Dataset) -> None:
    """Write to an export that it was trained on a data set, and held out val."""
    record = DataRecord(
        data,
        "train",
        0.4,
        5,
        val_sha256=val.fingerprint,
    )
    encoder = EncoderSettings(pooling="mean", max_length=32)
    manifest = Manifest(
        base=Base("b", None, "0"),
        weights=Weights("full"),
        encoder=encoder,
        rendering=Rendering(),
        data=record,
    )
    manifest.write_export(export)


def require_no_nearness(
    train: Dataset,
    dev: Dataset,
    folder: Path,
    near: ViewConfig,
    system: System,
    scorer: Scorer,
) -> None:
    """Require that claims alone in their papers know no other of them."""
    write_beir([train, dev], folder)
    posts = KnownPosts(str(folder))
    known = {
        "bm25": ViewConfig(),
        "posts": replace(near, posts=posts),
    }
    settings = RunSettings(str(folder), depth=36)
    runner = SystemRunner(dev, settings)
    fitting = gather(known, system, None, runner, scorer)
    assert fitting.data.claims == train.claims
    assert not nearness_of_golds(fitting).any()


def require_declared_weights(
    train: Dataset,
    dev: Dataset,
    folder: Path,
    system: System,
    scorer: Scorer,
) -> None:
    """Require that claims whose paper has another claim weigh as much as is declared."""
    write_beir([train, dev], folder)
    settings = RunSettings(str(folder), depth=36)
    runner = SystemRunner(dev, settings)
    of_shared_papers = claims_of_shared_papers(train)
    words = {
        "bm25": ViewConfig(),
        "title": ViewConfig(part="title"),
    }
    for expected, weight in ((None, 24 / 36), (0.25, 0.25), (0.0, 0.0)):
        fitting = gather(words, system, None, runner, scorer, 5, expected)
        weighing = fitting.weighing
        shared = [claim_id in of_shared_papers for claim_id in weighing.claim_ids]
        assert sum(shared) == 24
        weights = weighing.weights[shared]
        assert weights.sum() == pytest.approx(weight)


def test_over_a_trained_encoder_is_fitted_on_what_it_held_out(
    base_arguments: list[str], tmp_path: Path, save_tiny: Callable[..., Path]
) -> None:
    """A learned fusion of its scores, whatever else is among the views, and a hybrid with it."""
    data = str(tmp_path / "data")
    train = load(data, "train")
    dev = load(data, "dev")
    _, val = carve_val(train, 0.4, 5)
    export = save_tiny(tmp_path / "export")
    declare_trained(export, data, val)
    model = ModelConfig(str(export), pooling="mean", max_length=32)
    untrained = save_tiny(tmp_path / "plain")
    spec = replace(model, name=str(untrained))
    views = {
        "cosine": ViewConfig(score="cosine", model=model),
        "best_sentence": ViewConfig(score="best_sentence", model=model),
        "bm25": ViewConfig(),
        "plain": ViewConfig(score="cosine", model=spec),
    }
    bm25 = Retrieval(BM25())
    dense = Retrieval(Dense(model, sources="title_abstract"))
    hybrid = Retrieval(Hybrid(bm25, dense, fits=True))
    systems = {
        "S": System("S", bm25),
        "H": System("H", hybrid),
    }
    settings = RunSettings(data)

    def claims_for(kinds: str, system: str, settings: RunSettings = settings) -> Dataset:
        views_chosen = {kind: views[kind] for kind in kinds.split()}
        runner = SystemRunner(dev, settings)
        known = known_claims(views_chosen, systems[system], runner.held_out)
        return known.val

    for kinds in ("bm25 cosine", "bm25 best_sentence", "plain cosine", "cosine plain"):
        assert claims_for(kinds, "S") == val
    # A trained encoder's candidates are not new either; an untrained encoder has seen no claim.
    assert claims_for("bm25 plain", "H") == val
    assert claims_for("bm25 plain", "S") == train
    on_train = replace(settings, choosing=ChoosingOn(val="train"))
    with refused(UserError, "`carved`"):
        claims_for("cosine", "S", on_train)

    # Claims that were held out are known posts of none: of their papers others may be held out too.
    near = ViewConfig(
        score="posts",
        model=ModelConfig(max_length=32),
        posts=KnownPosts(data),
    )
    known = {"bm25": ViewConfig(), "posts": near}
    runner = SystemRunner(dev, replace(settings, depth=36))
    scorer = Scorer(dev.sources)
    with_cosine = {**known, "cosine": views["cosine"]}
    fitting = gather(with_cosine, systems["S"], None, runner, scorer)
    assert fitting.data.claims == val.claims
    assert not nearness_of_golds(fitting).any()

    # Claims of all of train know the others of their papers; alone in its paper, none.
    fitting = gather(known, systems["S"], None, runner, scorer)
    assert fitting.data.claims == train.claims
    assert nearness_of_golds(fitting).any()
    first = train.with_claims(train.claims[:24])
    require_no_nearness(first, dev, tmp_path / "first", near, systems["S"], scorer)

    # A declared share weighs claims whose paper has another claim.
    some = train.with_claims(train.claims[:36])
    require_declared_weights(some, dev, tmp_path / "some", systems["S"], scorer)

    (choice,) = SystemRunner(dev, settings).run(systems["H"]).choices
    assert choice.split == "val"
    assert choice.claims == len(val.claims)
    assert not choice.note


@pytest.mark.parametrize("key", ["posts", "bm25.posts"])
def test_known_posts_of_the_reported_split_are_refused(
    key: str, base_arguments: list[str], tmp_path: Path
) -> None:
    """Their papers are the answers."""
    posts = f"{{dataset: {tmp_path / 'data'}, split: dev}}"
    view = (
        f"{{score: posts, posts: {posts}}}" if key == "posts" else f"{{bm25: {{posts: {posts}}}}}"
    )
    (tmp_path / "views.yaml").write_text(f"{VIEWS}near: {view}\n")
    with refused(ConfigError) as error:
        main([*base_arguments, "--system=BM25"])
    assert error.value.key == f"near.{key}.split"
    assert not (tmp_path / "out").exists()


def nearness_of_golds(fitting: Fitting) -> np.ndarray:
    """The view `posts` of every claim's gold among its candidates; 0 if it is 0 for all."""
    if "posts" in fitting.constant:
        return np.zeros(1)
    posts = fitting.names.index("posts")
    column = fitting.lists.features[:, :, posts]
    return column[fitting.lists.gold]


def test_the_shipped_views_are_read_with_the_encoder_that_is_given() -> None:
    folder = REPOSITORY / "configs" / "fusion"
    spec = ModelConfig("checkpoints/a")
    untrained = ModelConfig(
        name="sentence-transformers/all-MiniLM-L6-v2",
        max_length=256,
    )
    before = {
        "cosine": spec,
        "cosine_title": spec,
        "best_sentence": spec,
    }
    tuned = {
        "cosine": spec,
        "best_sentence": spec,
        "cosine_untrained": untrained,
        "best_sentence_untrained": untrained,
    }
    for file, expected in (("views.yaml", before), ("tuned.yaml", tuned)):
        views = read_views(folder / file, "checkpoints/a")
        models = {name: view.model for name, view in views.items() if view.encodes}
        assert models == expected
        assert list(views)[:2] == ["bm25", "cosine"]
        different = {replace(view, bm25=BM25()) for view in views.values()}
        assert len(different) == len(views)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--system=BM52"], ["system: 'BM52'", "BM25"]),
        (["--system=BM25", "--folds=30"], [" 30 papers", " 24"]),
        (["--system=BM25", "--split=train"], ["split: ", "'train'"]),
    ],
)
def test_bad_arguments_are_one_line_and_leave_nothing(
    base_arguments: list[str], tmp_path: Path, options: list[str], facts: list[str]
) -> None:
    with refused(UserError, *facts):
        main([*base_arguments, *options])
    assert not list((tmp_path / "out").rglob("*"))


@pytest.mark.slow
def test_a_checkpoints_fusion_is_one_command(setup: tuple[Path, Path], tmp_path: Path) -> None:
    _, data = setup
    run = tmp_path / "run"
    out = tmp_path / "out"
    config = small_config(*setup, run, optimisation__epochs=1, choose="last")
    finetune(config)
    views = tmp_path / "views.yaml"
    views.write_text(
        "bm25: {claims: bilingual}\ncosine: {score: cosine}\ntitle: {score: cosine, part: title}\n"
    )
    systems = tmp_path / "systems.yaml"
    systems.write_text("H: {retrieve: {hybrid: [{bm25: {k1: 1.2}}, {dense: checkpoint}]}}\n")
    main(
        [
            f"--views={views}",
            f"--files={systems}",
            "--system=H",
            f"--checkpoint={run}",
            f"--dataset={data}",
            f"--out={out}",
            "--repeats=20",
            "--depth=10",
            "--folds=2",
        ]
    )
    raw: dict[str, Any] = json.loads((out / "fusion.json").read_text())
    models = {row["name"]: row["view"]["model"] for row in raw["views"]}
    assert models["bm25"] is None
    assert models["cosine"]["name"] == str(run)
    manifest = Manifest.read(run / "checkpoints" / "epoch-1")
    fitted = raw["fitted"]
    assert fitted["data_sha256"] == manifest.data.val_sha256
    assert "val" in fitted["held_out"]
    report = json.loads((out / "report.json").read_text())
    learned = report["systems"]["learned"]
    assert np.isfinite(learned["macro"]["mrr@5"])


def test_the_rankers_are_compared_as_systems_are() -> None:
    _, dev = small_splits()[:2]
    claims = judged_claims(dev.qrels)
    generator = np.random.default_rng(0)
    values = generator.choice([0.0, 0.5, 1.0], size=(2, len(claims)))
    first, second = values
    scores = {
        "first stage": Scores(claims, {"mrr@5": first}),
        "all": Scores(claims, {"mrr@5": second}),
    }
    compared = ScoredRuns(dev, "mrr@5", "first stage", {}, scores)
    groups = gold_groups(dev.qrels, claims)
    strata = language_strata(dev.claims, claims)
    differences = values[1:] - values[:1]
    tests = paired_randomisations(differences, groups, strata, 300, 5)
    cells = difference_cells(compared, 300, 5)
    assert list(cells) == ["all"]
    cell = cells["all"]
    assert cell.startswith(f"{tests.differences[0]:+.4f} (")
    assert cell.endswith(f"; p {tests.p_values[0]:.4f})")
    bounds = compared.bounds(300, 5)["macro"]
    mean = bounds["all"].value
    assert mean == pytest.approx(compared.macro["all"])
