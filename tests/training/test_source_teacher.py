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
from claim2source.core.records import Dataset, Source
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

FRESH = [
    "coffee was studied in 90 adults",
    "does tea matter",
    "zinc and sleep",
    "salt, a study",
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random model, wider than the student, whose texts lie apart."""
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "initializer_range": 0.3,
    }
    model = save_small_model(folder, seed=1, **sizes)
    return say_pooling(model, 32, normalize=True)


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
    expected = teacher.encode(texts, "claim")[0]
    squares = (vectors - expected) ** 2
    distances = squares.sum(axis=1)
    return float(distances.mean())


def ranking(run: Run) -> dict[str, list[str]]:
    return {claim: run.sources(claim) for claim in run.claim_ids}


def as_read(teacher: Path) -> Encoder:
    return resolve(ModelConfig(str(teacher))).encoder


@pytest.fixture(scope="module")
def run(
    setup: tuple[Path, Path],
    teacher: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("run")
    out = folder / "run"
    store = folder / "store"
    extra = taught(
        teacher,
        optimisation__epochs=4,
        optimisation__learning_rate=1e-2,
    )
    config = small_config(
        *setup,
        out,
        store=store,
        choose="last",
        **extra,
    )
    finetune(config)
    return out, store


@pytest.mark.slow
def test_a_student_comes_near_its_teacher_and_learns_to_rank(
    setup: tuple[Path, Path], run: tuple[Path, Path], teacher: Path
) -> None:
    folder = run[0] / "checkpoints"
    last = folder / "epoch-4"
    encoder = as_read(teacher)
    # The first projection is fitted: a random model's vectors are farther away (about 2).
    dev = load(setup[1], "dev")
    titles = [source.title for source in dev.sources]
    before = distance(folder / "epoch-0", encoder, titles)
    after = distance(last, encoder, titles)
    assert before < 1.5
    assert after < 0.8 * before
    losses = losses_of(run[0])
    first_losses = sum(losses[:5])
    last_losses = sum(losses[-5:])
    assert last_losses < 0.8 * first_losses

    manifest = Manifest.read(last)
    assert manifest.weights.trained == "query_only"
    source_model = manifest.source_model
    assert source_model is not None
    assert Path(source_model.name) == teacher.resolve()
    text = (last / "manifest.json").read_text()
    assert str(teacher) not in text
    assert '"./teacher"' in text


@pytest.mark.slow
def test_a_checkpoint_is_read_without_more_and_without_the_teacher(
    setup: tuple[Path, Path],
    run: tuple[Path, Path],
    teacher: Path,
    tmp_path: Path,
) -> None:
    folder, store = run
    dev = load(setup[1], "dev")
    resolved = resolve(folder)
    sources = resolved.encoder.source_encoder
    assert isinstance(sources, LateEncoder)
    assert resolved.encoder.dimensions == 48
    chosen = Report.read(folder).systems["chosen"]
    expected = chosen.macro["mrr@5"]

    # A copy elsewhere, where the teacher is not: the store has its vectors.
    copy = tmp_path / "copy"
    moved_teacher = tmp_path / "moved"
    shutil.copytree(folder / "checkpoints" / "epoch-4", copy)
    shutil.move(teacher, moved_teacher)
    try:
        dense = Dense(str(copy), store=Store(store))
        result = dense.index(dev.sources).search(dev.claims)
        by_language = scores_by_language(result.run, dev)
        assert np.mean(by_language) == pytest.approx(expected)
        # Without them it is needed.
        with refused(UserError, "source_model.name", "teacher"):
            Dense(str(copy)).index(dev.sources).search(dev.claims)
    finally:
        shutil.move(moved_teacher, teacher)

    texts = ["Effect of masks on health"]
    vectors, _ = sources.encode(texts, "source")
    read_vectors = as_read(teacher).encode(texts, "source")[0]
    assert vectors == pytest.approx(read_vectors)
    # With a new store the teacher is loaded, and the ranking is the same.
    indexed = Dense(str(copy)).index(dev.sources)
    rerun = indexed.search(dev.claims)
    assert ranking(rerun.run) == ranking(result.run)


def scores_by_language(run: Run, data: Dataset) -> list[float]:
    """The mean score of the English claims and that of the German ones."""
    claim_ids = [claim.id for claim in data.claims]
    scores = evaluate(run, data.qrels, ["mrr@5"], claim_ids)["mrr@5"]
    means = []
    for lang in ("en", "de"):
        own_scores = []
        for score, claim in zip(scores, data.claims, strict=True):
            if claim.lang == lang:
                own_scores.append(score)
        means.append(np.mean(own_scores))
    return means


@pytest.mark.slow
def test_another_teacher_is_refused(run: tuple[Path, Path], teacher: Path, tmp_path: Path) -> None:
    copy = tmp_path / "epoch-4"
    shutil.copytree(run[0] / "checkpoints" / "epoch-4", copy)
    manifest_file = copy / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    source_model = manifest["source_model"]
    source_model["weights"]["base"] = "0" * 64
    source_model["name"] = str(teacher)
    manifest_file.write_text(json.dumps(manifest))
    encoder = resolve(copy).encoder
    with refused(InputError, manifest_file, "source_model.weights", teacher):
        encoder.encode(FRESH, "source")

    weights = copy / "projection.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"x")
    with refused(InputError, weights, "sha256"):
        resolve(copy)


@pytest.mark.slow
def test_it_is_exported_with_its_projection(
    run: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    checkpoints = run[0] / "checkpoints"
    checkpoint = checkpoints / "epoch-4"
    first = str(checkpoint)
    export = tmp_path / "model"
    merge(MergeConfig([first], export))
    ours = resolve(checkpoint).encoder
    theirs = SentenceTransformer(str(export), device="cpu")
    vectors = ours.encode(FRESH, "claim")[0]
    query_vectors = theirs.encode_query(FRESH)
    assert query_vectors == pytest.approx(vectors, abs=1e-5)
    exported = resolve(export).encoder
    exported_vectors = exported.encode(FRESH, "claim")[0]
    assert exported_vectors == pytest.approx(vectors, abs=1e-5)
    source_vectors = exported.encode(FRESH, "source")[0]
    teacher_vectors = as_read(teacher).encode(FRESH, "source")[0]
    assert source_vectors == pytest.approx(teacher_vectors, abs=1e-6)

    with pytest.raises(UserError, match="projection"):
        merge(MergeConfig([first], tmp_path / "half", scales=[0.5]))
    with pytest.raises(UserError, match="projection"):
        second = str(checkpoints / "epoch-3")
        merge(MergeConfig([first, second], tmp_path / "sum"))


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_stopped_run_goes_on_to_the_same_losses(
    tuning: str,
    setup: tuple[Path, Path],
    teacher: Path,
    tmp_path: Path,
) -> None:
    extra = taught(
        teacher,
        tuning=tuning,
        optimisation__epochs=2,
        store=tmp_path / "store",
    )
    full = tmp_path / "whole"
    early = tmp_path / "cut"
    finetune(small_config(*setup, full, **extra))
    with power_cut(lambda state: state.steps_done >= 7):
        finetune(small_config(*setup, early, **extra))
    resumed = small_config(*setup, early, resume=True, **extra)
    finetune(resumed)
    assert losses_of(full) == losses_of(early)

    full_vectors = fresh_vectors(full, 2)
    early_vectors = fresh_vectors(early, 2)
    assert (full_vectors == early_vectors).all()
    untrained = fresh_vectors(full, 0)
    differences = abs(untrained - full_vectors)
    assert differences.max() > 1e-3


def fresh_vectors(out: Path, epoch: int) -> np.ndarray:
    """The vectors of the fresh claims by a run's checkpoint."""
    encoder = resolve(out / "checkpoints" / f"epoch-{epoch}").encoder
    return encoder.encode(FRESH, "claim")[0]


@pytest.mark.slow
def test_a_student_is_not_warned_of_sources_that_its_teacher_reads(
    setup: tuple[Path, Path],
    teacher: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = save_small_model(tmp_path / "student")
    student = say_pooling(model, 40)
    out = tmp_path / "out"
    extra = taught(teacher, model__max_length=20, optimisation__epochs=1)
    finetune(small_config(student, setup[1], out, **extra))
    manifest = Manifest.read(out / "checkpoints" / "epoch-0")
    assert manifest.encoder.max_length == 20
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
    assert len(fewer) == 2
    assert fewer == pool_texts(sources, 2, 0)
    drawn = set()
    for seed in range(20):
        one_text = pool_texts(sources, 1, seed)
        drawn.add(tuple(one_text))
    assert drawn == {(text,) for text in texts}


def test_batches_take_texts_in_turn_with_their_own_vectors(
    setup: tuple[Path, Path], teacher: Path
) -> None:
    config = ModelConfig(str(setup[0]), pooling="mean", max_length=24)
    student = resolve(config).encoder
    encoder = as_read(teacher)
    texts = [f"text {n}" for n in range(7)]
    tokens_of = student.tokenize(texts, "claim")
    vectors_of = encoder.encode(texts, "claim")[0]
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
    assert set(seen) == set(vector_of)
    assert seen[7:] == seen[:2]
    seen_next = []
    for index in range(3):
        tokens, _ = aligned.batch(1, index)
        seen_next += tokens
    assert seen_next != seen
    no_vectors = vectors_of[:0]
    empty = AlignedTexts([], [], no_vectors, 5, 3)
    tokens, _ = empty.batch(0, 0)
    assert len(tokens) == 0


def test_settings_that_contradict_a_teacher_are_refused(
    setup: tuple[Path, Path], teacher: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for extra, key in (
        ({"optimisation__train": "both"}, "optimisation.train"),
        ({"losses__keep_base__weight": 1.0}, "losses.keep_base.weight"),
        ({"losses__alignment__most": 0}, "losses.alignment.most"),
    ):
        settings = taught(teacher, **extra)
        with refused(ConfigError, f"config: {key}: "):
            small_config(*setup, out, **settings)
    with refused(ConfigError, "losses.alignment.weight: 1.0 ", "`teacher`"):
        small_config(*setup, out, losses__alignment__weight=1.0)
    missing = tmp_path / "none"
    config = small_config(*setup, out, **taught(missing))
    with refused(UserError, missing):
        finetune(config)
    assert not out.exists()
