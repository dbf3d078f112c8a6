"""Models with a trained layer after the pooling, like GTR, against sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from claim2source.core.errors import InputError, UserError
from claim2source.models import ModelConfig, resolve
from tests.models.layout import change_json
from tests.models.mistral import VOCABULARY, save_tokenizer
from tests.refusals import refused

st = pytest.importorskip("sentence_transformers")
TEXTS = ["the user", "in a thing", "a b c d e f g", "the the the embed user in about"]
DENSE = "2_Dense"


def save_t5(folder: Path, **layer: Any) -> Path:
    """The encoder half of a T5, mean pooling, a Dense layer and normalisation: GTR in small."""
    from sentence_transformers.sentence_transformer import modules
    from transformers import T5Config, T5EncoderModel

    sizes: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 4,
        "pad_token_id": 0,
        "dropout_rate": 0.0,
        "initializer_factor": 3.0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        T5EncoderModel(T5Config(**sizes)).save_pretrained(str(folder / "plain"))
        save_tokenizer(folder / "plain", adds_eos=True, pad_token="<unk>")
        parts = [
            modules.Transformer(str(folder / "plain"), max_seq_length=24),
            modules.Pooling(16, "mean"),
            modules.Dense(16, 6, **{"activation_function": torch.nn.Identity(), **layer}),
            modules.Normalize(),
        ]
        st.SentenceTransformer(modules=parts, device="cpu").save(str(folder / "gtr"))
    return folder / "gtr"


@pytest.mark.parametrize(
    "layer", [{"bias": False}, {"bias": True, "activation_function": torch.nn.Tanh()}]
)
def test_the_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, layer: dict[str, Any]
) -> None:
    folder = save_t5(tmp_path, **layer)
    encoder = resolve(folder).encoder
    oracle = st.SentenceTransformer(str(folder), device="cpu")
    expected = oracle.encode(TEXTS)
    vectors, _ = encoder.encode(TEXTS, "claim")
    assert vectors.shape == (4, 6) and encoder.dimensions == 6
    assert np.abs(vectors - expected).max() < 1e-5
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-2
    assert encoder.parameters == sum(p.numel() for p in oracle.parameters())


def test_another_layer_is_another_model_in_the_store(tmp_path: Path) -> None:
    folder = save_t5(tmp_path)
    before = resolve(folder).encoder.key()
    assert resolve(folder).encoder.key() == before
    weights = load_file(folder / DENSE / "model.safetensors")
    save_file(
        {name: 2 * value for name, value in weights.items()}, folder / DENSE / "model.safetensors"
    )
    assert resolve(folder).encoder.key() != before


def test_bin_weights_of_the_layer_are_read_only_where_allowed_and_as_tensors(
    tmp_path: Path,
) -> None:
    folder = save_t5(tmp_path)
    expected, _ = resolve(folder).encoder.encode(TEXTS, "claim")
    layer_folder = folder / DENSE
    torch.save(load_file(layer_folder / "model.safetensors"), layer_folder / "pytorch_model.bin")
    (layer_folder / "model.safetensors").unlink()
    with refused(InputError, folder, "*.safetensors", f"model.allow_bin: [{folder}]"):
        resolve(folder)
    allowed = ModelConfig(str(folder), allow_bin=(str(folder),))
    assert np.array_equal(resolve(allowed).encoder.encode(TEXTS, "claim")[0], expected)

    ran = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return Path.touch, (ran,)

    torch.save({"linear.weight": Hostile()}, layer_folder / "pytorch_model.bin")
    with refused(InputError, layer_folder / "pytorch_model.bin"):
        resolve(allowed)
    assert not ran.exists()


def edit(folder: Path, **values: Any) -> None:
    change_json(folder / DENSE / "config.json", **values)


def shift(folder: Path, order: list[int], path: str = DENSE) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["path"] = path
    (folder / "modules.json").write_text(json.dumps([modules[i] for i in order]))


GELU = "torch.nn.modules.activation.GELU"
CONFIG = f"{DENSE}/config.json: "
REFUSED: dict[tuple[str, ...], Callable[[Path], None]] = {
    (f"{CONFIG}activation_function: ", GELU): lambda f: edit(f, activation_function=GELU),
    (f"{CONFIG}in_features: 8,", " 16 "): lambda folder: edit(folder, in_features=8),
    (f"{CONFIG}out_features: ",): lambda folder: edit(folder, out_features=0),
    (f"{DENSE}/model.safetensors: ",): lambda folder: edit(folder, out_features=7),
    (f"{CONFIG}module_input_name: 'token_embeddings'",): lambda folder: edit(
        folder, module_input_name="token_embeddings"
    ),
    ("modules.json: type: Dense ",): lambda folder: shift(folder, [0, 1, 3, 2]),
    ("modules.json: path: ",): lambda folder: shift(folder, [0, 1, 2, 3], "../elsewhere"),
}


@pytest.mark.parametrize("facts", REFUSED)
def test_a_layer_we_cannot_compute_is_one_line(tmp_path: Path, facts: tuple[str, ...]) -> None:
    folder = save_t5(tmp_path)
    REFUSED[facts](folder)
    with refused(UserError, *facts) as failure:
        resolve(folder)
    assert "\n" not in str(failure.value)
