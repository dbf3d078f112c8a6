"""`scripts/unpack_nomic.py`: a GGUF file becomes a model folder; other files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertTokenizer, NomicBertConfig, NomicBertModel

from claim2source.core.errors import ConfigError, InputError
from claim2source.models import ModelConfig, Template, resolve
from scripts.unpack_nomic import main

gguf = pytest.importorskip("gguf")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "mask", "##s", "cut", "search", "_", "query"]
WORDS += ["document", ":", "out", "##break", "3", ".", "7", "##x"]
TEXTS = ["masks cut outbreaks", "Mask 3.7x .", "cut"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    "layer_norm_eps": 1e-7,
}


@pytest.fixture(scope="module")
def model() -> NomicBertModel:
    torch.manual_seed(5)
    model = NomicBertModel(NomicBertConfig(**SIZES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms begin alike
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def write_gguf(path: Path, model: NomicBertModel, kind: str = "nomic-bert", **data: Any) -> Path:
    """Write a model as llama.cpp's converter does: query, key and value in one tensor."""
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-7)
    writer.add_rope_freq_base(50.0)
    writer.add_token_list(
        [
            w.removeprefix("##") if w[:2] == "##" else w if w[0] == "[" else f"\u2581{w}"
            for w in WORDS
        ]
    )
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    for name, tensor in tensors(model).items():
        writer.add_tensor(name, data.get(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(model: NomicBertModel) -> dict[str, np.ndarray]:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    names = {
        "token_embd.weight": state["embeddings.word_embeddings.weight"],
        "token_types.weight": state["embeddings.token_type_embeddings.weight"],
        "token_embd_norm.weight": state["embeddings.LayerNorm.weight"],
        "token_embd_norm.bias": state["embeddings.LayerNorm.bias"],
    }
    for number in range(2):
        ours, theirs = f"layers.{number}", f"blk.{number}"
        sides = [state[f"{ours}.self_attn.{side}_proj.weight"] for side in "qkv"]
        names[f"{theirs}.attn_qkv.weight"] = np.concatenate(sides)
        names[f"{theirs}.attn_output.weight"] = state[f"{ours}.self_attn.o_proj.weight"]
        for part in ("up", "gate", "down"):
            names[f"{theirs}.ffn_{part}.weight"] = state[f"{ours}.mlp.{part}_proj.weight"]
        for kind in ("weight", "bias"):
            norm = state[f"{ours}.post_attention_layernorm.{kind}"]
            names[f"{theirs}.attn_output_norm.{kind}"] = norm
            names[f"{theirs}.layer_output_norm.{kind}"] = state[f"{ours}.post_mlp_layernorm.{kind}"]
    return names


def test_the_folder_is_the_model(tmp_path: Path, model: NomicBertModel) -> None:
    file = write_gguf(tmp_path / "m.gguf", model)
    main([str(file), "--out", str(tmp_path / "out")])
    encoder = resolve(ModelConfig(str(tmp_path / "out")), "cpu").encoder
    assert encoder.settings.template == Template("search_query: ", "search_document: ")
    assert encoder.settings.normalize and encoder.settings.max_length == 64
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    vectors, _ = encoder.encode(TEXTS, "claim")
    for text, vector in zip(TEXTS, vectors, strict=True):
        inputs = tokenizer(f"search_query: {text}", return_tensors="pt")
        assert 1 not in inputs["input_ids"]
        with torch.inference_mode():
            expected = model(**inputs).last_hidden_state[0].mean(0)
        assert np.abs(vector - (expected / expected.norm()).numpy()).max() < 1e-5


def test_what_is_not_such_a_file_is_refused(tmp_path: Path, model: NomicBertModel) -> None:
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(b"GGUF" + b"\0" * 99)
    out = tmp_path / "out"
    for file in (odd, write_gguf(tmp_path / "bert.gguf", model, "bert"), tmp_path / "absent.gguf"):
        with pytest.raises(InputError) as refused:
            main([str(file), f"--out={out}"])
        assert [problem.file for problem in refused.value.problems] == [str(file)]
    with pytest.raises(InputError):
        main([str(tmp_path), f"--out={out}"])  # a folder without the packages
    assert not out.exists()
    out.mkdir()
    with pytest.raises(ConfigError) as kept:
        main([str(odd), f"--out={out}"])
    assert kept.value.key == "out"
