"""A small model learns to encode claims for another model's vectors of sources, in whole runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.train.merge import MergeConfig, merge

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Source
from claim2source.core.report import Report
from claim2source.core.run import Run
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.metrics.metrics import evaluate
from claim2source.models import Encoder, Manifest, ModelConfig, resolve
from claim2source.models.query_only import LateEncoder
from claim2source.search.dense import Dense
from claim2source.training.finetune import finetune
from claim2source.training.teacher import AlignedTexts, pool_texts
from tests.refusals import refused
from tests.training.small import losses_of, power_cut, save_small_model, say_pooling, small_config

FRESH = ["coffee was studied in 90 adults", "does tea matter", "zinc and sleep", "salt, a study"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random model, wider than the student, whose texts lie apart."""
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    sizes = {"hidden_size": 48, "intermediate_size": 96, "initializer_range": 0.3}
    return say_pooling(save_small_model(folder, seed=1, **sizes), 32, normalize=True)


def taught(teacher: Path, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "optimisation__train": "query_only",
        "optimisation__dropout": 0.0,
        "teacher__name": teacher,
        "losses__alignment__weight": 1.0,
    }
    return settings | options


def distance(folder: Path, teacher: Encoder, texts: Sequence[str] = FRESH) -> float:
    """The mean distance of a checkpoint's vectors of texts to the teacher's."""
    vectors, _ = resolve(folder).encoder.encode(texts, "claim")
    return float(((vectors - teacher.encode(texts, "claim")[0]) ** 2).sum(axis=1).mean())


def ranking(run: Run) -> dict[str, list[str]]:
    return {claim: run.sources(claim) for claim in run.claim_ids}


def as_read(teacher: Path) -> Encoder:
    return resolve(ModelConfig(str(teacher))).encoder


