"""Static embeddings, against model2vec itself."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from claim2source.core.errors import ConfigError, InputError
from claim2source.models import ModelConfig, resolve
from claim2source.models.hub import PACKAGED
from tests.training.small import small_config

model2vec = pytest.importorskip("model2vec")
TEXTS = ["new study: masks cut outbreaks 3.7x", "日本 what", "a", "Ünïcode 😷 masks " * 60]


def save_static(folder: Path, *, shared: bool = False) -> Path:
    """Random vectors for MiniLM's vocabulary; `shared`: 500 vectors, each of several tokens."""
    module = PACKAGED["sentence-transformers/all-MiniLM-L6-v2"][0]
    path = Path(import_module(module).get_model_path()) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = None
    size, draw = tokenizer.get_vocab_size(), np.random.default_rng(0)
    vectors = draw.normal(size=(500 if shared else size, 8)).astype(np.float32)
    mapping = draw.integers(0, 500, size) if shared else None
    weights = draw.random(size).astype(np.float32) if shared else None
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": 8}
    more = {"weights": weights, "token_mapping": mapping, "config": config}
    model = model2vec.StaticModel(vectors, tokenizer, normalize=True, max_length=64, **more)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("shared", [False, True])
def test_vectors_are_those_of_model2vec(shared: bool, tmp_path: Path) -> None:
    folder = save_static(tmp_path / "static", shared=shared)
    theirs = model2vec.StaticModel.from_pretrained(folder).encode(TEXTS, max_length=64)
    encoder = resolve(folder).encoder
    assert encoder.settings.max_length == 64 and encoder.settings.pooling == "mean"
    ours, _ = encoder.encode(TEXTS, "claim")
    assert ours == pytest.approx(np.asarray(theirs), abs=1e-5)
    assert len({tuple(row) for row in ours.round(4)}) == len(TEXTS)
    # A post that spells a special token is not taken for it.
    post, plain = encoder.encode(["[PAD] masks", "masks"], "claim")[0]
    assert abs(post - plain).max() > 0.01


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    folder = save_static(tmp_path / "static")
    file = folder / "model.safetensors"
    whole = load_file(file)
    save_file({"other": whole["embeddings"]}, file)
    with pytest.raises(InputError, match="embeddings.*not a table of vectors"):
        resolve(folder)
    save_file({"embeddings": whole["embeddings"][:100].copy()}, file)
    with pytest.raises(InputError, match="100 vectors for a vocabulary of 30522 tokens"):
        resolve(folder)
    file.write_bytes(b"no tensors")
    with pytest.raises(InputError, match="no static embeddings"):
        resolve(folder)


def test_adapters_need_layers(tmp_path: Path) -> None:
    from claim2source.training.adapt import check_adaptable

    encoder = resolve(ModelConfig(str(save_static(tmp_path / "static")))).encoder
    config = small_config(tmp_path, tmp_path, tmp_path / "run", tuning="lora")
    with pytest.raises(ConfigError, match="tuning.*full"):
        check_adaptable(encoder, config)
    frozen = small_config(tmp_path, tmp_path, tmp_path, optimisation__train_embeddings=False)
    with pytest.raises(ConfigError, match="train_embeddings"):
        check_adaptable(encoder, frozen)
