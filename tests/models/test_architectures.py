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
TEXTS = ["masks", "Masks cut outbreaks 3.7x, a new study says.", "Grüße: 3,7-fach 👍🏽" * 3, "a b"]


def theirs(folder: Path) -> list[np.ndarray]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return [model.encode_query(TEXTS), model.encode_document(TEXTS)]


def require_equal(folder: Path, expected: list[np.ndarray], error: float = 1e-5) -> Encoder:
    encoder = resolve(ModelConfig(str(folder)), "cpu").encoder
    for side, vectors in zip(SIDES, expected, strict=True):
        assert np.abs(encoder.encode(TEXTS, side)[0] - vectors).max() < error
    return encoder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    expected = theirs(folder)
    encoder = require_equal(folder, expected)
    assert encoder.dimensions == expected[0].shape[1]
    assert len(np.unique(expected[0].round(3), axis=0)) == len(TEXTS)
    alone = encoder.encode(TEXTS[:1], "claim")[0]
    assert np.abs(alone - expected[0][:1]).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_run_is_trained_evaluated_and_exported(name: str, tuning: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    write_beir(small_splits(), tmp_path / "data")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    options = {"tuning": tuning, "optimisation.epochs": 1, "model.pooling": "null"}
    options |= {"model.max_length": 96, "optimisation.learning_rate": 0.01}
    finetune(small_config(folder, tmp_path / "data", tmp_path / "run", **options))
    *_, last = sorted(checkpoints_in(tmp_path / "run")[0])
    trained = resolve(ModelConfig(str(last)), "cpu").encoder
    vectors = [trained.encode(TEXTS, side)[0] for side in SIDES]
    assert np.abs(vectors[0] - theirs(folder)[0]).max() > 1e-3
    merge(MergeConfig([str(last)], tmp_path / "out"))
    assert np.abs(theirs(tmp_path / "out")[0] - vectors[0]).max() < 1e-4
    require_equal(tmp_path / "out", vectors, 1e-4)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_layers_behind_the_pooling_are_kept_and_compared(kind: str, tmp_path: Path) -> None:
    folder = ARCHITECTURES["EmbeddingGemma"].save(tmp_path / "model")
    point = tmp_path / "point"
    write_point(config(folder, max_length=96), point, kind)
    key = resolve(point, "cpu").encoder.key()
    assert resolve(point, "cpu").encoder.dimensions == 24
    file = (folder if kind == "lora" else point) / "3_Dense" / "model.safetensors"
    save_file({name: weight * 2 for name, weight in load_file(file).items()}, file)
    with pytest.raises(InputError) as refused:
        resolve(point, "cpu")
    assert refused.value.problems[0].field == "weights.dense"
    assert key is not None


@pytest.mark.parametrize("name", ["EmbeddingGemma", "Nomic"])
def test_checkpoints_of_such_models_are_summed(name: str, tmp_path: Path) -> None:
    """Of a whole model, also where the sum needs the base's weights."""
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    points = [tmp_path / "a", tmp_path / "b"]
    for seed, point in enumerate(points):
        write_point(config(folder, max_length=96), point, "full", 0.1, seed)
    write_sum(read_parts(points), tmp_path / "sum", [0.25, 0.25])
    states = [resolve(path, "cpu").encoder.model.state_dict() for path in (*points, folder)]
    total = resolve(tmp_path / "sum", "cpu").encoder
    assert total.dimensions == resolve(folder, "cpu").encoder.dimensions
    for key, value in total.model.state_dict().items():
        first, second, base = (state[key] for state in states)
        if value.is_floating_point():
            assert torch.allclose(value, 0.25 * first + 0.25 * second + 0.5 * base, atol=1e-6)


def test_a_student_has_no_layers_behind_its_pooling(tmp_path: Path) -> None:
    folder = ARCHITECTURES["EmbeddingGemma"].save(tmp_path / "model")
    write_beir(small_splits(), tmp_path / "data")
    teacher = shutil.copytree(folder, tmp_path / "teacher")
    options = {"teacher.name": teacher, "model.pooling": "null", "model.max_length": 96}
    options |= {"optimisation.train": "query_only"}
    with pytest.raises(ConfigError) as refused:
        finetune(small_config(folder, tmp_path / "data", tmp_path / "run", **options))
    assert refused.value.key == "model.name"