@pytest.fixture(scope="module")
def run(
    setup: tuple[Path, Path], teacher: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("run")
    extra = taught(teacher, optimisation__epochs=4, optimisation__learning_rate=1e-2)
    finetune(small_config(*setup, folder / "run", store=folder / "store", choose="last", **extra))
    return folder / "run", folder / "store"


@pytest.mark.slow
def test_a_student_comes_near_its_teacher_and_learns_to_rank(
    setup: tuple[Path, Path], run: tuple[Path, Path], teacher: Path
) -> None:
    folder, encoder = run[0] / "checkpoints", as_read(teacher)
    # The first projection is fitted: a random model's vectors are farther away (about 2).
    titles = [source.title for source in load(setup[1], "dev").sources]
    before, after = (distance(folder / f"epoch-{n}", encoder, titles) for n in (0, 4))
    assert before < 1.5 and after < 0.8 * before
    losses = losses_of(run[0])
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    manifest = Manifest.read(folder / "epoch-4")
    assert manifest.weights.trained == "query_only" and manifest.source_model is not None
    assert Path(manifest.source_model.name) == teacher.resolve()
    text = (folder / "epoch-4" / "manifest.json").read_text()
    assert str(teacher) not in text and '"./teacher"' in text


@pytest.mark.slow
def test_a_checkpoint_is_read_without_more_and_without_the_teacher(
    setup: tuple[Path, Path], run: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    folder, store = run
    dev = load(setup[1], "dev")
    resolved = resolve(folder)
    sources = resolved.encoder.source_encoder
    assert isinstance(sources, LateEncoder) and resolved.encoder.dimensions == 48
    expected = Report.read(folder).systems["chosen"].macro["mrr@5"]
    # A copy elsewhere, where the teacher is not: the store has its vectors.
    copy, moved_teacher = tmp_path / "copy", tmp_path / "moved"
    shutil.copytree(folder / "checkpoints" / "epoch-4", copy)
    shutil.move(teacher, moved_teacher)
    try:
        dense = Dense(str(copy), store=Store(store)).index(dev.sources)
        result = dense.search(dev.claims)
        scores = evaluate(result.run, dev.qrels, ["mrr@5"], [c.id for c in dev.claims])["mrr@5"]
        by_language = [
            np.mean([s for s, c in zip(scores, dev.claims, strict=True) if c.lang == lang])
            for lang in ("en", "de")
        ]
        assert np.mean(by_language) == pytest.approx(expected)
        # Without them it is needed.
        with refused(UserError, "source_model.name", "teacher"):
            Dense(str(copy)).index(dev.sources).search(dev.claims)
    finally:
        shutil.move(moved_teacher, teacher)
    vectors, _ = sources.encode(["Effect of masks on health"], "source")
    assert vectors == pytest.approx(
        as_read(teacher).encode(["Effect of masks on health"], "source")[0]
    )
    # With a new store the teacher is loaded, and the ranking is the same.
    rerun = Dense(str(copy)).index(dev.sources).search(dev.claims)
    assert ranking(rerun.run) == ranking(result.run)


@pytest.mark.slow
def test_another_teacher_is_refused(run: tuple[Path, Path], teacher: Path, tmp_path: Path) -> None:
    copy = tmp_path / "epoch-4"
    shutil.copytree(run[0] / "checkpoints" / "epoch-4", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["source_model"]["weights"]["base"] = "0" * 64
    manifest["source_model"]["name"] = str(teacher)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    encoder = resolve(copy).encoder
    with refused(InputError, copy / "manifest.json", "source_model.weights", teacher):
        encoder.encode(FRESH, "source")
    weights = copy / "projection.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with refused(InputError, weights, "sha256"):
        resolve(copy)


@pytest.mark.slow
def test_it_is_exported_with_its_projection(
    run: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    checkpoint = run[0] / "checkpoints" / "epoch-4"
    merge(MergeConfig([str(checkpoint)], tmp_path / "model"))
    ours = resolve(checkpoint).encoder
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    vectors = ours.encode(FRESH, "claim")[0]
    assert theirs.encode_query(FRESH) == pytest.approx(vectors, abs=1e-5)
    exported = resolve(tmp_path / "model").encoder
    assert exported.encode(FRESH, "claim")[0] == pytest.approx(vectors, abs=1e-5)
    both = exported.encode(FRESH, "source")[0], as_read(teacher).encode(FRESH, "source")[0]
    assert both[0] == pytest.approx(both[1], abs=1e-6)
    with pytest.raises(UserError, match="projection"):
        merge(MergeConfig([str(checkpoint)], tmp_path / "half", scales=[0.5]))
    with pytest.raises(UserError, match="projection"):
        second = str(run[0] / "checkpoints" / "epoch-3")
        merge(MergeConfig([str(checkpoint), second], tmp_path / "sum"))


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_stopped_run_goes_on_to_the_same_losses(
    tuning: str, setup: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    extra = taught(teacher, tuning=tuning, optimisation__epochs=2, store=tmp_path / "store")
    full, early = tmp_path / "whole", tmp_path / "cut"
    finetune(small_config(*setup, full, **extra))
    with power_cut(lambda state: state.steps_done >= 7):
        finetune(small_config(*setup, early, **extra))
    finetune(small_config(*setup, early, resume=True, **extra))
    assert losses_of(full) == losses_of(early)
    ours, theirs = (resolve(out / "checkpoints" / "epoch-2").encoder for out in (full, early))
    assert (ours.encode(FRESH, "claim")[0] == theirs.encode(FRESH, "claim")[0]).all()
    untrained = resolve(full / "checkpoints" / "epoch-0").encoder
    assert abs(untrained.encode(FRESH, "claim")[0] - ours.encode(FRESH, "claim")[0]).max() > 1e-3


@pytest.mark.slow
def test_a_student_is_not_warned_of_sources_that_its_teacher_reads(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    student, out = say_pooling(save_small_model(tmp_path / "student"), 40), tmp_path / "out"
    extra = taught(teacher, model__max_length=20, optimisation__epochs=1)
    finetune(small_config(student, setup[1], out, **extra))
    assert Manifest.read(out / "checkpoints" / "epoch-0").encoder.max_length == 20
    assert "sources are cut" not in caplog.text


def test_texts_without_labels_are_those_of_the_pool(setup: tuple[Path, Path]) -> None:
    sources = [
        Source("a", "Masks", "Masks help much. We saw 9 of 10. Methods."),
        Source("b", "", "Masks help much. Tea does not help anyone."),
    ]
    # Each once, and no headings of one word.
    texts = ["Masks", "We saw 9 of 10.", "Tea does not help anyone."]
    assert pool_texts(sources, None, 0) == texts
    fewer = pool_texts(sources, 2, 0)
    assert len(fewer) == 2 and fewer == pool_texts(sources, 2, 0)
    assert {tuple(pool_texts(sources, 1, seed)) for seed in range(20)} == {(t,) for t in texts}


def test_batches_take_texts_in_turn_with_their_own_vectors(
    setup: tuple[Path, Path], teacher: Path
) -> None:
    student = resolve(ModelConfig(str(setup[0]), pooling="mean", max_length=24)).encoder
    encoder, texts = as_read(teacher), [f"text {n}" for n in range(7)]
    tokens_of, vectors_of = student.tokenize(texts, "claim"), encoder.encode(texts, "claim")[0]
    aligned = AlignedTexts(texts, tokens_of, vectors_of, 5, 3)
    vector_of = dict(zip(tokens_of, vectors_of, strict=True))
    seen = []
    for index in range(3):
        tokens, vectors = aligned.batch(0, index)
        assert len(tokens) == 3
        for text, vector in zip(tokens, vectors.numpy(), strict=True):
            assert vector == pytest.approx(vector_of[text], abs=1e-6)
        seen += tokens
    # All of them in an epoch, then from the beginning; the next epoch in another order.
    assert set(seen) == set(vector_of) and seen[7:] == seen[:2]
    assert [t for i in range(3) for t in aligned.batch(1, i)[0]] != seen
    assert len(AlignedTexts([], [], vectors_of[:0], 5, 3).batch(0, 0)[0]) == 0


def test_settings_that_contradict_a_teacher_are_refused(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    for extra, key in (
        ({"optimisation__train": "both"}, "optimisation.train"),
        ({"losses__keep_base__weight": 1.0}, "losses.keep_base.weight"),
        ({"losses__alignment__most": 0}, "losses.alignment.most"),
    ):
        with refused(ConfigError, f"config: {key}: "):
            small_config(*setup, tmp_path / "run", **taught(teacher, **extra))
    with refused(ConfigError, "losses.alignment.weight: 1.0 ", "`teacher`"):
        small_config(*setup, tmp_path / "run", losses__alignment__weight=1.0)
    config = small_config(*setup, tmp_path / "run", **taught(tmp_path / "none"))
    with refused(UserError, tmp_path / "none"):
        finetune(config)
    assert not (tmp_path / "run").exists()
