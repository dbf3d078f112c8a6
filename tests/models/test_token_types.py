"""Types of a single text's tokens, and models without a limit of positions: XLNet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import processors
from transformers import AutoTokenizer, XLNetConfig, XLNetModel

from claim2source.core.errors import InputError
from claim2source.data.store import Store
from claim2source.models import ModelConfig, resolve
from claim2source.models.load import count_positions
from tests.models.layout import change_json, declare

TEXTS = ["vaccine works .", "a b c " * 9, "claim", "a paper"]


def set_types(folder: Path, single: str) -> Path:
    """Give the tokens of a single text types, as a tokenizer's template says."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save_pretrained(folder)
    # As BERT's and XLNet's own tokenizers.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    change_json(folder / "tokenizer_config.json", model_input_names=names)
    return folder


@pytest.fixture
def bert(tmp_path: Path, tiny_folder: Path) -> Path:
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "bert"))
    return declare(set_types(folder, "[CLS] $A:1 [SEP]:1"))


@pytest.fixture
def xlnet(tmp_path: Path, tiny_folder: Path) -> Path:
    """An XLNet: its class token comes last and has the type 2; it pads on the left."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "xlnet"))
    size = {"vocab_size": 32, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = XLNetConfig(**size, initializer_range=0.5, pad_token_id=0)
        XLNetModel(config).save_pretrained(folder)
    set_types(folder, "$A [SEP] [CLS]:2")
    change_json(folder / "tokenizer_config.json", padding_side="left")
    change_json(folder / "config.json", hidden_size=16)
    declare(folder)
    change_json(folder / "config.json", hidden_size=...)
    return folder


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
@pytest.mark.parametrize("device", ["cpu", "numpy", "prepacked"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_types_are_passed_to_the_model(
    kind: str, device: str, pooling: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    change_json(folder / "1_Pooling" / "config.json", pooling_mode=pooling)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    encoder = resolve(ModelConfig(str(folder)), device).encoder
    ours = encoder.encode(TEXTS, "claim")[0]
    alone = np.concatenate([encoder.encode([text], "claim")[0] for text in TEXTS])
    assert np.abs(ours - alone).max() < 1e-5
    assert np.abs(ours - expected).max() < 1e-5


def test_vectors_that_were_stored_without_types_are_not_read(bert: Path, tmp_path: Path) -> None:
    encoder = resolve(ModelConfig(str(bert)), "cpu").encoder
    key = encoder.key()
    assert key is not None
    weights = {name: value for name, value in (encoder.weights or {}).items() if name != "types"}
    encoder.encode(TEXTS, "claim", store=Store(tmp_path / "store"))
    encoder.weights = weights
    assert encoder.key() != key
    assert len(encoder.missing(TEXTS, "claim", Store(tmp_path / "store"))) == len(TEXTS)
    set_types(bert, "[CLS] $A [SEP]")
    assert "types" not in (resolve(ModelConfig(str(bert)), "cpu").encoder.weights or {})


def test_types_that_the_model_does_not_know_are_refused(bert: Path) -> None:
    set_types(bert, "[CLS] $A:3 [SEP]")
    with pytest.raises(InputError) as error:
        resolve(ModelConfig(str(bert)), "cpu")
    (line,) = error.value.lines
    assert line.startswith(str(bert / "tokenizer.json")) and "3" in line


def test_relative_positions_have_no_limit(xlnet: Path) -> None:
    resolved = resolve(ModelConfig(str(xlnet), max_length=600), "cpu")
    assert count_positions(resolved.encoder.model) is None
    long = ["a " * 590, "a " * 580]
    first, second = resolved.encoder.encode(long, "claim")[0]
    assert np.abs(first - second).max() > 0
    assert resolved.uncut_length(long) == 600
