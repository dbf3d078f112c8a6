"""Checkpoints of ours without a training: tiny models whose weights were moved at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import MistralConfig, MistralModel, PreTrainedTokenizerFast

from claim2source.models import (
    Encoder,
    Manifest,
    ModelConfig,
    Template,
    Weights,
    resolve,
    tokenizer_hash,
)
from claim2source.text import Rendering
from claim2source.training.checkpoint import save_checkpoint

# None of these is a default, and the two sides differ: what is forgotten or swapped shows.
TEMPLATE = Template("query : a ", "passage : b c ", True)
RENDERING = Rendering("bilingual", "title_abstract")


def config(folder: Path, **changes: Any) -> ModelConfig:
    """How the tiny model of `save_tiny` is read."""
    settings = {"pooling": "mean", "normalize": True, "max_length": 12, "template": TEMPLATE}
    return ModelConfig(str(folder), **settings | changes)  # type: ignore[arg-type]


def write_point(
    model: ModelConfig,
    folder: Path,
    kind: str,
    move: float = 0.3,
    targets: Any = "all-linear",
    dropout: float = 0.1,
) -> Encoder:
    """Disturb and save a checkpoint; returns its encoder as it is in memory."""
    from peft import LoraConfig, get_peft_model

    found = resolve(model, "cpu")
    encoder = found.encoder
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)  # an adapter's beginning is random too
        if kind == "lora":
            lora = LoraConfig(r=2, lora_alpha=8, target_modules=targets, lora_dropout=dropout)
            encoder.model = get_peft_model(encoder.model, lora)  # type: ignore[assignment]
        if kind != "base":
            for parameter in encoder.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * move)
    encoder.model.eval()
    manifest = Manifest(found.base, Weights(), encoder.settings, RENDERING, epoch=1)
    written = save_checkpoint(folder, encoder, found.folder, manifest, kind)
    encoder.weights = written.weights.identity(
        {"base": found.base.sha256, "tokenizer": tokenizer_hash(found.folder)}
    )
    return encoder


def byte_level(folder: Path, join: str | None = None, pad: bool = False) -> None:
    """A byte-level tokenizer with an end token; `join` is a letter that takes the space before."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<unk>", "</s>", *alphabet, *([f"Ġ{join}"] if join else [])]
    vocabulary = {word: i for i, word in enumerate(words)}
    core = Tokenizer(models.BPE(vocabulary, [("Ġ", join)] if join else []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    named = {"pad_token": "<unk>"} if pad else {}
    PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="</s>", unk_token="<unk>", **named
    ).save_pretrained(folder)


def save_mistral(folder: Path) -> Path:
    """A tiny random Mistral whose tokenizer has no padding token."""
    byte_level(folder)
    sizes = MistralConfig(
        vocab_size=260,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        max_position_embeddings=64,
        head_dim=8,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MistralModel(sizes).save_pretrained(folder)
    return folder
