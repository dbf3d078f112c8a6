"""Nomic BERT: the authors' config and transformers', cut vectors, training and export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import NomicBertConfig, NomicBertModel

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.files import write_json
from claim2source.models import Encoder, ModelConfig, Template, resolve
from claim2source.models.config import NUMPY, PREPACKED
from claim2source.models.hub import tokenizer_files
from claim2source.models.numpy_encoder import NumpyEncoder
from tests.models.layout import change_json
from tests.models.test_numpy_encoder import TINY, require_equal
from tests.models.test_sentence_transformers import declare
from tests.training.export.test_sentence_transformers import exported
from tests.training.points import byte_level, config, write_point

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
# The same model, as the authors' config names it.
AUTHORS: dict[str, Any] = {
    "model_type": "nomic_bert",
    "auto_map": {
        "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
    },
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 64,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 16,
    "n_head": 2,
    "n_inner": 24,
    "n_layer": 2,
    "n_positions": 512,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "vocab_size": 300,
}
PROMPTS = {"query": "search_query: ", "document": "search_document: "}
TEXTS = ["masks", "Masks cut outbreaks 3.7x, a study says. " * 9, "", "Grüße: 3,7-fach 👍🏽", "a b"]


@pytest.fixture
def nomic(tmp_path: Path) -> Path:
    folder = tmp_path / "nomic"
    torch.manual_seed(3)
    NomicBertModel(NomicBertConfig(**SIZES)).save_pretrained(folder)
    byte_level(folder, pad=True)
    return declare(folder, whole={"prompts": PROMPTS})


@pytest.fixture
def worded(nomic: Path, tiny_folder: Path) -> Path:
    """The same weights with a tokenizer of words, which adds tokens at both ends of a text."""
    for path in tokenizer_files(nomic):
        path.unlink()
    for path in tokenizer_files(tiny_folder):
        shutil.copy(path, nomic)
    return nomic


def vectors(folder: Path, **keys: Any) -> np.ndarray:
    return resolve(ModelConfig(str(folder), **keys), "cpu").encoder.encode(TEXTS, "claim")[0]


def test_vectors_are_those_of_sentence_transformers(nomic: Path) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(nomic), device="cpu")
    encoder = resolve(ModelConfig(str(nomic)), "cpu").encoder
    assert encoder.packs and encoder.settings.template == Template(*PROMPTS.values())
    expected = [theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)]
    for side, wanted in zip(("claim", "source"), expected, strict=True):
        assert np.abs(encoder.encode(TEXTS, side)[0] - wanted).max() < 1e-5
    assert np.abs(expected[0] - expected[1]).max() > 1e-2


def test_the_authors_config_is_the_same_model(nomic: Path) -> None:
    expected = vectors(nomic)
    write_json(nomic / "config.json", AUTHORS)
    encoder = resolve(ModelConfig(str(nomic)), "cpu").encoder
    assert np.abs(encoder.encode(TEXTS, "claim")[0] - expected).max() < 1e-6
    # Positions that it was not trained on are not used.
    longer = {"max_seq_length": 512}
    write_json(nomic / "sentence_bert_config.json", longer)
    assert resolve(ModelConfig(str(nomic)), "cpu").encoder.settings.max_length == 64
    with pytest.raises(ConfigError):
        vectors(nomic, max_length=65)


def test_another_base_of_rotations_is_read(nomic: Path) -> None:
    expected = vectors(nomic)
    write_json(nomic / "config.json", AUTHORS | {"rotary_emb_base": 10})
    assert np.abs(vectors(nomic) - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "gelu"),
        ("prenorm", True),
        ("qkv_proj_bias", True),
        ("rotary_emb_interleaved", True),
        ("rotary_scaling_factor", 2),
        ("num_experts", 8),
    ],
)
def test_another_form_of_the_model_is_refused(nomic: Path, key: str, value: Any) -> None:
    write_json(nomic / "config.json", AUTHORS | {key: value})
    with pytest.raises(InputError) as refused:
        vectors(nomic)
    (problem,) = refused.value.problems
    assert (problem.field, problem.file) == (key, str(nomic / "config.json"))


@pytest.mark.parametrize("kept", [1, 7, 16])
def test_any_length_of_vectors(nomic: Path, kept: int) -> None:
    whole = vectors(nomic, normalize=False)
    assert np.abs(vectors(nomic, normalize=False, truncate_dim=kept) - whole[:, :kept]).max() < 1e-6
    cut = whole[:, :kept] / np.linalg.norm(whole[:, :kept], axis=1, keepdims=True)
    assert np.abs(vectors(nomic, truncate_dim=kept) - cut).max() < 1e-5


def test_a_length_that_the_model_does_not_have_is_refused(nomic: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        vectors(nomic, truncate_dim=17)
    assert (refused.value.key, refused.value.value) == ("model.truncate_dim", 17)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_quick_encoders_give_the_same_vectors(worded: Path, pooling: Any) -> None:
    require_equal(ModelConfig(str(worded), pooling=pooling), TINY)
    require_equal(ModelConfig(str(worded), pooling=pooling, truncate_dim=5), TINY)


def test_a_vector_does_not_depend_on_the_other_texts(worded: Path) -> None:
    quick = resolve(ModelConfig(str(worded)), PREPACKED).encoder
    together, _ = quick.encode(TINY, "claim")
    for text, vector in zip(TINY, together, strict=True):
        assert np.abs(quick.encode([text], "claim")[0][0] - vector).max() < 1e-5


def test_another_rotation_is_left_to_transformers(worded: Path) -> None:
    change_json(
        worded / "config.json",
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
    )
    encoder = resolve(ModelConfig(str(worded)), NUMPY).encoder
    assert isinstance(encoder, Encoder) and not isinstance(encoder, NumpyEncoder)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_trained_model_is_exported(nomic: Path, tmp_path: Path, kind: str) -> None:
    exported(config(nomic, max_length=32), tmp_path, kind)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["model_type"] == "nomic_bert" and "auto_map" not in written


def test_a_checkpoint_runs_without_transformers(worded: Path, tmp_path: Path) -> None:
    write_point(config(worded, max_length=32), tmp_path / "point", "full")
    require_equal(tmp_path / "point", TINY)


def test_a_checkpoint_of_the_authors_config_is_read_again(nomic: Path, tmp_path: Path) -> None:
    write_json(nomic / "config.json", AUTHORS | {"rotary_emb_base": 10})
    exported(config(nomic, max_length=32), tmp_path, "full")
