"""Settings of a sentence-transformers folder: the vectors equal the library's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.files import write_json
from claim2source.data.store import Store
from claim2source.models import ModelConfig, resolve
from tests.models.layout import change_json, declare
from tests.models.mistral import save_mistral, save_tokenizer
from tests.refusals import refused
from tests.training.points import byte_level

TEXTS = ["Masks WORK in Zürich", "a", "", "Öl und Vitamin D: WOW! " * 9, "ends here </s> [SEP] now"]


@pytest.fixture
def cased(tmp_path: Path, save_tiny: Callable[..., Path]) -> Path:
    """A model whose tokenizer tells upper from lower case, byte by byte."""
    folder = save_tiny(tmp_path / "cased", vocab_size=300)
    byte_level(folder, pad=True)
    return folder


def theirs(folder: Path, **options: Any) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    vectors: np.ndarray = SentenceTransformer(str(folder), device="cpu", **options).encode(TEXTS)
    return vectors


def ours(folder: Path, **options: Any) -> np.ndarray:
    return resolve(ModelConfig(str(folder), **options), "cpu").encoder.encode(TEXTS, "claim")[0]


WITH_TOKENS = [0, 1, 3]  # neither an empty text, which has none here, nor names of special ones


def test_case_is_lowered_before_a_cased_tokenizer_reads(cased: Path, tmp_path: Path) -> None:
    declare(cased, sbert={"do_lower_case": True})
    encoder = resolve(ModelConfig(str(cased)), "cpu").encoder
    vectors = encoder.encode(TEXTS, "claim")[0]
    assert np.abs(vectors - theirs(cased))[WITH_TOKENS].max() < 1e-5
    lowered = encoder.encode([TEXTS[0].lower()], "claim")[0][0]
    assert np.abs(lowered - vectors[0]).max() < 1e-5
    # The store separates vectors of a version that ignored it.
    store = Store(tmp_path / "store")
    declare(cased)
    base_encoder = resolve(ModelConfig(str(cased)), "cpu").encoder
    before = base_encoder.encode(TEXTS, "claim", store=store)[0]
    assert np.abs(before - vectors)[0].max() > 1e-2
    assert np.array_equal(encoder.encode(TEXTS, "claim", store=store)[0], vectors)


@pytest.mark.parametrize("normalize", [True, False])
def test_only_the_first_dimensions_are_kept(normalize: bool, cased: Path) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    declare(cased, *kinds, whole={"truncate_dim": 5})
    encoder = resolve(ModelConfig(str(cased)), "cpu").encoder
    vectors, expected = encoder.encode(TEXTS, "claim")[0], theirs(cased)
    assert vectors.shape == expected.shape == (len(TEXTS), 5) and encoder.dimensions == 5
    if normalize:
        # They compare by cosine, which is the dot product here.
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(vectors - expected)[WITH_TOKENS].max() < 1e-5
    folder = declare(cased, *kinds, whole={"truncate_dim": 99})
    assert ours(folder).shape == (len(TEXTS), 16)
    for odd in ("5", 0, True):
        declare(cased, *kinds, whole={"truncate_dim": odd})
        with refused(InputError, "transformers.json: truncate_dim: ", repr(odd)):
            ours(cased)


def test_an_end_that_only_the_tokenizers_config_asks_for_is_appended(tmp_path: Path) -> None:
    """E5-Mistral's files: without it, last-token pooling reads the last word."""
    folder = save_mistral(tmp_path / "mistral")
    change_json(folder / "config.json", auto_map=...)
    save_tokenizer(folder, adds_eos=True)
    declare(folder, pooling="lasttoken")
    expected = ours(folder)
    assert resolve(ModelConfig(str(folder)), "cpu").encoder.settings.template.append_token == ""
    save_tokenizer(folder)
    declare(folder, pooling="lasttoken", tokenizer={"add_eos_token": True})
    encoder = resolve(ModelConfig(str(folder)), "cpu").encoder
    assert encoder.settings.template.append_token == "</s>"
    assert np.array_equal(encoder.encode(TEXTS, "claim")[0], expected)
    assert all(tokens.ids[-1] == 2 for tokens in encoder.tokenize(TEXTS, "claim"))
    assert max(len(tokens.ids) for tokens in encoder.tokenize(TEXTS, "claim")) == 24
    # A first token cannot be added, which is an error.
    change_json(folder / "tokenizer.json", post_processor=None)
    with refused(InputError, "tokenizer_config.json: add_bos_token: "):
        ours(folder)


@pytest.mark.parametrize(
    ("sbert", "tokenizer", "expected"),
    [
        ({"max_seq_length": None}, {"model_max_length": 20}, 20),
        ({"max_seq_length": 200}, {"model_max_length": 20}, 64),
        ({"max_seq_length": 12}, {"model_max_length": 20}, 12),
        ({"max_seq_length": 40, "tokenizer_args": {"model_max_length": 20}}, {}, 20),
    ],
)
def test_the_smaller_of_two_lengths_is_taken(
    sbert: dict[str, Any], tokenizer: dict[str, Any], expected: int, cased: Path
) -> None:
    declare(cased, sbert=sbert, tokenizer=tokenizer)
    assert resolve(ModelConfig(str(cased)), "cpu").encoder.settings.max_length == expected
    if (sbert["max_seq_length"] or 0) < 64:
        assert np.abs(ours(cased) - theirs(cased))[WITH_TOKENS].max() < 1e-5
    # A user's value is not changed silently.
    with refused(ConfigError, "model.max_length: 65 ", "64"):
        ours(cased, max_length=65)


@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
def test_a_similarity_that_dot_products_are_not_is_warned_of(
    kind: str, cased: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(cased, "Transformer", "Pooling", whole={"similarity_fn_name": kind})
    assert np.abs(ours(cased) - theirs(cased))[WITH_TOKENS].max() < 1e-5
    (line,) = caplog.messages
    assert kind in line and "model.normalize: true" in line
    caplog.clear()
    ours(cased, normalize=True)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("sbert", "field"),
    [
        ({"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs"),
        ({"tokenizer_args": {"add_prefix_space": True}}, "tokenizer_args.add_prefix_space"),
        ({"config_kwargs": {"is_causal": False}}, "config_kwargs.is_causal"),
        ({"modality_config": {"text": {"method_output_name": "logits"}}}, "modality_config"),
    ],
)
def test_what_would_change_vectors_is_refused_by_its_name(
    sbert: dict[str, Any], field: str, cased: Path
) -> None:
    declare(cased, sbert=sbert)
    with refused(InputError, f"sentence_bert_config.json: {field}: ") as error:
        ours(cased)
    assert "\n" not in str(error.value)


def test_weights_of_a_transformer_in_a_folder_of_its_own(cased: Path) -> None:
    declare(cased)
    modules = json.loads((cased / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write_json(cased / "modules.json", modules)
    shutil.copytree(cased, cased / "0_Transformer")
    with refused(InputError, "modules.json: path: ", "0_Transformer"):
        ours(cased)
