"""Today's architectures against sentence-transformers: encoded, trained and exported."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from claim2source.train.merge import MergeConfig, merge
from safetensors.torch import load_file, save_file

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.folders import checkpoints_in
from claim2source.data.beir import write_beir
from claim2source.models import Encoder, ModelConfig, resolve
from claim2source.training.export.weighted_sum import read_parts, write_sum
from claim2source.training.finetune import finetune
from tests.models.architectures import ARCHITECTURES
from tests.training.points import config, write_point
from tests.training.small import small_config, small_splits

SIDES = ("claim", "source")
TEXTS = [
    "masks",
    "Masks cut outbreaks 3.7x, a new study says.",
    "Grüße: 3,7-fach 👍🏽" * 3,
    "a b",
]


def theirs(folder: Path) -> list[np.ndarray]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    claims = model.encode_query(TEXTS)
    sources = model.encode_document(TEXTS)
    return [claims, sources]


def encoder_in(folder: Path) -> Encoder:
    """The encoder of a model's folder."""
    config = ModelConfig(str(folder))
    return resolve(config, "cpu").encoder


def require_equal(folder: Path, expected: list[np.ndarray], error: float = 1e-5) -> Encoder:
    encoder = encoder_in(folder)
    for side, vectors in zip(SIDES, expected, strict=True):
        found, _ = encoder.encode(TEXTS, side)
        assert np.abs(found - vectors).max() < error
    return encoder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    expected = theirs(folder)
    encoder = require_equal(folder, expected)
    claims = expected[0]
    assert encoder.dimensions == claims.shape[1]
    distinct = np.unique(claims.round(3), axis=0)
    assert len(distinct) == len(TEXTS)
    alone, _ = encoder.encode(TEXTS[:1], "claim")
    error = np.abs(alone - claims[:1])
    assert error.max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_run_is_trained_evaluated_and_exported(name: str, tuning: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    data = tmp_path / "data"
    run = tmp_path / "run"
    out = tmp_path / "out"
    write_beir(small_splits(), data)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    options = {
        "tuning": tuning,
        "optimisation.epochs": 1,
        "model.pooling": "null",
        "model.max_length": 96,
        "optimisation.learning_rate": 0.01,
    }
    finetune(small_config(folder, data, run, **options))
    checkpoints = checkpoints_in(run)[0]
    *_, last = sorted(checkpoints)
    trained = encoder_in(last)
    vectors = [trained.encode(TEXTS, side)[0] for side in SIDES]
    claims = vectors[0]
    untrained = theirs(folder)[0]
    assert np.abs(claims - untrained).max() > 1e-3

    merge(MergeConfig([str(last)], out))
    merged = theirs(out)[0]
    assert np.abs(merged - claims).max() < 1e-4
    require_equal(out, vectors, 1e-4)
    after = {path: path.read_bytes() for path in before}
    assert before == after


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_layers_behind_the_pooling_are_kept_and_compared(kind: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES["EmbeddingGemma"].save(tmp_path / "model")
    point = tmp_path / "point"
    write_point(config(folder, max_length=96), point, kind)
    key = resolve(point, "cpu").encoder.key()
    encoder = resolve(point, "cpu").encoder
    assert encoder.dimensions == 24

    holder = folder if kind == "lora" else point
    file = holder / "3_Dense" / "model.safetensors"
    weights = load_file(file)
    doubled = {name: weight * 2 for name, weight in weights.items()}
    save_file(doubled, file)
    with pytest.raises(InputError) as refused:
        resolve(point, "cpu")
    problem = refused.value.problems[0]
    assert problem.field == "weights.dense"
    assert key is not None


@pytest.mark.parametrize("name", ["EmbeddingGemma", "Nomic"])
def test_checkpoints_of_such_models_are_summed(name: str, tmp_path: Path) -> None:
    """Of a whole model, also where the sum needs the base's weights."""
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    points = [tmp_path / "a", tmp_path / "b"]
    for seed, point in enumerate(points):
        point_config = config(folder, max_length=96)
        write_point(point_config, point, "full", 0.1, seed)
    target = tmp_path / "sum"
    write_sum(read_parts(points), target, [0.25, 0.25])

    states = []
    for path in (*points, folder):
        model = resolve(path, "cpu").encoder.model
        states.append(model.state_dict())
    total = resolve(target, "cpu").encoder
    base_encoder = resolve(folder, "cpu").encoder
    assert total.dimensions == base_encoder.dimensions
    for key, value in total.model.state_dict().items():
        first, second, base = (state[key] for state in states)
        if not value.is_floating_point():
            continue
        expected = 0.25 * first + 0.25 * second + 0.5 * base
        assert torch.allclose(value, expected, atol=1e-6)


def test_a_student_has_no_layers_behind_its_pooling(tmp_path: Path) -> None:
    folder = ARCHITECTURES["EmbeddingGemma"].save(tmp_path / "model")
    data = tmp_path / "data"
    run = tmp_path / "run"
    write_beir(small_splits(), data)
    teacher = shutil.copytree(folder, tmp_path / "teacher")
    options = {
        "teacher.name": teacher,
        "model.pooling": "null",
        "model.max_length": 96,
        "optimisation.train": "query_only",
    }
    with pytest.raises(ConfigError) as refused:
        finetune(small_config(folder, data, run, **options))
    assert refused.value.key == "model.name"
